//! What these tests share: databases and topics of their own, records, and waiting.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::kafka::{KafkaSettings, LogReader, TakenRecord, create_topics};
use guanxi_cluster::leases::Leases;
use guanxi_cluster::outbox::{self, OutboxRow};
use guanxi_cluster::schema;
use guanxi_cluster::sql::{Database, text};
use guanxi_cluster::value::{self, Message};
use guanxi_core::crew::Crew;
use guanxi_model::codec::encode_kind;
use guanxi_model::kind::{FixedRules, KindName, Rules, TimeIndex};
use guanxi_model::places::SHARDS;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    BarrierId, EdgeKey, EdgeRow, Kind, KindId, Millis, NodeTypeId, SourceId, State, TargetId,
    TenantId, Version,
};
use guanxi_services::{Kafka, SqlServer, fresh_database, shared, topic_name};

/// Generous: other programs run beside.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a test on an empty database of each server that is there, side by side: most of it is
/// waiting.
pub fn on_databases(test: &str, run: impl Fn(Arc<Database>) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| shared::mariadb_or_skip(test).map(|server| run(database(server))));
        scope.spawn(|| shared::tidb_or_skip(test).map(|server| run(database(server))));
    });
}

pub fn database(server: &impl SqlServer) -> Arc<Database> {
    let database = Database::open(&fresh_database(server), 8).unwrap();
    schema::migrate(&database).unwrap();
    create_kind(&database, &kind());
    database
}

/// Topics of its own on this broker.
pub fn topics(kafka: &Kafka, partitions: u32) -> KafkaSettings {
    let settings = KafkaSettings {
        brokers: kafka.brokers(),
        topic: topic_name("records"),
        dead_letter_topic: topic_name("dead-letters"),
        partitions,
        security: Default::default(),
    };
    create_topics(&settings).unwrap();
    settings
}

pub fn leases(database: &Arc<Database>) -> Arc<Leases> {
    leases_of(&Crew::default(), database)
}

pub fn leases_of(crew: &Crew, database: &Arc<Database>) -> Arc<Leases> {
    Leases::start(crew, database.clone(), instance()).unwrap()
}

pub fn instance() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::SeqCst)
}

/// Waits until it is so.
#[track_caller]
pub fn until(what: &str, so: impl FnMut() -> bool) {
    until_within(PATIENCE, what, so);
}

