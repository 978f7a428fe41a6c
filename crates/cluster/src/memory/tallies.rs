//! Target-side tallies in Redis: one string per node (`packed`), filled by whoever had to ask the
//! database (`filler`), kept right by the follower.
//!
//! **Never wrong for long.** A field carries the stamp of its row, and a merge keeps the higher one,
//! so writes may come in any order. What a stamp cannot tell is whether the follower has passed by
//! while the string was not there. So whoever means to fill makes the string first, or has seen it,
//! and only then reads the database; what it read is merged only into that same string (by its
//! token). As long as the string stands, the follower refreshes it; once it is gone, late words of it
//! find no place.
//!
//! **Believed only while it is followed.** The follower says in Redis, again and again, up to which
//! moment everything applied is in there, in which epoch and on which lineage. Without a fresh word
//! of that, nothing is known. The source's side is not kept here: it is promised to be current.
//!
//! **Counters** are not in the log, so the follower does not see them. Who has committed some deletes
//! their strings within a second (`filler`); the next reader fills them anew, by a claim from after
//! the commit. Where that word is lost, because an instance ended or could not reach Redis, a
//! counter's own life bounds its age.

mod filler;
pub mod packed;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use guanxi_core::crew::Crew;
use guanxi_model::filter::FilterLineage;
use guanxi_model::{Catalog, KindId, NodeKey, TallyRow, Which};
use redis::{Pipeline, Value};

use self::filler::{Refresh, TallyFill, TallyFiller};
use self::packed::{PackedTallies, StringToken, TallyField};
use super::plans::Plans;
use super::tier::{MemoryError, RedisScript, ScriptCall, Tier, TierFigures, TierLink};
use crate::sql::Database;

/// What all keys begin with; the number is that of the layout, so that releases with different ones
/// do not meet.
const PREFIX: &str = "guanxi:tally:1";
const MERGE: &str = include_str!("tallies/merge.lua");
/// How long a reader waits: longer than Redis takes, shorter than the database.
pub(super) const ASK_LIMIT: Duration = Duration::from_millis(50);
/// Nodes of one question; whoever wants more asks the database.
const ASK_NODES_MAX: usize = 4_096;
/// How old the follower's word may be. Its turns take up to three seconds, and a busy machine's
/// longer.
pub const FRESH_MS: u64 = 6_000;
/// Clocks of instances differ by less, or they refuse writes.
const CLOCK_SLACK_MS: u64 = 1_000;
/// A string that was made and not filled goes after this.
pub(super) const CLAIM_LIFE: Duration = Duration::from_secs(10);
/// How old a counter may be when the word of its change was lost.
const COUNTER_LIFE_MS: u64 = 120_000;
/// From this age on (and up to a quarter more) it is read again behind its readers, so that none of
/// them finds it too old.
const COUNTER_REFRESH_AFTER_MS: u64 = 60_000;
/// Strings live between one and two days, so that those filled together do not go together.
const LIFE_MS: u64 = 24 * 60 * 60 * 1_000;
/// Where a number is at least this, twice as long.
const BIG_VALUE_MIN: i64 = 100_000;
/// What is not there at all is asked for by mistake, or to do harm: between one and one and a half
/// minutes.
const NOTHING_LIFE_MS: u64 = 60_000;
/// Strings that nobody has read from the database for so long (and up to a quarter more) are served
/// and read again once, behind: what went wrong in a way that nobody thought of ends, too.
const REFRESH_AFTER_MS: u64 = 6 * 60 * 60 * 1_000;

