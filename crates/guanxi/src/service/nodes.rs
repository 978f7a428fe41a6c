//! A node's settings, and its erasure.

use guanxi_api::Id;
use guanxi_api::nodes::{JobStarted, NodeChanged, NodeOf, NodeSettings, PutNode};
use guanxi_model::{Answer, Change, Error};

use super::{Caller, unexpected};

pub async fn get(caller: Caller, node: NodeOf<'_>) -> Result<NodeSettings, Error> {
    let node = caller.node(&node).await?;
    let row = caller.read(move |reader| reader.node(&node)).await?;
    Ok(NodeSettings { private: row.private })
}

pub async fn put(caller: Caller, request: PutNode<'_>) -> Result<NodeChanged, Error> {
    let node = caller.node(&request.node).await?;
    let change = Change::SetNode { node, private: request.change.private };
    match caller.write_one(change).await? {
        (Answer::Node(row), token) => {
            Ok(NodeChanged { settings: NodeSettings { private: row.private }, token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// Begins a job that erases all edges of a node, both ways, with its groups, counters and settings.
pub async fn erase(caller: Caller, node: NodeOf<'_>) -> Result<JobStarted, Error> {
    let node = caller.node(&node).await?;
    match caller.write_one(Change::BeginErase { node }).await? {
        (Answer::Job(job), token) => Ok(JobStarted { job: Id(job.0), token }),
        (other, _) => Err(unexpected(&other)),
    }
}
