//! A connection cut at each request of a transaction, before and after the server acted.

use guanxi_cluster::sql::Database;

use super::history::{History, Log, history};
use super::orders::drive;
use super::proxy::{Proxy, server_port, through};
use super::world::{World, each_server};

/// A batch is two requests, a new connection a few more; later cuts meet a later batch.
const CUTS: i64 = 9;

#[test]
fn a_connection_cut_at_any_request_changes_nothing() {
    each_server("a_connection_cut_at_any_request_changes_nothing", |world| {
        let History { records, outgoing } = history(&mut fastrand::Rng::with_seed(8), 240);
        let log = Log::of(world, records);
        let proxy = Proxy::before(server_port(&world.url));
        let database = Database::open(&through(&proxy, &world.url), 2).unwrap();
        let (catalog, place, url) = (world.catalog.clone(), world.place.clone(), String::new());
        let cut = World { database, catalog, place, url };
        world.put_outgoing(&outgoing);
        for after_the_answer in [false, true] {
            for requests in 0..CUTS {
                world.run("DELETE FROM incoming;DELETE FROM tally;UPDATE applied SET next=0");
                let before = proxy.cuts();
                proxy.cut_after(requests, after_the_answer);
                drive(&cut, &log, 15);
                assert_eq!(proxy.cuts(), before + 1, "nothing was cut");
                world.assert_target_side();
            }
        }
    });
}
