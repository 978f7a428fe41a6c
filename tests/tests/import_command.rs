//! `guanxi import` and `guanxi export`: files of every sort, rejects files, and runs that are
//! killed in the middle, on either side, and go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use guanxi_tests::{
    Cli, Ran, Server, edge, freeze_when, interrupt, node_run, nodes, poll_until, primary_options,
    shared, start_standby, tally, thaw,
};
use serde_json::{Value, json};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);
/// More than the first part has, few enough for a debug build.
const MANY_LINES: u64 = 60_000;

fn folder() -> TempDir {
    TempDir::with_prefix("guanxi-import-").expect("a temporary directory")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path is text")
}

fn write(folder: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.path().join(name);
    fs::write(&path, content).expect("a file can be written");
    path
}

fn import(server: &Server, file: &Path, more: &[&str]) -> Ran {
    let arguments = [&["import", text(file)], more].concat();
    Cli::of(server).run(&arguments)
}

fn follow(source: u64, target: u64) -> String {
    format!("{{\"kind\":\"follow\",\"source\":\"{source}\",\"target\":\"{target}\"}}\n")
}

/// Line n is the edge n → n + 1.
fn many() -> String {
    (1..=MANY_LINES).map(|source| follow(source, source + 1)).collect()
}

fn lines_done(server: &Server, id: &str) -> u64 {
    let place = server.get(format!("/v1/admin/import/{id}"));
    place.body["lines"].as_u64().unwrap_or(0)
}

/// Removes some of the edges that are there already, as users do.
fn remove_some(server: &Server, done: u64) -> Vec<u64> {
    let removed: Vec<u64> = (1..=done).step_by(usize::try_from(done / 5).unwrap().max(1)).collect();
    for source in &removed {
        server.delete(edge("follow", *source, source + 1)).expect_change(true, "removed");
    }
    removed
}

#[track_caller]
fn assert_whole(server: &Server, removed: &[u64]) {
    let export = server.get("/v1/admin/export?kind=follow");
    let mut expected: Vec<u64> = (1..=MANY_LINES).collect();
    expected.retain(|source| !removed.contains(source));
    let sources = export.text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        line["source"].as_str().expect("a source").parse::<u64>().expect("an id")
    });
    let found: Vec<u64> = sources.collect();
    assert_eq!(found.len(), expected.len());
    assert!(found == expected, "every line once, and nothing that was removed");
}

#[test]
fn files_roundtrip_in_every_format_and_compression() {
    let server = Server::start();
    let folder = folder();
    let source = write(&folder, "in.ndjson", follow(1, 2) + &follow(3, 4));
    let first = import(&server, &source, &["--json"]);
    assert_eq!(first.json()["changed"], 2);
    for name in ["a.ndjson", "a.csv", "a.ndjson.gz", "a.csv.zst", "a.jsonl.zst"] {
        let out = folder.path().join(name);
        let ran = Cli::of(&server).run(&["export", "--out", text(&out), "--json"]);
        let said = ran.json();
        assert!(said["position"].as_str().is_some_and(|position| !position.is_empty()), "{said}");
        let other = Server::start();
        let ran = import(&other, &out, &["--json"]);
        let said = ran.json();
        assert_eq!((&said["changed"], &said["rejected"]), (&json!(2), &json!(0)), "{name}: {said}");
        assert_eq!(other.get(edge("follow", 3, 4)).ok()["related"], true);
    }
    let left: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 6, "nothing unfinished is left: {left:?}");
    let stdout = Cli::of(&server).run(&["export", "--kind", "follow", "--format", "csv"]);
    assert_eq!(stdout.expect(0).stdout.lines().count(), 3);
    assert!(stdout.stderr.contains("2 lines") || stdout.stderr.contains("3 lines"));
    let again = import(&server, &source, &[]);
    assert!(again.ok().stdout.contains("all 2 lines were done before"), "{}", again.stdout);
    let anew = import(&server, &source, &["--id", "anew", "--json"]);
    assert_eq!((&anew.json()["accepted"], &anew.json()["changed"]), (&json!(2), &json!(0)));
}

