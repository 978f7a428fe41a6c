//! The service `Edges`.

use guanxi_api::proto::edges_server::Edges;
use guanxi_api::proto::{
    ApproveEdgeRequest, BatchEdgesAnswer, BatchEdgesRequest, ChangedEdge, DeclineEdgeRequest,
    DeleteEdgeRequest, Edge, GetEdgeRequest, PutEdgeRequest,
};
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::edges;

#[tonic::async_trait]
impl Edges for Services {
    async fn put(&self, request: Request<PutEdgeRequest>) -> GrpcAnswered<ChangedEdge> {
        self.answer(request, edges::put).await
    }

    async fn delete(&self, request: Request<DeleteEdgeRequest>) -> GrpcAnswered<ChangedEdge> {
        self.answer(request, edges::delete).await
    }

    async fn get(&self, request: Request<GetEdgeRequest>) -> GrpcAnswered<Edge> {
        self.answer(request, edges::get).await
    }

    async fn approve(&self, request: Request<ApproveEdgeRequest>) -> GrpcAnswered<ChangedEdge> {
        self.answer(request, edges::approve).await
    }

    async fn decline(&self, request: Request<DeclineEdgeRequest>) -> GrpcAnswered<ChangedEdge> {
        self.answer(request, edges::decline).await
    }

    async fn batch(&self, request: Request<BatchEdgesRequest>) -> GrpcAnswered<BatchEdgesAnswer> {
        self.answer(request, edges::batch).await
    }
}
