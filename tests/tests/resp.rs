//! RESP: every command answers what HTTP answers to the same question, in both protocols; pipelines
//! are answered in order, and a read sees the writes before it.

use std::sync::{Arc, LazyLock};

use guanxi_tests::differences::{Deployment, counted, deployment};
use guanxi_tests::resp::{RespClient, Value, options, words};
use guanxi_tests::{CLOSED_LIST, Server, edge, edge_call, metric, node, node_run, nodes};
use parking_lot::Mutex;
use serde_json::{Value as Json, json};

/// The server that the tests share; the process ends with them.
fn server() -> Arc<Server> {
    static SHARED: LazyLock<Mutex<std::sync::Weak<Server>>> = LazyLock::new(Mutex::default);
    let mut shared = SHARED.lock();
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(Server::start_with(options()));
    *shared = Arc::downgrade(&server);
    server
}

/// The JSON that says the same as an answer; `named` says what of it is a map in RESP2.
fn as_json(value: &Value) -> Json {
    match value {
        Value::Simple(text) | Value::Text(text) => json!(text),
        Value::Error(text) => panic!("an error: {text}"),
        Value::Integer(number) => json!(number),
        Value::Null => Json::Null,
        Value::Truth(is) => json!(is),
        Value::Array(items) => items.iter().map(as_json).collect(),
        Value::Map(entries) => {
            let entries =
                entries.iter().map(|(name, value)| (name.as_text().to_owned(), as_json(value)));
            Json::Object(entries.collect())
        }
    }
}

/// What an answer of RESP3 is in RESP2.
fn in_second(value: &Value) -> Value {
    match value {
        Value::Truth(is) => Value::Integer(i64::from(*is)),
        Value::Array(items) => Value::Array(items.iter().map(in_second).collect()),
        Value::Map(entries) => {
            let both = entries.iter().flat_map(|(name, value)| [name.clone(), in_second(value)]);
            Value::Array(both.collect())
        }
        other => other.clone(),
    }
}

/// Two clients, one of each protocol, that ask the same.
struct Both {
    second: RespClient,
    third: RespClient,
    at_least: String,
}

impl Both {
    fn of(server: &Server) -> Both {
        let address = server.resp_address();
        let (second, third) = (RespClient::open(address), RespClient::open_third(address));
        Both { second, third, at_least: String::new() }
    }

    /// A write, whose token the reads behind it present; it stands for the writes before it, too.
    #[track_caller]
    fn write(&mut self, text: &str) -> Value {
        let written = match self.at_least.as_str() {
            "" => self.third.ask(text),
            token => self.third.ask(&format!("{text} ATLEAST {token}")),
        };
        self.at_least = written.token();
        written
    }

    /// The answer to a read, which is the same in both protocols but for its form.
    #[track_caller]
    fn read(&mut self, text: &str) -> Value {
        let text = format!("{text} ATLEAST {}", self.at_least);
        let (second, third) = (self.second.ask(&text), self.third.ask(&text));
        assert_eq!(second, in_second(&third), "{text}");
        third
    }
}

