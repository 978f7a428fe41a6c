//! The relay's thread: one round after the other of answers, deletions, a scan and what it found.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_model::Version;
use rustc_hash::{FxHashMap, FxHashSet};

use super::outbox::{self, Key, SCAN_ROWS_MAX, Scanned, Waiting};
use super::shards::{Lookback, Shard};
use super::{RelayLag, Shared};
use crate::cluster::kafka::{KafkaSettings, LogError, Report, Sender};
use crate::cluster::leases::Share;
use crate::cluster::places::{SHARDS, partition};
use crate::cluster::sql::{Database, SqlError};

/// Rows that were read and are not deleted yet; bounds memory, and is less than the sender takes.
const KNOWN_MAX: usize = 24_000;
/// Between scans that find something: long enough for many rows to a scan, and several to each
/// partition, whose batches cost the broker more than their rows.
const SCAN_BUSY: Duration = Duration::from_millis(50);
/// Between scans that find nothing, growing up to the last.
const SCAN_IDLE_FIRST: Duration = Duration::from_millis(20);
const SCAN_IDLE_LAST: Duration = Duration::from_millis(200);
/// Rows gather for a deletion until there are so many, or for so long.
const DELETE_ROWS: usize = 2_048;
const DELETE_AFTER: Duration = Duration::from_millis(50);
/// After an error of the database or the broker, doubling up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(2);
/// How long a round waits for answers while some are due.
const ANSWERS_WAIT: Duration = Duration::from_millis(5);
/// A client that delivered nothing for so long while it failed is made anew.
const SENDER_PATIENCE: Duration = Duration::from_secs(40);
/// How long closing waits for answers; others would send the rows again.
const CLOSE_WAIT: Duration = Duration::from_millis(1_000);
const SESSION_WAIT: Duration = Duration::from_millis(500);
const LAG_EVERY: Duration = Duration::from_secs(5);

pub struct Work {
    database: Arc<Database>,
    settings: KafkaSettings,
    share: Share,
    shared: Arc<Shared>,
    sender: Option<Sender>,
    shards: Vec<Shard>,
    /// Rows that were read and are not deleted yet.
    known: FxHashSet<Key>,
    on_way: FxHashMap<u64, Key>,
    /// The broker has them; to be deleted.
    done: Vec<Key>,
    done_since: Instant,
    last_ticket: u64,
    /// The number of the present scan.
    scan: u64,
    /// Shards that the present turn has not come to: a turn reads each once, so that one with
    /// many rows does not keep the others waiting.
    turn: Vec<u8>,
    lookback: Lookback,
    scanned: Instant,
    next_scan: Instant,
    idle: Duration,
    database_retry: Retry,
    sender_retry: Retry,
    delivered: Instant,
    lag_at: Instant,
    /// The database's time at the last scan.
    now_ms: u64,
}

impl Work {
    pub fn new(
        database: Arc<Database>,
        settings: KafkaSettings,
        share: Share,
        shared: Arc<Shared>,
    ) -> Work {
        let now = Instant::now();
        Work {
            database,
            settings,
            share,
            shared,
            sender: None,
            shards: (0..SHARDS).map(Shard::new).collect(),
            known: FxHashSet::default(),
            on_way: FxHashMap::default(),
            done: Vec::new(),
            done_since: now,
            last_ticket: 0,
            scan: 0,
            turn: Vec::new(),
            lookback: Lookback::new(),
            scanned: now,
            next_scan: now,
            idle: SCAN_IDLE_FIRST,
            database_retry: Retry::new(),
            sender_retry: Retry::new(),
            delivered: now,
            lag_at: now,
            now_ms: 0,
        }
    }

    pub fn run(mut self) {
        while !self.shared.is_closing() {
            self.own();
            self.take_answers(Duration::ZERO);
            self.delete(false);
            self.scan_if_due();
            self.send_barriers();
            self.look_at_lag();
            self.pause();
        }
        let deadline = Instant::now() + CLOSE_WAIT;
        while !self.on_way.is_empty() && Instant::now() < deadline {
            self.take_answers(ANSWERS_WAIT);
        }
        self.delete(true);
    }

    /// Follows the leases.
    fn own(&mut self) {
        let mut held = [false; SHARDS as usize];
        for lease in self.share.held() {
            held[lease.index] = true;
        }
        for (shard, held) in self.shards.iter_mut().zip(held) {
            if held && !shard.is_owned() {
                shard.own(self.scan + 1);
                self.next_scan = Instant::now();
            } else if !held && shard.is_owned() {
                for key in shard.disown() {
                    self.known.remove(&key);
                }
            }
        }
    }

