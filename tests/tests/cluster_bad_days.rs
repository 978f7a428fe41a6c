//! Bad days of a cluster: the log, the database and the instances are stopped, killed and paused
//! under load. Whatever happens, every acknowledged write stays, the other side comes up by
//! itself, and an audit finds nothing.
//!
//! All tests have the same servers, which they break, so there is one bad day at a time.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guanxi_services::{Kafka, MariaDb, SqlServer, TiDb, fresh_database};
use guanxi_tests::{Callers, Cli, Cluster, Server, edge, edge_call, metric, nodes, poll_until};
use parking_lot::{Mutex, MutexGuard};
use serde_json::Value;

/// Generous: a busy machine is no failure.
const SOON: Duration = Duration::from_secs(60);
/// How long the log does nothing: longer than its clients wait for an answer patiently.
const PAUSE: Duration = Duration::from_secs(3);
/// A short one, so that callers hear of a database that is away while it is.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
/// What a busy machine adds to it.
const SLACK: Duration = Duration::from_secs(10);

struct Servers {
    mariadb: MariaDb,
    kafka: Kafka,
}

static SERVERS: Mutex<Option<Servers>> = Mutex::new(None);

/// The servers for one test; the guard keeps the others waiting.
fn servers_or_skip(test: &str) -> Option<MutexGuard<'static, Option<Servers>>> {
    let mut servers = SERVERS.lock();
    match servers.as_ref() {
        None => {
            let mariadb = MariaDb::start_or_skip(test)?;
            *servers = Some(Servers { mariadb, kafka: Kafka::start_or_skip(test)? });
        }
        // As a test that failed may have left them.
        Some(Servers { mariadb, kafka }) => {
            for server in [&**mariadb, &**kafka] {
                match server.is_running() {
                    true => server.resume(),
                    false => server.start_again(),
                }
            }
        }
    }
    Some(servers)
}

fn cluster_on(database: &impl SqlServer, kafka: &Kafka) -> Cluster {
    let cluster = Cluster::on(&fresh_database(database), &kafka.brokers());
    cluster.migrate().ok();
    cluster
}

/// Waits until the instance says that it is ready, and that the log is there or not.
fn await_log(instance: &Server, reachable: bool) {
    poll_until("the log's state", SOON, || {
        (instance.get("/readyz").ok()["cluster"]["log_reachable"] == reachable).then_some(())
    });
}

#[test]
fn without_the_log_writes_and_reads_go_on() {
    let Some(servers) = servers_or_skip("without_the_log_writes_and_reads_go_on") else { return };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let (one, other) = (cluster.instance(), cluster.instance());
    let callers = Callers::start(&[&one, &other]);
    callers.await_progress("before");
    kafka.pause();
    let paused = Instant::now();
    while paused.elapsed() < PAUSE {
        callers.await_progress("while the log does nothing");
    }
    kafka.resume();
    callers.await_progress("when the log goes on");
    kafka.kill();
    for instance in [&one, &other] {
        await_log(instance, false);
    }
    callers.await_progress("without a log");
    kafka.start_again();
    callers.await_progress("with the log again");
    callers.assert_untroubled("callers hardly need the log");
    callers.end_and_check(&other);
    await_log(&one, true);
}

/// The log is gone with all that was not applied yet, and another has its name: everything is there
/// in the end, on both sides.
#[test]
fn a_topic_made_anew_under_load_loses_nothing() {
    let Some(servers) = servers_or_skip("a_topic_made_anew_under_load_loses_nothing") else {
        return;
    };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let (one, other) = (cluster.instance(), cluster.instance());
    let callers = Callers::start(&[&one, &other]);
    callers.await_progress("before");
    let mut delete = kafka.tool("org.apache.kafka.tools.TopicCommand");
    delete.args(["--delete", "--topic", &cluster.topic]);
    let deleted = delete.output().expect("Kafka's own program");
    assert!(deleted.status.success(), "{}", String::from_utf8_lossy(&deleted.stderr));
    cluster.migrate().ok();
    poll_until("every partition is rebuilt", SOON, || {
        let rebuilt = |instance| metric(instance, "guanxi_applier_rebuilds_total");
        (rebuilt(&one) + rebuilt(&other) >= 4.0).then_some(())
    });
    callers.await_progress("with the other topic");
    callers.assert_untroubled("callers hardly need the log");
    callers.end_and_check(&other);
}

