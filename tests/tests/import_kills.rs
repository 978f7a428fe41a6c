//! `guanxi import`, killed at twenty moments and run again at once: in the end the exit code, the
//! counts and the file of rejected lines are those of a run that nobody disturbed, as far as the
//! server keeps them.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guanxi_tests::{Cli, Cluster, Options, Ran, Server, freeze_when, poll_until, thaw};
use serde_json::Value;
use tempfile::TempDir;

const MOMENTS: u32 = 20;
/// One part of lines, and about a second's work of a debug build.
const LINES: u64 = 6_000;
/// More lines than one part has.
const MANY_LINES: u64 = 52_000;
/// How often one import is killed.
const KILLS_MAX: u32 = 8;

/// What an import has said and left.
#[derive(Debug, PartialEq)]
struct Outcome {
    code: Option<i32>,
    /// Lines, accepted, changed and rejected.
    counts: [u64; 4],
    rejects: String,
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(TempDir::with_prefix("guanxi-import-kills-").expect("a temporary directory"))
    }

    fn file(&self, format: &str, lines: u64) -> PathBuf {
        let path = self.0.path().join(format!("in.{format}"));
        let content = match format {
            "csv" => csv(lines),
            _ => (1..=lines).map(line).collect(),
        };
        fs::write(&path, content).expect("a file can be written");
        path
    }

    fn rejects(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Edges, and now and then something that cannot be one.
fn line(number: u64) -> String {
    match number {
        number if number.is_multiple_of(97) => format!("nonsense {number}\n"),
        number if number.is_multiple_of(10) => follow(number, number),
        number if number.is_multiple_of(101) => "\n".to_owned(),
        number => follow(number, number + 1),
    }
}

fn follow(source: u64, target: u64) -> String {
    format!("{{\"kind\":\"follow\",\"source\":\"{source}\",\"target\":\"{target}\"}}\n")
}

fn csv(lines: u64) -> String {
    let row = |number: u64| match number {
        number if number.is_multiple_of(97) => format!("follow,{number}\n"),
        number if number.is_multiple_of(10) => format!("follow,{number},{number}\n"),
        number => format!("follow,{number},{}\n", number + 1),
    };
    format!("kind,source,target\n{}", (1..lines).map(row).collect::<String>())
}

fn arguments<'a>(file: &'a Path, rejects: &'a Path) -> [&'a str; 5] {
    let text = |path: &'a Path| path.to_str().expect("a path is text");
    ["import", text(file), "--rejects", text(rejects), "--json"]
}

fn import(server: &Server, file: &Path, rejects: &Path) -> Outcome {
    outcome(&Cli::of(server).run(&arguments(file, rejects)), rejects)
}

#[track_caller]
fn outcome(ran: &Ran, rejects: &Path) -> Outcome {
    let Some(Ok(said)) = ran.stdout.lines().last().map(serde_json::from_str::<Value>) else {
        panic!("it does not say what came of it: {ran:?}");
    };
    let count = |name: &str| said[name].as_u64().unwrap_or_else(|| panic!("{name}: {said}"));
    Outcome {
        code: ran.code,
        counts: ["lines", "accepted", "changed", "rejected"].map(count),
        rejects: fs::read_to_string(rejects).expect("rejected lines are collected"),
    }
}

#[track_caller]
fn assert_same(outcome: &Outcome, undisturbed: &Outcome, when: &str) {
    let Outcome { code, counts, rejects } = outcome;
    assert_eq!((code, counts), (&undisturbed.code, &undisturbed.counts), "{when}");
    for (at, (found, expected)) in rejects.lines().zip(undisturbed.rejects.lines()).enumerate() {
        assert_eq!(found, expected, "{when}: rejected line {at}");
    }
    assert!(*rejects == undisturbed.rejects, "{when}: the file of rejected lines has another end");
}

/// What a run leaves that nobody disturbs, and how long it takes.
fn undisturbed(folder: &Folder, file: &Path) -> (Outcome, Duration) {
    let server = Server::start();
    let begun = Instant::now();
    let outcome = import(&server, file, &folder.rejects("undisturbed"));
    let [lines, accepted, changed, rejected] = outcome.counts;
    assert_eq!((outcome.code, accepted), (Some(1), changed));
    assert!(rejected > lines / 10 && accepted > lines / 2, "{:?}", outcome.counts);
    (outcome, begun.elapsed())
}

