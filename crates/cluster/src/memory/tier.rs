//! One Redis address: a connection, its time limits, and what stands in for a circuit breaker.
//!
//! All callers share one connection, on which their commands follow one another without waiting. It
//! is made anew by a task of its own, never within a caller's request: a tier without a connection
//! answers nothing, at once. A connection is given up when it breaks, or when Redis has been silent
//! on it for a while; a new one counts only after Redis has answered on it.
//!
//! Each connection knows its **lineage**: which process, and which line of replication, it speaks
//! to. A restart, a failover or an older snapshot is another lineage, and what was written under one
//! may be missing under the next. A lineage belongs to a connection, so no answer can come from
//! another Redis than the one that was asked for it; it is asked for again and again, and a
//! connection whose lineage has changed is given up.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_model::filter::FilterLineage;
use guanxi_model::filter::plan::PLAN_AGE_MAX_MS;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use guanxi_core::crew::Crew;

/// How long making a connection and the first answer on it may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A connection is given up when so many commands in a row were not answered in time, and nothing
/// was for so long: a busy machine may make many commands late at once.
const UNANSWERED_MAX: u32 = 3;
const SILENT_MAX: Duration = Duration::from_millis(500);
/// How often a writer looks whether there is a connection again.
const AWAIT_LOOK: Duration = Duration::from_millis(5);
/// Pauses between attempts to connect.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a connection is asked whom it speaks to, and with it whether it is still there.
const LOOK_EVERY: Duration = Duration::from_millis(PLAN_AGE_MAX_MS / 4);
/// The limit of such a question.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
/// The sections of `INFO` that tell it.
const SECTIONS: [&str; 2] = ["server", "replication"];

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// There is no connection, or it broke, or the answer did not come in time.
    #[error("Redis did not answer: {0}")]
    Away(String),
    /// Redis refused the command, as it does when its memory is full or it is a replica.
    #[error("Redis refused: {0}")]
    Refused(String),
}

/// What an operator should know of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierFigures {
    pub reachable: bool,
    pub commands: u64,
    /// Not answered in time, or on a connection that broke.
    pub unanswered: u64,
    pub refused: u64,
    /// Connections made.
    pub connections: u64,
}

impl TierFigures {
    /// Of two addresses together.
    pub fn and(self, other: TierFigures) -> TierFigures {
        TierFigures {
            reachable: self.reachable && other.reachable,
            commands: self.commands + other.commands,
            unanswered: self.unanswered + other.unanswered,
            refused: self.refused + other.refused,
            connections: self.connections + other.connections,
        }
    }
}

/// One Redis address; clones share it.
#[derive(Debug, Clone)]
pub struct Tier {
    shared: Arc<TierShared>,
}

/// A connection and what it speaks to.
#[derive(Clone)]
pub struct TierLink {
    connection: MultiplexedConnection,
    lineage: FilterLineage,
    number: u64,
    shared: Arc<TierShared>,
}

#[derive(Debug)]
struct TierShared {
    /// Without its password.
    address: String,
    crew: Crew,
    runtime: Handle,
    link: Mutex<Wired>,
    /// Something is to be done: a connection was given up.
    broken: Notify,
    unanswered_in_a_row: AtomicU32,
    counts: TierCounts,
}

#[derive(Debug)]
struct Wired {
    wire: Option<TierConnection>,
    /// When Redis answered last, or there was last a connection.
    heard: Instant,
}

struct TierConnection {
    connection: MultiplexedConnection,
    lineage: FilterLineage,
    number: u64,
}

#[derive(Debug, Default)]
struct TierCounts {
    commands: AtomicU64,
    unanswered: AtomicU64,
    refused: AtomicU64,
    connections: AtomicU64,
}

impl std::fmt::Debug for TierConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierConnection").field("lineage", &self.lineage).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TierLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TierLink").field("lineage", &self.lineage).finish_non_exhaustive()
    }
}

