//! Passes over random histories, in one picture and in slices along the log, and over planted drift.

use guanxi_model::codec::decode_record;
use guanxi_model::{EdgeKey, EdgeRow, IndexEntry, NodeKey};

use super::*;
use crate::overlay::Dirty;
use crate::store::conformance::random_history;
use crate::store::memory::MemoryBackend;
use crate::store::{EmbeddedStore, KeyedStore, Store};

type MemoryStore = KeyedStore<MemoryBackend>;
/// What stands, or could stand, in an index for a row.
type IndexOf = fn(&EdgeRow) -> Option<Index>;

fn empty() -> MemoryStore {
    KeyedStore::open(MemoryBackend::default()).unwrap()
}

fn whole_pass(store: &MemoryStore) -> AuditPass {
    let snapshot = store.picture();
    let mut pass = AuditPass::new(None, snapshot.catalog());
    while !pass.is_done() {
        pass.take(snapshot.as_ref(), 7).unwrap();
    }
    pass
}

fn some_edge(
    store: &MemoryStore,
    wanted: impl Fn(&EdgeKey, &EdgeRow) -> bool,
) -> (EdgeKey, EdgeRow) {
    let mut found = None;
    let walk = store.picture().inventory(inventory::EDGES, &mut |_, kept| match kept {
        InventoryPiece::Edge(edge, row) if wanted(&edge, &row) => {
            found = Some((edge, row));
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    });
    walk.unwrap();
    found.expect("such an edge")
}

#[test]
fn a_history_leaves_no_drift() {
    for seed in 1..=4 {
        let store = empty();
        for (number, batch) in random_history(seed, 150).unwrap().iter().enumerate() {
            store.write(&batch.dirty, batch.applied).unwrap();
            if number % 10 == 0 {
                assert!(whole_pass(&store).is_clean(), "seed {seed}, batch {number}");
            }
        }
    }
}

/// Slices of every size between batches, each from a later picture than the one before.
#[test]
fn a_pass_that_follows_the_log_sees_no_false_drift() {
    let mut ended = 0;
    for seed in 1..=6 {
        for slice in [1, 2, 5, 20] {
            let store = empty();
            let mut pass = AuditPass::new(None, &store.catalog());
            for (number, batch) in random_history(seed, 250).unwrap().iter().enumerate() {
                store.write(&batch.dirty, batch.applied).unwrap();
                let catalog = store.catalog();
                let followed = batch.frame.records.iter().try_for_each(|encoded| {
                    pass.follow(&decode_record(encoded).unwrap(), &catalog)
                });
                if followed.is_err() {
                    pass = AuditPass::new(None, &catalog);
                    continue;
                }
                pass.take(store.picture().as_ref(), slice).unwrap();
                if pass.is_done() {
                    assert!(pass.is_clean(), "seed {seed}, slices of {slice}, batch {number}");
                    ended += 1;
                    pass = AuditPass::new(None, &catalog);
                }
            }
        }
    }
    assert!(ended > 50, "only {ended} passes came to their end");
}

#[test]
fn each_sort_of_drift_is_seen() {
    let history = random_history(5, 150).unwrap();
    let grown = || {
        let store = empty();
        history.iter().for_each(|batch| store.write(&batch.dirty, batch.applied).unwrap());
        store
    };
    let entry_of = |store: &MemoryStore, index: IndexOf, listed: bool| {
        let catalog = store.catalog();
        let (edge, row) = some_edge(store, |edge, row| {
            let kind = catalog.kind(edge.tenant, edge.kind).unwrap();
            let mut implied = entries(kind, edge, Some(row)).map(|entry| Some(entry.index));
            let steady = kind.time_index != TimeIndex::Building;
            steady && index(row).is_some() && implied.any(|implied| implied == index(row)) == listed
        });
        IndexEntry { edge, index: index(&row).unwrap() }
    };
    let incoming = |row: &EdgeRow| Some(Index::Incoming { state: row.state, since: row.since });
    let outgoing = |row: &EdgeRow| Some(Index::Outgoing { state: row.state, since: row.since });
    let expiry = |row: &EdgeRow| row.expires_at.map(|at| Index::Expiry { at });
    let late = |row: &EdgeRow| row.expires_at.map(|at| Index::Expiry { at: at.saturating_add(1) });
    let cases: [(IndexOf, bool); 6] = [
        (incoming, true),
        (incoming, false),
        (outgoing, true),
        (outgoing, false),
        (expiry, true),
        (late, false),
    ];
    for (number, (index, listed)) in cases.into_iter().enumerate() {
        let store = grown();
        let entry = entry_of(&store, index, listed);
        store.plant_entry(&entry, !listed).unwrap();
        assert!(!whole_pass(&store).is_clean(), "case {number}");
        // Whoever writes it back leaves nothing wrong.
        store.plant_entry(&entry, listed).unwrap();
        assert!(whole_pass(&store).is_clean(), "case {number}");
    }
    for which in Which::ALL.into_iter().filter(|which| *which != Which::Value) {
        let store = grown();
        let (edge, _) = some_edge(&store, |_, _| true);
        let catalog = store.catalog();
        let node_type = catalog.kind(edge.tenant, edge.kind).unwrap().fixed.source_type;
        let node = NodeKey { tenant: edge.tenant, node_type, id: edge.source.0 };
        store.plant_tally(&node, edge.kind, which, 1).unwrap();
        assert!(!whole_pass(&store).is_clean(), "{which:?}");
    }
    let store = grown();
    let (edge, _) = some_edge(&store, |_, _| true);
    store.plant_unreadable_edge(&edge).unwrap();
    assert!(!whole_pass(&store).is_clean());
}

/// A repair of a missing entry, and of one too many, puts the store right.
#[test]
fn repaired_entries_are_there_or_not() {
    let store = empty();
    let history = random_history(5, 150).unwrap();
    history.iter().for_each(|batch| store.write(&batch.dirty, batch.applied).unwrap());
    let (edge, row) = some_edge(&store, |edge, _| edge.kind == KindId(1));
    let (state, since) = (row.state, row.since);
    let missing = IndexEntry { edge, index: Index::Incoming { state, since } };
    let surplus =
        IndexEntry { edge, index: Index::Incoming { state, since: since.saturating_add(1) } };
    store.plant_entry(&missing, false).unwrap();
    store.plant_entry(&surplus, true).unwrap();
    assert!(!whole_pass(&store).is_clean());
    let mut dirty = Dirty::default();
    dirty.repaired.insert(missing, true);
    dirty.repaired.insert(surplus, false);
    store.write(&dirty, store.applied()).unwrap();
    assert!(whole_pass(&store).is_clean());
}