#[track_caller]
pub fn until_within(patience: Duration, what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + patience;
    while !so() {
        assert!(Instant::now() < deadline, "not within {patience:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn kind() -> Kind {
    let fixed = FixedRules {
        source_type: NodeTypeId(1),
        target_type: NodeTypeId(1),
        counter: false,
        reconciled: false,
        owner_type: None,
        outgoing_list: true,
        incoming_list: true,
        outgoing_tally: true,
        incoming_tally: true,
    };
    let name = KindName::new("follow").unwrap();
    Kind { id: KindId(1), name, fixed, rules: Rules::default(), time_index: TimeIndex::Absent }
}

/// The record of a new edge from this source; targets spread over the shards.
pub fn record(source: u64, target: u64, version: u64) -> EdgeRecord {
    let key = EdgeKey {
        tenant: TenantId(1),
        kind: KindId(1),
        source: SourceId(source),
        target: TargetId(target),
    };
    let new = EdgeRow {
        version: Version(version),
        state: State::Live,
        since: Version(version).time(),
        group: None,
        owner: None,
        data: None,
        expires_at: None,
    };
    EdgeRecord::of(key, new)
}

pub fn encoded(record: &EdgeRecord) -> Vec<u8> {
    value::encode(record, &kind(), record.new.version.time())
}

/// A version of this many milliseconds ago.
pub fn version(ago_ms: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Version::at(Millis(now.as_millis() as u64 - ago_ms)).0
}

/// Commits these records to the outbox in one transaction, each in a row of its own, in any shard.
pub fn put_out(database: &Database, records: &[EdgeRecord]) {
    put_out_in(database, records, 1, || fastrand::u8(..SHARDS));
}

/// The same with so many records to a row, in these shards; returns the rows.
pub fn put_out_in(
    database: &Database,
    records: &[EdgeRecord],
    together: usize,
    shard: impl Fn() -> u8,
) -> Vec<OutboxRow> {
    let rows = packed(records, together, shard);
    insert(database, &rows);
    rows.into_iter().map(|(row, _)| row).collect()
}

/// Rows of so many records each.
pub fn packed(
    records: &[EdgeRecord],
    together: usize,
    shard: impl Fn() -> u8,
) -> Vec<(OutboxRow, Vec<u8>)> {
    let rows = records
        .chunks(together)
        .flat_map(|records| outbox::pack(records.to_vec(), records[0].new.version.time(), shard()));
    rows.collect()
}

pub fn insert(database: &Database, rows: &[(OutboxRow, Vec<u8>)]) {
    let mut statement = String::from("BEGIN; ");
    for rows in rows.chunks(256) {
        statement.push_str("INSERT INTO outbox (shard,version,id,records,value) VALUES ");
        text::list(&mut statement, rows, |out, (row, value)| {
            let (key, records) = (row.key, row.records.len());
            let _ = write!(out, "({},{},{},{records},", key.shard, key.version.0, key.id);
            text::bytes(out, value);
            out.push(')');
        });
        statement.push_str("; ");
    }
    statement.push_str("COMMIT");
    database.session(Instant::now() + PATIENCE).unwrap().run(&statement).unwrap();
}

/// Makes a kind known to all.
pub fn create_kind(database: &Database, kind: &Kind) {
    let mut statement = format!(
        "BEGIN; INSERT INTO kinds (tenant,id,name,definition) VALUES (1,{},'{}',",
        kind.id.0, kind.name
    );
    text::bytes(&mut statement, &encode_kind(kind));
    statement.push_str(
        "); INSERT INTO facts (name,value) VALUES ('catalog',1) \
         ON DUPLICATE KEY UPDATE value=value+1; COMMIT",
    );
    database.session(Instant::now() + PATIENCE).unwrap().run(&statement).unwrap();
}

pub fn outbox_rows(database: &Database) -> u64 {
    let mut session = database.session(Instant::now() + PATIENCE).unwrap();
    let rows = session.rows("SELECT COUNT(*) FROM outbox").unwrap();
    rows[0].get(0).unwrap()
}

/// A reader of all partitions from their start.
pub fn reader(settings: &KafkaSettings) -> LogReader {
    LogReader::open(settings, &settings.topic, (0..settings.partitions).map(|part| (part, 0)))
        .unwrap()
}

/// What a topic holds, read on and on.
pub struct Seen {
    reader: LogReader,
    partitions: u32,
    /// Every record, those of a partition in its order.
    pub records: Vec<EdgeRecord>,
    /// Places of each source's records, by partition and offset.
    pub edges: BTreeMap<u64, Vec<(u32, u64)>>,
    /// Where a barrier came in each partition, and for which shards.
    pub barriers: BTreeMap<(BarrierId, u32), Vec<(u64, u64)>>,
}

impl Seen {
    pub fn of(settings: &KafkaSettings) -> Seen {
        Seen {
            reader: reader(settings),
            partitions: settings.partitions,
            records: Vec::new(),
            edges: BTreeMap::new(),
            barriers: BTreeMap::new(),
        }
    }

    /// Reads what there is now.
    pub fn look(&mut self) {
        loop {
            let taken = match self.reader.next(1_000, Duration::from_millis(100)) {
                Ok(taken) => taken,
                Err(error) => {
                    eprintln!("reading: {error}");
                    std::thread::sleep(Duration::from_millis(100));
                    return;
                }
            };
            if taken.is_empty() {
                return;
            }
            for TakenRecord { partition, offset, value, .. } in taken {
                let place = (partition, offset);
                match value::decode(&value).unwrap() {
                    Message::Edge { record, .. } => {
                        self.edges.entry(record.key.source.0).or_default().push(place);
                        self.records.push(*record);
                    }
                    Message::Barrier { id, shards } => {
                        self.barriers.entry((id, partition)).or_default().push((offset, shards));
                    }
                }
            }
        }
    }

    /// Shards for which a barrier has come in this partition.
    pub fn barrier_shards(&self, id: BarrierId, partition: u32) -> u64 {
        let came = self.barriers.get(&(id, partition)).into_iter().flatten();
        came.fold(0, |all, (_, shards)| all | shards)
    }

    /// Waits until a barrier has come for these shards in every partition.
    #[track_caller]
    pub fn has_barrier(&mut self, id: BarrierId, shards: u64) {
        until("the barrier is in every partition", || {
            self.look();
            (0..self.partitions).all(|part| self.barrier_shards(id, part) & shards == shards)
        });
    }

    /// Whether a barrier has come for these shards and no others, in every partition.
    pub fn has_barrier_only(&self, id: BarrierId, shards: u64) -> bool {
        (0..self.partitions).all(|part| self.barrier_shards(id, part) == shards)
    }

    /// Where a barrier first came for this shard.
    pub fn barrier_place(&self, id: BarrierId, partition: u32, shard: u8) -> Option<u64> {
        let came = self.barriers.get(&(id, partition)).into_iter().flatten();
        came.filter(|(_, shards)| shards & (1 << shard) != 0).map(|(offset, _)| *offset).min()
    }

    /// Waits until the log has a record of each of these sources.
    #[track_caller]
    pub fn has_all(&mut self, sources: impl IntoIterator<Item = u64>) {
        let sources: Vec<u64> = sources.into_iter().collect();
        until("all records are in the log", || {
            self.look();
            sources.iter().all(|source| self.edges.contains_key(source))
        });
    }
}
