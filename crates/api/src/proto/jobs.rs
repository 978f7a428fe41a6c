//! Jobs as messages.

use guanxi_model::{Catalog, TenantId, job};

use super::{Job, NodeName, Receipt, job as work, timestamp};
use crate::jobs::{self, JobState, JobView, Remains, WorkName};

impl Job {
    pub fn new(job: &job::Job, tenant: TenantId, catalog: &Catalog, remains: Remains) -> Job {
        let view = JobView::new(job, tenant, catalog, remains);
        let work = match view.work {
            WorkName::Erase => work::Work::Erase,
            WorkName::BuildIndex => work::Work::BuildIndex,
        };
        Job {
            job: job.id.0,
            work: work.into(),
            done: matches!(view.state, JobState::Done),
            node: view.node.map(NodeName::from),
            kind: view.kind.map(str::to_owned),
            edges_done: view.edges_done,
            started_at: Some(timestamp(view.started_at.0)),
            finished_at: view.finished_at.map(|at| timestamp(at.0)),
            receipt: view.receipt.map(|receipt| Receipt {
                node: Some(NodeName::from(receipt.node)),
                edges_removed: receipt.edges_removed,
                groups_removed: receipt.groups_removed,
                counters_removed: receipt.counters_removed,
                erased_at: Some(timestamp(receipt.erased_at.0)),
                log_forgets_at: Some(timestamp(receipt.log_forgets_at.0)),
                backups: receipt.backups.to_owned(),
            }),
        }
    }
}

impl From<jobs::NodeName<'_>> for NodeName {
    fn from(node: jobs::NodeName<'_>) -> NodeName {
        NodeName { r#type: node.node_type.to_owned(), id: node.id.0 }
    }
}
