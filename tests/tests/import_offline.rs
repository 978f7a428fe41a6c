//! `guanxi import FILE... --data-dir DIR`: what it makes is what a running service would have made
//! of the same lines, whatever they say, however little memory it has and whenever it is killed.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use guanxi_tests::{
    Cli, Client, Options, Ran, Server, binary, edge, interrupt, poll_until, wait_until_caught_up,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(60);
/// How often an import is killed in the middle.
const KILLS: u64 = 12;
/// Small limits, so that they are met all the time. `mute` excludes two kinds, and is excluded.
const KINDS: &str = r#"
[[kinds]]
name = "tie"
source_type = "user"
target_type = "user"
outgoing_max = 5
groups_max = 2
approval = true
data_bytes_max = 8
expires = true

[[kinds]]
name = "mute"
source_type = "user"
target_type = "user"
excludes = ["tie", "follow"]
outgoing_max = 4

[[kinds]]
name = "ban"
source_type = "user"
target_type = "user"
excludes = ["mute", "tie"]
self_allowed = true

[[kinds]]
name = "member"
source_type = "club"
target_type = "user"
incoming_list = false
groups_max = 3

[[kinds]]
name = "seen"
source_type = "user"
target_type = "post"
outgoing_list = false
outgoing_tally = false
"#;

struct Bench(TempDir);

impl Bench {
    fn new() -> Bench {
        let bench = Bench(TempDir::with_prefix("guanxi-offline-").expect("a temporary directory"));
        bench.write("kinds.toml", KINDS);
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("a file can be written");
        path
    }

    fn config(&self) -> Vec<String> {
        vec!["--config".to_owned(), text(&self.path("kinds.toml")).to_owned()]
    }

    /// A service that knows the kinds, on a directory of this name or a new one.
    fn server(&self) -> Server {
        Server::start_with(Options { arguments: self.config(), ..Options::default() })
    }

    fn arguments(&self, files: &[PathBuf], data: &str, more: &[&str]) -> Vec<String> {
        let mut arguments = vec!["import".to_owned()];
        arguments.extend(files.iter().map(|file| text(file).to_owned()));
        arguments.extend(["--data-dir".to_owned(), text(&self.path(data)).to_owned()]);
        arguments.extend(self.config());
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        arguments
    }

    fn import(&self, files: &[PathBuf], data: &str, more: &[&str]) -> Ran {
        let arguments = self.arguments(files, data, more);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        Cli::default().run(&arguments)
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path is text")
}

fn said(ran: &Ran) -> Value {
    let last = ran.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|_| panic!("it does not say what it did: {ran:?}"))
}

/// Numbers that look random, and are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len() as u64) as usize]
    }
}

fn since(random: &mut Random) -> String {
    format!("2024-03-{:02}T10:00:{:02}.500Z", 1 + random.below(28), random.below(60))
}

/// A line of any sort, right or wrong, about few nodes.
fn any_line(random: &mut Random) -> String {
    let sort = random.below(40);
    let user = 1 + random.below(12);
    match sort {
        0 => return "\n".to_owned(),
        1 => return random.of(&["nonsense\n", "{\"kind\":\"tie\"}\n", "[]\n"]).to_owned(),
        2 | 3 => {
            let private = random.of(&["true", "false"]);
            return format!(
                "{{\"type\":\"node\",\"node_type\":\"user\",\"id\":\"{user}\",\"private\":{private}}}\n"
            );
        }
        4 => {
            let value = random.of(&["7", "-3", "0", "9007199254740991", "9007199254740992"]);
            return format!(
                "{{\"type\":\"counter\",\"kind\":\"view\",\"id\":\"{user}\",\"value\":{value}}}\n"
            );
        }
        5 | 6 => {
            let (kind, group) =
                (random.of(&["tie", "member", "like"]), random.of(&["a", "b", "c", "d"]));
            return format!(
                "{{\"type\":\"group\",\"kind\":\"{kind}\",\"source\":\"{user}\",\"group\":\"{group}\"}}\n"
            );
        }
        _ => {}
    }
    let kinds = ["tie", "tie", "tie", "mute", "ban", "member", "seen", "follow", "like", "block"];
    let kind = random.of(&kinds);
    let mut line = json!({
        "kind": kind, "source": user.to_string(), "target": (1 + random.below(12)).to_string(),
        "since": since(random),
    });
    let mut add = |name: &str, value: Value| {
        line.as_object_mut().expect("an object").insert(name.to_owned(), value);
    };
    if random.one_in(40) {
        add("since", json!("2199-01-01T00:00:00Z"));
    }
    if random.one_in(3) {
        add("group", json!(random.of(&["a", "b", "c"])));
    } else if random.one_in(8) {
        add("group", Value::Null);
    }
    if random.one_in(6) {
        add("state", json!(random.of(&["live", "pending"])));
    }
    if random.one_in(5) {
        add("data", json!(random.of(&["x", "yy", "too long for it"])));
    }
    if random.one_in(5) {
        add("owner", json!((1 + random.below(4)).to_string()));
    }
    if random.one_in(6) {
        let at = random.of(&["2199-05-01T00:00:00Z", "2001-01-01T00:00:00Z"]);
        add("expires_at", json!(at));
    }
    format!("{line}\n")
}

