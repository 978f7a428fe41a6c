//! `guanxi import --from`: tables of a real MariaDB and sorted sets of a real Redis, as teams have
//! them, into either deployment; stopped in the middle, and compared afterwards.

#[path = "import_from/cut_off.rs"]
mod cut_off;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use guanxi_services::{MariaDb, Redis, SqlServer, fresh_database, shared};
use guanxi_tests::{Cli, Cluster, Ran, Server, edge, edge_call, poll_until};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(90);
/// Several parts of an import, few enough for a slow machine.
const MANY: u64 = 25_000;

/// A database with tables of its own.
struct Tables {
    server: &'static MariaDb,
    url: String,
    name: String,
}

impl Tables {
    fn or_skip(test: &str) -> Option<Tables> {
        let server = shared::mariadb_or_skip(test)?;
        let url = fresh_database(server);
        let name = url.rsplit('/').next().unwrap_or_default().to_owned();
        Some(Tables { server, url, name })
    }

    /// Runs a statement in which `@.` stands for the database.
    #[track_caller]
    fn run(&self, statement: &str) {
        self.server.query(&statement.replace("@.", &format!("{}.", self.name)));
    }

    /// A table as many have it.
    fn follows(&self) {
        self.run(
            "CREATE TABLE @.follow (id BIGINT AUTO_INCREMENT PRIMARY KEY, uid BIGINT, \
             follow_uid BIGINT, status TINYINT NOT NULL DEFAULT 1, created_at DATETIME(3) NULL, \
             grp VARCHAR(100) CHARACTER SET utf8mb4 NULL)",
        );
    }

    /// A pair that is the key; rows n → n + 1 of status 1.
    fn many(&self) {
        self.run(
            "CREATE TABLE @.pairs (uid BIGINT UNSIGNED NOT NULL, follow_uid BIGINT UNSIGNED NOT \
             NULL, status TINYINT NOT NULL, PRIMARY KEY (uid, follow_uid))",
        );
        self.run(&format!(
            "INSERT INTO @.pairs SELECT seq, seq + 1, 1 FROM {}.seq_1_to_{MANY}",
            self.name
        ));
    }
}

/// Speaks to Redis as a person would at its prompt; all commands here answer in one line.
fn tell(redis: &Redis, commands: impl IntoIterator<Item = String>) {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("Redis is there");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline can be set");
    let mut answers = BufReader::new(stream.try_clone().expect("a stream has two ends"));
    for command in commands {
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("Redis listens");
        let mut answer = String::new();
        answers.read_line(&mut answer).expect("Redis answers");
        assert!(!answer.starts_with('-'), "{command}: {answer}");
    }
}

fn folder() -> TempDir {
    TempDir::with_prefix("guanxi-import-from-").expect("a temporary directory")
}

fn in_folder(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().expect("a path is text").to_owned()
}

/// An import's arguments; its place is kept in the folder.
fn arguments(folder: &TempDir, url: &str, more: &[&str]) -> Vec<String> {
    let place = in_folder(folder, "place");
    let fixed = ["import", "--from", url, "--kind", "follow", "--place", &place];
    fixed.iter().chain(more).map(|argument| (*argument).to_owned()).collect()
}

fn import(server: &Server, folder: &TempDir, url: &str, more: &[&str]) -> Ran {
    let arguments = arguments(folder, url, more);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    Cli::of(server).run(&arguments)
}

const FOLLOWS: [&str; 6] =
    ["--table", "follow", "--source-column", "uid", "--target-column", "follow_uid"];
const PAIRS: [&str; 10] = [
    "--table",
    "pairs",
    "--source-column",
    "uid",
    "--target-column",
    "follow_uid",
    "--status-column",
    "status",
    "--live",
    "1",
];

fn with<'a>(fixed: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [fixed, more].concat()
}

#[track_caller]
fn assert_verified(report: &Value, edges: u64) {
    let verification = &report["verification"];
    let counts = ["edges", "missing", "extra", "different"].map(|name| verification[name].as_u64());
    assert_eq!(counts, [Some(edges), Some(0), Some(0), Some(0)], "{report}");
}

/// What a run with --json says, however it ended.
#[track_caller]
fn report(ran: &Ran, code: i32) -> Value {
    let stdout = &ran.expect(code).stdout;
    serde_json::from_str(stdout).unwrap_or_else(|error| panic!("{error}: {stdout}"))
}

