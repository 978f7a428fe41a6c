//! The filter's reading and writing. What may be believed and what is owed is decided by its pure
//! part (`guanxi_model::filter`); here commands are sent by it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::filter::command::{
    ASK_WORDS_MAX, SEAL_BIT, SET, SET_ITEMS_MAX, masks, shard_key, word_bit, word_byte,
};
use guanxi_model::filter::{Ask, Asker, Say, Seal, Spot, StandingFilter, met};
use guanxi_model::footprint::NO_KIND;
use guanxi_model::{EdgeKey, TenantId};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};
use rustc_hash::FxHashSet;

use super::plans::{MemoryPart, Plans, now_ms};
use super::tier::{MemoryError, RedisScript, ScriptCall, Tier};
use crate::sql::SqlError;
use crate::sql::commit_deadline::CommitBy;

const PLACE: u32 = MemoryPart::Filter.place();
/// How long a reader waits: longer than Redis takes, shorter than the database.
const ASK_LIMIT: Duration = Duration::from_millis(50);
/// How often an idle filter is looked for.
const WATCH_EVERY: Duration = Duration::from_secs(1);
/// Ids that are known to be met: some megabytes.
const MET_MAX: usize = 65_536;
/// Generations of which they are known: the one that serves, and the one that is being built.
const MET_SEALS_MAX: usize = 2;
/// How long a writer waits before it takes the filter from everybody, which is dear.
const SET_LIMIT: Duration = Duration::from_millis(500);

/// What became of the questions, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FilterFigures {
    /// Edges that were asked about.
    pub asked: u64,
    pub surely_not: u64,
    pub maybe: u64,
    /// The filter was not to be believed, or not to be reached.
    pub unknown: u64,
}

#[derive(Debug)]
pub struct ExistenceFilter {
    tier: Option<Tier>,
    plans: Arc<Plans>,
    set: RedisScript,
    /// By seal, ids whose bits stand there: most that a write speaks of were met before.
    met: Mutex<Vec<(Seal, FxHashSet<EdgeKey>)>>,
    counts: FilterCounts,
}

#[derive(Debug, Default)]
struct FilterCounts {
    surely_not: AtomicU64,
    maybe: AtomicU64,
    unknown: AtomicU64,
    /// The seal that the last question did not find where it should be; 0 when it did.
    gone: AtomicU64,
}

impl ExistenceFilter {
    /// Without a tier it can believe and set nothing, and sees to it that nobody else believes what
    /// this instance cannot set.
    pub fn new(tier: Option<Tier>, plans: Arc<Plans>) -> ExistenceFilter {
        let (met, counts) = (Mutex::default(), FilterCounts::default());
        ExistenceFilter { tier, plans, set: RedisScript::new(SET), met, counts }
    }

    pub fn figures(&self) -> FilterFigures {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (surely_not, maybe) = (count(&self.counts.surely_not), count(&self.counts.maybe));
        let unknown = count(&self.counts.unknown);
        FilterFigures { asked: surely_not + maybe + unknown, surely_not, maybe, unknown }
    }

    /// Whether the edges may stand: one command per source's shard.
    pub async fn ask(&self, edges: &[EdgeKey]) -> Vec<Say> {
        let says = self.asked(edges).await.unwrap_or_else(|| vec![Say::Unknown; edges.len()]);
        let count = |say: Say| says.iter().filter(|said| **said == say).count() as u64;
        self.counts.surely_not.fetch_add(count(Say::SurelyNot), Ordering::Relaxed);
        self.counts.maybe.fetch_add(count(Say::Maybe), Ordering::Relaxed);
        self.counts.unknown.fetch_add(count(Say::Unknown), Ordering::Relaxed);
        says
    }

    /// Whether a question may end here, as far as this instance knows: it reaches the Redis in which
    /// the plan says that one serves, and the last question found it there.
    pub fn serves(&self) -> bool {
        let lineage = self.tier.as_ref().and_then(Tier::link).map(|link| link.lineage());
        let askable = self.plans.held().and_then(|held| held.askable(lineage)).is_some();
        askable && !self.is_gone()
    }

    /// Whether the last question did not find what serves by the plan.
    pub fn is_gone(&self) -> bool {
        let serving = self.plans.held().and_then(|held| held.plan().serving);
        let gone = self.counts.gone.load(Ordering::Relaxed);
        serving.is_some_and(|standing| standing.seal.value() == gone)
    }

    /// Asks again and again about nobody, so that what is told of the filter is true also where
    /// nothing is asked of it. As long as the filter lives.
    pub fn watch(self: &Arc<Self>) {
        let Some(tier) = &self.tier else { return };
        let filter = Arc::downgrade(self);
        tier.task("guanxi-filter-watch", self, async move {
            while let Some(filter) = filter.upgrade() {
                let nobody = met(TenantId(0), fastrand::u64(..));
                let _noted = filter.asked(&[nobody]).await;
                drop(filter);
                tokio::time::sleep(WATCH_EVERY).await;
            }
        });
    }

