//! Commands around the service: demo, doctor, watch, completions and the manual; and how all
//! commands treat terminals, pipes, the environment and servers that are none.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use guanxi_tests::{
    Cli, Ran, Server, edge, node_run, nodes, poll_until, primary_options, put_followers, shared,
    walk_ids,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// For something that takes milliseconds, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// The commands as `guanxi --help` lists them.
fn commands(cli: &Cli) -> Vec<String> {
    let help = cli.run(&["--help"]).ok().stdout.clone();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    let names: Vec<String> =
        listed.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect();
    for expected in ["serve", "put", "get", "list", "watch", "demo", "doctor", "man"] {
        assert!(names.iter().any(|name| name == expected), "{expected} in {names:?}");
    }
    names
}

#[test]
fn every_command_has_help_completions_and_a_page() {
    let cli = Cli::default();
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man/man1");
    cli.run(&["man", "--out", pages.to_str().unwrap()]).ok();
    let manual = cli.run(&["man"]).ok().stdout.clone();
    let shells = ["bash", "elvish", "fish", "powershell", "zsh"];
    let completions = shells.map(|shell| cli.run(&["completions", shell]).ok().stdout.clone());
    for command in commands(&cli).iter().filter(|command| *command != "help") {
        let help = cli.run(&[command, "--help"]).ok().stdout.clone();
        assert!(help.contains(&format!("Usage: guanxi {command}")), "{help}");
        // A manual's hyphens are escaped.
        let named = format!("guanxi-{command}(1)").replace('-', "\\-");
        assert!(manual.contains(&named), "{command} in the manual");
        let page = fs::read_to_string(pages.join(format!("guanxi-{command}.1")))
            .unwrap_or_else(|error| panic!("the page of {command}: {error}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{page}");
        for (shell, text) in shells.iter().zip(&completions) {
            assert!(text.contains(command.as_str()), "{command} for {shell}");
        }
    }
    assert!(pages.join("guanxi-groups-rename.1").exists(), "pages of commands below commands");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    cli.run(&["man", "--out", file.to_str().unwrap()]).expect_words(3, &["cannot write", "--out"]);
}

#[test]
fn the_demo_makes_a_graph_worth_looking_at() {
    let server = Server::start();
    let cli = Cli::of(&server);
    let said = cli.run(&["demo", "--users", "300"]).ok().stdout.clone();
    assert!(said.starts_with("300 users, 150 posts, "), "{said}");
    let mut tried = 0;
    for line in said.lines().filter_map(|line| line.strip_prefix("  guanxi ")) {
        tried += 1;
        let (command, what) = line.split_once("  # ").expect("a command and what it shows");
        let ran = cli.run(&command.split_whitespace().collect::<Vec<_>>());
        match what.starts_with("refused") {
            true => ran.expect_words(1, &["excluded"]),
            false => {
                let shown = ran.ok().stdout.lines().count();
                assert!(shown >= 3, "{command} shows little:\n{}", ran.stdout);
            }
        }
    }
    assert!(tried >= 8, "{said}");

    // What is there may be somebody's: nothing is added unasked.
    cli.run(&["demo"]).expect_words(1, &["not empty", "--into-existing"]);
    let tallies = |server: &Server| -> Vec<Value> {
        let ids: Vec<String> = (1..=300).map(|id: u32| id.to_string()).collect();
        let words = ["follow", "like", "favorite"];
        let body = serde_json::json!({"ids": ids, "kinds": words});
        server.post_json("/v1/tallies", body).ok()["results"].as_array().unwrap().clone()
    };
    let views = |server: &Server| {
        let body = serde_json::json!({"ids": ["1", "2"], "kinds": ["view"]});
        server.post_json("/v1/tallies", body).ok().clone()
    };
    let (before, seen) = (tallies(&server), views(&server));
    assert!(before.iter().any(|tally| tally["tallies"]["like"]["owned"].as_i64() > Some(5)));
    let again = cli.run(&["demo", "--users", "300", "--into-existing", "--json"]).json();
    assert_eq!(again["users"], 300);
    assert_eq!(tallies(&server), before, "the same demo twice is the same graph");
    assert_eq!(views(&server), seen, "and counts once");
    let other = Server::start();
    Cli::of(&other).run(&["demo", "--users", "300"]).ok();
    assert_eq!(tallies(&other), before, "a seed gives the same graph everywhere");
    Cli::of(&other).run(&["demo", "--users", "9"]).expect_words(2, &["--users"]);
}

#[test]
fn a_demo_that_is_stopped_says_how_to_go_on() {
    let server = Server::start();
    let demo = Running::start(&Cli::of(&server), &["demo", "--users", "100000"]);
    poll_until("the first edges", SOON, || {
        let body = serde_json::json!({"ids": ["1"], "kinds": ["follow"]});
        let answer = server.post_json("/v1/tallies", body);
        let tally = &answer.ok()["results"][0]["tallies"]["follow"];
        (tally["incoming"].as_i64() > Some(0)).then_some(())
    });
    demo.interrupt().expect_words(3, &["a part of the graph", "--into-existing"]);
}

/// What doctor says about a thing: verdict and message.
#[track_caller]
fn finding(ran: &Ran, check: &str) -> (String, String) {
    let findings = ran.json_lines();
    let found = findings.iter().find(|finding| finding["check"] == check);
    let found = found.unwrap_or_else(|| panic!("nothing about {check} in {findings:?}"));
    let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(text("verdict") == "ok", found["next"].is_null(), "advice where it is needed");
    (text("verdict"), text("message"))
}

#[test]
fn doctor_finds_a_healthy_server_healthy() {
    let server = shared();
    let cli = Cli::of(&server);
    let directory = server.data_directory().to_str().unwrap();
    let said = cli.run(&["doctor", "--data-dir", directory]).ok().stdout.clone();
    let checks = ["server", "version", "clock", "ready", "positions", "queue", "directory"];
    for check in checks {
        let prefix = format!("ok    {check}");
        assert!(said.lines().any(|line| line.starts_with(&prefix)), "{check} in\n{said}");
    }
    assert!(!said.contains("fail"), "{said}");
    let ran = cli.run(&["doctor", "--data-dir", directory, "--json"]);
    let (verdict, message) = finding(ran.ok(), "directory");
    assert!(verdict == "ok" && message.contains("in use"), "{message}");
}

#[test]
fn doctor_says_what_is_wrong_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    // Accepts and says nothing sensible.
    answer_all(taken, "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
    let config = folder.path().join("guanxi.toml");
    fs::write(&config, "[http]\nlisten = \"127.0.0.1:0\"\nsurprise = 1\n").unwrap();
    let foreign = folder.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("letter.txt"), "dear").unwrap();
    let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let words = ["doctor", "--json", "--config", &path(&config), "--data-dir", &path(&foreign)];
    let ran = Cli::default().with("GUANXI_SERVER", &address.to_string()).run(&words);
    ran.expect_words(1, &["4 things are wrong"]);
    for (check, words) in [
        ("settings", "surprise"),
        ("server", "never does"),
        ("port", "taken"),
        ("directory", "other files"),
    ] {
        let (verdict, message) = finding(&ran, check);
        assert_eq!(verdict, "fail", "{check}: {message}");
        assert!(message.contains(words), "{check}: {message}");
    }

    let free = free_address();
    let nobody = Cli::default().with("GUANXI_SERVER", &free.to_string());
    let said = nobody.run(&["doctor"]);
    said.expect(1);
    assert!(said.stdout.contains("fail  server"), "{}", said.stdout);
    assert!(said.stdout.contains("start it with `guanxi serve`"), "{}", said.stdout);
    assert!(said.stdout.contains("ok    port"), "{}", said.stdout);
}