fn exported(server: &Server) -> Vec<(u64, u64)> {
    let export = server.get("/v1/admin/export?kind=follow");
    let lines = export.text.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let id = |name: &str| line[name].as_str().and_then(|id| id.parse().ok()).expect("an id");
        // Lines of groups say so.
        line["type"].is_null().then(|| (id("source"), id("target")))
    });
    lines.collect()
}

fn lines_done(server: &Server, id: &str) -> u64 {
    server.get(format!("/v1/admin/import/{id}")).body["lines"].as_u64().unwrap_or(0)
}

#[test]
fn a_table_behind_tls() {
    let folder = folder();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let (ca, key) = (in_folder(&folder, "ca.pem"), in_folder(&folder, "key.pem"));
    fs::write(&ca, made.cert.pem()).expect("it is written");
    fs::write(&key, made.signing_key.serialize_pem()).expect("it is written");
    let options = [format!("--ssl-cert={ca}"), format!("--ssl-key={key}")];
    let options = options.each_ref().map(String::as_str);
    let Some(mariadb) = MariaDb::start_with_or_skip("a_table_behind_tls", &options) else { return };
    for statement in [
        "CREATE DATABASE d",
        "CREATE TABLE d.follow (uid BIGINT, follow_uid BIGINT, PRIMARY KEY (uid, follow_uid))",
        "INSERT INTO d.follow VALUES (1, 2), (3, 4)",
        "SET GLOBAL require_secure_transport = ON",
    ] {
        mariadb.query(statement);
    }
    let (server, url) = (Server::start(), mariadb.database_url("d"));
    let run = |more: &[&str]| import(&server, &folder, &url, &with(&FOLLOWS, more));
    run(&[]).expect_words(3, &["cannot read", "--tls"]);
    run(&["--tls"]).expect_words(3, &["not trusted", "--tls-ca"]);
    run(&["--tls", "--tls-ca", &key]).expect_words(2, &["--tls-ca", "no certificate"]);
    run(&["--tls", "--tls-ca", &in_folder(&folder, "none")]).expect_words(2, &["cannot be read"]);
    run(&["--tls-ca", &ca]).expect_words(2, &["--tls"]);
    let ran = run(&["--tls", "--tls-ca", &ca, "--json"]);
    assert_verified(&report(&ran, 0), 2);
    assert_eq!(exported(&server), [(1, 2), (3, 4)]);
}

#[test]
fn a_follow_table_becomes_edges_with_their_times_states_and_groups() {
    let Some(tables) = Tables::or_skip("a follow table") else { return };
    let server = Server::start();
    let folder = folder();
    tables.follows();
    tables.run("ALTER TABLE @.follow ADD UNIQUE (uid, follow_uid)");
    tables.run(
        "INSERT INTO @.follow (uid, follow_uid, status, created_at, grp) VALUES \
         (1, 2, 1, '2024-05-06 07:08:09.123', 'a\"b\\'c\\\\ {}'), (1, 3, 1, NULL, '朋友 & 🙂'), \
         (1, 4, 2, '2024-05-06 07:08:09', ''), (1, 5, 0, '2024-05-06 07:08:09', NULL), \
         (1, 6, 9, '2024-05-06 07:08:09', NULL), (2, 1, 1, '2020-01-01 00:00:00', '0')",
    );
    let more = ["--status-column", "status", "--live", "1", "--pending", "2"];
    let more = with(&more, &["--since-column", "created_at", "--time-zone", "+08:00"]);
    let more = with(&more, &["--group-column", "grp", "--where", "status <> 9"]);
    let mapping = with(&FOLLOWS, &more);
    let dry = import(&server, &folder, &tables.url, &with(&mapping, &["--dry-run", "--json"]));
    let said = dry.ok().json();
    assert_eq!((&said["lines"], &said["skipped"]), (&json!(4), &json!(1)), "{said}");
    assert_eq!(said["first"][0]["since"], "2024-05-06T07:08:09.123+08:00", "{said}");
    assert!(exported(&server).is_empty(), "a dry run sends nothing");
    let ran = import(&server, &folder, &tables.url, &with(&mapping, &["--json"]));
    let said = ran.ok().json();
    assert_eq!((&said["accepted"], &said["skipped"]), (&json!(4), &json!(1)), "{said}");
    assert_verified(&said, 4);
    let first = server.get(edge("follow", 1, 2)).ok().clone();
    assert_eq!(first["since"], "2024-05-05T23:08:09.123Z", "{first}");
    assert_eq!(first["group"], "a\"b'c\\ {}", "{first}");
    assert_eq!(server.get(edge("follow", 1, 3)).ok()["group"], "朋友 & 🙂");
    assert_eq!(server.get(edge("follow", 1, 4)).ok()["state"], "pending");
    assert_eq!(server.get(edge("follow", 2, 1)).ok()["group"], Value::Null);
    assert_eq!(exported(&server).len(), 4);
    let again = import(&server, &folder, &tables.url, &mapping);
    assert!(again.ok().stdout.contains("all 4 lines were done before"), "{}", again.stdout);
    assert!(again.stdout.contains("verified: 4 edges"), "{}", again.stdout);
}

