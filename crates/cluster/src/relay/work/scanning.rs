//! Scans: which shards are read next and from where, and what becomes of the rows that are seen.

use guanxi_model::Version;
use std::time::{Duration, Instant};

use guanxi_model::places::SHARDS;

use super::super::outbox::{self, SCAN_ROWS_MAX, Scanned, ScannedRow};
use super::super::shards::OutboxShard;
use super::{RelayWork, SESSION_WAIT};
use crate::outbox::OutboxKey;

/// Between scans that find something: long enough for many rows to a scan.
pub(super) const SCAN_BUSY: Duration = Duration::from_millis(50);
/// Between scans that find nothing, growing up to the last: what this process commits is handed
/// over, so nothing is the rule.
pub(super) const SCAN_IDLE_FIRST: Duration = Duration::from_millis(20);
const SCAN_IDLE_LAST: Duration = Duration::from_millis(200);

impl RelayWork {
    pub(super) fn scan_if_due(&mut self) {
        if Instant::now() < self.next_scan || self.is_full() || !self.may_scan() {
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
                self.backoff.went_well();
                // What was handed over meanwhile needs no fetching.
                self.take_handed();
                self.take_scan(&from, scanned);
            }
            Err(error) => self.database_failed(&error, "the outbox could not be read"),
        }
    }

    /// The shards to read, and from where.
    fn from(&mut self) -> Vec<(u8, Version)> {
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

    fn take_scan(&mut self, from: &[(u8, Version)], scanned: Scanned) {
        let Scanned { now_ms, rows } = scanned;
        self.now_ms = now_ms;
        let last = rows.last().map(|row| row.key);
        let cut = last.filter(|_| rows.len() >= SCAN_ROWS_MAX);
        let mut found = 0;
        for ScannedRow { key, barrier, records } in rows {
            if self.known.contains_key(&key) {
                continue;
            }
            found += 1;
            let shard = &mut self.shards[usize::from(key.shard)];
            self.lookback.saw_late(shard.lateness_ms(&key));
            match barrier {
                Some(id) => {
                    self.known.insert(key, records);
                    shard.hold_barrier(id, key, self.scan);
                }
                None => self.know(key, records),
            }
        }
        // What is kept back has its place among what was found, by its version.
        for (key, records) in self.shared.inbox.take_kept() {
            if self.shards[usize::from(key.shard)].is_owned() {
                self.know(key, records);
            }
        }
        for (number, _) in from {
            let shard = &mut self.shards[usize::from(*number)];
            match cut {
                Some(cut) if *number == cut.shard => shard.cut(cut.version, now_ms),
                // Not reached; its turn comes.
                Some(cut) if *number > cut.shard => {}
                _ => shard.drained(self.scan, now_ms, self.last_ticket),
            }
        }
        self.turn.retain(|number| cut.is_some_and(|cut| *number > cut.shard));
        self.plan_scan(found, cut.is_some() || !self.turn.is_empty());
    }

    /// A row that is to be fetched, unless it is known.
    fn know(&mut self, key: OutboxKey, records: u32) {
        if self.known.contains_key(&key) {
            return;
        }
        self.known.insert(key, records);
        let ticket = self.new_ticket(key, records);
        self.found.insert((key.version, ticket));
    }

    fn plan_scan(&mut self, found: usize, more: bool) {
        let waits_for_sweep = self.shards.iter().any(OutboxShard::wants_sweep);
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
}
