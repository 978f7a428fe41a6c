//! What is read most, as operators see it: of an embedded service, and of a cluster that keeps it
//! at hand.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_services::Redis;
use guanxi_tests::grpc::proto::admin_client::AdminClient;
use guanxi_tests::grpc::proto::{self, hot_key::What};
use guanxi_tests::grpc::{channel, expect_refusal};
use guanxi_tests::{
    Answer, Cli, Cluster, Server, assert_keys, edge, edge_call, metric, node_run, nodes,
    poll_until, put_followers,
};
use serde_json::{Value, json};

/// For a busy machine, and a filter that waits for the longest write.
const PATIENCE: Duration = Duration::from_secs(180);
/// Callers who ask at once.
const CALLERS: usize = 4;

/// Says that it is over when it goes, also by a failed assertion: a scope waits for its threads.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Asks for a celebrity's followers, and how many they are, until it is over.
fn ask_for(server: &Server, star: u64, ends: &AtomicBool) {
    let client = server.client();
    let list = edge_call("follow", star, "incoming");
    let hydrate = json!({"viewer": "1", "objects": [{"id": star.to_string()}],
        "object_type": "user", "kinds": [], "tallies": ["follow"]});
    // A busy machine may refuse some; where nobody is served, nothing becomes hot.
    let allow = |answer: Answer| assert!(matches!(answer.status, 200 | 503), "{answer:?}");
    while !ends.load(Ordering::Relaxed) {
        allow(client.get(&list));
        allow(client.post_json("/v1/hydrate", hydrate.clone()));
    }
}

/// The item of the celebrity's followers, or of its tallies.
fn found(server: &Server, what: &str, id: u64) -> Option<Value> {
    let answer = server.get("/v1/admin/hot?limit=256");
    let items = answer.ok()["items"].as_array().expect("items").clone();
    let id = id.to_string();
    items.into_iter().find(|item| item["what"] == what && item["id"] == *id)
}

#[test]
fn an_embedded_service_shows_what_is_read_most() {
    let server = Server::start();
    assert_eq!(server.get("/v1/admin/hot").ok(), &json!({"items": [], "instances": 1}));
    assert_eq!(server.get("/v1/admin/filters").ok(), &json!({"filters": []}));
    let [star, other, fan] = nodes();
    put_followers(&server.client(), "follow", star, &node_run(3));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = Ending(&ends);
        scope.spawn(|| ask_for(&server, star, &ends));
        scope.spawn(|| {
            let client = server.client();
            while !ends.load(Ordering::Relaxed) {
                client.get(edge("follow", fan, other)).ok();
                client.get(edge_call("follow", other, "outgoing")).ok();
                let asked = json!({"ids": [other.to_string()], "kinds": ["follow"]});
                client.post_json("/v1/tallies", asked).ok();
            }
        });
        for (what, id) in [("incoming", star), ("tallies", star), ("tallies", other)] {
            let item = poll_until(what, PATIENCE, || found(&server, what, id));
            assert_eq!(item["pinned"], false, "an embedded service has no need to");
            assert!(item["per_second"].as_u64() >= Some(1), "{item}");
        }
        let list = poll_until("a list", PATIENCE, || found(&server, "outgoing", other));
        assert_keys(&list, &["what", "kind", "id", "per_second", "pinned"]);
        assert_eq!(list["kind"], "follow");
        let checks = poll_until("checks", PATIENCE, || found(&server, "checks", fan));
        assert_keys(&checks, &["what", "type", "id", "per_second", "pinned"]);
        assert_eq!(checks["type"], "user");
        let first = server.get("/v1/admin/hot?limit=1");
        assert_eq!(first.ok()["items"].as_array().map(Vec::len), Some(1));
        let cli = Cli::of(&server);
        let shown = cli.run(&["hot", "--limit", "256"]).ok().stdout.clone();
        assert!(shown.contains("incoming") && shown.contains(&star.to_string()), "{shown}");
        let lines = cli.run(&["hot", "--limit", "2", "--json"]).ok().json_lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        drop(ending);
    });
    let cli = Cli::of(&server);
    let shown = cli.run(&["filters"]).ok().stdout.clone();
    assert!(shown.contains("no filter"), "{shown}");
    assert_eq!(cli.run(&["filters", "--json"]).ok().stdout, "");
    for wrong in ["limit=0", "limit=257", "limit=x", "what=lists"] {
        server.get(format!("/v1/admin/hot?{wrong}")).expect_error(400, "invalid_argument");
    }
    server.get("/v1/admin/filters?limit=1").expect_error(400, "invalid_argument");
}