#[test]
fn rows_that_can_be_no_edges_are_rejected_with_their_keys() {
    let Some(tables) = Tables::or_skip("wrong rows") else { return };
    let server = Server::start();
    let folder = folder();
    tables.run(
        "CREATE TABLE @.follow (id BIGINT PRIMARY KEY, uid VARCHAR(40) NULL, follow_uid BIGINT, \
         status TINYINT, t BIGINT)",
    );
    tables.run(
        "INSERT INTO @.follow VALUES (1, '1', 2, 1, 1700000000), (2, '0', 2, 1, 0), \
         (3, '-7', 2, 1, 0), (4, '99999999999999999999', 2, 1, 0), (5, 'bob', 2, 1, 0), \
         (6, NULL, 2, 1, 0), (7, '1', 3, 1, 4100000000), (8, '1', 1, 1, 0), (9, '1', 4, 7, 0), \
         (10, '1', 5, 0, 0), (11, '1', 2, 1, 1700000000123), (12, '1', 6, 1, NULL)",
    );
    let rejects = in_folder(&folder, "rejects.ndjson");
    let more = ["--status-column", "status", "--live", "1", "--removed", "0"];
    let more = with(&more, &["--since-column", "t", "--rejects", &rejects, "--json"]);
    let ran = import(&server, &folder, &tables.url, &with(&FOLLOWS, &more));
    let said = report(&ran, 1);
    assert_eq!((&said["accepted"], &said["rejected"]), (&json!(3), &json!(8)), "{said}");
    assert_eq!((&said["skipped"], &said["verification"]["extra"]), (&json!(1), &json!(0)));
    assert_eq!(said["verification"]["missing"], 8, "{said}");
    assert_eq!(exported(&server), [(1, 2), (1, 6)], "the same pair twice is one edge");
    let since = server.get(edge("follow", 1, 2)).ok()["since"].clone();
    assert_eq!(since, "2023-11-14T22:13:20.000Z", "seconds, and the first since stays");
    let collected = fs::read_to_string(&rejects).expect("rejects are collected");
    for id in 2..=9 {
        let key = format!("(id={id})");
        assert_eq!(collected.matches(&key).count(), 1, "{key} in {collected}");
    }
    assert!(collected.contains("lies in the future") && collected.contains("state: it is live"));
}

#[test]
fn a_source_beyond_its_limit_is_rejected_from_there_on() {
    let Some(tables) = Tables::or_skip("limits") else { return };
    let server = Server::start();
    let folder = folder();
    tables.follows();
    tables.run(&format!(
        "INSERT INTO @.follow (uid, follow_uid) SELECT 1, seq FROM {}.seq_2_to_2004",
        tables.name
    ));
    let ran = import(&server, &folder, &tables.url, &with(&FOLLOWS, &["--json"]));
    let said = report(&ran, 1);
    assert_eq!((&said["accepted"], &said["rejected"]), (&json!(2_000), &json!(3)), "{said}");
    assert_eq!(said["verification"]["missing"], 3, "{said}");
    assert!(ran.stderr.contains("id=2001") && ran.stderr.contains("limit_reached"));
    let more = ["--ignore-limits", "--id", "anew", "--json"];
    fs::remove_file(in_folder(&folder, "place")).expect("the place was kept");
    let ran = import(&server, &folder, &tables.url, &with(&FOLLOWS, &more));
    assert_verified(&ran.ok().json(), 2_003);
}

