//! Does what a changefeed of TiCDC does, which no test can run: looks at `outgoing` again and
//! again, each time as it stood at one moment, and writes what has changed since the last look into
//! a topic, in canal-json with the TiDB extension; then that moment into every partition, as its
//! watermark. What stood there before it began it never tells.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::collections::BTreeMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guanxi_cluster::kafka::{KafkaSettings, LogSender};
use guanxi_cluster::rows::{self, OUTGOING_COLUMNS, cell};
use guanxi_cluster::sql::{Database, Dialect};
use guanxi_model::{EdgeKey, EdgeRow};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Everything here must happen within this, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// A timestamp's milliseconds stand above this.
const TIME_SHIFT: u32 = 18;
/// One message in so many has only the key, as one that would grow too large.
const KEY_ONLY_EVERY: u64 = 7;
/// One UPDATE in so many tells of the old row only what changed.
const CHANGED_ONLY_EVERY: u64 = 3;

/// A row and its cause.
pub type Row = (EdgeRow, Option<String>);

pub struct Player {
    stop: Arc<AtomicBool>,
    /// Held during a look; whether there are none for now.
    stalled: Arc<Mutex<bool>>,
    /// Messages about rows so far.
    told: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Player {
    /// Runs when it returns: what is committed from now on is told.
    pub fn start(url: &str, kafka: &KafkaSettings, topic: &str) -> Player {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::new(AtomicU64::new(0));
        let mut playing = Playing {
            database: Database::open(url, 2).expect("the database is there"),
            sender: LogSender::open(kafka).expect("the broker is there"),
            topic: topic.to_owned(),
            partitions: kafka.partitions,
            rows: BTreeMap::new(),
            told: told.clone(),
        };
        let (now, rows) = playing.look();
        playing.rows = rows;
        playing.send(&playing.watermarks(now));
        let stalled = Arc::new(Mutex::new(false));
        let (stopped, rests) = (stop.clone(), stalled.clone());
        let thread = std::thread::spawn(move || {
            loop {
                let last = stopped.load(Ordering::SeqCst);
                {
                    let stalled = rests.lock();
                    if !*stalled {
                        playing.step();
                    }
                }
                if last {
                    return;
                }
                std::thread::sleep(LOOK);
            }
        });
        Player { stop, stalled, told, thread: Some(thread) }
    }

    pub fn told(&self) -> u64 {
        self.told.load(Ordering::SeqCst)
    }

    /// What is committed from now on is never told.
    pub fn stall(&self) {
        *self.stalled.lock() = true;
    }

    /// What was committed before this call has been told when it returns, unless it was stalled.
    pub fn close(mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("closed once");
        thread.join().expect("the player ran on");
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Playing {
    database: Arc<Database>,
    sender: LogSender,
    topic: String,
    partitions: u32,
    /// As they stood at the last look.
    rows: BTreeMap<EdgeKey, Row>,
    told: Arc<AtomicU64>,
}

impl Playing {
    fn step(&mut self) {
        let (now, rows) = self.look();
        let mut values = Vec::new();
        for (key, row) in &rows {
            let old = self.rows.get(key);
            if old != Some(row) {
                let number = self.told.fetch_add(1, Ordering::SeqCst);
                let value = if number % KEY_ONLY_EVERY == KEY_ONLY_EVERY - 1 {
                    change(key, old.map(|_| Map::new()), Map::new(), now)
                } else {
                    let mut old = old.map(columns);
                    let new = columns(row);
                    if number.is_multiple_of(CHANGED_ONLY_EVERY) {
                        let differs = |name: &String, value: &mut Value| new[name] != *value;
                        old.iter_mut().for_each(|old| old.retain(differs));
                    }
                    change(key, old, new, now)
                };
                values.push((partition(key, self.partitions), value));
            }
        }
        for key in self.rows.keys().filter(|key| !rows.contains_key(key)) {
            values.push((partition(key, self.partitions), deletion(key, now)));
        }
        values.extend(self.watermarks(now));
        self.send(&values);
        self.rows = rows;
    }

    /// All rows as they stood at a moment, and which it was.
    fn look(&self) -> (u64, BTreeMap<EdgeKey, Row>) {
        let tidb = self.database.dialect() == Dialect::TiDb;
        let now = if tidb { "@@tidb_current_ts" } else { "UNIX_TIMESTAMP(NOW(3))*1000" };
        let mut session = self.database.session(Instant::now() + PATIENCE).expect("a session");
        let mut sets = session
            .run(&format!(
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;\
                 START TRANSACTION WITH CONSISTENT SNAPSHOT;\
                 SELECT CAST({now} AS UNSIGNED);SELECT {OUTGOING_COLUMNS},cause FROM outgoing;\
                 COMMIT"
            ))
            .expect("a picture of the table")
            .into_iter()
            .skip(2);
        let now: u64 = cell(&sets.next().unwrap_or_default().rows[0], 0).expect("a time");
        let found = sets.next().unwrap_or_default().rows;
        let rows = found.iter().map(|row| {
            let (key, edge) = rows::outgoing(row).expect("a row of ours");
            (key, (edge, cell(row, 11).expect("a cause")))
        });
        (if tidb { now } else { now << TIME_SHIFT }, rows.collect())
    }

    fn watermarks(&self, now: u64) -> Vec<(u32, Vec<u8>)> {
        (0..self.partitions).map(|partition| (partition, watermark(now))).collect()
    }

    fn send(&self, values: &[(u32, Vec<u8>)]) {
        send(&self.sender, &self.topic, values);
    }
}

/// Sends values and waits for the broker's word.
pub fn send(sender: &LogSender, topic: &str, values: &[(u32, Vec<u8>)]) {
    let deadline = Instant::now() + PATIENCE;
    let mut waiting = 0;
    let heard = |timeout| {
        let reports = sender.reports(timeout);
        assert!(reports.iter().all(|report| report.outcome.is_ok()), "{reports:?}");
        assert!(Instant::now() < deadline, "the broker is silent");
        reports.len()
    };
    for (partition, value) in values {
        while !sender.send(topic, *partition, None, value, 0).expect("the topic is there") {
            waiting -= heard(Duration::from_millis(20));
        }
        waiting += 1;
    }
    while waiting > 0 {
        waiting -= heard(Duration::from_millis(100));
    }
}

/// As the changefeed dispatches: by tenant, kind and target.
pub fn partition(key: &EdgeKey, partitions: u32) -> u32 {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let hash = hasher.hash_one((key.tenant.0, key.kind.0, key.target.0));
    (hash % u64::from(partitions)) as u32
}

/// All columns but the key.
pub fn columns((row, cause): &Row) -> Map<String, Value> {
    let text = |value: Option<String>| value.map_or(Value::Null, Value::String);
    let number = |value: Option<u64>| text(value.map(|value| value.to_string()));
    let data = row.data.as_ref().map(|data| data.bytes().map(char::from).collect());
    let columns = [
        ("version", number(Some(row.version.0))),
        ("state", number(Some(row.state as u64))),
        ("since", number(Some(row.since.0))),
        ("group_id", number(row.group.map(|group| u64::from(group.0)))),
        ("owner", number(row.owner)),
        ("data", text(data)),
        ("expires_at", number(row.expires_at.map(|at| at.0))),
        ("cause", text(cause.clone())),
    ];
    columns.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// An INSERT, or an UPDATE where there is an old row; the key is added to both.
pub fn change(
    key: &EdgeKey,
    old: Option<Map<String, Value>>,
    new: Map<String, Value>,
    commit_ts: u64,
) -> Vec<u8> {
    let whole = |mut columns: Map<String, Value>| {
        columns.extend(key_columns(key));
        json!([columns])
    };
    let event = if old.is_some() { "UPDATE" } else { "INSERT" };
    message(event, old.map_or(Value::Null, whole), whole(new), commit_ts)
}

/// The clean-up of a tombstone.
pub fn deletion(key: &EdgeKey, commit_ts: u64) -> Vec<u8> {
    message("DELETE", Value::Null, json!([key_columns(key)]), commit_ts)
}

pub fn watermark(at: u64) -> Vec<u8> {
    let value = json!({
        "id": 0, "database": "", "table": "", "pkNames": null, "isDdl": false,
        "type": "TIDB_WATERMARK", "es": at >> TIME_SHIFT, "ts": at >> TIME_SHIFT, "sql": "",
        "sqlType": null, "mysqlType": null, "data": null, "old": null,
        "_tidb": { "watermarkTs": at },
    });
    value.to_string().into_bytes()
}

fn key_columns(key: &EdgeKey) -> Map<String, Value> {
    let EdgeKey { tenant, kind, source, target } = key;
    let columns = [
        ("tenant", tenant.0.to_string()),
        ("kind", kind.0.to_string()),
        ("source", source.0.to_string()),
        ("target", target.0.to_string()),
    ];
    columns.into_iter().map(|(name, value)| (name.to_owned(), Value::String(value))).collect()
}

fn message(event: &str, old: Value, data: Value, commit_ts: u64) -> Vec<u8> {
    let value = json!({
        "id": 0, "database": "guanxi", "table": "outgoing", "isDdl": false, "type": event,
        "pkNames": ["tenant", "kind", "source", "target"], "sql": "",
        "es": commit_ts >> TIME_SHIFT, "ts": commit_ts >> TIME_SHIFT,
        "mysqlType": { "data": "varbinary", "cause": "varchar" },
        "old": old, "data": data, "_tidb": { "commitTs": commit_ts },
    });
    value.to_string().into_bytes()
}
