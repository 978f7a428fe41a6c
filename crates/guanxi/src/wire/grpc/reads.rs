//! The service `Reads`: checks, tallies and hydrate.

use guanxi_api::proto::reads_server::Reads;
use guanxi_api::proto::{
    CheckAnswer, CheckPairsAnswer, CheckPairsRequest, CheckRequest, HydrateAnswer,
    HydrateManyAnswer, HydrateManyRequest, HydrateRequest, TalliesAnswer, TalliesRequest,
};
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::{check, hydrate, tallies};

#[tonic::async_trait]
impl Reads for Services {
    async fn check(&self, request: Request<CheckRequest>) -> GrpcAnswered<CheckAnswer> {
        self.answer(request, check::targets).await
    }

    async fn check_pairs(
        &self,
        request: Request<CheckPairsRequest>,
    ) -> GrpcAnswered<CheckPairsAnswer> {
        self.answer(request, check::pairs).await
    }

    async fn tallies(&self, request: Request<TalliesRequest>) -> GrpcAnswered<TalliesAnswer> {
        self.answer(request, tallies::tallies).await
    }

    async fn hydrate(&self, request: Request<HydrateRequest>) -> GrpcAnswered<HydrateAnswer> {
        self.answer(request, hydrate::one).await
    }

    async fn hydrate_many(
        &self,
        request: Request<HydrateManyRequest>,
    ) -> GrpcAnswered<HydrateManyAnswer> {
        self.answer(request, hydrate::many).await
    }
}
