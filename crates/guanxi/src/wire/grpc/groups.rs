//! The service `Groups`.

use guanxi_api::proto::groups_server::Groups;
use guanxi_api::proto::{
    AddMemberRequest, CreateGroupRequest, DeleteGroupRequest, DropMemberRequest, GroupAnswer,
    ListGroupsAnswer, ListGroupsRequest, RenameGroupRequest,
};
use tonic::Request;

use super::{GrpcAnswered, Services};
use crate::service::groups;

#[tonic::async_trait]
impl Groups for Services {
    async fn list(&self, request: Request<ListGroupsRequest>) -> GrpcAnswered<ListGroupsAnswer> {
        self.answer(request, groups::list).await
    }

    async fn create(&self, request: Request<CreateGroupRequest>) -> GrpcAnswered<GroupAnswer> {
        self.answer(request, groups::create).await
    }

    async fn rename(&self, request: Request<RenameGroupRequest>) -> GrpcAnswered<GroupAnswer> {
        self.answer(request, groups::rename).await
    }

    async fn delete(&self, request: Request<DeleteGroupRequest>) -> GrpcAnswered<GroupAnswer> {
        self.answer(request, groups::delete).await
    }

    async fn add_member(&self, request: Request<AddMemberRequest>) -> GrpcAnswered<GroupAnswer> {
        self.answer(request, groups::add_member).await
    }

    async fn drop_member(&self, request: Request<DropMemberRequest>) -> GrpcAnswered<GroupAnswer> {
        self.answer(request, groups::drop_member).await
    }
}
