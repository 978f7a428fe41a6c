//! Instances of the real binary that read a changefeed's topic (`log.source = "ticdc"`), on TiDB;
//! what a changefeed does is done by the test itself.

#[path = "../../crates/cluster/tests/cluster_parts/player.rs"]
mod player;

use std::time::Duration;

use guanxi_cluster::kafka::KafkaSettings;
use guanxi_services::{fresh_database, shared, topic_name};
use guanxi_tests::grpc::channel;
use guanxi_tests::grpc::proto::watch_client::WatchClient;
use guanxi_tests::grpc::proto::{WatchRequest, watch_event};
use guanxi_tests::{Cli, Cluster, Server, Watcher, edge, edge_call, nodes, poll_until};
use player::Player;
use serde_json::{Value, json};

/// Everything here happens within moments; a busy machine takes longer.
const SOON: Duration = Duration::from_secs(60);
/// As the harness has them.
const PARTITIONS: u32 = 4;

struct Changefed {
    cluster: Cluster,
    settings: KafkaSettings,
    changefeed: String,
    url: String,
}

impl Changefed {
    /// With tables and topics; its instances read the outbox's topic so far.
    fn start_or_skip(test: &str) -> Option<Changefed> {
        let tidb = shared::tidb_or_skip(test)?;
        let kafka = shared::kafka_or_skip(test)?;
        let changefeed = topic_name("changefeed");
        kafka.create_topic(&changefeed, PARTITIONS as u16);
        let url = fresh_database(tidb);
        let cluster = Cluster::on(&url, &kafka.brokers());
        cluster.migrate().ok();
        let settings = KafkaSettings {
            brokers: kafka.brokers(),
            topic: cluster.topic.clone(),
            dead_letter_topic: format!("{}.dead", cluster.topic),
            partitions: PARTITIONS,
            security: Default::default(),
        };
        Some(Changefed { cluster, settings, changefeed, url })
    }

    /// Begins a changefeed, and instances that start from now on read it.
    fn begin(&self) -> Player {
        let config = self.cluster.config();
        let settings = std::fs::read_to_string(&config).expect("the settings are there");
        let source = format!("[log]\nsource = \"ticdc\"\nticdc_topic = \"{}\"\n", self.changefeed);
        std::fs::write(&config, settings.replace("[log]\n", &source)).expect("a file");
        Player::start(&self.url, &self.settings, &self.changefeed)
    }
}

fn place(record: &Value) -> String {
    record["id"].as_str().expect("a record has an id").to_owned()
}

/// The next record of this source: the changefeed may tell one again.
fn record_of(watcher: &mut Watcher, source: u64, op: &str) -> Value {
    let source = source.to_string();
    let wanted = |record: &Value| record["source"] == source.as_str() && record["op"] == op;
    watcher.records_until(wanted).pop().expect("the last one")
}