/// What became of the questions and of the answers, since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TallyFigures {
    pub tier: TierFigures,
    /// Nodes of which all that was wanted was known.
    pub hits: u64,
    pub misses: u64,
    /// Nodes that were asked for in vain: no connection, no fresh word of the follower.
    pub unknown: u64,
    pub fills: u64,
    /// Fills that found no room in the queue, or no Redis.
    pub dropped: u64,
    /// Strings that were read again behind.
    pub refreshes: u64,
    /// Whether there was a fresh word of the follower, a moment ago.
    pub followed: bool,
    /// Where this instance is the follower.
    pub follower: Option<FollowerFigures>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowerFigures {
    /// Applied records that it has not looked at.
    pub lag_records: u64,
    /// Strings that it refreshed.
    pub refreshed: u64,
    /// How often it had to forget everything.
    pub forgotten: u64,
}

/// The right to fill a string: it stood, and bore this token, before the database is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TallyClaim {
    epoch: u64,
    node: NodeKey,
    token: StringToken,
    /// Whether it has a number other than 0.
    counts: bool,
}

impl TallyClaim {
    pub fn node(&self) -> NodeKey {
        self.node
    }
}

/// What Redis knew.
#[derive(Debug, Default)]
pub struct RecalledTallies {
    /// The numbers that were wanted.
    pub known: Vec<(NodeKey, TallyRow)>,
    pub claims: Vec<TallyClaim>,
}

/// The same, and what it has no string for.
#[derive(Debug, Default)]
pub struct TalliesFound {
    pub recalled: RecalledTallies,
    pub absent: Vec<NodeKey>,
}

#[derive(Debug)]
pub struct Tallies {
    shared: Arc<TalliesParts>,
    filler: TallyFiller,
}

/// What the filler's thread works with, too.
#[derive(Debug)]
struct TalliesParts {
    tier: Tier,
    plans: Arc<Plans>,
    database: Arc<Database>,
    merge: RedisScript,
    counts: TallyHits,
}

#[derive(Debug, Default)]
struct TallyHits {
    hits: AtomicU64,
    misses: AtomicU64,
    unknown: AtomicU64,
    fills: AtomicU64,
    dropped: AtomicU64,
    refreshes: AtomicU64,
    followed: AtomicBool,
    follows: AtomicBool,
    lag_records: AtomicU64,
    refreshed: AtomicU64,
    forgotten: AtomicU64,
}

impl TalliesParts {
    /// Looks whether there is a follower, for the figures. For threads that may block.
    fn look(&self) {
        let look = || {
            let (epoch, mut link) = (self.plans.epoch()?, self.tier.link()?);
            let mut get = redis::cmd("GET");
            get.arg(mark_key());
            let mark = self.tier.wait(link.ask(&get, ASK_LIMIT)).ok()?;
            Some(FollowedMark::believed(&mark, epoch, &link, wall_ms()))
        };
        self.counts.followed.store(look().unwrap_or(false), Ordering::Relaxed);
    }
}

fn add(count: &AtomicU64, by: usize) {
    count.fetch_add(by as u64, Ordering::Relaxed);
}

impl Tallies {
    pub fn start(
        crew: &Crew,
        tier: Tier,
        plans: Arc<Plans>,
        database: Arc<Database>,
    ) -> io::Result<Tallies> {
        let merge = RedisScript::new(MERGE);
        let shared =
            Arc::new(TalliesParts { tier, plans, database, merge, counts: TallyHits::default() });
        let filler = TallyFiller::start(crew, shared.clone())?;
        Ok(Tallies { shared, filler })
    }

    pub fn tier(&self) -> &Tier {
        &self.shared.tier
    }

    /// What is known of the target's side of these nodes and kinds; for strings that lack something,
    /// the right to fill it.
    pub async fn ask(
        &self,
        catalog: &Catalog,
        nodes: &[NodeKey],
        kinds: &[KindId],
    ) -> TalliesFound {
        let asked = self.asked(catalog, nodes, kinds).await;
        let counts = &self.shared.counts;
        let Some(asked) = asked else {
            add(&counts.unknown, nodes.len());
            return TalliesFound::default();
        };
        let known = asked.recalled.known.len();
        add(&counts.hits, known);
        add(&counts.misses, nodes.len() - known);
        asked
    }

