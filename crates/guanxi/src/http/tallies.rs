//! Batch tallies.

use std::sync::Arc;

use guanxi_api::Name;
use guanxi_api::tallies::{KindTallies, TalliesAnswer, TalliesByKind, TalliesOf, TalliesRequest};
use guanxi_engine::Reader;
use guanxi_model::limits::REQUEST_TALLIES_MAX;
use guanxi_model::{Code, Error, Kind, NodeKey, NodeTypeId, TallyRow, TenantId};

use super::document::ReadRefusals;
use super::extract::Call;
use super::reply::{Answered, Reply};

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
    let kinds = kinds_named(&call, "kinds", &request.kinds, REQUEST_TALLIES_MAX)?;
    let asked = request.ids.len() * request.kinds.len();
    if asked > REQUEST_TALLIES_MAX {
        return Err(too_many("ids × kinds", asked, REQUEST_TALLIES_MAX).into());
    }
    let reader = call.reader(&query).await?;
    let mut results = Vec::with_capacity(request.ids.len());
    for id in &request.ids {
        let mut rows = Rows::of(&reader, call.tenant(), id.0);
        let mut by_kind = Vec::with_capacity(kinds.len());
        for kind in &kinds {
            let source = rows.row(kind.fixed.source_type)?;
            let target = rows.row(kind.fixed.target_type)?;
            let owner = rows.row(kind.fixed.owner_type.unwrap_or(kind.fixed.target_type))?;
            let [source, target, owner] = [source, target, owner].map(|at| &rows.rows[at].1);
            let tallies = KindTallies::of(kind, source, target, owner);
            by_kind.push((kind.name.as_str(), tallies));
        }
        results.push(TalliesOf { id: *id, tallies: TalliesByKind(by_kind) });
    }
    Reply::ok(&TalliesAnswer { results })
}

/// The kinds of a request by their names; one named twice counts once. More names than `max` are
/// too many, unless one of the first is unknown, which is what the caller should hear of.
pub fn kinds_named(
    call: &Call,
    what: &str,
    names: &[Name<'_>],
    max: usize,
) -> Result<Vec<Arc<Kind>>, Error> {
    let catalog = call.app.engine.catalog();
    let mut kinds: Vec<Arc<Kind>> = Vec::with_capacity(names.len().min(max));
    for name in names.iter().take(max) {
        let kind = catalog.named(call.tenant(), name.as_str())?;
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
    }
    if names.len() > max {
        return Err(too_many(what, names.len(), max));
    }
    Ok(kinds)
}

pub fn too_many(what: &str, count: usize, max: usize) -> Error {
    Error::new(Code::TooLarge, format!("{what}: there are {count}, at most {max} fit one request"))
}

/// The rows of one id as a node of each type, each read once.
struct Rows<'a> {
    reader: &'a Reader,
    tenant: TenantId,
    id: u64,
    rows: Vec<(NodeTypeId, TallyRow)>,
}

impl<'a> Rows<'a> {
    fn of(reader: &'a Reader, tenant: TenantId, id: u64) -> Rows<'a> {
        Rows { reader, tenant, id, rows: Vec::new() }
    }

    fn row(&mut self, node_type: NodeTypeId) -> Result<usize, Error> {
        if let Some(at) = self.rows.iter().position(|(known, _)| *known == node_type) {
            return Ok(at);
        }
        let row = self.reader.tallies(&NodeKey { tenant: self.tenant, node_type, id: self.id })?;
        self.rows.push((node_type, row));
        Ok(self.rows.len() - 1)
    }
}
