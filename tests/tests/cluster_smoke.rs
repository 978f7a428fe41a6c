//! A cluster of the real binary: what is written on one instance is read on another, whoever plays
//! which part, and whatever ends or goes away meanwhile.

use std::time::Duration;

use guanxi_services::{Kafka, MariaDb, fresh_database};
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::{channel, put_more};
use guanxi_tests::{
    Cli, Cluster, Server, Watcher, edge, edge_call, metric, node, nodes, poll_until,
};
use serde_json::{Value, json};

/// Everything here happens within moments; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(60);

fn with_token(server: &Server, path: &str, token: &str) -> Value {
    server.request("GET", path).header("guanxi-at-least", token).send().ok().clone()
}

fn post_with_token(server: &Server, path: &str, body: &Value, token: &str) -> Value {
    let request = server.request("POST", path).header("guanxi-at-least", token);
    request.json(body).send().ok().clone()
}

#[test]
fn what_one_instance_writes_another_reads_with_the_token() {
    let Some(cluster) = Cluster::start_or_skip("tokens") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [fan, star, second] = nodes();
    let put = one.put(edge("follow", fan, star));
    put.expect_change(true, "live");
    let token = put.token();
    let seen = with_token(&other, &edge("follow", fan, star), &token);
    assert_eq!(seen["related"], true);
    let list = with_token(&other, &edge_call("follow", star, "incoming"), &token);
    assert_eq!(list["items"][0]["id"], fan.to_string(), "{list}");
    assert_eq!(list["total"], 1);
    let (cli, whose) = (Cli::of(&other), star.to_string());
    let arguments = ["list", "follow", &whose, "incoming", "--at-least", &token, "--json"];
    assert_eq!(cli.run(&arguments).ok().json()["id"], fan.to_string());
    let arguments = ["tally", "follow", &whose, "--at-least", &token, "--json"];
    let tallies = cli.run(&arguments).ok().json();
    assert_eq!(tallies["results"][0]["tallies"]["follow"]["incoming"], 1, "{tallies}");
    let body = json!({ "ids": [star.to_string(), fan.to_string()], "kinds": ["follow"] });
    let tallies = post_with_token(&other, "/v1/tallies", &body, &token);
    assert_eq!(tallies["results"][0]["tallies"]["follow"]["incoming"], 1, "{tallies}");
    assert_eq!(tallies["results"][1]["tallies"]["follow"]["outgoing"], 1, "{tallies}");
    let check =
        json!({ "source": fan.to_string(), "targets": [star.to_string()], "kinds": ["follow"] });
    let checked = post_with_token(&other, "/v1/check", &check, &token);
    assert_eq!(checked["results"][0]["related"], json!(["follow"]), "{checked}");
    // A write that is given a token stands for both.
    let request = other.request("PUT", &edge("follow", second, star));
    let merged = request.header("guanxi-at-least", &token).send();
    merged.expect_change(true, "live");
    let list = with_token(&one, &edge_call("follow", star, "incoming"), &merged.token());
    assert_eq!(list["total"], 2, "{list}");
    // Without a token it comes by itself.
    poll_until("the target's side", SOON, || {
        let list = other.get(edge_call("follow", star, "incoming")).ok().clone();
        (list["total"] == 2).then_some(())
    });
    let removed = one.delete(edge("follow", fan, star));
    removed.expect_change(true, "removed");
    let list = with_token(&other, &edge_call("follow", star, "incoming"), &removed.token());
    assert_eq!(list["total"], 1, "{list}");
    // Many edges are more than a token names: a barrier stands for them.
    let fans = guanxi_tests::node_run(40);
    let change = |fan: &u64| json!({ "op": "put", "kind": "follow", "source": fan.to_string(), "target": second.to_string() });
    let changes: Vec<Value> = fans.iter().map(change).collect();
    let batch = one.post_json("/v1/edges/batch", json!({ "changes": changes }));
    let token = batch.token();
    let list = poll_until("the barrier", SOON, || {
        let path = edge_call("follow", second, "incoming");
        let answer = other.request("GET", &path).header("guanxi-at-least", &token).send();
        match answer.status {
            200 => Some(answer.ok().clone()),
            _ => {
                answer.expect_error(503, "unavailable");
                None
            }
        }
    });
    assert_eq!(list["total"], 40, "{list}");
}

