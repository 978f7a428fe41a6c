//! A cluster with a Redis: checks that end in the filter and the lists, and what becomes of them when
//! Redis is flushed, paused, filled, killed or replaced by an older one. Every answer is compared
//! with what was acknowledged.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::time::Duration;

use guanxi_services::{Port, Redis};
use guanxi_tests::{Cli, Cluster, Options, Server, edge, metric, nodes, poll_until};
use parking_lot::Mutex;
use serde_json::json;

/// Filling the filter waits for the longest write that may be under way.
const FILLED: Duration = Duration::from_secs(180);

/// Checks that are waited for in each state of Redis.
const CHECKS_MORE: u64 = 50;

/// Waits until checks of both may end in the filter.
fn await_filter(instances: &[&Server]) {
    poll_until("the filter", FILLED, || {
        let serves =
            |instance: &&Server| instance.get("/readyz").ok()["cluster"]["filter_serves"] == true;
        instances.iter().all(serves).then_some(())
    });
}

fn with_redis(test: &str) -> Option<(Cluster, Redis)> {
    let cluster = Cluster::start_or_skip(test)?;
    let redis = Redis::start_or_skip(test)?;
    cluster.configure(&format!("[cache]\nredis = \"{}\"", redis.url()));
    Some((cluster, redis))
}

