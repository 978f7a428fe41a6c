//! The relay's thread: one round after the other of answers, deletions, rows handed over, a scan
//! and what it found. A row that is known has a ticket, from when it is found until it is in the
//! log; barriers go by these tickets.

mod order;
mod scanning;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew;
use guanxi_model::places::SHARDS;
use guanxi_model::{BarrierId, Version};
use rustc_hash::FxHashMap;

use self::scanning::{SCAN_BUSY, SCAN_IDLE_FIRST};
use super::courier::{Courier, Load, LoadOutcome};
use super::outbox;
use super::shards::{Lookback, OutboxShard};
use super::{RelayLag, RelayShared};
use crate::catalog::SharedCatalog;
use crate::kafka::KafkaSettings;
use crate::leases::Share;
use crate::outbox::{OutboxKey, OutboxRow, tell_unreadable, unpack};
use crate::sql::{Database, SqlError};

/// Rows that are known and not deleted yet; bounds memory.
const KNOWN_MAX: usize = 24_000;
/// Rows and records that are fetched together; a row may have more.
const FETCH_ROWS: usize = 1_024;
const FETCH_RECORDS: usize = 8_192;
/// Rows gather for a deletion until there are so many, or for so long.
const DELETE_ROWS: usize = 2_048;
const DELETE_AFTER: Duration = Duration::from_millis(100);
/// How long a round waits for answers while some are due.
const ANSWERS_WAIT: Duration = Duration::from_millis(5);
/// How long a barrier that may go waits for the same one of other shards.
const JOIN_WAIT: Duration = Duration::from_millis(50);
/// How often a row that could not be read is tried again, and how often that is said.
const STUCK_RETRY: Duration = Duration::from_secs(2);
const STUCK_SAID: Duration = Duration::from_secs(30);
/// How long closing waits for answers; others would send the rows again.
const CLOSE_WAIT: Duration = Duration::from_millis(1_000);
const SESSION_WAIT: Duration = Duration::from_millis(500);
const LAG_EVERY: Duration = Duration::from_secs(5);

/// What a ticket stands for.
#[derive(Debug)]
enum Cargo {
    Row {
        key: OutboxKey,
        records: u32,
    },
    /// The rows of one barrier, in the shards that it is sent for.
    Barrier {
        id: BarrierId,
        keys: Vec<OutboxKey>,
    },
}

pub struct RelayWork {
    database: Arc<Database>,
    share: Share,
    shared: Arc<RelayShared>,
    courier: Courier,
    shards: Vec<OutboxShard>,
    /// Rows that are not deleted yet, with their records.
    known: FxHashMap<OutboxKey, u32>,
    tickets: FxHashMap<u64, Cargo>,
    last_ticket: u64,
    /// Tickets to be fetched, after their rows' versions: the oldest go first.
    found: BTreeSet<(Version, u64)>,
    /// Could not be read; to be tried again.
    stuck: Vec<u64>,
    stuck_at: Instant,
    stuck_said: Option<Instant>,
    /// When a barrier first could go.
    joining: BTreeMap<BarrierId, Instant>,
    /// The broker has them; to be deleted.
    done: Vec<OutboxKey>,
    done_since: Instant,
    /// The number of the present scan.
    scan: u64,
    /// Shards that the present turn has not come to: a turn reads each once, so that one with
    /// many rows does not keep the others waiting.
    turn: Vec<u8>,
    lookback: Lookback,
    scanned: Instant,
    next_scan: Instant,
    idle: Duration,
    backoff: Backoff,
    lag_at: Instant,
    /// The database's time at the last scan.
    now_ms: u64,
}

impl RelayWork {
    pub fn new(
        database: Arc<Database>,
        catalog: Arc<SharedCatalog>,
        settings: KafkaSettings,
        share: Share,
        shared: Arc<RelayShared>,
    ) -> RelayWork {
        let now = Instant::now();
        RelayWork {
            courier: Courier::new(settings, catalog, database.clone()),
            database,
            share,
            shared,
            shards: (0..SHARDS).map(OutboxShard::new).collect(),
            known: FxHashMap::default(),
            tickets: FxHashMap::default(),
            last_ticket: 0,
            found: BTreeSet::new(),
            stuck: Vec::new(),
            stuck_at: now,
            stuck_said: None,
            joining: BTreeMap::new(),
            done: Vec::new(),
            done_since: now,
            scan: 0,
            turn: Vec::new(),
            lookback: Lookback::new(),
            scanned: now,
            next_scan: now,
            idle: SCAN_IDLE_FIRST,
            backoff: Backoff::default(),
            lag_at: now,
            now_ms: 0,
        }
    }

