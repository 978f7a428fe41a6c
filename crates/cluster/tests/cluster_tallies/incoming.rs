//! Newest incoming edges in Redis: pages are those of the tables, and nothing is shown that the
//! follower has passed.

use guanxi_cluster::memory::SharedMemory;
use guanxi_cluster::memory::incoming::IncomingClaim;
use guanxi_cluster::memory::incoming::packed::{ENTRIES_MAX, Newest, PackedIncoming};
use guanxi_cluster::memory::tallies::packed::StringToken;
use guanxi_core::AuditQuery;
use guanxi_core::crew::Crew;
use guanxi_core::read::ListQuery;
use guanxi_model::change::{Field, ImportEdge, Put};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{Change, Millis, State};
use redis::cmd;

use crate::pages::list_figures;
use crate::stage::{ALL, From, SERVING, Stage, figures};
use crate::world::{FOLLOW, LIKE, TENANT, USER, edge, eventually, now_ms, open, put, run, soon};

const LONG: u64 = 100;
const FULL: u64 = 101;
const BEYOND: u64 = 102;
const SHORT: u64 = 103;
const NOBODY: u64 = 104;

fn follow(stage: &Stage, cluster: &guanxi_cluster::instance::Cluster, of: &[(u64, u64)]) {
    let puts = of.iter().flat_map(|(target, count)| {
        (1..=*count).map(|source| put(FOLLOW, 1_000 + source, *target))
    });
    let puts: Vec<Change> = puts.collect();
    for puts in puts.chunks(200) {
        stage.write(cluster, puts.to_vec());
    }
    stage.settle();
    stage.await_follower();
}

#[test]
fn pages_of_what_is_kept_ask_no_database() {
    let Some(stage) = Stage::open("incoming pages") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    let bound = ENTRIES_MAX as u64;
    let lists = [(LONG, bound + 50), (FULL, bound), (BEYOND, bound + 1), (SHORT, 5)];
    follow(&stage, &one, &lists);
    let query = |id: u64, limit: usize| stage.query(&two, FOLLOW, id, limit);
    for (id, count) in lists.into_iter().chain([(NOBODY, 0)]) {
        let page = stage.remembered_page(&two, &query(id, ENTRIES_MAX));
        assert_eq!(page.items.len() as u64, count.min(bound));
        assert_eq!((page.total, page.next.is_some()), (Some(count as i64), count > bound));
        let newest = stage.list_string(FOLLOW, id).unwrap().newest.unwrap();
        assert_eq!(newest.complete, count <= bound, "{id}");
        assert_eq!(newest.entries.len() as u64, count.min(bound + 1));
    }
    // What one filled, the other finds; and nobody reads it again.
    let filled = [list_figures(&one).filled, list_figures(&two).filled];
    assert_eq!(filled, [0, 5]);
    for _ in 0..10 {
        assert_eq!(stage.page(&one, FOLLOW, LONG, 20).1, From::Memory);
    }
    assert_eq!([list_figures(&one).filled, list_figures(&two).filled], filled);
    assert!(list_figures(&one).found >= 10 && list_figures(&one).missed == 0);

    let whence = |query: &ListQuery| {
        let (page, from) = stage.read(&two, |reader| reader.list(query));
        assert_eq!(page, stage.page_of_tables(&two, query), "{query:?}");
        (page, from)
    };
    // A walk: from Redis as long as a page lies within what is kept.
    let mut walk = query(LONG, 80);
    let mut sources = Vec::new();
    loop {
        let (page, from) = whence(&walk);
        sources.push(from);
        walk.cursor = page.next;
        if walk.cursor.is_none() {
            break;
        }
    }
    assert_eq!(sources, [From::Memory, From::Memory, From::Database, From::Database]);
    let (all, _) = whence(&query(LONG, 1_000));
    let since = all.items[20].since;
    for (query, from) in [
        (query(LONG, ENTRIES_MAX + 1), From::Database),
        (ListQuery { order: Order::Oldest, ..query(LONG, 5) }, From::Database),
        (ListQuery { order: Order::Oldest, ..query(SHORT, 3) }, From::Memory),
        (ListQuery { until: Some(since), ..query(LONG, 20) }, From::Memory),
        (ListQuery { since: Some(Millis(since.0 + 1)), ..query(LONG, 1_000) }, From::Memory),
        (ListQuery { since: Some(Millis(1)), ..query(LONG, 1_000) }, From::Database),
        (ListQuery { since: Some(Millis(1)), ..query(SHORT, 1_000) }, From::Memory),
        (ListQuery { until: Some(Millis(1)), ..query(SHORT, 3) }, From::Memory),
        (ListQuery { state: State::Pending, ..query(SHORT, 3) }, From::Database),
    ] {
        assert_eq!(whence(&query).1, from, "{query:?}");
    }
}

