//! What a single caller sees, and what the follower does about it.

use std::time::Duration;

use guanxi_cluster::memory::SharedMemory;
use guanxi_cluster::memory::tallies::packed::TallyField;
use guanxi_core::AuditQuery;
use guanxi_core::crew::Crew;
use guanxi_model::change::{CounterDelta, Put};
use guanxi_model::filter::FilterLineage;
use guanxi_model::{Change, KindId, NodeKey, Which};
use redis::cmd;

use crate::stage::{ALL, From, SERVING, Stage, figures, target_type};
use crate::world::{FOLLOW, TENANT, VIEW, edge, eventually, now_ms, open, put, run, soon};

#[test]
fn a_number_is_remembered_and_follows_the_writes() {
    let Some(stage) = Stage::open("tallies remembered") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    stage.write(&one, (1..=5).map(|source| put(FOLLOW, source, 100)).collect());
    stage.settle();
    assert_eq!(stage.until_remembered(&one, &[100, 101]), [5, 0]);
    // What one instance filled, the other finds.
    let misses = figures(&two).misses;
    assert_eq!(stage.until_remembered(&two, &[100, 101]), [5, 0]);
    assert_eq!(figures(&two).misses, misses, "it was not asked of the database again");
    assert_eq!(figures(&two).fills, 0);

    let deleted = Change::Delete { edge: edge(FOLLOW, 1, 100), strict: false };
    let waiting = Change::Put(Put { approval: true, ..Put::plain(edge(FOLLOW, 9, 101)) });
    stage.write(&two, vec![deleted, waiting, put(FOLLOW, 7, 101)]);
    stage.converges("after a delete, a put and a request");
    assert_eq!(stage.until_remembered(&two, &[100, 101]), [4, 1]);
    let pending = stage.strings()[&(target_type(FOLLOW).0, 101)].clone();
    assert_eq!(pending.get(FOLLOW, Which::PendingIncoming).unwrap().value, 1);
    stage.write(&one, vec![Change::Approve { edge: edge(FOLLOW, 9, 101) }]);
    stage.converges("after an approval");
    assert_eq!(stage.until_remembered(&one, &[101]), [2]);
    let follower = figures(&one).follower.expect("it follows");
    assert!(follower.refreshed >= 3, "{follower:?}");
    assert_eq!(figures(&two).follower, None);
}

#[test]
fn counters_are_forgotten_when_they_change_and_strangers_soon() {
    let Some(stage) = Stage::open("tallies counters") else { return };
    let (one, two) = (stage.instance(ALL), stage.instance(SERVING));
    let count =
        |delta| Change::Count(CounterDelta { tenant: TENANT, kind: VIEW, id: 5, delta, key: None });
    stage.write(&one, vec![count(3)]);
    let views = || stage.tallies(&one, VIEW, &[5]).0[0];
    eventually("it is filled", || views() == 3 && figures(&one).fills > 0);
    // Much sooner than what nobody forgot would be too old to be believed.
    stage.write(&two, vec![count(4)]);
    eventually("what another instance counted is seen", || views() == 7);
    eventually("it is filled again", || {
        // Longer than the process keeps an answer.
        std::thread::sleep(Duration::from_secs(1));
        stage.tallies(&one, VIEW, &[5]) == (vec![7], From::Memory)
    });

    let stranger = 1 << 50;
    stage.until_remembered(&one, &[stranger]);
    let mut redis = stage.connection();
    let node = (target_type(FOLLOW).0, stranger);
    let key = format!("guanxi:tally:1:{}:{}:{}:{}", stage.epoch(), TENANT.0, node.0, node.1);
    let life: i64 = cmd("PTTL").arg(&key).query(&mut redis).unwrap();
    assert!((1..=90_000).contains(&life), "a negative entry lives {life} ms");
    // As soon as it counts, it is known, and lives as it did until it is filled again.
    stage.write(&one, vec![put(FOLLOW, 1, stranger)]);
    stage.converges("a stranger's first follower");
    assert_eq!(stage.until_remembered(&one, &[stranger]), [1]);
}

