//! Backups of a running service and what is restored from them: one position, whatever is being
//! written meanwhile; chains of archives; positions and times; epochs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guanxi_tests::{
    Cli, Client, Ran, Server, assert_lists_and_tallies_agree, edge, edge_call, metric, millis_now,
    node_run, nodes, poll_until, put_all, rfc3339, start_standby, version_of, wait_until_caught_up,
    walk_ids, without_token,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const WRITERS: usize = 4;
/// How many edges each of them makes at most.
const TARGETS_MAX: usize = 600;

/// A server, a folder for archives, and the commands that use them.
struct Bench {
    server: Server,
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { server: Server::start(), folder: TempDir::new().expect("a folder") }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("the path is text").to_owned()
    }

    fn backup(&self, to: &str, since: Option<&str>) -> Ran {
        backup(&self.server, &self.path(to), since.map(|since| self.path(since)))
    }

    /// Takes a backup and returns what it says of itself.
    #[track_caller]
    fn backed_up(&self, to: &str, since: Option<&str>) -> Value {
        self.backup(to, since).json()
    }

    fn restore(&self, archives: &[&str], to: &str, more: &[&str]) -> Ran {
        let (archives, to) = (archives.iter().map(|name| self.path(name)), self.path(to));
        restore(&archives.collect::<Vec<_>>(), &to, more)
    }

    /// Restores and starts what was restored.
    #[track_caller]
    fn restored(&self, archives: &[&str], to: &str, more: &[&str]) -> (Server, Value) {
        let said = self.restore(archives, to, more).json();
        (start(&self.path(to)), said)
    }
}

#[track_caller]
fn start(directory: &str) -> Server {
    Server::try_start_in(Path::new(directory)).unwrap_or_else(|said| panic!("{said}"))
}

fn backup(server: &Server, to: &str, since: Option<String>) -> Ran {
    let mut arguments = vec!["backup", "--json", "--to", to];
    if let Some(since) = &since {
        arguments.extend(["--since", since]);
    }
    Cli::of(server).run(&arguments)
}

fn restore(archives: &[String], to: &str, more: &[&str]) -> Ran {
    let mut arguments = vec!["restore", "--json", "--data-dir", to];
    for archive in archives {
        arguments.extend(["--from", archive.as_str()]);
    }
    arguments.extend(more);
    Cli::default().run(&arguments)
}

#[track_caller]
fn follows(client: &Client, source: u64) -> BTreeSet<u64> {
    walk_ids(client, &edge_call("follow", source, "outgoing"), 1_000).into_iter().collect()
}

