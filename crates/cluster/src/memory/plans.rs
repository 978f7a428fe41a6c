//! The plan of a part of the memory as this instance holds it: read from the database several times
//! in the age at which it is no longer believed, and changed there by compare-and-set. Every writer
//! asks it before it commits. The epoch of the values comes with it.

use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::Next;
use guanxi_model::codec::{CodecError, Decoder, Encoder};
use guanxi_model::filter::plan::{PLAN_AGE_MAX_MS, Retired};
use guanxi_model::filter::{
    Building, FillNeed, FilterLineage, FilterPlan, Generation, Geometry, HeldPlan, PlanReading,
    Seal, StandingFilter, WriterStep,
};
use parking_lot::Mutex;

use super::epoch;
use crate::rows::cell;
use crate::sql::commit_deadline::CommitBy;
pub(super) use crate::sql::commit_deadline::boot_ms as now_ms;
use crate::sql::text::NOW_MS;
use crate::sql::{Database, SqlError, text};

/// A part of the memory that is believed only while every writer keeps it. Each has its own row and
/// its own server, if it is given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPart {
    Filter,
    /// Its generations are all seal: what a list's string must bear to be believed.
    Lists,
}

impl MemoryPart {
    /// In the key of its row, and in the names of its keys.
    pub(super) const fn place(self) -> u32 {
        match self {
            MemoryPart::Filter => 0,
            MemoryPart::Lists => 1,
        }
    }

    /// The group of its keeper's lease, and the lease's name in it.
    pub(super) const fn lease(self) -> (&'static str, &'static str) {
        match self {
            MemoryPart::Filter => ("memory", "filter"),
            MemoryPart::Lists => ("memory_lists", "lists"),
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            MemoryPart::Filter => "filter",
            MemoryPart::Lists => "lists",
        }
    }
}

/// How often the plan is read.
const LOOK_EVERY: Duration = Duration::from_millis(PLAN_AGE_MAX_MS / 4);
/// How long a reading may wait for a connection.
const LOOK_WAIT: Duration = Duration::from_secs(2);
/// The layout of a plan's row.
const ROW_FORMAT: u8 = 1;

/// What this instance knows of the plan.
#[derive(Debug)]
pub struct Plans {
    /// Dropped first: its thread ends unasked when it finds nothing else of this.
    workers: Workers,
    part: MemoryPart,
    database: Arc<Database>,
    state: Mutex<PlanCopy>,
}

#[derive(Debug, Default)]
struct PlanCopy {
    held: Option<HeldPlan>,
    /// The epoch of the values, and when it was asked for.
    epoch: Option<(u64, u64)>,
}

impl Plans {
    /// Reads the plan for the first time, and begins to look after it.
    pub fn start(crew: &Crew, part: MemoryPart, database: Arc<Database>) -> io::Result<Arc<Plans>> {
        let plans =
            Arc::new(Plans { workers: crew.workers(), part, database, state: Mutex::default() });
        if let Err(error) = plans.look() {
            tracing::warn!(part = part.name(), %error, "a plan of the memory could not be read yet");
        }
        let own = Arc::downgrade(&plans);
        let name = format!("guanxi-plan-{}", part.name());
        let trouble = "a plan of the memory could not be read";
        plans.workers.repeat(name, trouble, Backoff::default(), move |_| {
            let Some(plans) = own.upgrade() else { return Ok(Next::Never) };
            plans.look()?;
            Ok::<_, SqlError>(Next::After(LOOK_EVERY))
        })?;
        Ok(plans)
    }

    pub fn part(&self) -> MemoryPart {
        self.part
    }

    /// The plan as it was read last; whoever acts by it asks it whether it is fresh.
    pub fn held(&self) -> Option<HeldPlan> {
        self.state.lock().held.clone()
    }

    /// The epoch of the values, unless what is known of it is too old.
    pub fn epoch(&self) -> Option<u64> {
        let (epoch, asked_ms) = self.state.lock().epoch?;
        (now_ms().saturating_sub(asked_ms) <= PLAN_AGE_MAX_MS).then_some(epoch)
    }

