//! The target's side: incoming rows against tallies, which appliers commit together and so agree
//! in every picture; and against the outgoing rows, of which each must have one.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use guanxi_core::audit::AuditError;
use guanxi_model::hash::hash64;
use guanxi_model::{
    EdgeKey, EdgeRow, Kind, NodeKey, NodeTypeId, State, TargetId, TenantId, Which, places,
};

use super::look::{Number, PAGE_ROWS, SqlLook, Suspect};
use super::picture::Picture;
use super::stretch::EdgeSide;
use crate::rows::cell;

/// Owners whose numbers are added up at once, about 64 bytes each. More take several passes.
const OWNERS_MAX: usize = 1 << 20;
/// A picture of all rows of a kind lasts no longer; servers collect old rows after some minutes.
const OWNERS_PICTURE_MAX: Duration = Duration::from_secs(300);
/// Owners of so many passes are compared; a pass reads every row.
const OWNERS_PASSES_MAX: u64 = 64;
/// Rows of one statement when only three columns are read.
const OWNERS_PAGE_ROWS: usize = 10_000;

/// What one target's rows add up to.
#[derive(Default)]
struct TargetSum {
    live: i64,
    pending: i64,
}

impl SqlLook<'_> {
    pub(super) fn targets(&mut self, tenant: TenantId, kind: &Kind) -> Result<(), AuditError> {
        self.stretches(|look, picture, after, suspects| {
            let mut sums: BTreeMap<u64, TargetSum> = BTreeMap::new();
            let place = (tenant, kind);
            let until =
                look.read_stretch(picture, EdgeSide::Target, place, after, |_, picture, page| {
                    sum_page(page, kind, &mut sums);
                    find_orphans(picture, page, suspects)
                })?;
            look.compare_tallies(picture, tenant, kind, (after, until), &sums)?;
            Ok(until)
        })
    }

    fn compare_tallies(
        &mut self,
        picture: &mut Picture<'_>,
        tenant: TenantId,
        kind: &Kind,
        (mut after, until): (u64, u64),
        sums: &BTreeMap<u64, TargetSum>,
    ) -> Result<(), AuditError> {
        let node_type = kind.fixed.target_type;
        let mut surplus: BTreeMap<u64, (i64, i64)> =
            sums.iter().map(|(target, sum)| (*target, (-sum.live, -sum.pending))).collect();
        loop {
            let statement = format!(
                "SELECT node,incoming,pending_incoming FROM tally FORCE INDEX (PRIMARY) WHERE \
                 tenant={} AND node_type={} AND node>{after} AND node<={until} AND kind={} AND \
                 slot=0 ORDER BY tenant,node_type,node LIMIT {PAGE_ROWS}",
                tenant.0, node_type.0, kind.id.0
            );
            let found = picture.rows(&statement)?;
            self.pace(found.len())?;
            for row in &found {
                after = cell(row, 0)?;
                let entry = surplus.entry(after).or_default();
                entry.0 += cell::<i64>(row, 1)?;
                entry.1 += cell::<i64>(row, 2)?;
            }
            if found.len() < PAGE_ROWS {
                break;
            }
        }
        self.findings.of(Some((tenant, kind.id))).tallies += surplus.len() as u64;
        for (id, (live, pending)) in surplus {
            let node = NodeKey { tenant, node_type, id };
            for (which, surplus) in [(Which::Incoming, live), (Which::PendingIncoming, pending)] {
                if surplus != 0 {
                    self.surplus.insert(Number { node, kind: kind.id, slot: 0, which }, surplus);
                }
            }
        }
        Ok(())
    }

    /// What edges add to their owners. Owners' edges lie everywhere, so all rows of the kind are
    /// read in one picture; the owners are divided by their hash into as many passes as it takes.
    pub(super) fn owners(&mut self, tenant: TenantId, kind: &Kind) -> Result<(), AuditError> {
        let Some(owner_type) = kind.fixed.owner_type else {
            return Ok(());
        };
        let mut passes = 1;
        let mut pass = 0;
        while pass < passes {
            match self.owners_of_pass(tenant, kind, owner_type, (pass, passes))? {
                PassEnd::Done => pass += 1,
                PassEnd::TooMany if passes < OWNERS_PASSES_MAX => {
                    // What the passes so far have compared is their owners' whole truth.
                    passes *= 2;
                    pass *= 2;
                }
                PassEnd::TooMany | PassEnd::TooLong => {
                    tracing::warn!(kind = %kind.name, "too many rows to compare owners' tallies");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn owners_of_pass(
        &mut self,
        tenant: TenantId,
        kind: &Kind,
        owner_type: NodeTypeId,
        (pass, passes): (u64, u64),
    ) -> Result<PassEnd, AuditError> {
        let mine = |owner: u64| in_pass(owner, pass, passes);
        let parts = self.parts;
        let mut picture = Picture::begin(&parts.database)?;
        // By owner and slot: what the tally has more than the rows say.
        let mut surplus: HashMap<(u64, u16), i64> = HashMap::new();
        let mut place = (0, u64::MAX);
        loop {
            let columns = "target,source,owner,state";
            let statement = EdgeSide::Target.page(columns, tenant, kind, place, OWNERS_PAGE_ROWS);
            let found = picture.rows(&statement)?;
            self.watch_rows(found.len())?;
            for row in &found {
                place = (cell(row, 0)?, cell(row, 1)?);
                let owner: Option<u64> = cell(row, 2)?;
                if let Some(owner) = owner.filter(|owner| mine(*owner))
                    && cell::<u8>(row, 3)? == State::Live as u8
                {
                    let shard = places::target_shard(tenant, kind.id, TargetId(place.0));
                    let slot = places::partition(shard, parts.partitions) as u16 + 1;
                    *surplus.entry((owner, slot)).or_default() -= 1;
                }
            }
            if surplus.len() > OWNERS_MAX {
                return Ok(PassEnd::TooMany);
            }
            if picture.age() > OWNERS_PICTURE_MAX {
                return Ok(PassEnd::TooLong);
            }
            if found.len() < OWNERS_PAGE_ROWS {
                break;
            }
        }
        if !self.add_owned(&mut picture, tenant, kind, owner_type, &mut surplus, mine)? {
            return Ok(PassEnd::TooMany);
        }
        picture.end()?;
        self.findings.of(Some((tenant, kind.id))).tallies += surplus.len() as u64;
        for ((id, slot), surplus) in surplus.into_iter().filter(|(_, surplus)| *surplus != 0) {
            let node = NodeKey { tenant, node_type: owner_type, id };
            let number = Number { node, kind: kind.id, slot, which: Which::Owned };
            self.surplus.insert(number, surplus);
        }
        Ok(PassEnd::Done)
    }

    /// Adds what the owners' tallies say; false when there are too many.
    fn add_owned(
        &mut self,
        picture: &mut Picture<'_>,
        tenant: TenantId,
        kind: &Kind,
        owner_type: NodeTypeId,
        surplus: &mut HashMap<(u64, u16), i64>,
        mine: impl Fn(u64) -> bool,
    ) -> Result<bool, AuditError> {
        let mut place = (0, u16::MAX);
        loop {
            let statement = format!(
                "SELECT node,slot,owned FROM tally FORCE INDEX (PRIMARY) WHERE tenant={} AND \
                 node_type={} AND kind={} AND slot>0 AND (node>{node} OR (node={node} AND \
                 slot>{slot})) ORDER BY tenant,node_type,node,kind,slot LIMIT {OWNERS_PAGE_ROWS}",
                tenant.0,
                owner_type.0,
                kind.id.0,
                node = place.0,
                slot = place.1,
            );
            let found = picture.rows(&statement)?;
            self.watch_rows(found.len())?;
            for row in &found {
                place = (cell(row, 0)?, cell(row, 1)?);
                if mine(place.0) {
                    *surplus.entry(place).or_default() += cell::<i64>(row, 2)?;
                }
            }
            if surplus.len() > OWNERS_MAX {
                return Ok(false);
            }
            if found.len() < OWNERS_PAGE_ROWS {
                return Ok(true);
            }
        }
    }
}

enum PassEnd {
    Done,
    TooMany,
    TooLong,
}

/// Halving a pass makes two passes next to each other of it.
fn in_pass(owner: u64, pass: u64, passes: u64) -> bool {
    let hash = hash64(&owner.to_be_bytes());
    ((u128::from(hash) * u128::from(passes)) >> 64) as u64 == pass
}

fn sum_page(page: &[(EdgeKey, EdgeRow)], kind: &Kind, sums: &mut BTreeMap<u64, TargetSum>) {
    for (edge, row) in page {
        let sum = sums.entry(edge.target.0).or_default();
        match row.state {
            State::Live => sum.live += i64::from(kind.fixed.incoming_tally),
            State::Pending => sum.pending += i64::from(kind.fixed.incoming_tally),
            State::Removed => {}
        }
    }
}

/// Suspects incoming rows that stand without an outgoing row. Where both stand, the source's side
/// has compared them.
fn find_orphans(
    picture: &mut Picture<'_>,
    page: &[(EdgeKey, EdgeRow)],
    suspects: &mut Vec<Suspect>,
) -> Result<(), AuditError> {
    let edges: Vec<EdgeKey> =
        page.iter().filter(|(_, row)| row.stands()).map(|(edge, _)| *edge).collect();
    let outgoing: HashMap<EdgeKey, EdgeRow> = picture.outgoing(&edges)?.into_iter().collect();
    for edge in edges {
        let row = outgoing.get(&edge);
        if !row.is_some_and(EdgeRow::stands) {
            suspects.push(Suspect { edge, version: row.map(|row| row.version) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::in_pass;

    #[test]
    fn each_owner_is_in_one_pass_and_halving_keeps_what_is_done() {
        for owner in 0..1_000 {
            let of = |passes: u64| (0..passes).filter(move |pass| in_pass(owner, *pass, passes));
            for passes in [1, 2, 4, 64] {
                assert_eq!(of(passes).count(), 1);
            }
            let (two, four) = (of(2).next().unwrap(), of(4).next().unwrap());
            assert_eq!(four / 2, two);
        }
    }
}
