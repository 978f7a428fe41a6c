//! Readers beside the writer: whatever moment they catch, they see whole batches.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_core::snapshot::{Direction, Snapshot, TimeRange, Timeline};
use guanxi_model::change::{CounterDelta, KindSpec, Put};
use guanxi_model::{
    Change, EdgeKey, KindId, KindName, NodeKey, NodeTypeId, SourceId, State, TargetId, TenantId,
    Which,
};

use super::compare::walk;
use super::history::{Scribe, StoreBatch};
use super::{Subject, check, same, worked};

const BATCHES: u64 = 400;
const READERS: usize = 2;
/// Every so many batches also make a kind.
const KIND_STRIDE: u64 = 4;
const TENANT: TenantId = TenantId::DEFAULT;
const SOURCE: u64 = 1;

/// What moves: each batch takes the one like from its post and gives it to the next, and counts.
#[derive(Debug, Clone, Copy)]
struct MovingLike {
    like: KindId,
    counter: KindId,
    user: NodeTypeId,
    post: NodeTypeId,
}

pub fn whole_batches(store: &Subject) -> Result<(), String> {
    let (moving, batches) = batches()?;
    let write = |batch: &StoreBatch| worked("write", store.write(&batch.dirty, batch.applied));
    // Readers look for the edge from the first moment on.
    let (kinds_and_edge, rest) = batches.split_at(2);
    kinds_and_edge.iter().try_for_each(write)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..READERS).map(|_| scope.spawn(|| watch(store, moving, &done))).collect();
        let written = rest.iter().try_for_each(write);
        done.store(true, Ordering::Release);
        for reader in readers {
            reader.join().map_err(|_| "a reader panicked".to_owned())??;
        }
        written
    })
}

/// Reads until the writer is done, and once after.
fn watch(store: &Subject, moving: MovingLike, done: &AtomicBool) -> Result<(), String> {
    let mut last = 0;
    loop {
        let was_done = done.load(Ordering::Acquire);
        let at = moment(store.snapshot().as_ref(), moving)?;
        check(at >= last, "a later snapshot shows an earlier moment")?;
        last = at;
        if was_done {
            return same("the last moment", last, BATCHES);
        }
    }
}

/// The number of batches that a snapshot shows, by every way to tell it.
fn moment(snapshot: &dyn Snapshot, moving: MovingLike) -> Result<u64, String> {
    let mut edges = Vec::new();
    let (source, like) = (SourceId(SOURCE), moving.like);
    let walked = snapshot.edges_of_source(TENANT, like, source, None, &mut |target, _| {
        edges.push(target);
        ControlFlow::Continue(())
    });
    worked("edges_of_source", walked)?;
    let [TargetId(at)] = edges[..] else {
        return Err(format!("one edge moves, but these stand: {edges:?}"));
    };
    let list =
        |direction, id| Timeline { tenant: TENANT, kind: like, direction, id, state: State::Live };
    let ids = |list| -> Result<Vec<u64>, String> {
        let places = walk(snapshot, &list, &TimeRange::default())?;
        Ok(places.iter().map(|place| place.id).collect())
    };
    let node = |node_type, id| NodeKey { tenant: TENANT, node_type, id };
    let tally = |node, kind, which| -> Result<i64, String> {
        Ok(worked("tallies", snapshot.tallies(&node))?.get(kind, which))
    };
    same("outgoing", ids(list(Direction::Outgoing, SOURCE))?, vec![at])?;
    same("incoming", ids(list(Direction::Incoming, at))?, vec![SOURCE])?;
    same("left", ids(list(Direction::Incoming, at - 1))?, vec![])?;
    for (target, stands) in [(at - 1, false), (at, true), (at + 1, false)] {
        let edge = edge(like, target);
        let row = worked("edge", snapshot.edge(&edge))?;
        same("the edge", row.map(|row| row.state), stands.then_some(State::Live))?;
        let state = worked("edge_state", snapshot.edge_state(&edge))?;
        same("the edge's state", state, stands.then_some(State::Live))?;
    }
    let outgoing = tally(node(moving.user, SOURCE), like, Which::Outgoing)?;
    same("outgoing tally", outgoing, 1)?;
    let incoming = tally(node(moving.post, at), like, Which::Incoming)?;
    same("incoming tally", incoming, 1)?;
    let left = tally(node(moving.post, at - 1), like, Which::Incoming)?;
    same("incoming tally where it left", left, 0)?;
    let counter = tally(node(moving.post, SOURCE), moving.counter, Which::Value)?;
    same("counter", counter, at as i64)?;
    let made = snapshot.catalog().find(TENANT, &kind_name(at)).is_some();
    check(made, "a batch's kind is not there with its rows")?;
    let next = kind_name(at + KIND_STRIDE);
    let early = snapshot.catalog().find(TENANT, &next).is_some();
    check(!early, "a kind is there before its batch's rows")?;
    Ok(at)
}

fn batches() -> Result<(MovingLike, Vec<StoreBatch>), String> {
    let (mut scribe, kinds) = Scribe::new()?;
    let like = scribe.kind("like")?;
    let moving = MovingLike {
        like: like.id,
        counter: scribe.kind("view")?.id,
        user: like.fixed.source_type,
        post: like.fixed.target_type,
    };
    let mut batches = vec![kinds];
    for at in 1..=BATCHES {
        scribe.clock.advance(at % 2);
        let (left, entered) = (edge(like.id, at - 1), edge(like.id, at));
        let mut changes = vec![
            Change::Delete { edge: left, strict: false },
            Change::Put(Put::plain(entered)),
            Change::Count(CounterDelta {
                tenant: TENANT,
                kind: moving.counter,
                id: SOURCE,
                delta: 1,
                key: None,
            }),
        ];
        if at == 1 || at % KIND_STRIDE == 0 {
            changes.push(create_kind(&kind_name(at))?);
        }
        batches.push(scribe.write(changes)?);
    }
    Ok((moving, batches))
}

fn edge(kind: KindId, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(SOURCE), target: TargetId(target) }
}

/// The kind that came last when the edge was at this post.
fn kind_name(at: u64) -> String {
    format!("kind{}", at / KIND_STRIDE)
}

fn create_kind(name: &str) -> Result<Change, String> {
    let named = |name| KindName::new(name).map_err(|error| error.to_string());
    let spec = KindSpec::edges(named(name)?, named("user")?, named("user")?);
    Ok(Change::CreateKind { tenant: TENANT, spec: Box::new(spec) })
}
