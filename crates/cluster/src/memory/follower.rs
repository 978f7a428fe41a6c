//! Follows the log behind the appliers and keeps the values in Redis right: incoming lists that a
//! record may have changed are killed, tallies are read from the tables again and merged into the
//! strings that are there. One instance does it, by lease, though two would do no harm.
//!
//! It goes no further than the appliers have come, so that what it reads contains the record. What
//! it reads is bounded per second: the next turn begins later after a large one, and a node that
//! changed often meanwhile is read once. Its positions stand in the Redis that it fills
//! (`positions`). Where they are lost, or the log no longer has what follows them, it raises the
//! epoch, so that everybody forgets what it cannot vouch for, and goes on from where the appliers are.

mod positions;
pub mod records;
pub mod reread;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::signal::Next;
use guanxi_core::snapshot::IncomingList;
use guanxi_model::{EdgeKey, Kind, KindId, NodeKey};
use redis::{Pipeline, Value};
use rustc_hash::{FxHashMap, FxHashSet};

use self::positions::{Positions, TopicPartition};
use self::records::{FollowedLog, Records};
use super::epoch;
use super::incoming;
use super::tallies::packed::{StringToken, TOKEN_BYTES};
use super::tallies::{
    FRESH_MS, FollowedMark, FollowerFigures, Tallies, key, mark_key, positions_key, wall_ms,
};
use super::tier::{MemoryError, RedisScript, ScriptCall, TierLink};
use crate::applier::{POSITION_COLUMNS, position};
use crate::catalog::SharedCatalog;
use crate::kafka::{BrokerError, KafkaSettings, LogPosition, ReadError};
use crate::leases::{Leases, Share};
use crate::rows::cell;
use crate::sql::{Database, SqlError};

/// The group of its lease, and its only name: the layout's number is in it, as in the keys.
const GROUP: &str = "memory-values";
const LEASE: &str = "1";
const ADVANCE: &str = include_str!("follower/advance.lua");
/// Between two turns that found little to do, and nothing.
const TURN_PAUSE: Duration = Duration::from_millis(100);
const IDLE_PAUSE: Duration = Duration::from_millis(250);
/// How long the records of hot nodes are gathered at most.
const FOLD_MAX: Duration = Duration::from_secs(3);
/// Tally rows that are read again in a second: a small part of what a database can do.
const REREAD_ROWS_PER_SECOND: usize = 10_000;
/// Nodes and kinds of one turn; the rest waits for the next.
const TOUCHED_MAX: usize = 30_000;
/// Between two looks of an instance that does not follow.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// After so long without Redis, or without a turn that went well, the work is left to others; for so
/// long, where it is not Redis that this instance waits for.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(5);
const ASIDE_FOR: Duration = Duration::from_secs(30);
/// How long Redis may take for a pipeline.
const LIMIT: Duration = Duration::from_secs(2);
/// Strings that are looked for, or merged into, at once.
const AT_ONCE_MAX: usize = 512;
/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

pub struct FollowerParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub leases: Arc<Leases>,
    pub kafka: KafkaSettings,
    /// Every log whose records this cluster applies.
    pub logs: Vec<FollowedLog>,
    pub tallies: Arc<Tallies>,
}

/// Starts the thread that follows.
pub fn follow(parts: FollowerParts) -> io::Result<Workers> {
    let share = parts.leases.share(GROUP, vec![LEASE.into()]);
    let crew = parts.crew.clone();
    let mut work = FollowerWork {
        parts,
        share,
        advance: RedisScript::new(ADVANCE),
        following: None,
        lost: BTreeSet::new(),
        forgotten_at: Positions::new(),
        linked: Instant::now(),
        failing: None,
        aside_until: None,
        figures: FollowerFigures::default(),
    };
    crew.spawn("guanxi-follower", move |signal| {
        let trouble = "tallies and incoming lists in Redis could not be followed";
        signal.repeat(trouble, Backoff::default(), || {
            let turned = work.turn();
            match &turned {
                Ok(_) => work.failing = None,
                Err(_) => work.failed(),
            }
            turned.map(Next::After)
        });
        work.parts.tallies.follows(None);
    })
}

