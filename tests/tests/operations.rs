//! What an operator sees: health, readiness, metrics, the API's own description, request ids,
//! and the ways in which the process refuses to start.

use std::collections::{BTreeMap, BTreeSet};

use guanxi_tests::{
    Options, RawConnection, Server, edge, edge_call, nodes, poll_until, run_to_exit, shared,
};
use serde_json::{Value, json};

#[test]
fn health_and_readiness_answer() {
    let server = shared();
    server.get("/healthz").expect_status(200);
    server.get("/readyz").expect_status(200);
}

/// Labels and value of each sample, by family.
type Samples = BTreeMap<String, Vec<(String, f64)>>;

/// The samples of a Prometheus text, and the type of each family.
fn parse_metrics(text: &str) -> (Samples, BTreeMap<String, String>) {
    let mut samples = Samples::new();
    let mut types = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').expect("a name and a type");
            assert!(
                types.insert(name.to_owned(), kind.to_owned()).is_none(),
                "{name} is declared twice"
            );
            continue;
        }
        if line.starts_with('#') {
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
        let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => {
                (name, labels.strip_suffix('}').unwrap_or_else(|| panic!("labels end: {line}")))
            }
            None => (series, ""),
        };
        assert!(name.starts_with("guanxi_"), "every name begins with guanxi_: {line}");
        samples.entry(name.to_owned()).or_default().push((labels.to_owned(), value));
    }
    (samples, types)
}

#[test]
fn metrics_say_what_the_service_does() {
    let server = shared();
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).ok();
    server.get(edge("follow", source, target)).ok();
    server.get(edge_call("follow", source, "outgoing")).ok();
    server.put(edge("follow", source, source)).expect_error(422, "self_relation");
    let answer = server.get("/metrics");
    answer.expect_status(200);
    let content_type = answer.header("content-type").unwrap_or_default();
    let known = ["text/plain", "application/openmetrics-text"];
    assert!(known.iter().any(|known| content_type.starts_with(known)), "{content_type}");
    let (samples, types) = parse_metrics(&answer.text);

    // What must be told, by parts of its name, with its type.
    let told = [
        (&["request"][..], "counter"),
        (&["request", "seconds"], "histogram"),
        (&["batch"], "histogram"),
        (&["fsync", "seconds"], "histogram"),
        (&["queue"], "gauge"),
        (&["position"], "gauge"),
        (&["store", "bytes"], "gauge"),
    ];
    for (parts, kind) in told {
        let family = types.iter().find(|(name, declared)| {
            *declared == kind && parts.iter().all(|part| name.contains(part))
        });
        let (name, _) = family.unwrap_or_else(|| panic!("no {kind} about {parts:?} in {types:?}"));
        // A histogram is sampled by its count; a counter's samples end in _total.
        let sampled = match kind {
            "histogram" => format!("{name}_count"),
            "counter" if !name.ends_with("_total") => format!("{name}_total"),
            _ => name.clone(),
        };
        let series = samples.get(&sampled).unwrap_or_else(|| panic!("{sampled} has no sample"));
        if kind != "gauge" {
            let sum: f64 = series.iter().map(|(_, value)| value).sum();
            assert!(sum > 0.0, "{sampled} has seen nothing");
        }
    }
    // Latencies are told per call and kind, and buckets grow.
    let buckets: Vec<_> = samples
        .iter()
        .filter(|(name, _)| name.contains("request") && name.ends_with("_bucket"))
        .flat_map(|(_, series)| series)
        .filter(|(labels, _)| labels.contains("kind=\"follow\""))
        .collect();
    assert!(!buckets.is_empty(), "no latency of kind follow");
    assert!(buckets.iter().any(|(labels, _)| labels.contains("le=\"+Inf\"")));
}

#[test]
fn labels_cannot_be_made_up_by_callers() {
    // Its own server: the calls of other tests make series too.
    let server = Server::start();
    let series = || {
        let (samples, _) = parse_metrics(&server.get("/metrics").text);
        samples.values().map(Vec::len).sum::<usize>()
    };
    let call = |number: usize| {
        server.get(format!("/v1/edges/made_up_{number}/1/2"));
        server.get(format!("/made/up/{number}"));
        server.request(&format!("MADEUP{number}"), "/healthz").send();
    };
    for number in 0..10 {
        call(number);
    }
    let before = series();
    for number in 10..200 {
        call(number);
    }
    let after = series();
    assert!(after < before + 40, "190 made-up calls made {} series", after - before);
}