/// The first line tells what the file is.
fn any_lines(seed: u64, lines: usize) -> String {
    let mut random = Random(seed);
    let first =
        "{\"kind\":\"like\",\"source\":1,\"target\":2,\"since\":\"2024-01-01T00:00:00Z\"}\n";
    let others = (1..lines).map(|_| any_line(&mut random));
    std::iter::once(first.to_owned()).chain(others).collect()
}

/// All that a service exports, without what differs from one to the next.
fn exported(client: &Client) -> Vec<Value> {
    let export = client.get("/v1/admin/export");
    let lines = export.text.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
        line.as_object_mut().expect("an object").remove("version");
        line
    });
    lines.collect()
}

/// Drift 0 says that tallies, lists and sizes of groups are those of the rows.
#[track_caller]
fn assert_sound(client: &Client) {
    let answer = client.post_json("/v1/admin/audit", json!({}));
    let report = match answer.status {
        200 => answer.body,
        _ => poll_until("the audit ends", PATIENCE, || {
            let state = client.get("/v1/admin/audit").ok().clone();
            state["running"].is_null().then(|| state["last"].clone())
        }),
    };
    assert_eq!(report["drift"], 0, "{report:#}");
}

#[track_caller]
fn open(bench: &Bench, data: &str) -> Server {
    Server::try_start_in(&bench.path(data)).unwrap_or_else(|said| panic!("{said}"))
}

/// What a running service makes of the same files, one after the other.
fn online(bench: &Bench, files: &[PathBuf], more: &[&str]) -> (Server, [u64; 3], String) {
    let server = bench.server();
    let (mut counts, mut rejected) = ([0; 3], String::new());
    for (number, file) in files.iter().enumerate() {
        let rejects = bench.path(&format!("online-{number}.rejects"));
        let _none_before = fs::remove_file(&rejects);
        let arguments = [&["import", text(file), "--rejects", text(&rejects), "--json"], more];
        let told = said(&Cli::of(&server).run(&arguments.concat()));
        for (count, name) in counts.iter_mut().zip(["accepted", "changed", "rejected"]) {
            *count += told[name].as_u64().unwrap_or_else(|| panic!("{name}: {told}"));
        }
        rejected += &fs::read_to_string(&rejects).expect("rejected lines are collected");
    }
    (server, counts, rejected)
}

#[test]
fn it_makes_what_a_running_service_makes() {
    for (seed, lines, more) in [
        (1, 3_000, &[][..]),
        (0x5eed, 3_000, &["--ignore-limits"]),
        (0xfeed_beef, 20_000, &[]),
        (77, 50, &[]),
    ] {
        let bench = Bench::new();
        let content = any_lines(seed, lines);
        let file = bench.write("in.ndjson", &content);
        let (server, counts, rejected) = online(&bench, std::slice::from_ref(&file), more);
        assert!(counts.iter().all(|count| *count > 5), "{seed}: {counts:?}");
        let rejects = bench.path("offline.rejects");
        let flags = [&["--rejects", text(&rejects), "--json"], more].concat();
        let ran = bench.import(&[file], "data", &flags);
        let told = said(ran.expect(1));
        let offline = fs::read_to_string(&rejects).expect("rejected lines are collected");
        for (line, (found, expected)) in offline.lines().zip(rejected.lines()).enumerate() {
            assert_eq!(found, expected, "{seed}: rejected line {line}");
        }
        assert_eq!(offline.len(), rejected.len(), "{seed}");
        let named = ["accepted", "changed", "rejected"].map(|name| told[name].as_u64().unwrap());
        assert_eq!(named, counts, "{seed}");
        assert_eq!(told["lines"], lines, "{seed}");
        let made = open(&bench, "data");
        let (found, expected) = (exported(&made), exported(&server));
        for (line, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{seed}: exported line {line}");
        }
        assert_eq!(found.len(), expected.len(), "{seed}");
        assert_sound(&made);
        assert_sound(&server);
    }
}

