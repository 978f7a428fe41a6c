//! Two instances write about the same few sources at once. Whatever the interleaving, the rules
//! hold, and what was acknowledged is what the log has.

use std::collections::BTreeMap;

use guanxi_model::change::{CounterDelta, Field, ImportEdge, KindPatch, Put};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::import::{ImportId, ImportLines, ImportStep};
use guanxi_model::limits::COUNTER_ABS_MAX;
use guanxi_model::record::Cause;
use guanxi_model::{
    Answer, Change, Code, EdgeKey, GroupName, GroupsKey, KindId, NodeKey, NodeTypeId, Request,
    SourceId, Version,
};

use crate::bench::{BLOCK, FOLLOW, Instance, TENANT, databases, edge};
use crate::tables::Tables;

const VIEW: KindId = KindId(5);
const WRITERS_EACH: usize = 4;
const REQUESTS_EACH: usize = 60;
const USERS: u64 = 5;
const LIMIT: u32 = 3;

#[test]
fn instances_that_race_keep_every_rule() {
    for (server, url) in databases("instances_that_race_keep_every_rule") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        limit_follows(&instances);
        let acknowledged = race(&instances, random_request);
        let tables = Tables::read(&instances[0].database);
        tables.check();
        for (key, head) in tables.heads.iter().filter(|(key, _)| key.kind == FOLLOW) {
            let held = head.outgoing + head.pending_outgoing;
            assert!(held <= i64::from(LIMIT), "{server}: {key:?} has {held}");
        }
        check_log(&tables, &acknowledged, server);
    }
}

#[test]
fn a_follow_and_a_block_never_both_stand() {
    for (server, url) in databases("a_follow_and_a_block_never_both_stand") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let mut both = 0;
        for round in 0..80_u64 {
            let (one, other) = (1_000 + 2 * round, 1_001 + 2 * round);
            let follow = edge(FOLLOW, one, other);
            let block = edge(BLOCK, other, one);
            let blocked = std::thread::scope(|scope| {
                let following = scope.spawn(|| instances[0].put(follow));
                let blocking = scope.spawn(|| instances[1].put(block));
                let followed = following.join().unwrap();
                assert!(blocking.join().unwrap().unwrap().changed, "a block always passes");
                followed.is_ok()
            });
            both += u64::from(blocked);
        }
        let tables = Tables::read(&instances[0].database);
        tables.check();
        let standing = tables.standing().filter(|(key, _)| key.kind == FOLLOW).count();
        assert_eq!(standing, 0, "{server}: {both} follows passed, the blocks cut them all");
    }
}

#[test]
fn a_key_is_used_once_whoever_uses_it() {
    for (server, url) in databases("a_key_is_used_once_whoever_uses_it") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        for round in 0..15_u64 {
            let key = IdempotencyKey::new(&format!("key-{round}")).unwrap();
            // Sources of several lanes, so that it is wide.
            let put = |source| Change::Put(Put::plain(edge(FOLLOW, source, 90 + round)));
            let changes = vec![put(1), put(2), put(3)];
            let request = Request { key: Some(key), ..Request::new(TENANT, changes) };
            let answers: Vec<Answers> = std::thread::scope(|scope| {
                let writers: Vec<_> = (0..4)
                    .map(|writer| {
                        let (instance, request) = (&instances[writer % 2], request.clone());
                        scope.spawn(move || instance.write(request).unwrap().answers)
                    })
                    .collect();
                writers.into_iter().map(|writer| writer.join().unwrap()).collect()
            });
            for others in &answers[1..] {
                assert_eq!(others, &answers[0], "{server}: every caller is told the same");
            }
            let changed = |answer: &Result<Answer, _>| matches!(answer, Ok(Answer::Edge(edge)) if edge.changed);
            assert!(answers[0].iter().all(changed), "{server}: {answers:?}");
        }
        Tables::read(&instances[0].database).check();
    }
}

/// Both instances send the same chunk of an import, and then the next one.
#[test]
fn a_chunk_of_an_import_is_done_once() {
    for (server, url) in databases("a_chunk_of_an_import_is_done_once") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let lines = 40;
        for chunk in 0..8_u64 {
            let id = ImportId::new("history").unwrap();
            let (before, after) = (chunk * lines, (chunk + 1) * lines);
            let of_changes = (before + 1..=after).collect();
            let lines = ImportLines { before, after, of_changes, ..ImportLines::default() };
            let step = ImportStep { id, lines };
            let line = |line| {
                let put = Put::plain(edge(FOLLOW, 1 + line % 5, 1_000 + line));
                let (since, state, ignore_limits) = (None, None, true);
                Change::ImportEdge(Box::new(ImportEdge { put, since, state, ignore_limits }))
            };
            let changes = (before..after).map(line).collect();
            let request = Request { import: Some(step), ..Request::new(TENANT, changes) };
            let done = std::thread::scope(|scope| {
                let writers: Vec<_> = instances
                    .iter()
                    .map(|instance| {
                        let request = request.clone();
                        scope.spawn(move || instance.write(request))
                    })
                    .collect();
                let outcomes = writers.into_iter().map(|writer| writer.join().unwrap());
                outcomes.filter(Result::is_ok).count()
            });
            assert_eq!(done, 1, "{server}: chunk {chunk}");
        }
        let tables = Tables::read(&instances[0].database);
        tables.check();
        assert_eq!(tables.standing().count() as u64, 8 * lines, "{server}");
        assert!(tables.outbox.values().all(|records| records.len() == 1), "{server}");
    }
}

