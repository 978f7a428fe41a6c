//! A standby: what it serves and refuses, how it comes back, how it is promoted, and what becomes
//! of the old primary. Kills under load stand in standby_kills.rs, required confirmations in
//! standby_required.rs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use guanxi_tests::{
    Cli, Client, Server, assert_keys, assert_lists_and_tallies_agree, edge, metric, node, node_run,
    nodes, poll_until, primary_options, put_all, run_to_exit, standby_options, standing,
    start_standby, tally, wait_until_caught_up,
};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);
/// The log is sealed at one look and trimmed at another, half a minute apart.
const TRIMMED_DEADLINE: Duration = Duration::from_secs(150);

#[track_caller]
fn related(client: &Client, source: u64, target: u64) -> bool {
    client.get(edge("follow", source, target)).ok()["related"].as_bool().expect("a flag")
}

#[test]
fn a_standby_shows_what_its_primary_has() {
    let primary = Server::start_with(primary_options());
    let (sources, targets) = (node_run(20), node_run(30));
    let edges: Vec<_> =
        sources.iter().flat_map(|s| targets.iter().map(move |t| (*s, *t))).collect();
    put_all(&primary, "follow", &edges);
    let standby = start_standby(&primary);
    wait_until_caught_up(&primary, &standby);
    let found = assert_lists_and_tallies_agree(&standby, "follow", &sources, &targets);
    assert_eq!(found.len(), edges.len());

    // What comes later comes too: a write's token is met within its wait.
    let [source, target, post] = nodes();
    let token = primary.put(edge("follow", source, target)).token();
    let read = format!("{}?at_least={token}", edge("follow", source, target));
    poll_until("the token is met", SOON, || (standby.get(&read).status == 200).then_some(()));
    assert_eq!(standby.get(&read).ok()["related"], true);
    let created = json!({"name": "subscribe", "source_type": "user", "target_type": "channel"});
    primary.post_json("/v1/admin/kinds", created).expect_status(201);
    primary.post_json(format!("/v1/groups/follow/{source}"), json!({"name": "friends"}));
    primary.post_json(format!("/v1/counters/view/{post}"), json!({"delta": 7, "key": "k"})).ok();
    primary.put_json(node("user", source), json!({"private": true})).ok();
    let job = primary.delete(node("user", target));
    let job = job.expect_status(202)["job"].as_str().expect("a job").to_owned();
    poll_until("the erasure ends", SOON, || {
        (primary.get(format!("/v1/jobs/{job}")).ok()["state"] == "done").then_some(())
    });
    wait_until_caught_up(&primary, &standby);
    assert!(!related(&standby, source, target), "erased there, erased here");
    assert_eq!(tally(&standby, "view", post)["value"], 7);
    for path in [
        "/v1/admin/kinds".to_owned(),
        format!("/v1/groups/follow/{source}"),
        node("user", source),
        format!("/v1/jobs/{job}"),
    ] {
        assert_eq!(standby.get(&path).ok(), primary.get(&path).ok(), "{path}");
    }
}

#[test]
fn a_standby_refuses_writes_and_names_its_primary() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let [a, b] = nodes();
    let refusals = [
        standby.put(edge("follow", a, b)),
        standby.delete(edge("follow", a, b)),
        standby.post_json(
            "/v1/edges/batch",
            json!({"changes": [{"op": "put", "kind": "follow", "source": a, "target": b}]}),
        ),
        standby.post_json(format!("/v1/counters/view/{a}"), json!({"delta": 1})),
        standby.post_json(format!("/v1/groups/follow/{a}"), json!({"name": "friends"})),
        standby.delete(node("user", a)),
        standby.post_json(
            "/v1/admin/kinds",
            json!({"name": "x", "source_type": "user", "target_type": "user"}),
        ),
    ];
    for refused in refusals {
        let message = refused.expect_error(503, "read_only");
        assert!(message.contains(&primary.url()), "{message}");
    }
    wait_until_caught_up(&primary, &standby);
    assert!(!related(&standby, a, b));
}

