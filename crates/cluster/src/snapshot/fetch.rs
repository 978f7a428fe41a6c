//! Rows by their keys: all that are wanted in one round trip, kept until the snapshot ends.

use std::sync::Arc;
use std::time::Instant;

use guanxi_core::snapshot::{IncomingList, StoreError, Wanted};
use guanxi_model::group::Group;
use guanxi_model::job::JobId;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupSet, GroupsKey, Kind, KindId, Node, NodeKey, NodeRow,
    NodeTypeId, TallyRow, TenantId, Which,
};
use mysql::Row;
use rustc_hash::{FxHashMap, FxHashSet};

use super::filling::Stamps;
use super::{Remembered, SqlSnapshot, unreadable};
use crate::cache::{Claimed, Flight, TalliesKey};
use crate::memory::incoming::packed::Newest;
use crate::memory::lists::packed::OutgoingList;
use crate::rows::{self, GROUP_COLUMNS, HEAD_COLUMNS, cell, head_tuple, node_tuple};
use crate::sql::SqlError;
use crate::sql::text::TUPLES_MAX;

/// Rows that a snapshot keeps; a walk that asks for more begins anew.
const KNOWN_ROWS_MAX: usize = 65_536;

/// What was read, and what was found not to be there.
#[derive(Debug, Default)]
pub(super) struct KnownRows {
    edges: FxHashMap<EdgeKey, Option<EdgeRow>>,
    pub nodes: FxHashMap<NodeKey, Node>,
    pub groups: FxHashMap<GroupsKey, GroupSet>,
    lists: FxHashMap<GroupsKey, Arc<OutgoingList>>,
    incoming: FxHashMap<IncomingList, Arc<Newest>>,
    targets: FxHashMap<NodeKey, TallyRow>,
    /// The kinds that `targets` have numbers of.
    target_kinds: Vec<KindId>,
    /// When the first of what was remembered was asked for.
    pub asked: Option<Instant>,
}

impl KnownRows {
    /// The outer option says whether it is known.
    pub fn edge(&self, key: &EdgeKey) -> Option<Option<&EdgeRow>> {
        let known = self.edges.get(key).map(Option::as_ref);
        known.or_else(|| Some(self.lists.get(&GroupsKey::of(key))?.edge(key.target)))
    }

    pub fn list(&self, key: &GroupsKey) -> Option<&Arc<OutgoingList>> {
        self.lists.get(key)
    }

    pub fn newest(&self, list: &IncomingList) -> Option<&Arc<Newest>> {
        self.incoming.get(list)
    }

    pub fn target(&self, node: &NodeKey, kinds: &[KindId]) -> Option<&TallyRow> {
        let all = kinds.iter().all(|kind| self.target_kinds.contains(kind));
        self.targets.get(node).filter(|_| all)
    }

    fn rows(&self) -> usize {
        self.edges.len() + self.nodes.len() + self.groups.len() + self.targets.len()
    }

    pub fn learn(&mut self, remembered: &Remembered) {
        self.edges.extend(remembered.edges.iter().cloned());
        for (key, list) in &remembered.lists {
            self.groups.insert(*key, list.groups.clone());
            self.lists.insert(*key, list.clone());
        }
        self.nodes.extend(remembered.strangers.iter().map(|node| (*node, Node::default())));
        self.incoming.extend(remembered.incoming.iter().cloned());
        self.asked = remembered.asked;
        self.target_kinds.clone_from(&remembered.kinds);
        self.targets.extend(remembered.targets.iter().cloned());
    }

