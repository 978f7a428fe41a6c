//! The newest incoming edges of a target and kind in Redis: one string each (`packed`), with a mark
//! that says whether it is the complete list. Filled behind whoever missed it (`reading`).
//!
//! They are to be believed by the rules of `tallies`, and stand in the same Redis, because the
//! follower vouches for that one: its word is read beside every string, on the same connection, and
//! its epoch is part of every key. For each applied record it **kills** the string of the edge's
//! target before it says that it has come so far. Whoever fills makes the string first, or has seen
//! it, and only then reads the database; what it read is taken only by that same string (by its
//! token). So nothing that was read before a record was applied is found after the follower has
//! passed by.
//!
//! Where the target's side changes without a record (a rebuild, a repair, a dead letter tried again,
//! what a changefeed did not bring, the end of a move), whoever changes it raises the epoch. The
//! clean-up of tombstones raises nothing: they are in no list.

pub mod packed;
mod reading;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use guanxi_core::crew::Crew;
use guanxi_core::snapshot::IncomingList;
use redis::{Pipeline, Value};

use self::packed::{Newest, PackedIncoming};
use super::FILL;
use super::filler::FillThreads;
use super::list_counts::{ListCounts, ListFigures};
use super::plans::Plans;
use super::tallies::packed::StringToken;
use super::tallies::{
    ASK_LIMIT, CLAIM_LIFE, FollowedMark, is_long_ago, mark_key, spread_life_ms, wall_ms,
};
use super::tier::{MemoryError, RedisScript, ScriptCall, Tier, TierLink};
use crate::sql::Database;

/// What all keys begin with; the number is that of the layout.
const PREFIX: &str = "guanxi:incoming:1";

/// How long whoever fills waits, behind the readers.
const FILL_LIMIT: Duration = Duration::from_millis(500);

/// The right to fill a string: it stood, and bore this token, before the database is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IncomingClaim {
    epoch: u64,
    list: IncomingList,
    token: StringToken,
}

/// What is to be filled: a list that was missed, or one that was read long ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Want {
    Missed(IncomingList),
    Old(IncomingClaim),
}

/// What is known of a list that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundNewest {
    Kept(Newest),
    /// Nothing, and it may be filled.
    Absent,
    /// Nothing: it is not to be believed, or being filled.
    Unknown,
}

#[derive(Debug)]
pub struct Incoming {
    shared: Arc<IncomingParts>,
    filler: FillThreads<Want>,
}

/// What the filler's threads work with, too.
#[derive(Debug)]
struct IncomingParts {
    tier: Tier,
    plans: Arc<Plans>,
    database: Arc<Database>,
    fill: RedisScript,
    counts: ListCounts,
}

impl Incoming {
    pub fn start(
        crew: &Crew,
        tier: Tier,
        plans: Arc<Plans>,
        database: Arc<Database>,
    ) -> io::Result<Incoming> {
        let (fill, counts) = (RedisScript::new(FILL), ListCounts::default());
        let shared = Arc::new(IncomingParts { tier, plans, database, fill, counts });
        let work = shared.clone();
        let fill = move |want: &Want| work.see_to(want);
        let filler = FillThreads::start(crew, "guanxi-incoming-fill", fill)?;
        Ok(Incoming { shared, filler })
    }

    pub fn figures(&self) -> ListFigures {
        self.shared.counts.figures()
    }

    /// What is known of each list.
    pub async fn ask(&self, lists: &[IncomingList]) -> Vec<FoundNewest> {
        let found = self.asked(lists).await;
        let found = found.unwrap_or_else(|| vec![FoundNewest::Unknown; lists.len()]);
        let kept = found.iter().filter(|found| matches!(found, FoundNewest::Kept(_))).count();
        self.shared.counts.asked(lists.len(), kept);
        found
    }

    /// Has a list filled behind.
    pub fn want(&self, list: IncomingList) {
        self.filler.want(Want::Missed(list));
    }

