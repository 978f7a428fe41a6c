//! One look at everything: range by range, each in a picture of its own. What the source's side
//! and the tallies say is compared exactly; where the target's rows lag behind, a difference is
//! only suspected, and counts when it still stands after a barrier.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use guanxi_core::audit::{AuditError, AuditFinding, AuditWatch, Drift, Findings, OfKind};
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{
    Catalog, Change, EdgeKey, EdgeRow, GroupId, Index, IndexEntry, Kind, KindId, Millis, NodeKey,
    TenantId, Version, Which, places,
};

use super::AuditParts;
use super::mend::Mend;
use crate::rows::HeadKey;

/// Rows of one statement.
pub(super) const PAGE_ROWS: usize = 2_000;
/// Rows of one picture, and then on to the end of the source or target.
pub(super) const STRETCH_ROWS: usize = 20_000;
/// Mends that one look remembers; what is beyond is counted, and left to the next look.
const MENDS_MAX: usize = 100_000;
/// Wrong edges that one look remembers. With more, the target's side is past mending edge by edge
/// at once: the look ends, and the next one goes on after the repair.
const WRONG_MAX: usize = 1_000_000;
/// Suspects that wait for one barrier together.
const SUSPECTS_MAX: usize = 10_000;

/// A number of the target's side: a tally in its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number {
    pub node: NodeKey,
    pub kind: KindId,
    pub slot: u16,
    pub which: Which,
}

/// An edge whose incoming row is not what its outgoing row says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suspect {
    pub edge: EdgeKey,
    /// The outgoing row's, when it was looked at; none without a row.
    pub version: Option<Version>,
}

pub(super) struct SqlLook<'a> {
    pub parts: &'a AuditParts,
    pub catalog: Arc<Catalog>,
    watch: &'a AuditWatch,
    /// Rows in a second; as fast as it goes without.
    rate: Option<u64>,
    pub findings: Findings,
    pub mends: Vec<Mend>,
    pub suspects: Vec<Suspect>,
    /// Edges that were found wrong, each once.
    pub wrong: HashSet<EdgeKey>,
    /// What each tally has more than the incoming rows say.
    pub surplus: HashMap<Number, i64>,
    /// What the incoming rows lack of the truth, by tally.
    pub lack: HashMap<Number, i64>,
}

