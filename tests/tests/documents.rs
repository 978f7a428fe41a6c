//! The documents tell the truth about the tree: what they name exists, each crate's map has all of
//! its modules, each decision stands in the index; and they stay short enough to be read.

use std::fs;
use std::path::{Path, PathBuf};

const ROOTS: [&str; 7] = ["crates/", "tests/", "bench/", "deploy/", "docs/", "scripts/", ".ci/"];
const CRATES: [&str; 7] = ["model", "core", "embedded", "cluster", "moving", "api", "guanxi"];
/// What a crate's map calls its own.
const OF_A_CRATE: [&str; 4] = ["src/", "tests/", "migrations", "proto"];
const DECISIONS: &str = "docs/decisions";
const ARCHITECTURE_BYTES_MAX: usize = 15_000;
const README_LINES_MAX: usize = 80;
const DECISION_LINES_MAX: usize = 60;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(document: &str) -> String {
    fs::read_to_string(repository().join(document)).unwrap_or_else(|error| {
        panic!("{document}: {error}");
    })
}

/// Files of a folder with this ending.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut found: Vec<String> = names.filter(|name| name.ends_with(ending)).collect();
    found.sort();
    found
}

fn map_of(name: &str) -> String {
    format!("crates/{name}/README.md")
}

fn documents() -> Vec<String> {
    let mut all: Vec<String> = ["ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"]
        .into_iter()
        .chain(["README.md", "README.zh-CN.md"])
        .map(str::to_owned)
        .collect();
    all.extend(CRATES.iter().map(|name| map_of(name)));
    for folder in ["docs", DECISIONS] {
        all.extend(files(folder, ".md").iter().map(|name| format!("{folder}/{name}")));
    }
    all
}

/// What stands between backticks and looks like a path of the tree, from its root, from `crates`,
/// or in a crate's map from the crate on.
fn paths_in<'a>(document: &str, text: &'a str) -> Vec<&'a str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let of_a_crate = |path: &str| {
        let Some((first, rest)) = path.split_once('/') else { return false };
        CRATES.contains(&first)
            && ["src", "proto", "migrations"].iter().any(|own| rest.starts_with(own))
    };
    let own = |path: &str| {
        document.starts_with("crates/") && OF_A_CRATE.iter().any(|own| path.starts_with(own))
    };
    quoted
        .filter(|path| {
            ROOTS.iter().any(|root| path.starts_with(root)) || of_a_crate(path) || own(path)
        })
        // `crates/*/src` stands for many, and a command is no path.
        .filter(|path| !path.contains(['*', ' ', '\n', '…']))
        .collect()
}

/// Where links lead, but those to elsewhere.
fn links_in(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let inside = targets.map(|target| target.split('#').next().unwrap_or_default());
    inside.filter(|target| !target.is_empty() && !target.contains("://")).collect()
}

#[test]
fn every_path_in_the_documents_exists() {
    let mut named = 0;
    for document in documents() {
        let text = read(&document);
        let root = repository();
        let beside = root.join(&document).parent().unwrap().to_owned();
        for path in paths_in(&document, &text) {
            named += 1;
            let places = [root.join(path), root.join("crates").join(path), beside.join(path)];
            assert!(
                places.iter().any(|place| place.exists()),
                "{document} names {path}, which is not there"
            );
        }
        for link in links_in(&text) {
            named += 1;
            assert!(beside.join(link).exists(), "{document} leads to {link}, which is not there");
        }
    }
    assert!(named > 500, "only {named} paths found: does the search still work?");
}

#[test]
fn every_module_stands_in_its_crates_map() {
    for name in CRATES {
        let map = read(&map_of(name));
        for file in files(&format!("crates/{name}/src"), ".rs") {
            let is_known = file == "lib.rs" || map.contains(&format!("`src/{file}`"));
            assert!(is_known, "crates/{name}/README.md lacks a line for `src/{file}`");
        }
    }
}

#[test]
fn every_decision_stands_in_the_index_and_is_short() {
    let index = read(&format!("{DECISIONS}/README.md"));
    let decisions = files(DECISIONS, ".md");
    assert!(decisions.len() > 30, "only {} decisions found", decisions.len());
    for (number, file) in decisions.iter().filter(|file| *file != "README.md").enumerate() {
        assert!(index.contains(&format!("({file})")), "the index lacks {file}");
        assert!(file.starts_with(&format!("{:03}-", number + 1)), "{file} has a wrong number");
        let lines = read(&format!("{DECISIONS}/{file}")).lines().count();
        assert!(lines <= DECISION_LINES_MAX, "{file} has {lines} lines");
    }
}

#[test]
fn what_is_read_first_is_short() {
    let bytes = read("ARCHITECTURE.md").len();
    assert!(bytes <= ARCHITECTURE_BYTES_MAX, "ARCHITECTURE.md has {bytes} bytes");
    for document in ["README.md", "README.zh-CN.md"] {
        let lines = read(document).lines().count();
        assert!(lines <= README_LINES_MAX, "{document} has {lines} lines");
    }
}

#[test]
fn the_search_finds_paths_and_links() {
    let text =
        "see `crates/model`, `make test`, `src/a.rs`, `core/src/b.rs` and `tests/src/lib.rs`";
    let anywhere = ["crates/model", "core/src/b.rs", "tests/src/lib.rs"];
    assert_eq!(paths_in("ARCHITECTURE.md", text), anywhere);
    assert!(paths_in("crates/core/README.md", text).contains(&"src/a.rs"));
    let text = "[a](docs/a.md#b) ![c](d.svg) [e](https://example.com) [f](#g)";
    assert_eq!(links_in(text), ["docs/a.md", "d.svg"]);
}