#[test]
fn killed_at_twenty_moments_the_command_ends_as_if_it_had_not_been() {
    for format in ["ndjson", "csv"] {
        let folder = Folder::new();
        let file = folder.file(format, LINES);
        let (expected, took) = undisturbed(&folder, &file);
        for moment in (0..MOMENTS).skip(usize::from(format == "csv")).step_by(2) {
            let server = Server::start();
            let rejects = folder.rejects(&format!("rejects-{moment}"));
            let mut running = Cli::of(&server).spawn(&arguments(&file, &rejects), Stdio::piped());
            sleep(took * moment / MOMENTS);
            running.kill().expect("the command is ours");
            // At once: the server may still be at work on what it was sent.
            let outcome = import(&server, &file, &rejects);
            Ran::of(running);
            assert_same(&outcome, &expected, &format!("{format}, moment {moment}"));
        }
    }
}

#[test]
fn the_server_killed_at_any_moment_it_ends_as_if_it_had_not_been() {
    let folder = Folder::new();
    let file = folder.file("ndjson", LINES);
    let (expected, took) = undisturbed(&folder, &file);
    for moment in (0..MOMENTS).step_by(3) {
        let server = Server::start();
        let rejects = folder.rejects(&format!("rejects-{moment}"));
        let running = Cli::of(&server).spawn(&arguments(&file, &rejects), Stdio::piped());
        sleep(took * moment / MOMENTS);
        let stopped = server.kill();
        let ran = Ran::of(running);
        assert!(matches!(ran.code, Some(1 | 3)), "moment {moment}: {ran:?}");
        let server = stopped.restart();
        let outcome = import(&server, &file, &rejects);
        assert_same(&outcome, &expected, &format!("moment {moment}"));
    }
}

#[test]
fn killed_again_and_again_a_long_import_ends_as_if_it_had_not_been() {
    let folder = Folder::new();
    let file = folder.file("ndjson", MANY_LINES);
    let (expected, took) = undisturbed(&folder, &file);
    let server = Server::start();
    let rejects = folder.rejects("rejects");
    for kill in 1..=KILLS_MAX {
        let mut running = Cli::of(&server).spawn(&arguments(&file, &rejects), Stdio::piped());
        sleep(took * kill / KILLS_MAX / 4);
        running.kill().expect("the command is ours");
        Ran::of(running);
    }
    let outcome = import(&server, &file, &rejects);
    assert_same(&outcome, &expected, "after all");
    // Run once more when all is done, and with its rejected lines elsewhere.
    let elsewhere = folder.rejects("elsewhere");
    assert_same(&import(&server, &file, &elsewhere), &expected, "run once more");
}

#[test]
fn killed_imports_into_a_cluster_end_as_if_they_had_not_been() {
    let Some(cluster) = Cluster::start_or_skip("killed imports") else { return };
    let folder = Folder::new();
    let file = folder.file("ndjson", LINES);
    let (expected, took) = undisturbed(&folder, &file);
    let instances = [cluster.instance(), cluster.instance()];
    let rejects = folder.rejects("rejects");
    // A cluster takes lines more slowly: each run comes a little further.
    for kill in 0..KILLS_MAX {
        let asked = &instances[kill as usize % 2];
        let mut running = Cli::of(asked).spawn(&arguments(&file, &rejects), Stdio::piped());
        sleep(took * kill / KILLS_MAX);
        running.kill().expect("the command is ours");
        Ran::of(running);
    }
    let outcome = import(&instances[0], &file, &rejects);
    assert_same(&outcome, &expected, "by two instances in turn");
}