    /// Makes strings for these, and says of which that gives the right to fill them.
    pub async fn claim(&self, absent: Vec<NodeKey>) -> Vec<TallyClaim> {
        let TalliesParts { plans, tier, .. } = &*self.shared;
        match (plans.epoch(), tier.link()) {
            (Some(epoch), Some(mut link)) if !absent.is_empty() => {
                claim(&mut link, epoch, absent, wall_ms()).await
            }
            _ => Vec::new(),
        }
    }

    async fn asked(
        &self,
        catalog: &Catalog,
        nodes: &[NodeKey],
        kinds: &[KindId],
    ) -> Option<TalliesFound> {
        if nodes.len() > ASK_NODES_MAX {
            return None;
        }
        let epoch = self.shared.plans.epoch()?;
        let mut link = self.shared.tier.link()?;
        let mut get = redis::cmd("MGET");
        get.arg(mark_key());
        for node in nodes {
            get.arg(key(epoch, node));
        }
        let Value::Array(answers) = link.ask(&get, ASK_LIMIT).await.ok()? else { return None };
        let now_ms = wall_ms();
        let (mark, strings) = answers.split_first()?;
        if !FollowedMark::believed(mark, epoch, &link, now_ms) {
            return None;
        }
        let mut recalled = RecalledTallies::default();
        let mut absent = Vec::new();
        for (node, string) in nodes.iter().zip(strings) {
            let packed = match string {
                Value::BulkString(bytes) => PackedTallies::decode(bytes),
                Value::Nil => {
                    absent.push(*node);
                    continue;
                }
                _ => None,
            };
            // What cannot be read stays until it expires.
            let Some(packed) = packed else { continue };
            let wanted = wanted(catalog, node, kinds);
            match row(&packed, &wanted, now_ms) {
                Some(row) => {
                    if is_old(&packed, now_ms) {
                        self.filler.refresh(Refresh::of(epoch, *node, &packed));
                    }
                    recalled.known.push((*node, row));
                }
                None => recalled.claims.push(TallyClaim {
                    epoch,
                    node: *node,
                    token: packed.token,
                    counts: packed.fields.iter().any(|field| field.value != 0),
                }),
            }
        }
        Some(TalliesFound { recalled, absent })
    }

    /// Fills what was claimed before these numbers were read from the database.
    pub fn fill(&self, claim: &TallyClaim, fields: Vec<TallyField>) {
        let life_ms = life_ms(claim, &fields);
        self.filler.fill(TallyFill { claim: *claim, fields, read_ms: wall_ms(), life_ms });
    }

    /// Counters of these nodes were committed: what Redis has of them goes soon.
    pub fn counted(&self, nodes: impl IntoIterator<Item = NodeKey>) {
        self.filler.forget(nodes);
    }

    pub fn figures(&self) -> TallyFigures {
        let counts = &self.shared.counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let follower = FollowerFigures {
            lag_records: count(&counts.lag_records),
            refreshed: count(&counts.refreshed),
            forgotten: count(&counts.forgotten),
        };
        TallyFigures {
            tier: self.shared.tier.figures(),
            hits: count(&counts.hits),
            misses: count(&counts.misses),
            unknown: count(&counts.unknown),
            fills: count(&counts.fills),
            dropped: count(&counts.dropped),
            refreshes: count(&counts.refreshes),
            followed: counts.followed.load(Ordering::Relaxed),
            follower: counts.follows.load(Ordering::Relaxed).then_some(follower),
        }
    }

    pub fn close(&self) {
        self.filler.close();
    }
}

