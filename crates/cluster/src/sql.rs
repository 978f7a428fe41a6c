//! Connections to the database: a bounded pool, sessions whose settings are verified, and what an
//! error means for the one who met it. Statements are text, several to a round trip; `text` builds
//! them, `commit_deadline` says until when they may be committed, `commit_in_doubt` whether they
//! were, `tls` whom they are told. Everything here blocks and is called from threads that may.

pub mod commit_deadline;
pub mod commit_in_doubt;
pub mod text;
pub mod tls;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use mysql::Row;
use mysql::prelude::Queryable;
use mysql::{Conn, DriverError, Opts, UrlError};
use parking_lot::{Condvar, Mutex};

use self::commit_deadline::ClockReading;
use self::commit_in_doubt::StandingWitnesses;
use self::tls::Tls;

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a statement may take before its connection counts as lost.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a transaction waits for another's lock; shorter than a statement may take.
const LOCK_WAIT_SECONDS: u32 = 5;
/// How long a server keeps a connection that says nothing: a client that vanished without a word
/// must not hold its locks for hours.
const SILENCE_SECONDS: u32 = 60;
/// How long it keeps one whose transaction has written and then says nothing: what it holds is free
/// before anybody who waits for the end of writes goes on.
const IDLE_TRANSACTION_SECONDS: u64 = commit_deadline::COMMIT_WITHIN.as_secs();
/// Idle connections are looked at before use when they were idle for this long.
const IDLE_TRUSTED: Duration = Duration::from_secs(5);

/// What went wrong, by what may be done about it. The texts are the driver's: for our log, never
/// for a caller.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SqlError {
    /// Another transaction was in the way; all of this one is undone and may be tried again.
    #[error("the database asks to try again: {0}")]
    Busy(String),
    /// The connection is gone. Whether a COMMIT that was under way happened is unknown.
    #[error("the connection to the database was lost: {0}")]
    Lost(String),
    /// The transaction came to its COMMIT after its deadline, and left nothing; it may be tried
    /// again.
    #[error("the transaction came too late to its COMMIT: {0}")]
    Late(String),
    /// No connection could be had; nothing was sent.
    #[error("the database cannot be reached: {0}")]
    Away(String),
    /// The database refused the statement, and will again.
    #[error("the database refused: {0}")]
    Refused(String),
}

impl SqlError {
    /// Whether the same work may pass later.
    pub fn may_pass(&self) -> bool {
        !matches!(self, SqlError::Refused(_))
    }

    /// The server's number for it, where it was the server who spoke.
    pub fn code(&self) -> Option<u16> {
        let (SqlError::Busy(text)
        | SqlError::Lost(text)
        | SqlError::Late(text)
        | SqlError::Away(text)
        | SqlError::Refused(text)) = self;
        text.strip_prefix("ERROR ")?.split(' ').next()?.parse().ok()
    }
}

/// Codes after which the whole transaction is tried again: lock wait, deadlock, a query that was
/// killed or took longer than its server allows, and TiDB's write conflicts and schema changes.
const BUSY_CODES: [u16; 11] = [1205, 1213, 1317, 1969, 3024, 8002, 8022, 8028, 9004, 9007, 3572];
/// TiDB gives this code to many things; only this text is worth another try.
const UNKNOWN_CODE: u16 = 1105;
const RETRY_LIMIT_TEXT: &str = "retry limit";
/// The server is going away or was told to end this connection.
const LOST_CODES: [u16; 6] = [1053, 1077, 1078, 1079, 1927, 2013];

impl From<mysql::Error> for SqlError {
    fn from(error: mysql::Error) -> SqlError {
        match error {
            mysql::Error::MySqlError(error) => {
                let text = error.to_string();
                if BUSY_CODES.contains(&error.code)
                    || (error.code == UNKNOWN_CODE && error.message.contains(RETRY_LIMIT_TEXT))
                {
                    SqlError::Busy(text)
                } else if LOST_CODES.contains(&error.code) {
                    SqlError::Lost(text)
                } else {
                    SqlError::Refused(text)
                }
            }
            other => SqlError::Lost(said(&other)),
        }
    }
}

/// The driver's words without the names of its types.
fn said(error: &mysql::Error) -> String {
    match error {
        mysql::Error::MySqlError(error) => error.to_string(),
        mysql::Error::IoError(error) => error.to_string(),
        mysql::Error::DriverError(DriverError::CouldNotConnect(Some((_, said, _)))) => said.clone(),
        mysql::Error::DriverError(error) => error.to_string(),
        other => other.to_string(),
    }
}