#[test]
fn the_description_is_openapi_and_complete() {
    let server = shared();
    let answer = server.get("/openapi.json");
    let description = answer.ok();
    assert!(answer.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    assert!(description["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));
    let contract: [(&str, &[&str]); 27] = [
        ("/v1/edges/{kind}/{source}/{target}", &["get", "put", "delete"]),
        ("/v1/edges/{kind}/{source}/{target}/approve", &["post"]),
        ("/v1/edges/{kind}/{source}/{target}/decline", &["post"]),
        ("/v1/edges/batch", &["post"]),
        ("/v1/edges/{kind}/{id}/outgoing", &["get"]),
        ("/v1/edges/{kind}/{id}/incoming", &["get"]),
        ("/v1/edges/{kind}/{id}/mutual", &["get"]),
        ("/v1/edges/{kind}/{id}/common/{other}", &["get"]),
        ("/v1/edges/{kind}/{id}/known/{other}", &["get"]),
        ("/v1/edges/{kind}/{id}/incoming/scan", &["get"]),
        ("/v1/edges/{kind}/{id}/outgoing/scan", &["get"]),
        ("/v1/check", &["post"]),
        ("/v1/tallies", &["post"]),
        ("/v1/hydrate", &["post"]),
        ("/v1/counters/{kind}/{id}", &["post"]),
        ("/v1/counters/batch", &["post"]),
        ("/v1/groups/{kind}/{source}", &["get", "post"]),
        ("/v1/groups/{kind}/{source}/{group}", &["patch", "delete"]),
        ("/v1/groups/{kind}/{source}/{group}/members/{target}", &["put", "delete"]),
        ("/v1/nodes/{type}/{id}", &["get", "put", "delete"]),
        ("/v1/jobs/{id}", &["get"]),
        ("/v1/admin/kinds", &["get", "post"]),
        ("/v1/admin/kinds/{name}", &["get", "patch"]),
        ("/v1/admin/jobs", &["get"]),
        ("/healthz", &["get"]),
        ("/readyz", &["get"]),
        ("/metrics", &["get"]),
    ];
    // Names of parameters are the description's own affair.
    let anonymous = |path: &str| {
        path.split('/')
            .map(|part| if part.starts_with('{') { "{}" } else { part })
            .collect::<Vec<_>>()
            .join("/")
    };
    let described: BTreeMap<String, &Value> = description["paths"]
        .as_object()
        .expect("paths")
        .iter()
        .map(|(path, item)| (anonymous(path), item))
        .collect();
    for (path, methods) in contract {
        let item =
            described.get(&anonymous(path)).unwrap_or_else(|| panic!("{path} is not described"));
        for method in methods {
            let operation = &item[method];
            assert!(operation["responses"].is_object(), "{method} {path}");
            assert!(operation["operationId"].is_string(), "{method} {path}");
        }
    }
    let mut references = BTreeSet::new();
    gather_references(description, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("references stay inside");
        assert!(description.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

fn gather_references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_str() {
                    Some(reference) if name == "$ref" => {
                        found.insert(reference.to_owned());
                    }
                    _ => gather_references(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| gather_references(item, found)),
        _ => {}
    }
}

#[test]
fn the_docs_page_is_html_over_the_description() {
    let server = shared();
    let page = server.get("/docs");
    page.expect_status(200);
    assert!(page.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
    assert!(page.text.contains("/openapi.json"));
    assert!(!page.text.contains("https://"), "the page needs no other server");
}

#[test]
fn every_answer_has_a_request_id() {
    let server = shared();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let own = server.get(&path).header("x-request-id").expect("an id").to_owned();
    let other = server.get(&path).header("x-request-id").expect("an id").to_owned();
    assert_ne!(own, other);
    let long = "x".repeat(64);
    for sane in ["abc-123", long.as_str()] {
        let answer = server.request("GET", &path).header("x-request-id", sane).send();
        assert_eq!(answer.header("x-request-id"), Some(sane));
        let refused =
            server.request("PUT", "/v1/edges/follow/0/1").header("x-request-id", sane).send();
        refused.expect_error(400, "invalid_argument");
        assert_eq!(refused.body["request_id"], json!(sane));
    }
    let longer = "x".repeat(65);
    for insane in ["", "a b", longer.as_str()] {
        let answer = server.request("GET", &path).header("x-request-id", insane).send();
        let given = answer.header("x-request-id").expect("an id");
        assert!(!given.is_empty() && given != insane);
    }
}

/// Writes an HTTP/2 frame: length, type, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("a short frame");
    let mut bytes = vec![0, 0, length, kind, flags, 0, 0, 0, stream];
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn http2_is_spoken_on_the_same_port() {
    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const END_STREAM_AND_HEADERS: u8 = 0x5;
    let server = shared();
    let mut connection = RawConnection::open(server.address());
    connection.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    connection.send(frame(SETTINGS, 0, 0, &[]));
    // :method GET and :scheme http by index, :path and :authority as literals.
    let mut head = vec![0x82, 0x86];
    head.extend([0x04, 8]);
    head.extend(b"/healthz");
    head.extend([0x01, 9]);
    head.extend(b"localhost");
    connection.send(frame(HEADERS, END_STREAM_AND_HEADERS, 1, &head));
    for _ in 0..20 {
        let begin = connection.read_exactly(9);
        let length = usize::from(begin[1]) << 8 | usize::from(begin[2]);
        let payload = connection.read_exactly(length);
        if begin[3] == HEADERS {
            assert_eq!(begin[8], 1, "the answer's stream");
            // A dynamic table size update may stand first; 0x88 is :status 200.
            assert!(payload.iter().take(4).any(|byte| *byte == 0x88), "{payload:?}");
            return;
        }
    }
    panic!("twenty frames and no answer");
}

#[test]
fn it_refuses_to_start_wrongly() {
    let cases: [(&str, &[&str]); 6] = [
        ("an open door without being told", &["serve", "--listen", "0.0.0.0:0"]),
        ("no address", &["serve", "--listen", "nowhere"]),
        ("an unknown flag", &["serve", "--no-such-flag"]),
        ("an unknown command", &["fly"]),
        ("no config file", &["serve", "--config", "/nonexistent/guanxi.toml"]),
        ("a data directory that cannot be", &["serve", "--data-dir", "/proc/guanxi"]),
    ];
    for (what, arguments) in cases {
        let directory = tempfile::tempdir().expect("a directory");
        let output = run_to_exit(arguments, directory.path());
        assert!(!output.status.success(), "{what}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.trim().is_empty(), "{what}: it says why");
        assert!(!said.contains("panicked"), "{what}: {said}");
    }
    let directory = tempfile::tempdir().expect("a directory");
    assert_eq!(run_to_exit(&["fly"], directory.path()).status.code(), Some(2), "wrong usage");
}

#[test]
fn an_unknown_setting_is_refused_and_a_known_one_obeyed() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("guanxi.toml");
    std::fs::write(&config, "[http]\nlisten = \"127.0.0.1:0\"\nno_such_setting = 1\n")
        .expect("written");
    let path = config.to_str().expect("a printable path");
    let output = run_to_exit(&["serve", "--config", path], directory.path());
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no_such_setting"));
}

#[test]
fn a_password_that_breaks_the_file_is_not_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("cluster.toml");
    let path = config.to_str().expect("a printable path");
    for (setting, url) in [
        ("store", "url = \"mysql://u:aloha\"mahalo@h:1/d\""),
        ("store", "url = \"mysql://u:aloha\nmahalo@h:1/d\""),
        ("cache", "redis = \"redis://u:aloha\"mahalo@h:1\""),
    ] {
        std::fs::write(&config, format!("mode = \"cluster\"\n[{setting}]\n{url}\n"))
            .expect("written");
        let output = run_to_exit(&["serve", "--config", path], directory.path());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("line "), "{said}");
        assert!(!said.contains("aloha") && !said.contains("mahalo"), "{said}");
    }
}

#[test]
fn an_open_door_is_possible_when_told() {
    let server = Server::start_with(Options {
        listen: Some("0.0.0.0:0".to_owned()),
        arguments: vec!["--allow-unauthenticated".to_owned()],
        ..Options::default()
    });
    server.assert_healthy();
}

#[test]
fn logs_are_structured_and_hold_no_panics() {
    let server = Server::start();
    let [source, target] = nodes();
    server.put(edge("follow", source, target)).ok();
    let address = server.address().to_string();
    let log = poll_until("a log line", std::time::Duration::from_secs(5), || {
        Some(server.log()).filter(|log| !log.is_empty())
    });
    assert!(log.contains(&address) || log.contains("ready"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}
