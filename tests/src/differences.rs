//! One suite for both deployments: which of them this run is about, and, by name, every answer
//! that may differ between them. `GUANXI_TEST_DEPLOYMENT=cluster` runs a suite against a cluster of
//! one instance; the harness then presents the token of its last write with every call, which is
//! how a caller of a cluster reads its own writes.

use serde_json::{Value, json};

const VARIABLE: &str = "GUANXI_TEST_DEPLOYMENT";

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

/// A counter's answer: in a cluster its value is a sum over instances, which a write does not read.
pub fn counted(value: i64) -> Value {
    match deployment() {
        Deployment::Embedded => json!(value),
        Deployment::Cluster => Value::Null,
    }
}