    /// Reads the plan now.
    pub fn look(&self) -> Result<HeldPlan, SqlError> {
        let asked_ms = now_ms();
        let mut session = self.database.session(Instant::now() + LOOK_WAIT)?;
        let place = self.part.place();
        // The time comes first: what was changed before it is seen.
        let statements = format!(
            "SELECT {NOW_MS};SELECT plan FROM filter_plan WHERE place={place};{}",
            epoch::select()
        );
        let mut sets = session.run(&statements)?;
        drop(session);
        let found = epoch::read(&sets.pop().unwrap_or_default().rows)?;
        let rows = sets.pop().unwrap_or_default().rows;
        let times = sets.pop().unwrap_or_default().rows;
        let there_ms = times.first().map_or(Ok(0), |row| cell(row, 0))?;
        let plan = match rows.first() {
            None => FilterPlan::default(),
            Some(row) => {
                let unreadable = |error: CodecError| {
                    SqlError::Refused(format!("a plan of the memory cannot be read: {}", error.0))
                };
                decode(&cell::<Vec<u8>>(row, 0)?).map_err(unreadable)?
            }
        };
        let asked = PlanReading { here_ms: asked_ms, there_ms };
        let mut state = self.state.lock();
        if state.epoch.is_none_or(|(known, at_ms)| (found, asked_ms) >= (known, at_ms)) {
            state.epoch = Some((found, asked_ms));
        }
        let held = match state.held.take() {
            // Two may look at once, and the older answer come later.
            Some(held) if held.plan().revision > plan.revision => held,
            Some(mut held) => {
                held.renew(plan, asked, now_ms());
                held
            }
            None => HeldPlan::new(plan, asked, now_ms()),
        };
        state.held = Some(held.clone());
        Ok(held)
    }

    /// Puts a plan in the place of the one that it was made from, unless another change came first;
    /// either way the plan that stands is held afterwards.
    pub fn publish(&self, plan: &FilterPlan) -> Result<HeldPlan, SqlError> {
        let (place, old, new) = (self.part.place(), plan.revision - 1, plan.revision);
        let mut statement =
            format!("BEGIN; INSERT INTO filter_plan (place,revision,plan) VALUES ({place},{new},");
        text::bytes(&mut statement, &encode(plan));
        // The revision comes last: the plan asks for it.
        let _ = write!(
            statement,
            ") ON DUPLICATE KEY UPDATE plan=IF(revision={old},VALUES(plan),plan), \
             revision=IF(revision={old},VALUES(revision),revision); COMMIT"
        );
        self.database.session(Instant::now() + LOOK_WAIT)?.run(&statement)?;
        self.look()
    }

    /// Lets a write go on when all that somebody may believe was `reached`, or when nobody believes
    /// what was not: then that is taken from the readers and waited for. Returns the write's
    /// deadline, by when the plan was asked for: a machine that was stopped together with its
    /// clocks takes an old one for fresh. For threads that may block.
    pub fn let_commit(
        &self,
        deadline: Instant,
        reached: impl Fn(&StandingFilter) -> bool,
    ) -> Result<CommitBy, SqlError> {
        let mut held = match self.held() {
            Some(held) => held,
            None => self.look()?,
        };
        loop {
            let reached: Vec<StandingFilter> =
                held.owed().filter(|standing| reached(standing)).copied().collect();
            match held.permission(now_ms(), |standing| reached.contains(standing)) {
                WriterStep::Commit => {
                    return Ok(CommitBy::of_allowed(held.there_ms() + PLAN_AGE_MAX_MS));
                }
                WriterStep::Reread => held = self.look()?,
                WriterStep::Publish(plan) => {
                    let part = self.part.name();
                    tracing::warn!(
                        part,
                        "Redis does not take what a write must tell it: it is not asked until it was filled again"
                    );
                    held = self.publish(&plan)?;
                }
                WriterStep::Hold { until_ms } => {
                    let wait = Duration::from_millis(until_ms.saturating_sub(now_ms()));
                    std::thread::sleep(
                        wait.min(deadline.saturating_duration_since(Instant::now())),
                    );
                    held = self.look()?;
                }
            }
            if Instant::now() >= deadline {
                return Err(SqlError::Away("the memory could not be taken back in time".into()));
            }
        }
    }

    pub fn close(&self) {
        self.workers.stop();
    }
}