#[test]
fn what_was_made_takes_writes_and_keeps_them() {
    let bench = Bench::new();
    let file = bench.write("in.ndjson", any_lines(5, 2_000));
    bench.import(&[file], "data", &[]).expect(1);
    let server = open(&bench, "data");
    let before = exported(&server);
    server.put(edge("follow", 1_000, 2_000)).expect_change(true, "live");
    let imported = before.iter().find(|line| line["kind"] == "like").expect("a like");
    let id = |name: &str| imported[name].as_str().unwrap().parse::<u64>().unwrap();
    let (source, target) = (id("source"), id("target"));
    server.delete(edge("like", source, target)).expect_change(true, "removed");
    // The log does not have what was imported: whoever follows gets a copy first.
    let standby = Server::try_start_following(&bench.path("standby"), &server.url());
    let standby = standby.unwrap_or_else(|said| panic!("{said}"));
    wait_until_caught_up(&server, &standby);
    assert_eq!(exported(&standby), exported(&server));
    let again = server.kill().restart();
    assert_eq!(exported(&again).len(), before.len());
    assert_eq!(again.get(edge("follow", 1_000, 2_000)).ok()["related"], true);
    assert_sound(&again);
    // It can be copied like any other.
    let backup = bench.path("copy.gxb");
    Cli::of(&again).run(&["backup", "--to", text(&backup)]).expect(0);
    let restored = bench.path("restored");
    let arguments = ["restore", "--from", text(&backup), "--data-dir", text(&restored)];
    Cli::default().run(&arguments).expect(0);
    assert_eq!(exported(&open(&bench, "restored")), exported(&again));
}

#[test]
fn several_files_of_every_format_are_read_in_order_whatever_memory_there_is() {
    let bench = Bench::new();
    let rows = |from: u64, to: u64, second: u64| {
        let row = |source: u64| {
            let (target, day) = (source % 997 + 1_000_000, 1 + source % 28);
            format!("follow,{source},{target},2024-01-{day:02}T00:00:{second:02}Z\n")
        };
        format!("kind,source,target,since\n{}", (from..to).map(row).collect::<String>())
    };
    let compress = |name: &str, program: &str, content: String| {
        let plain = bench.write("plain", content);
        let out = Command::new(program).args(["-c", text(&plain)]).output().expect("it runs");
        assert!(out.status.success(), "{program}: {out:?}");
        bench.write(name, out.stdout)
    };
    // The second file has the same edges with another time, which is not taken.
    let files = [
        bench.write("a.csv", rows(1, 40_000, 1)),
        compress("b.csv.gz", "gzip", rows(30_000, 60_000, 2)),
        compress("c.csv.zst", "zstd", rows(60_000, 90_000, 3)),
    ];
    let mut exports = Vec::new();
    for (data, memory, spills) in [("small", "1", true), ("large", "512", false)] {
        let ran = bench.import(&files, data, &["--memory-mb", memory, "--json"]);
        let told = ran.json();
        assert_eq!((&told["lines"], &told["changed"]), (&json!(100_002), &json!(89_999)), "{told}");
        let spilled = told["spilled_bytes"].as_u64().expect("a number");
        // Edges always wait in a file for their turn.
        assert_eq!(spilled > 8 << 20, spills, "{told}");
        assert!(!bench.path(data).join("spill").exists());
        let server = open(&bench, data);
        assert_sound(&server);
        exports.push(exported(&server));
    }
    assert_eq!(exports[0].len(), 89_999);
    assert!(exports[0] == exports[1]);
    let doubled = exports[0].iter().find(|line| line["source"] == "30001").expect("it is there");
    assert!(doubled["since"].as_str().unwrap().ends_with(":01.000Z"), "{doubled}");
}

