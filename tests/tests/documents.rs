//! The documents tell the truth about the tree: each path that they name exists.

use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"];
const ROOTS: [&str; 7] = ["crates/", "tests/", "bench/", "deploy/", "docs/", "scripts/", ".ci/"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What stands between backticks and looks like a path of the tree.
fn paths_in(text: &str) -> Vec<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|path| ROOTS.iter().any(|root| path.starts_with(root))).collect()
}

#[test]
fn every_path_in_the_documents_exists() {
    let mut named = 0;
    for document in DOCUMENTS {
        let text = std::fs::read_to_string(repository().join(document)).unwrap();
        for path in paths_in(&text) {
            // `crates/*/src` stands for many.
            if path.contains(['*', ' ']) {
                continue;
            }
            named += 1;
            assert!(
                repository().join(path).exists(),
                "{document} names {path}, which is not there"
            );
        }
    }
    assert!(named > 40, "only {named} paths found: does the search still work?");
}

#[test]
fn the_search_finds_paths() {
    let text = "see `crates/model`, `make test` and `tests/src/lib.rs`";
    assert_eq!(paths_in(text), ["crates/model", "tests/src/lib.rs"]);
}
