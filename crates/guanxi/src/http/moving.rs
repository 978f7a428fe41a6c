//! A move into a cluster: the calls with which `guanxi move` makes writes pause, and ends them.

use guanxi_api::moving::{ConfirmRequest, MoveView, PauseRequest};
use guanxi_model::Error;

use super::document::{MoveRefusals, Resumed};
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::moving;

/// Shows whether writes pause for a move into a cluster, or have ended with one.
#[utoipa::path(
    get, path = "/v1/admin/move", tag = "admin", operation_id = "get_move",
    responses(
        (status = 200, description = "How a move stands.", body = MoveView),
        MoveRefusals,
    ),
)]
pub async fn get(call: Call) -> Answered {
    call.query(&[])?;
    call.no_body()?;
    Reply::ok(&moving::state(&call.app)?)
}

/// Makes writes pause for a move into a cluster, for five seconds at most: `read_only` meanwhile.
/// Answers with the last position when nothing is under way any more.
#[utoipa::path(
    post, path = "/v1/admin/move", tag = "admin", operation_id = "pause_for_move",
    request_body(content = PauseRequest, content_type = "application/json"),
    responses((status = 200, description = "Writes pause.", body = MoveView), MoveRefusals),
)]
pub async fn pause(call: Call) -> Answered {
    call.query(&[])?;
    Reply::ok(&moving::pause(&call.app, &call.json()?).await?)
}

/// Ends a move: everything up to the position is in the cluster, and writes are `read_only` here
/// from now on, also after a restart. Refused when the pause is over.
#[utoipa::path(
    put, path = "/v1/admin/move", tag = "admin", operation_id = "confirm_move",
    request_body(content = ConfirmRequest, content_type = "application/json"),
    responses((status = 200, description = "It has moved.", body = MoveView), MoveRefusals),
)]
pub async fn confirm(call: Call) -> Answered {
    call.query(&[])?;
    Reply::ok(&moving::confirm(&call.app, call.json()?).await?)
}

/// Takes writes again before the pause is over; one that is over stays so.
#[utoipa::path(
    delete, path = "/v1/admin/move", tag = "admin", operation_id = "resume_from_move",
    params(Resumed),
    responses((status = 200, description = "Writes are taken.", body = MoveView), MoveRefusals),
)]
pub async fn resume(call: Call) -> Answered {
    let query = call.query(&["id"])?;
    call.no_body()?;
    let Some(id) = query.text("id") else {
        return Err(
            Error::invalid("id: it is the number of the move that made writes pause").into()
        );
    };
    Reply::ok(&moving::resume(&call.app, id)?)
}
