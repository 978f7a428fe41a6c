//! Complete outgoing lists in Redis, one string for each source and kind. They answer for certain,
//! as the filter does, and by the same rules: a write tells Redis before it commits, or sees to it
//! that nobody believes the lists.
//!
//! A list is filled by who missed it, after it was read from the database (`filler`). What keeps an
//! old one out: a fill needs a lease that was taken before the database was read; a write that is
//! about to commit puts its **mark** in the place of whatever stands, list or lease; no lease is
//! given while a mark stands; and the mark goes only when the write's outcome is known, or after
//! longer than any write takes. A string of another seal is from before Redis was another, or from
//! before a write could not tell it, and counts for nothing.
//!
//! An evicted mark could let an older list in while its write is under way. The write deletes
//! whatever stands there when it ends.

pub mod filler;
pub mod packed;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::GroupsKey;
use guanxi_model::filter::{Seal, StandingFilter};
use guanxi_model::footprint::NO_KIND;
use redis::{Pipeline, Value};

use self::packed::{KeptList, LEASE, OutgoingList};
use super::FILL;
use super::list_counts::{ListCounts, ListFigures};
use super::plans::{Plans, now_ms};
use super::tier::{MemoryError, RedisScript, ScriptCall, Tier, TierLink};
use crate::sql::SqlError;
use crate::sql::commit_deadline::{CommitBy, SURELY_ENDED_AFTER};

/// How long a reader waits: longer than Redis takes, shorter than the database.
const ASK_LIMIT: Duration = Duration::from_millis(50);
/// How long a writer waits before it takes the lists from everybody, which is dear.
const MARK_LIMIT: Duration = Duration::from_millis(500);
/// After so long a mark says nothing any more: its write has ended, whatever became of it. One
/// whose outcome is known is lifted at once.
const MARK_LIFE: Duration = SURELY_ENDED_AFTER;
/// How often it is tried to lift the marks of a write while Redis is away, and of how many writes;
/// soon after it went nobody marks anything.
const LIFT_AGAIN: Duration = Duration::from_secs(1);
const LIFTS_WAITING_MAX: usize = 4_096;
/// How long a fill may take; one that takes longer is lost.
const LEASE_LIFE: Duration = Duration::from_secs(10);
const FILL_LIMIT: Duration = Duration::from_millis(500);
/// Lists live from one to two days, so that those filled together do not go together.
const LIFE: Duration = Duration::from_secs(24 * 3_600);
/// A list so long is dear to fill, and lives twice as long.
const LONG_MIN: usize = 500;
/// That a list is too long is looked at again sooner: lists get shorter.
const TOO_LONG_LIFE: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
pub struct Lists {
    tier: Option<Tier>,
    plans: Arc<Plans>,
    scripts: Scripts,
    counts: ListCounts,
    /// Writes whose marks could not be lifted yet.
    lifts_waiting: AtomicUsize,
}

#[derive(Debug)]
struct Scripts {
    mark: RedisScript,
    unmark: RedisScript,
    lease: RedisScript,
    fill: RedisScript,
}

/// What is known of a list that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CachedList {
    Kept(KeptList),
    /// Nothing, and it may be filled.
    Absent,
    /// Nothing: the lists are not to be believed, or a write is under way.
    Unknown,
}

/// The right to fill a list, as long as no write comes.
#[derive(Debug)]
pub struct FillPermit {
    list: GroupsKey,
    seal: Seal,
    bytes: [u8; 9],
    link: TierLink,
}

/// The mark of a write in the lists that it may change.
#[derive(Debug)]
#[must_use = "a mark that is not lifted keeps its lists away until its life is over"]
pub struct WriteMark {
    keys: Vec<Vec<u8>>,
    write: [u8; 8],
    /// Whether Redis may have it.
    stands: bool,
}

