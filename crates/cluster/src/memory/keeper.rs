//! Keeps a part of the memory: fills the filter from the database, sees when shards are gone, lets it
//! grow, and takes it back when Redis is another than it was. What to do next is decided by the
//! filter's pure part; one instance does it, by lease, though two would do no harm. The lists are
//! filled by those who ask for them, so a generation of theirs is a seal and nothing more.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::{Next, Signal};
use guanxi_model::filter::command::{ledger_key, shard_key};
use guanxi_model::filter::header::{FORMAT, HEADER_BYTES, SEAL_BYTE};
use guanxi_model::filter::plan::{PLAN_AGE_MAX_MS, Retired};
use guanxi_model::filter::{
    FillNeed, FillProgress, FilterStep, Generation, Geometry, HeldPlan, Seal, ShardHeader, Sight,
    StandingFilter, items_of, met, next_step,
};
use guanxi_model::{EdgeKey, KindId, SourceId, State, TargetId, TenantId};
use redis::{Pipeline, Value};

use super::filter::ExistenceFilter;
use super::plans::{Plans, now_ms};
use super::tier::{MemoryError, Tier, TierLink};
use crate::catalog::SharedCatalog;
use crate::leases::{Leases, Share};
use crate::rows::cell;
use crate::sql::commit_deadline::ENDED_AFTER;
use crate::sql::{Database, SqlError, commit_in_doubt};

/// Between two looks while something is to be done, and while nothing is.
const STEP_PAUSE: Duration = Duration::from_millis(200);
const WATCH_PAUSE: Duration = Duration::from_secs(2);
/// Without Redis for so long, the work is left to an instance that has it.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);
/// Between two beginnings: an instance that cannot reach Redis ends each at once.
const BEGIN_PAUSE: Duration = Duration::from_secs(10);
/// The pause before writes that do not end are waited for again.
const FAILED_PAUSE: Duration = Duration::from_secs(1);
/// Edges of one page of the scan, and of one command to Redis at most.
const PAGE_ROWS: usize = 2_000;
/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);
/// How long Redis may take for a pipeline of headers, or to count the bits of a shard.
const LIMIT: Duration = Duration::from_secs(2);
/// Shards whose headers are written, read or deleted at once.
const SHARDS_AT_ONCE: usize = 256;

pub struct KeeperParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub leases: Arc<Leases>,
    pub tier: Tier,
    pub plans: Arc<Plans>,
    /// What is filled, where that is the keeper's to do.
    pub filter: Option<Arc<ExistenceFilter>>,
}

/// Starts the thread that keeps one part.
pub fn keep(parts: KeeperParts) -> io::Result<Workers> {
    let part = parts.plans.part().name();
    let (group, lease) = parts.plans.part().lease();
    let share = parts.leases.share(group, vec![lease.into()]);
    let workers = parts.crew.workers();
    let signal = workers.signal().clone();
    let (progress, begun, linked) = (None, None, Instant::now());
    let mut work = KeeperWork { parts, share, signal, progress, begun, linked };
    let (trouble, backoff) = ("Redis could not be looked after", Backoff::default());
    workers.repeat(format!("guanxi-{part}"), trouble, backoff, move |_| match work.turn() {
        Err(KeeperTrouble::Over) => Ok(Next::After(WATCH_PAUSE)),
        turned => turned.map(Next::After),
    })?;
    Ok(workers)
}

#[derive(Debug, thiserror::Error)]
enum KeeperTrouble {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Not an error: the lease is gone, or the instance ends.
    #[error("it is no longer this instance's to do")]
    Over,
}

struct KeeperWork {
    parts: KeeperParts,
    share: Share,
    signal: Signal,
    progress: Option<FillProgress>,
    begun: Option<Instant>,
    /// When Redis was there last.
    linked: Instant,
}

