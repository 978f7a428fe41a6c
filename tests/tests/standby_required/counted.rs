//! `standby.required` counts directories: whoever starts anew, only reads the log, or says what is
//! not true is not one more of them.

use std::path::Path;

use guanxi_tests::{
    Answer, Client, Server, edge, nodes, poll_until, requiring_options, standing, start_standby,
};
use serde_json::{Value, json};

use super::{SOON, TIMEOUT_MS, expect_stalled, is_shown, put_confirmed, wait_until_shown};

/// Where a log ends.
#[derive(Clone, Copy)]
struct End {
    epoch: u64,
    position: u64,
    commit_ms: u64,
}

/// Where the primary's log ends, as a shipment tells it.
fn end_of(primary: &Client) -> End {
    let epoch = standing(primary)["epoch"].as_u64().expect("an epoch");
    let shipped = primary.get(format!("/v1/admin/log?after={epoch}.0&wait_ms=0"));
    shipped.expect_status(200);
    let number =
        |at: usize| u64::from_le_bytes(shipped.bytes[at..at + 8].try_into().expect("eight bytes"));
    End { epoch, position: number(8), commit_ms: number(16) }
}

fn acknowledge(primary: &Client, id: &str, body: Value) -> Answer {
    primary.post_json(format!("/v1/admin/standbys/{id}"), body)
}

fn said(end: End) -> Value {
    json!({"epoch": end.epoch, "position": end.position, "commit_ms": end.commit_ms})
}

fn standbys(primary: &Client) -> usize {
    standing(primary)["standbys"].as_array().expect("a list").len()
}

#[track_caller]
fn expect_hidden(primary: &Client) {
    let [a, b] = nodes();
    for answer in [primary.get("/readyz"), primary.get(edge("follow", a, b))] {
        let message = answer.expect_error(503, "unavailable");
        assert!(message.contains("standby.required"), "{message}");
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("the folder is there") {
        let entry = entry.expect("an entry");
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        match from.is_dir() {
            true => copy_files(&from, &to),
            false => drop(std::fs::copy(&from, &to).expect("it can be copied")),
        }
    }
}

#[test]
fn a_standby_counts_once_however_often_it_starts() {
    let primary = Server::start_with(requiring_options(2, TIMEOUT_MS));
    let mut one = start_standby(&primary);
    for round in 0..4 {
        // It is ready when it has asked its primary, and so has said what it has.
        expect_hidden(&primary);
        assert_eq!(standbys(&primary), 1, "round {round}");
        let stopped = if round % 2 == 0 { one.kill() } else { one.terminate() };
        one = stopped.restart();
    }
    let other = start_standby(&primary);
    wait_until_shown(&primary);
    let [a, b, c] = nodes();
    put_confirmed(&primary, &edge("follow", a, b));
    let other = other.kill();
    poll_until("its silence is felt", SOON, || {
        (primary.put(edge("follow", a, c)).status != 200).then_some(())
    });
    for _ in 0..3 {
        one = one.kill().restart();
        expect_stalled(&primary, &edge("follow", b, c));
        assert!(!is_shown(&primary, a, c), "one directory has it, however often it says so");
    }
    let _other = other.restart();
    poll_until("both confirm", SOON, || is_shown(&primary, a, c).then_some(()));
    put_confirmed(&primary, &edge("follow", b, c));
}

#[test]
fn a_copy_of_a_directorys_files_is_not_another_directory() {
    let primary = Server::start_with(requiring_options(2, TIMEOUT_MS));
    let standby = start_standby(&primary).terminate();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let copy = folder.path().join("standby");
    copy_files(standby.data_directory(), &copy);
    let _standby = standby.restart();
    let _copy = Server::try_start_following(&copy, &primary.url()).expect("it follows");
    expect_hidden(&primary);
    assert_eq!(standbys(&primary), 1);

    let stopped = primary.terminate();
    let copy = folder.path().join("primary");
    copy_files(stopped.data_directory(), &copy);
    let primary = stopped.restart();
    let refused = Server::try_start_following(&copy, &primary.url()).err();
    let refused = refused.expect("it would be a second primary's directory");
    for part in ["copy of", "an empty one"] {
        assert!(refused.contains(part), "{refused}");
    }
    expect_hidden(&primary);
}

#[test]
fn reading_the_log_acknowledges_nothing() {
    let primary = Server::start_with(requiring_options(1, TIMEOUT_MS));
    let End { epoch, position, commit_ms } = end_of(&primary);
    let asked = format!("after={epoch}.{position}&commit_ms={commit_ms}&wait_ms=0");
    primary.get(format!("/v1/admin/log?{asked}")).expect_status(200);
    primary.get(format!("/v1/admin/log?{asked}&standby=7")).expect_status(200);
    expect_hidden(&primary);
    assert_eq!(standbys(&primary), 0);
}

#[test]
fn only_what_is_true_is_acknowledged() {
    let primary = Server::start_with(requiring_options(1, TIMEOUT_MS));
    let end = end_of(&primary);
    let untrue = [
        End { position: end.position + 1, ..end },
        End { position: u64::MAX, ..end },
        End { epoch: end.epoch + 1, ..end },
        End { epoch: 0, ..end },
        End { commit_ms: end.commit_ms - 1, ..end },
        End { commit_ms: 0, ..end },
    ];
    for end in untrue {
        acknowledge(&primary, "7", said(end)).expect_error(409, "conflict");
    }
    let fits = said(end);
    let mut unsaid = vec![("x", fits.clone()), ("-1", fits.clone()), ("0", fits.clone())];
    for field in ["epoch", "position", "commit_ms"] {
        let mut body = fits.clone();
        body.as_object_mut().expect("an object").remove(field);
        unsaid.push(("7", body));
    }
    for (id, body) in unsaid {
        acknowledge(&primary, id, body).expect_error(400, "invalid_argument");
    }
    primary.post("/v1/admin/standbys/7").expect_error(400, "invalid_argument");
    expect_hidden(&primary);
    assert_eq!(standbys(&primary), 0);

    // What everybody has from the beginning confirms nothing that came since.
    let nothing = End { position: 0, commit_ms: 0, ..end };
    acknowledge(&primary, "7", said(nothing)).ok();
    expect_hidden(&primary);
    assert_eq!(acknowledge(&primary, "7", fits).ok(), &json!({"counts": true}));
    wait_until_shown(&primary);
    assert_eq!(standbys(&primary), 1);
}