#[test]
fn a_watcher_reads_what_the_changefeed_tells() {
    let Some(changefed) = Changefed::start_or_skip("watch a changefeed") else { return };
    let changefeed = changefed.begin();
    let (one, other) = (changefed.cluster.instance(), changefed.cluster.instance());
    let [source, target, second] = nodes();
    let mut watcher = Watcher::open(one.address(), "from=now&kinds=follow");
    assert_eq!(watcher.event().name, "heartbeat");
    let groups = format!("/v1/groups/follow/{source}");
    other.post_json(&groups, json!({ "name": "朋友" })).expect_status(201);
    let body = json!({ "data": "met in Kyoto 京都" });
    let put = other.put_json(edge("follow", source, target), body);
    let record = record_of(&mut watcher, source, "put");
    assert_eq!(record["target"], target.to_string(), "{record}");
    assert_eq!(record["version"], put.ok()["version"]);
    assert_eq!(record["new"]["data"], "met in Kyoto 京都");
    let first = place(&record);
    other.put(format!("{groups}/朋友/members/{target}")).ok();
    let record = record_of(&mut watcher, source, "move");
    assert_eq!(record["new"]["group"], "朋友", "{record}");
    let deleted = one.delete(edge("follow", source, target));
    let record = record_of(&mut watcher, source, "delete");
    assert_eq!(record["new"]["state"], "removed", "{record}");
    assert_eq!(record["version"], deleted.ok()["version"]);
    drop(watcher);
    // On another instance, from where the first reader was cut off.
    let mut watcher = Watcher::open_with(other.address(), "kinds=follow", Some(&first));
    assert_eq!(watcher.record()["op"], "move");
    assert_eq!(watcher.record()["op"], "delete");
    one.put(edge("follow", second, target)).expect_change(true, "live");
    record_of(&mut watcher, second, "put");
    // The target's side follows, a large write's token is met, and an audit finds nothing.
    let fans = guanxi_tests::node_run(40);
    let change = |fan: &u64| json!({ "op": "put", "kind": "follow", "source": fan.to_string(), "target": target.to_string() });
    let changes: Vec<Value> = fans.iter().map(change).collect();
    let token = one.post_json("/v1/edges/batch", json!({ "changes": changes })).token();
    let list = poll_until("the barrier", SOON, || {
        let path = edge_call("follow", target, "incoming");
        let answer = other.request("GET", &path).header("guanxi-at-least", &token).send();
        (answer.status == 200).then(|| answer.ok().clone())
    });
    assert_eq!(list["total"], 41, "{list}");
    Cli::of(&one).run(&["audit", "--json"]).ok();
    changefeed.close();
}

#[test]
fn an_export_names_a_place_in_the_changefeed() {
    let Some(changefed) = Changefed::start_or_skip("export beside a changefeed") else { return };
    let changefeed = changefed.begin();
    let one = changefed.cluster.instance();
    let [source, target, later] = nodes();
    one.put(edge("follow", source, target)).expect_change(true, "live");
    let export = one.get("/v1/admin/export?kind=follow");
    let place = export.header("guanxi-position").expect("an export has a place").to_owned();
    one.put(edge("follow", later, target)).expect_change(true, "live");
    let mut watcher = Watcher::open(one.address(), &format!("from={place}"));
    record_of(&mut watcher, later, "put");
    changefeed.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_the_other_log_is_expired() {
    let Some(changefed) = Changefed::start_or_skip("ids of both logs") else { return };
    let before = changefed.cluster.instance();
    let [source, target] = nodes();
    before.put(edge("follow", source, target)).expect_change(true, "live");
    let first = |server: &Server, source| {
        let mut watcher = Watcher::open(server.address(), "from=earliest");
        place(&record_of(&mut watcher, source, "put"))
    };
    let own = first(&before, source);
    let changefeed = changefed.begin();
    let after = changefed.cluster.instance();
    let [source] = nodes();
    after.put(edge("follow", source, target)).expect_change(true, "live");
    let other = first(&after, source);
    for (server, own, other) in [(&before, &own, &other), (&after, &other, &own)] {
        let refused = server.get(format!("/v1/watch?from={other}"));
        refused.expect_error(410, "position_expired");
        Cli::of(server).run(&["watch", "--from", other]).expect_words(1, &["position_expired"]);
        // Over gRPC the same, and a stream from its own.
        let mut client = WatchClient::new(channel(server));
        let request =
            |from: &str| WatchRequest { from: Some(from.to_owned()), ..Default::default() };
        let refused = client.watch(request(other)).await.expect_err("another log's id");
        assert!(refused.message().contains("another log"), "{refused:?}");
        let mut events = client.watch(request(own)).await.expect("a stream").into_inner();
        let event = events.message().await.expect("an event").expect("no end");
        assert!(event.event.is_some(), "{event:?}");
    }
    // And records come by it.
    let mut client = WatchClient::new(channel(&after));
    let request = WatchRequest { from: Some("earliest".into()), ..Default::default() };
    let mut events = client.watch(request).await.expect("a stream").into_inner();
    loop {
        let event = events.message().await.expect("an event").expect("no end");
        if let Some(watch_event::Event::Record(record)) = event.event {
            assert_eq!((record.source, record.op.as_str()), (source, "put"));
            break;
        }
    }
    changefeed.close();
}
