//! Node settings, and the erasure of a node as a job with a receipt.

use std::time::Duration;

use guanxi_tests::{
    Cli, Client, Server, assert_lists_and_tallies_agree, edge, edge_call, node, node_run, nodes,
    page_of, parse_millis, poll_until, put_all, shared, tally,
};
use serde_json::{Value, json};

/// A cluster first waits until no write that was under way can still end.
const JOB_DEADLINE: Duration = Duration::from_secs(180);

#[test]
fn settings_are_kept_and_checked() {
    let server = shared();
    let [user] = nodes();
    let path = node("user", user);
    assert_eq!(*server.get(&path).ok(), json!({"private": false}));
    for private in [true, true, false] {
        assert_eq!(
            *server.put_json(&path, json!({"private": private})).ok(),
            json!({"private": private})
        );
        assert_eq!(*server.get(&path).ok(), json!({"private": private}));
    }
    for body in [json!({"private": "yes"}), json!({"privat": true}), json!([]), json!(null)] {
        server.put_json(&path, body).expect_error(400, "invalid_argument");
    }
    server.get(node("martian", user)).expect_error(404, "not_found");
    server.put_json(node("martian", user), json!({"private": true})).expect_error(404, "not_found");
    server.delete(node("martian", user)).expect_error(404, "not_found");
    server.get(node("user", 0)).expect_error(400, "invalid_argument");
    server.get("/v1/jobs/does-not-exist").expect_error(404, "not_found");
}

/// Erases a node and waits for its job's end.
#[track_caller]
fn erase(client: &Client, node_type: &str, id: u64) -> Value {
    erased(client, begin_erase(client, node_type, id))
}

#[track_caller]
fn begin_erase(client: &Client, node_type: &str, id: u64) -> String {
    let begun = client.delete(node(node_type, id));
    begun.expect_status(202)["job"].as_str().expect("a job id").to_owned()
}

#[track_caller]
fn erased(client: &Client, job: String) -> Value {
    poll_until("the erasure ends", JOB_DEADLINE, || {
        let answer = client.get(format!("/v1/jobs/{job}"));
        let body = answer.ok().clone();
        assert_eq!(body["job"], json!(job));
        (body["state"] == "done").then_some(body)
    })
}

#[test]
fn an_erased_node_leaves_no_edge_in_either_direction() {
    let server = shared();
    let [gone, owner] = nodes();
    let others = node_run(60);
    let (followed, followers) = (&others[..40], &others[20..]);
    let posts = node_run(30);
    let mut edges: Vec<_> = followed.iter().map(|id| (gone, *id)).collect();
    edges.extend(followers.iter().map(|id| (*id, gone)));
    // Edges among the others must stay.
    edges.extend(others.windows(2).map(|pair| (pair[0], pair[1])));
    put_all(&server, "follow", &edges);
    put_all(&server, "like", &posts.iter().map(|post| (gone, *post)).collect::<Vec<_>>());
    put_all(&server, "like", &posts.iter().map(|post| (others[0], *post)).collect::<Vec<_>>());
    server.put_json(edge("favorite", gone, posts[0]), json!({"owner": owner})).ok();
    let [asked, blocked] = nodes();
    server
        .put_json(edge("follow", gone, asked), json!({"approval": true}))
        .expect_change(true, "pending");
    server.put(edge("block", gone, blocked)).ok();
    server.post_json(format!("/v1/groups/follow/{gone}"), json!({"name": "g"})).expect_status(201);
    server.put_json(node("user", gone), json!({"private": true})).ok();
    // A post of the same number is another node.
    server.put(edge("like", others[0], gone)).ok();

    let job = erase(&server, "user", gone);
    assert_eq!(job["type"], "erase");
    assert_eq!(job["node"], json!({"type": "user", "id": gone.to_string()}));
    // 40 + 40 follows, one asked for, 30 likes, a favorite and a block.
    let removed = 40 + 40 + 1 + 30 + 1 + 1;
    let receipt = &job["receipt"];
    assert_eq!(receipt["node"], job["node"]);
    assert_eq!(receipt["edges_removed"], removed);
    assert_eq!(receipt["groups_removed"], 1);
    assert!(parse_millis(&receipt["log_forgets_at"]) >= parse_millis(&receipt["erased_at"]));
    assert!(receipt["backups"].is_string());
    assert!(parse_millis(&job["finished_at"]) >= parse_millis(&job["started_at"]));

    let mut everyone = others.clone();
    everyone.extend([gone, asked]);
    let left = assert_lists_and_tallies_agree(&server, "follow", &everyone, &everyone);
    assert_eq!(left.len(), others.len() - 1);
    assert!(left.iter().all(|(source, target)| *source != gone && *target != gone));
    assert_eq!(tally(&server, "follow", asked)["pending_incoming"], 0);
    assert_eq!(tally(&server, "favorite", owner)["owned"], 0);
    for post in &posts {
        assert_eq!(tally(&server, "like", *post)["incoming"], 1);
    }
    assert_eq!(server.get(edge("like", others[0], gone)).ok()["related"], true);
    assert_eq!(*server.get(format!("/v1/groups/follow/{gone}")).ok(), json!({"groups": []}));
    assert_eq!(*server.get(node("user", gone)).ok(), json!({"private": false}));
    assert!(page_of(&server, &edge_call("block", gone, "outgoing")).items.is_empty());

    // The mark is lifted: the node may begin anew.
    server.put(edge("follow", gone, others[0])).expect_change(true, "live");
    server.put(edge("follow", blocked, gone)).expect_change(true, "live");
}

