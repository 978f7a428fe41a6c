//! An instance that loses one of its threads says so, and others have its leases at once.

use std::time::{Duration, Instant};

use guanxi_cluster::instance::Cluster;
use guanxi_core::Direction;
use guanxi_core::hot::{ReadKey, What};
use guanxi_core::read::ListQuery;
use guanxi_model::change::CounterDelta;
use guanxi_model::{Change, ClusterToken, Request};

use crate::stage::{ALL, Stage};
use crate::world::{FOLLOW, TENANT, VIEW, eventually, number, put};

/// Fewer would mean that some are not started through the crew, or not at all.
const WORKERS_MIN: usize = 30;

/// Those that rest for long after their first turn.
const RESTING: [&str; 2] = ["guanxi-tombstones", "guanxi-leftovers"];

/// What becomes of leases: given back, their time is over at once.
const HELD: &str = "SELECT COUNT(*) FROM leases WHERE until_ms>0";

/// Notes that make a key hot, as if it were read so often.
const NOTES: u32 = 50_000;

/// Something for every lane, the wide one too, for the counters, and for those who work behind
/// readers.
fn poke(stage: &Stage, cluster: &Cluster, round: u64) {
    let sources = (1..=8).map(|source| put(FOLLOW, round * 10 + source, 7));
    let count = CounterDelta { tenant: TENANT, kind: VIEW, id: round, delta: 1, key: None };
    let mut requests = vec![Request::new(TENANT, sources.clone().collect())];
    requests.extend(sources.map(|put| Request::one(TENANT, put)));
    requests.push(Request::one(TENANT, Change::Count(count)));
    for request in requests {
        let deadline = Instant::now() + Duration::from_millis(200);
        // A lane that is lost answers nobody.
        let _answered = stage.runtime.block_on(cluster.write(request, deadline));
    }
    let mut token = ClusterToken::new(TENANT);
    // Of a later state than there is.
    token.add_catalog(u64::MAX);
    let deadline = Instant::now() + Duration::from_millis(200);
    let _refused = stage.runtime.block_on(cluster.learn_catalog_of(&token, deadline));
    let hot = ReadKey { tenant: TENANT, what: What::Incoming(FOLLOW), id: 7 };
    (0..NOTES).for_each(|_| cluster.hot().note(hot));
    let kind = cluster.catalog().kind(TENANT, FOLLOW).unwrap().clone();
    // One that nobody has asked for yet.
    let fresh = fastrand::u64(1 << 20..1 << 40);
    // Of a source that nobody wrote about the filter may say that its list is empty.
    let written = round * 10 + 1 + fastrand::u64(..8);
    let reads =
        [(Direction::Incoming, 7), (Direction::Incoming, fresh), (Direction::Outgoing, written)];
    for (direction, id) in reads {
        let query = ListQuery::newest(TENANT, &kind, direction, id, 20);
        stage.read(cluster, |reader| reader.list(&query));
        let at_hand = cluster.reader(None, Instant::now() + Duration::from_secs(10)).unwrap();
        let _page = at_hand.list(&query);
    }
}

#[test]
fn whichever_thread_panics_the_instance_is_lost_and_its_leases_are_free() {
    let test = "whichever_thread_panics_the_instance_is_lost_and_its_leases_are_free";
    let Some(stage) = Stage::open(test) else { return };
    let whole = stage.instance_with_filter(ALL);
    let workers = whole.crew().lasting();
    whole.close();
    assert!(workers.len() >= WORKERS_MIN, "{workers:?}");
    for (round, worker) in (1..).zip(&workers) {
        let cluster = stage.instance_with_filter(ALL);
        let rests = RESTING.contains(&worker.as_str());
        if !rests {
            eventually("it has leases", || number(&stage.database, HELD) > 0);
        }
        cluster.crew().plant_panic(worker);
        eventually(worker, || {
            if cluster.crew().lost().is_none() {
                poke(&stage, &cluster, round);
            }
            cluster.crew().lost().is_some()
        });
        assert_eq!(cluster.crew().lost().unwrap().worker, *worker);
        eventually("its leases are free", || number(&stage.database, HELD) == 0);
        cluster.close();
    }
}

#[test]
fn an_instance_that_stops_loses_no_thread() {
    let test = "an_instance_that_stops_loses_no_thread";
    let Some(stage) = Stage::open(test) else { return };
    let cluster = stage.instance_with_filter(ALL);
    eventually("it has leases", || number(&stage.database, HELD) > 0);
    poke(&stage, &cluster, 1);
    cluster.close();
    assert_eq!(cluster.crew().lost(), None);
}
