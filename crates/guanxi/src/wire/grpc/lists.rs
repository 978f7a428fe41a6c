//! The service `Lists`.

use guanxi_api::proto::lists_server::Lists;
use guanxi_api::proto::{
    ListCommonRequest, ListIncomingRequest, ListKnownRequest, ListMutualRequest,
    ListOutgoingRequest, ListPage, ScanIncomingRequest, ScanOutgoingRequest,
};
use tonic::Request;

use super::{Answered, Services};
use crate::service::lists;

#[tonic::async_trait]
impl Lists for Services {
    async fn outgoing(&self, request: Request<ListOutgoingRequest>) -> Answered<ListPage> {
        self.answer(request, lists::outgoing).await
    }

    async fn incoming(&self, request: Request<ListIncomingRequest>) -> Answered<ListPage> {
        self.answer(request, lists::incoming).await
    }

    async fn mutual(&self, request: Request<ListMutualRequest>) -> Answered<ListPage> {
        self.answer(request, lists::mutual).await
    }

    async fn common(&self, request: Request<ListCommonRequest>) -> Answered<ListPage> {
        self.answer(request, lists::common).await
    }

    async fn known(&self, request: Request<ListKnownRequest>) -> Answered<ListPage> {
        self.answer(request, lists::known).await
    }

    async fn scan_outgoing(&self, request: Request<ScanOutgoingRequest>) -> Answered<ListPage> {
        self.answer(request, lists::scan_outgoing).await
    }

    async fn scan_incoming(&self, request: Request<ScanIncomingRequest>) -> Answered<ListPage> {
        self.answer(request, lists::scan_incoming).await
    }
}