    fn pause(&mut self) {
        let now = Instant::now();
        if self.shared.answer() {
            self.next_scan = self.next_scan.min(self.scanned + SCAN_BUSY);
            self.idle = SCAN_IDLE_FIRST;
        }
        let left = self.next_scan.saturating_duration_since(now);
        if left.is_zero() {
            // Full: nothing to do but to wait for answers or the database.
            if self.known.len() >= KNOWN_MAX || !self.may_scan() {
                self.take_answers(ANSWERS_WAIT);
                if self.on_way.is_empty() {
                    std::thread::sleep(ANSWERS_WAIT);
                }
            }
        } else if !self.on_way.is_empty() {
            self.take_answers(left.min(ANSWERS_WAIT));
        } else {
            let left = if self.done.is_empty() { left } else { left.min(ANSWERS_WAIT) };
            self.shared.wait(left);
        }
    }

    fn may_scan(&self) -> bool {
        self.database_retry.is_over() && self.sender_retry.is_over()
    }

    fn scan_if_due(&mut self) {
        if Instant::now() < self.next_scan || self.known.len() >= KNOWN_MAX || !self.may_scan() {
            return;
        }
        let from = self.from();
        if from.is_empty() {
            self.next_scan = Instant::now() + SCAN_IDLE_LAST;
            return;
        }
        let scanned = self
            .database
            .session(Instant::now() + SESSION_WAIT)
            .and_then(|mut session| outbox::scan(&mut session, &from));
        self.scanned = Instant::now();
        match scanned {
            Ok(scanned) => {
                self.database_retry.went_well();
                self.take_scan(&from, scanned);
            }
            Err(error) => self.database_failed(&error, "the outbox could not be read"),
        }
    }

    /// The shards to read, and from where.
    fn from(&mut self) -> Vec<(u8, u64)> {
        self.scan += 1;
        let now = Instant::now();
        if self.turn.is_empty() {
            self.turn = (0..SHARDS).collect();
        }
        let lookback_ms = self.lookback.next_ms(now);
        let mut from = Vec::with_capacity(self.turn.len());
        for number in &self.turn {
            let shard = &mut self.shards[usize::from(*number)];
            if shard.is_owned() {
                shard.prepare(self.scan, now);
                from.push((*number, shard.from(lookback_ms)));
            }
        }
        if from.is_empty() {
            self.turn.clear();
        }
        from
    }

    fn take_scan(&mut self, from: &[(u8, u64)], scanned: Scanned) {
        let Scanned { now_ms, rows } = scanned;
        self.now_ms = now_ms;
        let last = rows.last().map(|row| row.key);
        let cut = last.filter(|_| rows.len() >= SCAN_ROWS_MAX);
        let mut found = 0;
        let mut refused = false;
        for row in rows {
            if refused {
                self.shards[usize::from(row.key.shard)].failed(row.key.version, self.scan);
                continue;
            }
            if !self.known.insert(row.key) {
                continue;
            }
            found += 1;
            let shard = &mut self.shards[usize::from(row.key.shard)];
            self.lookback.saw_late(shard.lateness_ms(&row.key));
            if row.key.is_barrier() {
                shard.hold_barrier(row, self.scan);
                continue;
            }
            refused = !self.send(&row);
        }
        for (number, _) in from {
            let shard = &mut self.shards[usize::from(*number)];
            match cut {
                // Not all of it is on its way; where to read on is noted.
                _ if refused => {}
                Some(cut) if *number == cut.shard => shard.cut(cut.version, now_ms),
                // Not reached; its turn comes.
                Some(cut) if *number > cut.shard => {}
                _ => shard.drained(self.scan, now_ms, self.last_ticket),
            }
        }
        self.turn.retain(|number| cut.is_some_and(|cut| *number > cut.shard));
        self.plan_scan(found, cut.is_some() || !self.turn.is_empty());
    }

    fn plan_scan(&mut self, found: usize, more: bool) {
        let waits_for_sweep = self.shards.iter().any(Shard::has_barriers);
        let pause = if more {
            Duration::ZERO
        } else if found > 0 || waits_for_sweep {
            self.idle = SCAN_IDLE_FIRST;
            SCAN_BUSY
        } else {
            let pause = self.idle;
            self.idle = (self.idle * 2).min(SCAN_IDLE_LAST);
            pause
        };
        self.next_scan = self.scanned + pause;
    }

    fn send_barriers(&mut self) {
        for number in 0..self.shards.len() {
            if self.shards[number].is_owned() && self.shards[number].has_barriers() {
                for row in self.shards[number].ready_barriers() {
                    self.send(&row);
                }
            }
        }
    }

    /// Hands a row to the sender; false when it takes no more for now.
    fn send(&mut self, row: &Waiting) -> bool {
        let Key { shard, version, target, .. } = row.key;
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let part = partition(shard, self.settings.partitions);
        let target = target.to_string();
        let key = (!row.key.is_barrier()).then_some(target.as_str());
        let topic = self.settings.topic.as_str();
        let sender = open(&mut self.sender, &mut self.delivered, &self.settings);
        match sender.and_then(|sender| sender.send(topic, part, key, &row.value, ticket)) {
            Ok(true) => {
                self.on_way.insert(ticket, row.key);
                self.shards[usize::from(shard)].sent(ticket);
                return true;
            }
            Ok(false) => self.sender_failed(&LogError::Passing("the queue is full".into())),
            Err(error) => self.sender_failed(&error),
        }
        self.known.remove(&row.key);
        self.shards[usize::from(shard)].failed(version, self.scan);
        false
    }