#[test]
fn doctor_sees_a_directory_that_nobody_uses() {
    let server = Server::start();
    let cli = Cli::of(&server);
    let stopped = server.terminate();
    let directory = stopped.data_directory().to_str().unwrap();
    let ran = cli.run(&["doctor", "--json", "--data-dir", directory]);
    ran.expect(1);
    let (verdict, message) = finding(&ran, "directory");
    assert!(verdict == "ok" && message.contains("free"), "{message}");
    stopped.restart();
}

/// A command that runs until it is told to stop, and the lines that it prints.
struct Running {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(cli: &Cli, words: &[&str]) -> Running {
        let mut process = cli.spawn(words, Stdio::piped());
        let stdout: ChildStdout = process.stdout.take().unwrap();
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Running { process, lines }
    }

    #[track_caller]
    fn line(&self) -> String {
        self.lines.recv_timeout(SOON).expect("a line in time")
    }

    #[track_caller]
    fn interrupt(self) -> Ran {
        let id = i32::try_from(self.process.id()).unwrap();
        kill_process(Pid::from_raw(id).unwrap(), Signal::INT).unwrap();
        Ran::of(self.process)
    }
}

/// Until the watcher has begun, nothing that is written is sure to be seen.
fn wait_for_watchers(server: &Server, count: u32) {
    let line = format!("guanxi_watchers {count}");
    poll_until("the watcher", SOON, || {
        let metrics = server.get("/metrics").text;
        metrics.lines().any(|found| found == line).then_some(())
    });
}