/// It cannot be reached from one instance alone, which holds all there is to do on it.
#[test]
fn an_instance_without_the_log_leaves_its_work_to_those_that_have_it() {
    let test = "an_instance_without_the_log_leaves_its_work_to_those_that_have_it";
    let Some(servers) = servers_or_skip(test) else { return };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let cut_off = cluster.without_the_log();
    let well = cluster.instance();
    let ready = cut_off.get("/readyz").ok()["cluster"].clone();
    assert_eq!(ready["applier_lag_records"], Value::Null, "it cannot know: {ready}");
    let callers = Callers::start(&[&cut_off, &well]);
    callers.await_progress("at both");
    callers.assert_untroubled("who serves callers hardly needs the log");
    // The lag ends, and an audit, which waits for barriers, finds nothing.
    callers.end_and_check(&well);
    await_log(&cut_off, false);
    let doctor = Cli::of(&cut_off).run(&["doctor"]);
    assert!(doctor.stdout.contains("the log cannot be reached"), "{}", doctor.stdout);
}

/// A database goes away under load: callers are told in time, may try again, and writes go on by
/// themselves when it is back.
fn outage(callers: &Callers, instances: &[&Server], down: impl Fn(), up: impl Fn()) {
    callers.await_progress("before");
    callers.assert_untroubled("before");
    down();
    for instance in instances {
        let said = poll_until("the database's absence", SOON, || {
            let ready = instance.get("/readyz");
            (ready.status != 200).then(|| ready.expect_error(503, "unavailable").to_owned())
        });
        assert!(said.contains("database"), "{said}");
        instance.assert_healthy();
    }
    callers.await_failed_write("writers hear of it");
    up();
    for instance in instances {
        poll_until("readiness", SOON, || (instance.get("/readyz").status == 200).then_some(()));
    }
    callers.await_progress("with the database again");
    for trouble in callers.take_troubles() {
        assert!(matches!(trouble.status, Some(503 | 504)), "{trouble:?}");
        assert!(trouble.retryable, "{trouble:?}");
        assert!(trouble.took < REQUEST_TIMEOUT + SLACK, "{trouble:?}");
        assert!(!trouble.text.contains("127.0.0.1"), "the driver's words: {trouble:?}");
    }
}

fn with_short_requests(cluster: &Cluster) {
    cluster.configure(&format!("[http]\nrequest_timeout_ms = {}", REQUEST_TIMEOUT.as_millis()));
}

#[test]
fn writes_go_on_when_the_database_is_back() {
    let Some(servers) = servers_or_skip("writes_go_on_when_the_database_is_back") else { return };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    with_short_requests(&cluster);
    let (one, other) = (cluster.instance(), cluster.instance());
    let callers = Callers::start(&[&one, &other]);
    outage(&callers, &[&one, &other], || mariadb.kill(), || mariadb.start_again());
    outage(&callers, &[&one, &other], || mariadb.stop(), || mariadb.start_again());
    callers.end_and_check(&one);
}

/// Stopped in order: killed, its embedded store forgets what it had acknowledged.
#[test]
fn writes_go_on_when_tidb_is_back() {
    let Some(servers) = servers_or_skip("writes_go_on_when_tidb_is_back") else { return };
    let Some(tidb) = TiDb::start_or_skip("writes_go_on_when_tidb_is_back") else { return };
    let Some(Servers { kafka, .. }) = servers.as_ref() else { return };
    let cluster = cluster_on(&tidb, kafka);
    with_short_requests(&cluster);
    let instance = cluster.instance();
    let callers = Callers::start(&[&instance]);
    outage(&callers, &[&instance], || tidb.stop(), || tidb.start_again());
    callers.end_and_check(&instance);
}