#[test]
fn rejected_lines_of_several_files_are_named_by_file_and_can_be_mended() {
    let bench = Bench::new();
    let rejects = bench.path("rejects");
    let flags = ["--rejects", text(&rejects), "--json"];
    let files = [
        bench.write("a.csv", "kind,source,target\nfollow,1,2\nfollow,3,3\n\"follow\",4\n"),
        bench.write("b.csv", "kind,source,target\nnone,1,2\nfollow,5,6\n"),
    ];
    let ran = bench.import(&files, "data", &flags);
    let named = [
        ("line 3", "a.csv", "self_relation"),
        ("line 4", "a.csv", "invalid_argument"),
        ("line 2", "b.csv", "unknown_kind"),
    ];
    for (line, file, code) in named {
        let found = ran
            .stderr
            .lines()
            .any(|said| said.starts_with(line) && said.contains(file) && said.contains(code));
        assert!(found, "{line} of {file}: {}", ran.stderr);
    }
    ran.expect_words(1, &["3 lines were rejected", "correct them"]);
    let collected = fs::read_to_string(&rejects).unwrap();
    assert_eq!(collected.lines().count(), 4, "{collected}");
    assert!(collected.starts_with("kind,source,target,error\nfollow,3,3,"), "{collected}");
    let server = open(&bench, "data");
    assert_eq!(exported(&server).len(), 2);
    let mended = bench.write("mended.csv", collected.replace("3,3", "3,4"));
    let told = said(&Cli::of(&server).run(&["import", text(&mended), "--json"]));
    assert_eq!((&told["changed"], &told["rejected"]), (&json!(1), &json!(2)), "{told}");
    let other = bench.write("c.csv", "kind,target,source\nfollow,1,2\n");
    let files = [files[0].clone(), other];
    let rejects = bench.path("other");
    let ran = bench.import(&files, "none", &["--rejects", text(&rejects)]);
    ran.expect_words(2, &["c.csv has another header line"]);
    assert!(!rejects.exists());
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_made() {
    let bench = Bench::new();
    let good = bench.write("good.ndjson", "{\"kind\":\"follow\",\"source\":1,\"target\":2}\n");
    let csv = bench.write("good.csv", "kind,source,target\nfollow,1,2\n");
    let absent = bench.path("absent");
    let none = bench.path("none");
    let cases: [(&[PathBuf], &[&str], i32, &str); 5] = [
        (&[good.clone(), absent], &[], 1, "absent"),
        (&[good.clone(), csv], &[], 2, "some of the files are CSV"),
        (std::slice::from_ref(&good), &["--id", "x"], 2, "cannot be used with"),
        (std::slice::from_ref(&good), &["--rejects", text(&good)], 2, "the file to import"),
        (std::slice::from_ref(&good), &["--memory-mb", "0"], 2, "memory-mb"),
    ];
    for (files, flags, code, words) in cases {
        bench.import(files, "none", flags).expect_words(code, &[words]);
        assert!(!none.exists(), "{words}: nothing was made");
    }
    bench.write("wrong.toml", "[[kinds]]\nname = \"x\"\nsource_type = \"user\"\n");
    let wrong = text(&bench.path("wrong.toml")).to_owned();
    let files = [text(&good), "--data-dir", text(&none), "--config", &wrong];
    Cli::default().run(&[&["import"], &files[..]].concat()).expect(2);
    // Several files go into a running service one by one.
    let ran = Cli::default().run(&["import", text(&good), text(&good)]);
    ran.expect_words(2, &["one file at a time"]);
    bench.import(std::slice::from_ref(&good), "data", &[]).ok();
    let ran = bench.import(std::slice::from_ref(&good), "data", &[]);
    ran.expect_words(2, &["is a data directory already", "leave --data-dir out"]);
    let server = open(&bench, "data");
    bench.import(std::slice::from_ref(&good), "data", &[]).expect(2);
    assert_eq!(server.get(edge("follow", 1, 2)).ok()["related"], true);
    let ran = bench.import(&[good], "", &[]);
    ran.expect_words(2, &["it holds other files"]);
}

#[test]
fn standard_input_is_read_too() {
    let bench = Bench::new();
    let arguments = bench.arguments(&[PathBuf::from("-")], "data", &["--json"]);
    let mut process = Command::new(binary())
        .args(&arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = process.stdin.take().expect("it is piped");
    input.write_all(b"{\"kind\":\"follow\",\"source\":1,\"target\":2}\n").unwrap();
    drop(input);
    assert_eq!(Ran::of(process).json()["changed"], 1);
    let rejects = bench.path("rejects");
    let ran = bench.import(&[PathBuf::from("-")], "none", &["--rejects", text(&rejects)]);
    ran.expect_words(2, &["can be read only once"]);
}

#[test]
fn a_damaged_file_leaves_nothing_that_can_be_opened() {
    let bench = Bench::new();
    let plain = bench.write("plain", any_lines(9, 5_000));
    let out = Command::new("gzip").args(["-c", text(&plain)]).output().expect("gzip runs").stdout;
    let cut = bench.write("cut.ndjson.gz", &out[..out.len() / 2]);
    bench.import(&[cut], "data", &[]).expect_words(1, &["damaged or cut off behind line"]);
    assert_unfinished(&bench.path("data"));
    let whole = bench.write("whole.ndjson.gz", out);
    bench.import(&[whole], "data", &[]).expect(1);
    assert_sound(&open(&bench, "data"));
}

fn signal(process: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process.id()).expect("it fits")).expect("not zero");
    // It may have ended by itself.
    let _ = kill_process(pid, signal);
}