#[test]
fn the_comparison_finds_what_differs() {
    let Some(tables) = Tables::or_skip("differences") else { return };
    let server = Server::start();
    let folder = folder();
    tables.follows();
    tables.run("ALTER TABLE @.follow ADD UNIQUE (uid, follow_uid)");
    tables.run(
        "INSERT INTO @.follow (uid, follow_uid, status) VALUES (1, 2, 1), (1, 3, 1), (2, 3, 2), \
         (3, 1, 1), (3, 5, 0)",
    );
    let more = ["--status-column", "status", "--live", "1", "--pending", "2"];
    let mapping = with(&FOLLOWS, &more);
    assert_verified(
        &import(&server, &folder, &tables.url, &with(&mapping, &["--json"])).ok().json(),
        4,
    );
    server.delete(edge("follow", 1, 2)).expect_change(true, "removed");
    server.put(edge("follow", 1, 9)).expect_change(true, "live");
    // There the edge was removed, here it was put again.
    server.put(edge("follow", 3, 5)).expect_change(true, "live");
    server.post(format!("{}/approve", edge("follow", 2, 3))).expect_change(true, "live");
    let file = in_folder(&folder, "differences.ndjson");
    let verify = with(&mapping, &["--verify-only", "--differences", &file, "--json"]);
    let ran = import(&server, &folder, &tables.url, &verify);
    let report = report(&ran, 1)["verification"].clone();
    let mut found: Vec<String> = Vec::new();
    for difference in report["differences"].as_array().expect("differences are named") {
        let text = |name: &str| difference[name].as_str().unwrap_or("none").to_owned();
        let [what, source, target] = ["what", "source", "target"].map(text);
        found.push(format!("{what} {source} {target} {} {}", text("there"), text("here")));
    }
    found.sort();
    let expected = [
        "different 2 3 pending live",
        "extra 1 9 none live",
        "extra 3 5 none live",
        "missing 1 2 live none",
    ];
    assert_eq!(found, expected, "{report}");
    let collected = fs::read_to_string(&file).expect("differences are collected");
    let all: Vec<Value> =
        collected.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(json!(all), report["differences"]);
    let shown = import(&server, &folder, &tables.url, &with(&mapping, &["--verify-only"]));
    shown.expect_words(1, &["4 edges differ"]);
    assert!(shown.stdout.contains("extra: 1 → 9"), "{}", shown.stdout);
}

#[test]
fn what_cannot_be_read_is_said_before_anything_is_sent() {
    let Some(tables) = Tables::or_skip("wrong mappings") else { return };
    let server = Server::start();
    let folder = folder();
    tables.follows();
    tables.run("CREATE TABLE @.bare (uid BIGINT, follow_uid BIGINT)");
    tables.run("CREATE USER IF NOT EXISTS 'reader'@'127.0.0.1' IDENTIFIED BY 'right'");
    let said = |url: &str, more: &[&str], code: i32, words: &[&str]| {
        import(&server, &folder, url, more).expect_words(code, words);
    };
    let url = &tables.url;
    let ends = ["--source-column", "uid", "--target-column", "follow_uid"];
    said(url, &with(&ends, &["--table", "folow"]), 2, &["no table folow", "bare, follow"]);
    let typo = ["--table", "follow", "--source-column", "uid", "--target-column", "followuid"];
    said(url, &typo, 2, &["no column followuid", "id, uid, follow_uid, status"]);
    said(url, &with(&ends, &["--table", "bare"]), 2, &["no unique key"]);
    said(url, &with(&FOLLOWS, &["--key", "uid"]), 2, &["no unique key on uid", "are id"]);
    said(url, &with(&FOLLOWS, &["--where", "nonsense = 1"]), 2, &["nonsense", "--where"]);
    said(url, &["--table", "follow"], 2, &["--source-column"]);
    said(url, &["--keys", "following:{source}"], 2, &["--keys is about Redis"]);
    said("pg://a/b", &[], 2, &["mysql:// or redis://"]);
    let locked = url.replace("root@", "reader:wr0ng-secret@");
    let ran = import(&server, &folder, &locked, &FOLLOWS);
    ran.expect_words(3, &["reader:***@", "check the address"]);
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("wr0ng"), "{}", ran.stderr);
    let nobody = "mysql://root@127.0.0.1:9/none";
    said(nobody, &FOLLOWS, 3, &["cannot read from", "check the address"]);
    said("redis://127.0.0.1:9/0", &["--keys", "f:{source}"], 3, &["cannot read from"]);
    said("redis://127.0.0.1:9/0", &["--keys", "f:*"], 2, &["{source}"]);
    assert!(exported(&server).is_empty());
}

