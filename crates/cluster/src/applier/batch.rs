//! One transaction of the applier: records of several partitions, their positions locked first and
//! compared, the rows that stand, what the fold makes of them, and the new positions. Either all of
//! it is committed or nothing. Rows that look new may be written before (`foreseen`).

use std::collections::BTreeMap;

use guanxi_model::record::EdgeRecord;
use guanxi_model::{BarrierId, Catalog, EdgeKey, EdgeRow};

use super::super::acknowledged::{self, Note};
use super::super::barrier::{self, BarrierMark};
use super::super::dead_letters::{self, NewLetter};
use super::super::kafka::{LogPosition, RecordMark, TopicId};
use super::super::rows;
use super::super::sql::{Dialect, RowSet, Session, SqlError};
use super::fold::{Fold, IncomingKey};
use super::foreseen::{Foreseen, Way};
use super::statements;

/// Where the records come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogKind {
    /// The cluster's own topic: a target's partition follows from its shard.
    Outbox,
    /// A changefeed's topic: which partition a target has is the changefeed's affair.
    Ticdc,
}

/// Which log is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchLog {
    pub source: LogKind,
    /// Whose positions stand in `applied`.
    pub topic: String,
    /// Partitions of the cluster's own topic, by which owners' tallies are spread.
    pub partitions: u32,
}

/// Records of one partition that follow one another.
#[derive(Debug, Clone)]
pub struct Slice {
    pub partition: u32,
    /// The position that the partition must have.
    pub expected: LogPosition,
    pub items: Vec<Placed>,
    /// The position that it has afterwards.
    pub next: LogPosition,
}

#[derive(Debug, Clone)]
pub struct Placed {
    pub position: u64,
    /// The position that its partition has once it is applied.
    pub after: LogPosition,
    pub item: ApplyItem,
    /// As it came, for a dead letter.
    pub value: Vec<u8>,
}

#[derive(Debug, Clone)]
pub enum ApplyItem {
    Edge(Box<EdgeRecord>),
    /// The record lacks columns: the row is read from `outgoing`.
    Reread(EdgeKey),
    /// Its version lies ahead of the clock. The row is read from `outgoing`; a version that even
    /// that does not have is nobody's, and the record a dead letter.
    Doubted(Box<EdgeRecord>),
    Barrier {
        id: BarrierId,
        /// A bit for each.
        shards: u64,
    },
    /// Every change up to this commit timestamp has come.
    Watermark(u64),
    /// It can never be applied.
    Dead {
        edge: Option<EdgeKey>,
        cause: String,
    },
    /// Not meant for us.
    Nothing,
}

impl ApplyItem {
    pub(crate) fn edge(&self) -> Option<EdgeKey> {
        match self {
            ApplyItem::Edge(record) | ApplyItem::Doubted(record) => Some(record.key),
            ApplyItem::Reread(edge) => Some(*edge),
            ApplyItem::Dead { edge, .. } => *edge,
            ApplyItem::Barrier { .. } | ApplyItem::Watermark(_) | ApplyItem::Nothing => None,
        }
    }

    /// The edge whose row is read from `outgoing`.
    pub(crate) fn reread(&self) -> Option<EdgeKey> {
        match self {
            ApplyItem::Reread(edge) => Some(*edge),
            ApplyItem::Doubted(record) => Some(record.key),
            _ => None,
        }
    }
}

impl Placed {
    fn letter<'a>(
        &'a self,
        place: &'a BatchLog,
        partition: u32,
        edge: Option<EdgeKey>,
        cause: &'a str,
    ) -> NewLetter<'a> {
        let Placed { position, after, value, .. } = self;
        let (position, after) = (*position, *after);
        NewLetter { topic: &place.topic, partition, position, after, edge, cause, value }
    }
}

/// Why a record of the future is given up.
const AHEAD: &str = "its version lies ahead of the clock, and its source's side does not have it";

