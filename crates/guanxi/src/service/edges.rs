//! Single edges and batches of changes.

use std::sync::Arc;

use guanxi_api::edges::{
    BatchRequest, Changed, DeleteEdge, Edge, EdgeName, PutEdge, Results, Reverse, VersionText,
};
use guanxi_api::name::WireGroupName;
use guanxi_api::{Id, Time};
use guanxi_core::deployment::{ReadAnswer, ReadLane};
use guanxi_core::hot::What;
use guanxi_model::limits::REQUEST_CHANGES_MAX;
use guanxi_model::{Answer, Change, EdgeRow, Error, GroupsKey, State};

use super::{Caller, unexpected, within};

/// Relates a source to a target.
pub async fn put(caller: Caller, request: PutEdge<'_>) -> Result<Changed, Error> {
    let change = put_change(&caller, request).await?;
    changed(&caller, change).await
}

pub async fn delete(caller: Caller, request: DeleteEdge<'_>) -> Result<Changed, Error> {
    let change = delete_change(&caller, request).await?;
    changed(&caller, change).await
}

pub async fn approve(caller: Caller, edge: EdgeName<'_>) -> Result<Changed, Error> {
    let change = approve_change(&caller, edge).await?;
    changed(&caller, change).await
}

pub async fn decline(caller: Caller, edge: EdgeName<'_>) -> Result<Changed, Error> {
    let change = decline_change(&caller, edge).await?;
    changed(&caller, change).await
}

/// What `put` wants done, for whoever gives it to the deployment with others.
pub async fn put_change(caller: &Caller, request: PutEdge<'_>) -> Result<Change, Error> {
    let (_, edge) = caller.edge(&request.edge).await?;
    Ok(Change::Put(request.fields.into_put(edge, request.strict)))
}

pub async fn delete_change(caller: &Caller, request: DeleteEdge<'_>) -> Result<Change, Error> {
    let (_, edge) = caller.edge(&request.edge).await?;
    Ok(Change::Delete { edge, strict: request.strict })
}

pub async fn approve_change(caller: &Caller, edge: EdgeName<'_>) -> Result<Change, Error> {
    let (_, edge) = caller.edge(&edge).await?;
    Ok(Change::Approve { edge })
}

pub async fn decline_change(caller: &Caller, edge: EdgeName<'_>) -> Result<Change, Error> {
    let (_, edge) = caller.edge(&edge).await?;
    Ok(Change::Decline { edge })
}

async fn changed(caller: &Caller, change: Change) -> Result<Changed, Error> {
    let (answer, token) = caller.write_one(change).await?;
    shown(answer, token)
}

/// What a write did, by the engine's answer.
pub fn shown(answer: Answer, token: Arc<str>) -> Result<Changed, Error> {
    match answer {
        Answer::Edge(answer) => {
            debug_assert!(answer.since.is_some() || answer.state == State::Removed);
            Ok(Changed::new(&answer, token))
        }
        other => Err(unexpected(&other)),
    }
}

/// Makes many changes in order, each decided on its own.
pub async fn batch(caller: Caller, request: BatchRequest<'_>) -> Result<Results<Changed>, Error> {
    bounded(request.changes.len())?;
    let changes = request.changes;
    for (index, change) in changes.iter().enumerate() {
        change.check(index)?;
    }
    let names: Vec<&str> = changes.iter().map(|change| change.kind.as_str()).collect();
    let kinds = caller.kind_of_each(&names).await?;
    let mut wanted = Vec::with_capacity(changes.len());
    for (change, kind) in changes.into_iter().zip(kinds) {
        wanted.push(kind.map(|kind| {
            let edge = caller.edge_key(&kind, change.source.0, change.target.0);
            change.into_change(edge)
        }));
    }
    caller.write_each(wanted, shown).await
}

/// A batch has at least one change and not too many.
pub(super) fn bounded(changes: usize) -> Result<(), Error> {
    match changes {
        0 => Err(Error::invalid("changes: there must be at least one")),
        _ => within("changes", changes, REQUEST_CHANGES_MAX),
    }
}

/// What stands between a source and a target.
pub async fn get(caller: Caller, edge: EdgeName<'_>) -> Result<Edge, Error> {
    let (kind, edge) = caller.edge(&edge).await?;
    kind.require_edges()?;
    caller.note(What::Checks(kind.fixed.source_type), edge.source.0);
    let same_type = kind.same_type();
    let read =
        caller.read_or_default(ReadLane::Reads, std::slice::from_ref(&kind), move |reader| {
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
            Ok((row, group, reverse))
        });
    let ReadAnswer { answer: (row, group, reverse), degraded } = read.await?;
    let related = is_live(row.as_ref());
    let back = reverse.as_ref().map(Option::as_ref);
    Ok(Edge {
        related,
        state: row.as_ref().map(|row| row.state.into()),
        since: row.as_ref().map(|row| Time(row.since)),
        group: group.map(WireGroupName),
        owner: row.as_ref().and_then(|row| row.owner).map(Id),
        version: row.as_ref().map(|row| VersionText(row.version.0)),
        expires_at: row.as_ref().and_then(|row| row.expires_at).map(Time),
        data: row.and_then(|row| row.data),
        mutual: back.map(|back| related && is_live(back)),
        reverse: back.map(|back| Reverse {
            related: is_live(back),
            state: back.map(|row| row.state.into()),
            since: back.map(|row| Time(row.since)),
        }),
        degraded,
    })
}

fn is_live(row: Option<&EdgeRow>) -> bool {
    row.is_some_and(EdgeRow::is_live)
}