/// What is wrong with an address, without what it says: any part may be one of the password.
fn wrong_address(error: &UrlError) -> &'static str {
    match error {
        UrlError::UnknownParameter(_) => "the driver does not know one of its parameters",
        UrlError::InvalidValue(..) | UrlError::InvalidPoolConstraints { .. } => {
            "one of its parameters has a value that the driver does not take"
        }
        _ => "it is no address; percent-encode what a password has of /, ?, #, @, % and :",
    }
}

/// What servers answer to a client that they do not let in, and what its operator has to do.
const NO_SUCH_DATABASE: u16 = 1049;
const NO_RIGHT_ON_DATABASE: u16 = 1044;
const WRONG_PASSWORD: u16 = 1045;
const WRONG_HOST: u16 = 1130;
const TOO_MANY_CONNECTIONS: u16 = 1040;

/// Why there is no connection: to whom, as whom, and what to check.
fn no_connection(opts: &Opts, error: &mysql::Error) -> SqlError {
    let server = format!("{}:{}", opts.get_ip_or_hostname(), opts.get_tcp_port());
    let user = opts.get_user().unwrap_or_default();
    let database = opts.get_db_name().unwrap_or_default();
    if let Some(explained) = tls::explained(opts, &server, &tls::STORE, error) {
        return SqlError::Away(explained);
    }
    let code = match error {
        mysql::Error::MySqlError(error) => Some(error.code),
        _ => None,
    };
    SqlError::Away(match code {
        Some(WRONG_PASSWORD) => format!(
            "{server} refuses the user '{user}' or its password: check both in store.url, that \
             the user may come from this host, and whether it wants TLS (store.tls)"
        ),
        Some(NO_SUCH_DATABASE) => format!(
            "{server} has no database '{database}': create it, or correct the name in store.url"
        ),
        Some(NO_RIGHT_ON_DATABASE) => format!(
            "the user '{user}' has no right on the database '{database}' of {server}: grant it \
             all rights there"
        ),
        Some(WRONG_HOST) => {
            format!("{server} lets nobody in from this host: check the hosts of the user '{user}'")
        }
        Some(TOO_MANY_CONNECTIONS) => format!(
            "{server} has as many connections as it takes: raise its max_connections, or lower \
             store.connections_max"
        ),
        Some(_) => format!("{server} refuses the user '{user}': {}", said(error)),
        None => format!(
            "nothing that speaks MySQL's protocol answers at {server} ({}): check the address in \
             store.url, the network, and that it runs",
            said(error)
        ),
    })
}

/// Which server speaks: the few statements that differ ask this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    MariaDb,
    TiDb,
    MySql,
}

impl Dialect {
    fn of(version: &str) -> Dialect {
        if version.contains("TiDB") {
            Dialect::TiDb
        } else if version.contains("MariaDB") {
            Dialect::MariaDb
        } else {
            Dialect::MySql
        }
    }
}

/// The rows of one statement; those without rows say how many they changed.
#[derive(Debug, Default)]
pub struct RowSet {
    pub rows: Vec<Row>,
    pub changed: u64,
}

pub struct Database {
    /// With the password.
    opts: Opts,
    dialect: Dialect,
    connections_max: usize,
    idle: Mutex<Idle>,
    freed: Condvar,
    reading: ClockReading,
    standing: StandingWitnesses,
    idle_limited: bool,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Database { opts, dialect, connections_max, .. } = self;
        let server = format!("{}:{}", opts.get_ip_or_hostname(), opts.get_tcp_port());
        f.debug_struct("Database")
            .field("server", &server)
            .field("dialect", dialect)
            .field("connections_max", connections_max)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Idle {
    connections: Vec<(Conn, Instant)>,
    /// Connections that are in use or idle.
    open: usize,
}

impl Database {
    /// Connects once, without TLS, to learn who is there.
    pub fn open(url: &str, connections_max: usize) -> Result<Arc<Database>, SqlError> {
        Database::open_with(url, &Tls::Off, connections_max)
    }

