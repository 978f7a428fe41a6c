//! A move into a cluster: the calls with which `guanxi move` begins, makes writes pause, and ends
//! them.

use guanxi_api::moving::{BeginRequest, BegunView, ConfirmRequest, MoveView, PauseRequest};
use guanxi_model::Error;

use super::document::{LetGo, MoveRefusals};
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::moving;

/// Shows whether a move into a cluster has begun, makes writes pause, or has ended them.
#[utoipa::path(
    get, path = "/v1/admin/move", tag = "admin", operation_id = "get_move",
    responses(
        (status = 200, description = "How a move stands.", body = MoveView),
        MoveRefusals,
    ),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    reply::ok(&moving::get(request.caller(&query).await?).await?)
}

/// Begins a move into a cluster; one at a time. Nothing pauses yet. With `run` an earlier call is
/// repeated: a move that is silent for a minute may be replaced by another.
#[utoipa::path(
    post, path = "/v1/admin/move", tag = "admin", operation_id = "begin_move",
    request_body(content = BeginRequest, content_type = "application/json"),
    responses((status = 200, description = "It has begun.", body = BegunView), MoveRefusals),
)]
pub async fn begin(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let begin: BeginRequest = request.json()?;
    reply::ok(&moving::begin(request.caller(&query).await?, begin).await?)
}

/// Makes writes pause for a move that has begun and follows the log (`GET /v1/admin/backup` with
/// `after` and `move`), for five seconds at most and a minute in any hour: `read_only` meanwhile.
/// Answers with the last position when nothing is under way any more.
#[utoipa::path(
    post, path = "/v1/admin/move/pause", tag = "admin", operation_id = "pause_for_move",
    request_body(content = PauseRequest, content_type = "application/json"),
    responses((status = 200, description = "Writes pause.", body = MoveView), MoveRefusals),
)]
pub async fn pause(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let pause: PauseRequest = request.json()?;
    reply::ok(&moving::pause(request.caller(&query).await?, pause).await?)
}

/// Ends a move: everything up to the position is in the cluster, and writes are `read_only` here
/// from now on, also after a restart. Refused when the pause is over.
#[utoipa::path(
    put, path = "/v1/admin/move", tag = "admin", operation_id = "confirm_move",
    request_body(content = ConfirmRequest, content_type = "application/json"),
    responses((status = 200, description = "It has moved.", body = MoveView), MoveRefusals),
)]
pub async fn confirm(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    let confirm: ConfirmRequest = request.json()?;
    reply::ok(&moving::confirm(request.caller(&query).await?, confirm).await?)
}

/// Gives a move up, for now: writes are taken again if they pause, and another move may begin. One
/// that was given up already stays so.
#[utoipa::path(
    delete, path = "/v1/admin/move", tag = "admin", operation_id = "let_go_of_move",
    params(LetGo),
    responses((status = 200, description = "Writes are taken.", body = MoveView), MoveRefusals),
)]
pub async fn let_go(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["id"])?;
    request.no_body()?;
    let id = query.text("id");
    let id = id.ok_or_else(|| Error::invalid("id: it is the number of the move that has begun"))?;
    reply::ok(&moving::let_go(request.caller(&query).await?, id).await?)
}
