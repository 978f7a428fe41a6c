//! What a transaction locks, writes by foresight and fetches first, in as few statements and round
//! trips as its changes need.

use std::fmt::Write;

use guanxi_model::footprint::NO_KIND;
use guanxi_model::hash::hash64;
use guanxi_model::import::ImportId;
use guanxi_model::job::JobId;
use guanxi_model::{
    Catalog, EdgeKey, Footprint, GroupsKey, HeadVersion, Millis, NodeKey, Region, Request,
    SourceId, TenantId,
};

use super::foresight::{ForeseenHead, Foresight};
use super::held_rows::{HeldRow, HeldRows};
use super::script::{Expect, FetchScript};
use crate::catalog::REVISION;
use crate::idempotency::{self, TenantKey};
use crate::rows::{EdgeColumns, HEAD_COLUMNS, HeadKey, head_tuple};
use crate::sql::{Dialect, Session, SqlError, text};

/// Everything that a batch of requests may touch, sorted: locks are taken in one order everywhere.
#[derive(Debug, Default)]
pub(super) struct CommitPlan {
    pub footprint: Footprint,
    pub imports: Vec<(TenantId, ImportId)>,
    /// By how much each head is raised: as many versions as the batch may draw from one.
    pub steps: u64,
    foresight: Foresight,
}

/// How the first round trips ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fetched {
    Ready,
    /// A head was ahead of the clock, so that what was foreseen has versions that are taken. The
    /// transaction is of no use.
    Mistaken,
    /// The catalog has changed since the copy that the plan was made by. The transaction is of no
    /// use.
    Outdated,
}

/// What the first round trip must know beside the plan.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlanFacts {
    pub dialect: Dialect,
    pub now: Millis,
    /// The time by which keys are forgotten.
    pub steady: Millis,
    /// No version is below this one.
    pub floor: HeadVersion,
    pub mark: u64,
    /// The head of the lane, raised with the others.
    pub lane: HeadKey,
    pub region: Region,
    /// Which catalog the plan is made by.
    pub revision: u64,
    /// Whether heads tell of every edge that may exclude.
    pub exclusions_marked: bool,
    /// Whether to write by foresight.
    pub foresee: bool,
}

impl PlanFacts {
    /// What a head has given out, before `steps` more, if the clock is ahead of it.
    fn given(&self) -> HeadVersion {
        HeadVersion::at(self.now).max(self.floor)
    }
}

impl CommitPlan {
    pub fn of(
        requests: &[&Request],
        catalog: &Catalog,
        erased: impl Fn(TenantId, JobId) -> Option<NodeKey> + Copy,
        opening: &PlanFacts,
    ) -> CommitPlan {
        let mut plan = CommitPlan::default();
        for request in requests {
            for change in &request.changes {
                plan.footprint.add(change, catalog, erased);
            }
            if let Some(key) = &request.key {
                plan.footprint.keys.push((request.tenant, key.clone()));
            }
            if let Some(step) = &request.import {
                plan.footprint.heads.push(import_head(request.tenant, &step.id));
                plan.imports.push((request.tenant, step.id.clone()));
            }
        }
        let Footprint { heads, edges, exclusions, nodes, groups, counters, keys, jobs, .. } =
            &mut plan.footprint;
        if !opening.exclusions_marked {
            edges.extend(exclusions.drain(..).map(|(_, edge)| edge));
        }
        if opening.foresee {
            let PlanFacts { region, now, .. } = *opening;
            let foresight = Foresight::of(requests, heads, catalog, opening.given(), region, now);
            edges.retain(|edge| !foresight.heads.contains_key(&GroupsKey::of(edge)));
            plan.foresight = foresight;
        }
        heads.push(opening.lane);
        heads.sort_unstable();
        plan.steps = heads.chunk_by(PartialEq::eq).map(<[HeadKey]>::len).max().unwrap_or(0) as u64;
        heads.dedup();
        sort(edges);
        sort(exclusions);
        sort(nodes);
        sort(groups);
        sort(counters);
        sort(keys);
        sort(jobs);
        sort(&mut plan.imports);
        plan
    }