impl KeeperWork {
    /// Does the next step; returns how long to wait before the one after it.
    fn turn(&mut self) -> Result<Duration, KeeperTrouble> {
        let link = self.parts.tier.link();
        if link.is_some() {
            self.linked = Instant::now();
        }
        let given_up = self.linked.elapsed() >= GIVEN_UP_AFTER;
        self.parts.leases.step_aside(&[self.parts.plans.part().lease().0], given_up);
        let Some(mut link) = link.filter(|_| self.share.lease(0).is_some()) else {
            self.progress = None;
            return Ok(WATCH_PAUSE);
        };
        let held = self.parts.plans.look()?;
        let sight = self.look_round(&held, &mut link)?;
        let step = next_step(&held, &sight, self.progress.as_ref(), now_ms());
        let plans = &self.parts.plans;
        match step {
            FilterStep::Follow => return Ok(WATCH_PAUSE),
            FilterStep::Publish(plan) => {
                let serves = plan.serving.is_some() && held.plan().serving != plan.serving;
                plans.publish(&plan)?;
                if serves {
                    tracing::info!(part = plans.part().name(), "it is filled and used");
                }
            }
            FilterStep::Prepare { .. }
                if self.begun.is_some_and(|at| at.elapsed() < BEGIN_PAUSE) => {}
            FilterStep::Prepare { generation, geometry, fill } => {
                if !sight.serving_whole {
                    let part = plans.part().name();
                    tracing::warn!(
                        part,
                        "keys are gone, flushed or evicted: reads ask the database until others are filled"
                    );
                }
                self.begun = Some(Instant::now());
                self.prepare(&held, &mut link, generation, geometry, fill)?;
            }
            FilterStep::Fence => self.fence(&held)?,
            FilterStep::Fill(_) => self.fill(&held)?,
            FilterStep::Delete(Retired { generation, geometry }) => {
                self.delete(&mut link, generation, geometry)?;
                plans.publish(&held.plan().deleted(generation))?;
            }
        }
        Ok(STEP_PAUSE)
    }

    fn look_round(&self, held: &HeldPlan, link: &mut TierLink) -> Result<Sight, KeeperTrouble> {
        let plan = held.plan();
        let lineage = link.lineage();
        let mut whole = |standing: Option<StandingFilter>, chunks: &[Range<u32>]| match standing {
            Some(standing) if standing.lineage == lineage => self.bear(link, &standing, chunks),
            _ => Ok(true),
        };
        // What is missing is unknown by itself: some of many shards at a time are enough.
        let some: Vec<_> = plan.serving.iter().filter_map(|it| some_chunk(it.geometry)).collect();
        let serving_whole = whole(plan.serving, &some)?;
        let building = plan.building.map(|building| building.standing);
        let all: Vec<_> = building.iter().flat_map(|it| chunks(it.geometry)).collect();
        let building_whole = whole(building, &all)?;
        let items = match plan.serving.filter(|standing| standing.lineage == lineage) {
            Some(serving) => self.items_in(link, &serving)?,
            None => self.items_in_database()?,
        };
        // What was withdrawn is built anew: positions of the log are not kept in Redis.
        Ok(Sight { lineage, serving_whole, building_whole, resumable: false, items })
    }