#[tokio::test]
async fn grpc_says_the_same() {
    let server = Server::start();
    let [star] = nodes();
    let mut admin = AdminClient::new(channel(&server));
    let list = edge_call("follow", star, "incoming");
    let begun = Instant::now();
    let item = loop {
        assert!(begun.elapsed() < PATIENCE, "it is not shown");
        (0..50).for_each(|_| drop(server.get(&list).ok().clone()));
        let answer = admin.list_hot(proto::ListHotRequest::default()).await.expect("an answer");
        let answer = answer.into_inner();
        assert_eq!(answer.instances, 1);
        if let Some(item) = answer.items.into_iter().next() {
            break item;
        }
    };
    assert_eq!((item.what(), item.id, item.pinned), (What::Incoming, star, false));
    assert_eq!((item.kind.as_deref(), item.r#type), (Some("follow"), None));
    let too_many = proto::ListHotRequest { limit: Some(257) };
    expect_refusal(
        admin.list_hot(too_many).await,
        tonic::Code::InvalidArgument,
        "invalid_argument",
    );
    let filters = admin.list_filters(proto::ListFiltersRequest::default()).await;
    assert_eq!(filters.expect("an answer").into_inner().filters, []);
}

#[test]
fn a_cluster_keeps_what_is_read_most_at_hand() {
    let test = "a_cluster_keeps_what_is_read_most_at_hand";
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let Some(redis) = Redis::start_or_skip(test) else { return };
    cluster.configure(&format!("[cache]\nredis = \"{}\"", redis.url()));
    let instances = [cluster.instance(), cluster.instance()];
    let [one, other] = &instances;
    let [star] = nodes();
    put_followers(&one.client(), "follow", star, &node_run(5));
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ending = Ending(&ends);
        for number in 0..CALLERS {
            let (instance, ends) = (&instances[number % 2], &ends);
            scope.spawn(move || ask_for(instance, star, ends));
        }
        for instance in &instances {
            for what in ["incoming", "tallies"] {
                let pinned = || found(instance, what, star).filter(|item| item["pinned"] == true);
                let item = poll_until("it is pinned", PATIENCE, pinned);
                assert!(item["per_second"].as_u64() >= Some(1), "{item}");
            }
            poll_until("both are heard", PATIENCE, || {
                (instance.get("/v1/admin/hot").ok()["instances"] == 2).then_some(())
            });
            poll_until("both keys are pinned", PATIENCE, || {
                (metric(instance, "guanxi_hot_keys_pinned") >= 2.0).then_some(())
            });
        }
        // What is pinned follows what is written, on both sides of the cluster.
        for more in [4, 9] {
            put_followers(&other.client(), "follow", star, &node_run(more));
        }
        let all = 5 + 4 + 9;
        for instance in &instances {
            poll_until("all followers", PATIENCE, || {
                let page = instance.get(edge_call("follow", star, "incoming"));
                let hydrated = instance.post_json(
                    "/v1/hydrate",
                    json!({"viewer": "1", "objects": [{"id": star.to_string()}],
                           "object_type": "user", "kinds": [], "tallies": ["follow"]}),
                );
                let total = page.ok()["total"].clone();
                let items = page.ok()["items"].as_array().map(Vec::len);
                assert_eq!(items.map(|count| json!(count)), Some(total.clone()), "one moment");
                let tally = &hydrated.ok()["objects"][0]["tallies"]["follow"];
                (total == all && *tally == all).then_some(())
            });
            // On a busy machine its callers may have paused for a moment.
            let pinned = || found(instance, "incoming", star).filter(|item| item["pinned"] == true);
            poll_until("it is still pinned", PATIENCE, pinned);
        }
        drop(ending);
    });
    filters_are_shown(one, &redis);
}

fn filters_are_shown(server: &Server, redis: &Redis) {
    let served = poll_until("the filter serves", PATIENCE, || {
        let answer = server.get("/v1/admin/filters").ok()["filters"][0].clone();
        (answer["phase"] == "serving" && answer["believed"] == true).then_some(answer)
    });
    assert!(served["generation"].as_u64() >= Some(1), "{served}");
    assert!(served["shards"].as_u64() >= Some(1) && served["bytes"].as_u64() >= Some(1));
    // An answer of Redis that comes late is none.
    let asked = poll_until("the filter answers", PATIENCE, || {
        server.get(edge("follow", 77, 78)).ok();
        let filter = server.get("/v1/admin/filters").ok()["filters"][0].clone();
        let count = |name: &str| filter["answers"][name].as_u64().expect("a number");
        let answered = count("surely_not") + count("maybe") >= 1;
        (answered && filter["redis"]["connected"] == true).then_some(filter)
    });
    let address = asked["redis"]["address"].as_str().expect("an address");
    assert!(redis.url().contains(address), "{address}");
    let shown = Cli::of(server).run(&["filters"]).ok().stdout.clone();
    assert!(shown.contains("serving") && shown.contains(address), "{shown}");
    redis.kill();
    poll_until("it is not believed", PATIENCE, || {
        let filter = server.get("/v1/admin/filters").ok()["filters"][0].clone();
        (filter["redis"]["connected"] == false && filter["believed"] == false).then_some(())
    });
}