fn encode(plan: &FilterPlan) -> Vec<u8> {
    let mut out = Encoder::with_capacity(256);
    out.u8(ROW_FORMAT);
    out.varint(plan.revision);
    out.varint(plan.last.0);
    out.option(plan.serving.as_ref(), standing);
    out.option(plan.building.as_ref(), |out, building| {
        out.bool(building.fill == FillNeed::Scan);
        standing(out, &building.standing);
    });
    out.varint(plan.leaving.len() as u64);
    for leaving in &plan.leaving {
        standing(&mut out, leaving);
    }
    out.option(plan.withdrawn.as_ref(), standing);
    out.varint(plan.retired.len() as u64);
    for Retired { generation, geometry: size } in &plan.retired {
        out.varint(generation.0);
        geometry(&mut out, *size);
    }
    out.into_bytes()
}

fn standing(out: &mut Encoder, standing: &StandingFilter) {
    let StandingFilter { generation, format, geometry: size, seal, lineage } = standing;
    out.varint(generation.0);
    out.varint(u64::from(*format));
    geometry(out, *size);
    out.fixed_u64(seal.value());
    out.fixed_u128(lineage.0);
}

fn geometry(out: &mut Encoder, geometry: Geometry) {
    out.u8(geometry.shards_log2());
    out.u8(geometry.blocks_log2());
}

fn decode(bytes: &[u8]) -> Result<FilterPlan, CodecError> {
    let mut from = Decoder::new(bytes);
    if from.u8()? != ROW_FORMAT {
        return Err(CodecError("it is of a newer release".into()));
    }
    let revision = from.varint()?;
    let last = Generation(from.varint()?);
    let serving = from.option(read_standing)?;
    let building = from.option(|from| {
        let fill = if from.bool()? { FillNeed::Scan } else { FillNeed::Replay };
        Ok(Building { standing: read_standing(from)?, fill })
    })?;
    let leaving = (0..from.count()?).map(|_| read_standing(&mut from)).collect::<Result<_, _>>()?;
    let withdrawn = from.option(read_standing)?;
    let mut retired = Vec::new();
    for _ in 0..from.count()? {
        let generation = Generation(from.varint()?);
        retired.push(Retired { generation, geometry: read_geometry(&mut from)? });
    }
    from.finish()?;
    Ok(FilterPlan { revision, last, serving, building, leaving, withdrawn, retired })
}

fn read_standing(from: &mut Decoder<'_>) -> Result<StandingFilter, CodecError> {
    let generation = Generation(from.varint()?);
    let format = from.varint_u16()?;
    let geometry = read_geometry(from)?;
    let seal = Seal::new(from.fixed_u64()?).ok_or_else(|| CodecError("there is no seal".into()))?;
    Ok(StandingFilter {
        generation,
        format,
        geometry,
        seal,
        lineage: FilterLineage(from.fixed_u128()?),
    })
}

fn read_geometry(from: &mut Decoder<'_>) -> Result<Geometry, CodecError> {
    let (shards_log2, blocks_log2) = (from.u8()?, from.u8()?);
    let unknown = || CodecError(format!("there is no geometry {shards_log2}, {blocks_log2}"));
    Geometry::new(shards_log2, blocks_log2).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_was_written() {
        let standing = |generation: u64| StandingFilter {
            generation: Generation(generation),
            format: 1,
            geometry: Geometry::for_items(generation * 1_000_000),
            seal: Seal::new(generation << 40 | 7).unwrap(),
            lineage: FilterLineage(u128::from(generation) << 90),
        };
        let retired = Retired { generation: Generation(2), geometry: Geometry::for_items(1) };
        let full = FilterPlan {
            revision: 300,
            last: Generation(9),
            serving: Some(standing(8)),
            building: Some(Building { standing: standing(9), fill: FillNeed::Replay }),
            leaving: vec![standing(6), standing(7)],
            withdrawn: Some(standing(5)),
            retired: vec![retired; 3],
        };
        for plan in [FilterPlan::default(), full] {
            let bytes = encode(&plan);
            assert!(bytes.len() <= 2_048, "it fits its column");
            assert_eq!(decode(&bytes).unwrap(), plan);
            assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        }
        assert!(decode(&[9]).unwrap_err().0.contains("newer"));
    }
}