impl<'a> SqlLook<'a> {
    pub fn new(parts: &'a AuditParts, watch: &'a AuditWatch, rate: Option<u64>) -> SqlLook<'a> {
        SqlLook {
            parts,
            catalog: parts.catalog.current(),
            watch,
            rate,
            findings: Findings::default(),
            mends: Vec::new(),
            suspects: Vec::new(),
            wrong: HashSet::new(),
            surplus: HashMap::new(),
            lack: HashMap::new(),
        }
    }

    pub fn take(mut self, only: Option<OfKind>) -> Result<SqlLook<'a>, AuditError> {
        let catalog = self.catalog.clone();
        let mut tenants: Vec<TenantId> = catalog.tenants().collect();
        tenants.sort_unstable();
        for tenant in tenants {
            for kind in catalog.kinds(tenant).filter(|kind| !kind.fixed.counter) {
                if only.is_some_and(|only| only != (tenant, kind.id)) || self.is_full() {
                    continue;
                }
                self.findings.of(Some((tenant, kind.id)));
                self.sources(tenant, kind)?;
                self.targets(tenant, kind)?;
                self.owners(tenant, kind)?;
            }
        }
        self.expiries(only)?;
        self.confirm()?;
        if self.is_full() {
            tracing::error!("more is wrong than one audit remembers; repair, then audit again");
        } else {
            self.weigh_tallies();
        }
        Ok(self)
    }

    pub fn is_full(&self) -> bool {
        self.wrong.len() >= WRONG_MAX
    }

    /// Notes rows that were read, and keeps the pace.
    pub fn pace(&self, rows: usize) -> Result<(), AuditError> {
        self.watch.rows(rows as u64)?;
        if let Some(rate) = self.rate {
            let pause = Duration::from_secs_f64(rows as f64 / rate.max(1) as f64);
            if self.watch.wait(pause) {
                return Err(AuditError::Stopped);
            }
        }
        Ok(())
    }

    /// Notes rows of a picture that must not grow old, at no pace.
    pub fn watch_rows(&self, rows: usize) -> Result<(), AuditError> {
        self.watch.rows(rows as u64)
    }

    pub fn is_stopped(&self) -> bool {
        self.watch.is_stopped()
    }

    pub fn note(&mut self, kind: OfKind, drift: Drift, mend: Change) {
        self.findings.note(&AuditFinding { kind, drift, mend }, &self.catalog);
    }

    pub fn mend(&mut self, mend: Mend) {
        if self.mends.len() < MENDS_MAX {
            self.mends.push(mend);
        }
    }

    /// Many suspects are settled at once, so that they never fill the memory.
    pub fn suspect(&mut self, suspects: Vec<Suspect>) -> Result<(), AuditError> {
        self.suspects.extend(suspects);
        match self.suspects.len() < SUSPECTS_MAX {
            true => Ok(()),
            false => self.confirm(),
        }
    }

    pub fn wrong_head(&mut self, head: HeadKey, kind: &Kind, which: Which, delta: i64) {
        let node_type = kind.fixed.source_type;
        let node = NodeKey { tenant: head.tenant, node_type, id: head.source.0 };
        let mend = Change::RepairTally { node, kind: kind.id, which, delta };
        self.note((head.tenant, kind.id), Drift::WrongTally, mend);
    }

    pub fn wrong_group(&mut self, groups: HeadKey, id: GroupId, delta: i64) {
        let change = Change::RepairGroupSize { groups, id, delta };
        self.note((groups.tenant, groups.kind), Drift::WrongGroupSize, change);
        self.mend(Mend::GroupSize { groups, id, delta });
    }

    pub fn missing_expiry(&mut self, edge: EdgeKey, at: Millis) {
        let entry = IndexEntry { edge, index: Index::Expiry { at } };
        let change = Change::RepairEntry { entry };
        self.note((edge.tenant, edge.kind), Drift::MissingExpiry, change);
        self.mend(Mend::Expiry { edge, at });
    }

    /// The incoming row is not what the outgoing one says, and no record is on its way.
    pub fn wrong_row(&mut self, edge: EdgeKey, truth: Option<&EdgeRow>, found: Option<&EdgeRow>) {
        let of_kind = (edge.tenant, edge.kind);
        let Some(kind) = self.catalog.kind(edge.tenant, edge.kind).cloned() else {
            return;
        };
        if !self.wrong.insert(edge) {
            return;
        }
        for (row, drift) in [(truth, Drift::MissingIncoming), (found, Drift::SurplusIncoming)] {
            if let Some(row) = row.filter(|row| row.stands()) {
                let index = Index::Incoming { state: row.state, since: row.since };
                let entry = IndexEntry { edge, index };
                self.note(of_kind, drift, Change::RepairEntry { entry });
            }
        }
        let partitions = self.parts.partitions;
        for number in numbers(&kind, &edge, truth, partitions) {
            *self.lack.entry(number).or_default() += 1;
        }
        for number in numbers(&kind, &edge, found, partitions) {
            *self.lack.entry(number).or_default() -= 1;
        }
        self.mend(Mend::Row(edge));
    }

    /// A tally is wrong by what it has more than its rows say, less what its rows lack.
    fn weigh_tallies(&mut self) {
        let surplus: Vec<(Number, i64)> = self.surplus.drain().collect();
        for (number, surplus) in surplus {
            self.mend(Mend::Tally { number, delta: -surplus });
            *self.lack.entry(number).or_default() -= surplus;
        }
        let mut wrong: Vec<(Number, i64)> =
            self.lack.drain().filter(|(_, delta)| *delta != 0).collect();
        wrong.sort_unstable();
        for (Number { node, kind, which, .. }, delta) in wrong {
            let mend = Change::RepairTally { node, kind, which, delta };
            self.note((node.tenant, kind), Drift::WrongTally, mend);
        }
    }
}

/// Whether the incoming row shows what the outgoing one says. Tombstones may go on either side
/// before the other.
pub(super) fn agree(outgoing: Option<&EdgeRow>, incoming: Option<&EdgeRow>) -> bool {
    let stands = |row: &&EdgeRow| row.stands();
    match (outgoing.filter(stands), incoming.filter(stands)) {
        (None, None) => true,
        (Some(truth), Some(found)) => {
            truth.version == found.version
                && truth.state == found.state
                && truth.since == found.since
                && truth.owner == found.owner
        }
        _ => false,
    }
}

/// The numbers of the target's side that this row adds one to.
pub(super) fn numbers(
    kind: &Kind,
    edge: &EdgeKey,
    row: Option<&EdgeRow>,
    partitions: u32,
) -> impl Iterator<Item = Number> + use<> {
    let partition = places::partition(places::edge_shard(edge), partitions);
    contribution(kind, edge, row).filter_map(move |counted| match counted {
        CountedTally::Node {
            node,
            kind,
            which: which @ (Which::Incoming | Which::PendingIncoming),
        } => Some(Number { node, kind, slot: 0, which }),
        CountedTally::Node { node, kind, which: which @ Which::Owned } => {
            Some(Number { node, kind, slot: partition as u16 + 1, which })
        }
        _ => None,
    })
}