#[test]
fn a_page_of_the_tables_has_the_total_of_its_moment() {
    let Some(stage) = Stage::open("a page and its total") else { return };
    let one = stage.instance(ALL);
    follow(&stage, &one, &[(SHORT, 5)]);
    stage.until_remembered(&one, &[SHORT]);
    let mut redis = stage.connection();
    let key = stage.tally_key(USER, SHORT);
    let older: Vec<u8> = cmd("GET").arg(&key).query(&mut redis).unwrap();
    follow(&stage, &one, &[(SHORT, 6)]);
    stage.converges("the sixth");
    // Redis knows the number of before, as while the follower is about to tell it, and no list.
    cmd("SET").arg(&key).arg(older).exec(&mut redis).unwrap();
    cmd("DEL").arg(stage.list_key(FOLLOW, SHORT)).exec(&mut redis).unwrap();
    // Past what the process keeps.
    std::thread::sleep(std::time::Duration::from_millis(950));
    assert_eq!(stage.followers(&one, &[SHORT]), (vec![5], From::Memory), "it is believed");
    let (page, from) = stage.page(&one, FOLLOW, SHORT, 20);
    assert_eq!((page.items.len(), page.total, from), (6, Some(6), From::Database));
}

#[test]
fn lists_live_by_what_they_say() {
    let Some(stage) = Stage::open("incoming lives") else { return };
    let one = stage.instance(ALL);
    follow(&stage, &one, &[(SHORT, 5), (BEYOND, ENTRIES_MAX as u64 + 1)]);
    let hour = 3_600_000;
    let day = 24 * hour;
    let lives =
        [(NOBODY, 0, 90_000), (SHORT, day - hour, 2 * day), (BEYOND, 2 * day - hour, 4 * day)];
    let mut redis = stage.connection();
    for (id, least, most) in lives {
        stage.remembered_page(&one, &stage.query(&one, FOLLOW, id, 10));
        let life: i64 = cmd("PTTL").arg(stage.list_key(FOLLOW, id)).query(&mut redis).unwrap();
        assert!((least..=most).contains(&life) && life > 0, "{id} lives {life} ms");
    }
    // What was read long ago is served, and read again behind: by one, once.
    let mut old = stage.list_string(FOLLOW, SHORT).unwrap();
    old.read_ms = now_ms() - 2 * day.unsigned_abs();
    cmd("SET").arg(stage.list_key(FOLLOW, SHORT)).arg(old.encode()).exec(&mut redis).unwrap();
    let filled = list_figures(&one).filled;
    assert_eq!(stage.page(&one, FOLLOW, SHORT, 3).1, From::Memory);
    eventually("it is read again", || {
        stage.page(&one, FOLLOW, SHORT, 3);
        stage.list_string(FOLLOW, SHORT).unwrap().read_ms > now_ms() - hour.unsigned_abs()
    });
    assert_eq!(list_figures(&one).filled, filled + 1);
    assert_eq!(stage.list_string(FOLLOW, SHORT).unwrap().token, old.token, "it is the same string");
}