#[test]
fn a_file_that_is_not_what_it_says_is_refused_before_anything_is_sent() {
    let server = shared();
    let folder = folder();
    let [source, target] = nodes();
    let plain = follow(source, target);
    for (name, words) in [("a.ndjson.gz", "plain instead of gzip"), ("a.zst", "instead of zstd")] {
        let file = write(&folder, name, &plain);
        import(&server, &file, &[]).expect_words(1, &["not what its name says", words]);
    }
    for (name, content, flags, words) in [
        ("a.csv", plain.as_str(), &[][..], "does not look like CSV"),
        ("b.ndjson", "kind,source,target\n", &[], "does not look like NDJSON"),
        ("c.csv", "kind,from,to\nfollow,1,2\n", &[], "'from'"),
        ("d.txt", plain.as_str(), &["--format", "csv"], "does not look like CSV"),
    ] {
        let file = write(&folder, name, content);
        import(&server, &file, flags).expect_words(2, &[words]);
    }
    import(&server, &folder.path().join("absent"), &[]).expect_words(1, &["cannot read", "absent"]);
    import(&server, folder.path(), &[]).expect_words(1, &["cannot read"]);
    let file = write(&folder, "e.ndjson", &plain);
    import(&server, &file, &["--id", "a b"]).expect(2);
    import(&server, &file, &["--rejects", text(&file)]).expect_words(2, &["the file to import"]);
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], false);
    Cli::default()
        .with("GUANXI_SERVER", "http://127.0.0.1:9")
        .run(&["import", text(&file)])
        .expect(3);
}

#[test]
fn a_truncated_archive_gives_its_whole_lines_and_goes_on_when_it_is_whole() {
    let server = Server::start();
    let folder = folder();
    let plain: String = (1..=5_000).map(|source| follow(source, source + 1)).collect();
    import(&server, &write(&folder, "in.ndjson", plain), &["--json"]).expect(0);
    let whole = folder.path().join("whole.ndjson.gz");
    Cli::of(&server).run(&["export", "--kind", "follow", "--out", text(&whole)]).expect(0);
    let bytes = fs::read(&whole).unwrap();
    let cut = write(&folder, "cut.ndjson.gz", &bytes[..bytes.len() / 2]);
    let other = Server::start();
    let ran = import(&other, &cut, &["--id", "archive"]);
    ran.expect_words(1, &["damaged or cut off behind line", "--id archive"]);
    let done = lines_done(&other, "archive");
    assert!((1..5_000).contains(&done), "{done}");
    assert_eq!(other.get(edge("follow", 1, 2)).ok()["related"], true);
    other.delete(edge("follow", 1, 2)).ok();
    let ran = import(&other, &whole, &["--id", "archive", "--json"]);
    assert_eq!(ran.json()["new_lines"], 5_000 - done);
    assert_eq!(other.get(edge("follow", 1, 2)).ok()["related"], false, "done lines stay done");
    assert_eq!(other.get(edge("follow", 5_000, 5_001)).ok()["related"], true);
}

#[test]
fn rejected_lines_are_shown_collected_and_can_be_imported_again() {
    let server = shared();
    let folder = folder();
    let [source, target] = nodes();
    let (good, bad) = (follow(source, target), follow(source, source));
    let grouped = format!(
        "{{\"kind\":\"like\",\"source\":{source},\"target\":{target},\"group\":\"none\"}}\n"
    );
    let file = write(&folder, "in.ndjson", format!("{good}{bad}nonsense\n{grouped}"));
    let rejects = folder.path().join("rejects.ndjson");
    let ran = import(&server, &file, &["--rejects", text(&rejects)]);
    ran.expect_words(1, &["line 2: self_relation", "line 3:", "line 4: limit_reached", "3 lines"]);
    let collected = fs::read_to_string(&rejects).unwrap();
    let collected: Vec<Value> =
        collected.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(collected.len(), 3);
    assert_eq!(collected[0]["source"], source.to_string());
    assert!(collected[0]["error"].as_str().unwrap().starts_with("line 2: self_relation: "));
    assert_eq!(collected[1]["input"], "nonsense");
    server.patch_json("/v1/admin/kinds/like", json!({"groups_max": 1})).ok();
    let second = folder.path().join("second.ndjson");
    let again = import(&server, &rejects, &["--rejects", text(&second)]);
    again.expect_words(1, &["line 1: self_relation", "line 2: invalid_argument", "2 lines"]);
    assert_eq!(server.get(edge("like", source, target)).ok()["group"], "none");
    let kept = import(&server, &file, &["--id", "other", "--rejects", text(&rejects)]);
    kept.expect_words(2, &["not empty"]);

    let csv = write(&folder, "in.csv", format!("kind,source,target\nfollow,{source},{source}\n"));
    let rejects = folder.path().join("rejects.csv");
    import(&server, &csv, &["--rejects", text(&rejects)]).expect(1);
    let collected = fs::read_to_string(&rejects).unwrap();
    let expected =
        format!("kind,source,target,error\nfollow,{source},{source},\"line 2: self_relation");
    assert!(collected.starts_with(&expected), "{collected}");
    import(&server, &rejects, &[]).expect_words(1, &["self_relation"]);
}