/// Each writer follows one target after the other, so what a backup holds of it must be a
/// beginning of that, and no shorter than what was acknowledged before the backup began.
#[test]
fn a_backup_under_load_is_of_one_moment() {
    let bench = Bench::new();
    let targets = node_run(TARGETS_MAX);
    let (sources, stop) = (node_run(WRITERS), AtomicBool::new(false));
    let acknowledged: Vec<AtomicU64> = sources.iter().map(|_| AtomicU64::new(0)).collect();
    let counts = || acknowledged.iter().map(|count| count.load(Ordering::SeqCst));
    let (before, after) = thread::scope(|scope| {
        for (source, acknowledged) in sources.iter().zip(&acknowledged) {
            let (client, targets, stop) = (bench.server.client(), &targets, &stop);
            scope.spawn(move || {
                for target in targets {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    client.put(edge("follow", *source, *target)).ok();
                    acknowledged.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        poll_until("all writers write", Duration::from_secs(60), || {
            counts().all(|count| count > 20).then_some(())
        });
        let before: Vec<u64> = counts().collect();
        bench.backed_up("full", None);
        let middle: Vec<u64> = counts().collect();
        bench.backed_up("more", Some("full"));
        stop.store(true, Ordering::SeqCst);
        (before, middle)
    });
    for (archives, least, name) in
        [(&["full"][..], before, "one"), (&["full", "more"], after, "two")]
    {
        let (server, _) = bench.restored(archives, name, &[]);
        let found = assert_lists_and_tallies_agree(&server, "follow", &sources, &targets);
        for (source, least) in sources.iter().zip(least) {
            let of_source = found.iter().filter(|edge| edge.0 == *source);
            let found: BTreeSet<u64> = of_source.map(|edge| edge.1).collect();
            let expected: BTreeSet<u64> = targets.iter().copied().take(found.len()).collect();
            assert_eq!(found, expected, "a beginning of what {source} wrote");
            assert!(found.len() as u64 >= least, "{} of at least {least}", found.len());
        }
    }
}

#[test]
fn everything_comes_back() {
    let bench = Bench::new();
    let [source, target, post, pending] = nodes();
    let server = &bench.server;
    server
        .post_json(format!("/v1/groups/follow/{source}"), json!({"name": "朋友"}))
        .expect_status(201);
    server
        .put_json(edge("follow", source, target), json!({"group": "朋友", "data": "special"}))
        .ok();
    server.put_json(edge("follow", pending, target), json!({"approval": true})).ok();
    server.put_json(edge("like", source, post), json!({"owner": target.to_string()})).ok();
    let keyed = |server: &Server| {
        let request = server.request("PUT", &edge("favorite", source, post));
        request.header("idempotency-key", "once").send().ok().clone()
    };
    let first = keyed(server);
    server.post_json(format!("/v1/counters/view/{post}"), json!({"delta": 41})).ok();
    server.put_json(format!("/v1/nodes/user/{target}"), json!({"private": true})).ok();
    server
        .post_json(
            "/v1/admin/kinds",
            json!({"name": "seen", "source_type": "user", "target_type": "post"}),
        )
        .expect_status(201);
    let look = |client: &Client| -> Vec<Value> {
        let tallies = json!({"ids": [source.to_string(), target.to_string(), post.to_string()],
            "kinds": ["follow", "like", "view"]});
        let paths = [
            edge("follow", source, target),
            edge("follow", pending, target),
            edge("like", source, post),
            edge_call("follow", target, "incoming"),
            format!("/v1/groups/follow/{source}"),
            format!("/v1/nodes/user/{target}"),
            "/v1/admin/kinds".to_owned(),
        ];
        let mut seen: Vec<Value> = paths.iter().map(|path| client.get(path).ok().clone()).collect();
        seen.push(client.post_json("/v1/tallies", tallies).ok().clone());
        seen
    };
    let expected = look(server);
    let taken = bench.backed_up("all", None);
    let (restored, said) = bench.restored(&["all"], "data", &[]);
    assert_eq!(look(&restored), expected);
    assert_eq!((&said["position"], &said["time"]), (&taken["position"], &taken["time"]));
    assert_eq!(said["rows"], taken["rows"]);
    assert_eq!(without_token(&keyed(&restored)), without_token(&first), "keys are remembered");
    // And it goes on.
    let newer = restored.put(edge("follow", source, post)).ok().clone();
    assert!(version_of(&newer) > version_of(&first));
    let restored = restored.kill().restart();
    assert_eq!(follows(&restored, source), BTreeSet::from([target, post]));
}

#[test]
fn it_goes_to_a_position_or_a_time() {
    let bench = Bench::new();
    let [source] = nodes();
    let targets = node_run(40);
    let put = |range: std::ops::Range<usize>| {
        for target in &targets[range] {
            bench.server.put(edge("follow", source, *target)).ok();
        }
        thread::sleep(Duration::from_millis(20));
        let now = millis_now();
        thread::sleep(Duration::from_millis(20));
        now
    };
    let before = millis_now();
    thread::sleep(Duration::from_millis(20));
    let first_time = put(0..10);
    let full = bench.backed_up("full", None);
    let second_time = put(10..20);
    let second = bench.backed_up("second", Some("full"));
    let third_time = put(20..40);
    let third = bench.backed_up("third", Some("second"));
    assert_eq!(second["from_position"], full["position"]);
    assert_eq!((&third["records"], &third["rows"]), (&json!(20), &json!(0)));

    let chain = ["full", "second", "third"];
    let position = |said: &Value| said["position"].as_u64().unwrap();
    let (full, second, third) = (position(&full), position(&second), position(&third));
    let middle = second + 7;
    let cases = [
        ("--to-position", full.to_string(), 10, full),
        ("--to-position", second.to_string(), 20, second),
        ("--to-position", middle.to_string(), 27, middle),
        ("--to-position", third.to_string(), 40, third),
        ("--to-time", rfc3339(first_time), 10, full),
        ("--to-time", rfc3339(second_time), 20, second),
        ("--to-time", rfc3339(third_time), 40, third),
    ];
    for (number, (flag, value, count, end)) in cases.into_iter().enumerate() {
        let name = number.to_string();
        let (server, said) = bench.restored(&chain, &name, &[flag, &value]);
        assert_eq!(position(&said), end, "{flag} {value}");
        let expected: BTreeSet<u64> = targets[..count].iter().copied().collect();
        assert_eq!(follows(&server, source), expected, "{flag} {value}");
    }
    let refused = [
        ("--to-position", (full - 1).to_string(), "older full backup"),
        ("--to-position", (third + 1).to_string(), "add the backup that continues it"),
        ("--to-time", rfc3339(before), "older full backup"),
        ("--to-time", rfc3339(millis_now() + 3_600_000), "add the backup that continues it"),
    ];
    for (flag, value, words) in refused {
        bench.restore(&chain, "none", &[flag, &value]).expect_words(1, &[words]);
        assert!(!Path::new(&bench.path("none")).exists(), "nothing is made: {flag} {value}");
    }
    let both = ["--to-position", "5", "--to-time", "2026-01-01T00:00:00Z"];
    bench.restore(&chain, "none", &both).expect(2);
    bench.restore(&chain, "none", &["--to-time", "yesterday"]).expect(2);
}

#[test]
fn archives_that_do_not_fit_together_are_refused() {
    let (bench, other) = (Bench::new(), Bench::new());
    let [source] = nodes();
    for (number, name) in ["full", "second", "third"].into_iter().enumerate() {
        let since = ["full", "second"].get(number.wrapping_sub(1)).copied();
        for bench in [&bench, &other] {
            for target in node_run(3) {
                bench.server.put(edge("follow", source, target)).ok();
            }
            bench.backed_up(name, since);
        }
    }
    // The other service has the same positions, but another history.
    std::fs::copy(other.path("second"), bench.path("foreign")).unwrap();
    bench.backed_up("again", None);
    let cases: [(&[&str], &str); 6] = [
        (&["full", "third"], "a backup between the two is missing"),
        (&["second", "third"], "give the full backup that it continues before it"),
        (&["full", "third", "second"], "missing, or they are not in the order"),
        (&["full", "second", "third", "second"], "in the order in which they were made"),
        (&["full", "again"], "only the first archive may be one"),
        (&["full", "foreign"], "different services"),
    ];
    for (archives, words) in cases {
        bench.restore(archives, "none", &[]).expect_words(1, &[words]);
        assert!(!Path::new(&bench.path("none")).exists(), "nothing is made of {archives:?}");
    }
    // One that overlaps is no harm.
    bench.restore(&["full", "second", "second", "third"], "twice", &[]).expect(0);
    // A backup that would continue another service's is refused when it is taken: the two have no
    // epoch in common, although they were made at the same time.
    let taken = backup(&other.server, &other.path("wrong"), Some(bench.path("third")));
    taken.expect_words(1, &["position_expired", "not of the history", "leave --since out"]);
    assert!(!Path::new(&other.path("wrong")).exists());
}

#[test]
fn a_restored_service_is_a_new_epoch_of_the_old_one() {
    let bench = Bench::new();
    let [source, one, two, three] = nodes();
    let token = |answer: &guanxi_tests::Answer| answer.ok()["token"].as_str().unwrap().to_owned();
    let good = token(&bench.server.put(edge("follow", source, one)));
    bench.backed_up("full", None);
    let beyond = token(&bench.server.put(edge("follow", source, two)));
    bench.backed_up("more", Some("full"));

    let (restored, said) = bench.restored(&["full"], "data", &[]);
    let at_least = |token: &str| format!("{}?at_least={token}", edge("follow", source, one));
    restored.get(at_least(&good)).ok();
    restored.get(at_least(&beyond)).expect_error(410, "position_expired");
    let fresh = token(&restored.put(edge("follow", source, three)));
    restored.get(at_least(&fresh)).ok();
    // The position of the two is the same; the old service does not take the new one's token.
    bench.server.get(at_least(&fresh)).expect_error(410, "position_expired");
    bench.server.get(at_least(&beyond)).ok();

    // Its backup continues the one that it was made from, and not what the old one wrote after.
    let next = backup(&restored, &bench.path("next"), Some(bench.path("full"))).json();
    assert_eq!(next["from_position"], said["position"]);
    backup(&restored, &bench.path("wrong"), Some(bench.path("more")))
        .expect_words(1, &["position_expired", "full backup"]);
    let (again, twice) = bench.restored(&["full", "next"], "again", &[]);
    assert_eq!(follows(&again, source), BTreeSet::from([one, three]));
    assert!(twice["epoch"].as_u64() > said["epoch"].as_u64());
    again.get(at_least(&fresh)).ok();
    bench.restore(&["full", "more", "next"], "none", &[]).expect_words(1, &["different histories"]);
}

/// A restored service has no log before its own beginning.
#[test]
fn what_the_log_no_longer_has_needs_a_full_backup() {
    let bench = Bench::new();
    let [source, one, two] = nodes();
    bench.server.put(edge("follow", source, one)).ok();
    let full = bench.backed_up("full", None);
    bench.server.put(edge("follow", source, two)).ok();
    bench.backed_up("more", Some("full"));
    let (restored, _) = bench.restored(&["full", "more"], "data", &[]);
    let ran = backup(&restored, &bench.path("late"), Some(bench.path("full")));
    ran.expect_words(1, &["position_expired", "no longer in the log", "leave --since out"]);
    let path = |after: &Value| format!("/v1/admin/backup?after={after}");
    restored.get(path(&full["position"])).expect_error(410, "position_expired");
    restored.get(path(&json!(1_u64 << 60))).expect_error(410, "position_expired");
    for wrong in ["", "-1", "x", "1.5", "99999999999999999999"] {
        let path = format!("/v1/admin/backup?after={wrong}");
        restored.get(path).expect_error(400, "invalid_argument");
    }
    restored.get("/v1/admin/backup?before=1").expect_error(400, "invalid_argument");
    backup(&restored, &bench.path("late"), None).expect(0);
}

#[test]
fn places_that_are_taken_are_left_alone() {
    let bench = Bench::new();
    let [source] = nodes();
    put_all(
        &bench.server,
        "follow",
        &node_run(50).iter().map(|t| (source, *t)).collect::<Vec<_>>(),
    );
    bench.backed_up("full", None);
    bench.backup("full", None).expect_words(2, &["exists already"]);
    backup(&bench.server, "-", None).expect_words(2, &["read back", "./-"]);
    bench.backup("none/full", None).expect_words(3, &["cannot write"]);
    bench.backup("self", Some("none")).expect_words(1, &["cannot be opened"]);

    let used = bench.server.data_directory().to_str().unwrap();
    restore(&[bench.path("full")], used, &[]).expect_words(2, &["is a data directory already"]);
    let foreign = bench.folder.path().join("holiday");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("beach.jpg"), "x").unwrap();
    bench.restore(&["full"], "holiday", &[]).expect_words(2, &["beach.jpg"]);
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);
    bench.restore(&["full"], "full", &[]).expect_words(2, &["is a file"]);
    bench.restore(&["none"], "data", &[]).expect_words(1, &["none cannot be opened"]);
    let folder = bench.folder.path().join("empty");
    std::fs::create_dir(&folder).unwrap();
    bench.restore(&["full"], "empty", &[]).expect(0);
    let nobody = Cli::default().with("GUANXI_SERVER", "http://127.0.0.1:9");
    let to: PathBuf = bench.folder.path().join("nobody");
    nobody.run(&["backup", "--to", to.to_str().unwrap()]).expect_words(3, &["nothing answers"]);
    assert!(!to.exists() && !to.with_added_extension("part").exists());
}

#[test]
fn backups_are_counted() {
    let bench = Bench::new();
    let numbers = || {
        let names = ["backups_total", "backup_bytes_total", "backup_finished_timestamp_seconds"];
        names.map(|name| metric(&bench.server, &format!("guanxi_{name}")))
    };
    assert_eq!(numbers(), [0.0; 3]);
    let before = millis_now() / 1_000;
    let first = bench.backed_up("full", None)["bytes"].as_u64().expect("bytes");
    let second = bench.backed_up("more", Some("full"))["bytes"].as_u64().expect("bytes");
    let [count, bytes, finished] = numbers();
    assert_eq!((count, bytes), (2.0, (first + second) as f64));
    assert!(finished >= before as f64, "{finished} is after {before}");
    // The first copy of a standby is no backup.
    let standby = start_standby(&bench.server);
    wait_until_caught_up(&bench.server, &standby);
    assert_eq!(numbers()[0], 2.0);
}