    /// Whether each of these shards bears its seal.
    fn bear(
        &self,
        link: &mut TierLink,
        standing: &StandingFilter,
        chunks: &[Range<u32>],
    ) -> Result<bool, KeeperTrouble> {
        let seal = standing.seal.value().to_be_bytes();
        for shards in chunks.iter().cloned() {
            let mut commands = Pipeline::with_capacity(shards.len());
            for shard in shards {
                let key = shard_key(self.place(), standing.generation, shard);
                commands.cmd("GETRANGE").arg(key).arg(SEAL_BYTE).arg(SEAL_BYTE + seal.len() - 1);
            }
            let answers = self.parts.tier.wait(link.ask_all(&commands, LIMIT))?;
            let bears =
                |answer: &Value| matches!(answer, Value::BulkString(found) if *found == seal);
            if !answers.iter().all(bears) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// About how many items a generation has, by one of its shards.
    fn items_in(
        &self,
        link: &mut TierLink,
        standing: &StandingFilter,
    ) -> Result<u64, KeeperTrouble> {
        let geometry = standing.geometry;
        let shard = fastrand::u32(..geometry.shards());
        let mut count = redis::cmd("BITCOUNT");
        count.arg(shard_key(self.place(), standing.generation, shard)).arg(HEADER_BYTES).arg(-1);
        let answer = self.parts.tier.wait(link.ask(&count, LIMIT))?;
        let ones = if let Value::Int(ones) = answer { ones as u64 } else { 0 };
        Ok(geometry.items_estimated(ones, u64::from(geometry.words())))
    }

    fn place(&self) -> u32 {
        self.parts.plans.part().place()
    }

    /// About how many edges there are, tombstones too: what the database guesses.
    fn items_in_database(&self) -> Result<u64, KeeperTrouble> {
        if self.parts.filter.is_none() {
            return Ok(0);
        }
        let rows = self.parts.database.session(Instant::now() + SESSION_WAIT)?.rows(
            "SELECT CAST(COALESCE(MAX(table_rows),0) AS UNSIGNED) FROM information_schema.tables \
             WHERE table_schema=DATABASE() AND table_name='outgoing'",
        )?;
        Ok(rows.first().map_or(Ok(0), |row| cell(row, 0))?)
    }

    /// Makes the shards of a new generation, empty and sealed, and says so.
    fn prepare(
        &mut self,
        held: &HeldPlan,
        link: &mut TierLink,
        generation: Generation,
        geometry: Geometry,
        fill: FillNeed,
    ) -> Result<(), KeeperTrouble> {
        let Some(seal) = Seal::new(fastrand::u64(1..)) else { return Ok(()) };
        self.delete(link, generation, geometry)?;
        for shards in chunks(geometry) {
            let mut commands = Pipeline::with_capacity(shards.len());
            for shard in shards {
                let header =
                    ShardHeader { seal: Some(seal), format: FORMAT, geometry, shard, generation };
                let key = shard_key(self.place(), generation, shard);
                commands.cmd("SET").arg(key).arg(&header.encode()[..]);
            }
            let answers = self.parts.tier.wait(link.ask_all(&commands, LIMIT))?;
            if let Some(refused) = answers.iter().find(|answer| **answer != Value::Okay) {
                return Err(MemoryError::Refused(format!("{refused:?}")).into());
            }
        }
        let lineage = link.lineage();
        let standing = StandingFilter { generation, format: FORMAT, geometry, seal, lineage };
        let part = self.parts.plans.part().name();
        tracing::info!(part, generation = generation.0, shards = geometry.shards(), "it is begun");
        self.parts.plans.publish(&held.plan().announced(standing, fill))?;
        self.progress = Some(FillProgress::new(seal));
        Ok(())
    }

    /// Waits until no write is under way that does not know what is being built.
    fn fence(&mut self, held: &HeldPlan) -> Result<(), KeeperTrouble> {
        let Some(building) = held.plan().building else { return Ok(()) };
        let mut progress = FillProgress::new(building.standing.seal);
        let age = Duration::from_millis(PLAN_AGE_MAX_MS);
        let until = Instant::now() + age + ENDED_AFTER;
        while Instant::now() < until {
            self.go_on()?;
            self.signal.wait(STEP_PAUSE);
        }
        // Those that are being committed may take longer.
        while let Err(error) = self.await_writes() {
            let part = self.parts.plans.part().name();
            tracing::warn!(part, %error, "a write does not end: it is not filled before");
            self.go_on()?;
            self.signal.wait(FAILED_PAUSE);
        }
        progress.fenced = true;
        self.progress = Some(progress);
        Ok(())
    }

    fn await_writes(&self) -> Result<(), SqlError> {
        commit_in_doubt::await_all(&mut self.parts.database.session(Instant::now() + SESSION_WAIT)?)
    }

    fn fill(&mut self, held: &HeldPlan) -> Result<(), KeeperTrouble> {
        let Some(building) = held.plan().building else { return Ok(()) };
        if let Some(filter) = self.parts.filter.clone() {
            self.fill_filter(&filter, &building.standing)?;
        }
        if let Some(progress) = &mut self.progress {
            progress.filled = true;
        }
        Ok(())
    }

    /// Sets the bits of every live and pending edge.
    fn fill_filter(
        &self,
        filter: &ExistenceFilter,
        standing: &StandingFilter,
    ) -> Result<(), KeeperTrouble> {
        let begun = Instant::now();
        // Every kind that had edges before the fence; later ones have all their bits.
        self.parts.catalog.refresh(&self.parts.database)?;
        let catalog = self.parts.catalog.current();
        let mut edges = 0;
        for tenant in catalog.tenants() {
            for kind in catalog.kinds(tenant) {
                let of = format!("tenant={} AND kind={}", tenant.0, kind.id.0);
                let met =
                    |table, column| self.fill_met(filter, standing, tenant, table, &of, column);
                if kind.fixed.counter {
                    met("counter", "node")?;
                } else {
                    met("`groups`", "source")?;
                    edges += self.fill_kind(filter, standing, tenant, kind.id)?;
                }
            }
            for (node_type, _) in catalog.types(tenant) {
                let of = format!("tenant={} AND node_type={}", tenant.0, node_type.0);
                self.fill_met(filter, standing, tenant, "nodes", &of, "id")?;
            }
        }
        let took_ms = begun.elapsed().as_millis() as u64;
        tracing::info!(edges, took_ms, "the filter has every edge");
        Ok(())
    }

    fn fill_kind(
        &self,
        filter: &ExistenceFilter,
        standing: &StandingFilter,
        tenant: TenantId,
        kind: KindId,
    ) -> Result<u64, KeeperTrouble> {
        let removed = State::Removed as u8;
        let (mut place, mut filled) = (None, 0);
        loop {
            self.go_on()?;
            let after = place.map_or_else(String::new, |(source, target): (u64, u64)| {
                format!(" AND (source>{source} OR (source={source} AND target>{target}))")
            });
            let rows = self.parts.database.session(Instant::now() + SESSION_WAIT)?.rows(&format!(
                "SELECT source,target,state,owner FROM outgoing FORCE INDEX (PRIMARY) WHERE tenant={} \
                 AND kind={}{after} ORDER BY tenant,kind,source,target LIMIT {PAGE_ROWS}",
                tenant.0, kind.0
            ))?;
            let mut items = Vec::with_capacity(3 * rows.len());
            for row in &rows {
                let (source, target) = (cell(row, 0)?, cell(row, 1)?);
                place = Some((source, target));
                if cell::<u8>(row, 2)? != removed {
                    let (source, target) = (SourceId(source), TargetId(target));
                    items.extend(items_of(EdgeKey { tenant, kind, source, target }, cell(row, 3)?));
                    filled += 1;
                }
            }
            set(filter, standing, &items)?;
            if rows.len() < PAGE_ROWS {
                return Ok(filled);
            }
        }
    }

    /// Sets the bits of every id in this column of a table whose key begins with `of` and it.
    fn fill_met(
        &self,
        filter: &ExistenceFilter,
        standing: &StandingFilter,
        tenant: TenantId,
        table: &str,
        of: &str,
        column: &str,
    ) -> Result<(), KeeperTrouble> {
        let mut after = 0_u64;
        loop {
            self.go_on()?;
            let rows =
                self.parts.database.session(Instant::now() + SESSION_WAIT)?.rows(&format!(
                    "SELECT DISTINCT {column} FROM {table} WHERE {of} AND {column}>{after} \
                 ORDER BY {column} LIMIT {PAGE_ROWS}"
                ))?;
            let ids = rows.iter().map(|row| cell(row, 0)).collect::<Result<Vec<u64>, _>>()?;
            let items: Vec<EdgeKey> = ids.iter().map(|id| met(tenant, *id)).collect();
            set(filter, standing, &items)?;
            match ids.last() {
                Some(last) if ids.len() == PAGE_ROWS => after = *last,
                _ => return Ok(()),
            }
        }
    }

    fn delete(
        &self,
        link: &mut TierLink,
        generation: Generation,
        geometry: Geometry,
    ) -> Result<(), KeeperTrouble> {
        for shards in chunks(geometry) {
            let mut commands = Pipeline::with_capacity(shards.len() + 1);
            commands.cmd("UNLINK").arg(ledger_key(self.place(), generation));
            for shard in shards {
                commands.cmd("UNLINK").arg(shard_key(self.place(), generation, shard));
            }
            self.parts.tier.wait(link.ask_all(&commands, LIMIT))?;
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), KeeperTrouble> {
        match self.signal.is_stopped() || self.share.lease(0).is_none() {
            true => Err(KeeperTrouble::Over),
            false => Ok(()),
        }
    }
}

fn set(
    filter: &ExistenceFilter,
    standing: &StandingFilter,
    items: &[EdgeKey],
) -> Result<(), KeeperTrouble> {
    match filter.set(standing, items)? {
        true => Ok(()),
        // A shard is gone: the next look finds it, and gives this generation up.
        false => Err(KeeperTrouble::Over),
    }
}

/// The numbers of a generation's shards, so many at once.
fn chunks(geometry: Geometry) -> impl Iterator<Item = Range<u32>> {
    let (shards, at_once) = (geometry.shards(), SHARDS_AT_ONCE as u32);
    (0..shards).step_by(SHARDS_AT_ONCE).map(move |first| first..(first + at_once).min(shards))
}

/// Any of these.
fn some_chunk(geometry: Geometry) -> Option<Range<u32>> {
    let chunks: Vec<_> = chunks(geometry).collect();
    fastrand::choice(chunks)
}