/// For the follower.
impl Tallies {
    /// Merges fields into strings that stood when they were read, each as it was seen then.
    pub(super) async fn refresh(
        &self,
        link: &mut TierLink,
        seen: &[(Vec<u8>, StringToken)],
        fields: &[Vec<TallyField>],
        limit: Duration,
    ) -> Result<(), MemoryError> {
        let calls: Vec<ScriptCall> = seen
            .iter()
            .zip(fields)
            .map(|((key, token), fields)| merging(key.clone(), *token, None, fields, 0))
            .collect();
        let answers = link.call_all(&self.shared.merge, &calls, limit).await?;
        match answers.iter().find(|answer| !matches!(answer, Value::Int(_))) {
            Some(refused) => Err(MemoryError::Refused(format!("{refused:?}"))),
            None => Ok(()),
        }
    }

    pub(super) fn follows(&self, figures: Option<FollowerFigures>) {
        let counts = &self.shared.counts;
        counts.follows.store(figures.is_some(), Ordering::Relaxed);
        let FollowerFigures { lag_records, refreshed, forgotten } = figures.unwrap_or_default();
        counts.lag_records.store(lag_records, Ordering::Relaxed);
        counts.refreshed.store(refreshed, Ordering::Relaxed);
        counts.forgotten.store(forgotten, Ordering::Relaxed);
    }
}

/// The follower's word: at this moment, everything that had been applied was in there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FollowedMark {
    pub epoch: u64,
    pub lineage: FilterLineage,
    pub at_ms: u64,
}

impl FollowedMark {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(32);
        out.extend(self.epoch.to_be_bytes());
        out.extend(self.lineage.0.to_be_bytes());
        out.extend(self.at_ms.to_be_bytes());
        out
    }

    fn decode(value: &Value) -> Option<FollowedMark> {
        let Value::BulkString(bytes) = value else { return None };
        let (epoch, rest) = bytes.split_first_chunk::<8>()?;
        let (lineage, rest) = rest.split_first_chunk::<16>()?;
        let at_ms: &[u8; 8] = rest.try_into().ok()?;
        Some(FollowedMark {
            epoch: u64::from_be_bytes(*epoch),
            lineage: FilterLineage(u128::from_be_bytes(*lineage)),
            at_ms: u64::from_be_bytes(*at_ms),
        })
    }

    /// Whether what is read beside it on this link, of this epoch, is to be believed.
    pub fn believed(value: &Value, epoch: u64, link: &TierLink, now_ms: u64) -> bool {
        FollowedMark::decode(value).is_some_and(|mark| {
            mark.epoch == epoch && mark.lineage == link.lineage() && mark.is_fresh(now_ms)
        })
    }

    fn is_fresh(&self, now_ms: u64) -> bool {
        self.at_ms + FRESH_MS >= now_ms && self.at_ms <= now_ms + CLOCK_SLACK_MS
    }
}

pub(super) fn mark_key() -> String {
    format!("{PREFIX}:fresh")
}

pub(super) fn positions_key() -> String {
    format!("{PREFIX}:positions")
}

pub(super) fn key(epoch: u64, node: &NodeKey) -> Vec<u8> {
    let NodeKey { tenant, node_type, id } = node;
    format!("{PREFIX}:{epoch}:{}:{}:{id}", tenant.0, node_type.0).into_bytes()
}

/// Milliseconds of the clock that instances share as well as they can.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// The fields that these kinds have on a node's target side.
pub fn wanted(catalog: &Catalog, node: &NodeKey, kinds: &[KindId]) -> Vec<(KindId, Which)> {
    let mut wanted = Vec::with_capacity(2 * kinds.len());
    for kind in kinds.iter().filter_map(|kind| catalog.kind(node.tenant, *kind)) {
        let fixed = &kind.fixed;
        if fixed.target_type != node.node_type {
            continue;
        }
        if fixed.counter {
            wanted.push((kind.id, Which::Value));
        } else if fixed.incoming_tally {
            wanted.extend([(kind.id, Which::Incoming), (kind.id, Which::PendingIncoming)]);
        }
    }
    wanted
}

