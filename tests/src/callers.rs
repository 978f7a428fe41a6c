//! Callers under load: writers that keep a ledger of what was acknowledged to them, and a reader
//! beside them, while the test lets things go wrong. Afterwards the ledger is held against both
//! sides of every edge, against the tallies and against an audit.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};

use crate::agreement::assert_lists_and_tallies_agree;
use crate::answer::{Answer, assert_change};
use crate::client::Client;
use crate::paths::{edge, edge_call, node_run};
use crate::server::Server;
use crate::waiting::poll_until;
use crate::walk::walk_ids;

const KIND: &str = "follow";
const WRITERS: usize = 8;
/// Each writer has edges of its own, all have the targets in common.
const SOURCES_EACH: usize = 2;
const TARGETS: usize = 40;
/// A load that leaves the servers some time, and the lists short enough to be compared.
const PACE: Duration = Duration::from_millis(5);
/// After a failure, as a polite caller.
const PAUSE: Duration = Duration::from_millis(50);
/// Each so many writes one is read again with its token.
const READ_AGAIN_EVERY: u64 = 8;
/// What counts as going on: more than was under way in all writers.
const PROGRESS_WRITES: u64 = 40;
const PROGRESS_READS: u64 = 10;
const PATIENCE: Duration = Duration::from_secs(60);
const PAGE_ITEMS: usize = 1000;

/// Writers and a reader in the background.
pub struct Callers {
    shared: Arc<Shared>,
    writers: Vec<JoinHandle<BTreeMap<Edge, Fate>>>,
    reader: JoinHandle<()>,
    sources: Vec<u64>,
    targets: Vec<u64>,
}

type Edge = (u64, u64);

/// What must be found of an edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Live,
    Gone,
    /// The outcome of its last write is unknown: it may be either.
    Open,
}

/// A call that was not answered with 200.
#[derive(Debug, Clone)]
pub struct Trouble {
    pub call: String,
    /// `None`: the connection broke, or there was none.
    pub status: Option<u16>,
    pub text: String,
    pub retryable: bool,
    /// Nothing was written, says the answer.
    pub wrote_nothing: bool,
    pub took: Duration,
}

struct Shared {
    instances: RwLock<Vec<Client>>,
    acknowledged: AtomicU64,
    reads: AtomicU64,
    ending: AtomicBool,
    troubles: Mutex<Vec<Trouble>>,
}

impl Callers {
    pub fn start(instances: &[&Server]) -> Self {
        let shared = Arc::new(Shared {
            instances: RwLock::default(),
            acknowledged: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            ending: AtomicBool::new(false),
            troubles: Mutex::default(),
        });
        shared.call(instances);
        let (sources, targets) = (node_run(WRITERS * SOURCES_EACH), node_run(TARGETS));
        let writers = sources.chunks(SOURCES_EACH).enumerate().map(|(number, sources)| {
            let writer = Writer {
                shared: shared.clone(),
                edges: sources
                    .iter()
                    .flat_map(|source| targets.iter().map(|target| (*source, *target)))
                    .collect(),
                // One half repeats a write under its key until it is acknowledged, the other
                // leaves an edge alone of which it does not know the state.
                with_keys: number % 2 == 0,
                turn: number,
            };
            thread::spawn(move || writer.run())
        });
        let writers = writers.collect();
        let (own, ids) = (shared.clone(), (sources.clone(), targets.clone()));
        let reader = thread::spawn(move || own.read(&ids.0, &ids.1));
        Self { shared, writers, reader, sources, targets }
    }

    /// From now on these instances are called.
    pub fn call(&self, instances: &[&Server]) {
        self.shared.call(instances);
    }

    /// Waits until more writes are acknowledged and more reads answered.
    #[track_caller]
    pub fn await_progress(&self, when: &str) {
        let count = || {
            let acknowledged = self.shared.acknowledged.load(Ordering::Acquire);
            (acknowledged, self.shared.reads.load(Ordering::Acquire))
        };
        let (writes, reads) = count();
        poll_until(&format!("writes and reads {when}"), PATIENCE, || {
            let now = count();
            (now.0 >= writes + PROGRESS_WRITES && now.1 >= reads + PROGRESS_READS).then_some(())
        });
    }

    /// Waits until one more write fails.
    #[track_caller]
    pub fn await_failed_write(&self, what: &str) {
        let failed = || {
            let troubles = self.troubles();
            troubles.iter().filter(|trouble| !trouble.call.starts_with("GET")).count()
        };
        let known = failed();
        poll_until(what, PATIENCE, || (failed() > known).then_some(()));
    }

    /// All since they were taken last.
    pub fn troubles(&self) -> Vec<Trouble> {
        self.shared.troubles.lock().clone()
    }