#[test]
fn pages_follow_every_sort_of_change() {
    let Some(stage) = Stage::open("incoming changes") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    follow(&stage, &one, &[(LONG, ENTRIES_MAX as u64 + 30), (SHORT, 3)]);
    let lists = [LONG, SHORT, NOBODY];
    let right = |what: &str| {
        stage.settle();
        for id in lists {
            let query = stage.query(&two, FOLLOW, id, 50);
            let tables = stage.page_of_tables(&two, &query);
            eventually(what, || {
                let (page, from) = stage.read(&two, |reader| reader.list(&query));
                from == From::Memory && page == tables
            });
        }
        assert_eq!(stage.wrong_lists(), Vec::<String>::new(), "{what}");
    };
    right("at first");
    let newest = stage.list_string(FOLLOW, LONG).unwrap().newest.unwrap().entries;
    let (above, floor) = (newest[3].id, newest[ENTRIES_MAX].id);
    let below = (1_001..1_031).find(|id| newest.iter().all(|place| place.id != *id)).unwrap();
    let delete = |source| Change::Delete { edge: edge(FOLLOW, source, LONG), strict: false };
    for (what, source) in [("above", above), ("at the floor", floor), ("below", below)] {
        stage.write(&one, vec![delete(source)]);
        right(&format!("a removal {what}"));
    }
    stage.write(&two, vec![put(FOLLOW, above, LONG), put(FOLLOW, 7, NOBODY)]);
    right("new ones, the first of nobody");
    let waiting =
        |source| Change::Put(Put { approval: true, ..Put::plain(edge(FOLLOW, source, SHORT)) });
    stage.write(&one, vec![waiting(8), waiting(9)]);
    right("requests are in no list");
    stage.write(&one, vec![Change::Approve { edge: edge(FOLLOW, 8, SHORT) }]);
    stage.write(&two, vec![Change::Decline { edge: edge(FOLLOW, 9, SHORT) }]);
    right("an approval and a decline");
    // A time of its own, below the floor and above it.
    let dated = |source, since| {
        Change::ImportEdge(Box::new(ImportEdge {
            put: Put::plain(edge(FOLLOW, source, LONG)),
            since: Some(Millis(since)),
            state: None,
            ignore_limits: false,
        }))
    };
    stage.write(&one, vec![dated(21, 1_000), dated(22, newest[9].since.0)]);
    right("imported times");
    let expiring = |in_ms: u64| {
        let expires_at = Field::Set(Millis(now_ms() + in_ms));
        Change::Put(Put { expires_at, ..Put::plain(edge(FOLLOW, 30, NOBODY)) })
    };
    // Far from now until that has been seen, however long it takes.
    stage.write(&one, vec![expiring(600_000)]);
    right("one that will expire");
    stage.write(&one, vec![expiring(100)]);
    let left = "SELECT COUNT(*) FROM incoming WHERE source=30 AND state=0";
    eventually("it has", || crate::world::number(&stage.database, left) == 0);
    right("it expired");
}

/// A reader of its own that holds back what it read.
fn memory(stage: &Stage) -> SharedMemory {
    SharedMemory::start(&Crew::default(), Some(&stage.tallies_alone()), open(&stage.url)).unwrap()
}

