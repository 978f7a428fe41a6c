//! Jobs: work that takes a while, its progress and its receipt.

use std::borrow::Cow;
use std::sync::Arc;

use guanxi_model::job::{Job, JobWork, Remains};
use guanxi_model::{Catalog, KindName, Millis, NodeKey, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::{Id, IdText};
use crate::time::Time;

/// Which page of the jobs.
#[derive(Debug, Default)]
pub struct ListJobs {
    pub limit: Option<usize>,
    pub cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Job)]
pub struct JobView {
    #[schema(value_type = String, pattern = "^[0-9]{1,20}$")]
    pub job: Id,
    #[serde(rename = "type")]
    #[schema(inline)]
    pub work: WorkName,
    #[schema(inline)]
    pub state: JobState,
    /// The node of an erasure.
    #[schema(required)]
    pub node: Option<NodeName>,
    /// The kind of an index that is built.
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    /// Edges removed, or entered into the index, so far.
    pub edges_done: u64,
    pub started_at: Time,
    #[schema(required)]
    pub finished_at: Option<Time>,
    /// What an erasure did, once it is done.
    #[schema(required)]
    pub receipt: Option<ReceiptView>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkName {
    Erase,
    BuildIndex,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
}

#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Node)]
pub struct NodeName {
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub node_type: Arc<str>,
    #[schema(value_type = IdText, inline)]
    pub id: Id,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Receipt)]
pub struct ReceiptView {
    pub node: NodeName,
    pub edges_removed: u64,
    pub groups_removed: u64,
    pub counters_removed: u64,
    pub erased_at: Time,
    /// When the log no longer holds records of the node: after its retention and the time for
    /// which a part of it stays open, as it is dropped in parts.
    pub log_forgets_at: Time,
    /// What is left to do about backups.
    #[schema(value_type = String)]
    pub backups: Cow<'static, str>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Jobs {
    pub jobs: Vec<JobView>,
    /// The cursor of the next page; null at the end.
    #[schema(required)]
    pub next: Option<String>,
}

impl JobView {
    pub fn new(job: &Job, tenant: TenantId, catalog: &Catalog, remains: Remains) -> JobView {
        let (work, node, kind) = match job.work {
            JobWork::Erase { node } => (WorkName::Erase, Some(node_name(&node, catalog)), None),
            JobWork::BuildIndex { kind, .. } => {
                let kind = catalog.kind(tenant, kind);
                let name = kind.map(|kind| kind.name.shared());
                (WorkName::BuildIndex, None, name)
            }
        };
        let receipt = match (job.receipt, job.finished, &node) {
            (Some(receipt), Some(erased_at), Some(node)) => Some(ReceiptView {
                node: node.clone(),
                edges_removed: job.edges_done,
                groups_removed: receipt.groups_removed,
                counters_removed: receipt.counters_removed,
                erased_at: Time(erased_at),
                log_forgets_at: Time(Millis::saturating_add(erased_at, remains.log_keeps_ms)),
                backups: remains.backups.into(),
            }),
            _ => None,
        };
        JobView {
            job: Id(job.id.0),
            work,
            state: match job.finished {
                Some(_) => JobState::Done,
                None => JobState::Running,
            },
            node,
            kind,
            edges_done: job.edges_done,
            started_at: Time(job.started),
            finished_at: job.finished.map(Time),
            receipt,
        }
    }
}

fn node_name(node: &NodeKey, catalog: &Catalog) -> NodeName {
    let name = catalog.type_name(node.tenant, node.node_type);
    NodeName { node_type: name.map_or_else(|| "".into(), KindName::shared), id: Id(node.id) }
}
