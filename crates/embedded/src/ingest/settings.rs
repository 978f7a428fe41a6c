//! Nodes' settings as they were at each line: an edge that does not say its state waits where its
//! target was private by then.

use std::sync::Arc;

use guanxi_model::{Change, Kind, NodeKey, NodeTypeId};

use super::IngestError;
use super::line::LinePlace;

/// Whether nodes are private, in the order of nodes and lines.
#[derive(Debug)]
pub(super) struct SettingsInTime {
    /// Of these types there are edges that wait.
    types: Vec<NodeTypeId>,
    changes: Vec<PrivateFrom>,
    bytes_max: usize,
}

#[derive(Debug, Clone, Copy)]
struct PrivateFrom {
    node: (NodeTypeId, u64),
    place: LinePlace,
    private: bool,
}

impl SettingsInTime {
    pub fn new<'a>(kinds: impl Iterator<Item = &'a Arc<Kind>>, bytes_max: usize) -> SettingsInTime {
        let waiting = kinds.filter(|kind| kind.rules.approval);
        let types = waiting.map(|kind| kind.fixed.target_type).collect();
        SettingsInTime { types, changes: Vec::new(), bytes_max }
    }

    /// A node's line was taken; those of a node come one after the other, in order.
    pub fn note(&mut self, change: &Change, place: LinePlace) -> Result<(), IngestError> {
        let Change::SetNode { node, private: Some(private) } = change else { return Ok(()) };
        let node = (node.node_type, node.id);
        let last = self.changes.last().filter(|last| last.node == node);
        let stands = last.is_some_and(|last| last.private);
        if *private == stands || !self.types.contains(&node.0) {
            return Ok(());
        }
        if self.changes.len() * size_of::<PrivateFrom>() >= self.bytes_max {
            return Err(IngestError::TooManySettings(self.changes.len()));
        }
        self.changes.push(PrivateFrom { node, place, private: *private });
        Ok(())
    }

    /// Whether the edge that a line asks for has to wait for its target.
    pub fn asked(&self, kind: &Kind, change: &Change, place: LinePlace) -> bool {
        let Change::ImportEdge(line) = change else { return false };
        if self.changes.is_empty() || !kind.rules.approval || line.state.is_some() {
            return false;
        }
        let key = line.put.edge;
        let target =
            NodeKey { tenant: key.tenant, node_type: kind.fixed.target_type, id: key.target.0 };
        self.is_private(&target, place)
    }

    fn is_private(&self, node: &NodeKey, place: LinePlace) -> bool {
        let node = (node.node_type, node.id);
        let before =
            self.changes.partition_point(|change| (change.node, change.place) < (node, place));
        let last = before.checked_sub(1).map(|at| self.changes[at]);
        last.is_some_and(|last| last.node == node && last.private)
    }
}
