//! The service `Nodes`: settings, erasure, and the jobs that do it.

use guanxi_api::proto::nodes_server::Nodes;
use guanxi_api::proto::{
    EraseNodeAnswer, EraseNodeRequest, GetJobRequest, GetNodeRequest, Job, NodeSettings,
    PutNodeAnswer, PutNodeRequest,
};
use guanxi_model::job::JobId;
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::{jobs, nodes};

#[tonic::async_trait]
impl Nodes for Services {
    async fn get(&self, request: Request<GetNodeRequest>) -> GrpcAnswered<NodeSettings> {
        self.answer(request, nodes::get).await
    }

    async fn put(&self, request: Request<PutNodeRequest>) -> GrpcAnswered<PutNodeAnswer> {
        self.answer(request, nodes::put).await
    }

    async fn erase(&self, request: Request<EraseNodeRequest>) -> GrpcAnswered<EraseNodeAnswer> {
        self.answer(request, nodes::erase).await
    }

    async fn get_job(&self, request: Request<GetJobRequest>) -> GrpcAnswered<Job> {
        self.answer(request, |caller, GetJobRequest { job, .. }| jobs::get(caller, JobId(job)))
            .await
    }
}