/// Whoever does not know the certificate does without Redis.
#[test]
fn a_redis_behind_tls() {
    let test = "a_redis_behind_tls";
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let (certificate, key) = (place.path().join("certificate.pem"), place.path().join("key.pem"));
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    std::fs::write(&certificate, made.cert.pem()).expect("it is written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("it is written");
    let [certificate, key] = [certificate, key].map(|path| path.display().to_string());
    let reserved = Port::free();
    let port = reserved.number().to_string();
    let options = [
        ["--tls-port", &port],
        ["--tls-cert-file", &certificate],
        ["--tls-key-file", &key],
        ["--tls-auth-clients", "no"],
    ];
    let Some(_redis) = Redis::start_with_or_skip(test, options.as_flattened()) else { return };
    cluster.configure(&format!("[cache]\nredis = \"rediss://127.0.0.1:{port}\""));
    let trusting = ("SSL_CERT_FILE".to_owned(), certificate);
    let options = Options { environment: vec![trusting], ..cluster.options(&[]) };
    let (knows, stranger) = (Server::start_with(options), cluster.instance());
    let reaches =
        |server: &Server| server.get("/readyz").ok()["cluster"]["redis_reachable"].clone();
    poll_until("an answer over TLS", FILLED, || (reaches(&knows) == true).then_some(()));
    let [fan, star] = nodes();
    knows.put(edge("follow", fan, star)).ok();
    assert_eq!(stranger.get(edge("follow", fan, star)).ok()["related"], true);
    assert_eq!(reaches(&stranger), false);
}

#[test]
fn negative_checks_end_in_the_filter() {
    const ROUNDS: u32 = 40;
    let Some((cluster, _redis)) = with_redis("negative_checks_end_in_the_filter") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [fan, star, before] = nodes();
    one.put(edge("follow", fan, before)).ok();
    await_filter(&[&one, &other]);
    // What stood, and what is put now, is seen at once everywhere.
    one.put(edge("follow", fan, star)).ok();
    for instance in [&one, &other] {
        for target in [before, star] {
            assert_eq!(instance.get(edge("follow", fan, target)).ok()["related"], true);
        }
    }
    let asked = |instance: &Server| {
        let count = |name: &str| metric(instance, &format!("guanxi_filter_{name}_total"));
        (count("surely_not"), count("maybe"), count("unknown"))
    };
    let (mut round, mut clean, mut sure, mut maybe) = (0_u64, 0, 0.0, 0.0);
    let mut last = asked(&other);
    poll_until("rounds in which Redis is never late", FILLED, || {
        let objects: Vec<String> = (0..6).map(|n| (900_000 + round * 6 + n).to_string()).collect();
        let objects: Vec<_> = objects.iter().map(|id| json!({"id": id, "author": "77"})).collect();
        let answer = other.post_json(
            "/v1/hydrate",
            json!({"viewer": fan.to_string(), "objects": objects,
                   "kinds": ["like", "favorite", "follow"], "tallies": ["like"]}),
        );
        for object in answer.ok()["objects"].as_array().expect("objects") {
            assert_eq!(object["related"], json!([]), "{object}");
        }
        let now = asked(&other);
        if now.2 == last.2 {
            clean += 1;
            sure += now.0 - last.0;
            maybe += now.1 - last.1;
        }
        (round, last) = (round + 1, now);
        (clean == ROUNDS).then_some(())
    });
    let all = sure + maybe;
    assert!(all >= f64::from(ROUNDS) * 13.0, "{all} edges were asked about");
    assert!(sure / all >= 0.98, "{sure} of {all} ended in the filter");
    other.delete(edge("follow", fan, star)).ok();
    assert_eq!(one.get(edge("follow", fan, star)).ok()["related"], false);
}

/// What one instance read from the database, the other finds in Redis, and it follows the writes.
#[test]
fn tallies_of_hydrate_come_from_redis() {
    let Some((cluster, _redis)) = with_redis("tallies_of_hydrate_come_from_redis") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [fan, post, second] = nodes();
    let likes = |instance: &Server| {
        let objects = json!([{"id": post.to_string(), "author": "77"}]);
        let asked = json!({"viewer": fan.to_string(), "objects": objects, "kinds": [],
                           "tallies": ["like"]});
        instance.post_json("/v1/hydrate", asked).ok()["objects"][0]["tallies"]["like"].clone()
    };
    let remembered = |instance: &Server, number: u64| {
        poll_until("the number, from Redis", FILLED, || {
            let hits = metric(instance, "guanxi_tally_hits_total");
            let right = likes(instance) == number;
            (right && metric(instance, "guanxi_tally_hits_total") > hits).then_some(())
        });
    };
    one.put(edge("like", fan, post)).ok();
    remembered(&one, 1);
    remembered(&other, 1);
    other.put(edge("like", second, post)).ok();
    remembered(&one, 2);
    other.delete(edge("like", fan, post)).ok();
    other.delete(edge("like", second, post)).ok();
    remembered(&other, 0);
    // A machine that stalls loses the lease for a while.
    poll_until("one follows", FILLED, || {
        let lags = [&one, &other].map(|instance| metric(instance, "guanxi_follower_lag_records"));
        let followed = metric(&one, "guanxi_tallies_followed") > 0.0;
        (followed && lags.iter().filter(|lag| **lag >= 0.0).count() == 1).then_some(())
    });
}

/// What one instance had read for it, the other finds in Redis, and it follows the writes.
#[test]
fn pages_of_incoming_lists_come_from_redis() {
    let test = "pages_of_incoming_lists_come_from_redis";
    let Some((cluster, _redis)) = with_redis(test) else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [fan, star, second] = nodes();
    let list = format!("/v1/edges/follow/{star}/incoming?limit=20");
    let remembered = |instance: &Server, fans: &[u64]| {
        poll_until("the page, from Redis", FILLED, || {
            let found = || metric(instance, "guanxi_incoming_lists_found_total");
            let before = found();
            let answer = instance.get(&list);
            let page = answer.ok();
            let items = page["items"].as_array().expect("items");
            let ids: Vec<&str> = items.iter().filter_map(|item| item["id"].as_str()).collect();
            let right = ids.len() == fans.len()
                && page["total"] == fans.len()
                && fans.iter().all(|fan| ids.contains(&&*fan.to_string()));
            (right && found() > before).then_some(())
        });
    };
    one.put(edge("follow", fan, star)).ok();
    other.put(edge("follow", second, star)).ok();
    remembered(&one, &[fan, second]);
    remembered(&other, &[fan, second]);
    other.delete(edge("follow", fan, star)).ok();
    remembered(&one, &[second]);
    let filled = |instance: &Server| metric(instance, "guanxi_incoming_lists_filled_total");
    let filled = filled(&one) + filled(&other);
    assert!(filled >= 2.0, "{filled} lists were put into Redis");
}

/// What was acknowledged, by the number of the pair's last change: the same pair is changed by one
/// thread alone.
#[derive(Default)]
struct Truth(Mutex<BTreeMap<(u64, u64), bool>>);

impl Truth {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<(u64, u64), bool>) -> T) -> T {
        act(&mut self.0.lock())
    }

    /// In the end everything is as it was acknowledged last.
    fn assert_held_by(&self, instance: &Server) {
        self.with(|truth| {
            for ((source, target), related) in truth.iter() {
                let answer = instance.get(edge("follow", *source, *target));
                assert_eq!(answer.ok()["related"], *related, "{source} {target}");
            }
        });
    }
}