impl Lists {
    pub fn new(tier: Option<Tier>, plans: Arc<Plans>) -> Lists {
        Lists {
            tier,
            plans,
            scripts: Scripts {
                mark: RedisScript::new(include_str!("lists/mark.lua")),
                unmark: RedisScript::new(include_str!("lists/unmark.lua")),
                lease: RedisScript::new(include_str!("lists/lease.lua")),
                fill: RedisScript::new(FILL),
            },
            counts: ListCounts::default(),
            lifts_waiting: AtomicUsize::new(0),
        }
    }

    pub fn figures(&self) -> ListFigures {
        self.counts.figures()
    }

    /// Whether lists may be believed, as far as this instance knows.
    pub fn serves(&self) -> bool {
        let lineage = self.tier.as_ref().and_then(Tier::link).map(|link| link.lineage());
        self.plans.held().and_then(|held| held.askable(lineage)).is_some()
    }

    /// What is known of each list.
    pub async fn ask(&self, lists: &[GroupsKey]) -> Vec<CachedList> {
        let found = self.asked(lists).await;
        let found = found.unwrap_or_else(|| vec![CachedList::Unknown; lists.len()]);
        let kept = found.iter().filter(|found| matches!(found, CachedList::Kept(_))).count();
        self.counts.asked(found.len(), kept);
        found
    }

    async fn asked(&self, lists: &[GroupsKey]) -> Option<Vec<CachedList>> {
        let (mut link, standing) = self.believed()?;
        let mut commands = Pipeline::with_capacity(lists.len());
        for list in lists {
            commands.cmd("GET").arg(key(list));
        }
        let replies = link.ask_all(&commands, ASK_LIMIT).await.ok()?;
        // Whether they are to be believed is asked after they have come.
        let seal = self.plans.held()?.believed(&standing, now_ms())?;
        Some(replies.into_iter().map(|reply| found(seal, reply)).collect())
    }

    /// A connection to the lists that serve.
    fn believed(&self) -> Option<(TierLink, StandingFilter)> {
        let link = self.tier.as_ref()?.link()?;
        let standing = self.plans.held()?.askable(Some(link.lineage()))?;
        Some((link, standing))
    }

    /// Before a transaction that holds these heads commits: their lists are forgotten, or nobody
    /// believes any. For threads that may block.
    pub fn let_commit(
        &self,
        heads: &[GroupsKey],
        by: CommitBy,
        deadline: Instant,
    ) -> Result<(WriteMark, CommitBy), SqlError> {
        // Heads of no kind stand for other things than edges.
        let heads: BTreeSet<&GroupsKey> =
            heads.iter().filter(|head| head.kind != NO_KIND).collect();
        let mut mark = WriteMark {
            keys: heads.into_iter().map(key).collect(),
            write: fastrand::u64(..).to_be_bytes(),
            stands: false,
        };
        if mark.keys.is_empty() {
            return Ok((mark, by));
        }
        let marked = Cell::new(false);
        let allowed = self.plans.let_commit(deadline, |standing| {
            marked.set(true);
            self.mark(standing, &mark).is_ok()
        })?;
        mark.stands = marked.get();
        Ok((mark, by.min(allowed)))
    }

    fn mark(&self, standing: &StandingFilter, mark: &WriteMark) -> Result<(), MemoryError> {
        let away = || MemoryError::Away("there is no connection of its lineage".into());
        let tier = self.tier.as_ref().ok_or_else(away)?;
        let link = tier.await_link(MARK_LIMIT).filter(|link| link.lineage() == standing.lineage);
        let mut link = link.ok_or_else(away)?;
        let life = MARK_LIFE.as_millis().to_string().into_bytes();
        let calls = mark.calls(|| vec![mark.write.to_vec(), life.clone()]);
        let answers = tier.wait(link.call_all(&self.scripts.mark, &calls, MARK_LIMIT))?;
        match answers.iter().find(|answer| **answer != Value::Int(1)) {
            None => Ok(()),
            Some(other) => Err(MemoryError::Refused(format!("{other:?}"))),
        }
    }