/// Two who read the same database at different times and come to Redis in the wrong order.
#[test]
fn a_fill_that_comes_late_loses() {
    let Some(stage) = Stage::open("tallies late fill") else { return };
    let one = stage.instance(ALL);
    stage.write(&one, vec![put(FOLLOW, 1, 100), put(FOLLOW, 1, 200)]);
    stage.settle();
    // A reader of its own, that holds back what it read.
    let tallies = stage.tallies_alone();
    let memory = SharedMemory::start(&Crew::default(), Some(&tallies), open(&stage.url));
    let memory = memory.unwrap();
    let tallies = memory.tallies().unwrap();
    let node = |id| NodeKey { tenant: TENANT, node_type: target_type(FOLLOW), id };
    let mut claims = Vec::new();
    eventually("the right to fill both", || {
        let (catalog, nodes) = (one.catalog(), [node(100), node(200)]);
        let asked = stage.runtime.block_on(tallies.ask(&catalog, &nodes, &[FOLLOW]));
        claims.extend(asked.recalled.claims);
        claims.extend(stage.runtime.block_on(tallies.claim(asked.absent)));
        claims.len() >= 2
    });
    // However slow the machine is, they stand until they are filled.
    let mut redis = stage.connection();
    let key = |id: u64| {
        let node_type = target_type(FOLLOW).0;
        format!("guanxi:tally:1:{}:{}:{node_type}:{id}", stage.epoch(), TENANT.0)
    };
    for id in [100, 200] {
        let kept: bool = cmd("PERSIST").arg(key(id)).query(&mut redis).unwrap();
        assert!(kept);
    }
    let old = |stamp, value| {
        let field = |which, value| TallyField { kind: FOLLOW, which, stamp, value };
        vec![field(Which::Incoming, value), field(Which::PendingIncoming, 0)]
    };
    // The first: the follower comes before the fill. The second: the string goes, another comes.
    stage.write(&one, vec![put(FOLLOW, 2, 100), put(FOLLOW, 2, 200)]);
    stage.settle();
    let value = |id: u64| {
        let string = stage.strings().remove(&(target_type(FOLLOW).0, id))?;
        string.get(FOLLOW, Which::Incoming).map(|field| field.value)
    };
    eventually("the follower was there", || value(100) == Some(2));
    cmd("DEL").arg(key(200)).exec(&mut redis).unwrap();
    let again = stage.runtime.block_on(tallies.claim(vec![node(200)]));
    assert_eq!(again.len(), 1);
    for claim in &claims {
        tallies.fill(claim, old(1, 1));
    }
    let late = claims.len() as u64;
    eventually("the late ones came", || {
        let figures = tallies.figures();
        figures.fills + figures.dropped >= late
    });
    assert_eq!(value(100), Some(2), "a lower stamp loses");
    assert_eq!(value(200), None, "what was read before the string was made finds no place");
    tallies.fill(&again[0], old(2, 2));
    eventually("who saw it made fills it", || value(200) == Some(2));
    stage.converges("in the end");
    memory.close();
}

/// Merges fail for a while: positions must not go on without what they stand for.
#[test]
fn what_could_not_be_refreshed_is_refreshed_later() {
    let Some(stage) = Stage::open("tallies refused") else { return };
    let one = stage.instance(ALL);
    let ids: Vec<u64> = (100..140).collect();
    stage.write(&one, ids.iter().map(|id| put(FOLLOW, 1, *id)).collect());
    stage.settle();
    stage.until_remembered(&one, &ids);
    let mut redis = stage.connection();
    let may = |redis: &mut redis::Connection, what: &str| {
        cmd("ACL").arg("SETUSER").arg("default").arg(what).exec(redis).unwrap();
    };
    may(&mut redis, "-getrange");
    stage.write(&one, ids.iter().map(|id| put(FOLLOW, 2, *id)).collect());
    stage.settle();
    // It has tried and failed for longer than its word is believed.
    eventually("nobody believes it", || {
        let (numbers, from) = stage.followers(&one, &ids);
        from == From::Database && numbers.iter().all(|number| *number == 2)
    });
    assert!(!stage.wrong().is_empty(), "nobody refreshed");
    let epoch = stage.epoch();
    may(&mut redis, "+getrange");
    stage.converges("after Redis takes it again");
    assert_eq!(stage.epoch(), epoch, "nothing had to be forgotten");
    assert_eq!(stage.until_remembered(&one, &ids), vec![2; ids.len()]);
}