#[test]
fn stopped_for_longer_than_the_server_waits_for_lines_it_goes_on() {
    // More than the way to the server holds, so that it waits for lines while the command is stopped.
    const PADDING: usize = 140;
    let folder = Folder::new();
    let file = folder.0.path().join("in.ndjson");
    let padded = |number| follow(number, number + 1).replace('}', &(" ".repeat(PADDING) + "}"));
    fs::write(&file, (1..=MANY_LINES).map(padded).collect::<String>()).expect("a file");
    let timeout = ("GUANXI_HTTP_BODY_TIMEOUT_MS".to_owned(), "300".to_owned());
    let options = Options { environment: vec![timeout], ..Options::default() };
    let server = Server::start_with(options);
    let arguments = ["import", file.to_str().expect("a path is text"), "--id", "long", "--json"];
    let running = Cli::of(&server).spawn(&arguments, Stdio::piped());
    let done = || server.get("/v1/admin/import/long").body["lines"].as_u64().unwrap_or(0);
    freeze_when(&running, "some lines", Duration::from_secs(90), || done() > 1_000);
    // What it has sent is taken, and then no more comes.
    sleep(Duration::from_secs(5));
    assert!(done() < MANY_LINES, "stopped in the middle");
    thaw(&running);
    let said = Ran::of(running).ok().json();
    let counts = ["lines", "accepted", "changed"].map(|name| said[name].as_u64());
    assert_eq!(counts, [Some(MANY_LINES); 3], "{said}");
}

#[test]
fn more_rejected_lines_than_the_server_keeps_are_counted_and_said() {
    const KEPT: usize = 10_000;
    const BAD: usize = 12_000;
    let (server, folder) = (Server::start(), Folder::new());
    let file = folder.0.path().join("bad.ndjson");
    fs::write(&file, "{\"kind\":\"follow\",\"source\":1}\n".repeat(BAD)).expect("a file");
    let run = |rejects: &Path| {
        let ran = Cli::of(&server).run(&arguments(&file, rejects));
        ran.expect_words(1, &[&format!("{BAD} lines were rejected")]);
        (ran.stderr, fs::read_to_string(rejects).expect("rejected lines are collected"))
    };
    let whole = folder.rejects("whole");
    let (said, collected) = run(&whole);
    assert!(!said.contains("cannot be named"), "{said}");
    assert_eq!(collected.lines().count(), BAD);
    // What an earlier run has collected is not lost by the bound.
    let (said, again) = run(&whole);
    assert!(!said.contains("cannot be named"), "{said}");
    assert!(again == collected, "the same file");
    // Where there is none, the first of them are named, and how many are not.
    let (said, named) = run(&folder.rejects("part"));
    let left_off = format!("{} of them cannot be named", BAD - KEPT);
    assert!(said.contains(&left_off) && said.contains("keeps 10000"), "{said}");
    assert_eq!(named.lines().count(), KEPT);
    assert!(collected.starts_with(&named), "the first of them");
    let place = server.get(format!("/v1/admin/import/{}", id_of(&server, &file)));
    let place = place.ok();
    assert_eq!(place["rejects"].as_array().map(Vec::len), Some(KEPT));
    assert_eq!(place["rejects_left_off"], BAD - KEPT);
}

#[test]
fn what_a_finished_part_was_rejected_is_in_the_file() {
    /// What one part has; of the next one some come, and never its end.
    const PART: usize = 50_000;
    let (server, folder) = (Server::start(), Folder::new());
    let pipe = folder.0.path().join("in.ndjson");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo can be started");
    assert!(made.success());
    let rejects = folder.rejects("rejects");
    let text = |path: &Path| path.to_str().expect("a path is text").to_owned();
    let (file, collected) = (text(&pipe), text(&rejects));
    let arguments = ["import", &file, "--id", "piped", "--rejects", &collected];
    let mut running = Cli::of(&server).spawn(&arguments, Stdio::null());
    let mut lines = fs::File::options().write(true).open(&pipe).expect("the command reads it");
    let bad = "{\"kind\":\"follow\",\"source\":1}\n".repeat(PART + 1_000);
    lines.write_all(bad.as_bytes()).expect("the command reads it");
    let count = || fs::read(&rejects).map_or(0, |bytes| line_breaks(&bytes));
    poll_until("all that was answered", Duration::from_secs(90), || {
        (count() == PART).then_some(())
    });
    running.kill().expect("the command is ours");
    Ran::of(running);
    assert_eq!(count(), PART);
}

fn line_breaks(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// The name of a file's import, as the command tells it.
fn id_of(server: &Server, file: &Path) -> String {
    let ran = Cli::of(server).run(&["import", file.to_str().expect("a path is text"), "--json"]);
    let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    said["id"].as_str().expect("an id").to_owned()
}
