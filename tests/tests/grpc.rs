//! Writes, groups, nodes, kinds and watching over gRPC, with a client made from the proto files.
//! Reads stand in grpc_reads.rs, errors in grpc_errors.rs, health and reflection in
//! grpc_discovery.rs.

use guanxi_tests::differences::counted_value;
use guanxi_tests::grpc::proto::admin_client::AdminClient;
use guanxi_tests::grpc::proto::counters_client::CountersClient;
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::groups_client::GroupsClient;
use guanxi_tests::grpc::proto::nodes_client::NodesClient;
use guanxi_tests::grpc::proto::watch_client::WatchClient;
use guanxi_tests::grpc::proto::{self, EdgeField, State, edge_change, edge_result, watch_event};
use guanxi_tests::grpc::{channel, expect_refusal, get_request, put_all, put_request, rfc3339_of};
use guanxi_tests::{edge, millis_now, nodes, poll_until, rfc3339, shared, tally};
use prost_types::Timestamp;
use tonic::Code;
use tonic::transport::Channel;

/// A cluster first waits until no write that was under way can still end.
const ERASE_DEADLINE: std::time::Duration = std::time::Duration::from_secs(180);

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_is_put_read_and_removed_as_over_http() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, target] = nodes();
    let expires_at = millis_now() + 3_600_000;
    server.post_json(format!("/v1/groups/follow/{source}"), serde_json::json!({"name": "friends"}));

    let request = proto::PutEdgeRequest {
        group: Some("friends".into()),
        data: Some("met in 北京".into()),
        expires_at: Some(Timestamp {
            seconds: (expires_at / 1_000) as i64,
            nanos: (expires_at % 1_000) as i32 * 1_000_000 + 999,
        }),
        ..put_request("follow", source, target)
    };
    let written = client.put(request.clone()).await.expect("a put").into_inner();
    assert!(written.changed && written.state() == State::Live && !written.token.is_empty());

    let read = client.get(get_request("follow", source, target)).await.expect("a get").into_inner();
    let over_http = server.get(edge("follow", source, target));
    let over_http = over_http.ok();
    assert!(read.related && read.state() == State::Live);
    assert_eq!(over_http["group"], read.group.clone().unwrap());
    assert_eq!(over_http["data"], read.data.clone().unwrap());
    assert_eq!(over_http["version"], read.version.unwrap().to_string());
    assert_eq!(over_http["since"], rfc3339_of(read.since));
    assert_eq!(over_http["expires_at"], rfc3339_of(read.expires_at));
    assert_eq!(
        rfc3339_of(read.expires_at),
        rfc3339(expires_at),
        "finer than a millisecond is cut off"
    );
    assert_eq!((read.owner, read.mutual), (None, Some(false)));
    assert_eq!(read.reverse, Some(proto::ReverseEdge::default()));
    assert_eq!((written.since, written.version), (read.since, read.version));

    let again = client.put(request).await.expect("a put").into_inner();
    assert!(!again.changed && again.version == read.version);
    let delete =
        proto::DeleteEdgeRequest { kind: "follow".into(), source, target, ..Default::default() };
    let removed = client.delete(delete.clone()).await.expect("a delete").into_inner();
    assert!(removed.changed && removed.state() == State::Removed);
    let nothing = client.delete(delete).await.expect("a delete").into_inner();
    assert_eq!((nothing.changed, nothing.since, nothing.version), (false, None, None));
    let read = client.get(get_request("follow", source, target)).await.expect("a get").into_inner();
    let none = proto::Edge {
        mutual: Some(false),
        reverse: Some(proto::ReverseEdge::default()),
        ..Default::default()
    };
    assert_eq!(read, none);
    let like = client.get(get_request("like", source, target)).await.expect("a get").into_inner();
    assert_eq!(like, proto::Edge::default(), "ends of two types have no reverse");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_are_kept_set_and_cleared() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, target, owner] = nodes();
    let first = proto::PutEdgeRequest {
        owner: Some(owner),
        data: Some("a".into()),
        ..put_request("like", source, target)
    };
    client.put(first).await.expect("a put");
    let read = async |client: &mut EdgesClient<Channel>| {
        let read =
            client.get(get_request("like", source, target)).await.expect("a get").into_inner();
        (read.owner, read.data)
    };
    client.put(put_request("like", source, target)).await.expect("a put");
    assert_eq!(read(&mut client).await, (Some(owner), Some("a".into())), "absent keeps");
    let clear = proto::PutEdgeRequest {
        data: Some("b".into()),
        clear: vec![EdgeField::Owner.into()],
        ..put_request("like", source, target)
    };
    server.present(&client.put(clear).await.expect("a put").into_inner().token);
    assert_eq!(read(&mut client).await, (None, Some("b".into())));
    assert_eq!(tally(&server, "like", owner)["owned"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_writes_can_be_retried_with_their_key() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, target] = nodes();
    let strict = |key: &str| proto::PutEdgeRequest {
        strict: true,
        idempotency_key: Some(key.into()),
        ..put_request("follow", source, target)
    };
    let key = format!("grpc-{source}");
    let first = client.put(strict(&key)).await.expect("a strict put").into_inner();
    let second = client.put(strict(&key)).await.expect("the same answer").into_inner();
    assert!(second.changed && second.version == first.version);
    let other = client.put(strict("another-key")).await;
    expect_refusal(other, Code::AlreadyExists, "already_related");
    let reused = proto::PutEdgeRequest { target: source + 1_000_000, ..strict(&key) };
    expect_refusal(client.put(reused).await, Code::FailedPrecondition, "key_conflict");
    let delete = proto::DeleteEdgeRequest {
        kind: "follow".into(),
        source: target,
        target: source,
        strict: true,
        ..Default::default()
    };
    expect_refusal(client.delete(delete).await, Code::FailedPrecondition, "not_related");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_edge_is_approved_or_declined() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, shy] = nodes();
    let mut settings = NodesClient::new(channel(&server));
    let private = proto::PutNodeRequest {
        r#type: "user".into(),
        id: shy,
        private: Some(true),
        at_least: None,
    };
    let answer = settings.put(private).await.expect("settings").into_inner();
    assert_eq!(answer.settings, Some(proto::NodeSettings { private: true }));
    let node =
        proto::GetNodeRequest { r#type: "user".into(), id: shy, at_least: Some(answer.token) };
    assert!(settings.get(node).await.expect("settings").into_inner().private);

    let approve = proto::ApproveEdgeRequest {
        kind: "follow".into(),
        source,
        target: shy,
        ..Default::default()
    };
    expect_refusal(client.approve(approve.clone()).await, Code::FailedPrecondition, "not_pending");
    let asked = client.put(put_request("follow", source, shy)).await.expect("a put").into_inner();
    assert_eq!(asked.state(), State::Pending);
    let approved = client.approve(approve).await.expect("an approval").into_inner();
    assert!(approved.changed && approved.state() == State::Live);

    let asks = proto::PutEdgeRequest { approval: true, ..put_request("follow", shy, source) };
    assert_eq!(client.put(asks).await.expect("a put").into_inner().state(), State::Pending);
    let decline = proto::DeclineEdgeRequest {
        kind: "follow".into(),
        source: shy,
        target: source,
        ..Default::default()
    };
    let declined = client.decline(decline).await.expect("a refusal").into_inner();
    assert_eq!((declined.changed, declined.state()), (true, State::Removed));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_of_a_batch_has_its_own_result() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, target] = nodes();
    let change = |op: edge_change::Op, kind: &str, target| proto::EdgeChange {
        op: op.into(),
        kind: kind.into(),
        source,
        target,
        ..Default::default()
    };
    let changes = vec![
        change(edge_change::Op::Put, "follow", target),
        change(edge_change::Op::Put, "follow", source),
        change(edge_change::Op::Put, "no_such_kind", target),
        proto::EdgeChange { strict: true, ..change(edge_change::Op::Put, "follow", target) },
        change(edge_change::Op::Delete, "follow", target),
    ];
    let batch = proto::BatchEdgesRequest { changes, ..Default::default() };
    let answer = client.batch(batch).await.expect("a batch").into_inner();
    let results = answer.results.iter().map(|result| match result.result.as_ref() {
        Some(edge_result::Result::Changed(changed)) => {
            assert_eq!(changed.token, answer.token);
            changed.state().as_str_name()
        }
        Some(edge_result::Result::Error(problem)) => {
            assert!(!problem.message.is_empty() && !problem.request_id.is_empty());
            assert_eq!((problem.retryable, problem.outcome.as_str()), (false, "none"));
            problem.code.as_str()
        }
        None => panic!("a result without a result"),
    });
    let results: Vec<&str> = results.collect();
    let expected =
        ["STATE_LIVE", "self_relation", "unknown_kind", "already_related", "STATE_REMOVED"];
    assert_eq!(results, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_count_once_per_key() {
    let server = shared();
    let mut client = CountersClient::new(channel(&server));
    let [post] = nodes();
    let count = |delta, key: Option<&str>| proto::CountRequest {
        kind: "view".into(),
        id: post,
        delta,
        key: key.map(str::to_owned),
        at_least: None,
    };
    for expected in [5, 5] {
        let counted = client.count(count(5, Some("one"))).await.expect("a count").into_inner();
        assert_eq!((counted.accepted, counted.value), (true, counted_value(expected)));
    }
    let reused = client.count(count(6, Some("one"))).await;
    expect_refusal(reused, Code::FailedPrecondition, "key_conflict");
    let change =
        |kind: &str| proto::CounterChange { kind: kind.into(), id: post, delta: -2, key: None };
    let batch = proto::BatchCountersRequest {
        changes: vec![change("view"), change("nope")],
        at_least: None,
    };
    let results = client.batch(batch).await.expect("a batch").into_inner().results;
    use proto::counter_result::Result;
    assert!(
        matches!(&results[0].result, Some(Result::Counted(counted)) if counted.value == counted_value(3))
    );
    assert!(
        matches!(&results[1].result, Some(Result::Error(error)) if error.code == "unknown_kind")
    );
    assert_eq!(tally(&server, "view", post)["value"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_created_renamed_filled_and_deleted() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = GroupsClient::new(channel(&server));
    let [source, target] = nodes();
    put_all(&mut edges, "follow", &[(source, target)]).await;
    let kind = || "follow".to_owned();
    let create =
        proto::CreateGroupRequest { kind: kind(), source, name: "a".into(), at_least: None };
    let created = client.create(create.clone()).await.expect("a group").into_inner();
    assert_eq!(created.group, Some(proto::Group { name: "a".into(), size: 0 }));
    expect_refusal(client.create(create).await, Code::FailedPrecondition, "conflict");
    let rename = proto::RenameGroupRequest {
        kind: kind(),
        source,
        group: "a".into(),
        name: "同事".into(),
        at_least: None,
    };
    client.rename(rename).await.expect("a new name");
    let add = proto::AddMemberRequest {
        kind: kind(),
        source,
        group: "同事".into(),
        target,
        at_least: None,
    };
    let added = client.add_member(add).await.expect("a member").into_inner();
    assert_eq!(added.group.map(|group| group.size), Some(1));
    let list = proto::ListGroupsRequest { kind: kind(), source, at_least: Some(added.token) };
    let listed = client.list(list).await.expect("groups").into_inner().groups;
    assert_eq!(listed, [proto::Group { name: "同事".into(), size: 1 }]);
    let drop = proto::DropMemberRequest {
        kind: kind(),
        source,
        group: "同事".into(),
        target,
        at_least: None,
    };
    let dropped = client.drop_member(drop).await.expect("no member").into_inner();
    assert_eq!(dropped.group.map(|group| group.size), Some(0));
    let delete =
        proto::DeleteGroupRequest { kind: kind(), source, group: "同事".into(), at_least: None };
    client.delete(delete.clone()).await.expect("a deletion");
    expect_refusal(client.delete(delete).await, Code::NotFound, "unknown_group");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_node_leaves_a_receipt() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = NodesClient::new(channel(&server));
    let [gone, other] = nodes();
    put_all(&mut edges, "follow", &[(gone, other), (other, gone)]).await;
    let erase = proto::EraseNodeRequest { r#type: "user".into(), id: gone, at_least: None };
    let job = client.erase(erase).await.expect("a job").into_inner().job;
    let mut job_of = move || {
        let request = proto::GetJobRequest { job, at_least: None };
        let handle = tokio::runtime::Handle::current();
        handle.block_on(client.get_job(request)).expect("the job").into_inner()
    };
    let done = tokio::task::spawn_blocking(move || {
        poll_until("the erasure", ERASE_DEADLINE, || Some(job_of()).filter(|job| job.done))
    });
    let done = done.await.expect("the erasure ends");
    assert_eq!((done.job, done.work()), (job, proto::job::Work::Erase));
    let receipt = done.receipt.expect("a receipt");
    assert_eq!(receipt.node, Some(proto::NodeName { r#type: "user".into(), id: gone }));
    assert_eq!(receipt.edges_removed, 2);
    assert!(rfc3339_of(receipt.log_forgets_at) > rfc3339_of(receipt.erased_at));
    let mut admin = AdminClient::new(channel(&server));
    let jobs = admin.list_jobs(proto::ListJobsRequest::default()).await.expect("jobs").into_inner();
    assert!(jobs.jobs.iter().any(|listed| listed.job == job && listed.done));
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_created_read_and_changed() {
    let server = shared();
    let mut client = AdminClient::new(channel(&server));
    let create = proto::CreateKindRequest {
        name: "grpc.pin".into(),
        source_type: Some("user".into()),
        target_type: "post".into(),
        outgoing_max: Some(3),
        excludes: vec![],
        ..Default::default()
    };
    let created = client.create_kind(create.clone()).await.expect("a kind").into_inner();
    let kind = created.kind.expect("the kind");
    assert_eq!((kind.outgoing_max, kind.incoming_list), (Some(3), true));
    expect_refusal(client.create_kind(create).await, Code::FailedPrecondition, "conflict");
    let change = proto::ChangeKindRequest {
        name: "grpc.pin".into(),
        no_outgoing_max: true,
        data_bytes_max: Some(8),
        ..Default::default()
    };
    let changed = client.change_kind(change.clone()).await.expect("a change").into_inner();
    let changed = changed.kind.expect("the kind");
    assert_eq!((changed.outgoing_max, changed.data_bytes_max), (None, 8));
    let both = proto::ChangeKindRequest { outgoing_max: Some(4), ..change };
    expect_refusal(client.change_kind(both).await, Code::InvalidArgument, "invalid_argument");
    let get = proto::GetKindRequest { name: "grpc.pin".into(), at_least: None };
    assert_eq!(client.get_kind(get).await.expect("the kind").into_inner(), changed);
    let listed = client.list_kinds(proto::ListKindsRequest::default()).await.expect("kinds");
    assert!(listed.into_inner().kinds.contains(&changed));
    let over_http = server.get("/v1/admin/kinds/grpc.pin");
    assert_eq!(over_http.ok()["data_bytes_max"], 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_each_change_and_can_be_resumed() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = WatchClient::new(channel(&server));
    let [source, target] = nodes();
    let request = |from: Option<String>| proto::WatchRequest {
        from,
        kinds: vec!["favorite".into()],
        ops: vec!["put".into()],
        at_least: None,
    };
    let mut events = client.watch(request(None)).await.expect("a stream").into_inner();
    let first = events.message().await.expect("an event").expect("no end");
    assert!(matches!(first.event, Some(watch_event::Event::Heartbeat(_))), "it says where it is");

    let with_reason = |reason: &str| {
        let mut put = tonic::Request::new(put_request("favorite", source, target));
        put.metadata_mut().insert("guanxi-reason", reason.parse().expect("ASCII"));
        put
    };
    edges.put(with_reason("asked to")).await.expect("a put");
    put_all(&mut edges, "like", &[(source, target)]).await;
    let event = events.message().await.expect("an event").expect("no end");
    let Some(watch_event::Event::Record(record)) = event.event else {
        panic!("a record: {event:?}");
    };
    assert_eq!((record.op.as_str(), record.kind.as_str()), ("put", "favorite"));
    assert_eq!((record.source, record.target, record.old), (source, target, None));
    let read =
        edges.get(get_request("favorite", source, target)).await.expect("a get").into_inner();
    assert_eq!(Some(record.version), read.version);
    assert_eq!(record.new.map(|row| row.state()), Some(State::Live));
    assert_eq!((record.reason.as_deref(), record.fresh, record.by), (Some("asked to"), true, None));
    let long = edges.put(with_reason(&"x".repeat(65))).await;
    expect_refusal(long, Code::InvalidArgument, "invalid_argument");
    drop(events);

    let mut again = client.watch(request(Some(first.id))).await.expect("a stream").into_inner();
    loop {
        let event = again.message().await.expect("an event").expect("no end");
        if let Some(watch_event::Event::Record(again)) = event.event {
            assert_eq!(again.version, record.version, "the same record once more");
            break;
        }
    }
    let wrong = proto::WatchRequest { ops: vec!["paint".into()], ..request(None) };
    expect_refusal(client.watch(wrong).await, Code::InvalidArgument, "invalid_argument");
}
