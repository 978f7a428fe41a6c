//! A cluster of the real binary: what is written on one instance is read on another, whoever plays
//! which part, and whatever ends or goes away meanwhile.

use std::time::Duration;

use guanxi_tests::{Cluster, Server, edge, edge_call, metric, node, nodes, poll_until};
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
    workers.get(edge("follow", fan, star)).expect_error(503, "unavailable");
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
        ("GET", "/v1/admin/log?after=1.0&standby=1"),
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