    pub fn run(mut self) {
        // Before the first scan: what is handed over while it lasts would wait behind it.
        self.courier.make_ready();
        while !self.shared.is_closing() {
            crew::turn();
            self.own();
            self.take_answers(Duration::ZERO);
            self.delete(false);
            self.take_handed();
            self.scan_if_due();
            self.fetch();
            self.let_handed_pass();
            self.send_barriers();
            self.courier.send();
            self.look_at_lag();
            self.pause();
        }
        let deadline = Instant::now() + CLOSE_WAIT;
        while !self.courier.is_idle() && Instant::now() < deadline {
            self.courier.send();
            self.take_answers(ANSWERS_WAIT);
        }
        self.delete(true);
    }

    /// Follows the leases.
    fn own(&mut self) {
        let mut held = 0_u64;
        for lease in self.share.held() {
            held |= 1 << lease.index;
        }
        self.shared.inbox.set_held(held);
        for number in 0..SHARDS {
            let shard = &mut self.shards[usize::from(number)];
            let held = held & (1 << number) != 0;
            if held && !shard.is_owned() {
                shard.own(self.scan + 1);
                self.next_scan = Instant::now();
            } else if !held && shard.is_owned() {
                self.disown(number);
            }
        }
    }

    /// What was not sent is its next owner's to find.
    fn disown(&mut self, number: u8) {
        let shard = &mut self.shards[usize::from(number)];
        for key in shard.disown() {
            self.known.remove(&key);
        }
        let (tickets, known) = (&mut self.tickets, &mut self.known);
        let mut stays = |ticket: &u64| match tickets.get(ticket) {
            Some(Cargo::Row { key, .. }) if key.shard == number => {
                known.remove(key);
                shard.is_done(*ticket);
                tickets.remove(ticket);
                false
            }
            _ => true,
        };
        self.found.retain(|(_, ticket)| stays(ticket));
        self.stuck.retain(&mut stays);
    }

    fn pause(&mut self) {
        let now = Instant::now();
        if self.shared.inbox.was_asked() {
            self.next_scan = self.next_scan.min(self.scanned + SCAN_BUSY);
            self.idle = SCAN_IDLE_FIRST;
        }
        let works = self.courier.has_room() && self.backoff.is_over();
        let handed = !self.shared.inbox.is_empty();
        if works && (self.may_fetch() || (handed && !self.is_full())) {
            return;
        }
        let mut left = self.next_scan.saturating_duration_since(now);
        if self.is_full() || !self.may_scan() {
            left = left.max(ANSWERS_WAIT);
        }
        if self.courier.is_waiting() {
            self.take_answers(left.min(ANSWERS_WAIT));
        } else if handed || !works {
            // What waits in the inbox cannot be taken now, so it is no reason to hurry.
            std::thread::sleep(ANSWERS_WAIT);
        } else {
            let soon = !self.done.is_empty() || !self.joining.is_empty();
            self.shared.inbox.wait(if soon { left.min(ANSWERS_WAIT) } else { left });
        }
    }

    fn is_full(&self) -> bool {
        self.known.len() >= KNOWN_MAX
    }

    fn may_scan(&self) -> bool {
        self.backoff.is_over() && self.courier.may_send()
    }

    fn new_ticket(&mut self, key: OutboxKey, records: u32) -> u64 {
        self.last_ticket += 1;
        self.tickets.insert(self.last_ticket, Cargo::Row { key, records });
        self.shards[usize::from(key.shard)].takes(self.last_ticket);
        self.last_ticket
    }

    /// Takes rows that the committer handed over, as far as they are ours and not known.
    fn take_handed(&mut self) {
        while self.courier.has_room() && !self.is_full() {
            let Some(row) = self.shared.inbox.pop() else { return };
            let OutboxRow { key, time, records } = row;
            let count = records.len() as u32;
            if !self.shards[usize::from(key.shard)].is_owned() || self.known.contains_key(&key) {
                continue;
            }
            self.known.insert(key, count);
            let ticket = self.new_ticket(key, count);
            if let Err(cause) = self.courier.take(ticket, Load::Records { time, records }) {
                self.is_stuck(ticket, &cause);
            }
        }
    }

