//! What a restart keeps, and the directories that must be refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use guanxi_tests::{
    Server, assert_lists_and_tallies_agree, edge, edge_call, millis_now, node, node_run, nodes,
    poll_until, put_all, rfc3339, tally, version_of, walk_ids, without_token,
};
use serde_json::{Value, json};

/// One of everything that a directory keeps.
struct Everything {
    source: u64,
    target: u64,
    asked: u64,
    post: u64,
    private: u64,
    job: String,
    strict: String,
    answered: Value,
    read: Value,
}

impl Everything {
    fn write(server: &Server) -> Self {
        let [source, target, asked, post, private, erased] = nodes();
        let kind = json!({"name": "kept", "source_type": "user", "target_type": "post", "outgoing_max": 1});
        server.post_json("/v1/admin/kinds", kind).expect_status(201);
        server.patch_json("/v1/admin/kinds/kept", json!({"outgoing_max": 2})).ok();
        server
            .post_json(format!("/v1/groups/follow/{source}"), json!({"name": "g"}))
            .expect_status(201);
        server
            .post_json(format!("/v1/groups/follow/{source}"), json!({"name": "dead"}))
            .expect_status(201);
        server.delete(format!("/v1/groups/follow/{source}/dead")).ok();
        let fields =
            json!({"group": "g", "data": "kept", "expires_at": rfc3339(millis_now() + 3_600_000)});
        server.put_json(edge("follow", source, target), fields).ok();
        server.put_json(edge("follow", source, asked), json!({"approval": true})).ok();
        server.put_json(edge("like", source, post), json!({"owner": target})).ok();
        server.put_json(node("user", private), json!({"private": true})).ok();
        server
            .post_json(
                format!("/v1/counters/view/{post}"),
                json!({"delta": 41, "key": "kept-counter"}),
            )
            .ok();
        server.put(edge("follow", erased, target)).ok();
        let begun = server.delete(node("user", erased));
        let job = begun.expect_status(202)["job"].as_str().expect("a job").to_owned();
        poll_until("the erasure ends", Duration::from_secs(30), || {
            (server.get(format!("/v1/jobs/{job}")).ok()["state"] == "done").then_some(())
        });
        let strict = format!("{}?strict=true", edge("kept", source, post));
        let answered = server.request("PUT", &strict).header("Idempotency-Key", "kept-edge").send();
        answered.expect_change(true, "live");
        let read = server.get(edge("follow", source, target)).ok().clone();
        Self {
            source,
            target,
            asked,
            post,
            private,
            job,
            strict,
            answered: without_token(answered.ok()),
            read,
        }
    }

    #[track_caller]
    fn assert_kept(&self, server: &Server) {
        let Self { source, target, asked, post, private, .. } = *self;
        assert_eq!(*server.get(edge("follow", source, target)).ok(), self.read);
        assert_eq!(server.get(edge("follow", source, asked)).ok()["state"], "pending");
        assert_eq!(tally(server, "follow", asked)["pending_incoming"], 1);
        assert_eq!(tally(server, "like", target)["owned"], 1);
        assert_eq!(tally(server, "follow", target)["incoming"], 1);
        let groups = json!({"groups": [{"name": "g", "size": 1}]});
        assert_eq!(*server.get(format!("/v1/groups/follow/{source}")).ok(), groups);
        assert_eq!(*server.get(node("user", private)).ok(), json!({"private": true}));
        assert_eq!(server.get("/v1/admin/kinds/kept").ok()["outgoing_max"], 2);
        assert_eq!(server.get(format!("/v1/jobs/{}", self.job)).ok()["state"], "done");
        // Keys: the same request replays, another conflicts, a counter counts once.
        let again =
            server.request("PUT", &self.strict).header("Idempotency-Key", "kept-edge").send();
        assert_eq!(without_token(again.ok()), self.answered);
        server
            .request("DELETE", &self.strict)
            .header("Idempotency-Key", "kept-edge")
            .send()
            .expect_error(409, "key_conflict");
        let counter = format!("/v1/counters/view/{post}");
        server.post_json(&counter, json!({"delta": 41, "key": "kept-counter"})).ok();
        assert_eq!(tally(server, "view", post)["value"], 41);
        assert_eq!(walk_ids(server, &edge_call("follow", source, "outgoing?group=g"), 5), [target]);
    }
}

#[test]
fn everything_survives_stops_and_kills() {
    let server = Server::start();
    let everything = Everything::write(&server);
    everything.assert_kept(&server);
    let server = server.terminate().restart();
    everything.assert_kept(&server);
    let server = server.kill().restart();
    everything.assert_kept(&server);
    let server = server.kill().restart();
    everything.assert_kept(&server);
    let last = server.put(edge("follow", everything.target, everything.source));
    last.expect_change(true, "live");
}

#[test]
fn versions_and_tokens_go_on_after_a_restart() {
    let server = Server::start();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let written = server.put(&path);
    let server = server.kill().restart();
    server.get(format!("{path}?at_least={}", written.token())).ok();
    let changed = server.put_json(&path, json!({"data": "later"}));
    let changed = changed.expect_change(true, "live");
    assert!(version_of(changed) > version_of(written.ok()));
    assert_eq!(changed["since"], written.ok()["since"]);
}