    pub fn open_with(
        url: &str,
        tls: &Tls,
        connections_max: usize,
    ) -> Result<Arc<Database>, SqlError> {
        let unreadable = |error| SqlError::Refused(format!("store.url: {}", wrong_address(&error)));
        let opts = Opts::from_url(url).map_err(unreadable)?;
        let opts = tls
            .laid_over(opts, &tls::STORE)
            .map_err(SqlError::Refused)?
            .tcp_connect_timeout(Some(CONNECT_TIMEOUT))
            .read_timeout(Some(STATEMENT_TIMEOUT))
            .write_timeout(Some(STATEMENT_TIMEOUT))
            .tcp_nodelay(true)
            .prefer_socket(false)
            .stmt_cache_size(0);
        let opts = Opts::from(opts);
        let Connected { connection, dialect, idle_limited } = connect(&opts)?;
        if !idle_limited {
            tracing::warn!(
                "the database does not end transactions that are idle: the locks of an instance \
                 that vanished stay for {SILENCE_SECONDS} s"
            );
        }
        let idle = Idle { connections: vec![(connection, Instant::now())], open: 1 };
        Ok(Arc::new(Database {
            opts,
            dialect,
            connections_max,
            idle: Mutex::new(idle),
            freed: Condvar::new(),
            reading: ClockReading::default(),
            standing: StandingWitnesses::default(),
            idle_limited,
        }))
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Before a transaction that only reads and may rest for long: TiDB does not ask whether an
    /// idle one has written.
    pub fn idle_limit_off(&self) -> String {
        match self.dialect {
            Dialect::TiDb if self.idle_limited => format!("SET SESSION {TIDB_IDLE_LIMIT} = 0;"),
            _ => String::new(),
        }
    }

    /// After it.
    pub fn idle_limit_on(&self) -> String {
        match self.dialect {
            Dialect::TiDb if self.idle_limited => {
                format!(";SET SESSION {TIDB_IDLE_LIMIT} = {IDLE_TRANSACTION_SECONDS}")
            }
            _ => String::new(),
        }
    }

    /// The database's clock was read, and has just been heard.
    pub fn note_clock(&self, there_ms: u64) {
        self.reading.note(there_ms);
    }

    /// A connection, as soon as one is free.
    pub fn session(&self, deadline: Instant) -> Result<Session<'_>, SqlError> {
        Ok(Session { connection: Some(self.connection(deadline)?), database: Home::Lent(self) })
    }

    /// The same, for whoever keeps it longer than the place where it was asked for.
    pub fn kept_session(self: &Arc<Self>, deadline: Instant) -> Result<Session<'static>, SqlError> {
        let connection = Some(self.connection(deadline)?);
        Ok(Session { connection, database: Home::Shared(self.clone()) })
    }

    fn connection(&self, deadline: Instant) -> Result<Conn, SqlError> {
        let mut idle = self.idle.lock();
        loop {
            if let Some((mut connection, since)) = idle.connections.pop() {
                drop(idle);
                if since.elapsed() < IDLE_TRUSTED || connection.ping().is_ok() {
                    return Ok(connection);
                }
                drop(connection);
                self.forget();
                idle = self.idle.lock();
                continue;
            }
            if idle.open < self.connections_max {
                idle.open += 1;
                drop(idle);
                let connected = connect(&self.opts).inspect_err(|_| self.forget())?;
                return Ok(connected.connection);
            }
            let Some(left) = deadline.checked_duration_since(Instant::now()) else {
                return Err(SqlError::Away("all connections are busy".into()));
            };
            self.freed.wait_for(&mut idle, left);
        }
    }

    fn forget(&self) {
        self.idle.lock().open -= 1;
        self.freed.notify_one();
    }
}

/// A connection with its settings, and what was learned about its server.
struct Connected {
    connection: Conn,
    dialect: Dialect,
    /// Whether the server ends transactions that have written and are idle.
    idle_limited: bool,
}

fn connect(opts: &Opts) -> Result<Connected, SqlError> {
    let mut connection = Conn::new(opts.clone()).map_err(|error| no_connection(opts, &error))?;
    let settings = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
         SET SESSION time_zone = '+00:00'; \
         SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}; \
         SET SESSION wait_timeout = {SILENCE_SECONDS}"
    );
    let away = |error: SqlError| SqlError::Away(error.to_string());
    run(&mut connection, &settings).map_err(away)?;
    let version: Option<String> = connection.query_first("SELECT VERSION()")?;
    let dialect = Dialect::of(version.as_deref().unwrap_or_default());
    if dialect == Dialect::TiDb {
        // The default of its clusters that were once upgraded, and of some operators, is optimistic:
        // then nothing is locked before the COMMIT, and all that is decided rests on locks.
        run(&mut connection, "SET SESSION tidb_txn_mode = 'pessimistic'").map_err(away)?;
    }
    verify(&mut connection, dialect)?;
    let idle_limited = limit_idle(&mut connection, dialect).map_err(away)?;
    Ok(Connected { connection, dialect, idle_limited })
}

