//! The service `Counters`.

use guanxi_api::proto::counters_server::Counters;
use guanxi_api::proto::{BatchCountersAnswer, BatchCountersRequest, CountRequest, Counted};
use tonic::Request;

use super::{Answered, Services};
use crate::service::counters;

#[tonic::async_trait]
impl Counters for Services {
    async fn count(&self, request: Request<CountRequest>) -> Answered<Counted> {
        self.answer(request, counters::count).await
    }

    async fn batch(&self, request: Request<BatchCountersRequest>) -> Answered<BatchCountersAnswer> {
        self.answer(request, counters::batch).await
    }
}
