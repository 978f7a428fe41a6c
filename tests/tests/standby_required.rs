//! `standby.required`: nothing is acknowledged, read or watched before a standby has it on disk,
//! over stalls, restarts and stops. Who counts as one stands in `standby_required/counted.rs`.

#[path = "standby_required/counted.rs"]
mod counted;

use std::time::{Duration, Instant};

use guanxi_tests::{
    Answer, Client, Next, Server, Watcher, edge, millis_now, node, nodes, poll_until,
    requiring_options, rfc3339, start_standby,
};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);
/// How long callers wait for a standby in these tests: short, for those who wait in vain.
const TIMEOUT_MS: u64 = 700;

fn is_shown(client: &Client, source: u64, target: u64) -> bool {
    client.get(edge("follow", source, target)).ok()["related"].as_bool().expect("a flag")
}

/// Starts a primary that requires a standby, and that standby; both are ready.
fn start_pair() -> (Server, Server) {
    let primary = Server::start_with(requiring_options(1, TIMEOUT_MS));
    let standby = start_standby(&primary);
    wait_until_shown(&primary);
    (primary, standby)
}

#[track_caller]
fn wait_until_shown(primary: &Client) {
    poll_until("the standby confirms", SOON, || {
        (primary.get("/readyz").status == 200).then_some(())
    });
}

/// Puts it again until it is confirmed: a busy standby may need longer than callers wait.
#[track_caller]
fn put_confirmed(primary: &Client, path: &str) {
    poll_until("the put is confirmed", SOON, || (primary.put(path).status == 200).then_some(()));
}

/// Begins the erasure of a user, again until it is confirmed, and returns its job.
#[track_caller]
fn erase_confirmed(primary: &Client, user: u64) -> String {
    let begun = poll_until("the erasure is confirmed", SOON, || {
        Some(primary.delete(node("user", user))).filter(|answer| answer.status == 202)
    });
    begun.body["job"].as_str().expect("a job").to_owned()
}

/// Refused as one that may still be done.
#[track_caller]
fn expect_unconfirmed(answer: &Answer) {
    answer.expect_error(503, "unavailable");
    assert_eq!(answer.body["outcome"], "unknown", "{}", answer.text);
}

/// Waits until writes are refused without being begun.
#[track_caller]
fn expect_stalled(primary: &Client, path: &str) {
    poll_until("the stall is noticed", SOON, || {
        let answer = primary.put(path);
        answer.expect_error(503, "unavailable");
        (answer.body["outcome"] == "none").then_some(())
    });
    // Whoever looks after it is told before the next write is lost.
    let readiness = primary.get("/readyz");
    let message = readiness.expect_error(503, "unavailable");
    assert!(message.contains("standby.required asks for"), "{message}");
}

#[test]
fn a_primary_that_nobody_follows_shows_nothing() {
    let primary = Server::start_with(requiring_options(1, TIMEOUT_MS));
    let [a, b] = nodes();
    for answer in [
        primary.get(edge("follow", a, b)),
        primary.get("/v1/admin/kinds"),
        primary.get("/v1/watch?from=earliest"),
        primary.post_json("/v1/tallies", json!({"ids": [a], "kinds": ["follow"]})),
        primary.put(edge("follow", a, b)),
        primary.get("/readyz"),
    ] {
        let message = answer.expect_error(503, "unavailable");
        assert!(message.contains("standby.required"), "{message}");
        assert_eq!(answer.body["outcome"], "none");
    }
    primary.assert_healthy();
    assert_eq!(primary.get("/metrics").status, 200);

    let _standby = start_standby(&primary);
    wait_until_shown(&primary);
    put_confirmed(&primary, &edge("follow", a, b));
    assert!(is_shown(&primary, a, b));
}

#[test]
fn a_write_that_no_standby_confirms_is_not_shown_until_one_does() {
    let (primary, standby) = start_pair();
    let [a, b, c] = nodes();
    put_confirmed(&primary, &edge("follow", a, b));
    let mut watcher = Watcher::open(primary.address(), "from=now&kinds=follow");

    standby.pause();
    let begun = Instant::now();
    // The first request may find a poll of the standby that was answered before the pause.
    let unconfirmed = poll_until("the standby's silence is felt", SOON, || {
        let answer = primary.put(edge("follow", a, c));
        (answer.status != 200).then_some(answer)
    });
    expect_unconfirmed(&unconfirmed);
    assert!(begun.elapsed() < Duration::from_millis(TIMEOUT_MS * 8), "{:?}", begun.elapsed());
    assert!(!is_shown(&primary, a, c), "nobody sees it yet");
    assert!(is_shown(&primary, a, b), "what was confirmed is read all the while");
    assert_eq!(records(&mut watcher, Duration::from_millis(300)), Vec::<String>::new());
    expect_stalled(&primary, &edge("follow", b, c));
    assert!(!is_shown(&primary, a, c));

    standby.resume();
    poll_until("it is shown when it is confirmed", SOON, || is_shown(&primary, a, c).then_some(()));
    assert_eq!(watcher.record()["target"], c.to_string());
    assert_eq!(records(&mut watcher, Duration::from_millis(300)), Vec::<String>::new());
    assert!(!is_shown(&primary, b, c), "what was refused was not done");
    put_confirmed(&primary, &edge("follow", b, c));
}

