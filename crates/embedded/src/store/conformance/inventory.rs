//! What lies in a store against the reference: edges, entries, nodes and groups, each once, and
//! nothing else.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use guanxi_model::entry::entries;
use guanxi_model::kind::TimeIndex;
use guanxi_model::{Index, Node, NodeKey};

use super::reference::ReferenceStore;
use super::{check, same, worked};
use crate::store::EmbeddedSnapshot;
use crate::store::inventory::{EDGES, InventoryPiece};

/// Few, so that a walk is taken up again at every sort of key.
const STEP: usize = 3;

pub fn compare(snapshot: &dyn EmbeddedSnapshot, reference: &ReferenceStore) -> Result<(), String> {
    let mut found = walked(snapshot)?;
    let mut expected = numbers(reference);
    for (key, row) in &reference.edges {
        expected.push(InventoryPiece::Edge(*key, row.clone()));
        let Some(kind) = reference.catalog.kind(key.tenant, key.kind) else { continue };
        for entry in entries(kind, key, Some(row)) {
            let outgoing = matches!(entry.index, Index::Outgoing { .. });
            // A job may not have come to it yet; `compare` has the rules for that.
            if outgoing && kind.time_index == TimeIndex::Building {
                found.retain(|kept| *kept != InventoryPiece::Entry(entry));
                continue;
            }
            let held = worked("holds", snapshot.holds(&entry))?;
            check(held, "an entry that its row implies is not held")?;
            expected.push(InventoryPiece::Entry(entry));
        }
    }
    let shown = |all: &[InventoryPiece]| {
        let mut shown: Vec<String> = all.iter().map(|kept| format!("{kept:?}")).collect();
        shown.sort();
        shown
    };
    same("the inventory", shown(&found), shown(&expected))
}

/// The whole walk, a step at a time, as audits do it.
fn walked(snapshot: &dyn EmbeddedSnapshot) -> Result<Vec<InventoryPiece>, String> {
    let mut found = Vec::new();
    let mut last = EDGES.to_vec();
    loop {
        let (begun, after) = (found.len(), last.clone());
        let walk = snapshot.inventory(&after, &mut |key, kept| {
            last = key.to_vec();
            found.push(kept);
            match found.len() < begun + STEP {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        worked("inventory", walk)?;
        if found.len() == begun {
            return Ok(found);
        }
        check(last > after, "a walk goes back")?;
    }
}

/// Nodes and groups.
fn numbers(reference: &ReferenceStore) -> Vec<InventoryPiece> {
    let mut nodes: BTreeMap<NodeKey, Node> = BTreeMap::new();
    for (key, tallies) in reference.tallies() {
        nodes.entry(key).or_default().tallies = tallies;
    }
    for (key, settings) in &reference.nodes {
        nodes.entry(*key).or_default().settings = *settings;
    }
    nodes.retain(|_, node| *node != Node::default());
    let nodes = nodes.into_iter().map(|(key, node)| InventoryPiece::Node(key, node));
    let groups = reference.group_sets().flat_map(|(key, set)| {
        set.groups.into_iter().map(move |group| InventoryPiece::Group(key, group))
    });
    nodes.chain(groups).collect()
}