#[test]
fn watch_prints_changes_until_it_is_interrupted() {
    let server = Server::start();
    let cli = Cli::of(&server);
    let [a, b, c] = nodes();
    let everything = Running::start(&cli, &["watch"]);
    let filtered =
        Running::start(&cli, &["watch", "--json", "--kinds", "follow", "--ops", "delete"]);
    wait_for_watchers(&server, 2);
    server.put(edge("follow", a, b)).ok();
    let line = everything.line();
    assert!(line.ends_with(&format!("put      follow {a} → {b}  live")), "{line}");
    server.put(edge("block", a, c)).ok();
    server.delete(edge("follow", a, b)).ok();
    let line = everything.line();
    assert!(line.ends_with(&format!("put      block {a} → {c}  live")), "{line}");
    assert!(everything.line().contains("delete"));
    let record: Value = serde_json::from_str(&filtered.line()).unwrap();
    assert_eq!((&record["op"], &record["kind"]), (&"delete".into(), &"follow".into()));
    let id = record["id"].as_str().unwrap().to_owned();
    for running in [everything, filtered] {
        running.interrupt().ok();
    }

    // From an event on, and from the beginning.
    server.put(edge("follow", b, c)).ok();
    let after = Running::start(&cli, &["watch", "--from", &id]);
    assert!(after.line().contains(&format!("follow {b} → {c}")));
    after.interrupt().ok();
    let all = Running::start(&cli, &["watch", "--from", "earliest", "--json"]);
    let ops: Vec<Value> =
        (0..4).map(|_| serde_json::from_str::<Value>(&all.line()).unwrap()["op"].take()).collect();
    assert_eq!(ops, ["put", "put", "delete", "put"]);
    all.interrupt().ok();

    cli.run(&["watch", "--from", "yesterday"]).expect_words(2, &["from"]);
    cli.run(&["watch", "--kinds", "nope"]).expect_words(1, &["unknown_kind"]);
    cli.run(&["watch", "--ops", "fly"]).expect_words(2, &["ops", "fly"]);
}

#[test]
fn watch_goes_on_after_a_restart() {
    let server = Server::start_with(primary_options());
    let cli = Cli::of(&server);
    let [a, b, c, d] = nodes();
    let watch = Running::start(&cli, &["watch", "--json"]);
    wait_for_watchers(&server, 1);
    let target = |line: String| {
        let record: Value = serde_json::from_str(&line).unwrap();
        record["target"].as_str().unwrap().parse::<u64>().unwrap()
    };
    server.put(edge("follow", a, b)).ok();
    assert_eq!(target(watch.line()), b);
    let server = server.kill().restart();
    // Committed before the watcher is back: it must be seen all the same, and once.
    server.put(edge("follow", a, c)).ok();
    assert_eq!(target(watch.line()), c);
    server.put(edge("follow", a, d)).ok();
    assert_eq!(target(watch.line()), d);
    let ended = watch.interrupt();
    ended.expect_words(0, &["connecting again"]);
}