    pub fn take_troubles(&self) -> Vec<Trouble> {
        std::mem::take(&mut self.shared.troubles.lock())
    }

    #[track_caller]
    pub fn assert_untroubled(&self, when: &str) {
        let troubles = self.troubles();
        assert!(troubles.is_empty(), "{when}: {troubles:#?}");
    }

    /// Ends the load, and holds what was acknowledged against what this instance shows as soon as
    /// the targets' side has come up. Leaves no lag, and no drift.
    #[track_caller]
    pub fn end_and_check(self, instance: &Server) {
        self.shared.ending.store(true, Ordering::Release);
        let mut fates = BTreeMap::new();
        for writer in self.writers {
            fates.extend(writer.join().expect("a writer found something wrong"));
        }
        self.reader.join().expect("the reader found something wrong");
        let outgoing = edges_of(instance, "outgoing", &self.sources);
        assert_fates(&fates, &outgoing);
        poll_until("the targets' side", PATIENCE, || {
            (edges_of(instance, "incoming", &self.targets) == outgoing).then_some(())
        });
        let agreed = assert_lists_and_tallies_agree(instance, KIND, &self.sources, &self.targets);
        assert_eq!(agreed, outgoing, "nobody writes any more");
        assert_no_lag(instance);
        assert_no_drift(instance);
        let live = outgoing.len();
        let open = fates.values().filter(|fate| **fate == Fate::Open).count();
        let acknowledged = self.shared.acknowledged.load(Ordering::Acquire);
        let reads = self.shared.reads.load(Ordering::Acquire);
        eprintln!(
            "{acknowledged} acknowledged writes, {live} live edges, {open} open, {reads} reads"
        );
    }
}

/// Holds what the writers know against what is there.
#[track_caller]
fn assert_fates(fates: &BTreeMap<Edge, Fate>, found: &BTreeSet<Edge>) {
    let of = |wanted: Fate| {
        let those = fates.iter().filter(move |(_, fate)| **fate == wanted);
        those.map(|(edge, _)| *edge)
    };
    let lost: Vec<Edge> = of(Fate::Live).filter(|edge| !found.contains(edge)).collect();
    assert!(lost.is_empty(), "acknowledged, and not there: {lost:?}");
    let back: Vec<Edge> = of(Fate::Gone).filter(|edge| found.contains(edge)).collect();
    assert!(back.is_empty(), "removed, and there: {back:?}");
    let strangers: Vec<&Edge> = found.iter().filter(|edge| !fates.contains_key(edge)).collect();
    assert!(strangers.is_empty(), "written by nobody: {strangers:?}");
}

/// The live edges as these nodes' lists of one direction have them.
#[track_caller]
fn edges_of(client: &Client, direction: &str, ids: &[u64]) -> BTreeSet<Edge> {
    let mut edges = BTreeSet::new();
    for &id in ids {
        let others = walk_ids(client, &edge_call(KIND, id, direction), PAGE_ITEMS);
        edges.extend(others.into_iter().map(|other| match direction {
            "outgoing" => (id, other),
            _ => (other, id),
        }));
    }
    edges
}

#[track_caller]
fn assert_no_lag(instance: &Server) {
    poll_until("the end of the lag", PATIENCE, || {
        let ready = instance.get("/readyz").ok()["cluster"].clone();
        let lag = (&ready["relay_lag_ms"], &ready["applier_lag_records"]);
        (lag == (&json!(0), &json!(0))).then_some(())
    });
}

#[track_caller]
fn assert_no_drift(instance: &Server) {
    const AUDIT: &str = "/v1/admin/audit";
    let answer = instance.post_json(AUDIT, json!({}));
    let report = match answer.status {
        200 => answer.body,
        _ => {
            answer.expect_status(202);
            poll_until("the audit's end", PATIENCE, || {
                let state = instance.get(AUDIT).ok().clone();
                state["running"].is_null().then(|| state["last"].clone())
            })
        }
    };
    assert_eq!(report["drift"], 0, "{report:#}");
}

impl Shared {
    fn call(&self, instances: &[&Server]) {
        let clients = instances.iter().map(|server| server.client()).collect();
        *self.instances.write() = clients;
    }

