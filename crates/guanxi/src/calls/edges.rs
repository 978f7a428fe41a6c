//! Single edges and batches of changes.

use std::sync::Arc;

use guanxi_api::edges::BatchChange;
use guanxi_engine::cluster::budget::Lane;
use guanxi_engine::hot::What;
use guanxi_model::answer::EdgeAnswer;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::limits::REQUEST_CHANGES_MAX;
use guanxi_model::{
    Answer, Change, EdgeKey, EdgeRow, Error, GroupName, GroupsKey, Kind, SourceId, State, TargetId,
};

use super::{Caller, Reading, WriteAnswer, unexpected, within};

/// What stands between two nodes.
#[derive(Debug)]
pub struct Found {
    pub row: Option<EdgeRow>,
    pub group: Option<GroupName>,
    /// The same edge the other way round, for kinds whose ends are of one node type.
    pub reverse: Option<Option<EdgeRow>>,
}

impl Found {
    pub fn related(&self) -> bool {
        is_live(self.row.as_ref())
    }

    /// Live both ways.
    pub fn mutual(&self) -> Option<bool> {
        let reverse = self.reverse.as_ref()?;
        Some(self.related() && is_live(reverse.as_ref()))
    }
}

pub fn is_live(row: Option<&EdgeRow>) -> bool {
    row.is_some_and(EdgeRow::is_live)
}

pub async fn get(
    caller: &Caller<'_>,
    kind: &Arc<Kind>,
    edge: &EdgeKey,
) -> Result<Reading<Found>, Error> {
    kind.require_edges()?;
    caller.note(What::Checks(kind.fixed.source_type), edge.source.0);
    let (edge, same_type) = (*edge, kind.same_type());
    let kinds = std::slice::from_ref(kind);
    let read = caller.read_or_default(Lane::Reads, kinds, move |reader| {
        reader.prefetch(|wanted| {
            wanted.edges.push(edge);
            wanted.edges.extend(same_type.then(|| edge.reversed()));
            wanted.groups.push(GroupsKey::of(&edge));
        })?;
        let row = reader.edge(&edge)?;
        let group = match &row {
            Some(row) => reader.group_name(&edge, row)?,
            None => None,
        };
        let reverse = match same_type {
            true => Some(reader.edge(&edge.reversed())?),
            false => None,
        };
        Ok(Found { row, group, reverse })
    });
    read.await
}

/// Commits one change of an edge; what it did, and the token.
pub async fn change(
    caller: &Caller<'_>,
    change: Change,
    key: Option<IdempotencyKey>,
) -> Result<(EdgeAnswer, String), Error> {
    match caller.write_one(change, key).await? {
        (Answer::Edge(answer), token) => {
            debug_assert!(answer.since.is_some() || answer.state == State::Removed);
            Ok((answer, token))
        }
        (other, _) => Err(unexpected(&other)),
    }
}

/// Makes many changes in order, each decided on its own.
pub async fn batch(
    caller: &Caller<'_>,
    changes: Vec<BatchChange<'_>>,
    key: Option<IdempotencyKey>,
) -> Result<WriteAnswer, Error> {
    bounded(changes.len())?;
    for (index, change) in changes.iter().enumerate() {
        change.check(index)?;
    }
    let names: Vec<&str> = changes.iter().map(|change| change.kind.as_str()).collect();
    let kinds = caller.kind_of_each(&names, key.as_ref()).await?;
    let mut wanted = Vec::with_capacity(changes.len());
    for (change, kind) in changes.into_iter().zip(kinds) {
        wanted.push(kind.map(|kind| {
            let edge = EdgeKey {
                tenant: caller.tenant,
                kind: kind.id,
                source: SourceId(change.source.0),
                target: TargetId(change.target.0),
            };
            change.into_change(edge)
        }));
    }
    caller.write_each(wanted, key).await
}

/// A batch has at least one change and not too many.
pub fn bounded(changes: usize) -> Result<(), Error> {
    match changes {
        0 => Err(Error::invalid("changes: there must be at least one")),
        _ => within("changes", changes, REQUEST_CHANGES_MAX),
    }
}