#[test]
fn role_and_lag_are_shown() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let [a, b] = nodes();
    primary.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&primary, &standby);

    let shown = standing(&standby);
    assert_keys(&shown, &["role", "epoch", "position", "following", "standbys"]);
    assert_eq!(shown["role"], "standby");
    assert_eq!(shown["following"]["primary"], primary.url());
    assert_eq!(shown["following"]["lag_positions"], 0);
    assert_eq!(shown["following"]["lag_ms"], 0);
    let ready = standby.get("/readyz");
    assert_keys(ready.ok(), &["status", "role", "lag_positions", "lag_ms", "last_contact"]);
    assert_eq!(metric(&standby, "guanxi_standby"), 1.0);
    assert_eq!(metric(&standby, "guanxi_standby_lag_positions"), 0.0);

    assert_eq!(primary.get("/readyz").ok(), &json!({"status": "ready", "role": "primary"}));
    let followers = poll_until("the primary hears of it", SOON, || {
        let shown = standing(&primary);
        let all_there = shown["standbys"][0]["lag_positions"] == 0;
        all_there.then(|| shown["standbys"].as_array().map_or(0, Vec::len))
    });
    assert_eq!(followers, 1);
    assert_eq!(metric(&primary, "guanxi_standbys"), 1.0);
    assert_eq!(metric(&primary, "guanxi_standby"), 0.0);

    // The primary goes: the standby serves on, and says how long it has heard nothing.
    let primary = primary.kill();
    let trouble = poll_until("the loss is noticed", SOON, || {
        standing(&standby)["following"]["trouble"].as_str().map(str::to_owned)
    });
    assert!(!trouble.is_empty());
    assert!(related(&standby, a, b));
    standby.get("/readyz").ok();
    poll_until("the lag grows", SOON, || {
        (metric(&standby, "guanxi_standby_lag_seconds") > 0.5).then_some(())
    });
    // It comes back on its old address, and the standby finds it.
    let primary = primary.restart();
    primary.put(edge("follow", b, a)).ok();
    wait_until_caught_up(&primary, &standby);
    assert!(related(&standby, b, a));
    assert_eq!(metric(&standby, "guanxi_standby_lag_seconds"), 0.0);
}

#[test]
fn a_standby_goes_on_after_a_stop_and_after_a_kill() {
    let primary = Server::start_with(primary_options());
    let mut standby = start_standby(&primary);
    for round in 0..4 {
        let run = node_run(40);
        let edges: Vec<_> = run.windows(2).map(|pair| (pair[0], pair[1])).collect();
        put_all(&primary, "follow", &edges[..20]);
        let stopped = if round % 2 == 0 { standby.kill() } else { standby.terminate() };
        put_all(&primary, "follow", &edges[20..]);
        standby = stopped.restart();
        wait_until_caught_up(&primary, &standby);
        let found = assert_lists_and_tallies_agree(&standby, "follow", &run, &run);
        assert_eq!(found.len(), edges.len(), "round {round}");
    }
    // Without its primary it starts and serves all the same.
    let [a, b] = nodes();
    primary.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&primary, &standby);
    let _primary = primary.kill();
    let standby = standby.terminate().restart();
    assert!(related(&standby, a, b));
    standby.put(edge("follow", b, a)).expect_error(503, "read_only");
}