/// What a transaction did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BatchOutcome {
    /// Partitions whose position was not the expected one: someone else applies them. Nothing of
    /// theirs was done.
    pub foreign: Vec<u32>,
    /// Where records are not those that the broker acknowledged, by partition. Nothing was done,
    /// nor of the other partitions.
    pub lost: BTreeMap<u32, u64>,
    pub records: u64,
    /// Records that came late or twice.
    pub stale: u64,
    pub dead: u64,
}

/// Applies the slices, at most one of each partition, in one transaction. All kinds must be in the
/// catalog.
pub fn apply_batch(
    session: &mut Session<'_>,
    place: &BatchLog,
    slices: &[Slice],
    catalog: &Catalog,
    now_ms: u64,
    way: Way,
) -> Result<BatchOutcome, SqlError> {
    let way = if session.dialect() == Dialect::MariaDb { way } else { Way::Looking };
    let ended = ApplyBatch { place, slices, catalog, now_ms }.run(session, way);
    if ended.is_err() {
        // Whatever went wrong, nothing that was written may be committed by whoever comes next.
        session.close();
    }
    ended
}

struct ApplyBatch<'a> {
    place: &'a BatchLog,
    slices: &'a [Slice],
    catalog: &'a Catalog,
    now_ms: u64,
}

impl ApplyBatch<'_> {
    fn run(&self, session: &mut Session<'_>, way: Way) -> Result<BatchOutcome, SqlError> {
        let mut foreseen = match way {
            Way::Foreseeing => Foreseen::of(self.slices),
            Way::Looking => Foreseen::default(),
        };
        let items = || self.slices.iter().flat_map(|slice| &slice.items);
        let looked_at = sorted(items().filter_map(|placed| match &placed.item {
            ApplyItem::Edge(record) => Some(record.key),
            item => item.reread(),
        }));
        let looked_at: Vec<IncomingKey> =
            looked_at.into_iter().filter(|key| !foreseen.contains(key)).collect();
        let reread = sorted(items().filter_map(|placed| placed.item.reread()));
        let mut partitions: Vec<u32> = self.slices.iter().map(|slice| slice.partition).collect();
        partitions.sort_unstable();
        let stretch = |slice: &Slice| (slice.partition, slice.expected.next, slice.next.next);
        let mut asked = vec![
            "BEGIN".into(),
            statements::lock_positions(&self.place.topic, &partitions),
            acknowledged::between_statement(&self.place.topic, self.slices.iter().map(stretch)),
        ];
        let inserts = foreseen.statement();
        let has_inserts = inserts.is_some();
        asked.extend(inserts);
        asked.extend(statements::select_incoming(&looked_at));
        asked.extend(statements::select_outgoing(&reread));
        let mut sets = session.run(&asked.join(";"))?.into_iter().skip(1);

        let positions = positions(sets.next().unwrap_or_default())?;
        let notes = sets.next().unwrap_or_default().rows;
        let is_own = |slice: &&Slice| positions.get(&slice.partition) == Some(&slice.expected);
        let own: Vec<&Slice> = self.slices.iter().filter(is_own).collect();
        if own.len() < self.slices.len() && (own.is_empty() || has_inserts) {
            session.run("ROLLBACK")?;
            return self.without_foreign(session, own);
        }
        let notes = notes.iter().map(acknowledged::note).collect::<Result<Vec<_>, _>>()?;
        let lost = lost(&own, &notes);
        if !lost.is_empty() {
            session.run("ROLLBACK")?;
            return Ok(BatchOutcome { lost, ..BatchOutcome::default() });
        }
        let mut passed_over = Vec::new();
        if has_inserts {
            passed_over = foreseen.inserted(&sets.next().unwrap_or_default())?;
        }
        let mut standing = take(&mut sets, &looked_at)?;
        let present: BTreeMap<EdgeKey, EdgeRow> = take(&mut sets, &reread)?.into_iter().collect();
        if !passed_over.is_empty() {
            let looks: Vec<String> = statements::select_incoming(&passed_over).collect();
            let mut sets = session.run(&looks.join(";"))?.into_iter();
            standing.extend(take(&mut sets, &passed_over)?);
        }
        self.write(session, &own, Fold::new(self.place.partitions, standing), &foreseen, &present)
    }

    /// Someone else applies some of the partitions, and what was inserted of theirs is undone: the
    /// others once more, with nothing inserted before its position is known to be ours.
    fn without_foreign(
        &self,
        session: &mut Session<'_>,
        own: Vec<&Slice>,
    ) -> Result<BatchOutcome, SqlError> {
        let mut applied = BatchOutcome::default();
        if !own.is_empty() {
            let own: Vec<Slice> = own.into_iter().cloned().collect();
            applied = ApplyBatch { slices: &own, ..*self }.run(session, Way::Looking)?;
            let left = |partition: &u32| own.iter().all(|slice| slice.partition != *partition);
            applied.foreign.extend(self.partitions().filter(left));
        } else {
            applied.foreign.extend(self.partitions());
        }
        Ok(applied)
    }

    fn partitions(&self) -> impl Iterator<Item = u32> {
        self.slices.iter().map(|slice| slice.partition)
    }

    fn write(
        &self,
        session: &mut Session<'_>,
        own: &[&Slice],
        fold: Fold,
        foreseen: &Foreseen<'_>,
        present: &BTreeMap<EdgeKey, EdgeRow>,
    ) -> Result<BatchOutcome, SqlError> {
        let mut applied = BatchOutcome::default();
        let foreign = |partition: &u32| own.iter().all(|slice| slice.partition != *partition);
        applied.foreign = self.partitions().filter(foreign).collect();
        let mut making = Making::over(fold);
        for slice in own {
            for placed in &slice.items {
                making.take(self.place, slice.partition, placed, present, self.catalog)?;
            }
            applied.records += slice.items.len() as u64;
        }
        applied.stale = making.fold.stale;
        applied.dead = making.letters.len() as u64;
        let statements = making.statements(self.place, own, foreseen, self.now_ms);
        session.run(&statements.join(";")).map_err(raced)?;
        Ok(applied)
    }
}

