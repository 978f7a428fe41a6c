//! The service `Nodes`: settings, erasure, and the jobs that do it.

use guanxi_api::proto::nodes_server::Nodes;
use guanxi_api::proto::{
    EraseNodeAnswer, EraseNodeRequest, GetJobRequest, GetNodeRequest, Job, NodeSettings,
    PutNodeAnswer, PutNodeRequest,
};
use guanxi_model::job::JobId;
use tonic::Request;

use super::{Answered, Services};
use crate::service::{jobs, nodes};

#[tonic::async_trait]
impl Nodes for Services {
    async fn get(&self, request: Request<GetNodeRequest>) -> Answered<NodeSettings> {
        self.answer(request, nodes::get).await
    }

    async fn put(&self, request: Request<PutNodeRequest>) -> Answered<PutNodeAnswer> {
        self.answer(request, nodes::put).await
    }

    async fn erase(&self, request: Request<EraseNodeRequest>) -> Answered<EraseNodeAnswer> {
        self.answer(request, nodes::erase).await
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> Answered<Job> {
        self.answer(request, |caller, GetJobRequest { job, .. }| jobs::get(caller, JobId(job)))
            .await
    }
}