#[test]
fn a_promoted_standby_is_a_primary_for_good() {
    let primary = Server::start_with(primary_options());
    primary.post("/v1/admin/promote").expect_error(409, "conflict");
    let standby = start_standby(&primary);
    let [a, b, c] = nodes();
    let before = primary.put(edge("follow", a, b)).token();
    wait_until_caught_up(&primary, &standby);
    let epoch = standing(&primary)["epoch"].as_u64().expect("an epoch");
    let position = standing(&primary)["position"].as_u64().expect("a position");
    let unshipped = {
        // What the old primary writes alone is no part of the new one's history.
        let stopped = standby.terminate();
        let token = primary.put(edge("follow", a, c)).token();
        let primary = primary.kill();
        let standby = stopped.restart();
        let answer = standby.post("/v1/admin/promote");
        let promoted = answer.ok();
        assert_keys(promoted, &["position", "epoch", "committed_at", "age_ms"]);
        assert_eq!(promoted["position"], position);
        assert!(promoted["epoch"].as_u64().expect("an epoch") > epoch);
        (token, primary, standby)
    };
    let (lost_token, _primary, standby) = unshipped;
    standby.post("/v1/admin/promote").expect_error(409, "conflict");
    assert_eq!(standing(&standby)["role"], "primary");
    assert_eq!(metric(&standby, "guanxi_standby"), 0.0);

    // A token of what it has stays good; one of what was lost does not; its own are.
    let read = |token: &str| format!("{}?at_least={token}", edge("follow", a, b));
    assert_eq!(standby.get(read(&before)).ok()["related"], true);
    standby.get(read(&lost_token)).expect_error(410, "position_expired");
    assert!(!related(&standby, a, c));
    let after = standby.put(edge("follow", b, c)).token();
    assert_eq!(standby.get(read(&after)).ok()["related"], true);

    // --follow is still on its command line.
    let stopped = standby.kill();
    let promoted = stopped.restart();
    assert!(promoted.log().contains("NOT following"), "{}", promoted.log());
    promoted.put(edge("follow", c, b)).ok();
    assert_eq!(promoted.get(read(&after)).ok()["related"], true);
    promoted.post("/v1/admin/promote").expect_error(409, "conflict");
}

#[test]
fn two_promotions_at_once_are_two_epochs() {
    let primary = Server::start_with(primary_options());
    let standbys = [start_standby(&primary), start_standby(&primary)];
    let [a, b, c] = nodes();
    primary.put(edge("follow", a, b)).ok();
    standbys.iter().for_each(|standby| wait_until_caught_up(&primary, standby));
    let _primary = primary.kill();
    let epochs = standbys
        .each_ref()
        .map(|standby| standby.post("/v1/admin/promote").ok()["epoch"].as_u64().expect("an epoch"));
    assert_ne!(epochs[0], epochs[1]);
    // So what one of them gives out does not mean anything at the other.
    let [one, other] = &standbys;
    let token = one.put(edge("follow", b, c)).token();
    other.put(edge("follow", c, a)).ok();
    let read = format!("{}?at_least={token}", edge("follow", b, c));
    assert_eq!(one.get(&read).ok()["related"], true);
    other.get(&read).expect_error(410, "position_expired");
}

/// Ends with the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_standby_whose_primary_is_not_there_says_so_at_once_and_waits() {
    let options = primary_options();
    let address = options.listen.clone().expect("a primary's address is fixed");
    let url = format!("http://{address}");
    let folder = tempfile::tempdir().expect("a temporary directory");
    let data = folder.path().join("data");
    let data = data.to_str().expect("a path is text");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", data, "--follow", &url];
    let mut process = Killed(Cli::default().spawn(&serve, Stdio::piped()));
    let process = &mut process.0;
    let mut lines = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let said = lines.by_ref().map_while(Result::ok).find(|line| line.contains("WARN"));
    let said = said.expect("it says why it is not ready");
    for part in [&url, "cannot be asked", "asking again for", "Nothing is served until it answers"]
    {
        assert!(said.contains(part), "{said}");
    }
    // It has asked many times in a second; then the primary comes.
    std::thread::sleep(Duration::from_secs(1));
    let primary = Server::start_with(options);
    let mut ready = BufReader::new(process.stdout.take().expect("stdout is piped")).lines();
    let ready = ready.next().expect("a line").expect("the line is text");
    assert!(ready.contains("is ready on"), "{ready}");
    process.kill().expect("the process is ours");
    process.wait().expect("the process is ours");
    let more: Vec<String> = lines.map_while(Result::ok).collect();
    let warnings = more.iter().filter(|line| line.contains("WARN")).count();
    assert!(warnings <= 1, "the same is not said again and again: {more:?}");
    drop(primary);
}