    /// Leaves of what is wanted what is not known, each once.
    pub fn strip(&mut self, wanted: &mut Wanted) {
        if self.rows() > KNOWN_ROWS_MAX {
            *self = KnownRows::default();
        }
        if !wanted.targets.is_empty() && self.target_kinds != wanted.kinds {
            self.target_kinds.clone_from(&wanted.kinds);
            self.targets.clear();
        }
        unknown(&mut wanted.edges, |key| self.edge(key).is_some());
        unknown(&mut wanted.outgoing, |key| self.lists.contains_key(key));
        unknown(&mut wanted.incoming, |key| self.incoming.contains_key(key));
        unknown(&mut wanted.nodes, |key| self.nodes.contains_key(key));
        unknown(&mut wanted.groups, |key| self.groups.contains_key(key));
        unknown(&mut wanted.targets, |key| self.targets.contains_key(key));
    }

    /// Says what was read of the target's side.
    fn tell(&self, flight: Flight<'_, TalliesKey, TallyRow>) {
        let Some(TalliesKey { node, kinds }) = flight.key() else {
            return;
        };
        let row = match kinds.is_empty() {
            false => self.targets.get(node).cloned(),
            true => self.nodes.get(node).map(|node| target_side(&node.tallies)),
        };
        if let Some(row) = row {
            flight.land(row);
        }
    }

    /// What no row says anything about is not there.
    fn expect(&mut self, wanted: &Wanted) {
        self.edges.extend(wanted.edges.iter().map(|key| (*key, None)));
        self.nodes.extend(wanted.nodes.iter().map(|key| (*key, Node::default())));
        self.groups.extend(wanted.groups.iter().map(|key| (*key, GroupSet::default())));
        self.targets.extend(wanted.targets.iter().map(|key| (*key, TallyRow::default())));
    }
}

/// What the process keeps of what is wanted, and what this read will tell it.
#[derive(Default)]
struct CachedTallies<'a> {
    nodes: FxHashSet<NodeKey>,
    flights: Vec<Flight<'a, TalliesKey, TallyRow>>,
}

fn unknown<K: Copy + Eq + std::hash::Hash>(keys: &mut Vec<K>, known: impl Fn(&K) -> bool) {
    let mut met = FxHashSet::default();
    keys.retain(|key| !known(key) && met.insert(*key));
}

/// What the rows of a statement are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowsAbout {
    Edges,
    Settings,
    Heads,
    Tallies,
    Counters,
    GroupHeads,
    Groups,
    TargetTallies,
    TargetCounters,
}

impl SqlSnapshot {
    /// Reads what of this is not known yet. Without `more`, and with nothing open, it is all that
    /// is read of this moment.
    pub(super) fn fetch(&self, wanted: Wanted) -> Result<(), StoreError> {
        // After a failure nothing is known: what was expected may be there.
        self.fetch_unknown(wanted).inspect_err(|_| drop(self.known.take()))
    }

    fn fetch_unknown(&self, mut wanted: Wanted) -> Result<(), StoreError> {
        if self.is_defaulted(&wanted) {
            return Ok(());
        }
        self.may_ask()?;
        if wanted.more && self.is_idle() {
            // A page and its total are of the moment that begins here; what Redis said of a tally
            // is of an earlier one.
            self.known.borrow_mut().targets.clear();
        }
        self.known.borrow_mut().strip(&mut wanted);
        self.known.borrow_mut().expect(&wanted);
        let kept = self.kept_tallies(&mut wanted);
        let plan = self.plan(&wanted, &kept.nodes);
        if plan.is_empty() {
            return Ok(());
        }
        // The token's edges are read in the same moment as what they are laid over.
        let tallied = !wanted.nodes.is_empty() || !wanted.targets.is_empty();
        let late = if tallied { Some(self.late()?) } else { None };
        let (abouts, statements): (Vec<RowsAbout>, Vec<String>) = plan.into_iter().unzip();
        let mut stamps = Stamps::begin();
        let sets = match wanted.more {
            true => self.read(&statements)?,
            false => self.read_whole(&statements)?,
        };
        let mut known = self.known.borrow_mut();
        for (about, set) in abouts.into_iter().zip(sets) {
            for row in &set {
                self.take(&mut known, about, row).map_err(unreadable)?;
                if about == RowsAbout::TargetTallies {
                    stamps.take(row, REVISION_INDEX).map_err(unreadable)?;
                }
            }
        }
        if let Some(late) = late {
            for node in &wanted.nodes {
                known.nodes.entry(*node).and_modify(|known| late.adjust(node, &mut known.tallies));
            }
            for node in &wanted.targets {
                known.targets.entry(*node).and_modify(|tallies| late.adjust(node, tallies));
            }
        }
        for flight in kept.flights {
            known.tell(flight);
        }
        if self.seen.is_empty() {
            self.fill(&wanted, &stamps, |node| known.targets.get(node));
        }
        Ok(())
    }