#[test]
fn sorted_sets_become_edges_from_either_side() {
    let Some(redis) = Redis::start_or_skip("sorted sets") else { return };
    let server = Server::start();
    let sets = [
        "ZADD following:1 1700000000 2 1700000000123 3 0 4",
        "ZADD following:2 1700000000 1 1700000000 bob 1700000000 0",
        "ZADD following:x 1700000000 1",
        "SADD following:7 1",
        "ZADD other:1 1 99",
        "ZADD fans:50 1700000000 60 1700000000 61",
    ];
    tell(&redis, sets.map(str::to_owned));
    let one = folder();
    let rejects = in_folder(&one, "rejects.ndjson");
    let more = ["--keys", "following:{source}", "--rejects", &rejects, "--json"];
    let ran = import(&server, &one, &redis.url(), &more);
    let said = report(&ran, 1);
    assert_eq!((&said["accepted"], &said["rejected"]), (&json!(4), &json!(4)), "{said}");
    assert_eq!(said["verification"]["missing"], 4, "{said}");
    assert_eq!(exported(&server), [(1, 2), (1, 3), (1, 4), (2, 1)]);
    let since = |target| server.get(edge("follow", 1, target)).ok()["since"].clone();
    assert_eq!(since(2), "2023-11-14T22:13:20.000Z");
    assert_eq!(since(3), "2023-11-14T22:13:20.123Z");
    let collected = fs::read_to_string(&rejects).expect("rejects are collected");
    for words in ["following:7: it is a set", "member bob", "member 0", "key following:x"] {
        assert!(collected.contains(words), "{words} in {collected}");
    }
    let other = folder();
    let fans = ["--keys", "fans:{target}", "--score", "none", "--json"];
    assert_verified(&import(&server, &other, &redis.url(), &fans).ok().json(), 2);
    assert_eq!(server.get(edge("follow", 60, 50)).ok()["related"], true);
    server.put(edge("follow", 62, 50)).expect_change(true, "live");
    tell(&redis, ["ZADD fans:50 1 63".to_owned()]);
    let verify = with(&fans, &["--verify-only"]);
    let report = report(&import(&server, &other, &redis.url(), &verify), 1);
    let counts = ["missing", "extra"].map(|name| report["verification"][name].as_u64());
    assert_eq!(counts, [Some(1), Some(1)], "{report}");
}

#[test]
fn a_table_and_sets_go_into_a_cluster() {
    let Some(cluster) = Cluster::start_or_skip("into a cluster") else { return };
    let Some(tables) = Tables::or_skip("into a cluster") else { return };
    let Some(redis) = Redis::start_or_skip("into a cluster") else { return };
    let server = cluster.instance();
    let one = folder();
    tables.follows();
    tables.run(&format!(
        "INSERT INTO @.follow (uid, follow_uid, created_at) \
         SELECT 1 + seq % 50, 1000 + seq, '2024-01-01' FROM {}.seq_1_to_3000",
        tables.name
    ));
    let more = with(&FOLLOWS, &["--since-column", "created_at", "--json"]);
    let ran = import(&server, &one, &tables.url, &more);
    assert_verified(&ran.ok().json(), 3_000);
    let other = folder();
    tell(
        &redis,
        (1..=300).map(|fan| format!("ZADD fans:9 {} {}", 1_700_000_000 + fan, 5_000 + fan)),
    );
    let fans = ["--keys", "fans:{target}", "--json"];
    assert_verified(&import(&server, &other, &redis.url(), &fans).ok().json(), 300);
    poll_until("the target's side", DEADLINE, || {
        let list = server.get(edge_call("follow", 9, "incoming")).ok().clone();
        (list["total"] == 300).then_some(())
    });
}

/// The document's commands, with the addresses of servers that are there.
#[test]
fn the_commands_of_the_document_run() {
    let Some(tables) = Tables::or_skip("the document") else { return };
    let Some(redis) = Redis::start_or_skip("the document") else { return };
    let server = Server::start();
    tables.follows();
    tables.run("INSERT INTO @.follow (uid, follow_uid, created_at) VALUES (1, 2, '2024-01-01')");
    tell(&redis, ["ZADD following:3 1 4", "ZADD fans:5 1 6"].map(str::to_owned));
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/moving-in.md");
    let text = fs::read_to_string(document).expect("the document is there");
    let mut commands = 0;
    for command in text.lines().filter_map(|line| line.strip_prefix("$ guanxi ")) {
        let folder = folder();
        let command = command
            .replace("mysql://reader@db.example/social", &tables.url)
            .replace("redis://cache.example:6379", &redis.url())
            .replace("rejects.ndjson", &in_folder(&folder, "rejects.ndjson"));
        let place = in_folder(&folder, "place");
        let words =
            command.split(' ').map(|word| word.trim_matches('\'')).chain(["--place", &place]);
        Cli::of(&server).run(&words.collect::<Vec<_>>()).ok();
        commands += 1;
    }
    assert_eq!(commands, 4);
    assert_eq!(exported(&server), [(1, 2), (3, 4), (6, 5)]);
}