#[test]
fn the_doctor_tells_a_standbys_trouble() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let doctor = || Cli::of(&standby).run(&["doctor", "--json"]).stdout;
    assert!(!doctor().contains("does not follow"));
    let url = primary.url();
    let _primary = primary.kill();
    poll_until("the standby notices", SOON, || {
        let trouble = standing(&standby)["following"]["trouble"].clone();
        trouble.as_str().is_some_and(|why| why.contains("nothing answers")).then_some(())
    });
    let said = doctor();
    for part in [&format!("it does not follow {url}: nothing answers"), "guanxi promote"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn the_command_line_promotes() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let [a, b] = nodes();
    primary.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&primary, &standby);
    let _primary = primary.kill();
    let here = std::env::temp_dir();
    let url = standby.url();
    let done = run_to_exit(&["promote", "--server", &url], &here);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}");
    for part in [&url, "is the primary now", "last position", "new epoch", "ago"] {
        assert!(said.contains(part), "{said}");
    }
    standby.put(edge("follow", b, a)).ok();
    let again = run_to_exit(&["promote", "--server", &url, "--json"], &here);
    assert_eq!(again.status.code(), Some(1), "refused by a rule");
    assert!(String::from_utf8_lossy(&again.stderr).contains("conflict"));
}

#[test]
fn an_old_primary_follows_the_new_one_if_it_has_nothing_more() {
    let old = Server::start_with(primary_options());
    let new = start_standby(&old);
    let [a, b, c] = nodes();
    old.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&old, &new);
    let old = old.terminate();
    new.post("/v1/admin/promote").ok();
    new.put(edge("follow", b, c)).ok();

    let old = old.with_options(standby_options(&new.url())).restart();
    assert_eq!(standing(&old)["role"], "standby");
    wait_until_caught_up(&new, &old);
    assert!(related(&old, b, c));
    assert_eq!(standing(&old)["epoch"], standing(&new)["epoch"]);
    // And back again: a token of each history on the way is good at the end.
    let token = new.put(edge("follow", c, a)).token();
    wait_until_caught_up(&new, &old);
    let _new = new.terminate();
    old.post("/v1/admin/promote").ok();
    let read = format!("{}?at_least={token}", edge("follow", c, a));
    assert_eq!(old.get(read).ok()["related"], true);
    old.put(edge("follow", a, c)).ok();
}

#[test]
fn an_old_primary_with_records_of_its_own_is_refused() {
    let old = Server::start_with(primary_options());
    let new = start_standby(&old);
    let [a, b, c] = nodes();
    old.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&old, &new);
    let new = new.terminate();
    for target in [c, a + 1_000_000, a + 1_000_001] {
        old.put(edge("follow", a, target)).ok();
    }
    let old = old.kill();
    let new = new.restart();
    new.post("/v1/admin/promote").ok();

    let old = old.with_options(standby_options(&new.url()));
    let said = old.try_restart().err().expect("it has what the new one lacks");
    assert!(said.contains("3 records past position"), "{said}");
    assert!(said.contains("Move its data directory away"), "{said}");
    // As one that follows nobody it has them still.
    let old = old.with_options(primary_options()).restart();
    assert!(related(&old, a, c));
}

#[test]
fn a_copy_is_not_served_as_something_else() {
    let primary = Server::start_with(primary_options());
    let [a, b] = nodes();
    primary.put(edge("follow", a, b)).ok();
    let standby = start_standby(&primary);
    wait_until_caught_up(&primary, &standby);
    let standby = standby.terminate();

    // As a primary of its own it would be a second truth under the same epoch.
    let alone = standby.with_options(primary_options());
    let said = alone.try_restart().err().expect("a standby's directory");
    assert!(said.contains("standby's directory") && said.contains("guanxi promote"), "{said}");

    // A stranger has other records under the same numbers.
    let stranger = Server::start_with(primary_options());
    put_all(&stranger, "follow", &[(b, a), (a, b)]);
    let astray = alone.with_options(standby_options(&stranger.url()));
    let said = astray.try_restart().err().expect("another history");
    assert!(said.contains("another history"), "{said}");

    // Nothing was changed by either attempt.
    let standby = astray.with_options(standby_options(&primary.url())).restart();
    primary.put(edge("follow", b, a)).ok();
    wait_until_caught_up(&primary, &standby);
    assert!(related(&standby, b, a));
}