/// Changes pairs of its own one after the other and checks each at the other instance right after
/// it was acknowledged.
fn change_and_check(
    writer: &Server,
    reader: &Server,
    first: u64,
    truth: &Truth,
    ends: &AtomicBool,
    checks: &AtomicU64,
) {
    for number in 0.. {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        let pair = (first + number % 50, 1_000_000 + number % 170);
        let path = edge("follow", pair.0, pair.1);
        let related = number % 3 != 2;
        let answer = if related { writer.put(&path) } else { writer.delete(&path) };
        answer.ok();
        truth.with(|truth| truth.insert(pair, related));
        let seen = reader.get(&path);
        if seen.status == 200 {
            assert_eq!(seen.ok()["related"], related, "{pair:?} after it was acknowledged");
            checks.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn no_check_is_ever_wrong_whatever_becomes_of_redis() {
    let test = "no_check_is_ever_wrong_whatever_becomes_of_redis";
    let Some((cluster, redis)) = with_redis(test) else { return };
    let instances = [cluster.instance(), cluster.instance()];
    let filled = || await_filter(&[&instances[0], &instances[1]]);
    let told = |words: &[&str]| tell(&redis, words);
    filled();
    while_checking(&instances, |goes_on| {
        goes_on("checks with the filter");
        told(&["FLUSHALL"]);
        goes_on("checks after a FLUSHALL");
        told(&["CONFIG", "SET", "maxmemory", "1"]);
        goes_on("checks while Redis takes nothing");
        told(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
        goes_on("checks while Redis evicts everything");
        told(&["CONFIG", "SET", "maxmemory", "0"]);
        filled();
        goes_on("checks when Redis has room");
        redis.pause();
        goes_on("checks while Redis does nothing");
        redis.resume();
        goes_on("checks when Redis goes on");
        redis.kill();
        goes_on("checks without Redis");
        redis.start_again();
        goes_on("checks with an empty Redis");
        filled();
        goes_on("checks with the filter again");
    });
}

/// A replica that was cut off for a while takes the master's place behind the same address, while
/// instances write and are asked.
#[test]
fn a_failover_to_an_older_replica_is_never_believed() {
    let test = "a_failover_to_an_older_replica_is_never_believed";
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let Some(master) = Redis::start_or_skip(test) else { return };
    let Some(replica) = Redis::start_or_skip(test) else { return };
    let address = Address::of(master.port());
    cluster.configure(&format!("[cache]\nredis = \"redis://127.0.0.1:{}\"", address.port));
    tell(&replica, &["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let instances = [cluster.instance(), cluster.instance()];
    let filled = || await_filter(&[&instances[0], &instances[1]]);
    filled();
    while_checking(&instances, |goes_on| {
        goes_on("checks with the filter");
        // From here on the replica has less than the master.
        tell(&replica, &["REPLICAOF", "NO", "ONE"]);
        goes_on("checks that the replica does not hear of");
        address.now(replica.port());
        goes_on("checks with the older one in the master's place");
        filled();
        goes_on("checks with the filter on the older one");
    });
}

/// Changes edges at each instance and checks them at the other while `act` goes on; it is given a
/// way to wait for more checks. In the end everything is as it was acknowledged last.
fn while_checking(instances: &[Server; 2], act: impl FnOnce(&dyn Fn(&str))) {
    let (truth, ends, checks) = (Truth::default(), AtomicBool::new(false), AtomicU64::new(0));
    let [one, other] = instances;
    std::thread::scope(|scope| {
        let _ending = Ending(&ends);
        for (writer, reader, first) in [(one, other, 10_000), (other, one, 20_000)] {
            let (truth, ends, checks) = (&truth, &ends, &checks);
            scope.spawn(move || {
                // Whoever fails ends the others.
                let _ending = Ending(ends);
                change_and_check(writer, reader, first, truth, ends, checks);
            });
        }
        act(&|what| {
            let begun = checks.load(Ordering::Relaxed);
            poll_until(what, FILLED, || {
                let more = checks.load(Ordering::Relaxed) > begun + CHECKS_MORE;
                (more || ends.load(Ordering::Relaxed)).then_some(())
            });
        });
    });
    truth.assert_held_by(one);
    assert_no_drift(other);
}

fn tell(redis: &Redis, words: &[&str]) {
    let client = redis::Client::open(redis.url()).expect("an address");
    let mut connection = client.get_connection().expect("a connection");
    let mut command = redis::cmd(words[0]);
    command.arg(&words[1..]).exec(&mut connection).expect("it is done");
}

fn assert_no_drift(instance: &Server) {
    let audit = Cli::of(instance).run(&["audit", "--json"]);
    assert_eq!(audit.ok().json()["drift"], 0);
}

/// An address behind which one server takes another's place: connections to the first are ended.
struct Address {
    port: u16,
    behind: Arc<AtomicU16>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Address {
    fn of(port: u16) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = Address {
            port: listener.local_addr().expect("it is bound").port(),
            behind: Arc::new(AtomicU16::new(port)),
            open: Arc::default(),
        };
        let (behind, open) = (address.behind.clone(), address.open.clone());
        // It ends with the process of the test.
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let port = behind.load(Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let all = [&caller, &server].map(|it| it.try_clone().expect("a handle"));
                open.lock().extend(all);
                for (mut from, mut to) in [
                    (caller.try_clone().expect("a handle"), server.try_clone().expect("a handle")),
                    (server, caller),
                ] {
                    std::thread::spawn(move || {
                        let _ended = std::io::copy(&mut from, &mut to);
                        let _closed = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        address
    }

    fn now(&self, port: u16) {
        self.behind.store(port, Ordering::SeqCst);
        for stream in self.open.lock().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Says that it is over when it goes, also by a failed assertion: a scope waits for its threads.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
