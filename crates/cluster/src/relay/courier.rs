//! Sends what the relay gives it, piece by piece as far as the log's client takes it, and tells for
//! each load when the broker has all of it, or that it may not have. The topic's public values are
//! made here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use guanxi_core::backoff::Backoff;
use guanxi_model::places::{edge_shard, partition};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{BarrierId, Catalog, Millis};
use rustc_hash::FxHashMap;

use super::acknowledged::AcknowledgedNotes;
use crate::acknowledged::Note;
use crate::applier::bind_positions;
use crate::catalog::SharedCatalog;
use crate::kafka::{BrokerError, KafkaSettings, LogSender, Report, TopicError, check_topics};
use crate::sql::{Database, SqlError};
use crate::value;

/// Values that the broker has not answered for; less than the client takes.
const SENT_MAX: usize = 48_000;
/// Records that wait to be sent; beyond it no more loads are wanted. A load may exceed it.
const READY_MAX: usize = 16_384;

#[derive(Debug)]
pub enum Load {
    /// To each record's partition.
    Records { time: Millis, records: Vec<EdgeRecord> },
    /// To every partition, for these shards.
    Barrier { id: BarrierId, shards: u64 },
}

/// What became of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadOutcome {
    pub ticket: u64,
    /// Whether the broker has all of it for good.
    pub sent: bool,
}