#[test]
fn a_closed_pipe_ends_a_command_without_a_word() {
    let server = shared();
    let [target] = nodes();
    let followers = node_run(3_000);
    put_followers(&server, "follow", target, &followers);
    let id = target.to_string();
    let words = ["list", "follow", &id, "incoming", "--all"];
    let mut process = Cli::of(&server).spawn(&words, Stdio::piped());
    let mut stdout = BufReader::new(process.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    drop(stdout);
    Ran::of(process).ok();
    assert!(first.starts_with("id"), "{first}");
    assert_eq!(walk_ids(&server, &format!("/v1/edges/follow/{id}/incoming"), 1000).len(), 3_000);
}

#[test]
fn a_full_disk_is_told() {
    let server = shared();
    let [source, target] = nodes();
    let (source, target) = (source.to_string(), target.to_string());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let ran = Cli::of(&server).run_into(&["get", "follow", &source, &target], full);
    ran.expect_words(3, &["cannot write the output", "make room"]);
}

/// Runs a command with a terminal as its output.
fn on_a_terminal(cli: &Cli, words: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let terminal = File::options().write(true).open(name.to_str().unwrap()).unwrap();
    cli.run_into(words, terminal).ok();
    // The far end of a terminal that nobody has open any more is an error, after all the text.
    let mut shown = Vec::new();
    let mut master = File::from(master);
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = master.read(&mut piece) {
        shown.extend_from_slice(&piece[..count]);
    }
    String::from_utf8(shown).unwrap()
}

#[test]
fn colour_is_for_terminals_that_want_it() {
    let server = shared();
    let cli = Cli::of(&server).with("TERM", "xterm");
    let words = ["kinds", "list"];
    assert!(on_a_terminal(&cli, &words).contains("\x1b["), "colour on a terminal");
    let plain = [
        on_a_terminal(&cli.clone().with("NO_COLOR", "1"), &words),
        on_a_terminal(&cli.clone().with("TERM", "dumb"), &words),
        on_a_terminal(&cli, &["kinds", "list", "--json"]),
        cli.run(&words).ok().stdout.clone(),
    ];
    for text in plain {
        assert!(text.contains("follow") && !text.contains('\x1b'), "{text}");
    }
}

#[test]
fn what_edges_carry_never_steers_the_terminal() {
    let server = shared();
    let [source, target] = nodes();
    let body = serde_json::json!({"data": "\u{1b}[31mred\u{7}"});
    server.put_json(edge("follow", source, target), body).ok();
    let cli = Cli::of(&server);
    let (source, target) = (source.to_string(), target.to_string());
    for words in
        [&["get", "follow", &source, &target][..], &["list", "follow", &source, "outgoing"]]
    {
        let shown = cli.run(words).ok().stdout.clone();
        assert!(shown.contains("\\u{1b}[31mred\\u{7}") && !shown.contains('\x1b'), "{shown}");
    }
}

#[test]
fn the_flag_wins_over_the_environment_and_the_key_is_sent() {
    let server = shared();
    let [a, b] = nodes();
    let (a, b) = (a.to_string(), b.to_string());
    let nowhere = Cli::default().with("GUANXI_SERVER", &free_address().to_string());
    nowhere.run(&["get", "follow", &a, &b]).expect(3);
    nowhere.run(&["get", "follow", &a, &b, "--server", &server.url()]).ok();

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let heads = answer_all(
        listener,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 17\r\n\r\n{\"related\":false}",
    );
    let cli = Cli::default().with("GUANXI_KEY", "ak.secret");
    cli.run(&["get", "follow", &a, &b, "--server", &address]).ok();
    let head = heads.recv_timeout(SOON).unwrap().to_ascii_lowercase();
    assert!(head.contains("\r\nauthorization: bearer ak.secret\r\n"), "{head}");
    let bad = Cli::default().with("GUANXI_KEY", "line\nbreak");
    bad.run(&["get", "follow", &a, &b, "--server", &address]).expect_words(2, &["GUANXI_KEY"]);
}

#[test]
fn a_server_that_is_none_of_ours_is_told_apart() {
    let answers = [
        "HTTP/1.1 404 Not Found\r\ncontent-length: 6\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\ncontent-length: 600\r\n\r\n{\"cut",
        "SSH-2.0-OpenSSH_9\r\n",
        "",
    ];
    for answer in answers {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        answer_all(listener, answer);
        let ran = Cli::default().run(&["put", "follow", "1", "2", "--server", &address]);
        ran.expect_words(3, &["guanxi: "]);
        assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
        assert!(ran.stderr.lines().count() >= 2, "says what to do: {}", ran.stderr);
    }
}

/// Answers every connection with this text, and passes on the heads of the requests.
fn answer_all(listener: TcpListener, answer: &'static str) -> mpsc::Receiver<String> {
    let (sender, heads) = mpsc::channel();
    thread::spawn(move || {
        for mut connection in listener.incoming().map_while(Result::ok) {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(connection.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            let _ = connection.write_all(answer.as_bytes());
            let _ = sender.send(String::from_utf8_lossy(&head).into_owned());
        }
    });
    heads
}

/// An address of which nobody listens at the moment.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
