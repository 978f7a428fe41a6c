//! Jobs, between messages and what JSON has for them.

use guanxi_model::Error;

use super::lists::limit;
use super::{
    Job, ListJobsAnswer, ListJobsRequest, NodeName, Receipt, job as work, owned, timestamp,
};
use crate::jobs::{self, JobState, JobView, Jobs, ListJobs, WorkName};

impl TryFrom<ListJobsRequest> for ListJobs {
    type Error = Error;

    fn try_from(request: ListJobsRequest) -> Result<ListJobs, Error> {
        Ok(ListJobs { limit: limit(request.limit)?, cursor: request.cursor })
    }
}

impl From<Jobs> for ListJobsAnswer {
    fn from(jobs: Jobs) -> ListJobsAnswer {
        ListJobsAnswer { jobs: jobs.jobs.into_iter().map(Job::from).collect(), next: jobs.next }
    }
}

impl From<JobView> for Job {
    fn from(view: JobView) -> Job {
        let work = match view.work {
            WorkName::Erase => work::Work::Erase,
            WorkName::BuildIndex => work::Work::BuildIndex,
        };
        Job {
            job: view.job.0,
            work: work.into(),
            done: matches!(view.state, JobState::Done),
            node: view.node.map(NodeName::from),
            kind: view.kind.map(owned),
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
                backups: receipt.backups.into_owned(),
            }),
        }
    }
}

impl From<jobs::NodeName> for NodeName {
    fn from(node: jobs::NodeName) -> NodeName {
        NodeName { r#type: owned(node.node_type), id: node.id.0 }
    }
}
