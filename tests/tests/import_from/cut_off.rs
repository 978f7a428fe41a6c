//! Imports that were killed or stopped in the middle: whoever runs the command again has every row
//! once, and is told of all runs together.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use guanxi_services::Redis;
use guanxi_tests::{Cli, Ran, Server, edge, freeze_when, outlast_stops};
use serde_json::json;

use super::{
    DEADLINE, MANY, PAIRS, Tables, arguments, assert_verified, exported, folder, import, in_folder,
    lines_done, report, tell, with,
};

#[test]
fn a_killed_import_goes_on_behind_its_last_row_whatever_changed_before_it() {
    let Some(tables) = Tables::or_skip("a killed import") else { return };
    let server = Server::start();
    let folder = folder();
    tables.many();
    let id = "killed";
    let mapping = with(&PAIRS, &["--id", id, "--no-verify", "--json"]);
    let all = arguments(&folder, &tables.url, &mapping);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut running = Cli::of(&server).spawn(&all, Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    running.kill().expect("the command is ours");
    Ran::of(running);
    // What the server has of the part may still come.
    let done = lines_done(&server, id);
    assert!(done < MANY, "killed in the middle, at {done}");
    // Rows before the place go: whoever counted rows would now pass over others.
    tables.run("DELETE FROM @.pairs WHERE uid <= 100");
    // What users removed since does not come back.
    server.delete(edge("follow", 150, 151)).expect_change(true, "removed");
    let ran = Cli::of(&server).run(&all);
    let said = ran.ok().json();
    assert_eq!((&said["lines"], &said["rejected"]), (&json!(MANY), &json!(0)), "{said}");
    assert!(said["new_lines"].as_u64() <= Some(MANY - done), "no row is sent twice: {said}");
    let mut expected: Vec<(u64, u64)> = (1..=MANY).map(|uid| (uid, uid + 1)).collect();
    expected.retain(|(uid, _)| *uid != 150);
    assert!(exported(&server) == expected, "every row once");
    // The comparison finds what went meanwhile, on either side.
    let verify = with(&PAIRS, &["--verify-only", "--where", "uid <= 1000", "--json"]);
    let report = report(&import(&server, &folder, &tables.url, &verify), 1);
    assert_eq!(report["verification"]["missing"], 1, "{report}");
    assert_eq!(report["verification"]["extra"], 0, "nodes that the source lost are not its own");
    // Without the file nobody knows the place.
    fs::remove_file(in_folder(&folder, "place")).expect("the place was kept");
    Cli::of(&server).run(&all).expect_words(1, &["does not tell where", "--place", "--id"]);
}

#[test]
fn an_import_goes_on_right_after_its_command_was_killed() {
    let Some(tables) = Tables::or_skip("killed and run again") else { return };
    let server = Server::start();
    let folder = folder();
    tables.many();
    let id = "at-once";
    let more = with(&PAIRS, &["--id", id, "--no-verify", "--json"]);
    let all = arguments(&folder, &tables.url, &more);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let mut running = Cli::of(&server).spawn(&all, Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    running.kill().expect("the command is ours");
    let said = Cli::of(&server).run(&all).ok().json();
    Ran::of(running);
    assert_eq!((&said["lines"], &said["changed"]), (&json!(MANY), &json!(MANY)), "{said}");
    let expected: Vec<(u64, u64)> = (1..=MANY).map(|uid| (uid, uid + 1)).collect();
    assert!(exported(&server) == expected, "every row once");
}

#[test]
fn counts_and_rejected_rows_are_told_of_all_runs_together() {
    const ROWS: u64 = 12_000;
    let Some(tables) = Tables::or_skip("killed with rejects") else { return };
    tables
        .run("CREATE TABLE @.pairs (uid BIGINT, follow_uid BIGINT, status INT, PRIMARY KEY (uid))");
    // Some follow themselves, which nobody can, and some are no edges any more.
    tables.run(&format!(
        "INSERT INTO @.pairs SELECT seq, seq + (seq % 10 <> 0), seq % 7 <> 0 \
         FROM {}.seq_1_to_{ROWS}",
        tables.name
    ));
    let begun = Instant::now();
    let mut undisturbed = None;
    let mut took = Duration::ZERO;
    for moment in 0..6_u32 {
        let (server, folder) = (Server::start(), folder());
        let rejects = in_folder(&folder, "rejects.ndjson");
        let more = ["--no-verify", "--json", "--rejects", &rejects];
        let all = arguments(&folder, &tables.url, &with(&PAIRS, &more));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        // Killed twice: the second run has just begun to find out where the first one was.
        for kill in 0..moment.min(2) {
            let mut running = Cli::of(&server).spawn(&all, Stdio::piped());
            std::thread::sleep(took * moment / 6 / (1 + kill));
            running.kill().expect("the command is ours");
            Ran::of(running);
        }
        let said = report(&Cli::of(&server).run(&all), 1);
        let counts = ["lines", "accepted", "changed", "rejected", "skipped"];
        let counts = counts.map(|name| said[name].clone());
        let left = (counts, fs::read_to_string(&rejects).expect("they are collected"));
        if moment == 0 {
            took = begun.elapsed();
            assert_eq!((&said["rejected"], &said["skipped"]), (&json!(1_029), &json!(1_714)));
            assert_eq!(said["lines"], ROWS - 1_714, "{said}");
        }
        let expected = undisturbed.get_or_insert_with(|| left.clone());
        assert_eq!(left.0, expected.0, "moment {moment}");
        assert!(left.1 == expected.1, "moment {moment}: {}", left.1);
    }
}

#[test]
fn a_killed_walk_over_sets_goes_on_and_misses_nothing() {
    let Some(redis) = Redis::start_or_skip("a killed walk") else { return };
    let server = Server::start();
    let folder = folder();
    // Sets of all sizes: some in one piece, some walked in steps.
    let set = |source: u64| {
        let size = if source.is_multiple_of(100) { 1_500 } else { 1 + source % 40 };
        let members = (0..size).map(|at| format!(" {} {}", 1_700_000_000 + at, 10_000 + at));
        (size, format!("ZADD following:{source}{}", members.collect::<String>()))
    };
    let (sizes, commands): (Vec<u64>, Vec<String>) = (1..=1_500).map(set).unzip();
    let all: u64 = sizes.iter().sum();
    tell(&redis, commands);
    let id = "walk";
    let more = ["--keys", "following:{source}", "--id", id, "--json"];
    let arguments = arguments(&folder, &redis.url(), &more);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut running = Cli::of(&server).spawn(&arguments, Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    running.kill().expect("the command is ours");
    Ran::of(running);
    let before = lines_done(&server, id);
    assert!(before < all, "killed in the middle, at {before}");
    let said = Cli::of(&server).run(&arguments).ok().json();
    assert_verified(&said, all);
    assert_eq!(exported(&server).len() as u64, all);
    let new = said["new_lines"].as_u64().expect("a number");
    // It goes on at a step of the walk, and does not begin again.
    assert!(new < all, "{new} of {all} lines after {before}");
}

#[test]
fn stopped_and_continued_again_and_again_no_edge_is_missed() {
    let Some(tables) = Tables::or_skip("stopped and continued") else { return };
    let Some(redis) = Redis::start_or_skip("stopped and continued") else { return };
    tables.many();
    let sets = (1..=MANY).map(|source| format!("ZADD following:{source} 1 {}", source + 1));
    tell(&redis, sets);
    let sources = [
        (tables.url.clone(), PAIRS.to_vec()),
        (redis.url(), vec!["--keys", "following:{source}", "--score", "none"]),
    ];
    let expected: Vec<(u64, u64)> = (1..=MANY).map(|uid| (uid, uid + 1)).collect();
    for (url, mapping) in sources {
        let (server, folder) = (Server::start(), folder());
        let all = arguments(&folder, &url, &with(&mapping, &["--no-verify", "--json"]));
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let said = outlast_stops(Cli::of(&server).spawn(&all, Stdio::piped())).ok().json();
        assert_eq!(said["accepted"], said["lines"], "{url}: {said}");
        assert!(exported(&server) == expected, "{url}: every edge once");
    }
}
