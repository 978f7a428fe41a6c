//! What the power-loss test writes: several clients put and delete edges, one by one and in batches,
//! and mark in the trace what they send and what is acknowledged.
//!
//! An edge belongs to one client, so its changes have an order. Each put carries data of its own, so
//! that an edge that is read back says which put it comes from.

use std::sync::atomic::{AtomicBool, Ordering};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::recorder::Recording;
use super::server::{Client, Server};

pub const KIND: &str = "follow";
const BATCH_CHANGES_MAX: usize = 24;
/// Nearly as much as the kind allows, so that memtables fill.
const PUT_DATA_BYTES: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Edge {
    pub source: u64,
    pub target: u64,
}

/// `data` of a put; None deletes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub edge: Edge,
    pub data: Option<String>,
}

/// What the server answered to one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub state: String,
    /// None for a delete that found nothing.
    pub version: Option<u64>,
}

/// One mark in the trace. A change takes effect after its Sent, and is promised from its Acknowledged on.
#[derive(Debug, Serialize, Deserialize)]
pub enum Mark {
    Ready,
    Sent {
        operation: String,
        changes: Vec<Change>,
    },
    Acknowledged {
        operation: String,
        answers: Vec<Answer>,
    },
    /// What a reader was shown after a recovery.
    Shown,
}

pub fn mark(recording: &Recording, mark: &Mark) -> Result<(), String> {
    let text = serde_json::to_string(mark).map_err(|error| error.to_string())?;
    recording.mark(&text).map_err(|error| format!("the trace: {error}"))
}

/// The size of the workload.
#[derive(Clone, Copy)]
pub struct Workload {
    pub clients: u64,
    pub sources_per_client: u64,
    /// All clients share them.
    pub targets: u64,
    pub operations_per_client: u64,
    pub seed: u64,
}

impl Workload {
    pub fn sources(&self) -> impl Iterator<Item = u64> {
        (0..self.clients)
            .flat_map(|client| (0..self.sources_per_client).map(move |index| source(client, index)))
    }

    pub fn targets(&self) -> impl Iterator<Item = u64> {
        (0..self.targets).map(target)
    }

    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        self.sources().flat_map(|source| self.targets().map(move |target| Edge { source, target }))
    }

    /// Runs to the end; any error is one of the server's.
    pub fn run(&self, phase: u64, server: &Server, recording: &Recording) -> Result<(), String> {
        self.run_clients(phase, server, recording, &|_| {})
    }

    /// Runs until the server, told to kill itself when half of the operations are done, is gone.
    pub fn run_into_kill(
        &self,
        phase: u64,
        server: &mut Server,
        recording: &Recording,
    ) -> Result<(), String> {
        let killed = AtomicBool::new(false);
        let half = self.operations_per_client / 2;
        let kill = |operation: u64| {
            if operation >= half && !killed.swap(true, Ordering::SeqCst) {
                recording.kill_at_next_call().expect("the stop file can be made");
            }
        };
        let ended = self.run_clients(phase, server, recording, &kill);
        server.wait()?;
        recording.forget_kill().map_err(|error| error.to_string())?;
        match ended {
            Ok(()) => Err("the server outlived its kill".to_owned()),
            Err(_) if killed.load(Ordering::SeqCst) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn run_clients(
        &self,
        phase: u64,
        server: &Server,
        recording: &Recording,
        before_operation: &(dyn Fn(u64) + Sync),
    ) -> Result<(), String> {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|client| {
                    let http = server.client();
                    scope.spawn(move || {
                        let seed = self.seed ^ (phase << 32 | client);
                        let mut rng = Rng::with_seed(seed);
                        for operation in 0..self.operations_per_client {
                            before_operation(operation);
                            let name = format!("{phase}.{client}.{operation}");
                            self.operate(client, &name, &http, recording, &mut rng)?;
                        }
                        Ok(())
                    })
                })
                .collect();
            let ended: Vec<Result<(), String>> = clients
                .into_iter()
                .map(|client| client.join().expect("a client does not panic"))
                .collect();
            ended.into_iter().collect()
        })
    }

    /// Sends one put, delete or batch, with a mark before and after.
    fn operate(
        &self,
        client: u64,
        operation: &str,
        http: &Client,
        recording: &Recording,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let changes = self.draw_changes(client, operation, rng);
        mark(recording, &Mark::Sent { operation: operation.to_owned(), changes: changes.clone() })?;
        let answers = send(http, &changes)?;
        mark(recording, &Mark::Acknowledged { operation: operation.to_owned(), answers })
    }

    /// The edges of one operation differ, so that each has one outcome.
    fn draw_changes(&self, client: u64, operation: &str, rng: &mut Rng) -> Vec<Change> {
        let count = if rng.u8(..4) == 0 { rng.usize(2..=BATCH_CHANGES_MAX) } else { 1 };
        let edges_max = (self.sources_per_client * self.targets) as usize;
        let mut changes: Vec<Change> = Vec::new();
        while changes.len() < count.min(edges_max) {
            let edge = Edge {
                source: source(client, rng.u64(..self.sources_per_client)),
                target: target(rng.u64(..self.targets)),
            };
            if changes.iter().all(|change| change.edge != edge) {
                let put = rng.u8(..4) != 0;
                let data = put.then(|| {
                    format!("{:.<width$}", format!("{operation} "), width = PUT_DATA_BYTES)
                });
                changes.push(Change { edge, data });
            }
        }
        changes
    }
}

pub fn edge_path(edge: Edge) -> String {
    format!("/v1/edges/{KIND}/{}/{}", edge.source, edge.target)
}

/// The version in an answer: a number in a string, or null.
pub fn version_of(answer: &Value) -> Result<Option<u64>, String> {
    match &answer["version"] {
        Value::Null => Ok(None),
        Value::String(text) => {
            text.parse().map(Some).map_err(|error| format!("version {text}: {error}"))
        }
        other => Err(format!("version {other} is not a string")),
    }
}

fn source(client: u64, index: u64) -> u64 {
    1_000 * (client + 1) + index
}

fn target(index: u64) -> u64 {
    1_000_000 + index
}

fn send(http: &Client, changes: &[Change]) -> Result<Vec<Answer>, String> {
    match changes {
        [Change { edge, data: Some(data) }] => {
            Ok(vec![read_answer(&http.put(&edge_path(*edge), &json!({ "data": data }))?)?])
        }
        [Change { edge, data: None }] => Ok(vec![read_answer(&http.delete(&edge_path(*edge))?)?]),
        _ => {
            let changes: Vec<Value> = changes.iter().map(batch_change).collect();
            let answer = http.post("/v1/edges/batch", &json!({ "changes": changes }))?;
            let results =
                answer["results"].as_array().ok_or_else(|| format!("no results in {answer}"))?;
            if results.len() != changes.len() {
                return Err(format!("{} results for {} changes", results.len(), changes.len()));
            }
            results.iter().map(read_answer).collect()
        }
    }
}

fn batch_change(change: &Change) -> Value {
    let (source, target) = (change.edge.source.to_string(), change.edge.target.to_string());
    match &change.data {
        Some(data) => {
            json!({ "op": "put", "kind": KIND, "source": source, "target": target, "data": data })
        }
        None => json!({ "op": "delete", "kind": KIND, "source": source, "target": target }),
    }
}

fn read_answer(answer: &Value) -> Result<Answer, String> {
    let state = answer["state"].as_str().ok_or_else(|| format!("no state in {answer}"))?;
    Ok(Answer { state: state.to_owned(), version: version_of(answer)? })
}