    /// The transaction has ended, and its outcome is known: its lists may be filled again. Nobody
    /// waits for it. Where Redis is away, it is tried again until the mark is too old anyway.
    pub fn lift(self: &Arc<Self>, mark: WriteMark) {
        let (Some(tier), false) = (&self.tier, mark.keys.is_empty()) else { return };
        let lists = self.clone();
        tier.spawn(async move {
            if let Err(error) = lists.try_lift(&mark).await {
                tracing::debug!(%error, "marks of a write stay until Redis is back");
                if mark.stands {
                    lists.lift_later(&mark).await;
                }
            }
        });
    }

    async fn try_lift(&self, mark: &WriteMark) -> Result<(), MemoryError> {
        let away = || MemoryError::Away("there is no connection".into());
        let mut link = self.tier.as_ref().and_then(Tier::link).ok_or_else(away)?;
        let calls = mark.calls(|| vec![mark.write.to_vec()]);
        link.call_all(&self.scripts.unmark, &calls, MARK_LIMIT).await.map(drop)
    }

    async fn lift_later(&self, mark: &WriteMark) {
        if self.lifts_waiting.fetch_add(1, Ordering::Relaxed) < LIFTS_WAITING_MAX {
            let until = Instant::now() + MARK_LIFE;
            let mut lifted = 0;
            // A Redis that was paused may come to the mark itself only after the first of them.
            while lifted < 2 && Instant::now() < until {
                tokio::time::sleep(LIFT_AGAIN).await;
                lifted += u32::from(self.try_lift(mark).await.is_ok());
            }
        }
        self.lifts_waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The right to fill the list, if nobody has it and no write is under way.
    pub async fn lease(&self, list: GroupsKey) -> Option<FillPermit> {
        let (mut link, standing) = self.believed()?;
        let mut bytes = [LEASE; 9];
        bytes[1..].copy_from_slice(&fastrand::u64(..).to_be_bytes());
        let seal = standing.seal;
        let life = LEASE_LIFE.as_millis().to_string().into_bytes();
        let arguments = vec![seal.value().to_be_bytes().to_vec(), bytes.to_vec(), life];
        let call = ScriptCall { key: key(&list), arguments };
        let answers = link.call_all(&self.scripts.lease, &[call], FILL_LIMIT).await.ok()?;
        let taken = answers.first() == Some(&Value::Int(1));
        taken.then_some(FillPermit { list, seal, bytes, link })
    }

    /// Fills a list with what the database said after the lease was taken; none where it is too
    /// long.
    pub async fn fill(&self, mut lease: FillPermit, list: Option<&OutgoingList>) {
        let mut life = match list {
            Some(list) if list.rows.len() >= LONG_MIN => LIFE * 2,
            Some(_) => LIFE,
            None => TOO_LONG_LIFE,
        };
        life = life.mul_f64(1.0 + fastrand::f64());
        let list = packed::pack(lease.seal, list);
        let life = life.as_millis().to_string().into_bytes();
        let call =
            ScriptCall { key: key(&lease.list), arguments: vec![lease.bytes.to_vec(), list, life] };
        let answers = lease.link.call_all(&self.scripts.fill, &[call], FILL_LIMIT).await;
        let filled = answers.is_ok_and(|answers| answers.first() == Some(&Value::Int(1)));
        self.counts.filled(filled);
    }
}

impl WriteMark {
    fn calls(&self, arguments: impl Fn() -> Vec<Vec<u8>>) -> Vec<ScriptCall> {
        self.keys
            .iter()
            .map(|key| ScriptCall { key: key.clone(), arguments: arguments() })
            .collect()
    }
}

fn found(seal: Seal, reply: Value) -> CachedList {
    match reply {
        Value::Nil => CachedList::Absent,
        Value::BulkString(bytes) => match bytes.first() {
            // Of an older seal: a fill may take its place.
            Some(b'V') => packed::unpack(seal, bytes).map_or(CachedList::Absent, CachedList::Kept),
            _ => CachedList::Unknown,
        },
        _ => CachedList::Unknown,
    }
}

fn key(list: &GroupsKey) -> Vec<u8> {
    let GroupsKey { tenant, kind, source } = list;
    format!("guanxi:outgoing:{}:{}:{}", tenant.0, kind.0, source.0).into_bytes()
}
