//! Groups of one source: list, create, rename, delete; and their members.

use axum::http::StatusCode;
use guanxi_api::groups::{
    GroupChanged, GroupNaming, GroupOf, GroupView, Groups, Member, RenameGroup,
};
use guanxi_model::Error;

use super::document::{EdgeReadRefusals, GroupPath, GroupRefusals, GroupsPath, MemberPath};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::groups;

/// Lists a source's groups in the order of their creation.
#[utoipa::path(
    get, path = "/v1/groups/{kind}/{source}", tag = "groups", operation_id = "list_groups",
    params(GroupsPath),
    responses((status = 200, description = "The groups.", body = Groups), EdgeReadRefusals),
)]
pub async fn list(request: HttpRequest) -> HttpAnswered {
    let (query, of) = (request.query(&[])?, request.groups()?);
    request.no_body()?;
    reply::ok(&groups::list(request.caller(&query).await?, of).await?)
}

/// Creates a group.
#[utoipa::path(
    post, path = "/v1/groups/{kind}/{source}", tag = "groups", operation_id = "create_group",
    params(GroupsPath),
    request_body(content = GroupNaming, content_type = "application/json"),
    responses((status = 201, description = "The new group.", body = GroupView), GroupRefusals),
)]
pub async fn create(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let GroupNaming { name } = request.json()?;
    let group = GroupOf { of: request.groups()?, group: name.0 };
    let created = groups::create(request.unkeyed_caller(&query).await?, group).await;
    shown(StatusCode::CREATED, created)
}

/// Renames a group; its members stay in it.
#[utoipa::path(
    patch, path = "/v1/groups/{kind}/{source}/{group}", tag = "groups",
    operation_id = "rename_group",
    params(GroupPath),
    request_body(content = GroupNaming, content_type = "application/json"),
    responses((status = 200, description = "The renamed group.", body = GroupView), GroupRefusals),
)]
pub async fn rename(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let (of, group) = (request.groups()?, request.group_name()?);
    let GroupNaming { name } = request.json()?;
    let rename = RenameGroup { of, group, name: name.0 };
    shown(StatusCode::OK, groups::rename(request.unkeyed_caller(&query).await?, rename).await)
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
pub async fn delete(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let group = GroupOf { of: request.groups()?, group: request.group_name()? };
    request.no_body()?;
    shown(StatusCode::OK, groups::delete(request.unkeyed_caller(&query).await?, group).await)
}

/// Moves an edge into a group.
#[utoipa::path(
    put, path = "/v1/groups/{kind}/{source}/{group}/members/{target}", tag = "groups",
    operation_id = "add_member",
    params(MemberPath),
    responses((status = 200, description = "The group.", body = GroupView), GroupRefusals),
)]
pub async fn add_member(request: HttpRequest) -> HttpAnswered {
    let (query, member) = (request.query(&[])?, member(&request)?);
    request.no_body()?;
    shown(StatusCode::OK, groups::add_member(request.unkeyed_caller(&query).await?, member).await)
}

/// Takes an edge out of a group; one that is not in it stays as it is.
#[utoipa::path(
    delete, path = "/v1/groups/{kind}/{source}/{group}/members/{target}", tag = "groups",
    operation_id = "drop_member",
    params(MemberPath),
    responses((status = 200, description = "The group.", body = GroupView), GroupRefusals),
)]
pub async fn drop_member(request: HttpRequest) -> HttpAnswered {
    let (query, member) = (request.query(&[])?, member(&request)?);
    request.no_body()?;
    shown(StatusCode::OK, groups::drop_member(request.unkeyed_caller(&query).await?, member).await)
}

fn member(request: &HttpRequest) -> Result<Member<'_>, Error> {
    let (of, group) = (request.groups()?, request.group_name()?);
    Ok(Member { of, group, target: request.id("target")? })
}

fn shown(status: StatusCode, changed: Result<GroupChanged, Error>) -> HttpAnswered {
    let GroupChanged { group, token } = changed?;
    reply::written(status, &group, &token)
}