    /// One instance after the other.
    fn instance(&self, turn: usize) -> Client {
        let instances = self.instances.read();
        instances[turn % instances.len()].clone()
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::Acquire)
    }

    /// The answer of a call; one that is no 200 is noted.
    fn send(
        &self,
        turn: usize,
        method: &str,
        path: &str,
        header: Option<(&str, &str)>,
    ) -> Result<Answer, Trouble> {
        let begun = Instant::now();
        let client = self.instance(turn);
        let mut request = client.request(method, path);
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        let call = format!("{method} {path}");
        let trouble = match request.try_send() {
            Ok(answer) if answer.status == 200 => return Ok(answer),
            Ok(answer) => Trouble {
                call,
                status: Some(answer.status),
                retryable: answer.body["retryable"] == true,
                wrote_nothing: answer.body["outcome"] == "none",
                text: answer.text,
                took: begun.elapsed(),
            },
            Err(error) => Trouble {
                call,
                status: None,
                text: error.to_string(),
                retryable: true,
                wrote_nothing: is_refused(&error),
                took: begun.elapsed(),
            },
        };
        let mut troubles = self.troubles.lock();
        troubles.push(trouble.clone());
        Err(trouble)
    }

    fn read(&self, sources: &[u64], targets: &[u64]) {
        for turn in 0.. {
            if self.is_ending() {
                return;
            }
            let path = match turn % 2 {
                0 => edge_call(KIND, sources[turn % sources.len()], "outgoing?limit=50"),
                _ => edge_call(KIND, targets[turn % targets.len()], "incoming?limit=50"),
            };
            match self.send(turn / 2, "GET", &path, None) {
                Ok(_) => {
                    self.reads.fetch_add(1, Ordering::AcqRel);
                    thread::sleep(PACE);
                }
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

/// Nobody listened, so nobody took the call.
fn is_refused(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused)
}

struct Writer {
    shared: Arc<Shared>,
    edges: Vec<Edge>,
    with_keys: bool,
    turn: usize,
}

impl Writer {
    /// Makes each edge in turn and removes it the next time, until the load ends.
    fn run(mut self) -> BTreeMap<Edge, Fate> {
        let mut fates = BTreeMap::new();
        let mut written = 0;
        for at in (0..self.edges.len()).cycle() {
            if self.shared.is_ending() {
                break;
            }
            let one = self.edges[at];
            let wanted = match fates.get(&one) {
                None | Some(Fate::Gone) => Fate::Live,
                Some(Fate::Live) => Fate::Gone,
                // All edges may be like this; the load goes on with the pace of the others.
                Some(Fate::Open) => {
                    thread::sleep(PACE);
                    continue;
                }
            };
            written += 1;
            let Some(answer) = self.write(one, wanted, written) else {
                fates.insert(one, Fate::Open);
                continue;
            };
            fates.insert(one, wanted);
            self.shared.acknowledged.fetch_add(1, Ordering::AcqRel);
            if written % READ_AGAIN_EVERY == 0 {
                self.read_again(one, wanted, &answer.token());
            }
            thread::sleep(PACE);
        }
        fates
    }

    /// The answer, or `None` if the outcome is unknown.
    fn write(&mut self, one: Edge, wanted: Fate, number: u64) -> Option<Answer> {
        let (method, state) = match wanted {
            Fate::Live => ("PUT", "live"),
            _ => ("DELETE", "removed"),
        };
        let key = format!("{}-{}-{number}", one.0, one.1);
        let header = self.with_keys.then_some(("idempotency-key", key.as_str()));
        let until = Instant::now() + PATIENCE;
        loop {
            self.turn += 1;
            match self.shared.send(self.turn, method, &edge(KIND, one.0, one.1), header) {
                Ok(answer) => {
                    // Whatever failed before it wrote nothing, or is repeated by its key.
                    assert_change(&answer.body, true, state);
                    return Some(answer);
                }
                Err(trouble) => {
                    assert!(trouble.retryable, "a refusal for good: {trouble:?}");
                    if !self.with_keys && !trouble.wrote_nothing {
                        return None;
                    }
                    assert!(Instant::now() < until, "not for {PATIENCE:?}: {trouble:?}");
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Another instance shows the write from both sides to who has its token.
    fn read_again(&self, one: Edge, wanted: Fate, token: &str) {
        let header = Some(("guanxi-at-least", token));
        let (turn, live) = (self.turn + 1, wanted == Fate::Live);
        if let Ok(answer) = self.shared.send(turn, "GET", &edge(KIND, one.0, one.1), header) {
            assert_eq!(answer.body["related"], live, "{one:?} with its token: {}", answer.text);
        }
        let list = edge_call(KIND, one.1, "incoming?limit=1000");
        if let Ok(answer) = self.shared.send(turn, "GET", &list, header) {
            let source = Value::String(one.0.to_string());
            let items = answer.body["items"].as_array().expect("items");
            let listed = items.iter().any(|item| item["id"] == source);
            assert_eq!(listed, live, "{one:?} from its target with its token: {}", answer.text);
        }
    }
}