#[test]
fn an_edge_is_put_shown_and_deleted() {
    let server = server();
    let [me, you, owner] = nodes();
    let mut both = Both::of(&server);
    let kind = json!({
        "name": "shelf", "source_type": "user", "target_type": "post", "owner_type": "user",
        "outgoing_max": 1_000, "groups_max": 10, "data_bytes_max": 64,
    });
    server.post_json("/v1/admin/kinds", kind).expect_status(201);
    let group = json!({"name": "to read"});
    server.post_json(format!("/v1/groups/shelf/{me}"), group).expect_status(201);
    let put = |both: &mut Both, arguments: &[&str]| {
        let start = ["GX.PUT", "shelf"];
        let all: Vec<&str> = start.iter().chain(arguments).copied().collect();
        let answer = both.third.ask_with(&all);
        both.at_least = answer.token();
        answer
    };
    let (source, target, author) = (me.to_string(), you.to_string(), owner.to_string());
    let ends = [source.as_str(), target.as_str()];
    let first = put(
        &mut both,
        &[ends[0], ends[1], "group", "to read", "OWNER", &author, "Data", "a \r\n 朋"],
    );
    assert_eq!(first.field("changed"), &Value::Truth(true));
    assert_eq!(first.field("state"), &Value::text("live"));
    assert_eq!(put(&mut both, &ends).field("changed"), &Value::Truth(false));
    let shown = both.read(&format!("gx.get shelf {me} {you}"));
    assert_eq!(as_json(&shown), server.get(edge("shelf", me, you)).ok().clone());
    assert_eq!(shown.field("data"), &Value::text("a \r\n 朋"));
    assert_eq!(shown.field("version"), first.field("version"));

    put(&mut both, &[ends[0], ends[1], "GROUP", "", "OWNER", "", "DATA", ""]);
    let cleared = both.read(&format!("GX.GET shelf {me} {you}"));
    for field in ["group", "owner", "data"] {
        assert_eq!(cleared.field(field), &Value::Null, "an empty {field} clears");
    }
    let deleted = both.write(&format!("GX.DEL shelf {me} {you}"));
    assert_eq!(deleted.field("state"), &Value::text("removed"));
    let gone = both.read(&format!("GX.GET shelf {me} {you}"));
    assert_eq!(gone.field("related"), &Value::Truth(false));
    assert_eq!(as_json(&gone), server.get(edge("shelf", me, you)).ok().clone());
    let again = both.third.ask(&format!("GX.DEL shelf {me} {you} STRICT"));
    again.expect_error("NOT_RELATED ");
}

#[test]
fn a_pending_edge_is_answered() {
    let server = server();
    let [private, me, other] = nodes();
    let mut both = Both::of(&server);
    server.put_json(node("user", private), json!({"private": true})).ok();
    let asked = both.write(&format!("GX.PUT follow {me} {private}"));
    assert_eq!(asked.field("state"), &Value::text("pending"));
    let check = format!("GX.CHECK follow {me} {private} {other}");
    let none = Value::Array(vec![Value::Integer(0), Value::Integer(0)]);
    assert_eq!(both.read(&check), none);
    let states = Value::Array(vec![Value::text("pending"), Value::Null]);
    assert_eq!(both.read(&format!("{check} STATES")), states);
    let list = both.read(&format!("GX.LIST follow {private} INCOMING STATE pending"));
    assert_eq!(list.field("items").items()[0].items()[0], Value::text(me));
    let approved = both.write(&format!("GX.APPROVE follow {me} {private}"));
    assert_eq!(approved.field("state"), &Value::text("live"));
    let live = Value::Array(vec![Value::Integer(1), Value::Integer(0)]);
    assert_eq!(both.read(&check), live);
    both.write(&format!("GX.PUT follow {other} {private}"));
    let declined = both.write(&format!("GX.DECLINE follow {other} {private}"));
    assert_eq!(declined.field("state"), &Value::text("removed"));
    both.third.ask(&format!("GX.DECLINE follow {other} {private}")).expect_error("NOT_PENDING ");
}

#[test]
fn many_are_checked_counted_and_hydrated() {
    let server = server();
    let [viewer, author, first, second] = nodes();
    let mut both = Both::of(&server);
    both.write(&format!("GX.PUT like {viewer} {first} OWNER {author}"));
    both.write(&format!("GX.PUT follow {viewer} {author}"));
    both.write(&format!("GX.PUT follow {author} {viewer}"));
    let counted_now = both.write(&format!("GX.COUNT view {second} 41"));
    assert_eq!(as_json(counted_now.field("value")), counted(41));
    both.write(&format!("GX.COUNT view {second} -1"));

    let tallies = as_json(&both.read(&format!("GX.TALLY like {first} {author} {second}")));
    let asked = json!({"ids": [first, author, second], "kinds": ["like"]});
    let over_http = server.post_json("/v1/tallies", asked);
    let of_each = over_http.ok()["results"].as_array().unwrap().iter();
    let of_each: Vec<Json> = of_each.map(|result| result["tallies"]["like"].clone()).collect();
    assert_eq!(tallies, json!(of_each));
    assert_eq!(tallies[1]["owned"], 1);
    let values = both.read(&format!("GX.TALLY view {second}"));
    assert_eq!(values.items()[0].field("value"), &Value::Integer(40));

    let hydrate = format!(
        "GX.HYDRATE {viewer} KINDS 3 like favorite follow TALLIES 2 like view REVERSE 1 follow \
         OBJECTS 2 {first}:{author} {second}"
    );
    let meant = json!([[["like", "follow"], [], [1, 0], ["follow"]], [[], [], [0, 40], []],]);
    assert_eq!(as_json(&both.read(&hydrate)), meant);
    let degradable = as_json(&both.read(&format!("{hydrate} DEGRADED")));
    assert_eq!(degradable, json!([meant, false]));
    let few = both.read(&format!("GX.HYDRATE {viewer} KINDS 0 OBJECTS 1 {first}"));
    assert_eq!(as_json(&few), json!([[[], [], []]]));
    assert_eq!(both.read(&format!("GX.HYDRATE {viewer} OBJECTS 0 KINDS 0")), Value::Array(vec![]));
}