#[test]
fn a_file_that_was_corrected_in_place_is_another_file() {
    let server = Server::start();
    let folder = folder();
    let (first, last) = (100_001, 104_000);
    let lines = |middle: u64| -> String {
        let target = |source| if source == 102_000 { middle } else { 7 };
        (first..=last).map(|source| follow(source, target(source))).collect()
    };
    let (one, other) = (write(&folder, "a.ndjson", lines(8)), write(&folder, "b.ndjson", lines(9)));
    assert_eq!(fs::metadata(&one).unwrap().len(), fs::metadata(&other).unwrap().len());
    for (file, changed) in [(&one, "4000 edges changed"), (&other, "1 edge changed")] {
        let ran = import(&server, file, &[]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stdout.contains(changed), "{}", ran.stdout);
    }
    assert_eq!(server.get(edge("follow", 102_000, 9)).body["related"], true);
}

#[test]
fn rejects_of_a_finished_import_are_not_forgotten() {
    let server = Server::start();
    let folder = folder();
    let file = write(&folder, "self.ndjson", [follow(5, 5), follow(5, 6)].concat());
    import(&server, &file, &[]).expect_words(1, &["1 line was rejected", "--rejects FILE"]);
    let rejects = folder.path().join("rejects.ndjson");
    let again = import(&server, &file, &["--rejects", text(&rejects)]);
    again.expect_words(1, &["line 1: self_relation", "1 line was rejected", text(&rejects)]);
    let collected = fs::read_to_string(&rejects).unwrap();
    assert!(collected.starts_with(&follow(5, 5)[..20]), "{collected}");
    assert_eq!(collected.lines().count(), 1, "{collected}");
    // A file of something else is not written over, whatever it is.
    for foreign in [
        "what a user wrote\n".to_owned(),
        collected.replace("line 1:", "line 2:"),
        collected.replace("self_relation", "excluded"),
        collected.replace("error", "reason"),
    ] {
        fs::write(&rejects, &foreign).unwrap();
        let ran = import(&server, &file, &["--rejects", text(&rejects)]);
        ran.expect_words(2, &["something else", "move it away"]);
        assert_eq!(fs::read_to_string(&rejects).unwrap(), foreign);
    }
    // Of one that was cut off in the middle of a line, the line is written again.
    fs::write(&rejects, &collected[..collected.len() / 2]).unwrap();
    import(&server, &file, &["--rejects", text(&rejects)]).expect(1);
    assert_eq!(fs::read_to_string(&rejects).unwrap(), collected);
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 2, "nothing unfinished is left");
}

#[test]
fn limits_are_ignored_when_asked_and_stdin_keeps_its_place_by_name() {
    let server = shared();
    let folder = folder();
    let kind =
        json!({"name": "one", "source_type": "user", "target_type": "user", "outgoing_max": 1});
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    let [source] = nodes();
    let targets = node_run(3);
    let lines = targets.iter().map(|target| follow(source, *target).replace("follow", "one"));
    let file = write(&folder, "in.ndjson", lines.collect::<String>());
    import(&server, &file, &[])
        .expect_words(1, &["line 2: limit_reached", "2 lines were rejected"]);
    import(&server, &file, &["--id", "lifted", "--ignore-limits"]).ok();
    assert_eq!(tally(&server, "one", source)["outgoing"], 3);
    let nothing = Cli::of(&server).run(&["import", "-", "--id", "empty", "--json"]);
    assert_eq!(nothing.json()["lines"], 0, "standard input is empty here");
}

#[test]
fn an_import_goes_on_after_the_server_was_killed() {
    let server = Server::start();
    let folder = folder();
    let file = write(&folder, "in.ndjson", many());
    let id = "killed-server";
    let running = Cli::of(&server).spawn(&["import", text(&file), "--id", id], Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 2_000);
    let stopped = server.kill();
    thaw(&running);
    Ran::of(running).expect_words(3, &["at least", "done", "goes on where it was"]);
    let server = stopped.restart();
    let done = lines_done(&server, id);
    assert!((2_001..MANY_LINES).contains(&done), "killed in the middle, at {done}");
    let removed = remove_some(&server, done);
    let ran = import(&server, &file, &["--id", id, "--json"]);
    assert_eq!((&ran.json()["lines"], &ran.json()["rejected"]), (&json!(MANY_LINES), &json!(0)));
    assert_whole(&server, &removed);
}

