//! Reads that must do without the database: what is at hand is shown as it is, and what is lacking
//! as if it were not there (no edge, no group, 0). The snapshot notes which kinds that concerned,
//! so that whoever answers can say so, or refuse.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use guanxi_core::snapshot::Wanted;
use guanxi_model::{Kind, KindId};

use super::SqlSnapshot;

/// What a read was told by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Defaulted {
    /// Kinds of edges, groups and tallies of targets.
    kinds: Vec<KindId>,
    /// Whole nodes, which have numbers of every kind.
    nodes: bool,
}

impl Defaulted {
    /// Whether everything that was read is so.
    pub fn is_nothing(&self) -> bool {
        !self.nodes && self.kinds.is_empty()
    }

    pub fn concerns(&self, kind: &Kind) -> bool {
        self.nodes || self.kinds.contains(&kind.id)
    }

    fn add(&mut self, wanted: &Wanted) {
        let tallied = if wanted.targets.is_empty() { &[][..] } else { &wanted.kinds };
        let edges = wanted.edges.iter().map(|key| key.kind);
        let groups = wanted.groups.iter().map(|key| key.kind);
        for kind in edges.chain(groups).chain(tallied.iter().copied()) {
            if !self.kinds.contains(&kind) {
                self.kinds.push(kind);
            }
        }
        self.nodes |= !wanted.nodes.is_empty();
    }
}

/// The note that a snapshot writes and its maker reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct DefaultsNote(Arc<Mutex<Defaulted>>);

impl DefaultsNote {
    fn lock(&self) -> MutexGuard<'_, Defaulted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn taken(&self) -> Defaulted {
        self.lock().clone()
    }
}

impl SqlSnapshot {
    /// Asks the database nothing, and shows what it lacks as if it were not there.
    pub(crate) fn or_defaults(self, note: &DefaultsNote) -> SqlSnapshot {
        let mut snapshot = self.at_hand();
        snapshot.defaults = Some(note.clone());
        snapshot
    }

    /// Whether this is shown by default, because it is not at hand and is not to be asked for.
    pub(super) fn is_defaulted(&self, wanted: &Wanted) -> bool {
        let Some(note) = &self.defaults else {
            return false;
        };
        note.lock().add(wanted);
        true
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::kind::{FixedRules, Rules, TimeIndex};
    use guanxi_model::{
        EdgeKey, GroupsKey, KindName, NodeKey, NodeTypeId, SourceId, TargetId, TenantId,
    };

    use super::*;

    const TENANT: TenantId = TenantId::DEFAULT;
    const NODE: NodeKey = NodeKey { tenant: TENANT, node_type: NodeTypeId(1), id: 7 };

    fn kind(id: u16) -> Kind {
        Kind {
            id: KindId(id),
            name: KindName::new("some").unwrap(),
            fixed: FixedRules {
                source_type: NODE.node_type,
                target_type: NODE.node_type,
                counter: false,
                reconciled: false,
                owner_type: None,
                outgoing_list: true,
                incoming_list: true,
                outgoing_tally: true,
                incoming_tally: true,
            },
            rules: Rules::default(),
            time_index: TimeIndex::Absent,
        }
    }

    #[test]
    fn each_default_concerns_its_kinds() {
        let (kinds, source) = (vec![KindId(3), KindId(4)], SourceId(1));
        let edge = EdgeKey { tenant: TENANT, kind: KindId(1), source, target: TargetId(2) };
        let groups = GroupsKey { tenant: TENANT, kind: KindId(2), source };
        for (wanted, concerned) in [
            (Wanted { edges: vec![edge], ..Wanted::default() }, &[1][..]),
            (Wanted { groups: vec![groups], ..Wanted::default() }, &[2]),
            (Wanted { targets: vec![NODE], kinds: kinds.clone(), ..Wanted::default() }, &[3, 4]),
            (Wanted { nodes: vec![NODE], ..Wanted::default() }, &[1, 2, 3, 4, 5]),
            // Kinds alone are no rows.
            (Wanted { kinds, ..Wanted::default() }, &[]),
        ] {
            let mut defaulted = Defaulted::default();
            defaulted.add(&wanted);
            let found: Vec<u16> = (1..=5).filter(|id| defaulted.concerns(&kind(*id))).collect();
            assert_eq!(found, concerned, "{wanted:?}");
            assert_eq!(defaulted.is_nothing(), concerned.is_empty());
        }
    }
}
