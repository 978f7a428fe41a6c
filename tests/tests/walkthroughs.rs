//! The documents and examples tell the truth about the service: every command that a document
//! shows runs as shown, in its order, on a new server, and answers what the document says.
//!
//! Times, versions, tokens and the like differ from run to run; everything else of a JSON answer
//! must be the same. Of other output only that there is some.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guanxi_tests::{Server, binary};
use serde_json::Value;

const DOCUMENTS: [&str; 7] = [
    "README.md",
    "README.zh-CN.md",
    "docs/getting-started.md",
    "docs/getting-started.zh-CN.md",
    "docs/concepts.md",
    "docs/grpc-by-example.md",
    "docs/operations.md",
];
/// What a document shows and a test cannot run: it starts what does not end, or is not there.
const NOT_RUN: [&str; 10] = [
    "make ",
    "guanxi import follows.csv.zst",
    "guanxi serve",
    "guanxi watch",
    "podman ",
    "kill ",
    "systemctl ",
    "cargo ",
    "curl -N",
    "grpcurl ",
];
/// Fields that differ from run to run.
const PASSING: [&str; 13] = [
    "since",
    "version",
    "token",
    "request_id",
    "job",
    "time",
    "id_of_event",
    "position",
    "finished_at",
    "started_at",
    "erased_at",
    "log_forgets_at",
    "epoch",
];
const DEFAULT_ADDRESS: &str = "127.0.0.1:7420";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[derive(Debug)]
struct Shown {
    command: String,
    answer: Vec<String>,
}

/// The commands of a document's console blocks, with what follows each.
fn commands_of(text: &str) -> Vec<Shown> {
    let mut shown: Vec<Shown> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match (line, inside) {
            ("```console", false) => inside = true,
            ("```", true) => inside = false,
            (line, true) => match (line.strip_prefix("$ "), shown.last_mut()) {
                (Some(command), _) => {
                    shown.push(Shown { command: command.into(), answer: Vec::new() });
                }
                (None, Some(last)) => last.answer.push(line.into()),
                (None, None) => panic!("a console block begins with an answer: {line}"),
            },
            _ => {}
        }
    }
    shown
}

fn run(server: &Server, directory: &Path, command: &str) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = binary().parent().expect("the binary stands in a directory").to_owned();
    Command::new("sh")
        .arg("-c")
        .arg(command.replace(DEFAULT_ADDRESS, &server.address().to_string()))
        .current_dir(directory)
        .env("PATH", format!("{}:{path}", beside.display()))
        .env("GUANXI_SERVER", server.url())
        .output()
        .expect("sh runs")
}

/// Whether an answer is what a document says, but for what passes.
fn agrees(said: &Value, got: &Value) -> bool {
    match (said, got) {
        (Value::Object(said), Value::Object(got)) => {
            said.len() == got.len()
                && said.iter().all(|(name, said)| {
                    got.get(name).is_some_and(|got| {
                        PASSING.contains(&name.as_str()) && said.is_null() == got.is_null()
                            || agrees(said, got)
                    })
                })
        }
        (Value::Array(said), Value::Array(got)) => {
            said.len() == got.len() && said.iter().zip(got).all(|(said, got)| agrees(said, got))
        }
        _ => said == got,
    }
}

fn follow(document: &str) {
    let text = std::fs::read_to_string(repository().join(document)).unwrap();
    let server = Server::start();
    let directory = tempfile::tempdir().unwrap();
    let mut ran = 0;
    for Shown { command, answer } in commands_of(&text) {
        if NOT_RUN.iter().any(|prefix| command.starts_with(prefix)) {
            continue;
        }
        ran += 1;
        let output = run(&server, directory.path(), &command);
        let got = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{document}: {command}: {complaint}{got}");
        for (said, got_line) in answer.iter().zip(got.lines()) {
            if let Ok(said) = serde_json::from_str::<Value>(said) {
                let got = serde_json::from_str(got_line).unwrap_or_default();
                assert!(agrees(&said, &got), "{document}: {command}\nsays {said}\ngets {got}");
            }
        }
        let said_something = answer.iter().any(|line| !line.is_empty());
        assert!(!said_something || !got.is_empty(), "{document}: {command} says nothing");
    }
    assert!(ran > 0, "{document}: no command found: does the search still work?");
}

#[test]
fn every_command_of_the_documents_runs_as_shown() {
    for document in DOCUMENTS {
        follow(document);
    }
}

#[test]
fn what_differs_is_seen() {
    let said = serde_json::json!({"changed": true, "since": "a", "items": [{"id": "1"}]});
    let same = serde_json::json!({"changed": true, "since": "b", "items": [{"id": "1"}]});
    let other = serde_json::json!({"changed": true, "since": "b", "items": [{"id": "2"}]});
    let fewer = serde_json::json!({"changed": true, "since": "b", "items": []});
    assert!(agrees(&said, &same));
    assert!(!agrees(&said, &other) && !agrees(&said, &fewer));
}

/// Runs an example and returns what it says. A missing interpreter is said loudly, and where the
/// whole suite is required it fails.
fn example(program: &str, arguments: &[&str]) -> Option<String> {
    let server = Server::start();
    let ran = Command::new(program)
        .args(arguments)
        .current_dir(repository())
        .env("GUANXI_SERVER", server.url())
        .output();
    let output = match ran {
        Ok(output) => output,
        Err(error) => {
            assert!(std::env::var_os("GUANXI_REQUIRE_SERVICES").is_none(), "{program}: {error}");
            eprintln!(
                "SKIPPED: {program} cannot be run here ({error}), so its example is not checked"
            );
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {complaint}{said}");
    Some(said)
}

#[test]
fn the_curl_tour_runs() {
    let said = example("sh", &["examples/tour.sh"]).expect("sh is everywhere");
    assert!(said.contains("\"state\":\"pending\"") && said.contains("\"job\":"), "{said}");
}

#[test]
fn the_python_example_runs() {
    let Some(said) = example("python3", &["examples/feed.py"]) else { return };
    assert!(said.contains("post 4001: ['like', 'follow'], {'like': 1, 'view': 7}"), "{said}");
    assert!(said.contains("refused: self_relation"), "{said}");
}

#[test]
fn the_go_example_runs() {
    let Some(said) = example("go", &["run", "examples/feed.go"]) else { return };
    assert!(said.contains("post 6001: [like follow], 1 likes"), "{said}");
    assert!(said.contains("refused: self_relation"), "{said}");
}