#[test]
fn an_import_goes_on_after_its_own_end() {
    let server = Server::start();
    let folder = folder();
    let file = write(&folder, "in.ndjson", many());
    let id = "killed-command";
    let mut running = Cli::of(&server).spawn(&["import", text(&file), "--id", id], Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    running.kill().expect("the command is ours");
    Ran::of(running);
    // What the server has of the part goes on to its end, or breaks off.
    let done = lines_done(&server, id);
    assert!(done < MANY_LINES, "killed in the middle, at {done}");
    let removed = remove_some(&server, done);
    let ran = import(&server, &file, &["--id", id, "--json"]);
    assert!(ran.json()["new_lines"].as_u64() <= Some(MANY_LINES - done), "{}", ran.stdout);
    assert_whole(&server, &removed);
}

#[test]
fn an_import_goes_on_right_after_its_command_was_killed() {
    let server = Server::start();
    let folder = folder();
    let file = write(&folder, "in.ndjson", many());
    let id = "killed-and-resumed";
    let arguments = ["import", text(&file), "--id", id];
    let mut running = Cli::of(&server).spawn(&arguments, Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    running.kill().expect("the command is ours");
    // The server may still be at work on what it was sent, while the same comes again.
    let ran = import(&server, &file, &["--id", id, "--json"]);
    let said = ran.json();
    assert_eq!((&said["lines"], &said["rejected"]), (&json!(MANY_LINES), &json!(0)), "{said}");
    Ran::of(running);
    assert_whole(&server, &[]);
    let again = import(&server, &file, &["--id", id]);
    assert!(again.ok().stdout.contains("lines were done before"), "{}", again.stdout);
}

#[test]
fn an_id_that_was_used_for_other_lines_is_refused() {
    let server = Server::start();
    let folder = folder();
    let lines: Vec<String> = (1..=5).map(|source| follow(source, source + 1)).collect();
    let csv = |rows: &[&str]| format!("kind,source,target\n{}", rows.concat());
    let cases = [
        ("ndjson", lines[..3].concat(), lines[..2].concat() + &lines[3], lines.concat()),
        (
            "csv",
            csv(&["follow,1,2\n", "follow,1,3\n"]),
            csv(&["follow,1,3\n", "follow,1,2\n", "follow,1,4\n"]),
            csv(&["follow,1,2\r\n", "follow,1,3\n", "\"follow\",1,4"]),
        ),
    ];
    for (format, first, other, grown) in cases {
        let id = format!("used-{format}");
        let file = |name: &str, content: &str| write(&folder, &format!("{name}.{format}"), content);
        import(&server, &file("first", &first), &["--id", &id]).expect(0);
        let done = lines_done(&server, &id);
        for (name, content) in [("other", other), ("empty", String::new())] {
            let ran = import(&server, &file(name, &content), &["--id", &id]);
            ran.expect_words(1, &["was used for other lines", "another --id"]);
            assert_eq!(lines_done(&server, &id), done);
        }
        // A file that has grown at its end is still the same.
        let ran = import(&server, &file("grown", &grown), &["--id", &id, "--json"]);
        let lines = grown.lines().count() as u64;
        assert_eq!(ran.json()["new_lines"], lines - done, "{}", ran.stdout);
    }
    // Nothing of the others was taken: 1 to 5 of the one, 2 to 4 of the other.
    let export = server.get("/v1/admin/export?kind=follow").text;
    assert_eq!(export.lines().count(), 7, "{export}");
}

#[test]
fn a_standby_names_its_primary_to_who_imports_into_it() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let folder = folder();
    let file = write(&folder, "in.ndjson", follow(1, 2));
    let ran = import(&standby, &file, &[]);
    ran.expect_words(3, &["read_only", &primary.url(), "import into the primary"]);
    assert!(!ran.stderr.contains("run the same command"), "{}", ran.stderr);
}

#[test]
fn rejected_csv_is_csv_whatever_was_rejected() {
    let server = shared();
    let folder = folder();
    let [source] = nodes();
    let rows = [
        format!("follow,{source},{source},"),
        "follow,1".to_owned(),
        "fol\"low,1,2,".to_owned(),
        "follow,1,2,3,4,5".to_owned(),
        "\"follow\"x,1,2,".to_owned(),
        "follow,1,2,\"never closed".to_owned(),
    ];
    let file = write(&folder, "in.csv", format!("kind,source,target,data\n{}\n", rows.join("\n")));
    let rejects = folder.path().join("rejects.csv");
    import(&server, &file, &["--rejects", text(&rejects)]).expect_words(1, &["6 lines were"]);
    let collected = fs::read_to_string(&rejects).unwrap();
    let parsed = parse_csv(&collected);
    assert_eq!(parsed.len(), 1 + rows.len(), "{collected}");
    assert_eq!(parsed[0], ["kind", "source", "target", "data", "error"]);
    for (row, cells) in rows.iter().zip(&parsed[1..]) {
        assert_eq!(cells.len(), 5, "{collected}");
        let kept = cells[0].is_empty();
        assert!(!kept || cells[4].ends_with(row.as_str()), "{row}: {cells:?}");
    }
    assert_eq!(parsed[3][0], "fol\"low");
    // Once more, the errors are those of the second time.
    let second = folder.path().join("second.csv");
    import(&server, &rejects, &["--rejects", text(&second)]).expect_words(1, &["6 lines were"]);
    let again = parse_csv(&fs::read_to_string(&second).unwrap());
    assert_eq!(again[0], parsed[0]);
    assert!(again[2][4].contains("kind: it is missing"), "{again:?}");
}

/// Rows of CSV as RFC 4180 has them; panics where it is none.
fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let row = rows.last_mut().expect("a row");
        let cell = row.last_mut().expect("a cell");
        match char {
            ',' => row.push(String::new()),
            '\n' => rows.push(vec![String::new()]),
            '"' => {
                assert!(cell.is_empty(), "a quote within a plain cell: {text}");
                loop {
                    match (chars.next().expect("quotes are closed"), chars.peek()) {
                        ('"', Some('"')) => cell.push(chars.next().expect("it was seen")),
                        ('"', next) => {
                            assert!(matches!(next, Some(',' | '\n')), "behind quotes: {text}");
                            break;
                        }
                        (char, _) => cell.push(char),
                    }
                }
            }
            char => cell.push(char),
        }
    }
    assert_eq!(rows.pop(), Some(vec![String::new()]), "the last row ends");
    rows
}