    /// Takes what the process keeps, and the right to read for others what it does not. Only for
    /// reads that are all of their moment: a page and its total are of one.
    fn kept_tallies(&self, wanted: &mut Wanted) -> CachedTallies<'_> {
        let mut kept = CachedTallies::default();
        let Some(cache) =
            self.cache.as_ref().filter(|_| self.seen.is_empty() && !wanted.more && self.is_idle())
        else {
            return kept;
        };
        let known = &mut *self.known.borrow_mut();
        let of_kinds = |node: &NodeKey| TalliesKey { node: *node, kinds: wanted.kinds[..].into() };
        let whole = |node: &NodeKey| TalliesKey { node: *node, kinds: Box::default() };
        let keys = wanted.targets.iter().map(of_kinds).chain(wanted.nodes.iter().map(whole));
        let keys: Vec<TalliesKey> = keys.collect();
        let targets = wanted.targets.len();
        let mut met = FxHashSet::default();
        for (index, (claimed, key)) in cache.tallies(keys.clone()).into_iter().zip(keys).enumerate()
        {
            match claimed {
                Claimed::Known(row) if index < targets => {
                    met.insert(key.node);
                    known.targets.insert(key.node, row);
                }
                Claimed::Known(row) => {
                    kept.nodes.insert(key.node);
                    known.nodes.insert(key.node, Node { tallies: row, ..Node::default() });
                }
                Claimed::Mine(flight) => kept.flights.push(flight),
                Claimed::Others(_) | Claimed::Alone => {}
            }
        }
        wanted.targets.retain(|node| !met.contains(node));
        kept
    }

    /// Takes the tallies that the process keeps, for a read that will ask nothing else.
    pub(super) fn take_kept(&self, wanted: &mut Wanted) {
        let Some(cache) = &self.cache else { return };
        let known = &mut *self.known.borrow_mut();
        let kinds: Box<[KindId]> = wanted.kinds[..].into();
        wanted.targets.retain(|node| {
            let key = TalliesKey { node: *node, kinds: kinds.clone() };
            let kept = cache.kept_tallies(&key);
            kept.map(|row| known.targets.insert(*node, row)).is_none()
        });
    }

    /// The statements; of the nodes of `kept` the target's side is known.
    fn plan(&self, wanted: &Wanted, kept: &FxHashSet<NodeKey>) -> Vec<(RowsAbout, String)> {
        let mut plan = Vec::new();
        for edges in wanted.edges.chunks(TUPLES_MAX) {
            plan.push((RowsAbout::Edges, rows::select_outgoing(edges)));
        }
        let mut add = |about, select: &str, tuples: &[String]| {
            for tuples in tuples.chunks(TUPLES_MAX) {
                plan.push((about, format!("{select} IN ({})", tuples.join(","))));
            }
        };
        let nodes = &wanted.nodes;
        let tuples: Vec<String> = nodes.iter().map(|node| tuple(node, node_tuple)).collect();
        add(
            RowsAbout::Settings,
            "SELECT tenant,node_type,id,private,erased_by FROM nodes WHERE (tenant,node_type,id)",
            &tuples,
        );
        let tallied: Vec<NodeKey> =
            nodes.iter().filter(|node| !kept.contains(node)).copied().collect();
        let tuples: Vec<String> = tallied.iter().map(|node| tuple(node, node_tuple)).collect();
        add(
            RowsAbout::Tallies,
            "SELECT tenant,node_type,node,kind,incoming,pending_incoming,owned FROM tally \
             WHERE (tenant,node_type,node)",
            &tuples,
        );
        let heads = |kind: &Kind, of| kind.fixed.outgoing_tally && kind.fixed.source_type == of;
        let heads = self
            .per_kind(nodes, heads, |tenant, kind, id| format!("({},{},{id})", tenant.0, kind.0));
        add(RowsAbout::Heads, &select_heads(), &heads);
        let counts = |kind: &Kind, of| kind.fixed.counter && kind.fixed.target_type == of;
        let counted =
            |tenant: TenantId, kind: KindId, id| format!("({},{},{id})", tenant.0, kind.0);
        add(RowsAbout::Counters, SELECT_COUNTERS, &self.per_kind(&tallied, counts, counted));
        let groups = &wanted.groups;
        let tuples: Vec<String> = groups.iter().map(|key| tuple(key, head_tuple)).collect();
        add(RowsAbout::GroupHeads, &select_heads(), &tuples);
        let select = format!("SELECT {GROUP_COLUMNS} FROM `groups` WHERE (tenant,kind,source)");
        add(RowsAbout::Groups, &select, &tuples);
        let of = |kind: &Kind| wanted.kinds.contains(&kind.id);
        let targets = &wanted.targets;
        let mut slots = Vec::new();
        for node in targets {
            for kind in self.catalog.kinds(node.tenant) {
                let fixed = &kind.fixed;
                if of(kind) && fixed.incoming_tally && fixed.target_type == node.node_type {
                    let NodeKey { tenant, node_type, id } = node;
                    slots.push(format!("({},{},{id},{},0)", tenant.0, node_type.0, kind.id.0));
                }
            }
        }
        add(
            RowsAbout::TargetTallies,
            "SELECT tenant,node_type,node,kind,incoming,pending_incoming,owned,revision FROM tally \
             WHERE (tenant,node_type,node,kind,slot)",
            &slots,
        );
        let counts = |kind: &Kind, node_type| of(kind) && counts(kind, node_type);
        add(RowsAbout::TargetCounters, SELECT_COUNTERS, &self.per_kind(targets, counts, counted));
        plan
    }

    /// A key for each node and each kind that says something of it.
    fn per_kind(
        &self,
        nodes: &[NodeKey],
        says: impl Fn(&Kind, NodeTypeId) -> bool,
        tuple: impl Fn(TenantId, KindId, u64) -> String,
    ) -> Vec<String> {
        let mut tuples = Vec::new();
        for node in nodes {
            let kinds = self.catalog.kinds(node.tenant);
            for kind in kinds.filter(|kind| says(kind, node.node_type)) {
                tuples.push(tuple(node.tenant, kind.id, node.id));
            }
        }
        tuples
    }

    fn take(&self, known: &mut KnownRows, about: RowsAbout, row: &Row) -> Result<(), SqlError> {
        match about {
            RowsAbout::Edges => {
                let (key, edge) = rows::outgoing(row)?;
                known.edges.insert(key, Some(edge).filter(EdgeRow::stands));
            }
            RowsAbout::Settings => {
                if let Some(node) = known.nodes.get_mut(&node_key(row)?) {
                    let erased_by = cell::<Option<u64>>(row, 4)?.map(JobId);
                    let private = cell::<u8>(row, 3)? != 0;
                    node.settings = NodeRow { private, erased_by };
                }
            }
            RowsAbout::Heads => {
                let (key, head) = rows::head(row)?;
                let Some(kind) = self.catalog.kind(key.tenant, key.kind) else {
                    return Ok(());
                };
                let node_type = kind.fixed.source_type;
                let node = NodeKey { tenant: key.tenant, node_type, id: key.source.0 };
                if let Some(node) = known.nodes.get_mut(&node) {
                    node.tallies.add(key.kind, Which::Outgoing, head.outgoing);
                    node.tallies.add(key.kind, Which::PendingOutgoing, head.pending_outgoing);
                }
            }
            RowsAbout::Tallies => {
                if let Some(node) = known.nodes.get_mut(&node_key(row)?) {
                    add_tallies(&mut node.tallies, row)?;
                }
            }
            RowsAbout::TargetTallies => {
                if let Some(tallies) = known.targets.get_mut(&node_key(row)?) {
                    add_tallies(tallies, row)?;
                }
            }
            RowsAbout::Counters | RowsAbout::TargetCounters => {
                self.take_counter(known, about, row)?
            }
            RowsAbout::GroupHeads => {
                let (key, head) = rows::head(row)?;
                if let Some(groups) = known.groups.get_mut(&key) {
                    groups.next = GroupId(head.next_group);
                }
            }
            RowsAbout::Groups => {
                let (key, group) = rows::group(row)?;
                if let Some(groups) = known.groups.get_mut(&key) {
                    insert_group(&mut groups.groups, group);
                }
            }
        }
        Ok(())
    }

    fn take_counter(
        &self,
        known: &mut KnownRows,
        about: RowsAbout,
        row: &Row,
    ) -> Result<(), SqlError> {
        let (tenant, kind) = (TenantId(cell(row, 0)?), KindId(cell(row, 1)?));
        let Some(counter) = self.catalog.kind(tenant, kind) else {
            return Ok(());
        };
        let node_type = counter.fixed.target_type;
        let node = NodeKey { tenant, node_type, id: cell(row, 2)? };
        let tallies = match about {
            RowsAbout::TargetCounters => known.targets.get_mut(&node),
            _ => known.nodes.get_mut(&node).map(|node| &mut node.tallies),
        };
        if let Some(tallies) = tallies {
            tallies.add(kind, Which::Value, cell(row, 3)?);
        }
        Ok(())
    }
}

