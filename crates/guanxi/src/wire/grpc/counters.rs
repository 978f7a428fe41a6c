//! The service `Counters`.

use guanxi_api::proto::counters_server::Counters;
use guanxi_api::proto::{BatchCountersAnswer, BatchCountersRequest, CountRequest, Counted};
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::counters;

#[tonic::async_trait]
impl Counters for Services {
    async fn count(&self, request: Request<CountRequest>) -> GrpcAnswered<Counted> {
        self.answer(request, counters::count).await
    }

    async fn batch(
        &self,
        request: Request<BatchCountersRequest>,
    ) -> GrpcAnswered<BatchCountersAnswer> {
        self.answer(request, counters::batch).await
    }
}