/// The partitions whose slices have another record where one was acknowledged, or none, and where.
fn lost(own: &[&Slice], notes: &[Note]) -> BTreeMap<u32, u64> {
    let is_kept = |slice: &Slice, note: &Note| {
        let found = slice.items.binary_search_by_key(&note.position, |placed| placed.position);
        let found = found.ok().map(|index| slice.items[index].after);
        found.is_some_and(|after| after.before == note.mark)
    };
    let lost = notes.iter().filter(|note| {
        let slice = own.iter().find(|slice| slice.partition == note.part);
        slice.is_some_and(|slice| {
            // What was acknowledged of another topic tells nothing of this one.
            note.topic.may_be(slice.next.topic) && !is_kept(slice, note)
        })
    });
    lost.map(|note| (note.part, note.position)).collect()
}

/// What the second half of the transaction writes.
struct Making<'a> {
    fold: Fold,
    barriers: Vec<BarrierMark>,
    letters: Vec<NewLetter<'a>>,
    watermarks: BTreeMap<u32, u64>,
}

impl<'a> Making<'a> {
    fn over(fold: Fold) -> Making<'a> {
        Making { fold, barriers: Vec::new(), letters: Vec::new(), watermarks: BTreeMap::new() }
    }

    fn take(
        &mut self,
        place: &'a BatchLog,
        partition: u32,
        placed: &'a Placed,
        present: &BTreeMap<EdgeKey, EdgeRow>,
        catalog: &Catalog,
    ) -> Result<(), SqlError> {
        match &placed.item {
            ApplyItem::Edge(record) => self.apply(catalog, record)?,
            ApplyItem::Reread(edge) => {
                // A row that is gone had a tombstone older than any record that may still come.
                if let Some(row) = present.get(edge) {
                    self.apply(catalog, &EdgeRecord::of(*edge, row.clone()))?;
                }
            }
            ApplyItem::Doubted(record) => {
                let row = present.get(&record.key);
                if let Some(row) = row {
                    self.apply(catalog, &EdgeRecord::of(record.key, row.clone()))?;
                }
                if row.is_none_or(|row| row.version < record.new.version) {
                    let edge = Some(record.key);
                    self.letters.push(placed.letter(place, partition, edge, AHEAD));
                }
            }
            ApplyItem::Barrier { id, shards } => {
                self.barriers.push(BarrierMark { id: *id, partition, shards: *shards });
            }
            ApplyItem::Watermark(at) => {
                let highest = self.watermarks.entry(partition).or_default();
                *highest = (*highest).max(*at);
            }
            ApplyItem::Dead { edge, cause } => {
                self.letters.push(placed.letter(place, partition, *edge, cause));
            }
            ApplyItem::Nothing => {}
        }
        Ok(())
    }

    fn apply(&mut self, catalog: &Catalog, record: &EdgeRecord) -> Result<(), SqlError> {
        let kind = catalog.kind(record.key.tenant, record.key.kind).ok_or_else(|| {
            // The caller looked; a kind is never removed.
            SqlError::Busy("a record's kind is not in the catalog".into())
        })?;
        self.fold.apply(kind, record);
        Ok(())
    }

    fn statements(
        &self,
        place: &BatchLog,
        own: &[&Slice],
        foreseen: &Foreseen<'_>,
        now_ms: u64,
    ) -> Vec<String> {
        let mut statements = Vec::new();
        statements::write_fold(&mut statements, &self.fold, |key| foreseen.row(key));
        if !self.barriers.is_empty() {
            statements.push(barrier::mark(&self.barriers, now_ms));
        }
        if !self.letters.is_empty() {
            dead_letters::insert_statements(&mut statements, &self.letters, now_ms);
        }
        let mut positions: Vec<(u32, LogPosition, u64)> = own
            .iter()
            .map(|slice| {
                let watermark = self.watermarks.get(&slice.partition).copied().unwrap_or_default();
                (slice.partition, slice.next, watermark)
            })
            .collect();
        positions.sort_unstable();
        statements.push(statements::set_positions(&place.topic, &positions));
        statements.push("COMMIT".into());
        statements
    }
}

