//! Connections that are lost at every statement of a transaction. What is acknowledged stands,
//! once; what is answered with "nothing was done" left nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::sql::Database;
use guanxi_model::change::Put;
use guanxi_model::{Answer, Change, Code, EdgeKey, Error, Outcome, Request};

use crate::bench::{BLOCK, FOLLOW, Instance, PATIENCE, TENANT, connect, databases, edge};
use crate::proxy::{Cut, Plan, Proxy, port_of};
use crate::tables::Tables;

/// The first round trip, the second one, whose COMMIT stands behind the question whether it is too
/// late, and the look for the fate of a COMMIT.
const FIRST: &str = "INSERT INTO head (tenant,kind,source,version,";
pub const COMMIT: &str = "SELECT 18446744073709551615+";
const LOOK: &str = "SELECT version FROM head WHERE tenant=0 AND kind=0";

const CUTS: [Cut; 4] = [Cut::Before, Cut::Halfway, Cut::After, Cut::Late];

const WRITERS: u64 = 4;
const WRITES_EACH: u64 = 40;
const KILL_PAUSE: Duration = Duration::from_millis(40);
/// Afterwards the writers are left alone: a server may keep the locks of what was killed a while.
const KILLING: Duration = Duration::from_secs(3);

#[test]
fn a_lost_connection_neither_loses_nor_doubles_a_write() {
    for (server, url) in databases("a_lost_connection_neither_loses_nor_doubles_a_write") {
        let proxy = Proxy::start(port_of(&url));
        let instance = Instance::start(&proxy.url(&url));
        let mut next = 100;
        for cut in CUTS {
            for plans in [
                vec![Plan { at: FIRST, cut }],
                vec![Plan { at: COMMIT, cut }],
                vec![Plan { at: COMMIT, cut }, Plan { at: LOOK, cut }],
                vec![Plan { at: COMMIT, cut }, Plan { at: COMMIT, cut }],
            ] {
                next += 10;
                let edges: Vec<EdgeKey> =
                    (0..3).map(|n| edge(FOLLOW, next, next + 1 + n)).collect();
                let doubled = plans.len() == 2 && plans[1].at == COMMIT;
                proxy.arm(&plans);
                let written = put_all(&instance, &edges);
                // A COMMIT that was done is not sent again; a server may also give up what it got
                // from a client that is gone.
                let may_be_done = doubled && matches!(cut, Cut::After | Cut::Late);
                assert!(proxy.armed() <= usize::from(may_be_done), "{server}: {plans:?}");
                proxy.arm(&[]);
                let answers = written.unwrap_or_else(|error| panic!("{server} {plans:?}: {error}"));
                assert!(answers.iter().all(changed), "{server}, {plans:?}: {answers:?}");
                let tables = Tables::read(&connect(&url));
                for edge in &edges {
                    let records = tables.outbox.get(edge).map_or(0, Vec::len);
                    assert_eq!(records, 1, "{server}, {plans:?}: records of {edge:?}");
                }
                tables.check();
            }
        }
    }
}

#[test]
fn nothing_done_means_nothing() {
    for (server, url) in databases("nothing_done_means_nothing") {
        let proxy = Proxy::start(port_of(&url));
        let instance = Instance::start(&proxy.url(&url));
        let follow = edge(FOLLOW, 2, 1);
        instance.put(follow).unwrap();
        // A block is wide, and cuts the follow: more cuts than it has tries.
        for (at, cut) in [(FIRST, Cut::After), (COMMIT, Cut::Before), (COMMIT, Cut::Halfway)] {
            proxy.arm(&[Plan { at, cut }; 40]);
            let error = instance.put(edge(BLOCK, 1, 2)).unwrap_err();
            proxy.arm(&[]);
            assert_eq!(
                (error.code, error.outcome),
                (Code::Unavailable, Outcome::None),
                "{server}, {at} {cut:?}: {error}"
            );
            let tables = Tables::read(&connect(&url));
            tables.check();
            assert!(tables.edges[&follow].is_live(), "{server}, {at} {cut:?}: the follow stands");
            assert!(!tables.edges.contains_key(&edge(BLOCK, 1, 2)), "{server}, {at} {cut:?}");
        }
        // Afterwards it works as if nothing had been.
        assert!(instance.put(edge(BLOCK, 1, 2)).unwrap().changed);
        Tables::read(&connect(&url)).check();
    }
}

/// Connections and queries are killed at random while several writers write.
#[test]
fn killed_connections_neither_lose_nor_double_a_write() {
    for (server, url) in databases("killed_connections_neither_lose_nor_double_a_write") {
        let instance = Instance::start(&url);
        let killer = connect(&url);
        let over = AtomicBool::new(false);
        let (written, kills) = std::thread::scope(|scope| {
            let killing = scope.spawn(|| {
                let (mut kills, until) = (0, Instant::now() + KILLING);
                while !over.load(Ordering::Acquire) && Instant::now() < until {
                    kills += kill_one(&killer, &url, server);
                    std::thread::sleep(KILL_PAUSE);
                }
                kills
            });
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let instance = &instance;
                    scope.spawn(move || {
                        let edges = (0..WRITES_EACH).map(|n| edge(FOLLOW, 1 + writer, 100 + n));
                        edges.map(|edge| (edge, instance.put(edge))).collect::<Vec<_>>()
                    })
                })
                .collect();
            let written: Vec<_> =
                writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            over.store(true, Ordering::Release);
            (written, killing.join().unwrap())
        });
        assert!(kills > 0, "{server}: nothing was killed");
        let tables = Tables::read(&killer);
        tables.check();
        for (edge, answer) in written {
            let records = tables.outbox.get(&edge).map_or(0, Vec::len);
            match answer {
                Ok(answer) => {
                    assert!(answer.changed, "{server}: {edge:?} was done twice: {answer:?}");
                    assert_eq!(records, 1, "{server}: {edge:?}");
                }
                Err(error) if error.outcome == Outcome::None => {
                    assert_eq!(records, 0, "{server}: {edge:?} was to be nothing: {error}");
                }
                Err(_) => assert!(records <= 1, "{server}: {edge:?}"),
            }
        }
    }
}

/// Kills a random connection to the database, or what it runs; says whether there was one.
fn kill_one(killer: &Database, url: &str, server: &str) -> u64 {
    let (_, name) = url.rsplit_once('/').unwrap();
    let mut session = killer.session(Instant::now() + PATIENCE).unwrap();
    let own = session.rows("SELECT CONNECTION_ID()").unwrap();
    let own: u64 = own[0].get(0).unwrap();
    let others =
        format!("SELECT id FROM information_schema.processlist WHERE db='{name}' AND id<>{own}");
    let ids: Vec<u64> =
        session.rows(&others).unwrap().iter().map(|row| row.get(0).unwrap()).collect();
    let Some(id) = fastrand::choice(ids) else {
        return 0;
    };
    let kill = if server == "TiDB" { "KILL TIDB" } else { "KILL" };
    let what = if fastrand::bool() { "QUERY" } else { "CONNECTION" };
    // It may have ended by itself.
    u64::from(session.run(&format!("{kill} {what} {id}")).is_ok())
}

fn put_all(instance: &Instance, edges: &[EdgeKey]) -> Result<Vec<Result<Answer, Error>>, Error> {
    let changes = edges.iter().map(|edge| Change::Put(Put::plain(*edge))).collect();
    Ok(instance.write(Request::new(TENANT, changes))?.answers)
}

fn changed(answer: &Result<Answer, Error>) -> bool {
    matches!(answer, Ok(Answer::Edge(edge)) if edge.changed)
}
