//! Every answer of a snapshot against the reference: what is there, and that nothing else is.

use std::ops::ControlFlow;

use guanxi_core::snapshot::{Direction, Snapshot, TimeRange, Timeline};
use guanxi_model::job::JobId;
use guanxi_model::kind::TimeIndex;
use guanxi_model::limits::{IDEMPOTENCY_TTL_MS, TIME_MAX};
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{
    EdgeKey, EdgeRow, Ends, GroupsKey, Kind, Millis, Node, NodeKey, SourceId, State, TargetId,
    TenantId,
};

use super::history::{IDS, TENANTS};
use super::reference::{ReferenceStore, part};
use super::{Exception, Subject, TakenSnapshot, check, excepted, inventory, same, worked};

/// The store as a whole: where it stands and every answer.
pub fn compare_store(store: &Subject, reference: &ReferenceStore) -> Result<(), String> {
    let applied = store.applied();
    same("position", applied.position, reference.position)?;
    same("commit time", applied.commit, reference.commit)?;
    let covered = applied.version >= reference.version;
    check(covered, "a version of a record is above the store's")?;
    same("catalog", store.catalog().as_ref(), &reference.catalog)?;
    compare(&store.taken(), reference)
}

pub fn compare(taken: &TakenSnapshot, reference: &ReferenceStore) -> Result<(), String> {
    let snapshot = taken.rows();
    same("catalog", snapshot.catalog(), &reference.catalog)?;
    edges(snapshot, reference)?;
    nodes(snapshot, reference)?;
    answers(snapshot, reference)?;
    walks(snapshot, reference)?;
    imports(snapshot, reference)?;
    jobs(snapshot, reference)?;
    due(snapshot, reference)?;
    match taken {
        TakenSnapshot::Embedded(snapshot) => {
            let applied = worked("applied", snapshot.applied())?;
            same("position of a snapshot", applied.position, reference.position)?;
            inventory::compare(snapshot.as_ref(), reference)?;
        }
        TakenSnapshot::Tables(_) => {
            excepted(Exception::PositionOfASnapshot);
            excepted(Exception::Inventory);
            excepted(Exception::ListsThatAreNotKept);
        }
    }
    timelines(taken, reference)
}

fn edges(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    for (tenant, kind) in reference.kinds() {
        let expected: Vec<(Ends, EdgeRow)> = reference
            .edges_of(tenant, kind.id)
            .map(|(key, row)| ((key.source, key.target), row.clone()))
            .collect();
        let middle = expected.get(expected.len() / 2).map(|(ends, _)| *ends);
        for after in [None, middle] {
            let what = format!("edges of kind {} after {after:?}", kind.name);
            let found = edges_of_kind(snapshot, tenant, kind, after)?;
            same(&what, found, behind(&expected, after))?;
        }
        // A hint, which must not change an answer.
        let prefetched = snapshot.prefetch(&mut |wanted| {
            let ends = IDS.iter().flat_map(|source| IDS.map(|target| (*source, target)));
            wanted.edges.extend(ends.map(|(source, target)| {
                let (source, target) = (SourceId(source), TargetId(target));
                EdgeKey { tenant, kind: kind.id, source, target }
            }));
            wanted.groups.extend(IDS.map(|id| {
                let source = SourceId(id);
                GroupsKey { tenant, kind: kind.id, source }
            }));
        });
        worked("prefetch", prefetched)?;
        for source in IDS.map(SourceId) {
            edges_of(snapshot, reference, tenant, kind, source)?;
        }
    }
    Ok(())
}

fn edges_of(
    snapshot: &dyn Snapshot,
    reference: &ReferenceStore,
    tenant: TenantId,
    kind: &Kind,
    source: SourceId,
) -> Result<(), String> {
    let mut expected = Vec::new();
    for target in IDS.map(TargetId) {
        let key = EdgeKey { tenant, kind: kind.id, source, target };
        let row = reference.edges.get(&key);
        let found = worked("edge", snapshot.edge(&key))?;
        same(&format!("{key:?}"), found.as_ref(), row)?;
        expected.extend(row.map(|row| ((source, target), row.clone())));
    }
    let middle = expected.get(expected.len() / 2).map(|(ends, _)| *ends);
    for after in [None, middle] {
        let mut found = Vec::new();
        let visit = &mut |target, row| {
            found.push(((source, target), row));
            ControlFlow::Continue(())
        };
        let after_target = after.map(|(_, target)| target);
        let walk = snapshot.edges_of_source(tenant, kind.id, source, after_target, visit);
        worked("edges_of_source", walk)?;
        let what = format!("{} edges of {source:?} after {after:?}", kind.name);
        same(&what, found, behind(&expected, after))?;
    }
    Ok(())
}