#[test]
fn lists_are_those_of_http_page_by_page() {
    let server = server();
    let [me, other] = nodes();
    let mut both = Both::of(&server);
    let followed = node_run(7);
    for target in &followed {
        both.write(&format!("GX.PUT follow {me} {target}"));
    }
    both.write(&format!("GX.PUT follow {} {me}", followed[2]));
    both.write(&format!("GX.PUT follow {other} {}", followed[2]));
    both.write(&format!("GX.PUT follow {} {other}", followed[3]));

    let over_http = server.get(edge_call("follow", me, "outgoing?limit=3&mutual=true"));
    let page = both.read(&format!("GX.LIST follow {me} OUTGOING LIMIT 3 WITHMUTUAL"));
    let fields = ["id", "state", "since", "group", "owner", "data", "expires_at", "mutual"];
    let items = over_http.ok()["items"].as_array().unwrap().iter();
    let items: Json = items
        .map(|item| fields.iter().map(|field| item[*field].clone()).collect::<Json>())
        .collect();
    assert_eq!(as_json(page.field("items")), items);
    assert_eq!(as_json(page.field("total")), json!(7));

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = both.read(&format!("GX.LIST follow {me} OUTGOING LIMIT 3 ORDER oldest{cursor}"));
        let items = page.field("items").items().iter();
        seen.extend(items.map(|item| item.items()[0].as_text().parse::<u64>().unwrap()));
        match page.field("next") {
            Value::Null => break,
            next => cursor = format!(" CURSOR {}", next.as_text()),
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, followed);
    for (list, id) in [
        (format!("{me} INCOMING"), followed[2]),
        (format!("{me} MUTUAL"), followed[2]),
        (format!("{me} COMMON {other}"), followed[2]),
        (format!("{me} KNOWN {other}"), followed[3]),
    ] {
        let page = both.read(&format!("GX.LIST follow {list}"));
        let items = page.field("items").items();
        assert_eq!(items.len(), 1, "{list}: {items:?}");
        assert_eq!(items[0].items()[0], Value::text(id), "{list}");
    }
}

#[test]
fn a_key_makes_a_write_safe_to_send_again() {
    let server = server();
    let [me, you] = nodes();
    let mut client = RespClient::open_third(server.resp_address());
    let put = format!("GX.PUT follow {me} {you} STRICT KEY put-{me}");
    let first = client.ask(&put);
    let again = client.ask(&put);
    assert_eq!(first.field("version"), again.field("version"));
    client.ask(&format!("GX.PUT follow {me} {you} STRICT")).expect_error("ALREADY_RELATED ");
    client.ask(&format!("GX.DEL follow {me} {you} KEY put-{me}")).expect_error("KEY_CONFLICT ");
    let count = format!("GX.COUNT view {you} 5 KEY count-{me}");
    client.ask(&count);
    let token = client.ask(&count).token();
    let tallies = client.ask(&format!("GX.TALLY view {you} ATLEAST {token}"));
    assert_eq!(tallies.items()[0].field("value"), &Value::Integer(5));
}

