//! Batch tallies.

use guanxi_api::tallies::{TalliesAnswer, TalliesByKind, TalliesOf, TalliesRequest};

use super::document::ReadRefusals;
use super::extract::Call;
use super::reply::{Answered, Reply};
use crate::calls::tallies;

/// Reads the tallies of many ids by many kinds.
#[utoipa::path(
    post, path = "/v1/tallies", tag = "reads", operation_id = "tallies",
    request_body(content = TalliesRequest, content_type = "application/json"),
    responses(
        (status = 200, description = "A result for each id.", body = TalliesAnswer),
        ReadRefusals,
    ),
)]
pub async fn tallies(call: Call) -> Answered {
    let query = call.query(&[])?;
    let request: TalliesRequest = call.json()?;
    let caller = call.caller(&query)?;
    let (kinds, found) = tallies::tallies(&caller, &request.ids, &request.kinds).await?;
    let results = request.ids.iter().zip(found.answer).map(|(id, tallies)| {
        let names = kinds.iter().map(|kind| kind.name.as_str());
        TalliesOf { id: *id, tallies: TalliesByKind(names.zip(tallies).collect()) }
    });
    Reply::ok(&TalliesAnswer { results: results.collect(), degraded: found.degraded })
}