#[derive(Debug, thiserror::Error)]
enum FollowerTrouble {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Log(#[from] BrokerError),
    /// The log no longer has, or never had, what follows the positions.
    #[error("{0}")]
    Lost(String),
    #[error("Redis has other positions than were left there")]
    Moved,
}

impl From<ReadError> for FollowerTrouble {
    fn from(error: ReadError) -> FollowerTrouble {
        match error {
            ReadError::Log(error) => FollowerTrouble::Log(error),
            lost => FollowerTrouble::Lost(lost.to_string()),
        }
    }
}

/// How far the appliers were, and after that the epoch.
struct AppliersLook {
    at_ms: u64,
    applied: Positions,
    /// Positions of logs that are not followed here.
    others: Positions,
    epoch: u64,
}

/// What it follows, on one connection.
struct FollowerSession {
    link: TierLink,
    records: Records,
    /// The positions as they stand in Redis.
    held: String,
}

struct FollowerWork {
    parts: FollowerParts,
    share: Share,
    advance: RedisScript,
    following: Option<FollowerSession>,
    /// Where the log does not have what follows the positions.
    lost: BTreeSet<TopicPartition>,
    /// How far the appliers were when values were last forgotten because of that.
    forgotten_at: Positions,
    /// When Redis was there last.
    linked: Instant,
    /// Since when no turn went well.
    failing: Option<Instant>,
    aside_until: Option<Instant>,
    figures: FollowerFigures,
}

impl FollowerWork {
    fn failed(&mut self) {
        self.following = None;
        if self.failing.get_or_insert_with(Instant::now).elapsed() >= GIVEN_UP_AFTER {
            self.failing = None;
            self.aside_until = Some(Instant::now() + ASIDE_FOR);
        }
    }

    /// One turn; returns how long to wait before the next.
    fn turn(&mut self) -> Result<Duration, FollowerTrouble> {
        let Some(link) = self.link() else {
            self.following = None;
            self.parts.tallies.follows(None);
            return Ok(WATCH_PAUSE);
        };
        let look = self.look()?;
        let mut following = match self.following.take() {
            Some(following) if following.link.is_same(&link) && following.goes_with(&look) => {
                following
            }
            _ if self.is_lost_with_appliers(&look) => {
                self.parts.tallies.follows(None);
                return Ok(IDLE_PAUSE);
            }
            _ => match self.begin(link, &look)? {
                Some(following) => following,
                // The epoch is another now.
                None => return Ok(Duration::ZERO),
            },
        };
        match following.records.gather(&look.applied) {
            // Without the log nothing is applied, so there may be nothing to read.
            Err(ReadError::Log(_)) if !following.records.is_behind(&look.applied) => {}
            gathered => {
                self.lost.extend(following.records.lost());
                gathered?;
            }
        }
        let (reached, touched) = self.touched(&mut following, &look)?;
        let idle = touched.is_empty();
        self.kill(&mut following.link, look.epoch, &touched.lists)?;
        let reread = self.refresh(&mut following.link, look.epoch, touched.tallies)?;
        self.go_on(&mut following, &look, reached)?;
        self.following = Some(following);
        let by_rate = Duration::from_secs_f64(reread as f64 / REREAD_ROWS_PER_SECOND as f64);
        Ok(by_rate.clamp(if idle { IDLE_PAUSE } else { TURN_PAUSE }, FOLD_MAX))
    }

    /// The connection, where it is this instance's turn to follow.
    fn link(&mut self) -> Option<TierLink> {
        let link = self.parts.tallies.tier().link();
        if link.is_some() {
            self.linked = Instant::now();
        }
        let now = Instant::now();
        self.aside_until = self.aside_until.filter(|until| now < *until);
        let aside = self.aside_until.is_some() || self.linked.elapsed() >= GIVEN_UP_AFTER;
        self.parts.leases.step_aside(&[GROUP], aside);
        link.filter(|_| self.share.lease(0).is_some())
    }

    fn look(&self) -> Result<AppliersLook, FollowerTrouble> {
        let at_ms = wall_ms();
        // The epoch comes second: values of a newer one were read later than these positions.
        let statements =
            format!("SELECT topic,part,{POSITION_COLUMNS} FROM applied;{}", epoch::select());
        let mut session = self.parts.database.session(Instant::now() + SESSION_WAIT)?;
        let mut sets = session.run(&statements)?;
        let epoch = epoch::read(&sets.pop().unwrap_or_default().rows)?;
        let followed = |place: &TopicPartition| {
            let of = |log: &FollowedLog| log.topic == place.0 && place.1 < log.partitions;
            self.parts.logs.iter().any(of)
        };
        let places = self.parts.logs.iter().flat_map(FollowedLog::places);
        let mut applied: Positions = places.map(|place| (place, 0.into())).collect();
        let mut others = Positions::new();
        for row in &sets.pop().unwrap_or_default().rows {
            let topic = String::from_utf8_lossy(&cell::<Vec<u8>>(row, 0)?).into_owned();
            let place = (topic, cell(row, 1)?);
            let positions = if followed(&place) { &mut applied } else { &mut others };
            positions.insert(place, position(row, 2)?);
        }
        Ok(AppliersLook { at_ms, applied, others, epoch })
    }