    async fn asked(&self, edges: &[EdgeKey]) -> Option<Vec<Say>> {
        let mut link = self.tier.as_ref()?.link()?;
        let standing = self.plans.held()?.askable(Some(link.lineage()))?;
        let mut by_shard: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (index, edge) in edges.iter().enumerate() {
            by_shard.entry(Asker::of(edge).shard(standing.geometry)).or_default().push(index);
        }
        let mut commands = Pipeline::with_capacity(by_shard.len());
        let mut asks: Vec<(&[usize], Ask)> = Vec::with_capacity(by_shard.len());
        for (shard, indexes) in &by_shard {
            for indexes in indexes.chunks(ASK_WORDS_MAX) {
                let spots = indexes.iter().map(|index| Spot::of(&edges[*index], standing.geometry));
                let ask = Ask::new(spots);
                commands.add_command(question(&standing, *shard, &ask));
                asks.push((indexes, ask));
            }
        }
        let replies = link.ask_all(&commands, ASK_LIMIT).await.ok()?;
        // Whether they are to be believed is asked after they have come.
        let believed = self.plans.held()?.believed(&standing, now_ms());
        let mut says = vec![Say::Unknown; edges.len()];
        for ((indexes, ask), reply) in asks.iter().zip(&replies) {
            let numbers: Vec<i64> = redis::from_redis_value_ref(reply).unwrap_or_default();
            for (index, say) in indexes.iter().zip(ask.answers(believed, &numbers)) {
                says[*index] = say;
            }
        }
        if believed.is_some() {
            let gone = if says.contains(&Say::Unknown) { standing.seal.value() } else { 0 };
            self.counts.gone.store(gone, Ordering::Relaxed);
        }
        Some(says)
    }

    /// Sees to it that these items may be committed: their bits are set wherever somebody may look
    /// for them, or nobody believes the filter any more. For threads that may block.
    pub fn let_commit(
        &self,
        items: &[EdgeKey],
        by: CommitBy,
        deadline: Instant,
    ) -> Result<CommitBy, SqlError> {
        if items.is_empty() {
            return Ok(by);
        }
        let allowed =
            self.plans.let_commit(deadline, |standing| self.set(standing, items).is_ok())?;
        Ok(by.min(allowed))
    }

    /// Sees to it that these items' bits stand in one generation. Ok when every command was answered
    /// over a connection of its lineage, though a shard may have lost its seal; true when none has.
    pub(super) fn set(
        &self,
        standing: &StandingFilter,
        items: &[EdgeKey],
    ) -> Result<bool, MemoryError> {
        let items = self.not_met(standing.seal, items);
        let all = items.is_empty() || self.set_bits(standing, &items)?;
        if all {
            self.note_met(standing.seal, items);
        }
        Ok(all)
    }

    /// Without ids whose bits were set under this seal: nobody takes them away from it.
    fn not_met(&self, seal: Seal, items: &[EdgeKey]) -> Vec<EdgeKey> {
        let met = self.met.lock();
        let known = met.iter().find(|(of, _)| *of == seal).map(|(_, met)| met);
        let is_new = |item: &&EdgeKey| known.is_none_or(|known| !known.contains(item));
        items.iter().filter(is_new).copied().collect()
    }

    fn note_met(&self, seal: Seal, mut items: Vec<EdgeKey>) {
        items.retain(|item| item.kind == NO_KIND);
        let mut met = self.met.lock();
        if !met.iter().any(|(of, _)| *of == seal) {
            met.truncate(MET_SEALS_MAX - 1);
            met.insert(0, (seal, FxHashSet::default()));
        }
        if let Some((_, known)) = met.iter_mut().find(|(of, _)| *of == seal) {
            if known.len() + items.len() > MET_MAX {
                known.clear();
            }
            known.extend(items.into_iter().take(MET_MAX));
        }
    }

    fn set_bits(&self, standing: &StandingFilter, edges: &[EdgeKey]) -> Result<bool, MemoryError> {
        let away = || MemoryError::Away("there is no connection of its lineage".into());
        let tier = self.tier.as_ref().ok_or_else(away)?;
        let link = tier.await_link(SET_LIMIT).filter(|link| link.lineage() == standing.lineage);
        let mut link = link.ok_or_else(away)?;
        let mut by_shard: BTreeMap<u32, Vec<Spot>> = BTreeMap::new();
        for edge in edges {
            let spots = by_shard.entry(Asker::of(edge).shard(standing.geometry)).or_default();
            spots.push(Spot::of(edge, standing.geometry));
        }
        let mut sets = Vec::new();
        for (shard, spots) in by_shard {
            let key = shard_key(PLACE, standing.generation, shard).into_bytes();
            sets.extend(masks(spots).chunks(SET_ITEMS_MAX).map(|spots| {
                let mut arguments = vec![standing.seal.value().to_be_bytes().to_vec()];
                for spot in spots {
                    arguments.push(word_byte(spot.word).to_string().into_bytes());
                    arguments.push(spot.mask.to_be_bytes().to_vec());
                }
                ScriptCall { key: key.clone(), arguments }
            }));
        }
        let mut all = true;
        for answer in tier.wait(link.call_all(&self.set, &sets, SET_LIMIT))? {
            match answer {
                Value::Int(1) => {}
                Value::Int(0) => all = false,
                other => return Err(MemoryError::Refused(format!("{other:?}"))),
            }
        }
        Ok(all)
    }
}

fn question(standing: &StandingFilter, shard: u32, ask: &Ask) -> Cmd {
    let mut command = redis::cmd("BITFIELD_RO");
    command.arg(shard_key(PLACE, standing.generation, shard));
    command.arg("GET").arg("i64").arg(SEAL_BIT);
    for word in ask.words() {
        command.arg("GET").arg("i64").arg(word_bit(*word));
    }
    command
}