pub fn edges_of_kind(
    snapshot: &dyn Snapshot,
    tenant: TenantId,
    kind: &Kind,
    after: Option<Ends>,
) -> Result<Vec<(Ends, EdgeRow)>, String> {
    let mut found = Vec::new();
    let walk = snapshot.edges_of_kind(tenant, kind.id, after, &mut |ends, row| {
        found.push((ends, row));
        ControlFlow::Continue(())
    });
    worked("edges_of_kind", walk)?;
    Ok(found)
}

fn behind(edges: &[(Ends, EdgeRow)], after: Option<Ends>) -> Vec<(Ends, EdgeRow)> {
    let behind = edges.iter().filter(|(ends, _)| after.is_none_or(|after| *ends > after));
    behind.cloned().collect()
}

/// Tallies, settings and groups of every node there could be.
fn nodes(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    let tallies = reference.tallies();
    for tenant in TENANTS {
        for (node_type, _) in reference.catalog.types(tenant) {
            let prefetched = snapshot.prefetch(&mut |wanted| {
                wanted.nodes.extend(IDS.map(|id| NodeKey { tenant, node_type, id }));
            });
            worked("prefetch", prefetched)?;
            for id in IDS {
                let node = NodeKey { tenant, node_type, id };
                let expected = tallies.get(&node).cloned().unwrap_or_default();
                let found = worked("tallies", snapshot.tallies(&node))?;
                same(&format!("tallies of {node:?}"), found, expected)?;
                let expected = reference.nodes.get(&node).copied().unwrap_or_default();
                let found = worked("node", snapshot.node(&node))?;
                same(&format!("settings of {node:?}"), found, expected)?;
            }
        }
    }
    for (tenant, kind) in reference.kinds() {
        for source in IDS.map(SourceId) {
            let kind = kind.id;
            let key = GroupsKey { tenant, kind, source };
            let found = worked("groups", snapshot.groups(&key))?;
            same(&format!("{key:?}"), found, reference.groups(&key))?;
        }
    }
    Ok(())
}

/// A key in its time must be there; one past it may be forgotten, but never answer with less than
/// the last use.
fn answers(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    for ((tenant, key), row) in &reference.answers {
        let found = worked("idempotency", snapshot.idempotency(*tenant, key))?;
        let forgettable = row.at.saturating_add(IDEMPOTENCY_TTL_MS) <= reference.commit;
        if found.is_some() || !forgettable {
            same(&format!("{key:?} of {tenant:?}"), found.as_ref(), Some(row))?;
        }
    }
    Ok(())
}

/// Whole kinds' groups and whole types' nodes, in order.
fn walks(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    for (tenant, kind) in reference.kinds() {
        let mut found = Vec::new();
        let walk = snapshot.groups_of_kind(tenant, kind.id, &mut |source, group| {
            found.push((source, group));
            ControlFlow::Continue(())
        });
        worked("groups of a kind", walk)?;
        let of_source = |source: SourceId| {
            let set = reference.groups(&GroupsKey { tenant, kind: kind.id, source });
            set.groups.into_iter().map(move |group| (source, group))
        };
        let expected: Vec<_> = IDS.map(SourceId).into_iter().flat_map(of_source).collect();
        same(&format!("groups of kind {}", kind.name), found, expected)?;
    }
    let tallies = reference.tallies();
    for tenant in TENANTS {
        for (node_type, _) in reference.catalog.types(tenant) {
            let mut found = Vec::new();
            let walk = snapshot.nodes_of_type(tenant, node_type, &mut |id, node| {
                found.push((id, node));
                ControlFlow::Continue(())
            });
            worked("nodes of a type", walk)?;
            let mut expected = Vec::new();
            for id in IDS {
                let key = NodeKey { tenant, node_type, id };
                let node = Node {
                    settings: reference.nodes.get(&key).copied().unwrap_or_default(),
                    tallies: tallies.get(&key).cloned().unwrap_or_default(),
                };
                if node != Node::default() {
                    expected.push((id, node));
                }
            }
            same(&format!("nodes of {node_type:?}"), found, expected)?;
        }
    }
    Ok(())
}

fn imports(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    for ((tenant, id), row) in &reference.imports {
        let found = worked("import", snapshot.import(*tenant, id))?;
        same(&format!("{id:?} of {tenant:?}"), found.as_ref(), Some(row))?;
    }
    Ok(())
}