    /// Whether it is lost where appliers still are, though it began there: they are, too, and until
    /// a rebuild takes them elsewhere there is nothing to follow. To forget again and again would
    /// only keep everybody from remembering.
    fn is_lost_with_appliers(&self, look: &AppliersLook) -> bool {
        let stands = |place: &TopicPartition| {
            look.applied.get(place).is_some_and(|at| self.forgotten_at.get(place) == Some(at))
        };
        self.lost.iter().any(stands)
    }

    /// Goes on from the positions in Redis, or, where they are of no use, makes everybody forget the
    /// values and says where the appliers are.
    fn begin(
        &mut self,
        mut link: TierLink,
        look: &AppliersLook,
    ) -> Result<Option<FollowerSession>, FollowerTrouble> {
        let mut get = redis::cmd("GET");
        get.arg(positions_key());
        let held = match self.parts.tallies.tier().wait(link.ask(&get, LIMIT))? {
            Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            _ => String::new(),
        };
        let lost = !self.lost.is_empty();
        let stored = positions::read(&held).filter(|stored| !lost && look.follows_from(stored));
        if let Some(stored) = stored {
            let records = Records::open(&self.parts.kafka, &self.parts.logs, &stored)?;
            return Ok(Some(FollowerSession { link, records, held }));
        }
        tracing::info!(
            lost,
            "Redis has no positions of the log to go on from: what it knows of tallies and incoming lists is forgotten"
        );
        epoch::raise(&self.parts.database)?;
        self.figures.forgotten += 1;
        let mut positions = look.applied.clone();
        positions.extend(look.others.clone());
        self.advance(&mut link, &held, &positions::write(&positions))?;
        self.forgotten_at = if lost { look.applied.clone() } else { Positions::new() };
        self.lost.clear();
        Ok(None)
    }

    /// What applied records may have changed, and how far these go.
    fn touched(
        &self,
        following: &mut FollowerSession,
        look: &AppliersLook,
    ) -> Result<(Positions, Touched), FollowerTrouble> {
        let catalog = self.parts.catalog.current();
        let mut touched = Touched::default();
        let mut unknown = Vec::new();
        let reached = following.records.take_applied(&look.applied, |edge| {
            match catalog.kind(edge.tenant, edge.kind) {
                Some(kind) => touched.add(kind, &edge),
                None => unknown.push(edge),
            }
            touched.len() + unknown.len() < TOUCHED_MAX
        });
        if !unknown.is_empty() {
            // Kinds that are new; what does not exist at all the appliers have refused, too.
            self.parts.catalog.refresh(&self.parts.database)?;
            let catalog = self.parts.catalog.current();
            for edge in unknown {
                if let Some(kind) = catalog.kind(edge.tenant, edge.kind) {
                    touched.add(kind, &edge);
                }
            }
        }
        Ok((reached, touched))
    }

    /// Makes Redis forget these lists. Whoever fills one later reads what is as new as this look.
    fn kill(
        &self,
        link: &mut TierLink,
        epoch: u64,
        lists: &FxHashSet<IncomingList>,
    ) -> Result<(), FollowerTrouble> {
        let lists: Vec<IncomingList> = lists.iter().copied().collect();
        for lists in lists.chunks(AT_ONCE_MAX) {
            self.parts.tallies.tier().wait(incoming::kill(link, epoch, lists, LIMIT))?;
        }
        Ok(())
    }

    /// Reads again what of these is in Redis; returns how many rows that were.
    fn refresh(
        &mut self,
        link: &mut TierLink,
        epoch: u64,
        touched: FxHashSet<(NodeKey, KindId)>,
    ) -> Result<usize, FollowerTrouble> {
        let mut kinds: FxHashMap<NodeKey, Vec<KindId>> = FxHashMap::default();
        for (node, kind) in touched {
            kinds.entry(node).or_default().push(kind);
        }
        let nodes: Vec<(NodeKey, Vec<KindId>)> = kinds.into_iter().collect();
        let mut reread = 0;
        for nodes in nodes.chunks(AT_ONCE_MAX) {
            let mut commands = Pipeline::with_capacity(nodes.len());
            for (node, _) in nodes {
                commands.cmd("GETRANGE").arg(key(epoch, node)).arg(0).arg(TOKEN_BYTES - 1);
            }
            let tier = self.parts.tallies.tier();
            let answers = tier.wait(link.ask_all(&commands, LIMIT))?;
            let (mut seen, mut there, mut wanted) = (Vec::new(), Vec::new(), Vec::new());
            for ((node, kinds), answer) in nodes.iter().zip(answers) {
                if let Some(token) = token(answer)? {
                    seen.push((key(epoch, node), token));
                    there.push(*node);
                    wanted.extend(kinds.iter().map(|kind| (*node, *kind)));
                }
            }
            // Read after the strings were seen: whoever makes one later reads what is as new.
            let mut read = reread::incoming(&self.parts.database, &wanted)?;
            let fields: Vec<_> =
                there.iter().map(|node| read.remove(node).unwrap_or_default()).collect();
            tier.wait(self.parts.tallies.refresh(link, &seen, &fields, LIMIT))?;
            self.figures.refreshed += there.len() as u64;
            reread += wanted.len();
        }
        Ok(reread)
    }