#[test]
fn one_that_was_refused_in_the_middle_says_so_and_serves_on() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let [a, b] = nodes();
    primary.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&primary, &standby);
    // Another service takes the primary's place.
    let address = primary.address().to_string();
    let _primary = primary.kill();
    let mut options = primary_options();
    options.listen = Some(address);
    let stranger = Server::start_with(options);
    put_all(&stranger, "follow", &[(b, a)]);
    poll_until("the standby notices", SOON, || {
        let trouble = standing(&standby)["following"]["trouble"].clone();
        trouble.as_str().is_some_and(|why| why.contains("another history")).then_some(())
    });
    assert!(standby.log().contains("does not follow"), "{}", standby.log());
    standby.get("/readyz").expect_error(503, "unavailable");
    assert!(related(&standby, a, b) && !related(&standby, b, a));
}

#[test]
fn one_that_was_away_too_long_begins_anew() {
    let mut options = primary_options();
    let setting = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    options.environment = vec![setting("GUANXI_LOG_RETENTION_MS", "1")];
    let primary = Server::start_with(options);
    let standby = start_standby(&primary);
    let [a, b, c] = nodes();
    primary.put(edge("follow", a, b)).ok();
    wait_until_caught_up(&primary, &standby);
    let standby = standby.terminate();
    primary.put(edge("follow", b, c)).ok();
    let missing = standing(&primary)["position"].as_f64().expect("a position");
    poll_until("the log is trimmed", TRIMMED_DEADLINE, || {
        primary.put(edge("follow", c, a)).ok();
        primary.delete(edge("follow", c, a)).ok();
        (metric(&primary, "guanxi_position_log_first") > missing).then_some(())
    });
    let said = standby.try_restart().err().expect("what it lacks is gone");
    assert!(said.contains("no longer in the log"), "{said}");
    assert!(said.contains("move its data directory away"), "{said}");
    // A new one takes a copy, as the log alone would not do.
    let standby = start_standby(&primary);
    primary.put(edge("follow", a, c)).ok();
    wait_until_caught_up(&primary, &standby);
    for (source, target) in [(a, b), (b, c), (a, c)] {
        assert!(related(&standby, source, target));
    }
    assert_lists_and_tallies_agree(&standby, "follow", &[a, b, c], &[a, b, c]);
    // The copy is a standby's from its first moment on, and can be promoted without its primary.
    let _primary = primary.kill();
    let standby = standby.kill().restart();
    standby.put(edge("follow", c, b)).expect_error(503, "read_only");
    standby.post("/v1/admin/promote").ok();
    standby.put(edge("follow", c, b)).ok();
}

#[test]
fn a_wrong_request_for_the_log_is_refused() {
    let server = Server::start_with(primary_options());
    let epoch = standing(&server)["epoch"].as_u64().expect("an epoch");
    for query in [
        "",
        "?commit_ms=1",
        "?after=x",
        "?after=1",
        "?after=1.-1",
        "?after=1.18446744073709551615",
        "?after=1.0&commit_ms=x",
        "?after=1.0&wait_ms=5001",
        "?after=1.0&wait=1",
        "?after=1.0&standby=x",
        "?after=1.0&standby=0",
    ] {
        server.get(format!("/v1/admin/log{query}")).expect_error(400, "invalid_argument");
    }
    let ask = |after: String| server.get(format!("/v1/admin/log?after={after}&wait_ms=0"));
    ask(format!("{}.5", epoch + 1)).expect_error(409, "conflict");
    ask(format!("{epoch}.999999")).expect_error(409, "conflict");
    let shipped = ask(format!("{epoch}.0"));
    assert_eq!(shipped.status, 200);
    assert_eq!(shipped.header("content-type"), Some("application/octet-stream"));
    let refused = run_to_exit(&["serve", "--follow", "nowhere"], server.data_directory());
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}