#[track_caller]
fn assert_unfinished(data: &Path) {
    let said = Server::try_start_in(data).err().expect("an unfinished directory is refused");
    for words in ["is unfinished", "an import with --data-dir", "run that command again"] {
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn killed_at_any_moment_it_begins_anew() {
    let bench = Bench::new();
    let lines = any_lines(3, 1_000);
    let many: String = (1..=60_000_u64)
        .map(|source| {
            let target = source % 500 + 1_000_000;
            format!("{{\"kind\":\"follow\",\"source\":{source},\"target\":{target},\"since\":\"2024-01-01T00:00:00Z\"}}\n")
        })
        .collect();
    let file = bench.write("in.ndjson", lines + &many);
    let rejects = bench.path("rejects");
    let flags = ["--memory-mb", "1", "--rejects", text(&rejects), "--json"];
    let begun = std::time::Instant::now();
    let undisturbed =
        said(bench.import(std::slice::from_ref(&file), "undisturbed", &flags).expect(1));
    let took = begun.elapsed();
    let collected = fs::read(&rejects).unwrap();
    let arguments = bench.arguments(std::slice::from_ref(&file), "data", &flags);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let data = bench.path("data");
    let mut unfinished = 0;
    for round in 0..KILLS {
        // Every other one begins over what the one before has left.
        if round % 2 == 0 && data.exists() {
            fs::remove_dir_all(&data).unwrap();
        }
        let _none_before = fs::remove_file(&rejects);
        let mut process = Cli::default().spawn(&arguments, Stdio::null());
        sleep(took * u32::try_from(round).unwrap() / u32::try_from(KILLS).unwrap());
        match round % 3 {
            2 => interrupt(&process),
            _ => signal(&process, Signal::KILL),
        }
        process.wait().unwrap();
        if data.join("LANDING").exists() {
            unfinished += 1;
            assert_unfinished(&data);
        } else if data.join("GUANXI").exists() {
            // It had ended already.
            assert_sound(&open(&bench, "data"));
            fs::remove_dir_all(&data).unwrap();
        }
    }
    assert!(unfinished > 0, "none of {KILLS} was killed in the middle");
    let _none_before = fs::remove_file(&rejects);
    let told = said(bench.import(&[file], "data", &flags).expect(1));
    for name in ["lines", "accepted", "changed", "rejected", "rows", "position"] {
        assert_eq!(told[name], undisturbed[name], "{name}");
    }
    assert!(fs::read(&rejects).unwrap() == collected);
    let server = open(&bench, "data");
    assert_sound(&server);
    assert!(exported(&server) == exported(&open(&bench, "undisturbed")));
}

#[test]
fn a_full_disk_leaves_an_unfinished_directory() {
    let bench = Bench::new();
    let rows: String = (1..=30_000_u64).map(|source| format!("like,{source},7\n")).collect();
    let file = bench.write("in.csv", format!("kind,source,target\n{rows}"));
    let arguments = bench.arguments(std::slice::from_ref(&file), "data", &["--memory-mb", "1"]);
    for kib in [0, 1, 64, 600] {
        let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$@\"");
        let process = Command::new("bash")
            .args(["-c", &script, "bash"])
            .arg(binary())
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bash runs");
        Ran::of(process).expect(3);
        assert_unfinished(&bench.path("data"));
    }
    bench.import(&[file], "data", &[]).expect(0);
    assert_sound(&open(&bench, "data"));
}
