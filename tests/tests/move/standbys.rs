//! A standby of a service that has moved: it knows, and is no way around the move.

use guanxi_tests::{
    Cli, Server, edge, nodes, poll_until, primary_options, start_standby, wait_until_caught_up,
};
use serde_json::json;

use super::SOON;
use super::pauses::ByHand;

const NOW_AT: &str = "http://the-cluster:7420";

/// As `guanxi move` does at its end.
fn move_away(server: &Server) {
    let client = server.client();
    let moving = ByHand::begin(&client, "7");
    moving.follow().expect_status(200);
    let paused = moving.pause(5_000).ok().clone();
    let moved = moving.confirm(&paused["position"], NOW_AT).ok().clone();
    assert_eq!((&moved["state"], &moved["now_at"]), (&json!("moved"), &json!(NOW_AT)));
    // Said again by somebody whose answer was lost.
    moving.confirm(&paused["position"], NOW_AT).expect_error(503, "read_only");
}

fn wait_until_role(server: &Server, role: &str) {
    poll_until("the role", SOON, || (server.get("/readyz").ok()["role"] == role).then_some(()));
}

fn assert_not_promoted(standby: &Server) {
    let refused = standby.post("/v1/admin/promote");
    let message = refused.expect_error(409, "conflict");
    assert!(message.contains("has moved to a cluster") && message.contains(NOW_AT), "{message}");
    Cli::of(standby).run(&["promote"]).expect_words(1, &["has moved to a cluster", NOW_AT]);
    let [fan, star] = nodes();
    let write = standby.put(edge("follow", fan, star));
    assert!(write.expect_error(503, "read_only").contains(NOW_AT));
    assert_eq!(standby.get("/readyz").ok()["now_at"], NOW_AT);
}

#[test]
fn a_standby_of_a_service_that_has_moved_is_not_promoted() {
    let server = Server::start_with(primary_options());
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    let standby = start_standby(&server);
    wait_until_caught_up(&server.client(), &standby.client());
    assert_eq!(standby.get("/readyz").ok()["role"], "standby");
    // It begins no move either.
    standby.post_json("/v1/admin/move", json!({ "id": "7" })).expect_error(503, "read_only");
    move_away(&server);
    wait_until_role(&standby, "moved");
    assert_not_promoted(&standby);
    assert_eq!(standby.get(edge("follow", fan, star)).ok()["related"], true, "it reads on");
    let doctor = Cli::of(&standby).run(&["doctor"]);
    assert!(doctor.stdout.contains("has moved to a cluster"), "{}", doctor.stdout);
    // It knows it without its primary, and a standby that comes later is told.
    let server = server.kill();
    let standby = standby.kill().restart();
    assert_not_promoted(&standby);
    let doctor = Cli::of(&standby).run(&["doctor"]);
    assert!(!doctor.stdout.contains("guanxi promote"), "{}", doctor.stdout);
    let server = server.restart();
    assert_eq!(server.get("/v1/admin/standby").ok()["role"], "moved");
    let late = start_standby(&server);
    wait_until_role(&late, "moved");
    assert_not_promoted(&late);
    // The way back: the directory takes writes again, and so the standby may take its place.
    let server = server.kill();
    std::fs::remove_file(server.data_directory().join("MOVED")).expect("it has moved");
    let server = server.restart();
    server.put(edge("follow", star, fan)).expect_change(true, "live");
    wait_until_caught_up(&server.client(), &standby.client());
    wait_until_role(&standby, "standby");
    drop(server);
    standby.post("/v1/admin/promote").ok();
    standby.delete(edge("follow", star, fan)).expect_change(true, "removed");
}
