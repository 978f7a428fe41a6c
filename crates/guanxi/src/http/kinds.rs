//! Kinds over the admin API: list, create, get, change. A change holds from its answer on.

use axum::http::StatusCode;
use guanxi_api::kinds::{KindAmendment, KindCreation, KindView, Kinds};
use guanxi_model::{Answer, Change, Kind};

use super::document::{
    AdminReadRefusals, EdgeReadRefusals, KindCreateRefusals, KindPatchRefusals, KindPath,
};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::{WriteAnswer, unexpected};

/// Lists the kinds.
#[utoipa::path(
    get, path = "/v1/admin/kinds", tag = "admin", operation_id = "list_kinds",
    responses((status = 200, description = "The kinds.", body = Kinds), AdminReadRefusals),
)]
pub async fn list(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    call.meet(&query).await?;
    call.app.deployment.may_be_shown()?;
    let catalog = call.app.deployment.catalog();
    let kinds = catalog.kinds(call.tenant());
    let kinds = kinds.map(|kind| KindView::new(kind, call.tenant(), &catalog));
    Reply::ok(&Kinds { kinds: kinds.collect() })
}

/// Creates a kind.
#[utoipa::path(
    post, path = "/v1/admin/kinds", tag = "admin", operation_id = "create_kind",
    request_body(content = KindCreation, content_type = "application/json"),
    responses((status = 201, description = "The new kind.", body = KindView), KindCreateRefusals),
)]
pub async fn create(call: Call) -> Answered {
    let query = call.query(&[])?;
    let creation: KindCreation = call.json()?;
    let spec = Box::new(creation.into_spec()?);
    let tenant = call.tenant();
    let change = Change::CreateKind { tenant, spec };
    let written = call.write(&query, vec![change], None).await?;
    shown(&call, StatusCode::CREATED, written)
}

/// Reads one kind.
#[utoipa::path(
    get, path = "/v1/admin/kinds/{name}", tag = "admin", operation_id = "get_kind",
    params(KindPath),
    responses((status = 200, description = "The kind.", body = KindView), EdgeReadRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    call.app.deployment.may_be_shown()?;
    call.kind_in("name").await?;
    call.meet(&query).await?;
    let kind = call.kind_in("name").await?;
    view(&call, StatusCode::OK, &kind)
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
pub async fn change(call: Call) -> Answered {
    let kind = call.kind_in("name").await?;
    let query = call.query(&[])?;
    let amendment: KindAmendment = call.json()?;
    let change =
        Change::SetKind { tenant: call.tenant(), kind: kind.id, patch: Box::new(amendment.into()) };
    let written = call.write(&query, vec![change], None).await?;
    shown(&call, StatusCode::OK, written)
}

fn shown(call: &Call, status: StatusCode, mut written: WriteAnswer) -> Answered {
    match written.only()? {
        Answer::Kind(kind) => Ok(view(call, status, &kind)?.with_token(&written.token)),
        other => Err(unexpected(&other).into()),
    }
}

fn view(call: &Call, status: StatusCode, kind: &Kind) -> Answered {
    let catalog = call.app.deployment.catalog();
    Reply::json(status, &KindView::new(kind, call.tenant(), &catalog))
}