/// The column of a target's tallies that says how new they are.
const REVISION_INDEX: usize = 7;

const SELECT_COUNTERS: &str = "SELECT tenant,kind,node,value FROM counter WHERE (tenant,kind,node)";

fn select_heads() -> String {
    format!("SELECT {HEAD_COLUMNS} FROM head WHERE (tenant,kind,source)")
}

fn tuple<K>(key: &K, write: impl Fn(&mut String, &K)) -> String {
    let mut out = String::with_capacity(48);
    write(&mut out, key);
    out
}

fn node_key(row: &Row) -> Result<NodeKey, SqlError> {
    let (tenant, node_type) = (TenantId(cell(row, 0)?), NodeTypeId(cell(row, 1)?));
    Ok(NodeKey { tenant, node_type, id: cell(row, 2)? })
}

/// A node's numbers of one kind come in one or several slots, which add up.
fn add_tallies(tallies: &mut TallyRow, row: &Row) -> Result<(), SqlError> {
    let kind = KindId(cell(row, 3)?);
    let whiches = [Which::Incoming, Which::PendingIncoming, Which::Owned];
    for (index, which) in whiches.into_iter().enumerate() {
        tallies.add(kind, which, cell(row, 4 + index)?);
    }
    Ok(())
}

pub fn target_side(tallies: &TallyRow) -> TallyRow {
    let mut row = TallyRow::default();
    for (kind, which, number) in tallies.entries() {
        if !matches!(which, Which::Outgoing | Which::PendingOutgoing) {
            row.add(kind, which, number);
        }
    }
    row
}

/// Groups come in no order, and stand in that of their ids.
fn insert_group(groups: &mut Vec<Group>, group: Group) {
    let at = groups.partition_point(|other| other.id < group.id);
    groups.insert(at, group);
}
