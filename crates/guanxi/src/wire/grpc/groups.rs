//! The service `Groups`.

use guanxi_api::proto::groups_server::Groups;
use guanxi_api::proto::{
    AddMemberRequest, CreateGroupRequest, DeleteGroupRequest, DropMemberRequest, GroupAnswer,
    ListGroupsAnswer, ListGroupsRequest, RenameGroupRequest,
};
use tonic::Request;

use super::{Answered, Services};
use crate::service::groups;

#[tonic::async_trait]
impl Groups for Services {
    async fn list(&self, request: Request<ListGroupsRequest>) -> Answered<ListGroupsAnswer> {
        self.answer(request, groups::list).await
    }

    async fn create(&self, request: Request<CreateGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, groups::create).await
    }

    async fn rename(&self, request: Request<RenameGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, groups::rename).await
    }

    async fn delete(&self, request: Request<DeleteGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, groups::delete).await
    }

    async fn add_member(&self, request: Request<AddMemberRequest>) -> Answered<GroupAnswer> {
        self.answer(request, groups::add_member).await
    }

    async fn drop_member(&self, request: Request<DropMemberRequest>) -> Answered<GroupAnswer> {
        self.answer(request, groups::drop_member).await
    }
}