/// Counters add up over instances and slots, up to their bound.
#[test]
fn counters_add_up_over_instances() {
    for (server, url) in databases("counters_add_up_over_instances") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let count = |delta| {
            let key = None;
            Change::Count(CounterDelta { tenant: TENANT, kind: VIEW, id: 5, delta, key })
        };
        std::thread::scope(|scope| {
            for writer in 0..6 {
                let instance = &instances[writer % 2];
                scope.spawn(move || {
                    for _ in 0..20 {
                        instance.change(count(1)).unwrap();
                    }
                });
            }
        });
        let key = GroupsKey { tenant: TENANT, kind: VIEW, source: SourceId(5) };
        assert_eq!(Tables::read(&instances[0].database).counters[&key], 120, "{server}");
        for value in [COUNTER_ABS_MAX, -COUNTER_ABS_MAX, 3] {
            let (tenant, kind) = (TENANT, VIEW);
            let import = Change::ImportCounter { tenant, kind, id: 5, value };
            let answer = instances[1].change(import).unwrap();
            assert_eq!(answer, Answer::Counter { value }, "{server}");
            let tables = Tables::read(&instances[0].database);
            assert_eq!(tables.counters[&key], value, "{server}");
            assert!(tables.slot_abs_max <= 1 << 49, "{server}: {}", tables.slot_abs_max);
        }
        let refused = instances[0].change(count(COUNTER_ABS_MAX)).unwrap_err();
        assert_eq!(refused.code, Code::LimitReached, "{server}");
    }
}

type Acknowledged = BTreeMap<(EdgeKey, Version), ()>;

/// Lets writers of both instances run; returns every version that an answer says was given.
fn race(instances: &[Instance; 2], request: fn(&mut fastrand::Rng) -> Request) -> Acknowledged {
    std::thread::scope(|scope| {
        let mut writers = Vec::new();
        for writer in 0..2 * WRITERS_EACH {
            let instance = &instances[writer % 2];
            writers.push(scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(writer as u64);
                let mut acknowledged = Acknowledged::new();
                for _ in 0..REQUESTS_EACH {
                    let request = request(&mut random);
                    let written = instance.write(request.clone()).unwrap();
                    note(&request, &written.answers, &mut acknowledged);
                    for seen in written.changed.iter().chain(&written.found) {
                        assert!(seen.version > Version::ZERO);
                    }
                }
                acknowledged
            }));
        }
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    })
}

fn note(request: &Request, answers: &Answers, acknowledged: &mut Acknowledged) {
    for (change, answer) in request.changes.iter().zip(answers) {
        let edge = match change {
            Change::Put(put) => put.edge,
            Change::Delete { edge, .. } | Change::Approve { edge } => *edge,
            _ => continue,
        };
        if let Ok(Answer::Edge(answer)) = answer
            && answer.changed
        {
            let twice = acknowledged.insert((edge, answer.version.unwrap()), ());
            assert!(twice.is_none(), "a version of {edge:?} was given twice");
        }
    }
}

/// What was acknowledged is in the log, and nothing else but what followed from it.
fn check_log(tables: &Tables, acknowledged: &Acknowledged, server: &str) {
    let mut logged = Acknowledged::new();
    for record in tables.outbox.values().flatten() {
        if !matches!(record.cause, Cause::Cut | Cause::Move) {
            logged.insert((record.key, record.new.version), ());
        }
    }
    assert_eq!(&logged, acknowledged, "{server}");
}

fn limit_follows(instances: &[Instance; 2]) {
    let patch = KindPatch { outgoing_max: Field::Set(LIMIT), ..KindPatch::default() };
    let set = Change::SetKind { tenant: TENANT, kind: FOLLOW, patch: Box::new(patch) };
    instances[0].change(set).unwrap();
    instances[1].catalog.refresh(&instances[1].database).unwrap();
}

fn random_request(random: &mut fastrand::Rng) -> Request {
    let changes = (0..random.usize(1..4)).map(|_| random_change(random)).collect();
    Request::new(TENANT, changes)
}

fn random_change(random: &mut fastrand::Rng) -> Change {
    let source = random.u64(1..=USERS);
    let target = (source + random.u64(1..USERS) - 1) % USERS + 1;
    let kind: KindId = if random.u8(..4) == 0 { BLOCK } else { FOLLOW };
    let edge = edge(kind, source, target);
    let groups = GroupsKey::of(&edge);
    let name = GroupName::new(["a", "b"][random.usize(..2)]).unwrap();
    match random.u8(..20) {
        0..9 => Change::Put(Put::plain(edge)),
        9..14 => Change::Delete { edge, strict: random.bool() },
        14 => Change::Approve { edge },
        15 => {
            let node = NodeKey { tenant: TENANT, node_type: NodeTypeId(1), id: target };
            Change::SetNode { node, private: Some(random.bool()) }
        }
        16 => Change::CreateGroup { groups, name },
        17 => Change::DeleteGroup { groups, name },
        _ => Change::AddMember { edge, group: name },
    }
}
