//! What a line about an edge or a group sees: the edges and groups of its source and kind as the
//! lines before have left them, and which edges of other kinds stand in their way.

use std::sync::Arc;

use guanxi_core::snapshot::StoreError;
use guanxi_model::decide::Decided;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupSet, GroupsKey, Kind, KindId, Millis, NodeKey, NodeRow, Record,
    SourceId, State, TallyRow, TargetId, TenantId, Version, View, Which,
};
use rustc_hash::{FxHashMap, FxHashSet};

pub(super) struct SourceView<'a> {
    pub tenant: TenantId,
    pub catalog: &'a Catalog,
    pub kind: &'a Arc<Kind>,
    pub source: SourceId,
    pub edges: FxHashMap<TargetId, EdgeRow>,
    pub groups: GroupSet,
    pub excluded: FxHashSet<Excluder>,
    /// Whether the present line's target wants to be asked.
    pub target_private: bool,
}

/// An edge of another kind that stands between the source and a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Excluder {
    pub kind: KindId,
    pub node: u64,
    /// It leads from that node to the source.
    pub back: bool,
}

impl<'a> SourceView<'a> {
    pub fn new(
        tenant: TenantId,
        catalog: &'a Catalog,
        kind: &'a Arc<Kind>,
        source: SourceId,
    ) -> SourceView<'a> {
        SourceView {
            tenant,
            catalog,
            kind,
            source,
            edges: FxHashMap::default(),
            groups: GroupSet::default(),
            excluded: FxHashSet::default(),
            target_private: false,
        }
    }

    /// The same for another source, in the same room.
    pub fn begin(&mut self, source: SourceId) {
        self.source = source;
        self.edges.clear();
        self.excluded.clear();
        if self.groups != GroupSet::default() {
            self.groups = GroupSet::default();
        }
    }

    pub fn take(&mut self, decided: &Decided) {
        for record in &decided.records {
            match record {
                Record::Edge(record) => {
                    self.edges.insert(record.key.target, record.new.clone());
                }
                Record::Group { id, name, .. } => self.groups.set(*id, name.clone()),
                _ => {}
            }
        }
    }

    /// An edge of a kind that excludes this one came to stand: true where it removed an edge.
    pub fn exclude(&mut self, excluder: Excluder) -> bool {
        self.excluded.insert(excluder);
        self.edges.remove(&TargetId(excluder.node)).is_some()
    }

    pub fn key(&self, target: TargetId) -> EdgeKey {
        EdgeKey { tenant: self.tenant, kind: self.kind.id, source: self.source, target }
    }

    pub fn groups_key(&self) -> GroupsKey {
        GroupsKey { tenant: self.tenant, kind: self.kind.id, source: self.source }
    }
}

/// A live edge of which nobody asks more than that it stands.
const STANDING: EdgeRow = EdgeRow {
    version: Version::ZERO,
    state: State::Live,
    since: Millis(0),
    group: None,
    owner: None,
    data: None,
    expires_at: None,
};

impl View for SourceView<'_> {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        if key.kind == self.kind.id {
            return Ok(self.edges.get(&key.target).cloned());
        }
        if self.excluded.is_empty() {
            return Ok(None);
        }
        let excluder = match key.source == self.source {
            true => Excluder { kind: key.kind, node: key.target.0, back: false },
            false => Excluder { kind: key.kind, node: key.source.0, back: true },
        };
        Ok(self.excluded.contains(&excluder).then_some(STANDING))
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, StoreError> {
        let mut tallies = TallyRow::default();
        tallies.set(
            self.kind.id,
            Which::Outgoing,
            self.tally(node, self.kind.id, Which::Outgoing)?,
        );
        Ok(tallies)
    }

    /// Live and pending edges together count towards a limit, and nothing else asks.
    fn tally(&self, _: &NodeKey, _: KindId, which: Which) -> Result<i64, StoreError> {
        let counts = which == Which::Outgoing && self.kind.fixed.outgoing_tally;
        Ok(if counts { self.edges.len() as i64 } else { 0 })
    }

    fn groups(&self, _: &GroupsKey) -> Result<GroupSet, StoreError> {
        Ok(self.groups.clone())
    }

    /// Asked for the source, whose settings do not matter, and for the target.
    fn node(&self, _: &NodeKey) -> Result<NodeRow, StoreError> {
        Ok(NodeRow { private: self.target_private, erased_by: None })
    }

    fn idempotency(
        &self,
        _: TenantId,
        _: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        Ok(None)
    }

    fn import(&self, _: TenantId, _: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        Ok(None)
    }

    fn job(&self, _: TenantId, _: JobId) -> Result<Option<Job>, StoreError> {
        Ok(None)
    }
}