/// What is wrong with an address, in the words of who would connect to it.
pub fn wrong_address(url: &str) -> Option<String> {
    Client::open(url).err().map(|_| "it is not the address of a Redis".into())
}

impl Tier {
    /// Begins to connect; Redis need not be there. Ends when the last clone is dropped.
    pub fn start(url: &str, runtime: &Handle, crew: &Crew) -> Result<Tier, MemoryError> {
        let client = Client::open(url).map_err(|error| MemoryError::Refused(said(&error)))?;
        let shared = Arc::new(TierShared {
            address: client.get_connection_info().addr().to_string(),
            runtime: runtime.clone(),
            crew: crew.clone(),
            link: Mutex::new(Wired { wire: None, heard: Instant::now() }),
            broken: Notify::new(),
            unanswered_in_a_row: AtomicU32::new(0),
            counts: TierCounts::default(),
        });
        let keeping = keep_connected(client, Arc::downgrade(&shared));
        crew.task("guanxi-redis", runtime, is_needed(&shared), keeping);
        Ok(Tier { shared })
    }

    /// Whether the two share a connection.
    pub fn is(&self, other: &Tier) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// The connection, if there is one. A caller that asks several things of one Redis asks them on
    /// one link.
    pub fn link(&self) -> Option<TierLink> {
        let wired = self.shared.link.lock();
        let TierConnection { connection, lineage, number } = wired.wire.as_ref()?;
        Some(TierLink {
            connection: connection.clone(),
            lineage: *lineage,
            number: *number,
            shared: self.shared.clone(),
        })
    }

    /// The connection; one that was lost a moment ago is waited for, up to so long after the loss.
    /// For threads that may block.
    pub fn await_link(&self, limit: Duration) -> Option<TierLink> {
        loop {
            let link = self.link();
            if link.is_some() || self.shared.link.lock().heard.elapsed() >= limit {
                return link;
            }
            std::thread::sleep(AWAIT_LOOK);
        }
    }

    /// Waits for what is asked of a link. For threads that may block.
    pub fn wait<T>(&self, asked: impl Future<Output = T>) -> T {
        self.shared.runtime.block_on(asked)
    }

    /// Has something done for as long as there is what needs it.
    pub fn task<T: Send + Sync + 'static>(
        &self,
        name: &str,
        user: &Arc<T>,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        self.shared.crew.task(name, &self.shared.runtime, is_needed(user), work);
    }

    /// Has something short done behind the caller.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.shared.runtime.spawn(work);
    }

    /// Where it is, without a password.
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    pub fn figures(&self) -> TierFigures {
        let counts = &self.shared.counts;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TierFigures {
            reachable: self.shared.link.lock().wire.is_some(),
            commands: count(&counts.commands),
            unanswered: count(&counts.unanswered),
            refused: count(&counts.refused),
            connections: count(&counts.connections),
        }
    }
}

impl TierLink {
    pub fn lineage(&self) -> FilterLineage {
        self.lineage
    }