#[test]
fn an_edge_that_expired_while_the_service_was_down_goes_at_its_start() {
    let server = Server::start();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    // Late enough to be in the future when a busy machine decides it.
    let expiry = millis_now() + 4_000;
    server.put_json(&path, json!({"expires_at": rfc3339(expiry)})).ok();
    let stopped = server.terminate();
    poll_until("its time passes", Duration::from_secs(5), || (millis_now() > expiry).then_some(()));
    let server = stopped.restart();
    poll_until("the edge expires", Duration::from_secs(60), || {
        (server.get(&path).ok()["related"] == false).then_some(())
    });
    assert_lists_and_tallies_agree(&server, "follow", &[source], &[target]);
}

#[test]
fn an_erasure_goes_on_after_a_kill() {
    let server = Server::start();
    let [celebrity] = nodes();
    let followers = node_run(20_000);
    put_all(&server, "follow", &followers.iter().map(|id| (*id, celebrity)).collect::<Vec<_>>());
    let begun = server.delete(node("user", celebrity));
    let job = begun.expect_status(202)["job"].as_str().expect("a job").to_owned();
    let server = server.kill().restart();
    let done = poll_until("the erasure ends", Duration::from_secs(60), || {
        let body = server.get(format!("/v1/jobs/{job}")).ok().clone();
        (body["state"] == "done").then_some(body)
    });
    assert_eq!(done["receipt"]["edges_removed"], 20_000);
    assert_eq!(tally(&server, "follow", celebrity)["incoming"], 0);
    for follower in followers.iter().step_by(997) {
        assert_eq!(tally(&server, "follow", *follower)["outgoing"], 0);
    }
}

#[test]
fn a_directory_serves_one_process() {
    let server = Server::start();
    let Err(said) = Server::try_start_in(server.data_directory()) else {
        panic!("two processes serve one directory");
    };
    assert!(!said.contains("panicked"), "{said}");
    assert!(said.contains("lock") || said.contains("in use") || said.contains("another"), "{said}");
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).expect_change(true, "live");
    // The refused one left no trace that would stop the next start.
    let server = server.kill().restart();
    assert_eq!(server.get(edge("follow", source, target)).ok()["related"], true);
}

/// All files below a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The checksum of the directory's small text files: CRC-32C of the lines before it.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82F6_3B78 * (crc & 1));
        }
    }
    !crc
}

#[test]
fn a_directory_of_a_newer_format_is_refused() {
    let stopped = Server::start().terminate();
    let identity = stopped.data_directory().join("GUANXI");
    let text = fs::read_to_string(&identity).expect("the identity is text");
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("crc32c ")).collect();
    let newer = format!("{}\n", lines.join("\n")).replace("\nformat ", "\nformat 99");
    assert!(newer.contains("\nformat 99"), "{text}");
    let checksum = crc32c(newer.as_bytes());
    fs::write(&identity, format!("{newer}crc32c {checksum:08x}\n")).expect("written");
    let before = files_below(stopped.data_directory());
    let Err(said) = stopped.try_restart() else {
        panic!("a newer format was opened");
    };
    assert!(said.contains("format 99") && said.contains("newer"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    assert_eq!(files_below(stopped.data_directory()), before, "a refused directory is left alone");
    fs::write(&identity, text).expect("written back");
    stopped.restart().assert_healthy();
}

#[test]
fn a_directory_that_is_not_ours_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let foreign = directory.path().join("thesis.txt");
    fs::write(&foreign, "years of work").expect("written");
    let Err(said) = Server::try_start_in(directory.path()) else {
        panic!("a foreign directory was taken");
    };
    assert!(said.contains("thesis.txt"), "{said}");
    assert_eq!(files_below(directory.path()), [foreign]);
}

#[test]
fn a_flipped_byte_in_the_middle_of_the_log_is_refused() {
    for clean in [true, false] {
        let server = Server::start();
        let [target] = nodes();
        for source in node_run(200) {
            server.put(edge("follow", source, target)).ok();
        }
        let stopped = if clean { server.terminate() } else { server.kill() };
        let log = stopped.data_directory().join("log");
        let segment = files_below(&log)
            .into_iter()
            .max_by_key(|path| written_bytes(path))
            .expect("the log has a segment");
        let mut bytes = fs::read(&segment).expect("read");
        let middle = written_bytes(&segment) / 2;
        bytes[middle] ^= 0x10;
        fs::write(&segment, &bytes).expect("written");
        let Err(said) = stopped.try_restart() else {
            panic!("a damaged log was opened (clean stop: {clean})");
        };
        assert!(said.contains("damaged") || said.contains("corrupt"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        // Mended, it serves again: the refusal changed nothing.
        bytes[middle] ^= 0x10;
        fs::write(&segment, &bytes).expect("written");
        let server = stopped.restart();
        assert_eq!(tally(&server, "follow", target)["incoming"], 200);
    }
}

/// Segments are preallocated: what is written ends before the zeros.
fn written_bytes(path: &Path) -> usize {
    let bytes = fs::read(path).expect("read");
    bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
}
