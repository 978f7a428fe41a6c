//! TiDB servers whose global settings are not the defaults: an operator may have changed them for
//! others, and nothing that is promised may rest on them.

use std::time::{Duration, Instant};

use guanxi_cluster::schema;
use guanxi_model::{Change, Outcome};
use guanxi_services::{SqlServer, TiDb, fresh_database};

use crate::bench::{BLOCK, FOLLOW, Instance, PATIENCE, connect, edge};
use crate::cuts::COMMIT;
use crate::proxy::{Cut, LATE, Plan, Proxy, port_of};
use crate::tables::Tables;

/// A server of this test's own with a migrated database.
fn server_with(test: &str, global: &str) -> Option<(TiDb, String)> {
    let server = TiDb::start_or_skip(test)?;
    server.query(&format!("SET GLOBAL {global}"));
    let url = fresh_database(&server);
    schema::migrate(&connect(&url)).unwrap();
    Some((server, url))
}

/// The first round trip of a put that is foreseen.
const FORESEEN: &str = "INSERT IGNORE INTO outgoing";
/// The read of edges that turned out to be there already.
const SECOND_LOOK: &str = "FROM outgoing FORCE INDEX";
/// How long it is held back: in that time the row goes.
const BETWEEN: Duration = Duration::from_secs(3);

/// `INSERT IGNORE` does not lock what it ignores there, so the clean-up may take the tombstone away
/// between the insertion and the look at what stood in its way.
#[test]
fn a_tombstone_that_goes_while_its_edge_is_put_again_leaves_the_edge() {
    let test = "a_tombstone_that_goes_while_its_edge_is_put_again_leaves_the_edge";
    let Some((_server, url)) = server_with(test, "tidb_lock_unchanged_keys = OFF") else { return };
    let proxy = Proxy::start(port_of(&url));
    let instance = Instance::start(&proxy.url(&url));
    let direct = connect(&url);
    let put = edge(FOLLOW, 1, 2);
    instance.put(put).unwrap();
    instance.change(Change::Delete { edge: put, strict: true }).unwrap();
    // What is held is the second round trip: the first one is passed on before.
    proxy.arm(&[
        Plan { at: FORESEEN, cut: Cut::Held(Duration::ZERO) },
        Plan { at: SECOND_LOOK, cut: Cut::Held(BETWEEN) },
    ]);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| instance.put(put));
        let until = Instant::now() + PATIENCE;
        while proxy.armed() > 0 {
            assert!(Instant::now() < until, "the look was never sent");
            std::thread::sleep(Duration::from_millis(10));
        }
        let clean = "BEGIN;DELETE FROM outgoing WHERE source=1 AND state=2;COMMIT";
        let cleaned = direct.session(until).unwrap().run(clean).unwrap();
        assert_eq!(cleaned[1].changed, 1, "the tombstone went");
        assert!(putting.join().unwrap().unwrap().changed);
    });
    let tables = Tables::read(&direct);
    assert!(tables.edges.get(&put).is_some_and(|row| row.is_live()), "{:?}", tables.edges);
}

/// Puts a block, which cuts a follow, while every COMMIT is cut off and the server gets it later.
/// What is answered must be what stands in the end. Returns whether the block does.
fn put_through_ghosts(instance: &Instance, proxy: &Proxy, url: &str) -> bool {
    let (follow, block) = (edge(FOLLOW, 2, 1), edge(BLOCK, 1, 2));
    instance.put(follow).unwrap();
    proxy.arm(&[Plan { at: COMMIT, cut: Cut::Late }; 40]);
    let answer = instance.put(block);
    proxy.arm(&[]);
    std::thread::sleep(LATE * 3);
    let tables = Tables::read(&connect(url));
    tables.check();
    let stands = match answer {
        Ok(answer) => {
            assert!(answer.changed, "{answer:?}");
            true
        }
        Err(error) => {
            assert_eq!(error.outcome, Outcome::None, "{error}");
            false
        }
    };
    assert_eq!(tables.edges[&follow].is_live(), !stands, "the follow");
    assert_eq!(tables.edges.contains_key(&block), stands, "the block");
    stands
}

/// By default transactions there would take no locks before their COMMIT.
#[test]
fn transactions_lock_whatever_the_servers_default_is() {
    let test = "transactions_lock_whatever_the_servers_default_is";
    let Some((_server, url)) = server_with(test, "tidb_txn_mode = 'optimistic'") else { return };
    let proxy = Proxy::start(port_of(&url));
    let instance = Instance::start(&proxy.url(&url));
    let mode = instance.database.session(Instant::now() + PATIENCE).unwrap();
    let mode = { mode }.rows("SELECT @@tidb_txn_mode").unwrap();
    assert_eq!(mode[0].get::<String, _>(0).as_deref(), Some("pessimistic"));
    // Whoever asks for the fate of a COMMIT waits for the lock, and so for the COMMIT.
    assert!(put_through_ghosts(&instance, &proxy, &url));
}

/// How a transaction begins that locks nothing before it commits.
const UNLOCKED: &str = "BEGIN OPTIMISTIC;INSERT INTO head (tenant,kind,source,version,outgoing";

/// The locks of a transaction may be lost while its server still works on it, as when it is cut off
/// from the storage. The proxy makes such transactions: they hold no lock at all.
#[test]
fn a_transaction_that_lost_its_locks_cannot_commit_what_was_said_to_be_nothing() {
    let test = "a_transaction_that_lost_its_locks_cannot_commit_what_was_said_to_be_nothing";
    let Some(server) = TiDb::start_or_skip(test) else { return };
    let url = fresh_database(&server);
    schema::migrate(&connect(&url)).unwrap();
    let proxy = Proxy::start(port_of(&url));
    let instance = Instance::start(&proxy.url(&url));
    proxy.replace("BEGIN;INSERT INTO head (tenant,kind,source,version,outgoing", UNLOCKED);
    assert!(!put_through_ghosts(&instance, &proxy, &url));
    assert!(instance.put(edge(BLOCK, 1, 2)).unwrap().changed);
}
