//! The service `Lists`.

use guanxi_api::proto::lists_server::Lists;
use guanxi_api::proto::{
    ListCommonRequest, ListIncomingRequest, ListKnownRequest, ListMutualRequest,
    ListOutgoingRequest, ListPage, ScanIncomingRequest, ScanOutgoingRequest,
};
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::lists;

#[tonic::async_trait]
impl Lists for Services {
    async fn outgoing(&self, request: Request<ListOutgoingRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::outgoing).await
    }

    async fn incoming(&self, request: Request<ListIncomingRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::incoming).await
    }

    async fn mutual(&self, request: Request<ListMutualRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::mutual).await
    }

    async fn common(&self, request: Request<ListCommonRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::common).await
    }

    async fn known(&self, request: Request<ListKnownRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::known).await
    }

    async fn scan_outgoing(&self, request: Request<ScanOutgoingRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::scan_outgoing).await
    }

    async fn scan_incoming(&self, request: Request<ScanIncomingRequest>) -> GrpcAnswered<ListPage> {
        self.answer(request, lists::scan_incoming).await
    }
}
