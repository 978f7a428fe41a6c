//! A snapshot against plain rows: everything is there, and nothing else is.

use std::fmt::Debug;
use std::ops::ControlFlow;

use guanxi_core::snapshot::{Direction, Snapshot, StoreError, TimeRange, Timeline};
use guanxi_model::job::Job;
use guanxi_model::kind::TimeIndex;
use guanxi_model::limits::{IDEMPOTENCY_TTL_MS, TIME_MAX};
use guanxi_model::page::PagePlace;
use guanxi_model::{
    EdgeKey, EdgeRow, Ends, GroupsKey, Kind, KindId, Millis, NodeKey, NodeRow, SourceId, State,
    TallyRow, TargetId,
};
use rustc_hash::FxHashMap;

use super::requests::{IDS, TENANT};
use super::rows::ReferenceRows;

type ComparedList = (KindId, Direction, u64, State);

/// `commit` is the time of the last frame, by which idempotency keys are forgotten.
pub(super) fn compare(
    snapshot: &dyn Snapshot,
    rows: &ReferenceRows,
    commit: Millis,
) -> Result<(), String> {
    same(|| "catalog".into(), snapshot.catalog(), &rows.catalog)?;
    for kind in rows.catalog.kinds(TENANT) {
        let edges = rows.edges.iter().filter(|(key, _)| key.kind == kind.id);
        let expected: Vec<(Ends, EdgeRow)> =
            edges.map(|(key, row)| ((key.source, key.target), row.clone())).collect();
        let mut found = Vec::with_capacity(expected.len());
        let walk = snapshot.edges_of_kind(TENANT, kind.id, None, &mut |ends, row| {
            found.push((ends, row));
            ControlFlow::Continue(())
        });
        read(walk)?;
        same(|| format!("edges of {}", kind.name), &found, &expected)?;
        single_edges(snapshot, rows, kind.id)?;
    }
    expiries(snapshot, rows)?;
    nodes(snapshot, rows)?;
    idempotency(snapshot, rows, commit)?;
    imports(snapshot, rows)?;
    jobs(snapshot, rows)?;
    lists(snapshot, rows)
}

/// Every edge there could be, one by one.
fn single_edges(snapshot: &dyn Snapshot, rows: &ReferenceRows, kind: KindId) -> Result<(), String> {
    for (source, target) in IDS.into_iter().flat_map(|a| IDS.map(|b| (a, b))) {
        let key =
            EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) };
        let expected = rows.edges.get(&key);
        let found = read(snapshot.edge(&key))?;
        same(|| format!("{key:?}"), &found.as_ref(), &expected)?;
        let state = read(snapshot.edge_state(&key))?;
        same(|| format!("the state of {key:?}"), &state, &expected.map(|row| row.state))?;
    }
    Ok(())
}

fn expiries(snapshot: &dyn Snapshot, rows: &ReferenceRows) -> Result<(), String> {
    let edges = rows.edges.iter();
    let expiring = edges.filter_map(|(key, row)| row.expires_at.map(|at| (at, *key)));
    let mut expected: Vec<(Millis, EdgeKey)> = expiring.collect();
    expected.sort();
    let found = read(snapshot.due(TIME_MAX, usize::MAX))?;
    same(|| "what expires".to_owned(), &found, &expected)
}

/// Tallies, settings and groups of every node there could be.
fn nodes(snapshot: &dyn Snapshot, rows: &ReferenceRows) -> Result<(), String> {
    let tallies = rows.all_tallies();
    let (no_tallies, no_settings) = (TallyRow::default(), NodeRow::default());
    for (node_type, _) in rows.catalog.types(TENANT) {
        for id in IDS {
            let node = NodeKey { tenant: TENANT, node_type, id };
            let expected = tallies.get(&node).unwrap_or(&no_tallies);
            let found = read(snapshot.tallies(&node))?;
            same(|| format!("tallies of {node:?}"), &found, expected)?;
            let expected = rows.nodes.get(&node).unwrap_or(&no_settings);
            let found = read(snapshot.node(&node))?;
            same(|| format!("settings of {node:?}"), &found, expected)?;
        }
    }
    for kind in rows.catalog.kinds(TENANT) {
        for source in IDS.map(SourceId) {
            let key = GroupsKey { tenant: TENANT, kind: kind.id, source };
            let found = read(snapshot.groups(&key))?;
            same(|| format!("{key:?}"), &found, &rows.groups_of(&key))?;
        }
    }
    Ok(())
}

