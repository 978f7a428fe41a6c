//! The service `Nodes`: settings, erasure, and the jobs that do it.

use guanxi_api::proto::nodes_server::Nodes;
use guanxi_api::proto::{
    EraseNodeAnswer, EraseNodeRequest, GetJobRequest, GetNodeRequest, Job, NodeSettings,
    PutNodeAnswer, PutNodeRequest,
};
use guanxi_model::job::JobId;
use guanxi_model::{Answer, Change, Error};
use tonic::Request;

use super::{Answered, Call, Services};
use crate::calls::{jobs, unexpected};

#[tonic::async_trait]
impl Nodes for Services {
    async fn get(&self, request: Request<GetNodeRequest>) -> Answered<NodeSettings> {
        self.answer(request, get).await
    }

    async fn put(&self, request: Request<PutNodeRequest>) -> Answered<PutNodeAnswer> {
        self.answer(request, put).await
    }

    async fn erase(&self, request: Request<EraseNodeRequest>) -> Answered<EraseNodeAnswer> {
        self.answer(request, erase).await
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Answered<Job> {
        self.answer(request, get_job).await
    }
}

async fn get(call: Call, request: GetNodeRequest) -> Result<NodeSettings, Error> {
    let node = call.node(&request.r#type, request.id).await?;
    let row = call.caller(&request.at_least).read(move |reader| reader.node(&node)).await?;
    Ok(NodeSettings { private: row.private })
}

async fn put(call: Call, request: PutNodeRequest) -> Result<PutNodeAnswer, Error> {
    let node = call.node(&request.r#type, request.id).await?;
    let change = Change::SetNode { node, private: request.private };
    match call.caller(&request.at_least).write_one(change, None).await? {
        (Answer::Node(row), token) => {
            let settings = Some(NodeSettings { private: row.private });
            Ok(PutNodeAnswer { settings, token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}

async fn erase(call: Call, request: EraseNodeRequest) -> Result<EraseNodeAnswer, Error> {
    let node = call.node(&request.r#type, request.id).await?;
    let change = Change::BeginErase { node };
    match call.caller(&request.at_least).write_one(change, None).await? {
        (Answer::Job(job), token) => Ok(EraseNodeAnswer { job: job.0, token }),
        (other, _) => Err(unexpected(&other)),
    }
}

async fn get_job(call: Call, request: GetJobRequest) -> Result<Job, Error> {
    let (job, catalog) = jobs::get(&call.caller(&request.at_least), JobId(request.job)).await?;
    let remains = call.app.deployment.remains();
    Ok(Job::new(&job, call.tenant(), &catalog, remains))
}
