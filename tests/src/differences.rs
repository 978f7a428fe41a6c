//! One suite for both deployments: which of them this run is about, and, by name, every answer
//! that may differ between them. `GUANXI_TEST_DEPLOYMENT=cluster` runs a suite against a cluster of
//! one instance; the harness then presents the token of its last write with every call, which is
//! how a caller of a cluster reads its own writes.

use serde_json::{Value, json};

use crate::answer::version_of;
use crate::client::Client;
use crate::load::put_all;
use crate::paths::node_run;

const VARIABLE: &str = "GUANXI_TEST_DEPLOYMENT";
/// A token names fewer.
const UNNAMED_EDGES: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    Embedded,
    Cluster,
}

/// Which deployment the suites are about.
pub fn deployment() -> Deployment {
    match std::env::var(VARIABLE).as_deref() {
        Ok("cluster") => Deployment::Cluster,
        Ok("embedded") | Err(_) => Deployment::Embedded,
        Ok(other) => panic!("{VARIABLE} is embedded or cluster, not {other}"),
    }
}

/// Records of which none is missing, as their edges had them. The embedded log tells each once and
/// all in one order. A cluster tells each at least once, in no order across targets: what came
/// twice is dropped, and each source's records stand by their versions.
pub fn as_decided(records: Vec<Value>) -> Vec<Value> {
    if deployment() == Deployment::Embedded {
        return records;
    }
    let mut records: Vec<Value> = records.into_iter().map(without_place).collect();
    records.sort_by_cached_key(|record| (version_scope(record), version_of(record)));
    records.dedup();
    records
}

/// Within what versions grow strictly: the whole log, or in a cluster each source's edges of one
/// kind.
pub fn version_scope(record: &Value) -> String {
    match deployment() {
        Deployment::Embedded => String::new(),
        Deployment::Cluster => format!("{} {}", record["kind"], record["source"]),
    }
}

/// A record without its id, where that also says how far its reader was in other partitions.
pub fn without_place(mut record: Value) -> Value {
    if deployment() == Deployment::Cluster
        && let Some(fields) = record.as_object_mut()
    {
        fields.remove("id");
    }
    record
}

/// What was read of several targets: in the order in which it was decided, which a cluster does
/// not promise.
pub fn across_targets<T, Place: Ord>(mut read: Vec<T>, place: impl Fn(&T) -> Place) -> Vec<T> {
    if deployment() == Deployment::Cluster {
        read.sort_by_key(place);
    }
    read
}

/// Whether a service that sent this many records sent what its readers saw: each once, or in a
/// cluster at least once.
pub fn are_deliveries(sent: u64, seen: u64) -> bool {
    match deployment() {
        Deployment::Embedded => sent == seen,
        Deployment::Cluster => sent >= seen,
    }
}

/// Lets this thread's reads show all that was written before, by whomever. In a cluster that takes
/// a token of one's own: it stands for more edges than a token names, and so for all before them.
#[track_caller]
pub fn settle(client: &Client) {
    if deployment() == Deployment::Cluster {
        let posts = node_run(UNNAMED_EDGES);
        put_all(client, "like", &posts.iter().map(|post| (posts[0], *post)).collect::<Vec<_>>());
    }
}

/// Records behind a place that a reader of whole edges was given, who holds an edge in a version:
/// in a cluster what he holds may be told once more.
pub fn news(records: Vec<Value>, held: u64) -> Vec<Value> {
    match deployment() {
        Deployment::Embedded => records,
        Deployment::Cluster => {
            records.into_iter().filter(|record| version_of(record) > held).collect()
        }
    }
}

/// A counter's answer: in a cluster its value is a sum over instances, which a write does not read.
pub fn counted(value: i64) -> Value {
    json!(counted_value(value))
}

/// The same as gRPC says it.
pub fn counted_value(value: i64) -> Option<i64> {
    match deployment() {
        Deployment::Embedded => Some(value),
        Deployment::Cluster => None,
    }
}
