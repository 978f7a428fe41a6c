//! Lists, checks, tallies and hydrate over gRPC, and tokens across the two protocols. What HTTP
//! says of the same data must be the same.

use std::collections::HashMap;

use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::lists_client::ListsClient;
use guanxi_tests::grpc::proto::reads_client::ReadsClient;
use guanxi_tests::grpc::proto::{self, State};
use guanxi_tests::grpc::{channel, get_request, put_all, put_more, put_request, rfc3339_of};
use guanxi_tests::{edge, node_run, nodes, shared};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_one_protocol_counts_in_the_other() {
    let server = shared();
    let mut client = EdgesClient::new(channel(&server));
    let [source, target] = nodes();
    let over_http = server.put(edge("follow", source, target));
    let token = over_http.ok()["token"].as_str().map(str::to_owned);
    let read = proto::GetEdgeRequest { at_least: token, ..get_request("follow", source, target) };
    assert!(client.get(read).await.expect("a get").into_inner().related);
    let written =
        client.put(put_request("follow", target, source)).await.expect("a put").into_inner();
    let path = format!("{}?at_least={}", edge("follow", target, source), written.token);
    assert_eq!(server.get(path).ok()["mutual"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_walked_by_cursor_and_page() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = ListsClient::new(channel(&server));
    let [source] = nodes();
    let targets = node_run(5);
    let all: Vec<(u64, u64)> = targets.iter().map(|target| (source, *target)).collect();
    let token = put_all(&mut edges, "follow", &all).await;
    let turned = [(targets[1], source), (targets[3], source)];
    let token = put_more(&mut edges, token, "follow", &turned).await;

    let request = proto::ListOutgoingRequest {
        kind: "follow".into(),
        id: source,
        limit: Some(2),
        mutual: true,
        at_least: token.clone(),
        ..Default::default()
    };
    let (mut seen, mut cursor) = (Vec::new(), None);
    loop {
        let page = proto::ListOutgoingRequest { cursor, ..request.clone() };
        let page = client.outgoing(page).await.expect("a page").into_inner();
        assert_eq!(page.total, Some(5));
        seen.extend(page.items.iter().map(|item| (item.id, item.mutual)));
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let newest: Vec<_> = targets
        .iter()
        .rev()
        .map(|id| (*id, Some(*id == targets[1] || *id == targets[3])))
        .collect();
    assert_eq!(seen, newest);

    let third = proto::ListOutgoingRequest {
        page: Some(3),
        order: proto::Order::Oldest.into(),
        ..request.clone()
    };
    let third = client.outgoing(third).await.expect("a page").into_inner();
    assert_eq!(third.items.iter().map(|item| item.id).collect::<Vec<_>>(), [targets[4]]);

    let incoming = proto::ListIncomingRequest {
        kind: "follow".into(),
        id: source,
        at_least: token.clone(),
        ..Default::default()
    };
    let incoming = client.incoming(incoming).await.expect("a page").into_inner();
    let stands_for = token.as_deref().expect("a token");
    let over_http = server.get(format!("/v1/edges/follow/{source}/incoming?at_least={stands_for}"));
    let expected = over_http.ok()["items"].as_array().expect("items").iter();
    let expected: Vec<_> =
        expected.map(|item| (item["id"].to_string(), item["since"].to_string())).collect();
    let ours = incoming.items.iter();
    let ours: Vec<_> = ours
        .map(|item| (format!("\"{}\"", item.id), format!("\"{}\"", rfc3339_of(item.since))))
        .collect();
    assert_eq!(ours, expected);

    let mutual = proto::ListMutualRequest {
        kind: "follow".into(),
        id: source,
        at_least: token,
        ..Default::default()
    };
    let mutual = client.mutual(mutual).await.expect("a page").into_inner();
    let ids: Vec<u64> = mutual.items.iter().map(|item| item.id).collect();
    assert_eq!(ids, [targets[3], targets[1]]);
}

#[tokio::test(flavor = "multi_thread")]
async fn common_known_and_scan() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = ListsClient::new(channel(&server));
    let [me, you, both, mine] = nodes();
    let all = [(me, both), (you, both), (me, mine), (both, you)];
    let token = put_all(&mut edges, "follow", &all).await;
    let at_least = || token.clone();
    let ids = |page: proto::ListPage| page.items.iter().map(|item| item.id).collect::<Vec<_>>();
    let kind = || "follow".to_owned();

    let common = proto::ListCommonRequest {
        kind: kind(),
        id: me,
        other: you,
        at_least: at_least(),
        ..Default::default()
    };
    assert_eq!(ids(client.common(common).await.expect("a page").into_inner()), [both]);
    let known = proto::ListKnownRequest {
        kind: kind(),
        id: me,
        other: you,
        at_least: at_least(),
        ..Default::default()
    };
    assert_eq!(ids(client.known(known).await.expect("a page").into_inner()), [both]);

    let scan =
        proto::ScanOutgoingRequest { kind: kind(), id: me, limit: Some(1), ..Default::default() };
    let first = client.scan_outgoing(scan.clone()).await.expect("a page").into_inner();
    let rest = proto::ScanOutgoingRequest { cursor: first.next.clone(), ..scan };
    let rest = client.scan_outgoing(rest).await.expect("a page").into_inner();
    let mut all = [ids(first), ids(rest)].concat();
    all.sort_unstable();
    assert_eq!(all, [both, mine]);
    let scan = proto::ScanIncomingRequest {
        kind: kind(),
        id: both,
        at_least: at_least(),
        ..Default::default()
    };
    let scanned = client.scan_incoming(scan).await.expect("a page").into_inner();
    assert_eq!(scanned.items.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_and_tallies() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = ReadsClient::new(channel(&server));
    let [me, you, post] = nodes();
    let token = put_all(&mut edges, "follow", &[(me, you), (you, me)]).await;
    let token = put_more(&mut edges, token, "like", &[(me, post)]).await;

    let check = proto::CheckRequest {
        source: me,
        targets: vec![you, post],
        kinds: vec!["follow".into(), "like".into()],
        reverse: true,
        at_least: token.clone(),
    };
    let checked = client.check(check).await.expect("a check").into_inner().results;
    let text = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!((checked[0].target, &checked[0].related), (you, &text(&["follow"])));
    assert_eq!(checked[0].reverse, text(&["follow"]));
    assert_eq!((&checked[1].related, &checked[1].reverse), (&text(&["like"]), &text(&[])));

    let pair = |kind: &str, target| proto::CheckPair { kind: kind.into(), source: me, target };
    let pairs = vec![pair("follow", you), pair("block", you)];
    let request = proto::CheckPairsRequest { pairs, at_least: token.clone() };
    let checked = client.check_pairs(request).await.expect("a check").into_inner().results;
    assert_eq!((checked[0].related, checked[0].state()), (true, State::Live));
    assert_eq!(checked[1], proto::CheckedPair { related: false, state: None });

    let request = proto::TalliesRequest {
        ids: vec![me, post],
        kinds: vec!["follow".into(), "like".into(), "view".into()],
        at_least: token,
    };
    let results = client.tallies(request).await.expect("tallies").into_inner().results;
    let mine = &results[0].tallies;
    let follow = proto::KindTallies {
        outgoing: Some(1),
        incoming: Some(1),
        pending_outgoing: Some(0),
        pending_incoming: Some(0),
        ..Default::default()
    };
    assert_eq!(mine["follow"], follow);
    assert_eq!(results[1].tallies["like"].incoming, Some(1));
    assert_eq!(results[1].tallies["view"].value, Some(0));
    assert_eq!(results[1].tallies["view"].outgoing, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn hydrate_answers_one_viewer_or_many() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let mut client = ReadsClient::new(channel(&server));
    let [viewer, author, post, other] = nodes();
    let token = put_all(&mut edges, "follow", &[(viewer, author), (author, viewer)]).await;
    let token = put_more(&mut edges, token, "like", &[(viewer, post), (author, post)]).await;
    let request = proto::HydrateRequest {
        viewer,
        objects: vec![
            proto::HydrateObject { id: post, author: Some(author) },
            proto::HydrateObject { id: other, author: None },
        ],
        kinds: vec!["like".into(), "follow".into()],
        tallies: vec!["like".into(), "view".into()],
        reverse: vec!["follow".into()],
        ..Default::default()
    };
    let presenting = proto::HydrateRequest { at_least: token.clone(), ..request.clone() };
    let one = client.hydrate(presenting).await.expect("a hydrate").into_inner();
    let tallies = |like: i64| HashMap::from([("like".to_owned(), like), ("view".to_owned(), 0)]);
    let first = proto::HydratedObject {
        id: post,
        related: vec!["like".into(), "follow".into()],
        pending: vec![],
        reverse: vec!["follow".into()],
        tallies: tallies(2),
    };
    let second = proto::HydratedObject { id: other, tallies: tallies(0), ..Default::default() };
    assert_eq!(one.objects, [first, second]);
    let requests = vec![request.clone(), request];
    let many = proto::HydrateManyRequest { requests, at_least: token };
    let many = client.hydrate_many(many).await.expect("hydrates").into_inner();
    assert_eq!(many.results, [one.clone(), one]);
}