/// The targets of the records that come within this time.
fn records(watcher: &mut Watcher, within: Duration) -> Vec<String> {
    let until = Instant::now() + within;
    let mut targets = Vec::new();
    loop {
        match watcher.next(until.saturating_duration_since(Instant::now())) {
            Next::Event(event) if event.name == "record" => {
                targets.push(event.data["target"].as_str().expect("a target").to_owned());
            }
            Next::Event(_) => {}
            Next::Nothing => return targets,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn what_was_not_confirmed_before_a_kill_is_not_shown_after_it() {
    let (primary, standby) = start_pair();
    let [a, b, c] = nodes();
    put_confirmed(&primary, &edge("follow", a, b));
    standby.pause();
    poll_until("the standby's silence is felt", SOON, || {
        let answer = primary.put(edge("follow", a, c));
        (answer.status != 200).then_some(())
    });
    let primary = primary.kill().restart();
    // It is in the log, and so would be in the store; but the standby may be promoted without it.
    primary.get(edge("follow", a, c)).expect_error(503, "unavailable");
    primary.get("/readyz").expect_error(503, "unavailable");
    primary.put(edge("follow", b, c)).expect_error(503, "unavailable");
    standby.resume();
    wait_until_shown(&primary);
    assert!(is_shown(&primary, a, b));
    assert!(is_shown(&primary, a, c), "the standby has it now");
    put_confirmed(&primary, &edge("follow", b, c));
}

#[test]
fn a_standby_that_begins_anew_confirms_again() {
    let (primary, standby) = start_pair();
    let [a, b, c] = nodes();
    put_confirmed(&primary, &edge("follow", a, b));
    let _gone = standby.kill();
    poll_until("its silence is felt", SOON, || {
        (primary.put(edge("follow", a, c)).status != 200).then_some(())
    });
    let standby = start_standby(&primary);
    poll_until("the new one confirms", SOON, || is_shown(&primary, a, c).then_some(()));
    put_confirmed(&primary, &edge("follow", b, c));
    assert!(is_shown(&standby, a, b));
}

#[test]
fn what_the_service_does_by_itself_outlasts_a_stall() {
    let (primary, standby) = start_pair();
    let [a, b, c, d] = nodes();
    put_confirmed(&primary, &edge("follow", c, d));
    poll_until("an edge with an expiry is confirmed", SOON, || {
        let expires_at = rfc3339(millis_now() + 1_500);
        let answer = primary.put_json(edge("follow", a, b), json!({"expires_at": expires_at}));
        (answer.status == 200).then_some(())
    });
    let job = erase_confirmed(&primary, c);
    standby.pause();
    // Longer than callers wait, and past the expiry.
    std::thread::sleep(Duration::from_millis(1_500 + 2 * TIMEOUT_MS));
    standby.resume();
    poll_until("the edge expires", SOON, || (!is_shown(&primary, a, b)).then_some(()));
    poll_until("the erasure ends", SOON, || {
        (primary.get(format!("/v1/jobs/{job}")).ok()["state"] == "done").then_some(())
    });
    // The threads that did it live on.
    let job = erase_confirmed(&primary, d);
    poll_until("another erasure ends", SOON, || {
        (primary.get(format!("/v1/jobs/{job}")).ok()["state"] == "done").then_some(())
    });
}

#[test]
fn a_stop_does_not_wait_for_a_standby() {
    let (primary, standby) = start_pair();
    let [a, b, c] = nodes();
    put_confirmed(&primary, &edge("follow", a, b));
    standby.pause();
    poll_until("the standby's silence is felt", SOON, || {
        (primary.put(edge("follow", a, c)).status != 200).then_some(())
    });
    let begun = Instant::now();
    let stopped = primary.terminate();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.log);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let primary = stopped.restart();
    primary.get(edge("follow", a, c)).expect_error(503, "unavailable");
    standby.resume();
    wait_until_shown(&primary);
    assert!(is_shown(&primary, a, b) && is_shown(&primary, a, c));
}
