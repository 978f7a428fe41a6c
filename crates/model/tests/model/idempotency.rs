//! What makes two requests the same one: everything that they ask for, in its order.

use guanxi_model::change::{CounterDelta, Field, Put, request_hash};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow, decide_once, replay};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{Answer, Change, Code, EdgeKey, Error, Millis, TenantId};

use crate::world::{FOLLOW, LIKE, TENANT, VIEW, edge, group_name};

#[test]
fn requests_that_differ_in_anything_have_other_hashes() {
    let put = Put::plain(edge(FOLLOW, 1, 2));
    let elsewhere = |edge| Change::Put(Put::plain(edge));
    let with = |change: fn(&mut Put)| {
        let mut put = put.clone();
        change(&mut put);
        Change::Put(put)
    };
    let of_edge: [fn(EdgeKey) -> Change; 4] = [
        |edge| Change::Approve { edge },
        |edge| Change::Decline { edge },
        |edge| Change::Delete { edge, strict: false },
        |edge| Change::Delete { edge, strict: true },
    ];
    let count = |kind, id, delta| {
        Change::Count(CounterDelta { tenant: TENANT, kind, id, delta, key: None })
    };
    let mut requests: Vec<Vec<Change>> = vec![vec![]];
    let single = [
        elsewhere(edge(FOLLOW, 1, 2)),
        elsewhere(edge(FOLLOW, 2, 1)),
        elsewhere(edge(FOLLOW, 1, 3)),
        elsewhere(edge(LIKE, 1, 2)),
        elsewhere(EdgeKey { tenant: TenantId(2), ..edge(FOLLOW, 1, 2) }),
        with(|put| put.group = Field::Clear),
        with(|put| put.group = Field::Set(group_name("a"))),
        with(|put| put.group = Field::Set(group_name("b"))),
        with(|put| put.owner = Field::Clear),
        with(|put| put.owner = Field::Set(1)),
        with(|put| put.data = Field::Clear),
        with(|put| put.data = Field::Set("a".into())),
        with(|put| put.expires_at = Field::Clear),
        with(|put| put.expires_at = Field::Set(Millis(1))),
        with(|put| put.approval = true),
        with(|put| put.strict = true),
        count(VIEW, 1, 2),
        count(VIEW, 1, -2),
        count(VIEW, 2, 2),
        count(LIKE, 1, 2),
    ];
    requests.extend(single.map(|change| vec![change]));
    requests.extend(of_edge.map(|change| vec![change(edge(FOLLOW, 1, 2))]));
    let (one, other) = (requests[1].clone(), requests[2].clone());
    requests.push([one.clone(), other.clone()].concat());
    requests.push([other, one].concat());

    let mut hashes: Vec<u128> = requests.iter().map(|all| request_hash(all)).collect();
    let again: Vec<u128> = requests.iter().map(|all| request_hash(all)).collect();
    assert_eq!(hashes, again);
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), requests.len(), "two requests look the same");
}

#[test]
fn a_stored_answer_is_good_for_a_day() {
    let key = IdempotencyKey::new("key").unwrap();
    let check = |request: u128, now: u64, expected: Result<bool, Code>| {
        let row = IdempotencyRow { request: 7, at: Millis(1_000), answers: Vec::new() };
        let found = replay(Some(row), &key, request, Millis(now));
        let found = found.map(|answers| answers.is_some());
        assert_eq!(found.map_err(|error| error.code), expected, "{request} at {now}");
    };
    let end = 1_000 + IDEMPOTENCY_TTL_MS;
    check(7, 1_000, Ok(true));
    check(7, end - 1, Ok(true));
    check(7, end, Ok(false));
    check(8, 1_000, Err(Code::KeyConflict));
    check(8, end - 1, Err(Code::KeyConflict));
    check(8, end, Ok(false));
    check(7, 0, Ok(true)); // The clock may have stepped back.
    assert_eq!(replay(None, &key, 7, Millis(0)), Ok(None));
}

/// The 24 hours begin with the first use, however often something is decided anew.
#[test]
fn what_is_decided_anew_keeps_the_time_of_its_key() {
    let key = IdempotencyKey::new("key").unwrap();
    let changes = [put(1), put(2)];
    let done = || Ok(Answer::Counter { value: 1 });
    let busy = || Err(Error::new(Code::Conflict, "it is being erased").passing());
    let decide = |row, now| {
        let mut decided = Vec::new();
        let answers = decide_once(row, &key, &changes, Millis(now), |change| {
            decided.push(change.clone());
            Ok::<_, ()>(if decided.len() == 2 { busy() } else { done() })
        });
        let (_, row) = answers.unwrap().unwrap();
        (decided.len(), row.expect("something was done"))
    };
    let (decided, row) = decide(None, 1_000);
    assert_eq!((decided, row.at), (2, Millis(1_000)));
    let (decided, again) = decide(Some(row.clone()), 5_000);
    assert_eq!((decided, again.at), (1, Millis(1_000)));
    // A time that the caller does not know.
    let ahead = IdempotencyRow { at: Millis(u64::MAX), ..row.clone() };
    assert_eq!(decide(Some(ahead), 5_000), (1, IdempotencyRow { at: Millis(5_000), ..again }));
    // A key that is free again.
    let late = 1_000 + IDEMPOTENCY_TTL_MS;
    assert_eq!(decide(Some(row), late).1.at, Millis(late));
}

fn put(target: u64) -> Change {
    Change::Put(Put::plain(edge(FOLLOW, 1, target)))
}
