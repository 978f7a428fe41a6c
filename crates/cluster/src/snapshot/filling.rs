//! Tallies on their way to Redis: what a read had to ask the database for, and was given the right to
//! fill before it asked.

use std::sync::Arc;

use guanxi_core::snapshot::Wanted;
use guanxi_model::{KindId, NodeKey, NodeTypeId, TallyRow, TenantId, Which};
use mysql::Row;
use rustc_hash::FxHashMap;

use super::{Remembered, SqlSnapshot};
use crate::memory::tallies::packed::TallyField;
use crate::memory::tallies::{Tallies, TallyClaim, wall_ms, wanted};
use crate::rows::cell;
use crate::sql::SqlError;

/// Where to fill, and by which right.
#[derive(Debug)]
pub(super) struct TalliesToFill {
    tallies: Arc<Tallies>,
    claims: FxHashMap<NodeKey, TallyClaim>,
}

/// The stamps of the rows that were read, and when that began.
#[derive(Debug)]
pub(super) struct Stamps {
    revisions: FxHashMap<(NodeKey, KindId), u64>,
    asked_ms: u64,
}

impl Stamps {
    pub fn begin() -> Stamps {
        Stamps { revisions: FxHashMap::default(), asked_ms: wall_ms() }
    }

    /// Takes a row of tallies whose last column, at `index`, is its revision.
    pub fn take(&mut self, row: &Row, index: usize) -> Result<(), SqlError> {
        let (tenant, node_type) = (TenantId(cell(row, 0)?), NodeTypeId(cell(row, 1)?));
        let node = NodeKey { tenant, node_type, id: cell(row, 2)? };
        self.revisions.insert((node, KindId(cell(row, 3)?)), cell(row, index)?);
        Ok(())
    }

    fn of(&self, node: &NodeKey, kind: KindId, which: Which) -> u64 {
        match which {
            Which::Value => self.asked_ms,
            _ => self.revisions.get(&(*node, kind)).copied().unwrap_or_default(),
        }
    }
}

impl SqlSnapshot {
    /// Fills what these facts give the right to, when the database is asked for it.
    pub fn with_filling(
        mut self,
        tallies: Option<&Arc<Tallies>>,
        remembered: &Remembered,
    ) -> SqlSnapshot {
        let claims = remembered.claims.iter().map(|claim| (claim.node(), *claim)).collect();
        self.filling = tallies.map(|tallies| TalliesToFill { tallies: tallies.clone(), claims });
        self
    }

    /// Hands on what was read of these targets.
    pub(super) fn fill<'a>(
        &self,
        read: &Wanted,
        stamps: &Stamps,
        row: impl Fn(&NodeKey) -> Option<&'a TallyRow>,
    ) {
        let Some(TalliesToFill { tallies, claims }) = &self.filling else { return };
        for node in &read.targets {
            let (Some(claim), Some(row)) = (claims.get(node), row(node)) else { continue };
            let field = |(kind, which): (KindId, Which)| {
                let (stamp, value) = (stamps.of(node, kind, which), row.get(kind, which));
                TallyField { kind, which, stamp, value }
            };
            let fields = wanted(&self.catalog, node, &read.kinds).into_iter().map(field);
            tallies.fill(claim, fields.collect());
        }
    }
}
