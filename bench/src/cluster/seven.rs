//! The peer: a follow as teams write it by hand, seven statements in a transaction, prepared, over
//! as many connections as a pool usually has.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use mysql::prelude::Queryable;
use mysql::{Conn, Opts, OptsBuilder, Statement};

use super::stage::People;

/// More callers than this share them.
const CONNECTIONS: usize = 64;
/// Tally rows that are made in one statement.
const ROWS_TOGETHER: usize = 1_000;

const TABLES: [&str; 3] = [
    "CREATE TABLE outgoing (kind SMALLINT UNSIGNED NOT NULL, source BIGINT UNSIGNED NOT NULL, \
     target BIGINT UNSIGNED NOT NULL, state TINYINT UNSIGNED NOT NULL, \
     since BIGINT UNSIGNED NOT NULL, PRIMARY KEY (kind, source, target), \
     KEY by_time (kind, source, state, since, target))",
    "CREATE TABLE incoming (kind SMALLINT UNSIGNED NOT NULL, target BIGINT UNSIGNED NOT NULL, \
     source BIGINT UNSIGNED NOT NULL, state TINYINT UNSIGNED NOT NULL, \
     since BIGINT UNSIGNED NOT NULL, PRIMARY KEY (kind, target, source), \
     KEY by_time (kind, target, state, since, source))",
    "CREATE TABLE tally (kind SMALLINT UNSIGNED NOT NULL, node BIGINT UNSIGNED NOT NULL, \
     outgoing BIGINT NOT NULL, incoming BIGINT NOT NULL, PRIMARY KEY (kind, node))",
];

/// Makes the tables and a tally row for everyone, in a database of its own.
pub fn prepare(url: &str, people: &People) -> anyhow::Result<()> {
    let mut connection = Conn::new(Opts::from_url(url)?)?;
    for table in TABLES {
        connection.query_drop(table)?;
    }
    for ids in people.all().chunks(ROWS_TOGETHER) {
        let rows: Vec<String> = ids.iter().map(|id| format!("(1,{id},0,0)")).collect();
        connection.query_drop(format!("INSERT INTO tally VALUES {}", rows.join(",")))?;
    }
    Ok(())
}

/// Follows per second. The clock begins when all are connected and their statements prepared.
pub fn rate(
    url: &str,
    people: &People,
    target: Option<u64>,
    time: Duration,
) -> anyhow::Result<f64> {
    let callers: Vec<Caller> =
        (0..CONNECTIONS).map(|_| Caller::connect(url)).collect::<anyhow::Result<_>>()?;
    let done = AtomicU64::new(0);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let callers: Vec<_> = callers
            .into_iter()
            .map(|caller| {
                let done = &done;
                scope.spawn(move || caller.follow_until(people, target, begun + time, done))
            })
            .collect();
        for caller in callers {
            caller.join().ok().context("a caller panicked")??;
        }
        Ok::<_, anyhow::Error>(())
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / begun.elapsed().as_secs_f64())
}

struct Caller {
    connection: Conn,
    tally: Statement,
    outgoing: Statement,
    incoming: Statement,
    one_more_outgoing: Statement,
    one_more_incoming: Statement,
}

impl Caller {
    fn connect(url: &str) -> anyhow::Result<Caller> {
        // The way that the instances take, and that a database elsewhere leaves.
        let opts = OptsBuilder::from_opts(Opts::from_url(url)?).prefer_socket(false);
        let mut connection = Conn::new(opts)?;
        connection.query_drop("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")?;
        let tally =
            connection.prep("SELECT outgoing FROM tally WHERE kind = 1 AND node = ? FOR UPDATE")?;
        let outgoing = connection.prep(
            "INSERT INTO outgoing VALUES (1, ?, ?, 0, ?) \
             ON DUPLICATE KEY UPDATE since = VALUES(since)",
        )?;
        let incoming = connection.prep(
            "INSERT INTO incoming VALUES (1, ?, ?, 0, ?) \
             ON DUPLICATE KEY UPDATE since = VALUES(since)",
        )?;
        let one_more_outgoing = connection
            .prep("UPDATE tally SET outgoing = outgoing + 1 WHERE kind = 1 AND node = ?")?;
        let one_more_incoming = connection
            .prep("UPDATE tally SET incoming = incoming + 1 WHERE kind = 1 AND node = ?")?;
        Ok(Caller { connection, tally, outgoing, incoming, one_more_outgoing, one_more_incoming })
    }

    fn follow_until(
        mut self,
        people: &People,
        target: Option<u64>,
        end: Instant,
        done: &AtomicU64,
    ) -> anyhow::Result<()> {
        let mut since = 0;
        while Instant::now() < end {
            since += 1;
            let (source, target) = (people.any(), target.unwrap_or_else(|| people.any()));
            match self.follow(source, target, since) {
                Ok(()) => {
                    done.fetch_add(1, Ordering::Relaxed);
                }
                // Source and target of two follows may cross; the loser does not count.
                Err(mysql::Error::MySqlError(_)) => self.connection.query_drop("ROLLBACK")?,
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }

    fn follow(&mut self, source: u64, target: u64, since: u64) -> mysql::Result<()> {
        let connection = &mut self.connection;
        connection.query_drop("BEGIN")?;
        connection.exec_drop(&self.tally, (source,))?;
        connection.exec_drop(&self.outgoing, (source, target, since))?;
        connection.exec_drop(&self.incoming, (target, source, since))?;
        connection.exec_drop(&self.one_more_outgoing, (source,))?;
        connection.exec_drop(&self.one_more_incoming, (target,))?;
        connection.query_drop("COMMIT")
    }
}