#[test]
fn what_is_wrong_is_said_by_its_code() {
    let server = server();
    let [me, you] = nodes();
    let mut client = RespClient::open(server.resp_address());
    let long = "x".repeat(200);
    for (text, begin) in [
        ("GX.PUT nothing 1 2", "UNKNOWN_KIND "),
        ("GX.PUT follow 0 2", "INVALID_ARGUMENT source: '0' is no id"),
        ("GX.PUT follow 1 x", "INVALID_ARGUMENT target: 'x' is no id"),
        ("GX.PUT follow 1 18446744073709551616", "INVALID_ARGUMENT target: "),
        ("GX.PUT follow 1", "ERR wrong number of arguments for 'gx.put' command"),
        ("GX.PUT follow 7 7", "SELF_RELATION "),
        ("GX.PUT follow 7 8 GROUP", "ERR wrong number of arguments for 'gx.put' command"),
        ("GX.PUT follow 7 8 GROUP nobody", "UNKNOWN_GROUP "),
        ("GX.PUT follow 7 8 COLOUR red", "INVALID_ARGUMENT 'COLOUR' is no option of GX.PUT"),
        ("GX.PUT follow 7 8 OWNER 1 OWNER 2", "INVALID_ARGUMENT OWNER: it is given more than once"),
        ("GX.PUT follow 7 8 EXPIRES soon", "INVALID_ARGUMENT EXPIRES: 'soon' is no RFC 3339 time"),
        ("GX.PUT follow 7 8 APPROVAL perhaps", "INVALID_ARGUMENT APPROVAL: "),
        ("GX.PUT follow 7 8 ATLEAST nothing", "INVALID_ARGUMENT at_least: "),
        (&format!("GX.PUT follow 7 8 DATA {long}"), "TOO_LARGE DATA: "),
        (&format!("GX.PUT follow 7 8 KEY {long}"), "INVALID_ARGUMENT KEY: "),
        ("GX.GET follow 7 8 STRICT", "INVALID_ARGUMENT 'STRICT' is no option of GX.GET"),
        ("GX.CHECK follow 7", "ERR wrong number of arguments for 'gx.check' command"),
        ("GX.CHECK view 7 8", "INVALID_ARGUMENT "),
        ("GX.TALLY follow", "ERR wrong number of arguments for 'gx.tally' command"),
        ("GX.HYDRATE 1 KINDS 1 like", "INVALID_ARGUMENT OBJECTS: "),
        ("GX.HYDRATE 1 OBJECTS 1 5", "INVALID_ARGUMENT KINDS: "),
        ("GX.HYDRATE 1 KINDS 2 like", "ERR wrong number of arguments"),
        ("GX.HYDRATE 1 KINDS 17", "INVALID_ARGUMENT KINDS: it is a whole number from 0 to 16"),
        ("GX.HYDRATE 1 KINDS 0 OBJECTS 257", "INVALID_ARGUMENT OBJECTS: "),
        ("GX.HYDRATE 1 KINDS 0 OBJECTS 1 5:", "INVALID_ARGUMENT OBJECTS: '' is no id"),
        ("GX.HYDRATE 1 KINDS 1 nothing OBJECTS 1 5", "UNKNOWN_KIND "),
        ("GX.LIST follow 1", "ERR wrong number of arguments for 'gx.list' command"),
        ("GX.LIST follow 1 SIDEWAYS", "INVALID_ARGUMENT list: 'SIDEWAYS' is none of OUTGOING"),
        ("GX.LIST follow 1 OUTGOING LIMIT 1001", "INVALID_ARGUMENT LIMIT: "),
        ("GX.LIST follow 1 OUTGOING CURSOR x", "INVALID_ARGUMENT "),
        ("GX.COUNT view 1 many", "INVALID_ARGUMENT delta: 'many' is no whole number"),
        ("GX.COUNT view 1 99999999999999999999", "LIMIT_REACHED "),
        ("GX.COUNT follow 1 1", "INVALID_ARGUMENT "),
        (
            "GX.SCAN follow 1",
            "ERR unknown command 'GX.SCAN', with args beginning with: 'follow' '1' ",
        ),
        ("get a", "ERR unknown command 'get', with args beginning with: 'a' "),
    ] {
        let answer = client.ask(text);
        let said = answer.expect_error(begin);
        let code = said.split(' ').next().unwrap().to_lowercase();
        assert!(code == "err" || CLOSED_LIST.iter().any(|(_, known)| *known == code), "{said}");
    }
    // Nothing of it was done.
    let token = client.ask(&format!("GX.PUT follow {me} {you}")).token();
    let checked = client.ask(&format!("GX.CHECK follow 7 7 8 ATLEAST {token}"));
    assert_eq!(checked, Value::Array(vec![Value::Integer(0), Value::Integer(0)]));
    client.send(b"*4\r\n$6\r\nGX.PUT\r\n$6\r\nfoll\xffw\r\n$1\r\n1\r\n$1\r\n2\r\n");
    client.read().expect_error("INVALID_ARGUMENT kind: it is not UTF-8");
}