#[test]
fn an_erased_post_loses_its_likes_and_counters() {
    let server = shared();
    let [post, owner] = nodes();
    let fans = node_run(1_500);
    put_all(&server, "like", &fans.iter().map(|fan| (*fan, post)).collect::<Vec<_>>());
    server.put_json(edge("like", fans[0], post), json!({"owner": owner})).ok();
    server.post_json(format!("/v1/counters/view/{post}"), json!({"delta": 12})).ok();
    server.post_json(format!("/v1/counters/view/{owner}"), json!({"delta": 3})).ok();
    let job = erase(&server, "post", post);
    assert_eq!(job["receipt"]["edges_removed"], 1_500);
    assert_eq!(job["receipt"]["counters_removed"], 1);
    assert_eq!(tally(&server, "like", post)["incoming"], 0);
    assert_eq!(tally(&server, "like", owner)["owned"], 0);
    assert_eq!(tally(&server, "like", fans[7])["outgoing"], 0);
    assert_eq!(tally(&server, "view", post)["value"], 0);
    assert_eq!(tally(&server, "view", owner)["value"], 3);
}

#[test]
fn edges_that_name_an_erased_owner_stay() {
    let server = shared();
    let [fan, post, owner] = nodes();
    server.put_json(edge("like", fan, post), json!({"owner": owner})).ok();
    let job = erase(&server, "user", owner);
    assert_eq!(job["receipt"]["edges_removed"], 0);
    assert_eq!(server.get(edge("like", fan, post)).ok()["related"], true);
    assert_eq!(tally(&server, "like", owner)["owned"], 1);
}

#[test]
fn while_a_node_is_erased_puts_that_touch_it_conflict() {
    let server = shared();
    let [celebrity, late] = nodes();
    let followers = node_run(20_000);
    put_all(&server, "follow", &followers.iter().map(|id| (*id, celebrity)).collect::<Vec<_>>());
    let begun = server.delete(node("user", celebrity));
    let job = begun.expect_status(202)["job"].clone();
    let again = server.delete(node("user", celebrity));
    again.expect_status(202);
    let mut conflicts = 0;
    let mut landed = false;
    let done = poll_until("the erasure ends", JOB_DEADLINE, || {
        let body = server.get(format!("/v1/jobs/{}", job.as_str().expect("a job id"))).ok().clone();
        if body["state"] == "done" {
            return Some(body);
        }
        let put = server.put(edge("follow", late, celebrity));
        if put.status == 200 {
            landed = true;
        } else {
            put.expect_error(409, "conflict");
            conflicts += 1;
        }
        None
    });
    assert_eq!(done["receipt"]["edges_removed"], 20_000);
    assert!(done["edges_done"].as_u64() >= Some(20_000));
    // A put lands only once the mark is lifted, and then it stands.
    let related = server.get(edge("follow", late, celebrity)).ok()["related"].clone();
    assert_eq!(related, json!(landed), "{conflicts} conflicts");
    assert_eq!(tally(&server, "follow", celebrity)["incoming"], json!(u64::from(landed)));
    assert_eq!(tally(&server, "follow", followers[123])["outgoing"], 0);
}

#[test]
fn jobs_are_listed_for_operators_page_by_page() {
    let server = Server::start();
    let begun: Vec<String> =
        nodes::<7>().iter().map(|id| begin_erase(&server, "user", *id)).collect();
    let made: Vec<Value> =
        begun.into_iter().map(|job| erased(&server, job)["job"].clone()).collect();
    let newest_first: Vec<Value> = made.iter().rev().cloned().collect();
    let of = |page: &Value| -> Vec<Value> {
        let jobs = page["jobs"].as_array().expect("jobs").iter();
        jobs.map(|job| job["job"].clone()).collect()
    };
    let all = server.get("/v1/admin/jobs");
    assert_eq!((of(all.ok()), &all.ok()["next"]), (newest_first.clone(), &Value::Null));
    let (mut walked, mut cursor) = (Vec::new(), None::<String>);
    for expected in [3, 3, 1] {
        let more = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = server.get(format!("/v1/admin/jobs?limit=3{more}"));
        let page = page.ok();
        assert_eq!(of(page).len(), expected);
        walked.extend(of(page));
        cursor = page["next"].as_str().map(str::to_owned);
    }
    assert_eq!((walked, cursor), (newest_first.clone(), None));
    let whole = server.get("/v1/admin/jobs?limit=7");
    assert_eq!(whole.ok()["next"], Value::Null, "nothing follows the last one");
    for wrong in ["limit=0", "limit=1001", "cursor=x", "page=1"] {
        let refused = server.get(format!("/v1/admin/jobs?{wrong}"));
        refused.expect_error(400, "invalid_argument");
    }

    let cli = Cli::of(&server);
    let shown = cli.run(&["jobs", "list", "--json", "--limit", "5"]).json_lines();
    assert_eq!(shown.iter().map(|job| job["job"].clone()).collect::<Vec<_>>(), newest_first[..5]);
    let all = cli.run(&["jobs", "list", "--json", "--all"]).json_lines();
    assert_eq!(all.len(), made.len());
    let one = made[0].as_str().expect("a number");
    assert_eq!(cli.run(&["jobs", "show", "--json", one]).json()["receipt"]["edges_removed"], 0);
    for arguments in [&["jobs", "show", one][..], &["jobs", "list"]] {
        let ran = cli.run(arguments);
        let shown = &ran.ok().stdout;
        for word in [one, "erase", "done", "user "] {
            assert!(shown.contains(word), "{word} in {shown}");
        }
    }
    cli.run(&["jobs", "show", "999999"]).expect_words(1, &["there is no job"]);
}