#[test]
fn a_list_that_was_read_before_a_change_is_not_kept_after_it() {
    let Some(stage) = Stage::open("incoming late fill") else { return };
    let one = stage.instance(ALL);
    follow(&stage, &one, &[(SHORT, 3), (LONG, 2)]);
    eventually("it is followed", || figures(&one).followed);
    let memory = memory(&stage);
    let incoming = memory.incoming().unwrap();
    let mut redis = stage.connection();
    let mut claim = |id: u64| -> IncomingClaim {
        let mut claim = None;
        eventually("the right to fill it", || {
            claim = stage.runtime.block_on(incoming.claim(stage.list(FOLLOW, id)));
            claim.is_some()
        });
        // However slow the machine is, it stands until it is filled.
        let kept: bool = cmd("PERSIST").arg(stage.list_key(FOLLOW, id)).query(&mut redis).unwrap();
        assert!(kept);
        claim.unwrap()
    };
    let fill = |claim: &IncomingClaim, newest: &Newest| {
        stage.runtime.block_on(incoming.fill(claim, newest))
    };
    let old = Newest { entries: vec![PagePlace { since: Millis(5), id: 5 }], complete: true };
    // Who has not been overtaken fills, once and again, and the next does not take the right away.
    let first = claim(SHORT);
    assert_eq!(stage.runtime.block_on(incoming.claim(stage.list(FOLLOW, SHORT))), None);
    assert!(fill(&first, &old) && fill(&first, &old));
    // The follower passes by before the fill; there is a string again, but not the one it saw.
    let late = claim(LONG);
    stage.write(&one, vec![put(FOLLOW, 9, LONG), put(FOLLOW, 9, SHORT)]);
    stage.settle();
    eventually("the follower was there", || {
        [LONG, SHORT].iter().all(|id| stage.list_string(FOLLOW, *id).is_none())
    });
    assert!(!fill(&late, &old), "there is no string");
    let other = claim(LONG);
    assert!(!fill(&late, &old), "it is another string");
    assert_eq!(stage.list_string(FOLLOW, LONG).unwrap().newest, None);
    assert!(!fill(&first, &old));
    assert_eq!(memory.figures().incoming.overtaken, 3);
    let query = stage.query(&one, FOLLOW, LONG, 10);
    assert_eq!(
        stage.read(&one, |reader| reader.list(&query)).1,
        From::Database,
        "it is only claimed"
    );
    assert!(fill(&other, &old));
    assert_eq!(stage.page(&one, FOLLOW, LONG, 10).0.items[0].id, 5, "who saw it made fills it");
    memory.close();
}

/// Kills fail for a while: positions must not go on without them.
#[test]
fn what_could_not_be_killed_is_not_believed() {
    let Some(stage) = Stage::open("incoming refused") else { return };
    let one = stage.instance(ALL);
    follow(&stage, &one, &[(SHORT, 3)]);
    let query = stage.query(&one, FOLLOW, SHORT, 10);
    stage.remembered_page(&one, &query);
    let mut redis = stage.connection();
    let may = |redis: &mut redis::Connection, what: &str| {
        cmd("ACL").arg("SETUSER").arg("default").arg(what).exec(redis).unwrap();
    };
    may(&mut redis, "-unlink");
    stage.write(&one, vec![put(FOLLOW, 9, SHORT)]);
    stage.settle();
    eventually("nobody believes it", || {
        let (page, from) = stage.read(&one, |reader| reader.list(&query));
        from == From::Database && page.items.len() == 4
    });
    assert!(!stage.wrong_lists().is_empty(), "nobody killed it");
    let epoch = stage.epoch();
    may(&mut redis, "+unlink");
    stage.converges("after Redis takes it again");
    assert_eq!(stage.remembered_page(&one, &query).items.len(), 4);
    assert_eq!(stage.epoch(), epoch, "nothing had to be forgotten");
}

/// What an audit mends, the log does not tell.
#[test]
fn a_repair_is_not_hidden_by_a_list_that_was_kept() {
    let Some(stage) = Stage::open("incoming repaired") else { return };
    let one = stage.instance(ALL);
    follow(&stage, &one, &[(SHORT, 3)]);
    run(&stage.database, "DELETE FROM incoming WHERE target=103 AND source=1002");
    let query = stage.query(&one, FOLLOW, SHORT, 10);
    assert_eq!(
        stage
            .remembered_page(&one, &ListQuery { since: Some(Millis(1)), ..query.clone() })
            .items
            .len(),
        2
    );
    let epoch = stage.epoch();
    let number = one.begin_audit(AuditQuery { kind: None, repair: true }).unwrap();
    let audited = stage.runtime.block_on(one.audit_ended(number)).unwrap();
    assert!(audited.ended.unwrap().result.unwrap().repaired > 0);
    assert!(stage.epoch() > epoch);
    eventually("it is right", || stage.page(&one, FOLLOW, SHORT, 10).0.items.len() == 3);
    assert_eq!(stage.remembered_page(&one, &query).items.len(), 3);
}