#[test]
fn an_export_replaces_no_file_unless_asked_and_leaves_none_when_killed() {
    let server = Server::start();
    let folder = folder();
    server.put(edge("follow", 1, 2)).ok();
    let out = folder.path().join("all.ndjson");
    let export = ["export", "--out", text(&out)];
    let names = || {
        let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    for _ in 0..2 {
        server.pause();
        let mut running = Cli::of(&server).spawn(&export, Stdio::piped());
        poll_until("it has begun", DEADLINE, || {
            folder.path().join("all.ndjson.part").exists().then_some(())
        });
        running.kill().expect("the command is ours");
        Ran::of(running);
        server.resume();
        assert_eq!(names(), ["all.ndjson.part"], "one file, however often it is killed");
    }
    Cli::of(&server).run(&export).expect(0);
    assert_eq!(names(), ["all.ndjson"]);
    let first = fs::read_to_string(&out).unwrap();
    server.put(edge("follow", 1, 3)).ok();
    Cli::of(&server).run(&export).expect_words(2, &["exists already", "--force"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), first);
    Cli::of(&server).run(&[&export[..], &["--force"]].concat()).expect(0);
    assert_eq!(fs::read_to_string(&out).unwrap().lines().count(), first.lines().count() + 1);
    Cli::of(&server).run(&["export", "--out", text(folder.path()), "--force"]).expect(2);
    assert_eq!(names(), ["all.ndjson"]);
}

#[test]
fn ctrl_c_says_where_it_stands_and_how_to_go_on() {
    let server = Server::start();
    let folder = folder();
    let file = write(&folder, "in.ndjson", many());
    let id = "interrupted";
    let running = Cli::of(&server).spawn(&["import", text(&file), "--id", id], Stdio::piped());
    freeze_when(&running, "some lines", DEADLINE, || lines_done(&server, id) > 1_000);
    interrupt(&running);
    thaw(&running);
    Ran::of(running).expect_words(3, &["stopped", "lines of", "goes on where it was"]);
    let done = lines_done(&server, id);
    assert!(done < MANY_LINES, "stopped in the middle, at {done}");
    import(&server, &file, &["--id", id]).ok();
    assert_whole(&server, &[]);
}

#[test]
fn an_export_onto_a_full_disk_says_so_and_leaves_nothing() {
    let server = shared();
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).ok();
    let folder = folder();
    let ran =
        Cli::of(&server).run(&["export", "--out", text(&folder.path().join("no/such/a.ndjson"))]);
    ran.expect_words(3, &["cannot write"]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a full device");
    let ran = Cli::of(&server).run_into(&["export"], full);
    ran.expect_words(3, &["cannot write the output"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