    /// Locks, writes what is foreseen and reads the rest in one round trip, after `begin` (the
    /// transaction's beginning). Only what turns out to be otherwise takes another.
    pub fn fetch(
        &self,
        session: &mut Session<'_>,
        begin: &str,
        opening: &PlanFacts,
        held: &mut HeldRows,
    ) -> Result<Fetched, SqlError> {
        let mut script = FetchScript::new(begin);
        self.lock_heads(opening, &mut script);
        look_at_catalog(&mut script);
        lock_keys(&self.footprint.keys, opening, &mut script);
        self.write_foreseen(&mut script);
        script.edges(&self.footprint.edges, opening.dialect);
        script.nodes(&self.footprint.nodes, opening.dialect);
        script.groups(&self.footprint.groups);
        script.counters(&self.footprint.counters);
        script.jobs(&self.footprint.jobs);
        script.imports(&self.imports);
        let inserted = script.run(session, Some((opening.mark, self.steps)), held)?;
        if held.revision > opening.revision {
            return Ok(Fetched::Outdated);
        }
        if !self.take_heads(opening, held) {
            return Ok(Fetched::Mistaken);
        }
        let all = inserted == self.foresight.edges.len() as u64;
        self.fetch_otherwise(session, opening, all, held)?;
        self.take_foreseen(all, held);
        fetch_groups(session, held)?;
        Ok(Fetched::Ready)
    }

    fn write_foreseen(&self, script: &mut FetchScript) {
        for edges in self.foresight.edges.chunks(text::TUPLES_MAX) {
            let out = script.statement(Expect::Inserted);
            let columns = EdgeColumns::of(edges.iter().map(|edge| &edge.row));
            let _ = write!(out, "INSERT IGNORE INTO outgoing ({columns}) VALUES ");
            text::list(out, edges, |out, edge| {
                columns.row(out, &edge.key, &edge.row, edge.cause.name());
            });
        }
    }

    /// Takes the foreseen growth off the heads' tallies: nothing is decided yet. Returns whether
    /// the heads gave the versions that were foreseen.
    fn take_heads(&self, opening: &PlanFacts, held: &mut HeldRows) -> bool {
        for (key, growth) in &self.foresight.heads {
            let Some(cell) = held.heads.get_mut(key) else {
                return false;
            };
            if cell.given != opening.given() {
                return false;
            }
            cell.head.outgoing -= growth.outgoing;
            cell.head.pending_outgoing -= growth.pending_outgoing;
        }
        true
    }

    /// Fetches what the first round trip left open: edges under heads that tell of exclusions, and
    /// which of the foreseen edges were there already.
    fn fetch_otherwise(
        &self,
        session: &mut Session<'_>,
        opening: &PlanFacts,
        all_inserted: bool,
        held: &mut HeldRows,
    ) -> Result<(), SqlError> {
        let mut open: Vec<EdgeKey> = Vec::new();
        for edge in &self.foresight.edges {
            held.edges.insert(edge.key, HeldRow::fetched(None));
        }
        for (head, edge) in &self.footprint.exclusions {
            if held.edges.contains_key(edge) {
                continue;
            }
            if held.heads.get(head).is_none_or(|cell| cell.head.excluded) {
                open.push(*edge);
            } else {
                held.edges.insert(*edge, HeldRow::fetched(None));
            }
        }
        if !all_inserted {
            open.extend(self.foresight.edges.iter().map(|edge| edge.key));
        }
        sort(&mut open);
        let mut script = FetchScript::new("");
        script.edges(&open, opening.dialect);
        script.run(session, None, held)?;
        Ok(())
    }

    /// A row with the version that was foreseen is the one that was foreseen: the head gave this
    /// version to nobody before. Where a row is missing though not all were inserted, a tombstone
    /// stood in the way and was cleaned up since (some servers do not lock what they ignore): what
    /// was foreseen does not stand, and is written like anything else.
    fn take_foreseen(&self, all_inserted: bool, held: &mut HeldRows) {
        for edge in &self.foresight.edges {
            let Some(cell) = held.edges.get_mut(&edge.key) else {
                continue;
            };
            match &cell.before {
                Some(row) if row.version != edge.row.version => continue,
                None if !all_inserted => continue,
                Some(_) => *cell = HeldRow::fetched(None),
                None => {}
            }
            held.foreseen.insert(edge.key, (edge.row.clone(), edge.cause));
        }
    }

