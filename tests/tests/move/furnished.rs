//! Some of everything that a service keeps, and what a cluster must say of it.

use guanxi_tests::{Server, edge, millis_now, node, node_run, nodes, rfc3339, tally, version_of};
use serde_json::json;

/// What `furnish` has made: an edge with its version, a token, and whose numbers are known.
pub struct Furnished {
    pub edge: (u64, u64),
    pub version: u64,
    pub token: String,
    /// A place in the service's log.
    pub event: String,
    pub post: u64,
    pub owner: u64,
    pub private: u64,
    pub source_with_groups: u64,
    pub counted: u64,
}

/// Makes some of everything that a service keeps.
pub fn furnish(server: &Server) -> Furnished {
    let [fan, star, private, asker, post, owner, blocker, blocked, counted] = nodes();
    let kind = json!({ "name": "subscribe", "source_type": "user", "target_type": "channel",
        "outgoing_tally": false, "expires": true });
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    server.put(edge("subscribe", fan, 5)).expect_change(true, "live");
    let later = rfc3339(millis_now() + 3_600_000);
    let expiring = json!({ "expires_at": later });
    server.put_json(edge("subscribe", fan, 6), expiring).expect_change(true, "live");
    let put = server.put_json(edge("follow", fan, star), json!({ "data": "é '\\ \"" }));
    put.expect_change(true, "live");
    server.put_json(node("user", private), json!({ "private": true })).ok();
    server.put(edge("follow", asker, private)).expect_change(true, "pending");
    for fan in node_run(30) {
        let owned = json!({ "owner": owner.to_string() });
        server.put_json(edge("like", fan, post), owned.clone()).expect_change(true, "live");
        // Posts of several partitions have one owner.
        server.put_json(edge("like", fan, post + fan), owned).expect_change(true, "live");
    }
    server.put(edge("block", blocker, blocked)).expect_change(true, "live");
    let groups = format!("/v1/groups/follow/{fan}");
    for name in ["friends", "colleagues", "gone"] {
        server.post_json(&groups, json!({ "name": name })).expect_status(201);
    }
    server.put(format!("{groups}/friends/members/{star}")).ok();
    server.delete(format!("{groups}/gone")).ok();
    for (key, delta) in [("a", 1_000_003), ("b", -5)] {
        let body = json!({ "delta": delta, "key": format!("{counted}-{key}") });
        server.post_json(format!("/v1/counters/view/{counted}"), body).ok();
    }
    let put = server.get(edge("follow", fan, star)).ok().clone();
    let token = server.put(edge("follow", star, fan)).token();
    Furnished {
        edge: (fan, star),
        version: version_of(&put),
        token,
        event: export_place(server),
        post,
        owner,
        private,
        source_with_groups: fan,
        counted,
    }
}

/// Where a watcher would go on.
fn export_place(server: &Server) -> String {
    let export = server.get("/v1/admin/export");
    export.header("guanxi-position").expect("an export says where it is of").to_owned()
}

/// Everything that `furnish` made, asked of the cluster.
pub fn assert_furnished(server: &Server, furnished: &Furnished) {
    let (fan, star) = furnished.edge;
    let read = server.request("GET", &edge("follow", fan, star));
    let read = read.header("guanxi-at-least", &furnished.token).send().ok().clone();
    assert_eq!((&read["related"], &read["group"]), (&json!(true), &json!("friends")), "{read}");
    assert_eq!(read["data"], "é '\\ \"");
    assert_eq!(read["mutual"], true, "an embedded token is met");
    let before = version_of(&read);
    assert!(before >= furnished.version);
    let again = server.put_json(edge("follow", fan, star), json!({ "data": "later" }));
    assert!(version_of(again.expect_change(true, "live")) > before, "versions go on");
    assert_eq!(tally(server, "like", furnished.owner)["owned"], 60);
    assert_eq!(tally(server, "like", furnished.post)["incoming"], 30);
    assert_eq!(tally(server, "follow", furnished.private)["pending_incoming"], 1);
    assert_eq!(tally(server, "view", furnished.counted)["value"], 999_998);
    assert_eq!(server.get(node("user", furnished.private)).ok()["private"], true);
    let groups = server.get(format!("/v1/groups/follow/{}", furnished.source_with_groups));
    let named = json!([{ "name": "friends", "size": 1 }, { "name": "colleagues", "size": 0 }]);
    assert_eq!(groups.ok()["groups"], named);
    // A key that was used before the move counts no second time.
    let body = json!({ "delta": -5, "key": format!("{}-b", furnished.counted) });
    server.post_json(format!("/v1/counters/view/{}", furnished.counted), body).ok();
    assert_eq!(tally(server, "view", furnished.counted)["value"], 999_998);
}
