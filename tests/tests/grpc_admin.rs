//! Operating the service over gRPC: imports and exports, backups, audits, a standby and its
//! promotion; and what is left when a stream is cut.

use std::fs;
use std::path::Path;
use std::time::Duration;

use guanxi_tests::grpc::proto::admin_client::AdminClient;
use guanxi_tests::grpc::proto::edges_client::EdgesClient;
use guanxi_tests::grpc::proto::nodes_client::NodesClient;
use guanxi_tests::grpc::proto::watch_client::WatchClient;
use guanxi_tests::grpc::proto::{self, LineFormat, import_request, run_audit_answer, watch_event};
use guanxi_tests::grpc::transfer::{
    backup, export, head_message, import, lines_message, open_messages,
};
use guanxi_tests::grpc::{
    RawGrpc, assert_cut_by_stop, assert_refusal, channel, expect_refusal, frame, put_all,
    put_request, rfc3339_of,
};
use guanxi_tests::{
    Cli, Options, Server, edge, node_run, nodes, poll_until, primary_options, shared,
    start_standby, wait_until_caught_up,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream;
use tonic::transport::Channel;
use tonic::{Code, Status};

const DEADLINE: Duration = Duration::from_secs(60);
const IMPORT: &str = "/guanxi.v1.Admin/Import";

fn admin(server: &Server) -> AdminClient<Channel> {
    AdminClient::new(channel(server))
}

fn head(id: &str, after: u64) -> proto::ImportHead {
    proto::ImportHead { id: Some(id.into()), after, ..Default::default() }
}

fn follows(source: u64, targets: &[u64]) -> String {
    let line = |target: &u64| {
        format!("{{\"kind\":\"follow\",\"source\":\"{source}\",\"target\":\"{target}\"}}\n")
    };
    targets.iter().map(line).collect()
}

/// An export's lines without what an import cannot keep.
fn comparable(export: &str) -> Vec<Value> {
    let lines = export.lines().map(|line| {
        let mut line: Value = serde_json::from_str(line).expect("a line is JSON");
        line.as_object_mut().expect("an object").remove("version");
        line
    });
    lines.collect()
}

async fn place(client: &mut AdminClient<Channel>, id: &str) -> Result<proto::ImportPlace, Status> {
    let request = proto::GetImportRequest { id: id.into(), at_least: None };
    client.get_import(request).await.map(tonic::Response::into_inner)
}

/// Waits until so many lines of the import are done.
async fn wait_for_place(client: &mut AdminClient<Channel>, id: &str, lines: u64) {
    let waiting = async {
        while place(client, id).await.map_or(0, |place| place.lines) < lines {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, waiting).await;
    assert!(waited.is_ok(), "import {id} does not come to line {lines}");
}

/// An import whose messages the test sends one by one.
struct OpenImport {
    messages: mpsc::Sender<proto::ImportRequest>,
    answer: tokio::task::JoinHandle<Result<proto::ImportAnswer, Status>>,
}

impl OpenImport {
    async fn begin(client: &AdminClient<Channel>, head: proto::ImportHead) -> OpenImport {
        let (messages, stream) = open_messages();
        let mut client = client.clone();
        let answer =
            tokio::spawn(
                async move { client.import(stream).await.map(tonic::Response::into_inner) },
            );
        let import = OpenImport { messages, answer };
        import.send(head_message(head)).await;
        import
    }

    async fn send(&self, message: proto::ImportRequest) {
        self.messages.send(message).await.expect("the call takes it");
    }

    async fn lines(&self, text: &str) {
        self.send(lines_message(text)).await;
    }

    /// The answer of an import that has ended, or ends now.
    async fn end(self) -> Result<proto::ImportAnswer, Status> {
        drop(self.messages);
        let answer = tokio::time::timeout(DEADLINE, self.answer).await;
        answer.expect("an answer").expect("the call does not panic")
    }

    /// Cancels the call.
    async fn cut(self) {
        self.answer.abort();
        let _ = self.answer.await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_server_exports_another_imports_and_exports_the_same() {
    let [first, second] = [Server::start(), Server::start()];
    first.post_json("/v1/groups/follow/1", json!({"name": "密友, \"close\""})).expect_status(201);
    first.put_json("/v1/nodes/user/9", json!({"private": true})).ok();
    for (kind, source, target, fields) in [
        ("follow", 1, 2, json!({"group": "密友, \"close\"", "data": "line\nbreak, \"quoted\""})),
        ("follow", 5, 9, json!({})),
        ("follow", 6, u64::MAX, json!({})),
        ("like", 1, 11, json!({"owner": "77", "data": ""})),
        ("block", 7, 8, json!({})),
    ] {
        first.put_json(edge(kind, source, target), fields).ok();
    }
    first.post_json("/v1/counters/view/11", json!({"delta": 905})).ok();
    let (mut from, mut to) = (admin(&first), admin(&second));
    for (format, name) in [(LineFormat::Ndjson, "ndjson"), (LineFormat::Csv, "csv")] {
        let wanted = proto::ExportRequest { format: format.into(), ..Default::default() };
        let (position, text) = export(&mut from, wanted).await;
        let over_http = first.get(format!("/v1/admin/export?format={name}"));
        assert_eq!(text, over_http.text, "the same lines as over HTTP");
        assert_eq!(over_http.header("guanxi-position"), Some(position.as_str()));
        let head = proto::ImportHead { format: format.into(), ..Default::default() };
        // Seven bytes at a time: no piece is a whole line.
        let answer = import(&mut to, head, &text, 7).await.expect("an import").into_inner();
        let lines = over_http.text.lines().count() as u64;
        let header = u64::from(name == "csv");
        assert_eq!((answer.id, answer.rejected), (None, 0), "{:?}", answer.rejects);
        if name == "ndjson" {
            assert_eq!((answer.lines, answer.accepted, answer.changed), (lines, lines, 5));
        } else {
            assert_eq!(answer.changed, 0, "all of it stands: {header}");
        }
        let (_, one) = export(&mut from, proto::ExportRequest::default()).await;
        let at_least = Some(answer.token);
        let wanted = proto::ExportRequest { at_least, ..Default::default() };
        let (_, other) = export(&mut to, wanted).await;
        assert_eq!(comparable(&one), comparable(&other));
        assert!(one.lines().count() >= 8, "{one}");
    }
    let only = proto::ExportRequest { kind: Some("view".into()), ..Default::default() };
    let (_, only) = export(&mut to, only).await;
    assert_eq!(only, "{\"type\":\"counter\",\"kind\":\"view\",\"id\":\"11\",\"value\":905}\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_lines_are_named_and_the_place_is_kept() {
    let server = shared();
    let mut client = admin(&server);
    let [source, target] = nodes();
    let id = format!("rejects-{source}");
    let text = format!(
        "{}not a line\n{}\n",
        follows(source, &[target, source]),
        json!({"kind": "nothing", "source": 1, "target": 2})
    );
    let answer = import(&mut client, head(&id, 0), &text, 1_000).await.expect("an import");
    let answer = answer.into_inner();
    assert_eq!(answer.id.as_deref(), Some(id.as_str()));
    assert_eq!((answer.lines, answer.accepted, answer.rejected), (4, 1, 3));
    let named: Vec<(u64, &str)> =
        answer.rejects.iter().map(|reject| (reject.line, reject.code.as_str())).collect();
    assert_eq!(named, [(2, "self_relation"), (3, "invalid_argument"), (4, "unknown_kind")]);
    assert_eq!(answer.rejects_left_off, 0);
    let place = place(&mut client, &id).await.expect("its place");
    let over_http = server.get(format!("/v1/admin/import/{id}"));
    let over_http = over_http.ok();
    assert_eq!((place.lines, place.accepted, place.changed, place.rejected), (4, 1, 1, 3));
    assert_eq!((&place.rejects, place.rejects_left_off), (&answer.rejects, 0));
    assert_eq!((&over_http["lines"], &over_http["digest"]), (&json!(4), &json!(place.digest)));
    assert_eq!(over_http["at"], rfc3339_of(place.at));
    let again = import(&mut client, head(&id, 0), &text, 1_000).await;
    let refused = expect_refusal(again, Code::FailedPrecondition, "conflict");
    assert!(refused.message().contains('4'), "it says where it stands: {}", refused.message());
}

#[tokio::test(flavor = "multi_thread")]
async fn more_rejected_lines_than_fit_a_message_are_counted() {
    let server = shared();
    let mut client = admin(&server);
    const LINES: usize = 20_000;
    // Each reason repeats much of its line, but not all of it.
    let line = format!("{{\"{}\":1}}\n", "x".repeat(700));
    let head = proto::ImportHead::default();
    let answer = import(&mut client, head, &line.repeat(LINES), 64 << 10).await;
    let answer = answer.expect("the client takes the answer").into_inner();
    assert_eq!((answer.lines, answer.rejected), (LINES as u64, LINES as u64));
    assert!(answer.rejects.len() > 1_000, "{}", answer.rejects.len());
    assert!(answer.rejects_left_off > 0);
    assert_eq!(answer.rejects.len() as u64 + answer.rejects_left_off, LINES as u64);
    assert!(answer.rejects.iter().all(|reject| reject.message.chars().count() <= 301));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_import_goes_on_where_it_was() {
    const CUTS: usize = 12;
    const LINES: usize = 3;
    let server = shared();
    let mut client = admin(&server);
    let [source] = nodes();
    let targets = node_run((CUTS + 1) * LINES);
    let id = format!("cut-{source}");
    let mut done = 0;
    for round in 0..CUTS {
        let import = OpenImport::begin(&client, head(&id, done)).await;
        let text = follows(source, &targets[round * LINES..]);
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        // Whole lines, and a part of the next that must not be taken for one.
        import.lines(&lines[..LINES].concat()).await;
        import.lines(&lines[LINES][..lines[LINES].len() / 2]).await;
        done += LINES as u64;
        wait_for_place(&mut client, &id, done).await;
        import.cut().await;
    }
    let rest = follows(source, &targets[CUTS * LINES..]);
    let answer = import(&mut client, head(&id, done), &rest, 50).await.expect("the rest");
    let answer = answer.into_inner();
    assert_eq!((answer.lines, answer.rejected), (targets.len() as u64, 0));
    let place = place(&mut client, &id).await.expect("its place");
    assert_eq!((place.lines, place.rejected), (targets.len() as u64, 0), "no half line counts");
    for target in targets {
        assert_eq!(server.get(edge("follow", source, target)).ok()["related"], true);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_line_of_csv_is_not_a_shorter_one() {
    const CUTS: u64 = 12;
    let server = shared();
    let mut client = admin(&server);
    let [source] = nodes();
    for round in 0..CUTS {
        let id = format!("csv-{source}-{round}");
        let head = proto::ImportHead { format: LineFormat::Csv.into(), ..head(&id, 0) };
        let import = OpenImport::begin(&client, head).await;
        // The last line would go on with more digits.
        let (whole, half) = (u64::MAX - round, source * 1_000 + round);
        let text = format!("kind,source,target\nfollow,{source},{whole}\nfollow,{source},{half}");
        import.lines(&text).await;
        wait_for_place(&mut client, &id, 2).await;
        import.cut().await;
    }
    for round in 0..CUTS {
        let (id, half) = (format!("csv-{source}-{round}"), source * 1_000 + round);
        let head = proto::ImportHead { format: LineFormat::Csv.into(), ..head(&id, 2) };
        let text = format!("kind,source,target\nfollow,{source},{half}00\n");
        let answer = import(&mut client, head, &text, 50).await.expect("the rest").into_inner();
        assert_eq!((answer.lines, answer.rejected), (3, 0));
        assert_eq!(server.get(edge("follow", source, half)).ok()["related"], false, "{half}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_streams_are_refused_by_name() {
    let server = shared();
    let mut client = admin(&server);
    let good = proto::ImportHead::default;
    let nothing = proto::ImportRequest { part: None };
    let invalid = (Code::InvalidArgument, "invalid_argument");
    let too_large = (Code::ResourceExhausted, "too_large");
    let csv = proto::ImportHead { format: LineFormat::Csv.into(), ..good() };
    for (messages, (code, reason), named) in [
        (vec![], invalid, "head: "),
        (vec![lines_message("{}\n")], invalid, "head: "),
        (vec![nothing.clone()], invalid, "head: "),
        (vec![head_message(good()), head_message(good())], invalid, "head: "),
        (vec![head_message(good()), nothing], invalid, "lines: "),
        (vec![head_message(proto::ImportHead { format: 9, ..good() })], invalid, "format: "),
        (vec![head_message(head("a b", 0))], invalid, "id"),
        (vec![head_message(head("far", u64::MAX))], invalid, "after: "),
        (
            vec![head_message(proto::ImportHead { at_least: Some("x".into()), ..good() })],
            invalid,
            "at_least: ",
        ),
        (vec![head_message(csv.clone()), lines_message("colour,size\n")], invalid, "colour"),
        (vec![head_message(csv), lines_message("kind,source")], invalid, "no line break"),
        (vec![head_message(good()), lines_message("\n{}")], invalid, "the lines up to 1 are done"),
        (vec![head_message(good()), lines_message(vec![b' '; 2 << 20])], too_large, "too large"),
    ] {
        println!("{named} of {} messages", messages.len());
        let answer = client.import(tokio_stream::iter(messages)).await;
        let status = expect_refusal(answer, code, reason);
        assert!(status.message().contains(named), "{} names {named}", status.message());
    }
    let unknown = place(&mut client, "never-begun").await.expect_err("there is none");
    assert_refusal(&unknown, Code::NotFound, "not_found");
    let wrong = place(&mut client, "a b").await.expect_err("no such id");
    assert_refusal(&wrong, Code::InvalidArgument, "invalid_argument");
    let wanted = proto::ExportRequest { kind: Some("nothing".into()), ..Default::default() };
    expect_refusal(client.export(wanted).await, Code::NotFound, "unknown_kind");
    let wanted = proto::ExportRequest { format: 9, ..Default::default() };
    expect_refusal(client.export(wanted).await, Code::InvalidArgument, "invalid_argument");
    for (after, code, reason) in [
        ("garbage", Code::InvalidArgument, "invalid_argument"),
        ("99999999999999999999", Code::InvalidArgument, "invalid_argument"),
        ("9999999999", Code::OutOfRange, "position_expired"),
    ] {
        let wanted = proto::BackupRequest { after: Some(after.into()), at_least: None };
        expect_refusal(client.backup(wanted).await, code, reason);
    }
    server.assert_healthy();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_an_exports_position_has_no_gap() {
    let server = shared();
    let mut edges = EdgesClient::new(channel(&server));
    let [source, before, after] = nodes();
    edges.put(put_request("follow", source, before)).await.expect("a put");
    let only = proto::ExportRequest { kind: Some("follow".into()), ..Default::default() };
    let (position, text) = export(&mut admin(&server), only).await;
    assert!(text.contains(&format!("\"target\":\"{before}\"")));
    edges.put(put_request("follow", source, after)).await.expect("a put");
    let request = proto::WatchRequest { from: Some(position), ..Default::default() };
    let mut watch = WatchClient::new(channel(&server));
    let mut watch = watch.watch(request).await.expect("a stream").into_inner();
    let first_of_ours = async {
        loop {
            let event = watch.message().await.expect("no error").expect("no end");
            if let Some(watch_event::Event::Record(record)) = event.event
                && record.source == source
            {
                return record;
            }
        }
    };
    let record = tokio::time::timeout(DEADLINE, first_of_ours).await.expect("an event");
    assert_eq!(record.target, after, "the first of ours is the one behind the export");
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_over_grpc_are_restored_by_the_command() {
    let server = Server::start();
    let mut client = admin(&server);
    let mut edges = EdgesClient::new(channel(&server));
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    put_all(&mut edges, "follow", &[(1, 2), (1, 3)]).await;
    let (head, archive, full_end) = backup(&mut client, proto::BackupRequest::default()).await;
    assert!(head.full && head.created_at.is_some());
    fs::write(path("full.gxb"), archive).expect("the archive is written");
    put_all(&mut edges, "follow", &[(1, 4)]).await;
    let after = Some(full_end.position.clone());
    let (head, archive, end) =
        backup(&mut client, proto::BackupRequest { after, at_least: None }).await;
    assert!(!head.full);
    assert_eq!(head.position, full_end.position, "it goes on where the other ended");
    assert!(end.committed_at.is_some() && end.position != full_end.position);
    fs::write(path("more.gxb"), archive).expect("the archive is written");

    let (full, more, to) = (path("full.gxb"), path("more.gxb"), path("restored"));
    let restore =
        ["restore", "--json", "--from", &full, "--from", &more, "--data-dir", &to].to_vec();
    Cli::default().run(&restore).ok();
    let restored = Server::try_start_in(Path::new(&to)).expect("what was restored starts");
    let [one, other] = [&server, &restored].map(|server| server.get("/v1/admin/export").text);
    assert_eq!(one, other, "versions too");
    assert_eq!(one.lines().count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_listed_page_by_page() {
    let server = Server::start();
    let mut client = admin(&server);
    let mut eraser = NodesClient::new(channel(&server));
    let mut newest_first = Vec::new();
    for id in 1..=5 {
        let request = proto::EraseNodeRequest { r#type: "user".into(), id, at_least: None };
        newest_first.insert(0, eraser.erase(request).await.expect("a job").into_inner().job);
    }
    let (mut walked, mut cursor) = (Vec::new(), None);
    for expected in [2, 2, 1] {
        let request = proto::ListJobsRequest { limit: Some(2), cursor, at_least: None };
        let page = client.list_jobs(request).await.expect("a page").into_inner();
        assert_eq!(page.jobs.len(), expected);
        walked.extend(page.jobs.iter().map(|job| job.job));
        cursor = page.next;
    }
    assert_eq!((walked, cursor), (newest_first, None));
    for (limit, cursor) in [(Some(0), None), (Some(1_001), None), (None, Some("x".to_owned()))] {
        let request = proto::ListJobsRequest { limit, cursor, at_least: None };
        let refused = client.list_jobs(request).await;
        expect_refusal(refused, Code::InvalidArgument, "invalid_argument");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_reports_what_it_compared() {
    let server = Server::start();
    let mut client = admin(&server);
    let before = client.get_audit(proto::GetAuditRequest::default()).await.expect("a state");
    assert!(before.into_inner().last.is_none(), "nobody has asked for one");
    let mut edges = EdgesClient::new(channel(&server));
    put_all(&mut edges, "follow", &[(1, 2), (2, 1), (1, 3)]).await;
    put_all(&mut edges, "like", &[(1, 11)]).await;
    let only = proto::RunAuditRequest { kind: Some("follow".into()), ..Default::default() };
    for (request, edges) in [(proto::RunAuditRequest::default(), 4), (only, 3)] {
        let kind = request.kind.clone();
        let answer = client.run_audit(request).await.expect("an audit").into_inner();
        let Some(run_audit_answer::Result::Report(report)) = answer.result else {
            panic!("a small store is audited within a call: {answer:?}");
        };
        assert_eq!((report.edges, report.drift, report.left), (edges, 0, 0));
        assert_eq!((&report.kind, report.repair), (&kind, false));
        assert!(report.kinds.iter().any(|of| of.kind.as_deref() == Some("follow")), "{report:?}");
        let state = client.get_audit(proto::GetAuditRequest::default()).await.expect("a state");
        let state = state.into_inner();
        assert_eq!(state.last.as_ref(), Some(&report));
        assert!(state.running.is_none() && state.failed.is_none() && state.scrubber.is_some());
        let over_http = server.get("/v1/admin/audit");
        let over_http = over_http.ok();
        assert_eq!(over_http["last"]["position"], report.position);
        assert_eq!(over_http["last"]["finished_at"], rfc3339_of(report.finished_at));
    }
    let wrong =
        |kind: &str| proto::RunAuditRequest { kind: Some(kind.into()), ..Default::default() };
    expect_refusal(client.run_audit(wrong("nothing")).await, Code::NotFound, "unknown_kind");
    let counter = client.run_audit(wrong("view")).await;
    expect_refusal(counter, Code::InvalidArgument, "invalid_argument");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_outlasts_its_call_goes_on() {
    // No audit is over within no time, and the answer itself still has a moment.
    let environment = vec![("GUANXI_HTTP_REQUEST_TIMEOUT_MS".to_owned(), "1000".to_owned())];
    let server = Server::start_with(Options { environment, ..Options::default() });
    let mut client = admin(&server);
    let answer = client.run_audit(proto::RunAuditRequest::default()).await.expect("an answer");
    match answer.into_inner().result.expect("a result") {
        run_audit_answer::Result::GoesOn(state) => assert!(state.failed.is_none(), "{state:?}"),
        // It may have been quicker than the look at the clock.
        run_audit_answer::Result::Report(report) => assert_eq!(report.drift, 0),
    }
    poll_until("the audit ends", DEADLINE, || {
        let state = server.get("/v1/admin/audit");
        (!state.ok()["last"].is_null()).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_shown_and_promoted() {
    let primary = Server::start_with(primary_options());
    let standby = start_standby(&primary);
    let (mut at_primary, mut at_standby) = (admin(&primary), admin(&standby));
    let mut edges = EdgesClient::new(channel(&primary));
    put_all(&mut edges, "follow", &[(1, 2), (1, 3)]).await;
    wait_until_caught_up(&primary, &standby);

    let shown = async |client: &mut AdminClient<Channel>| {
        let shown = client.get_standby(proto::GetStandbyRequest {}).await;
        shown.expect("its part").into_inner()
    };
    let (of_primary, of_standby) = (shown(&mut at_primary).await, shown(&mut at_standby).await);
    assert_eq!(of_primary.role(), proto::standby::Role::Primary);
    assert_eq!((of_primary.following, of_primary.standbys.len()), (None, 1));
    assert_eq!(of_primary.standbys[0].position, of_primary.position);
    assert_eq!(of_standby.role(), proto::standby::Role::Standby);
    assert_eq!(of_standby.position, of_primary.position);
    let following = of_standby.following.expect("it follows");
    assert!(following.last_contact.is_some() && following.trouble.is_none(), "{following:?}");
    assert!(following.primary.contains(&primary.address().to_string()), "{following:?}");

    let mut edges = EdgesClient::new(channel(&standby));
    let refused = edges.put(put_request("follow", 1, 4)).await;
    expect_refusal(refused, Code::FailedPrecondition, "read_only");
    let lines = follows(1, &[4]);
    let refused = import(&mut at_standby, proto::ImportHead::default(), &lines, 10).await;
    expect_refusal(refused, Code::FailedPrecondition, "read_only");
    let refused = at_primary.promote(proto::PromoteRequest {}).await;
    expect_refusal(refused, Code::FailedPrecondition, "conflict");

    drop(primary);
    let promoted = at_standby.promote(proto::PromoteRequest {}).await.expect("a promotion");
    let promoted = promoted.into_inner();
    assert_eq!(promoted.position, of_standby.position);
    assert!(promoted.epoch > of_standby.epoch && promoted.committed_at.is_some());
    put_all(&mut edges, "follow", &[(1, 4)]).await;
    let shown = shown(&mut at_standby).await;
    assert_eq!((shown.role(), shown.epoch), (proto::standby::Role::Primary, promoted.epoch));
    assert!(shown.following.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_an_import_is_the_callers() {
    const REQUEST_MS: u64 = 200;
    let timeout = ("GUANXI_HTTP_REQUEST_TIMEOUT_MS".to_owned(), REQUEST_MS.to_string());
    // Nothing but the caller's own deadline ends it.
    let patient = ("GUANXI_HTTP_BODY_TIMEOUT_MS".to_owned(), "60000".to_owned());
    let environment = vec![timeout, patient];
    let server = Server::start_with(Options { environment, ..Options::default() });
    let mut client = admin(&server);
    let targets = node_run(10);
    // Without one it outlasts any other request, grace included.
    let import = OpenImport::begin(&client, head("slow", 0)).await;
    for (index, line) in follows(1, &targets).split_inclusive('\n').enumerate() {
        import.lines(line).await;
        wait_for_place(&mut client, "slow", index as u64 + 1).await;
        tokio::time::sleep(Duration::from_millis(REQUEST_MS)).await;
    }
    let answer = import.end().await.expect("it is done");
    assert_eq!((answer.lines, answer.accepted), (10, 10));

    // With one it ends then, and says how far it came.
    let raw = RawGrpc::connect(&server).await;
    let body = [head_message(head("late", 0)), lines_message(follows(2, &targets))];
    let body: Vec<u8> = body.iter().flat_map(frame).collect();
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "10S")];
    let answer = raw.send_part(IMPORT, &headers, body, false).await;
    let status = answer.status.expect("a status");
    assert_refusal(&status, Code::DeadlineExceeded, "deadline_exceeded");
    assert!(status.message().contains("line 10"), "{}", status.message());
    wait_for_place(&mut client, "late", 10).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_cuts_an_import_which_goes_on_after_the_restart() {
    let server = Server::start_with(primary_options());
    let mut client = admin(&server);
    let targets = node_run(8);
    let text = follows(1, &targets);
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let import = OpenImport::begin(&client, head("stopped", 0)).await;
    import.lines(&lines[..5].concat()).await;
    import.lines(&lines[5][..10]).await;
    wait_for_place(&mut client, "stopped", 5).await;
    let stopped = tokio::task::spawn_blocking(move || server.terminate());
    let status = import.answer.await.expect("no panic").expect_err("it was cut");
    assert_cut_by_stop(&status);
    let stopped = stopped.await.expect("it stops");
    assert!(stopped.status.success(), "{}", stopped.log);

    let server = stopped.restart();
    let mut client = admin(&server);
    let place = place(&mut client, "stopped").await.expect("its place");
    assert_eq!((place.lines, place.rejected), (5, 0));
    let rest = lines[5..].concat();
    let answer = guanxi_tests::grpc::transfer::import(&mut client, head("stopped", 5), &rest, 9);
    let answer = answer.await.expect("the rest").into_inner();
    assert_eq!((answer.lines, answer.accepted, answer.rejected), (8, 3, 0));
    let part = import_request::Part::Lines(Vec::new());
    let refused =
        client.import(tokio_stream::once(proto::ImportRequest { part: Some(part) })).await;
    expect_refusal(refused, Code::InvalidArgument, "invalid_argument");
}
