//! The scripts of the project, where what they do not do would be believed to be done.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs the check of the dependencies with a cargo-deny that can do everything but one step.
fn check_dependencies(fails_at: &str, without_advisories: bool) -> Output {
    let cache = TempDir::with_prefix("guanxi-scripts-").expect("a temporary directory");
    let tools = cache.path().join("tools/bin");
    fs::create_dir_all(&tools).expect("a directory");
    let tool = tools.join("cargo-deny");
    let says = format!(
        "#!/bin/sh\necho \"asked: $*\"\ncase \"$*\" in *\"{fails_at}\"*) echo 'fatal: no network' \
         >&2; exit 1;; esac\n"
    );
    fs::write(&tool, says).expect("a tool");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("a tool that can be run");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/deny.sh");
    let mut command = Command::new(script);
    command.env("GUANXI_CACHE", cache.path()).env_remove("GUANXI_WITHOUT_ADVISORIES");
    if without_advisories {
        command.env("GUANXI_WITHOUT_ADVISORIES", "1");
    }
    command.output().expect("bash is there")
}

#[test]
fn a_check_of_the_dependencies_that_cannot_be_done_is_a_failure() {
    let said = |output: &Output| {
        let Output { stdout, stderr, .. } = output;
        format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    };
    let whole = check_dependencies("nothing", false);
    assert!(whole.status.success(), "{}", said(&whole));
    assert!(said(&whole).contains("asked: deny check advisories"), "{}", said(&whole));
    assert!(said(&whole).contains(" -D index-failure"), "what was yanked: {}", said(&whole));
    for step in ["fetch db", "check advisories", "bans licenses sources"] {
        let failed = check_dependencies(step, false);
        assert!(!failed.status.success(), "{step}: {}", said(&failed));
    }
    let unfetched = said(&check_dependencies("fetch db", false));
    for words in ["FAILED", "fatal: no network", "GUANXI_WITHOUT_ADVISORIES=1"] {
        assert!(unfetched.contains(words), "{words}: {unfetched}");
    }
    let asked = check_dependencies("fetch db", true);
    assert!(asked.status.success() && said(&asked).contains("NOT CHECKED"), "{}", said(&asked));
    assert!(!said(&asked).contains("asked: deny check advisories"), "{}", said(&asked));
    let banned = check_dependencies("bans licenses sources", true);
    assert!(!banned.status.success(), "{}", said(&banned));
}