    /// Whether it is the same connection of the same address.
    pub fn is_same(&self, other: &TierLink) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.number == other.number
    }

    /// Sends one command and waits for its answer.
    pub async fn ask(&mut self, command: &Cmd, limit: Duration) -> Result<Value, MemoryError> {
        let asked = tokio::time::timeout(limit, self.connection.send_packed_command(command));
        let answered = asked.await.map(|answer| answer.and_then(Value::extract_error));
        self.judge(1, answered)
    }

    /// Sends several commands at once, in their order; one answer each, an error of Redis too.
    pub async fn ask_all(
        &mut self,
        commands: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<Value>, MemoryError> {
        let count = commands.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let asked = self.connection.send_packed_commands(commands, 0, count);
        let answered = tokio::time::timeout(limit, asked).await;
        self.judge(count as u64, answered)
    }

    /// Runs a script on each key, all at once; tells Redis its text where it does not know it.
    pub async fn call_all(
        &mut self,
        script: &RedisScript,
        calls: &[ScriptCall],
        limit: Duration,
    ) -> Result<Vec<Value>, MemoryError> {
        let answers = self.ask_all(&script.by_name(calls), limit).await?;
        match answers.iter().any(is_unknown_script) {
            true => self.ask_all(&script.in_full(calls), limit).await,
            false => Ok(answers),
        }
    }

    /// Asks again whom the connection speaks to, and gives it up when that has changed.
    async fn look_whom(&mut self) {
        let mut both = Pipeline::new();
        for section in SECTIONS {
            both.add_command(info(section));
        }
        let Ok(answers) = self.ask_all(&both, LOOK_LIMIT).await else { return };
        self.shared.link.lock().heard = Instant::now();
        let told = answers.iter().filter_map(|answer| redis::from_redis_value_ref(answer).ok());
        let told: Vec<String> = told.collect();
        if lineage(&told.concat()).ok() != Some(self.lineage) {
            self.shared
                .give_up(self.number, "Redis is another than it was, or got its first replica");
        }
    }

    fn judge<T>(
        &self,
        commands: u64,
        answered: Result<Result<T, RedisError>, tokio::time::error::Elapsed>,
    ) -> Result<T, MemoryError> {
        let shared = &self.shared;
        shared.counts.commands.fetch_add(commands, Ordering::Relaxed);
        match answered {
            Ok(Ok(value)) => {
                shared.heard();
                Ok(value)
            }
            Ok(Err(error)) if is_refusal(&error) => {
                shared.heard();
                shared.counts.refused.fetch_add(1, Ordering::Relaxed);
                Err(MemoryError::Refused(said(&error)))
            }
            Ok(Err(error)) => {
                shared.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                shared.give_up(self.number, "the connection to Redis broke");
                Err(MemoryError::Away(said(&error)))
            }
            Err(_) => {
                shared.counts.unanswered.fetch_add(1, Ordering::Relaxed);
                let in_a_row = shared.unanswered_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
                if in_a_row >= UNANSWERED_MAX && shared.link.lock().heard.elapsed() >= SILENT_MAX {
                    shared.give_up(self.number, "Redis does not answer");
                }
                Err(MemoryError::Away("the answer did not come in time".into()))
            }
        }
    }
}

impl TierShared {
    fn heard(&self) {
        // Mostly it is nothing new: the many who are answered need not meet at the lock.
        if self.unanswered_in_a_row.swap(0, Ordering::Relaxed) > 0 {
            self.link.lock().heard = Instant::now();
        }
    }

    /// Drops the connection of this number; a later one is not concerned.
    fn give_up(&self, number: u64, why: &str) {
        let mut wired = self.link.lock();
        if wired.wire.as_ref().is_some_and(|wire| wire.number == number) {
            *wired = Wired { wire: None, heard: Instant::now() };
            tracing::warn!(address = %self.address, "{why}; reads do without it for now");
            self.broken.notify_one();
        }
    }
}

/// Whether there still is what needs a task, asked when it has ended.
fn is_needed<T: Send + Sync + 'static>(user: &Arc<T>) -> impl FnOnce() -> bool + Send + 'static {
    let user = Arc::downgrade(user);
    move || user.strong_count() > 0
}

/// Sees to it that there is a connection, as long as the tier lives.
async fn keep_connected(client: Client, tier: Weak<TierShared>) {
    let mut backoff = Backoff::new(PAUSE_FIRST, PAUSE_MAX);
    let mut number = 0;
    loop {
        let Some(shared) = tier.upgrade() else { return };
        if shared.link.lock().wire.is_none() {
            match connect(&client).await {
                Ok((connection, lineage)) => {
                    number += 1;
                    backoff.went_well();
                    shared.unanswered_in_a_row.store(0, Ordering::Relaxed);
                    shared.counts.connections.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(address = %shared.address, "Redis answers");
                    let wire = Some(TierConnection { connection, lineage, number });
                    *shared.link.lock() = Wired { wire, heard: Instant::now() };
                }
                Err(error) => {
                    if let Some(times) = backoff.failed() {
                        tracing::warn!(address = %shared.address, %error, times, "no connection to Redis; it is tried again and again");
                    }
                    drop(shared);
                    tokio::time::sleep(backoff.left()).await;
                    continue;
                }
            }
        }
        let _woken = tokio::time::timeout(LOOK_EVERY, shared.broken.notified()).await;
        let link = Tier { shared: shared.clone() }.link();
        drop(shared);
        if let Some(mut link) = link {
            link.look_whom().await;
        }
    }
}