/// A key past its time may be forgotten, but never becomes another one's.
fn idempotency(
    snapshot: &dyn Snapshot,
    rows: &ReferenceRows,
    commit: Millis,
) -> Result<(), String> {
    for ((tenant, key), row) in &rows.idempotency {
        let found = read(snapshot.idempotency(*tenant, key))?;
        let forgotten = row.at.saturating_add(IDEMPOTENCY_TTL_MS) <= commit;
        if !(found.is_none() && forgotten) {
            same(|| format!("{key:?}"), &found.as_ref(), &Some(row))?;
        }
    }
    Ok(())
}

fn imports(snapshot: &dyn Snapshot, rows: &ReferenceRows) -> Result<(), String> {
    for ((tenant, id), row) in &rows.imports {
        let found = read(snapshot.import(*tenant, id))?;
        same(|| format!("{id:?}"), &found.as_ref(), &Some(row))?;
    }
    Ok(())
}

fn jobs(snapshot: &dyn Snapshot, rows: &ReferenceRows) -> Result<(), String> {
    let mut found: Vec<Job> = Vec::new();
    let walk = snapshot.jobs(TENANT, None, &mut |job| {
        found.push(job);
        ControlFlow::Continue(())
    });
    read(walk)?;
    let expected: Vec<Job> = rows.jobs.values().rev().cloned().collect();
    same(|| "jobs".to_owned(), &found, &expected)
}

/// The lists by time, as their indexes have them.
fn lists(snapshot: &dyn Snapshot, rows: &ReferenceRows) -> Result<(), String> {
    let mut expected: FxHashMap<ComparedList, Vec<PagePlace>> = FxHashMap::default();
    for (key, row) in &rows.edges {
        let (since, state) = (row.since, row.state);
        let mut enter = |direction, whose, id| {
            let list = expected.entry((key.kind, direction, whose, state));
            list.or_default().push(PagePlace { since, id });
        };
        enter(Direction::Outgoing, key.source.0, key.target.0);
        enter(Direction::Incoming, key.target.0, key.source.0);
    }
    for places in expected.values_mut() {
        places.sort();
        places.reverse();
    }
    for kind in rows.catalog.kinds(TENANT) {
        if kind.fixed.counter {
            continue;
        }
        for direction in [Direction::Outgoing, Direction::Incoming] {
            for id in IDS {
                for state in [State::Live, State::Pending] {
                    let list = (kind.id, direction, id, state);
                    let expected = expected.get(&list).map_or(&[][..], Vec::as_slice);
                    compare_list(snapshot, rows, kind, list, expected)?;
                }
            }
        }
    }
    Ok(())
}

fn compare_list(
    snapshot: &dyn Snapshot,
    rows: &ReferenceRows,
    kind: &Kind,
    list: ComparedList,
    expected: &[PagePlace],
) -> Result<(), String> {
    let (_, direction, id, state) = list;
    let timeline = Timeline { tenant: TENANT, kind: kind.id, direction, id, state };
    let mut found: Vec<PagePlace> = Vec::new();
    let walk = snapshot.timeline(&timeline, &TimeRange::default(), &mut |place| {
        found.push(place);
        ControlFlow::Continue(())
    });
    read(walk)?;
    let what = || format!("list {direction:?} of {id}, {}, {}", kind.name, state.name());
    match direction {
        Direction::Incoming if kind.fixed.incoming_list => same(what, &found[..], expected),
        Direction::Incoming => same(what, &found[..], &[]),
        Direction::Outgoing => match kind.time_index {
            TimeIndex::Absent => same(what, &found[..], &[]),
            TimeIndex::Ready => same(what, &found[..], expected),
            // Nothing but edges that stand, and all that the job has passed.
            TimeIndex::Building => {
                let built = rows.index_built(kind.id).flatten();
                let passed = |place: &PagePlace| {
                    built.is_some_and(|(source, target)| (id, place.id) <= (source.0, target.0))
                };
                let missing = |place: &&PagePlace| passed(place) && !found.contains(place);
                match found.iter().all(|place| expected.contains(place))
                    && expected.iter().find(missing).is_none()
                {
                    true => Ok(()),
                    false => same(what, &found[..], expected),
                }
            }
        },
    }
}

fn read<T>(read: Result<T, StoreError>) -> Result<T, String> {
    read.map_err(|error| error.to_string())
}

/// Whether the two are equal, and otherwise what is not.
pub(super) fn same<T: PartialEq + Debug + ?Sized>(
    what: impl FnOnce() -> String,
    found: &T,
    expected: &T,
) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    let what = what();
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}