    /// Notes how far it is, and says so to the readers where that is as far as the appliers.
    fn go_on(
        &mut self,
        following: &mut FollowerSession,
        look: &AppliersLook,
        reached: Positions,
    ) -> Result<(), FollowerTrouble> {
        let FollowerSession { link, held, .. } = following;
        let lag = |(place, reached): (&TopicPartition, &LogPosition)| {
            look.applied.get(place).map_or(0, |applied| applied.next.saturating_sub(reached.next))
        };
        self.figures.lag_records = reached.iter().map(lag).sum();
        let mut positions = reached;
        // A log that this instance cannot read must stand still.
        positions.extend(look.others.clone());
        let text = positions::write(&positions);
        self.advance(link, held, &text)?;
        *held = text;
        if self.figures.lag_records == 0 {
            let mark =
                FollowedMark { epoch: look.epoch, lineage: link.lineage(), at_ms: look.at_ms };
            let mut set = redis::cmd("SET");
            set.arg(mark_key()).arg(mark.encode()).arg("PX").arg(FRESH_MS);
            self.parts.tallies.tier().wait(link.ask(&set, LIMIT))?;
        }
        self.parts.tallies.follows(Some(self.figures));
        Ok(())
    }

    fn advance(&self, link: &mut TierLink, from: &str, to: &str) -> Result<(), FollowerTrouble> {
        let arguments = vec![from.as_bytes().to_vec(), to.as_bytes().to_vec()];
        let call = ScriptCall { key: positions_key().into_bytes(), arguments };
        let answers = link.call_all(&self.advance, std::slice::from_ref(&call), LIMIT);
        match self.parts.tallies.tier().wait(answers)?.first() {
            Some(Value::Int(1)) => Ok(()),
            Some(Value::Int(_)) => Err(FollowerTrouble::Moved),
            other => Err(MemoryError::Refused(format!("{other:?}")).into()),
        }
    }
}

impl FollowerSession {
    /// Whether all that was applied since came by logs that are followed.
    fn goes_with(&self, look: &AppliersLook) -> bool {
        positions::read(&self.held).is_some_and(|held| look.follows_from(&held))
    }
}

impl AppliersLook {
    /// Whether nothing is missed when it goes on from these: every log that is followed has a
    /// position of the same topic, none newer than what was applied, and logs that are not followed
    /// stood still.
    fn follows_from(&self, stored: &Positions) -> bool {
        let known = |(place, applied): (&TopicPartition, &LogPosition)| {
            let leads =
                |at: &LogPosition| at.next <= applied.next && at.topic.may_be(applied.topic);
            stored.get(place).is_some_and(leads)
        };
        let still = |(place, at): (&TopicPartition, &LogPosition)| stored.get(place) == Some(at);
        self.applied.iter().all(known) && self.others.iter().all(still)
    }
}

/// What records of the target's side may have changed, where it is kept.
#[derive(Default)]
struct Touched {
    tallies: FxHashSet<(NodeKey, KindId)>,
    lists: FxHashSet<IncomingList>,
}

impl Touched {
    fn add(&mut self, kind: &Kind, edge: &EdgeKey) {
        if kind.fixed.incoming_tally {
            let node_type = kind.fixed.target_type;
            let node = NodeKey { tenant: edge.tenant, node_type, id: edge.target.0 };
            self.tallies.insert((node, edge.kind));
        }
        if kind.fixed.incoming_list {
            self.lists.insert(IncomingList::of(edge));
        }
    }

    /// Mostly both are of the same targets.
    fn len(&self) -> usize {
        self.tallies.len().max(self.lists.len())
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The token at the beginning of a string, where there is one.
fn token(answer: Value) -> Result<Option<StringToken>, MemoryError> {
    match answer {
        Value::BulkString(bytes) => Ok(bytes.try_into().ok().map(StringToken)),
        Value::Nil => Ok(None),
        other => Err(MemoryError::Refused(format!("{other:?}"))),
    }
}

#[cfg(test)]
mod tests;