/// A limit that two writes of one pipeline compete for is exact, and each hears of its own.
#[test]
fn a_pipeline_is_answered_in_order_and_a_read_sees_the_writes_before_it() {
    let server = server();
    let [me, blocker] = nodes();
    let targets = node_run(300);
    let mut client = RespClient::open_third(server.resp_address());
    let mut pipeline = Vec::new();
    for target in &targets {
        pipeline.extend(words(&format!("GX.PUT follow {me} {target}")));
    }
    pipeline.extend(words(&format!("GX.CHECK follow {me} {} {blocker}", targets[299])));
    pipeline.extend(words("PING"));
    pipeline.extend(words(&format!("GX.DEL follow {me} {} STRICT", targets[0])));
    pipeline.extend(words(&format!("GX.DEL follow {me} {} STRICT", targets[0])));
    pipeline.extend(words(&format!("GX.PUT follow {me} {me}")));
    pipeline.extend(words(&format!("GX.PUT follow {me} {blocker}")));
    pipeline.extend(words(&format!("GX.PUT block {blocker} {me}")));
    pipeline.extend(words(&format!("GX.PUT follow {me} {blocker}")));
    pipeline.extend(words(&format!("GX.CHECK follow {me} {} {blocker}", targets[0])));
    assert!(client.send(&pipeline));
    let mut version = 0;
    for target in &targets {
        let put = client.read();
        assert_eq!(put.field("changed"), &Value::Truth(true), "{target}");
        let next: u64 = put.field("version").as_text().parse().unwrap();
        assert!(next > version, "they are decided in order");
        version = next;
    }
    let (one, none) = (Value::Integer(1), Value::Integer(0));
    assert_eq!(client.read(), Value::Array(vec![one, none.clone()]));
    assert_eq!(client.read(), Value::Simple("PONG".to_owned()));
    assert_eq!(client.read().field("state"), &Value::text("removed"));
    client.read().expect_error("NOT_RELATED ");
    client.read().expect_error("SELF_RELATION ");
    assert_eq!(client.read().field("state"), &Value::text("live"));
    assert_eq!(client.read().field("state"), &Value::text("live"));
    client.read().expect_error("EXCLUDED ");
    assert_eq!(client.read(), Value::Array(vec![none.clone(), none]));
}

#[test]
fn writes_of_a_pipeline_are_committed_together() {
    if deployment() == Deployment::Cluster {
        return;
    }
    let server = Server::start_with(options());
    let batches = || metric(&server, "guanxi_batch_changes_count");
    let targets = node_run(400);
    let mut client = RespClient::open(server.resp_address());
    let before = batches();
    let puts = targets.iter().map(|target| words(&format!("GX.PUT like 1 {target}")));
    assert!(client.send(puts.flatten().collect::<Vec<u8>>()));
    for _ in &targets {
        assert_eq!(client.read().field("state"), &Value::text("live"));
    }
    let taken = batches() - before;
    assert!(taken <= 20.0, "400 puts took {taken} commits");
    // Each was a request of its own for the metrics.
    let counted = "guanxi_requests_total{call=\"put_edge\",kind=\"like\",code=\"ok\"}";
    assert_eq!(metric(&server, counted), 400.0);
}