#[test]
fn groups_nodes_counters_and_kinds_are_shared() {
    let Some(cluster) = Cluster::start_or_skip("shared") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [source, target, post] = nodes();
    one.put(edge("follow", source, target)).expect_change(true, "live");
    let groups = format!("/v1/groups/follow/{source}");
    one.post_json(&groups, json!({ "name": "friends" })).expect_status(201);
    other.put(format!("{groups}/friends/members/{target}")).ok();
    assert_eq!(one.get(&groups).ok()["groups"], json!([{ "name": "friends", "size": 1 }]));
    other.put_json(node("user", target), json!({ "private": true })).ok();
    assert_eq!(one.get(node("user", target)).ok()["private"], true);
    for server in [&one, &other, &one] {
        let body = json!({ "delta": 5, "key": format!("{post}-{}", server.address()) });
        let counted = server.post_json(format!("/v1/counters/view/{post}"), body);
        assert_eq!(counted.ok()["value"], Value::Null);
    }
    let asked = json!({ "ids": [post.to_string()], "kinds": ["view"] });
    let tallies = other.post_json("/v1/tallies", asked).ok().clone();
    assert_eq!(tallies["results"][0]["tallies"]["view"]["value"], 10, "{tallies}");
    let kind = json!({ "name": "subscribe", "source_type": "user", "target_type": "channel" });
    let created = one.post_json("/v1/admin/kinds", kind);
    created.expect_status(201);
    // With the token at once, without it within five seconds.
    with_token(&other, "/v1/admin/kinds/subscribe", &created.token());
    let kind = json!({ "name": "pin", "source_type": "user", "target_type": "post" });
    one.post_json("/v1/admin/kinds", kind).expect_status(201);
    poll_until("the new kind", Duration::from_secs(5), || {
        (other.get("/v1/admin/kinds/pin").status == 200).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_just_created_is_known_by_its_token_over_grpc() {
    let Some(cluster) = Cluster::start_or_skip("kinds over grpc") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let mut edges = EdgesClient::new(channel(&other));
    let [source, target] = nodes();
    // More than once, as the other may just have looked by itself.
    for number in 0..5 {
        let name = format!("fresh_{number}");
        let kind = json!({ "name": name, "source_type": "user", "target_type": "user" });
        let created = one.post_json("/v1/admin/kinds", kind);
        created.expect_status(201);
        let token = Some(created.token());
        assert!(put_more(&mut edges, token, &name, &[(source, target)]).await.is_some());
    }
}

#[test]
fn roles_may_be_played_by_different_processes() {
    let Some(cluster) = Cluster::start_or_skip("roles") else { return };
    let api = cluster.instance_with_roles("api");
    let [fan, star] = nodes();
    let token = api.put(edge("follow", fan, star)).token();
    // Nobody moves the log, and yet the writer is shown its own write.
    let list = with_token(&api, &edge_call("follow", star, "incoming"), &token);
    assert_eq!(list["items"][0]["id"], fan.to_string(), "{list}");
    assert_eq!(list["total"], 1, "{list}");
    assert_eq!(api.get(edge_call("follow", star, "incoming")).ok()["total"], 0);
    let workers = cluster.instance_with_roles("relay,applier,upkeep");
    poll_until("the target's side", SOON, || {
        (api.get(edge_call("follow", star, "incoming")).ok()["total"] == 1).then_some(())
    });
    // Other than with most of this code, nothing comes of asking the same instance again.
    let refused = workers.get(edge("follow", fan, star));
    let code = refused.body["code"].as_str();
    assert_eq!((refused.status, code), (503, Some("unavailable")), "{}", refused.text);
    assert_eq!(refused.body["retryable"], false, "{}", refused.text);
    let doctor = Cli::of(&workers).run(&["doctor", "--json"]).ok().json_lines();
    let said = |check: &str| {
        let finding = doctor.iter().find(|finding| finding["check"] == check);
        finding.unwrap_or_else(|| panic!("nothing about {check}: {doctor:?}"))["message"]
            .to_string()
    };
    assert!(said("ready").contains("relay, applier, upkeep"), "{doctor:?}");
    assert!(said("version").contains("serves no callers"), "{doctor:?}");
    workers.get("/healthz").ok();
    let ready = workers.get("/readyz").ok().clone();
    assert_eq!(ready["role"], "instance");
    assert_eq!(ready["cluster"]["roles"], json!(["relay", "applier", "upkeep"]));
    assert!(metric(&workers, "guanxi_applied_records_total") >= 1.0);
    assert!(metric(&api, "guanxi_commit_batches_total") >= 1.0);
}

#[test]
fn what_only_an_embedded_service_has_is_said_to_be_missing() {
    let Some(cluster) = Cluster::start_or_skip("embedded only") else { return };
    let server = cluster.instance();
    for (method, path) in [
        ("GET", "/v1/admin/backup"),
        ("GET", "/v1/admin/standby"),
        ("POST", "/v1/admin/promote"),
        ("GET", "/v1/admin/log?after=1.0"),
    ] {
        let answer = server.request(method, path).send();
        let message = answer.expect_error(409, "conflict");
        assert!(message.contains("cluster"), "{message}");
    }
    let letters = server.get("/v1/admin/dead-letters").ok().clone();
    assert_eq!(letters, json!({ "dead_letters": [], "next": null }));
    server.get("/v1/admin/dead-letters/7").expect_error(404, "not_found");
    server.post("/v1/admin/dead-letters/7/retry").expect_error(404, "not_found");
    server.delete("/v1/admin/dead-letters/7").expect_error(404, "not_found");
    let audit = server.post_json("/v1/admin/audit", json!({}));
    assert!(matches!(audit.status, 200 | 202), "{}", audit.text);
}

#[test]
fn tables_and_topics_are_made_by_migrate_alone() {
    let Some(cluster) = Cluster::prepare_or_skip("migrate") else { return };
    let refused = guanxi_tests::Server::try_start_with(cluster.options(&[]));
    let said = refused.err().expect("there are no tables");
    assert!(said.contains("guanxi migrate"), "{said}");
    let first = cluster.migrate().ok().json();
    assert_eq!(first["topics_created"].as_array().map(Vec::len), Some(2), "{first}");
    assert!(!first["migrations"].as_array().expect("a list").is_empty(), "{first}");
    let again = cluster.migrate().ok().json();
    assert_eq!(again["topics_created"], json!([]));
    assert_eq!(again["migrations"], json!([]));
    cluster.instance().get("/readyz").ok();
    // A newer release has been here.
    let database = guanxi_services::shared::mariadb();
    guanxi_services::SqlServer::query(
        database,
        &format!("INSERT INTO {}.schema_version VALUES (9999)", cluster.database),
    );
    cluster.migrate().expect_words(3, &["9999", "newer"]);
    let refused = guanxi_tests::Server::try_start_with(cluster.options(&[]));
    assert!(refused.err().expect("it is refused").contains("newer"));
}

#[test]
fn a_watcher_reads_what_any_instance_wrote_and_goes_on_after_a_cut() {
    let Some(cluster) = Cluster::start_or_skip("watch") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [source, target, second] = nodes();
    let mut watcher = Watcher::open(one.address(), "from=now&kinds=follow");
    let begun = watcher.event();
    assert_eq!(begun.name, "heartbeat");
    other.put(edge("like", source, target)).expect_change(true, "live");
    let follow = edge("follow", source, target);
    let put = other.request("PUT", &follow).header("guanxi-reason", "asked to").send();
    let record = watcher.record();
    assert_eq!((&record["reason"], &record["fresh"]), (&json!("asked to"), &json!(true)));
    assert_eq!(record["op"], "put", "{record}");
    assert_eq!(record["source"], source.to_string());
    assert_eq!(record["target"], target.to_string());
    assert_eq!(record["version"], put.ok()["version"]);
    let place = record["id"].as_str().expect("a record has an id").to_owned();
    assert_eq!(watcher.last_id.as_ref(), Some(&place));
    drop(watcher);
    one.put(edge("follow", second, target)).expect_change(true, "live");
    // On another instance, from where the first reader was cut off.
    let mut watcher = Watcher::open_with(other.address(), "kinds=follow", Some(&place));
    let record = watcher.record();
    assert_eq!(record["source"], second.to_string(), "{record}");
    // From the beginning everything comes, in the order of each target.
    let mut watcher = Watcher::open(other.address(), "from=earliest&kinds=follow");
    let sources: Vec<Value> = (0..2).map(|_| watcher.record()["source"].clone()).collect();
    assert_eq!(sources, [json!(source.to_string()), json!(second.to_string())]);
    let wrong = one.get("/v1/watch?from=nonsense");
    wrong.expect_error(400, "invalid_argument");
}

#[test]
fn an_export_names_the_place_from_which_watching_has_no_gap() {
    let Some(cluster) = Cluster::start_or_skip("export") else { return };
    let one = cluster.instance();
    let [source, target, later] = nodes();
    one.put(edge("follow", source, target)).expect_change(true, "live");
    let export = one.get("/v1/admin/export?kind=follow");
    let place = export.header("guanxi-position").expect("an export has a place").to_owned();
    let lines: Vec<Value> =
        export.text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["source"], source.to_string());
    one.put(edge("follow", later, target)).expect_change(true, "live");
    let mut watcher = Watcher::open(one.address(), &format!("from={place}"));
    poll_until("what came after the export", SOON, || {
        (watcher.record()["source"].as_str() == Some(&later.to_string())).then_some(())
    });
    // What one cluster exported another takes.
    let Some(copy) = Cluster::start_or_skip("import") else { return };
    let copy = copy.instance();
    let request = copy.request("POST", "/v1/admin/import?id=copy");
    let imported = request.bytes("application/x-ndjson", export.text.clone()).send();
    assert_eq!(imported.ok()["accepted"], 1, "{}", imported.text);
    let list = with_token(&copy, &edge_call("follow", target, "incoming"), &imported.token());
    assert_eq!(list["items"][0]["id"], source.to_string(), "{list}");
    assert_eq!(list["items"][0]["since"], lines[0]["since"]);
    assert_eq!(copy.get("/v1/admin/import/copy").ok()["lines"], 1);
}

#[test]
fn an_erased_node_is_gone_everywhere() {
    let Some(cluster) = Cluster::start_or_skip("erase") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let [gone, fan, star] = nodes();
    one.put(edge("follow", gone, star)).expect_change(true, "live");
    one.put(edge("follow", fan, gone)).expect_change(true, "live");
    let erased = one.delete(node("user", gone));
    let job = erased.expect_status(202)["job"].as_str().expect("a job").to_owned();
    let refused = other.put(edge("follow", fan, gone));
    refused.expect_error(409, "conflict");
    assert_eq!(refused.body["retryable"], true, "it passes by itself: {}", refused.text);
    // Nobody reads the edges any longer, long before the job may end.
    poll_until("the edges", SOON, || {
        let related = other.get(edge("follow", gone, star)).ok()["related"].clone();
        (related == false).then_some(())
    });
    let cli = Cli::of(&one);
    let waited = cli.run(&["nodes", "erase", "user", &gone.to_string()]);
    assert!(waited.stderr.contains("writes that began before"), "{}", waited.stderr);
    assert!(waited.expect(0).stdout.contains("log_forgets_at"), "{}", waited.stdout);
    let done = poll_until("the erasure", Duration::from_secs(120), || {
        let job = other.get(format!("/v1/jobs/{job}")).ok().clone();
        (job["state"] == "done").then_some(job)
    });
    assert_eq!(done["receipt"]["edges_removed"], 2, "{done}");
    let backups = done["receipt"]["backups"].as_str().expect("a text");
    assert!(backups.contains("the database's own backups"), "{backups}");
    assert_eq!(other.get(edge("follow", fan, gone)).ok()["related"], false);
    poll_until("the target's side", SOON, || {
        (other.get(edge_call("follow", star, "incoming")).ok()["total"] == 0).then_some(())
    });
}

#[test]
fn writers_hardly_notice_a_rolling_restart() {
    let Some(cluster) = Cluster::start_or_skip("rolling restart") else { return };
    let (one, other) = (cluster.instance(), cluster.instance());
    let star = nodes::<1>()[0];
    let fans = guanxi_tests::node_run(120);
    let mut acknowledged = Vec::new();
    let mut instances = [Some(one), Some(other)];
    for (at, fan) in fans.iter().enumerate() {
        // Each instance is stopped and started once, a third and two thirds on the way.
        if at == 40 || at == 80 {
            let stopped = instances[at / 40 - 1].take().expect("it runs").terminate();
            assert!(stopped.status.success(), "{}", stopped.log);
            instances[at / 40 - 1] = Some(cluster.instance());
        }
        let instance = instances[at % 2].as_ref().expect("one runs");
        instance.put(edge("follow", *fan, star)).expect_change(true, "live");
        acknowledged.push(*fan);
    }
    let reader = instances[0].as_ref().expect("it runs");
    poll_until("the target's side", SOON, || {
        let list = reader.get(edge_call("follow", star, "incoming")).ok().clone();
        (list["total"] == acknowledged.len()).then_some(())
    });
}

#[test]
fn readiness_says_what_is_missing() {
    let Some(database) = MariaDb::start_or_skip("readiness") else { return };
    let Some(kafka) = Kafka::start_or_skip("readiness") else { return };
    let cluster = Cluster::on(&fresh_database(&database), &kafka.brokers());
    cluster.migrate().ok();
    let both = cluster.instance();
    let workers = cluster.instance_with_roles("relay,applier");
    for server in [&both, &workers] {
        poll_until("the log to be seen", SOON, || {
            let ready = server.get("/readyz");
            (ready.status == 200 && ready.ok()["cluster"]["log_reachable"] == true).then_some(())
        });
    }
    kafka.stop();
    // Callers are served without the log; who only works on it has nothing to do.
    poll_until("the log's absence", SOON, || {
        let ready = workers.get("/readyz");
        (ready.status == 503).then(|| {
            let message = ready.expect_error(503, "unavailable");
            assert!(message.contains("log"), "{message}");
        })
    });
    poll_until("the log's absence", SOON, || {
        (both.get("/readyz").ok()["cluster"]["log_reachable"] == false).then_some(())
    });
    let [fan, star] = nodes();
    let token = both.put(edge("follow", fan, star)).token();
    let list = with_token(&both, &edge_call("follow", star, "incoming"), &token);
    assert_eq!(list["total"], 1, "the writer sees its write: {list}");
    assert_eq!(both.get(edge("follow", fan, star)).ok()["related"], true);
    kafka.start_again();
    poll_until("the target's side", Duration::from_secs(120), || {
        (both.get(edge_call("follow", star, "incoming")).ok()["total"] == 1).then_some(())
    });
    database.stop();
    poll_until("the database's absence", SOON, || {
        let ready = both.get("/readyz");
        (ready.status == 503).then(|| {
            let message = ready.expect_error(503, "unavailable");
            assert!(message.contains("database"), "{message}");
        })
    });
    both.get("/healthz").ok();
    let refused = both.get(edge("follow", fan, star));
    assert_eq!(refused.status, 503, "{}", refused.text);
    let refused = both.put(edge("follow", star, fan));
    assert!(matches!(refused.status, 503 | 504), "{}", refused.text);
    assert!(!refused.text.contains("127.0.0.1"), "the driver's words stay ours: {}", refused.text);
    database.start_again();
    poll_until("the database's return", SOON, || (both.get("/readyz").status == 200).then_some(()));
    poll_until("reads", SOON, || (both.get(edge("follow", fan, star)).status == 200).then_some(()));
    both.put(edge("follow", star, fan)).expect_change(true, "live");
}

#[test]
fn a_record_that_nobody_can_apply_becomes_a_dead_letter() {
    let Some(cluster) = Cluster::start_or_skip("dead letters") else { return };
    let server = cluster.instance();
    let kafka = guanxi_services::shared::kafka();
    let mut producer = kafka
        .tool("org.apache.kafka.tools.ConsoleProducer")
        .args(["--topic", &cluster.topic])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("Kafka's own producer");
    let mut input = producer.stdin.take().expect("its input");
    std::io::Write::write_all(&mut input, b"no record of ours\n").expect("a line");
    drop(input);
    assert!(producer.wait().expect("it ends").success());
    let letters = poll_until("the letter", SOON, || {
        let letters = server.get("/v1/admin/dead-letters").ok().clone();
        (letters["dead_letters"].as_array().map(Vec::len) == Some(1)).then_some(letters)
    });
    let letter = &letters["dead_letters"][0];
    assert_eq!(letter["topic"], json!(cluster.topic));
    assert_eq!(letter["source"], Value::Null);
    let id = letter["id"].as_str().expect("an id");
    let cli = Cli::of(&server);
    assert_eq!(cli.run(&["dead-letters", "list", "--json"]).ok().json_lines().len(), 1);
    let shown = cli.run(&["dead-letters", "show", id, "--json"]).ok().json();
    assert_eq!(shown["value"], "no record of ours", "{shown}");
    let cause = shown["cause"].as_str().expect("a cause");
    assert!(cause.contains("it is no record of the topic's format"), "{cause}");
    // It names no edge, so there is nothing to read again.
    cli.run(&["dead-letters", "retry", id]).expect(1);
    server.post(format!("/v1/admin/dead-letters/{id}/retry")).expect_error(409, "conflict");
    cli.run(&["dead-letters", "drop", id]).ok();
    let letters = server.get("/v1/admin/dead-letters").ok().clone();
    assert_eq!(letters["dead_letters"], json!([]));
    // What comes after it is applied.
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    poll_until("the target's side", SOON, || {
        (server.get(edge_call("follow", star, "incoming")).ok()["total"] == 1).then_some(())
    });
}

#[test]
fn who_is_not_let_in_is_told_by_whom_and_what_to_check() {
    let Some(database) = MariaDb::start_or_skip("not let in") else { return };
    let url = fresh_database(&database);
    let (place, name) = url.rsplit_once('/').expect("an address");
    let host = place.rsplit_once('@').expect("a user").1;
    let wrong_password = format!("mysql://nobody:secret@{host}/{name}");
    let wrong_name = format!("{place}/no_such_database");
    for (url, words) in [
        (&wrong_password, ["nobody", host, "store.url"]),
        (&wrong_name, ["no_such_database", host, "store.url"]),
        (&"mysql://root@127.0.0.1:1/d".to_owned(), ["127.0.0.1:1", "address", "store.url"]),
    ] {
        // The log is not asked before the database.
        let ran = Cluster::on(url, "127.0.0.1:1").migrate();
        ran.expect_words(3, &words);
        for word in ["MySqlError", "IoError", "DriverError", "secret"] {
            assert!(!ran.stderr.contains(word), "{}", ran.stderr);
        }
    }
}