    fn take_answers(&mut self, wait: Duration) {
        let Some(sender) = &self.sender else { return };
        for Report { ticket, outcome } in sender.reports(wait) {
            let Some(key) = self.on_way.remove(&ticket) else { continue };
            let shard = &mut self.shards[usize::from(key.shard)];
            shard.answered(ticket);
            match outcome {
                Ok(_) => {
                    if self.done.is_empty() {
                        self.done_since = Instant::now();
                    }
                    self.done.push(key);
                    self.delivered = Instant::now();
                    self.sender_retry.went_well();
                }
                Err(error) => {
                    shard.failed(key.version, self.scan);
                    self.known.remove(&key);
                    self.sender_failed(&error);
                }
            }
        }
        let lost_patience =
            self.sender_retry.is_failing() && self.delivered.elapsed() > SENDER_PATIENCE;
        if self.sender.as_ref().is_some_and(Sender::is_broken) || lost_patience {
            self.renew_sender();
        }
    }

    /// What the old client still had counts as not sent.
    fn renew_sender(&mut self) {
        tracing::info!("the client that sends to the log is made anew");
        self.sender = None;
        for (ticket, key) in self.on_way.drain() {
            let shard = &mut self.shards[usize::from(key.shard)];
            shard.answered(ticket);
            shard.failed(key.version, self.scan);
            self.known.remove(&key);
        }
    }

    fn delete(&mut self, all: bool) {
        let due = self.done.len() >= DELETE_ROWS || self.done_since.elapsed() >= DELETE_AFTER;
        if self.done.is_empty() || !(due || all) || !(self.database_retry.is_over() || all) {
            return;
        }
        // In one order, so that two relays do not wait for each other.
        self.done.sort_unstable();
        let count = self.done.len().min(DELETE_ROWS * 2);
        let deleted = self
            .database
            .session(Instant::now() + SESSION_WAIT)
            .and_then(|mut session| outbox::delete(&mut session, &self.done[..count]));
        match deleted {
            Ok(()) => {
                self.database_retry.went_well();
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
        if self.lag_at.elapsed() < LAG_EVERY || !self.database_retry.is_over() {
            return;
        }
        self.lag_at = Instant::now();
        let behind = self.shards.iter().any(Shard::is_behind);
        if !behind {
            let oldest = self.known.iter().map(|key| Version(key.version).time().0).min();
            let oldest_ms = oldest.map_or(0, |oldest| self.now_ms.saturating_sub(oldest));
            self.shared.set_lag(RelayLag { rows: self.known.len() as u64, oldest_ms });
            return;
        }
        let owned = (0..SHARDS).filter(|shard| self.shards[usize::from(*shard)].is_owned());
        let owned: Vec<u8> = owned.collect();
        let looked = self
            .database
            .session(Instant::now() + SESSION_WAIT)
            .and_then(|mut session| outbox::lag(&mut session, &owned));
        match looked {
            Ok((rows, oldest_ms)) => self.shared.set_lag(RelayLag { rows, oldest_ms }),
            Err(error) => self.database_failed(&error, "the outbox could not be counted"),
        }
    }

    fn database_failed(&mut self, error: &SqlError, what: &str) {
        if self.database_retry.failed() {
            tracing::warn!(%error, "{what}; trying again");
        }
    }

    fn sender_failed(&mut self, error: &LogError) {
        if self.sender_retry.failed() {
            tracing::warn!(%error, "records could not be sent to the log; trying again");
        }
    }
}

fn open<'a>(
    sender: &'a mut Option<Sender>,
    delivered: &mut Instant,
    settings: &KafkaSettings,
) -> Result<&'a Sender, LogError> {
    match sender {
        Some(sender) => Ok(sender),
        None => {
            // Its patience begins now.
            *delivered = Instant::now();
            Ok(sender.insert(Sender::open(settings)?))
        }
    }
}

/// When to try again after an error.
struct Retry {
    pause: Duration,
    until: Instant,
}

impl Retry {
    fn new() -> Retry {
        Retry { pause: Duration::ZERO, until: Instant::now() }
    }

    fn is_over(&self) -> bool {
        self.pause.is_zero() || Instant::now() >= self.until
    }

    fn is_failing(&self) -> bool {
        !self.pause.is_zero()
    }

    fn went_well(&mut self) {
        self.pause = Duration::ZERO;
    }

    /// Many failures at once count as one; returns whether this is a new one.
    fn failed(&mut self) -> bool {
        let now = Instant::now();
        if self.is_failing() && now < self.until {
            return false;
        }
        self.pause = (self.pause * 2).clamp(RETRY_FIRST, RETRY_LAST);
        // Up to a quarter more, so that instances do not come back all at once.
        let spread = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ()) % 256;
        self.until = now + self.pause + self.pause * (spread as u32) / 1_024;
        true
    }
}
