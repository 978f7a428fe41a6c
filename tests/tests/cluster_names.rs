//! Kinds that one instance has just made and another has not heard of: they are known there as soon as
//! somebody names them, with no token.

use guanxi_tests::{Cluster, Server, Watcher, edge, node_run, nodes};
use serde_json::{Value, json};

/// Each time the other instance may have heard of the kind by itself, as it looks every second.
const ROUNDS: u32 = 6;

/// The two instances of a new cluster.
fn two(test: &str) -> Option<(Cluster, Server, Server)> {
    let cluster = Cluster::start_or_skip(test)?;
    let (one, other) = (cluster.instance(), cluster.instance());
    Some((cluster, one, other))
}

/// Makes a kind; its name.
fn new_kind(server: &Server, name: String, target_type: &str) -> String {
    let kind = json!({ "name": name, "source_type": "user", "target_type": target_type });
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    name
}

fn keyed_batch(server: &Server, key: &str, changes: &Value) -> guanxi_tests::Answer {
    let request = server.request("POST", "/v1/edges/batch").header("idempotency-key", key);
    request.json(&json!({ "changes": changes })).send()
}

/// Several of them are woken by it at the same moment, on an instance that has not heard of the kind.
#[test]
fn watchers_get_the_first_record_of_a_new_kind() {
    let Some((_cluster, one, other)) = two("watchers of new kinds") else { return };
    let mut watchers: Vec<Watcher> =
        (0..6).map(|_| Watcher::open(other.address(), "from=now")).collect();
    for watcher in &mut watchers {
        assert_eq!(watcher.event().name, "heartbeat");
    }
    for number in 0..ROUNDS {
        let name = new_kind(&one, format!("first_{number}"), "user");
        let [source, target] = nodes();
        one.put(edge(&name, source, target)).expect_change(true, "live");
        for watcher in &mut watchers {
            let record = watcher.record();
            assert_eq!(record["kind"], name.as_str(), "{record}");
        }
    }
}

#[test]
fn a_kind_just_made_is_known_wherever_it_is_named() {
    let Some((_cluster, one, other)) = two("names of new kinds") else { return };
    for number in 0..ROUNDS {
        let [source, target] = nodes();
        let name = new_kind(&one, format!("put_{number}"), "user");
        other.put(edge(&name, source, target)).expect_change(true, "live");
        let name = new_kind(&one, format!("read_{number}"), "user");
        assert_eq!(other.get(edge(&name, source, target)).ok()["related"], false);
        let name = new_kind(&one, format!("tally_{number}"), "user");
        let asked = json!({ "ids": [source.to_string()], "kinds": [name] });
        other.post_json("/v1/tallies", asked).ok();
        let name = new_kind(&one, format!("batch_{number}"), "user");
        let change = json!({ "op": "put", "kind": name, "source": source, "target": target });
        let batch = other.post_json("/v1/edges/batch", json!({ "changes": [change] }));
        assert_eq!(batch.ok()["results"][0]["changed"], true, "{}", batch.text);
        // A kind may bring a node type.
        let fresh = format!("type_{number}");
        new_kind(&one, format!("with_type_{number}"), &fresh);
        let path = format!("/v1/nodes/{fresh}/{source}");
        assert_eq!(other.put_json(path, json!({ "private": true })).ok()["private"], true);
    }
    other.put(edge("never_made", 1, 2)).expect_error(404, "unknown_kind");
}

/// What a key stands for does not depend on what the instance had heard of.
#[test]
fn a_keyed_batch_is_the_same_on_every_instance() {
    let Some((_cluster, one, other)) = two("keyed batches of new kinds") else { return };
    for number in 0..ROUNDS {
        let [source, first, second] = nodes();
        let name = new_kind(&one, format!("keyed_{number}"), "user");
        let key = format!("key-{number}");
        let changes = json!([
            { "op": "put", "kind": "follow", "source": source, "target": first },
            { "op": "put", "kind": name, "source": source, "target": second },
        ]);
        // Either may be asked first.
        let order = if number % 2 == 0 { [&one, &other] } else { [&other, &one] };
        let [done, again] = order.map(|server| keyed_batch(server, &key, &changes));
        assert_eq!(done.ok()["results"][1]["changed"], true, "{}", done.text);
        assert_eq!(again.ok()["results"], done.ok()["results"]);
    }
}

#[test]
fn an_import_takes_lines_of_a_kind_just_made() {
    let Some((_cluster, one, other)) = two("imports of new kinds") else { return };
    for number in 0..ROUNDS {
        let [source, target] = nodes();
        let name = new_kind(&one, format!("imported_{number}"), "user");
        let lines = format!(
            "{{\"kind\":\"follow\",\"source\":{source},\"target\":{target}}}\n\
             {{\"kind\":\"{name}\",\"source\":{source},\"target\":{target}}}\n"
        );
        let request = other.request("POST", "/v1/admin/import");
        let imported = request.bytes("application/x-ndjson", lines).send();
        assert_eq!(imported.ok()["accepted"], 2, "{}", imported.text);
    }
    // What nobody makes is rejected, line by line.
    let line = |id: &u64| format!("{{\"kind\":\"never_made\",\"source\":{id},\"target\":{id}}}\n");
    let lines: String = node_run(2_000).iter().map(line).collect();
    let request = other.request("POST", "/v1/admin/import");
    let imported = request.bytes("application/x-ndjson", lines).send();
    assert_eq!(imported.ok()["rejected"], 2_000, "{}", imported.text);
}