    /// Reads the values of rows that were found, as many as the courier wants.
    fn fetch(&mut self) {
        if self.stuck_at.elapsed() >= STUCK_RETRY {
            self.stuck_at = Instant::now();
            for ticket in self.stuck.drain(..) {
                if let Some(Cargo::Row { key, .. }) = self.tickets.get(&ticket) {
                    self.found.insert((key.version, ticket));
                }
            }
        }
        if !self.may_fetch() || !self.courier.has_room() || !self.backoff.is_over() {
            return;
        }
        let mut wanted: Vec<(u64, OutboxKey, u32)> = Vec::new();
        let mut together = 0;
        while let Some((_, ticket)) = self.found.pop_first() {
            let Some(Cargo::Row { key, records }) = self.tickets.get(&ticket) else { continue };
            wanted.push((ticket, *key, *records));
            together += *records as usize;
            if wanted.len() >= FETCH_ROWS || together >= FETCH_RECORDS {
                break;
            }
        }
        let fetched =
            self.database.session(Instant::now() + SESSION_WAIT).and_then(|mut session| {
                outbox::fetch(&mut session, wanted.iter().map(|(_, key, _)| *key))
            });
        let mut values = match fetched {
            Ok(values) => values,
            Err(error) => {
                self.found.extend(wanted.iter().map(|(ticket, key, _)| (key.version, *ticket)));
                return self.database_failed(&error, "rows of the outbox could not be read");
            }
        };
        self.backoff.went_well();
        for (ticket, key, count) in wanted {
            let Some(value) = values.remove(&key) else {
                // Another relay has sent it and deleted it.
                self.forget(ticket, &key);
                continue;
            };
            let taken = unpack(&value).and_then(|(time, records)| match records.len() {
                found if found == count as usize => {
                    self.courier.take(ticket, Load::Records { time, records })
                }
                found => Err(format!("it should have {count} records, but has {found}")),
            });
            if let Err(cause) = taken {
                self.is_stuck(ticket, &cause);
            }
        }
    }

    /// The row stays where it is, and counts as lag; no barrier of its shard passes it.
    fn is_stuck(&mut self, ticket: u64, cause: &str) {
        self.stuck.push(ticket);
        let Some(Cargo::Row { key, .. }) = self.tickets.get(&ticket) else { return };
        if self.stuck_said.is_none_or(|said| said.elapsed() >= STUCK_SAID) {
            self.stuck_said = Some(Instant::now());
            tell_unreadable(key, cause, self.stuck.len());
        }
    }

    /// Sends the barriers that may go, each for as many shards at once as there are.
    fn send_barriers(&mut self) {
        let mut held: BTreeMap<BarrierId, (u64, bool)> = BTreeMap::new();
        for (number, shard) in self.shards.iter().enumerate().filter(|(_, shard)| shard.is_owned())
        {
            for (id, ready) in shard.barriers() {
                let (shards, all) = held.entry(id).or_insert((0, true));
                *shards |= u64::from(ready) << number;
                *all &= ready;
            }
        }
        self.joining.retain(|id, _| held.contains_key(id));
        for (id, (shards, all)) in held {
            let waited = match shards {
                0 => continue,
                _ => self.joining.entry(id).or_insert_with(Instant::now).elapsed(),
            };
            if !(all || waited >= JOIN_WAIT) {
                continue;
            }
            self.joining.remove(&id);
            let numbers = (0..self.shards.len()).filter(|number| shards & (1 << number) != 0);
            let keys = numbers.flat_map(|number| self.shards[number].release_barrier(id)).collect();
            self.last_ticket += 1;
            self.tickets.insert(self.last_ticket, Cargo::Barrier { id, keys });
            // Nothing but a record's kind is ever refused.
            let _taken = self.courier.take(self.last_ticket, Load::Barrier { id, shards });
        }
    }