async fn connect(client: &Client) -> Result<(MultiplexedConnection, FilterLineage), MemoryError> {
    // Limits are set per command: a reader's is shorter than a writer's.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_LIMIT))
        .set_response_timeout(None);
    let away = |error: RedisError| MemoryError::Away(said(&error));
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let late = |_| MemoryError::Away("the answer did not come in time".into());
    let connected = tokio::time::timeout(CONNECT_LIMIT, connecting).await;
    let mut connection = connected.map_err(late)?.map_err(away)?;
    let mut told = String::new();
    for section in SECTIONS {
        let asked = info(section);
        let asked =
            tokio::time::timeout(CONNECT_LIMIT, asked.query_async::<String>(&mut connection));
        told.push_str(&asked.await.map_err(late)?.map_err(away)?);
    }
    Ok((connection, lineage(&told)?))
}

fn info(section: &str) -> Cmd {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    info
}

/// Whom a connection speaks to, by what `INFO` says.
fn lineage(info: &str) -> Result<FilterLineage, MemoryError> {
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map_or("", str::trim)
    };
    let role = field("role");
    FilterLineage::new(field("run_id"), role, field("master_replid")).ok_or_else(|| match role {
        "master" => MemoryError::Refused(
            "INFO does not tell run_id and master_replid, so a failover could not be noticed"
                .into(),
        ),
        _ => MemoryError::Away("it is a replica; give the address of its master".into()),
    })
}

/// A script, known to Redis by a hash of its text.
#[derive(Debug)]
pub struct RedisScript {
    text: &'static str,
    name: String,
}

/// One call of a script: it has one key, so that it is good in a cluster of Redis servers, too.
#[derive(Debug, Clone)]
pub struct ScriptCall {
    pub key: Vec<u8>,
    pub arguments: Vec<Vec<u8>>,
}

impl RedisScript {
    pub fn new(text: &'static str) -> RedisScript {
        RedisScript { text, name: redis::Script::new(text).get_hash().to_owned() }
    }

    /// Refused by a Redis that does not know it.
    fn by_name(&self, calls: &[ScriptCall]) -> Pipeline {
        pipeline("EVALSHA", &self.name, calls)
    }

    fn in_full(&self, calls: &[ScriptCall]) -> Pipeline {
        pipeline("EVAL", self.text, calls)
    }
}

fn pipeline(command: &str, script: &str, calls: &[ScriptCall]) -> Pipeline {
    let mut commands = Pipeline::with_capacity(calls.len());
    for ScriptCall { key, arguments } in calls {
        commands.cmd(command).arg(script).arg(1).arg(key).arg(arguments);
    }
    commands
}

fn is_unknown_script(answer: &Value) -> bool {
    matches!(answer, Value::ServerError(error) if error.code() == "NOSCRIPT")
}

/// Whether Redis itself said no, on a connection that is well.
fn is_refusal(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}

fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_of_a_process_and_a_line_of_replication() {
        let info = |run: &str, line: &str| {
            format!("# Server\r\nrun_id:{run}\r\nrole:master\r\nmaster_replid:{line}\r\n")
        };
        let first = lineage(&info("aa", "bb")).unwrap();
        assert_eq!(lineage(&info("aa", "bb")).unwrap(), first);
        assert_ne!(lineage(&info("ab", "bb")).unwrap(), first);
        assert_ne!(lineage(&info("aa", "bc")).unwrap(), first);
        assert!(lineage("role:master\r\n").is_err());
        assert!(lineage(&info("aa", "bb").replace("master\r", "slave\r")).is_err());
    }
}