/// Redis comes back as it was a while ago: what changed since is not shown as it was.
#[test]
fn an_older_snapshot_of_redis_shows_nothing_old() {
    let Some(stage) = Stage::open("incoming old snapshot") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    let lists: Vec<(u64, u64)> = (100..120).map(|id| (id, 5)).collect();
    follow(&stage, &one, &lists);
    let query = |id: u64| stage.query(&two, FOLLOW, id, 10);
    lists.iter().for_each(|(id, _)| drop(stage.remembered_page(&two, &query(*id))));
    cmd("SAVE").exec(&mut stage.connection()).unwrap();
    let changes = lists.iter().flat_map(|(id, _)| {
        let edge = edge(FOLLOW, 1_001, *id);
        [Change::Delete { edge, strict: false }, put(FOLLOW, 2_000, *id)]
    });
    stage.write(&one, changes.collect());
    stage.converges("before the crash");
    let epoch = stage.epoch();
    stage.redis.kill();
    stage.redis.start_again();
    assert!(!stage.wrong_lists().is_empty(), "it is older");
    let right: Vec<_> =
        lists.iter().map(|(id, _)| stage.page_of_tables(&two, &query(*id))).collect();
    eventually("they come from Redis again", || {
        let mut from_memory = 0;
        for ((id, _), right) in lists.iter().zip(&right) {
            let (page, from) = stage.page(&two, FOLLOW, *id, 10);
            assert_eq!(page, *right, "{from:?}");
            from_memory += usize::from(from == From::Memory);
        }
        from_memory == lists.len()
    });
    assert_eq!(stage.epoch(), epoch, "it was replayed, not forgotten");
}

/// Whether an item is mutual is the word of complete outgoing lists.
#[test]
fn mutual_items_need_no_database_either() {
    let Some(stage) = Stage::open("incoming mutual") else { return };
    let one = stage.instance_with_lists(ALL);
    follow(&stage, &one, &[(SHORT, 30)]);
    stage.write(&one, (1_001..1_011).map(|id| put(FOLLOW, SHORT, id)).collect());
    stage.settle();
    let query = ListQuery { mutual: true, ..stage.query(&one, FOLLOW, SHORT, 30) };
    let page = stage.remembered_page(&one, &query);
    assert_eq!(page.items.iter().filter(|item| item.mutual == Some(true)).count(), 10);
    stage.write(&one, vec![Change::Delete { edge: edge(FOLLOW, SHORT, 1_001), strict: false }]);
    let (page, _) = stage.read(&one, |reader| reader.list(&query));
    let mutual = page.items.iter().filter(|item| item.mutual == Some(true)).count();
    assert_eq!(mutual, 9, "the source's side is current");
}

#[test]
fn a_read_with_a_token_asks_no_list_in_redis() {
    let Some(stage) = Stage::open("incoming token") else { return };
    let one = stage.instance(ALL);
    stage.write(&one, vec![put(LIKE, 1, 500)]);
    stage.settle();
    let query = stage.query(&one, LIKE, 500, 10);
    stage.remembered_page(&one, &query);
    // A string that nobody could take for true.
    let absurd = Newest { entries: vec![PagePlace { since: Millis(5), id: 77 }], complete: true };
    let string =
        PackedIncoming { token: StringToken::draw(), read_ms: now_ms(), newest: Some(absurd) };
    let request = guanxi_model::Request::one(TENANT, put(LIKE, 2, 500));
    let (_, token) = stage.runtime.block_on(one.write(request, soon())).unwrap();
    let key = stage.list_key(LIKE, 500);
    cmd("SET").arg(key).arg(string.encode()).exec(&mut stage.connection()).unwrap();
    let page = one.reader(Some(&token), soon()).unwrap().list(&query).unwrap();
    let mut shown: Vec<u64> = page.items.iter().map(|item| item.id).collect();
    shown.sort_unstable();
    assert_eq!((shown, page.total), (vec![1, 2], Some(2)));
}