    fn take_answers(&mut self, wait: Duration) {
        let mut failed = false;
        for LoadOutcome { ticket, sent } in self.courier.answers(wait) {
            if !sent {
                self.not_sent(ticket);
                failed = true;
                continue;
            }
            if self.done.is_empty() {
                self.done_since = Instant::now();
            }
            match self.tickets.remove(&ticket) {
                Some(Cargo::Row { key, .. }) => {
                    self.shards[usize::from(key.shard)].is_done(ticket);
                    self.done.push(key);
                }
                Some(Cargo::Barrier { keys, .. }) => self.done.extend(keys),
                None => {}
            }
        }
        if failed {
            self.keep_handed_back();
        }
    }

    /// A row is fetched again under its ticket, so that barriers go on waiting for it; a barrier
    /// begins anew. What is no longer ours is left to its owner.
    fn not_sent(&mut self, ticket: u64) {
        let owned =
            |shards: &[OutboxShard], key: &OutboxKey| shards[usize::from(key.shard)].is_owned();
        match self.tickets.remove(&ticket) {
            Some(Cargo::Row { key, records }) if owned(&self.shards, &key) => {
                self.tickets.insert(ticket, Cargo::Row { key, records });
                self.found.insert((key.version, ticket));
            }
            Some(Cargo::Row { key, .. }) => self.forget(ticket, &key),
            Some(Cargo::Barrier { id, keys }) => {
                for key in keys {
                    match owned(&self.shards, &key) {
                        true => {
                            let shard = &mut self.shards[usize::from(key.shard)];
                            shard.hold_barrier(id, key, self.scan);
                        }
                        false => {
                            self.known.remove(&key);
                        }
                    }
                }
            }
            None => {}
        }
    }

    fn forget(&mut self, ticket: u64, key: &OutboxKey) {
        self.tickets.remove(&ticket);
        self.shards[usize::from(key.shard)].is_done(ticket);
        self.known.remove(key);
    }

    fn delete(&mut self, all: bool) {
        let due = self.done.len() >= DELETE_ROWS || self.done_since.elapsed() >= DELETE_AFTER;
        if self.done.is_empty() || !(due || all) || !(self.backoff.is_over() || all) {
            return;
        }
        // In one order, so that two relays do not wait for each other.
        self.done.sort_unstable();
        let count = self.done.len().min(DELETE_ROWS * 2);
        let (topic, notes) = self.courier.acknowledged();
        let deleted =
            self.database.session(Instant::now() + SESSION_WAIT).and_then(|mut session| {
                outbox::delete(&mut session, &self.done[..count], topic, &notes)
            });
        match deleted {
            Ok(()) => {
                self.backoff.went_well();
                self.courier.acknowledged_is_noted();
                for key in self.done.drain(..count) {
                    self.known.remove(&key);
                }
                self.done_since = Instant::now();
            }
            // They stay, and are deleted later: again by exact keys, so nothing else can go.
            Err(error) => self.database_failed(&error, "sent rows could not be deleted"),
        }
    }

    /// What is known to wait costs nothing to tell; only a backlog is counted by the database.
    fn look_at_lag(&mut self) {
        if self.lag_at.elapsed() < LAG_EVERY || !self.backoff.is_over() {
            return;
        }
        self.lag_at = Instant::now();
        let behind = self.shards.iter().any(OutboxShard::is_behind);
        if !behind {
            let oldest = self.known.keys().map(|key| key.version.time().0).min();
            let oldest_ms = oldest.map_or(0, |oldest| self.now_ms.saturating_sub(oldest));
            let records = self.known.values().map(|records| u64::from(*records)).sum();
            self.shared.set_lag(RelayLag { records, oldest_ms });
            return;
        }
        let owned = (0..SHARDS).filter(|shard| self.shards[usize::from(*shard)].is_owned());
        let owned: Vec<u8> = owned.collect();
        let looked = self
            .database
            .session(Instant::now() + SESSION_WAIT)
            .and_then(|mut session| outbox::lag(&mut session, &owned));
        match looked {
            Ok((records, oldest_ms)) => self.shared.set_lag(RelayLag { records, oldest_ms }),
            Err(error) => self.database_failed(&error, "the outbox could not be counted"),
        }
    }

    fn database_failed(&mut self, error: &SqlError, what: &str) {
        if let Some(times) = self.backoff.failed() {
            tracing::warn!(%error, times, "{what}; trying again");
        }
    }
}