fn jobs(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    for tenant in TENANTS {
        let walked = |before: Option<JobId>| {
            let mut found = Vec::new();
            let walk = snapshot.jobs(tenant, before, &mut |job| {
                found.push(job);
                ControlFlow::Continue(())
            });
            worked("jobs", walk).map(|()| found)
        };
        let found = walked(None)?;
        let jobs = reference.jobs.iter().rev();
        let expected = jobs.filter(|((of, _), _)| *of == tenant);
        let expected: Vec<_> = expected.map(|(_, job)| job.clone()).collect();
        same("jobs, the newest first", &found, &expected)?;
        for job in &expected {
            let found = worked("job", snapshot.job(tenant, job.id))?;
            same("a job by its id", found.as_ref(), Some(job))?;
            let older: Vec<_> = expected.iter().filter(|old| old.id < job.id).cloned().collect();
            same("jobs older than one", &walked(Some(job.id))?, &older)?;
        }
    }
    Ok(())
}

fn due(snapshot: &dyn Snapshot, reference: &ReferenceStore) -> Result<(), String> {
    let all = reference.due(TIME_MAX);
    let middle = all.get(all.len() / 2).map_or(Millis(0), |(at, _)| *at);
    for now in [Millis(0), middle, TIME_MAX] {
        let found = worked("due", snapshot.due(now, usize::MAX))?;
        check(found.is_sorted_by_key(|(at, _)| *at), "the longest overdue does not come first")?;
        let mut sorted = found.clone();
        sorted.sort();
        same(&format!("due at {now:?}"), sorted, reference.due(now))?;
        let few = worked("due", snapshot.due(now, 2))?;
        let first = &found[..found.len().min(2)];
        same("due, at most two", few.as_slice(), first)?;
    }
    Ok(())
}

fn timelines(taken: &TakenSnapshot, reference: &ReferenceStore) -> Result<(), String> {
    for (tenant, kind) in reference.kinds() {
        for direction in [Direction::Outgoing, Direction::Incoming] {
            for id in IDS {
                for state in [State::Live, State::Pending, State::Removed] {
                    let list = Timeline { tenant, kind: kind.id, direction, id, state };
                    timeline(taken, reference, kind, &list)?;
                }
            }
        }
    }
    Ok(())
}

fn timeline(
    taken: &TakenSnapshot,
    reference: &ReferenceStore,
    kind: &Kind,
    list: &Timeline,
) -> Result<(), String> {
    let snapshot = taken.rows();
    let expected = match taken {
        TakenSnapshot::Embedded(_) => reference.timeline(list),
        TakenSnapshot::Tables(_) => reference.edges_by_time(list),
    };
    if list.direction == Direction::Outgoing && kind.time_index == TimeIndex::Building {
        return half_built(snapshot, reference, list, &expected);
    }
    let middle = expected.get(expected.len() / 2).copied();
    let since = middle.map(|place| place.since);
    for order in [Order::Newest, Order::Oldest] {
        let whole = TimeRange { order, ..TimeRange::default() };
        let ranges = [
            whole,
            TimeRange { after: middle, ..whole },
            TimeRange { since, ..whole },
            TimeRange { until: since, ..whole },
        ];
        // Without a middle the list is empty and all four are one.
        let ranges = &ranges[..if middle.is_some() { 4 } else { 1 }];
        for range in ranges {
            let found = walk(snapshot, list, range)?;
            same(&format!("{list:?} {range:?}"), found, part(&expected, range))?;
        }
    }
    Ok(())
}

/// An index that a job still fills has nothing that the rows do not imply, and everything that the
/// job has passed.
fn half_built(
    snapshot: &dyn Snapshot,
    reference: &ReferenceStore,
    list: &Timeline,
    implied: &[PagePlace],
) -> Result<(), String> {
    let found = walk(snapshot, list, &TimeRange::default())?;
    let strange = found.iter().find(|place| !implied.contains(place));
    same("an entry without a row in a half-built index", strange, None)?;
    let passed = reference.index_job(list.tenant, list.kind).flatten();
    let done = |place: &&PagePlace| passed >= Some((SourceId(list.id), TargetId(place.id)));
    let missing = implied.iter().filter(done).find(|place| !found.contains(place));
    same("an edge that the job has passed and lost", missing, None)
}

pub fn walk(
    snapshot: &dyn Snapshot,
    list: &Timeline,
    range: &TimeRange,
) -> Result<Vec<PagePlace>, String> {
    let mut found = Vec::new();
    let walk = snapshot.timeline(list, range, &mut |place| {
        found.push(place);
        ControlFlow::Continue(())
    });
    worked("timeline", walk)?;
    Ok(found)
}
