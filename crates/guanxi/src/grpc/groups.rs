//! The service `Groups`.

use guanxi_api::proto::groups_server::Groups;
use guanxi_api::proto::{
    AddMemberRequest, CreateGroupRequest, DeleteGroupRequest, DropMemberRequest, Group,
    GroupAnswer, ListGroupsAnswer, ListGroupsRequest, RenameGroupRequest,
};
use guanxi_model::{Answer, Change, Error};
use tonic::Request;

use super::{Answered, Call, Services, group_name};
use crate::calls::unexpected;

#[tonic::async_trait]
impl Groups for Services {
    async fn list(&self, request: Request<ListGroupsRequest>) -> Answered<ListGroupsAnswer> {
        self.answer(request, list).await
    }

    async fn create(&self, request: Request<CreateGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, create).await
    }

    async fn rename(&self, request: Request<RenameGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, rename).await
    }

    async fn delete(&self, request: Request<DeleteGroupRequest>) -> Answered<GroupAnswer> {
        self.answer(request, delete).await
    }

    async fn add_member(&self, request: Request<AddMemberRequest>) -> Answered<GroupAnswer> {
        self.answer(request, add_member).await
    }

    async fn drop_member(&self, request: Request<DropMemberRequest>) -> Answered<GroupAnswer> {
        self.answer(request, drop_member).await
    }
}

async fn list(call: Call, request: ListGroupsRequest) -> Result<ListGroupsAnswer, Error> {
    let (kind, key) = call.groups(&request.kind, request.source).await?;
    kind.require_edges()?;
    let groups = call.caller(&request.at_least).read(move |reader| reader.groups(&key)).await?;
    let groups = groups.groups.iter();
    let groups = groups.map(|group| Group { name: group.name.as_str().into(), size: group.size });
    Ok(ListGroupsAnswer { groups: groups.collect() })
}

async fn create(call: Call, request: CreateGroupRequest) -> Result<GroupAnswer, Error> {
    let (_, groups) = call.groups(&request.kind, request.source).await?;
    let name = group_name(&request.name, "name")?;
    changed(&call, Change::CreateGroup { groups, name }, &request.at_least).await
}

async fn rename(call: Call, request: RenameGroupRequest) -> Result<GroupAnswer, Error> {
    let (_, groups) = call.groups(&request.kind, request.source).await?;
    let name = group_name(&request.group, "group")?;
    let to = group_name(&request.name, "name")?;
    changed(&call, Change::RenameGroup { groups, name, to }, &request.at_least).await
}

async fn delete(call: Call, request: DeleteGroupRequest) -> Result<GroupAnswer, Error> {
    let (_, groups) = call.groups(&request.kind, request.source).await?;
    let name = group_name(&request.group, "group")?;
    changed(&call, Change::DeleteGroup { groups, name }, &request.at_least).await
}

async fn add_member(call: Call, request: AddMemberRequest) -> Result<GroupAnswer, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let group = group_name(&request.group, "group")?;
    changed(&call, Change::AddMember { edge, group }, &request.at_least).await
}

async fn drop_member(call: Call, request: DropMemberRequest) -> Result<GroupAnswer, Error> {
    let (_, edge) = call.edge(&request.kind, request.source, request.target).await?;
    let group = group_name(&request.group, "group")?;
    changed(&call, Change::DropMember { edge, group }, &request.at_least).await
}

async fn changed(
    call: &Call,
    change: Change,
    at_least: &Option<String>,
) -> Result<GroupAnswer, Error> {
    match call.caller(at_least).write_one(change, None).await? {
        (Answer::Group { name, size }, token) => {
            let group = Group { name: name.as_str().to_owned(), size };
            Ok(GroupAnswer { group: Some(group), token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}