    async fn asked(&self, lists: &[IncomingList]) -> Option<Vec<FoundNewest>> {
        let epoch = self.shared.plans.epoch()?;
        let mut link = self.shared.tier.link()?;
        let mut get = redis::cmd("MGET");
        get.arg(mark_key());
        for list in lists {
            get.arg(key(epoch, list));
        }
        let Value::Array(answers) = link.ask(&get, ASK_LIMIT).await.ok()? else { return None };
        let now_ms = wall_ms();
        let (mark, strings) = answers.split_first()?;
        if !FollowedMark::believed(mark, epoch, &link, now_ms) {
            return None;
        }
        let found = lists.iter().zip(strings).map(|(list, string)| match string {
            Value::Nil => FoundNewest::Absent,
            // What cannot be read stays until it expires.
            Value::BulkString(bytes) => match PackedIncoming::decode(bytes) {
                Some(PackedIncoming { token, read_ms, newest: Some(newest) }) => {
                    if is_long_ago(token, read_ms, now_ms) {
                        self.filler.want(Want::Old(IncomingClaim { epoch, list: *list, token }));
                    }
                    FoundNewest::Kept(newest)
                }
                _ => FoundNewest::Unknown,
            },
            _ => FoundNewest::Unknown,
        });
        Some(found.collect())
    }

    /// Makes the string, if there is none: the first step of whoever fills it.
    pub async fn claim(&self, list: IncomingList) -> Option<IncomingClaim> {
        self.shared.claim(list).await
    }

    /// Fills what was claimed before the list was read from the database; whether it was taken.
    pub async fn fill(&self, claim: &IncomingClaim, newest: &Newest) -> bool {
        self.shared.fill(claim, newest).await
    }
}

impl IncomingParts {
    async fn claim(&self, list: IncomingList) -> Option<IncomingClaim> {
        let epoch = self.plans.epoch()?;
        let mut link = self.tier.link()?;
        let claim = IncomingClaim { epoch, list, token: StringToken::draw() };
        let string = PackedIncoming { token: claim.token, read_ms: wall_ms(), newest: None };
        let mut set = redis::cmd("SET");
        set.arg(key(epoch, &list)).arg(string.encode()).arg("NX");
        set.arg("PX").arg(CLAIM_LIFE.as_millis() as u64);
        // Someone else may have been first, and fills it then.
        let made = link.ask(&set, FILL_LIMIT).await == Ok(Value::Okay);
        made.then_some(claim)
    }

    async fn fill(&self, claim: &IncomingClaim, newest: &Newest) -> bool {
        let IncomingClaim { epoch, list, token } = claim;
        let life_ms = spread_life_ms(newest.entries.is_empty(), !newest.complete);
        let string =
            PackedIncoming { token: *token, read_ms: wall_ms(), newest: Some(newest.clone()) }
                .encode();
        let life_ms = life_ms.to_string().into_bytes();
        let call = ScriptCall {
            key: key(*epoch, list),
            arguments: vec![token.0.to_vec(), string, life_ms],
        };
        let answers = match self.tier.link() {
            Some(mut link) => link.call_all(&self.fill, &[call], FILL_LIMIT).await,
            None => return false,
        };
        let filled = answers.is_ok_and(|answers| answers.first() == Some(&Value::Int(1)));
        self.counts.filled(filled);
        filled
    }
}

/// For the follower: these lists are not what they were.
pub(super) async fn kill(
    link: &mut TierLink,
    epoch: u64,
    lists: &[IncomingList],
    limit: Duration,
) -> Result<(), MemoryError> {
    let mut commands = Pipeline::with_capacity(lists.len());
    for list in lists {
        commands.cmd("UNLINK").arg(key(epoch, list));
    }
    let answers = link.ask_all(&commands, limit).await?;
    match answers.iter().find(|answer| !matches!(answer, Value::Int(_))) {
        Some(refused) => Err(MemoryError::Refused(format!("{refused:?}"))),
        None => Ok(()),
    }
}

fn key(epoch: u64, list: &IncomingList) -> Vec<u8> {
    let IncomingList { tenant, kind, target } = list;
    format!("{PREFIX}:{epoch}:{}:{}:{}", tenant.0, kind.0, target.0).into_bytes()
}