#[test]
fn a_client_may_close_its_end_before_it_reads() {
    let server = server();
    let [me, you] = nodes();
    let mut client = RespClient::open(server.resp_address());
    client
        .send(format!("GX.PUT follow {me} {you}\r\nPING \"a b\"\nGX.DEL follow {me} {you}\r\nPI"));
    client.finish_sending();
    assert_eq!(client.read().field("state"), &Value::text("live"));
    assert_eq!(client.read(), Value::text("a b"));
    assert_eq!(client.read().field("state"), &Value::text("removed"));
    assert_eq!(client.try_read(), None);
}

#[test]
fn what_clients_ask_of_the_connection_is_answered_as_redis_does() {
    let server = server();
    let mut client = RespClient::open(server.resp_address());
    for (text, answer) in [
        ("PING", Value::Simple("PONG".to_owned())),
        ("ping hi", Value::text("hi")),
        ("ECHO hi", Value::text("hi")),
        ("SELECT 0", Value::ok()),
        ("CLIENT SETNAME worker-1", Value::ok()),
        ("CLIENT GETNAME", Value::text("worker-1")),
        ("CLIENT SETINFO LIB-NAME redis-py", Value::ok()),
        ("CLIENT SETINFO lib-ver 1.2.3", Value::ok()),
        ("CLIENT NO-EVICT ON", Value::ok()),
        ("AUTH default anything", Value::ok()),
        ("COMMAND COUNT", Value::Integer(20)),
        ("COMMAND INFO nothing", Value::Array(vec![Value::Null])),
        ("RESET", Value::Simple("RESET".to_owned())),
        ("CLIENT GETNAME", Value::Null),
    ] {
        assert_eq!(client.ask(text), answer, "{text}");
    }
    for (text, begin) in [
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("ECHO", "ERR wrong number of arguments for 'echo' command"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("AUTH secret", "ERR AUTH <password> called without any password configured"),
        ("AUTH someone secret", "WRONGPASS "),
        ("HELLO 4", "NOPROTO "),
        ("HELLO x", "ERR Protocol version is not an integer"),
        ("HELLO 3 AUTH someone secret", "WRONGPASS "),
        ("HELLO 3 SETNAME", "ERR Syntax error in HELLO option 'SETNAME'"),
        ("CLIENT KILL", "ERR unknown subcommand 'KILL'"),
        ("CLIENT SETINFO lib-ver", "ERR wrong number of arguments for 'client|setinfo' command"),
        ("COMMAND GETKEYS", "ERR unknown subcommand 'GETKEYS'"),
    ] {
        client.ask(text).expect_error(begin);
    }
    // Nothing of a refused HELLO holds.
    assert_eq!(client.ask("CLIENT GETNAME"), Value::Null);
    let hello = client.ask("HELLO 3 AUTH default x SETNAME me");
    assert_eq!(hello.field("proto"), &Value::Integer(3));
    for (field, value) in [("server", "guanxi"), ("mode", "standalone"), ("role", "master")] {
        assert_eq!(hello.field(field), &Value::text(value));
    }
    let Value::Map(_) = hello else { panic!("RESP3 has maps: {hello:?}") };
    assert_eq!(client.ask("CLIENT GETNAME"), Value::text("me"));
    assert!(client.ask("CLIENT INFO").as_text().contains(" name=me "));
    assert!(client.ask("INFO server").as_text().contains("\r\nredis_mode:standalone\r\n"));
    let commands = client.ask("COMMAND");
    assert_eq!(commands.items().len(), 20);
    let names = commands.items().iter().map(|command| command.items()[0].as_text().to_owned());
    let calls: Vec<String> = names.filter(|name| name.starts_with("gx.")).collect();
    assert_eq!(calls.len(), 10);
    for call in calls {
        // Each is read, and lacks what it is about.
        client.ask(&call).expect_error("ERR wrong number of arguments for ");
    }
    client.ask("COMMAND DOCS gx.put").field("gx.put").field("summary");
    let number = client.ask("CLIENT ID");
    assert_ne!(RespClient::open(server.resp_address()).ask("CLIENT ID"), number);
    assert_eq!(client.ask("QUIT"), Value::ok());
    assert_eq!(client.try_read(), None);
}