    /// Raises every head, so that it is locked whether it was there or not, and changed in any
    /// case: a server may pass over the lock of a row that stays as it is.
    fn lock_heads(&self, opening: &PlanFacts, script: &mut FetchScript) {
        let first = opening.given().plus(self.steps).0;
        // Hardly any put waits for approval: a column that adds nothing is not named.
        let pending = self.foresight.heads.values().any(|growth| growth.pending_outgoing != 0);
        for heads in self.footprint.heads.chunks(text::TUPLES_MAX) {
            let out = script.statement(Expect::Nothing);
            out.push_str("INSERT INTO head (tenant,kind,source,version,outgoing");
            out.push_str(if pending { ",pending_outgoing) VALUES " } else { ") VALUES " });
            text::list(out, heads, |out, head| {
                let (tenant, kind, source) = (head.tenant.0, head.kind.0, head.source.0);
                let foreseen = self.foresight.heads.get(head).copied().unwrap_or_default();
                let ForeseenHead { outgoing, pending_outgoing } = foreseen;
                let _ = write!(out, "({tenant},{kind},{source},{first},{outgoing}");
                if pending {
                    let _ = write!(out, ",{pending_outgoing}");
                }
                out.push(')');
            });
            let steps = self.steps;
            let _ = write!(
                out,
                " ON DUPLICATE KEY UPDATE version=GREATEST(version+{steps},VALUES(version)),\
                 outgoing=outgoing+VALUES(outgoing)"
            );
            if pending {
                out.push_str(",pending_outgoing=pending_outgoing+VALUES(pending_outgoing)");
            }
            if opening.dialect == Dialect::MariaDb {
                let _ = write!(out, " RETURNING {HEAD_COLUMNS}");
                script.expect_last(Expect::Heads);
            } else {
                let out = script.statement(Expect::Heads);
                let _ = write!(
                    out,
                    "SELECT {HEAD_COLUMNS} FROM head FORCE INDEX (PRIMARY) \
                     WHERE (tenant,kind,source) IN ("
                );
                text::list(out, heads, head_tuple);
                out.push(')');
            }
        }
    }
}

/// Reads the catalog's revision, in a statement of its own after the heads are locked. That is late
/// enough for every rule that another instance may follow already. Say it has put an edge of a kind
/// that excludes ours, of which our copy knows nothing: it held our head to do so. If it held it
/// before us, it has committed, and the kind it knew was committed before: the revision is newer
/// here. If it holds it after us, it will find our edge and cut it. And a rule that is committed
/// after this look binds what is written after us.
fn look_at_catalog(script: &mut FetchScript) {
    let _ = write!(
        script.statement(Expect::Revision),
        "SELECT value FROM facts WHERE name='{REVISION}'"
    );
}

/// Takes each key for this transaction unless it was used in the last 24 hours; the mark that
/// stands afterwards says whose it is.
fn lock_keys(keys: &[TenantKey], opening: &PlanFacts, script: &mut FetchScript) {
    for keys in keys.chunks(text::TUPLES_MAX) {
        let taken = idempotency::take_keys(keys, opening.mark, opening.steady);
        script.statement(Expect::Nothing).push_str(&taken);
        script.statement(Expect::Keys).push_str(&idempotency::select_keys(keys));
    }
}

/// An edge in a group needs the groups of its source; few are.
fn fetch_groups(session: &mut Session<'_>, held: &mut HeldRows) -> Result<(), SqlError> {
    let mut needed: Vec<GroupsKey> = Vec::new();
    for (key, cell) in &held.edges {
        let groups = GroupsKey::of(key);
        if cell.before.as_ref().is_some_and(|row| row.group.is_some())
            && held.heads.contains_key(&groups)
            && !held.groups.contains_key(&groups)
        {
            needed.push(groups);
        }
    }
    sort(&mut needed);
    let mut script = FetchScript::new("");
    script.groups(&needed);
    script.run(session, None, held)?;
    Ok(())
}

/// An import's place is moved under a head of its own; two imports that share one only wait.
fn import_head(tenant: TenantId, id: &ImportId) -> HeadKey {
    let source = SourceId(hash64(id.as_str().as_bytes()));
    GroupsKey { tenant, kind: NO_KIND, source }
}

fn sort<T: Ord>(items: &mut Vec<T>) {
    items.sort_unstable();
    items.dedup();
}