#[test]
fn another_instance_takes_over_from_one_that_was_killed() {
    let test = "another_instance_takes_over_from_one_that_was_killed";
    let Some(servers) = servers_or_skip(test) else { return };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let (one, other) = (cluster.instance(), cluster.instance());
    // Both have parts of the log to move.
    let callers = Callers::start(&[&one, &other]);
    for instance in [&one, &other] {
        poll_until("its share of the work", SOON, || {
            (metric(instance, "guanxi_applied_records_total") > 0.0).then_some(())
        });
    }
    callers.await_progress("before");
    callers.assert_untroubled("before");
    one.kill();
    callers.await_failed_write("writers notice");
    callers.call(&[&other]);
    callers.await_progress("on the one that is left");
    // The target's side comes up although nobody replaces the other.
    let stars: [u64; 8] = nodes();
    let fan = nodes::<1>()[0];
    for star in stars {
        other.put(edge("follow", fan, star)).expect_change(true, "live");
    }
    for star in stars {
        poll_until("the target's side", SOON, || {
            (other.get(edge_call("follow", star, "incoming")).ok()["total"] == 1).then_some(())
        });
    }
    let third = cluster.instance();
    callers.call(&[&other, &third]);
    callers.await_progress("with a new instance");
    for trouble in callers.take_troubles() {
        assert_eq!(trouble.status, None, "only connections broke: {trouble:?}");
    }
    callers.end_and_check(&third);
}

#[test]
fn a_rolling_restart_under_load_loses_nothing() {
    let Some(servers) = servers_or_skip("a_rolling_restart_under_load_loses_nothing") else {
        return;
    };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let mut instances = [cluster.instance(), cluster.instance()];
    let callers = Callers::start(&[&instances[0], &instances[1]]);
    for at in 0..instances.len() {
        callers.await_progress("before a restart");
        // As a balancer does: an instance that is to end gets no new calls.
        callers.call(&[&instances[1 - at]]);
        let old = std::mem::replace(&mut instances[at], cluster.instance());
        let stopped = old.terminate();
        assert!(stopped.status.success(), "{}", stopped.log);
        callers.call(&[&instances[0], &instances[1]]);
    }
    callers.await_progress("after the restarts");
    callers.assert_untroubled("nobody notices");
    callers.end_and_check(&instances[0]);
}

/// None of them is a record of ours. The keys take them to every partition.
fn poison(kafka: &Kafka, topic: &str) -> usize {
    let values: [&[u8]; 5] =
        [b"no record of ours", b"", b"{}", b"\xff\xfe\x00\x80", b"{\"format\":1,\"op\":\"put\"}"];
    let keys = 0..16;
    let mut lines = Vec::new();
    for key in keys.clone() {
        lines.extend_from_slice(format!("poison-{key}:").as_bytes());
        lines.extend_from_slice(values[key % values.len()]);
        lines.push(b'\n');
    }
    let mut producer = kafka
        .tool("org.apache.kafka.tools.ConsoleProducer")
        .args(["--topic", topic])
        .args(["--property", "parse.key=true", "--property", "key.separator=:"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("Kafka's own producer");
    let mut input = producer.stdin.take().expect("its input");
    input.write_all(&lines).expect("it reads");
    drop(input);
    assert!(producer.wait().expect("it ends").success());
    keys.len()
}

#[test]
fn poison_in_the_log_stops_nobody() {
    let Some(servers) = servers_or_skip("poison_in_the_log_stops_nobody") else { return };
    let Some(Servers { mariadb, kafka }) = servers.as_ref() else { return };
    let cluster = cluster_on(mariadb, kafka);
    let (one, other) = (cluster.instance(), cluster.instance());
    let callers = Callers::start(&[&one, &other]);
    callers.await_progress("before");
    let count = poison(kafka, &cluster.topic);
    let cli = Cli::of(&other);
    let letters = poll_until("the dead letters", SOON, || {
        let letters = cli.run(&["dead-letters", "list", "--json"]).ok().json_lines();
        (letters.len() >= count).then_some(letters)
    });
    assert_eq!(letters.len(), count, "{letters:?}");
    let partitions: std::collections::BTreeSet<String> =
        letters.iter().map(|letter| letter["partition"].to_string()).collect();
    assert_eq!(partitions.len(), 4, "poison in every partition: {partitions:?}");
    callers.await_progress("behind the poison");
    for letter in &letters {
        let id = letter["id"].as_str().expect("an id");
        let shown = cli.run(&["dead-letters", "show", id, "--json"]).ok().json();
        assert_eq!(shown["source"], Value::Null, "{shown}");
        assert!(shown["value"].is_string(), "{shown}");
    }
    callers.assert_untroubled("poison is no caller's concern");
    callers.end_and_check(&one);
    for letter in &letters {
        cli.run(&["dead-letters", "drop", letter["id"].as_str().expect("an id")]).ok();
    }
    assert!(cli.run(&["dead-letters", "list", "--json"]).ok().json_lines().is_empty());
}