/// Under REPEATABLE READ a plain read after the head's lock is stale, and an optimistic transaction
/// has no such lock, so a session that did not take the settings is of no use.
fn verify(connection: &mut Conn, dialect: Dialect) -> Result<(), SqlError> {
    // Two names of one variable; a server knows at least one of them.
    let level = connection
        .query_first::<String, _>("SELECT @@transaction_isolation")
        .or_else(|_| connection.query_first::<String, _>("SELECT @@tx_isolation"))
        .map_err(|error| SqlError::Away(said(&error)))?;
    if level.as_deref() != Some("READ-COMMITTED") {
        return Err(SqlError::Refused(format!("the isolation level stayed {level:?}")));
    }
    if dialect == Dialect::TiDb {
        let mode = connection
            .query_first::<String, _>("SELECT @@tidb_txn_mode")
            .map_err(|error| SqlError::Away(said(&error)))?;
        if mode.as_deref() != Some("pessimistic") {
            return Err(SqlError::Refused(format!("the mode of transactions stayed {mode:?}")));
        }
    }
    Ok(())
}

const TIDB_IDLE_LIMIT: &str = "tidb_idle_transaction_timeout";
/// What an older server answers to a variable that it does not know.
const UNKNOWN_VARIABLE: u16 = 1193;

/// Has the server end transactions that are idle; false where it cannot.
fn limit_idle(connection: &mut Conn, dialect: Dialect) -> Result<bool, SqlError> {
    let variable = match dialect {
        // It lets those alone that only read.
        Dialect::MariaDb => "idle_write_transaction_timeout",
        Dialect::TiDb => TIDB_IDLE_LIMIT,
        Dialect::MySql => return Ok(false),
    };
    match run(connection, &format!("SET SESSION {variable} = {IDLE_TRANSACTION_SECONDS}")) {
        Ok(_) => Ok(true),
        Err(error) if error.code() == Some(UNKNOWN_VARIABLE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// A connection in use. It goes back to the pool only when it is known to be at rest: after any
/// error it is dropped, which undoes what was open.
#[derive(Debug)]
pub struct Session<'a> {
    database: Home<'a>,
    connection: Option<Conn>,
}

/// The pool that a session goes back to.
#[derive(Debug)]
enum Home<'a> {
    Lent(&'a Database),
    Shared(Arc<Database>),
}

impl std::ops::Deref for Home<'_> {
    type Target = Database;

    fn deref(&self) -> &Database {
        match self {
            Home::Lent(database) => database,
            Home::Shared(database) => database,
        }
    }
}

impl Session<'_> {
    /// Sends statements, separated by `;`, in one round trip. The first error ends the rest.
    pub fn run(&mut self, statements: &str) -> Result<Vec<RowSet>, SqlError> {
        let Some(connection) = &mut self.connection else {
            return Err(SqlError::Lost("the session ended with an earlier error".into()));
        };
        let done = run(connection, statements);
        if done.is_err() {
            self.close();
        }
        done
    }

    /// The rows of a single statement.
    pub fn rows(&mut self, statement: &str) -> Result<Vec<Row>, SqlError> {
        Ok(self.run(statement)?.pop().unwrap_or_default().rows)
    }

    pub fn dialect(&self) -> Dialect {
        self.database.dialect()
    }

    /// Where it came from.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Ends the connection; an open transaction is undone.
    pub fn close(&mut self) {
        if self.connection.take().is_some() {
            self.database.forget();
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // A panic may have left a transaction open.
        if std::thread::panicking() {
            self.close();
        }
        if let Some(connection) = self.connection.take() {
            self.database.idle.lock().connections.push((connection, Instant::now()));
            self.database.freed.notify_one();
        }
    }
}

fn run(connection: &mut Conn, statements: &str) -> Result<Vec<RowSet>, SqlError> {
    let mut result = connection.query_iter(statements)?;
    let mut sets = Vec::new();
    while let Some(set) = result.iter() {
        let changed = set.affected_rows();
        let rows = set.collect::<Result<Vec<Row>, mysql::Error>>()?;
        sets.push(RowSet { rows, changed });
    }
    Ok(sets)
}