/// The wanted numbers, if all are there and to be believed.
fn row(packed: &PackedTallies, wanted: &[(KindId, Which)], now_ms: u64) -> Option<TallyRow> {
    let mut row = TallyRow::default();
    for (kind, which) in wanted {
        let field = packed.get(*kind, *which)?;
        let believed = *which != Which::Value
            || (field.stamp + COUNTER_LIFE_MS > now_ms && field.stamp <= now_ms + CLOCK_SLACK_MS);
        if !believed {
            return None;
        }
        row.add(*kind, *which, field.value);
    }
    Some(row)
}

/// Whether it should be read again behind its readers, each string a little earlier or later.
fn is_old(packed: &PackedTallies, now_ms: u64) -> bool {
    let mut counters = packed.fields.iter().filter(|field| field.which == Which::Value);
    is_long_ago(packed.token, packed.read_ms, now_ms)
        || counters.any(|it| is_over(packed.token, it.stamp, COUNTER_REFRESH_AFTER_MS, now_ms))
}

/// Whether the string of this token is to be read again behind.
pub(super) fn is_long_ago(token: StringToken, read_ms: u64, now_ms: u64) -> bool {
    is_over(token, read_ms, REFRESH_AFTER_MS, now_ms)
}

fn is_over(token: StringToken, from_ms: u64, after_ms: u64, now_ms: u64) -> bool {
    from_ms + after_ms + u64::from(token.0[0]) * (after_ms / 4 / 256) < now_ms
}

/// Makes strings where there are none, and says which.
async fn claim(
    link: &mut TierLink,
    epoch: u64,
    absent: Vec<NodeKey>,
    now_ms: u64,
) -> Vec<TallyClaim> {
    let made: Vec<TallyClaim> = absent
        .into_iter()
        .map(|node| TallyClaim { epoch, node, token: StringToken::draw(), counts: false })
        .collect();
    let mut commands = Pipeline::with_capacity(made.len());
    for TallyClaim { node, token, .. } in &made {
        let string = PackedTallies::empty(*token, now_ms).encode();
        commands.cmd("SET").arg(key(epoch, node)).arg(string).arg("NX");
        commands.arg("PX").arg(CLAIM_LIFE.as_millis() as u64);
    }
    // Someone else may have been first, and fills it then.
    let answers = link.ask_all(&commands, ASK_LIMIT).await.unwrap_or_default();
    let won = made.into_iter().zip(answers).filter(|(_, answer)| *answer == Value::Okay);
    won.map(|(claim, _)| claim).collect()
}

fn life_ms(claim: &TallyClaim, fields: &[TallyField]) -> u64 {
    let largest = fields.iter().map(|field| field.value.saturating_abs()).max().unwrap_or(0);
    spread_life_ms(largest == 0 && !claim.counts, largest >= BIG_VALUE_MIN)
}

/// How long a string lives that says that there is nothing, or one of a big account.
pub(super) fn spread_life_ms(nothing: bool, big: bool) -> u64 {
    if nothing {
        return NOTHING_LIFE_MS + fastrand::u64(..NOTHING_LIFE_MS / 2);
    }
    let life_ms = LIFE_MS + fastrand::u64(..LIFE_MS);
    if big { 2 * life_ms } else { life_ms }
}

fn merging(
    key: Vec<u8>,
    token: StringToken,
    read_ms: Option<u64>,
    fields: &[TallyField],
    life_ms: u64,
) -> ScriptCall {
    let mut packed = Vec::with_capacity(fields.len() * packed::FIELD_BYTES);
    packed::encode_fields(&mut packed, fields);
    let read_ms = read_ms.map(|read_ms| read_ms.to_be_bytes().to_vec()).unwrap_or_default();
    let life_ms = life_ms.to_string().into_bytes();
    ScriptCall { key, arguments: vec![token.0.to_vec(), read_ms, packed, life_ms] }
}

#[cfg(test)]
mod tests;