/// A row that was not there could not be locked; another applier (of the other log, in a change
/// from one to the other) inserted it meanwhile.
pub(crate) fn raced(error: SqlError) -> SqlError {
    match error.code() {
        Some(DUPLICATE_CODE) => SqlError::Busy(error.to_string()),
        _ => error,
    }
}

const DUPLICATE_CODE: u16 = 1062;

pub(crate) fn sorted(edges: impl Iterator<Item = EdgeKey>) -> Vec<IncomingKey> {
    let mut keys: Vec<IncomingKey> = edges.map(|edge| IncomingKey::of(&edge)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The rows of `select_incoming` or `select_outgoing` for these keys.
pub(crate) fn take(
    sets: &mut impl Iterator<Item = RowSet>,
    keys: &[IncomingKey],
) -> Result<Vec<(EdgeKey, EdgeRow)>, SqlError> {
    let mut taken = Vec::with_capacity(keys.len());
    for _ in 0..statements::pieces(keys) {
        for found in &sets.next().unwrap_or_default().rows {
            taken.push(rows::incoming(found)?);
        }
    }
    Ok(taken)
}

/// The positions of `lock_positions`, by partition.
pub(crate) fn positions(set: RowSet) -> Result<BTreeMap<u32, LogPosition>, SqlError> {
    set.rows.iter().map(|row| Ok((rows::cell(row, 0)?, position(row, 1)?))).collect()
}

/// A position from `statements::POSITION_COLUMNS`, the first of which is this one.
pub(crate) fn position(row: &mysql::Row, first: usize) -> Result<LogPosition, SqlError> {
    let next = rows::cell(row, first)?;
    let topic = TopicId(rows::cell(row, first + 1)?);
    Ok(LogPosition { next, topic, before: RecordMark(rows::cell(row, first + 2)?) })
}
