//! Groups of one source: list, create, rename, delete; and their members.

use axum::http::StatusCode;
use guanxi_api::groups::{GroupNaming, GroupView, Groups};
use guanxi_model::{Answer, Change, EdgeKey, TargetId};

use super::document::{EdgeReadRefusals, GroupPath, GroupRefusals, GroupsPath, MemberPath};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::{WriteAnswer, unexpected};

/// Lists a source's groups in the order of their creation.
#[utoipa::path(
    get, path = "/v1/groups/{kind}/{source}", tag = "groups", operation_id = "list_groups",
    params(GroupsPath),
    responses((status = 200, description = "The groups.", body = Groups), EdgeReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let (kind, key) = call.groups().await?;
    let query = call.query(&[])?;
    call.no_body()?;
    kind.require_edges()?;
    let groups = call.caller(&query)?.read(move |reader| reader.groups(&key)).await?;
    let groups =
        groups.groups.iter().map(|group| GroupView { name: group.name.as_str(), size: group.size });
    Reply::ok(&Groups { groups: groups.collect() })
}

/// Creates a group.
#[utoipa::path(
    post, path = "/v1/groups/{kind}/{source}", tag = "groups", operation_id = "create_group",
    params(GroupsPath),
    request_body(content = GroupNaming, content_type = "application/json"),
    responses((status = 201, description = "The new group.", body = GroupView), GroupRefusals),
)]
pub async fn create(call: Call) -> Answered {
    let (_, groups) = call.groups().await?;
    let query = call.query(&[])?;
    let GroupNaming { name } = call.json()?;
    let name = name.0;
    let change = Change::CreateGroup { groups, name };
    let written = call.write(&query, vec![change], None).await?;
    shown(StatusCode::CREATED, written)
}

/// Renames a group; its members stay in it.
#[utoipa::path(
    patch, path = "/v1/groups/{kind}/{source}/{group}", tag = "groups",
    operation_id = "rename_group",
    params(GroupPath),
    request_body(content = GroupNaming, content_type = "application/json"),
    responses((status = 200, description = "The renamed group.", body = GroupView), GroupRefusals),
)]
pub async fn rename(call: Call) -> Answered {
    let (_, groups) = call.groups().await?;
    let name = call.group_name()?;
    let query = call.query(&[])?;
    let GroupNaming { name: to } = call.json()?;
    let to = to.0;
    let change = Change::RenameGroup { groups, name, to };
    let written = call.write(&query, vec![change], None).await?;
    shown(StatusCode::OK, written)
}

/// Deletes a group; its members stay related, ungrouped.
#[utoipa::path(
    delete, path = "/v1/groups/{kind}/{source}/{group}", tag = "groups",
    operation_id = "delete_group",
    params(GroupPath),
    responses(
        (status = 200, description = "The group as it was.", body = GroupView),
        GroupRefusals,
    ),
)]
pub async fn delete(call: Call) -> Answered {
    let (_, groups) = call.groups().await?;
    let name = call.group_name()?;
    let query = call.query(&[])?;
    call.no_body()?;
    let change = Change::DeleteGroup { groups, name };
    let written = call.write(&query, vec![change], None).await?;
    shown(StatusCode::OK, written)
}

/// Moves an edge into a group.
#[utoipa::path(
    put, path = "/v1/groups/{kind}/{source}/{group}/members/{target}", tag = "groups",
    operation_id = "add_member",
    params(MemberPath),
    responses((status = 200, description = "The group.", body = GroupView), GroupRefusals),
)]
pub async fn add_member(call: Call) -> Answered {
    let (edge, query) = (member(&call).await?, call.query(&[])?);
    let group = call.group_name()?;
    call.no_body()?;
    let change = Change::AddMember { edge, group };
    let written = call.write(&query, vec![change], None).await?;
    shown(StatusCode::OK, written)
}

/// Takes an edge out of a group; one that is not in it stays as it is.
#[utoipa::path(
    delete, path = "/v1/groups/{kind}/{source}/{group}/members/{target}", tag = "groups",
    operation_id = "drop_member",
    params(MemberPath),
    responses((status = 200, description = "The group.", body = GroupView), GroupRefusals),
)]
pub async fn drop_member(call: Call) -> Answered {
    let (edge, query) = (member(&call).await?, call.query(&[])?);
    let group = call.group_name()?;
    call.no_body()?;
    let change = Change::DropMember { edge, group };
    let written = call.write(&query, vec![change], None).await?;
    shown(StatusCode::OK, written)
}

async fn member(call: &Call) -> Result<EdgeKey, guanxi_model::Error> {
    let (_, groups) = call.groups().await?;
    Ok(EdgeKey {
        tenant: groups.tenant,
        kind: groups.kind,
        source: groups.source,
        target: TargetId(call.id("target")?),
    })
}

fn shown(status: StatusCode, mut written: WriteAnswer) -> Answered {
    match written.only()? {
        Answer::Group { name, size } => {
            let name = name.as_str();
            let reply = Reply::json(status, &GroupView { name, size })?;
            Ok(reply.with_token(&written.token))
        }
        other => Err(unexpected(&other).into()),
    }
}