/// Why nothing can be sent yet.
#[derive(Debug, thiserror::Error)]
enum CourierError {
    #[error(transparent)]
    Topics(#[from] TopicError),
    #[error(transparent)]
    Log(#[from] BrokerError),
    #[error(transparent)]
    Sql(#[from] SqlError),
}

pub struct Courier {
    settings: KafkaSettings,
    catalog: Arc<SharedCatalog>,
    database: Arc<Database>,
    sender: Option<LogSender>,
    backoff: Backoff,
    ready: VecDeque<Ready>,
    /// Pieces of `ready` that are not sent.
    ready_pieces: usize,
    /// How many pieces of a load the broker has not answered for, by its ticket.
    on_way: FxHashMap<u64, usize>,
    /// Pieces that the broker has not answered for.
    sent_pieces: usize,
    acknowledged: AcknowledgedNotes,
    buffer: Vec<u8>,
}

struct Ready {
    ticket: u64,
    load: Load,
    /// The first piece that is not sent.
    next: usize,
}

impl Courier {
    pub fn new(
        settings: KafkaSettings,
        catalog: Arc<SharedCatalog>,
        database: Arc<Database>,
    ) -> Courier {
        Courier {
            settings,
            catalog,
            database,
            sender: None,
            backoff: Backoff::default(),
            ready: VecDeque::new(),
            ready_pieces: 0,
            on_way: FxHashMap::default(),
            sent_pieces: 0,
            acknowledged: AcknowledgedNotes::new(),
            buffer: Vec::new(),
        }
    }

    /// Whether it wants more.
    pub fn has_room(&self) -> bool {
        self.ready_pieces < READY_MAX && self.backoff.is_over()
    }

    /// Whether answers are due.
    pub fn is_waiting(&self) -> bool {
        self.sent_pieces > 0
    }

    pub fn is_idle(&self) -> bool {
        self.on_way.is_empty()
    }

    /// Whether the log did not fail of late.
    pub fn may_send(&self) -> bool {
        self.backoff.is_over()
    }

    /// Takes a load; the error says why it never can be sent.
    pub fn take(&mut self, ticket: u64, load: Load) -> Result<(), String> {
        if let Load::Records { records, .. } = &load {
            self.know_kinds(records)?;
        }
        let left = load.pieces(&self.settings);
        if left == 0 {
            return Err("it holds no record".into());
        }
        self.ready_pieces += left;
        self.on_way.insert(ticket, left);
        self.ready.push_back(Ready { ticket, load, next: 0 });
        Ok(())
    }

    /// A kind is never removed, so those that are known now are known when the values are made.
    fn know_kinds(&self, records: &[EdgeRecord]) -> Result<(), String> {
        let unknown = |catalog: &Catalog| {
            let keys = records.iter().map(|record| record.key);
            keys.into_iter().find(|key| catalog.kind(key.tenant, key.kind).is_none())
        };
        if unknown(&self.catalog.current()).is_none() {
            return Ok(());
        }
        if let Err(error) = self.catalog.look(&self.database) {
            tracing::warn!(%error, "the catalog could not be looked at for a new kind");
        }
        match unknown(&self.catalog.current()) {
            None => Ok(()),
            Some(key) => Err(format!("nobody knows its kind {}", key.kind.0)),
        }
    }

    /// Gives the client as much as it takes.
    pub fn send(&mut self) {
        if self.ready.is_empty() || !self.backoff.is_over() {
            return;
        }
        if let Err(error) = self.open() {
            return self.failed(&error);
        }
        let catalog = self.catalog.current();
        while let Some(ready) = self.ready.front_mut() {
            let pieces = ready.load.pieces(&self.settings);
            while ready.next < pieces && self.sent_pieces < SENT_MAX {
                let (part, key) =
                    ready.load.piece(ready.next, &self.settings, &catalog, &mut self.buffer);
                let Some(sender) = &self.sender else { return };
                let topic = &self.settings.topic;
                match sender.send(topic, part, key.as_deref(), &self.buffer, ready.ticket) {
                    Ok(true) => {
                        ready.next += 1;
                        self.ready_pieces -= 1;
                        self.sent_pieces += 1;
                    }
                    // It is full: answers make room.
                    Ok(false) => return,
                    Err(error) => return self.failed(&error),
                }
            }
            if ready.next < pieces {
                return;
            }
            self.ready.pop_front();
        }
    }

    /// What the broker has of all that was sent, as far as that was not noted yet, and the topic.
    pub fn acknowledged(&self) -> (&str, Vec<Note>) {
        (&self.settings.topic, self.acknowledged.unwritten())
    }

    pub fn acknowledged_is_noted(&mut self) {
        self.acknowledged.written();
    }

    /// Makes the client that sends. Where that fails, it is tried again when there is something.
    pub fn make_ready(&mut self) {
        if let Err(error) = self.open() {
            self.failed(&error);
        }
    }

    /// Makes the client that sends, once it is sure that the topic has the partitions that the
    /// settings say, and each of them is bound to it: what is sent to one that is bound to none
    /// would be missing unnoticed if the topic were then made anew.
    fn open(&mut self) -> Result<(), CourierError> {
        if self.sender.is_some() {
            return Ok(());
        }
        check_topics(&self.settings, None)?;
        let KafkaSettings { topic, partitions, .. } = &self.settings;
        let sender = LogSender::open(&self.settings)?;
        let id = sender.topic_id(topic)?;
        let partitions: Vec<u32> = (0..*partitions).collect();
        bind_positions(&self.database, topic, &partitions, id)?;
        self.acknowledged.begin(id);
        self.sender = Some(sender);
        Ok(())
    }

    /// What became of loads; waits for the first answer for as long. After the first that is not as
    /// it should be, nothing is known of what the log has of this client: another goes on in its
    /// place, and sends what this one did not have an answer for, some of it once more.
    pub fn answers(&mut self, wait: Duration) -> Vec<LoadOutcome> {
        let Some(sender) = &self.sender else { return Vec::new() };
        let mut outcomes = Vec::new();
        let mut goes_on = true;
        for Report { ticket, outcome } in sender.reports(wait) {
            goes_on = match outcome {
                Ok(Some(delivered)) => {
                    self.acknowledged.take(delivered) || {
                        let topic = &self.settings.topic;
                        tracing::error!(
                            topic,
                            "the log went back: it lost its end, or its topic was made anew"
                        );
                        false
                    }
                }
                // What is nowhere cannot be noted.
                Ok(None) => false,
                Err(error) => {
                    self.failed(&error);
                    false
                }
            };
            if !goes_on {
                break;
            }
            self.backoff.went_well();
            self.sent_pieces = self.sent_pieces.saturating_sub(1);
            let Some(left) = self.on_way.get_mut(&ticket) else { continue };
            *left -= 1;
            if *left == 0 {
                outcomes.push(LoadOutcome { ticket, sent: true });
                self.on_way.remove(&ticket);
            }
        }
        if !goes_on || self.sender.as_ref().is_some_and(LogSender::is_broken) {
            self.renew(&mut outcomes);
        }
        outcomes
    }

    /// What the old client still had counts as not sent, and so does what waits for it.
    fn renew(&mut self, outcomes: &mut Vec<LoadOutcome>) {
        tracing::info!("the client that sends to the log is made anew");
        self.sender = None;
        self.ready.clear();
        (self.ready_pieces, self.sent_pieces) = (0, 0);
        outcomes.extend(self.on_way.drain().map(|(ticket, _)| LoadOutcome { ticket, sent: false }));
    }

    fn failed(&mut self, error: &impl std::fmt::Display) {
        if let Some(times) = self.backoff.failed() {
            tracing::warn!(%error, times, "records could not be sent to the log; trying again");
        }
    }
}

impl Load {
    fn pieces(&self, settings: &KafkaSettings) -> usize {
        match self {
            Load::Records { records, .. } => records.len(),
            Load::Barrier { .. } => settings.partitions as usize,
        }
    }

    /// Makes a piece's value; returns its partition and key.
    fn piece(
        &self,
        index: usize,
        settings: &KafkaSettings,
        catalog: &Catalog,
        value: &mut Vec<u8>,
    ) -> (u32, Option<String>) {
        value.clear();
        match self {
            Load::Records { time, records } => {
                let record = &records[index];
                if let Some(kind) = catalog.kind(record.key.tenant, record.key.kind) {
                    value::encode_into(value, record, kind, *time);
                }
                let part = partition(edge_shard(&record.key), settings.partitions);
                (part, Some(value::key(record.key.target)))
            }
            Load::Barrier { id, shards } => {
                value.extend(value::encode_barrier(*id, *shards));
                (index as u32, None)
            }
        }
    }
}
