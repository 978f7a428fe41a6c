//! Kinds over the admin API: list, create, get, change. A change holds from its answer on.

use axum::http::StatusCode;
use guanxi_api::kinds::{ChangeKind, KindAmendment, KindChanged, KindCreation, KindView, Kinds};
use guanxi_model::Error;

use super::document::{
    AdminReadRefusals, EdgeReadRefusals, KindCreateRefusals, KindPatchRefusals, KindPath,
};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::kinds;

/// Lists the kinds.
#[utoipa::path(
    get, path = "/v1/admin/kinds", tag = "admin", operation_id = "list_kinds",
    responses((status = 200, description = "The kinds.", body = Kinds), AdminReadRefusals),
)]
pub async fn list(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&kinds::list(request.caller(&query).await?).await?)
}

/// Creates a kind.
#[utoipa::path(
    post, path = "/v1/admin/kinds", tag = "admin", operation_id = "create_kind",
    request_body(content = KindCreation, content_type = "application/json"),
    responses((status = 201, description = "The new kind.", body = KindView), KindCreateRefusals),
)]
pub async fn create(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let creation: KindCreation = request.json()?;
    let created = kinds::create(request.unkeyed_caller(&query).await?, creation).await;
    shown(StatusCode::CREATED, created)
}

/// Reads one kind.
#[utoipa::path(
    get, path = "/v1/admin/kinds/{name}", tag = "admin", operation_id = "get_kind",
    params(KindPath),
    responses((status = 200, description = "The kind.", body = KindView), EdgeReadRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&kinds::get(request.caller(&query).await?, request.name("name")).await?)
}

/// Changes a kind's rules; what is fixed at creation is refused by name.
#[utoipa::path(
    patch, path = "/v1/admin/kinds/{name}", tag = "admin", operation_id = "change_kind",
    params(KindPath),
    request_body(content = KindAmendment, content_type = "application/json"),
    responses(
        (status = 200, description = "The kind as it is now.", body = KindView),
        KindPatchRefusals,
    ),
)]
pub async fn change(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let change = ChangeKind { name: request.name("name"), amendment: request.json()? };
    shown(StatusCode::OK, kinds::change(request.unkeyed_caller(&query).await?, change).await)
}

fn shown(status: StatusCode, changed: Result<KindChanged, Error>) -> HttpAnswered {
    let KindChanged { kind, token } = changed?;
    reply::written(status, &kind, &token)
}