/// Nobody follows here; the test gives the follower's word.
#[test]
fn only_a_fresh_word_of_this_history_is_believed() {
    let Some(stage) = Stage::open("tallies believed") else { return };
    let one = stage.instance(SERVING);
    stage.write(&one, vec![put(FOLLOW, 1, 100)]);
    stage.settle();
    let mut redis = stage.connection();
    let told: String = cmd("INFO").query(&mut redis).unwrap();
    let field = |name: &str| {
        let line = told.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap().to_owned()
    };
    let lineage =
        FilterLineage::new(&field("run_id"), "master", &field("master_replid")).unwrap().0;
    let mut asked = |epoch: u64, lineage: u128, age_ms: i64| {
        // Past what the process keeps.
        std::thread::sleep(Duration::from_millis(950));
        let mut mark = epoch.to_be_bytes().to_vec();
        mark.extend(lineage.to_be_bytes());
        mark.extend((now_ms().strict_add_signed(-age_ms)).to_be_bytes());
        cmd("SET").arg("guanxi:tally:1:fresh").arg(mark).exec(&mut redis).unwrap();
        let (numbers, from) = stage.followers(&one, &[100]);
        assert_eq!(numbers, [1]);
        from
    };
    assert_eq!(asked(0, lineage ^ 1, 0), From::Database);
    assert!(stage.strings().is_empty(), "nothing is filled that nobody follows");
    eventually("it is filled and believed", || asked(0, lineage, 0) == From::Memory);
    assert_eq!(asked(0, lineage ^ 1, 0), From::Database, "another history");
    assert_eq!(asked(1, lineage, 0), From::Database, "another epoch");
    assert_eq!(asked(0, lineage, 7_000), From::Database, "too old");
    assert_eq!(asked(0, lineage, -5_000), From::Database, "a clock that is wrong");
    eventually("it is believed again", || asked(0, lineage, 2_000) == From::Memory);
}

/// What an audit mends, the log does not tell.
#[test]
fn a_repair_is_not_hidden_by_what_was_remembered() {
    let Some(stage) = Stage::open("tallies repaired") else { return };
    let one = stage.instance(ALL);
    stage.write(&one, vec![put(FOLLOW, 1, 100), put(FOLLOW, 2, 100)]);
    stage.settle();
    run(&stage.database, "UPDATE tally SET incoming=incoming+5 WHERE node=100 AND kind=1");
    assert_eq!(stage.until_remembered(&one, &[100]), [7]);
    let epoch = stage.epoch();
    let number = one.begin_audit(AuditQuery { kind: None, repair: true }).unwrap();
    let audited = stage.runtime.block_on(one.audit_ended(number)).unwrap();
    let report = audited.ended.unwrap().result.unwrap();
    assert!(report.repaired > 0, "{report:?}");
    assert!(stage.epoch() > epoch);
    eventually("it is right", || stage.followers(&one, &[100]).0 == [2]);
    assert_eq!(stage.until_remembered(&one, &[100]), [2]);
}

#[test]
fn a_read_with_a_token_asks_the_database() {
    let Some(stage) = Stage::open("tallies token") else { return };
    let one = stage.instance(ALL);
    stage.write(&one, vec![put(FOLLOW, 1, 100)]);
    stage.settle();
    stage.until_remembered(&one, &[100]);
    let request = guanxi_model::Request::one(TENANT, put(FOLLOW, 2, 100));
    let (_, token) = stage.runtime.block_on(one.write(request, soon())).unwrap();
    let reader = one.reader(Some(&token), soon()).unwrap();
    let row = reader.tallies(&NodeKey { tenant: TENANT, node_type: target_type(FOLLOW), id: 100 });
    assert_eq!(row.unwrap().get(KindId(1), Which::Incoming), 2);
}
