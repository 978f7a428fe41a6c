//! Sorted sets of Redis as a source: keys that match a pattern, one set for each node, walked with
//! SCAN and ZSCAN, so that the server is never held up.

use std::collections::VecDeque;
use std::time::Duration;

use redis::{
    Client, Connection, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline, RedisError,
    RedisResult, Value, from_redis_value,
};
use serde_json::json;

use crate::cli::import::from::flags::{ImportOrder, RedisMapping};
use crate::cli::import::from::place::SourcePlace;
use crate::cli::import::from::row::{SourceRow, Unit, time_of};
use crate::cli::import::from::{ListSide, SourceFinding, SourceItem, SourceNode, SourceReader};
use crate::config::without_passwords;
use crate::failure::Failure;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Every command here is short; a server that does not answer for so long is not there.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Keys and members that one step of a walk looks at: some milliseconds of the server at most.
const SCAN_COUNT: usize = 100;
const MEMBERS_COUNT: usize = 1_000;
/// Sets whose members are asked for in one round trip.
const SETS_AT_ONCE: usize = 16;
/// How often a question is asked whose connection broke: each time the process was stopped and
/// continued meanwhile, or the server has closed it; nobody does either so often.
const TRIES_MAX: usize = 100;

pub struct RedisSets {
    link: RedisLink,
    mapping: RedisMapping,
    pattern: Pattern,
    walk: KeyWalk,
    /// The walk over the nodes alone.
    nodes: KeyWalk,
}

/// Members of a set, each with its score.
type Members = Vec<(Vec<u8>, f64)>;

/// A walk over keys.
#[derive(Debug, Default)]
struct KeyWalk {
    /// Sets that are left of the last step, each with where its own walk is.
    sets: VecDeque<(String, u64)>,
    /// Where the next step begins; 0 at the beginning.
    cursor: u64,
    /// The last step was the last one.
    ended: bool,
}

impl RedisSets {
    pub fn open(
        asked: &ImportOrder,
        password: Option<&str>,
        mapping: &RedisMapping,
    ) -> Result<RedisSets, Failure> {
        let url = asked.url.as_str();
        let pattern = Pattern::read(&mapping.keys)?;
        let shown = without_passwords(url);
        let wrong = |_| {
            Failure::usage(format!("--from {shown}: it is no address of Redis"))
                .next("an address looks like redis://user:password@host:6379/0")
        };
        let mut address = url.into_connection_info().map_err(wrong)?;
        if let Some(password) = password {
            let settings = address.redis_settings().clone().set_password(password);
            address = address.set_redis_settings(settings);
        }
        let unreachable = |error: RedisError| {
            Failure::failed(format!(
                "cannot read from {shown}: {}",
                without_passwords(&error.to_string())
            ))
            .next("check the address, the user and the password given with --from")
        };
        let client = Client::open(address).map_err(unreachable)?;
        let mut link = RedisLink { client, connection: None, run: None };
        link.over(|_| Ok(())).map_err(unreachable)?;
        let (walk, nodes, mapping) = (KeyWalk::default(), KeyWalk::default(), mapping.clone());
        Ok(RedisSets { link, mapping, pattern, walk, nodes })
    }

    /// What the server answers to some commands, all of which only read.
    fn ask<T: FromRedisValue>(&mut self, question: &Pipeline) -> Result<T, Failure> {
        let answered = self.link.over(|connection| answers(connection, question));
        let answered = answered.and_then(|answers| Ok(from_redis_value(Value::Array(answers))?));
        answered.map_err(|error| failed(&error))
    }

    /// Further keys that match, and rows for those that are no sorted sets.
    fn step(&mut self, cursor: u64) -> Result<(u64, Vec<String>, Vec<SourceRow>), Failure> {
        let mut scan = redis::pipe();
        scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(&self.pattern.glob);
        scan.arg("COUNT").arg(SCAN_COUNT);
        let ((next, keys),): ((u64, Vec<Vec<u8>>),) = self.ask(&scan)?;
        if keys.is_empty() {
            return Ok((next, Vec::new(), Vec::new()));
        }
        let mut types = redis::pipe();
        for key in &keys {
            types.cmd("TYPE").arg(key);
        }
        let types: Vec<String> = self.ask(&types)?;
        let (mut sets, mut others) = (Vec::new(), Vec::new());
        for (key, what) in keys.into_iter().zip(types) {
            match (String::from_utf8(key), what.as_str()) {
                // It went away meanwhile.
                (_, "none") => {}
                (Ok(key), "zset") => sets.push(key),
                (Ok(key), what) => others.push(self.no_set(&key, &format!("it is a {what}"))),
                (Err(key), _) => {
                    let key = String::from_utf8_lossy(key.as_bytes()).into_owned();
                    others.push(self.no_set(&key, "its name is no text"));
                }
            }
        }
        Ok((next, sets, others))
    }

    /// A line that will be rejected: whoever reads the rejected lines must learn of the key.
    fn no_set(&self, key: &str, why: &str) -> SourceRow {
        let node = self.pattern.node(key);
        let label = format!("key {key}: {why}, and no sorted set");
        match self.pattern.side {
            ListSide::Outgoing => SourceRow::plain(node, None, label),
            ListSide::Incoming => SourceRow::plain(None, node, label),
        }
    }

    fn row(&self, key: &str, member: &[u8], score: f64) -> SourceRow {
        let (node, other) =
            (self.pattern.node(key), Some(String::from_utf8_lossy(member).into_owned()));
        let label = format!("key {key}, member {}", String::from_utf8_lossy(member));
        let row = match self.pattern.side {
            ListSide::Outgoing => SourceRow::plain(node, other, label),
            ListSide::Incoming => SourceRow::plain(other, node, label),
        };
        SourceRow { since: time_of(score, self.mapping.score.unwrap_or(Unit::Auto)), ..row }
    }

    /// The next members of some sets.
    fn members(&mut self) -> Result<Vec<SourceRow>, Failure> {
        let at_once = self.walk.sets.len().min(SETS_AT_ONCE);
        let sets: Vec<(String, u64)> = self.walk.sets.drain(..at_once).collect();
        let mut scans = redis::pipe();
        for (key, cursor) in &sets {
            scans.cmd("ZSCAN").arg(key).arg(cursor).arg("COUNT").arg(MEMBERS_COUNT);
        }
        let answers: Vec<(u64, Members)> = self.ask(&scans)?;
        let mut rows = Vec::new();
        let mut left = Vec::new();
        for ((key, _), (cursor, members)) in sets.into_iter().zip(answers) {
            rows.extend(members.iter().map(|(member, score)| self.row(&key, member, *score)));
            if cursor != 0 {
                left.push((key, cursor));
            }
        }
        for set in left.into_iter().rev() {
            self.walk.sets.push_front(set);
        }
        Ok(rows)
    }

    fn place(&self) -> SourcePlace {
        let KeyWalk { sets, cursor, ended } = &self.walk;
        json!({ "run": self.link.run, "sets": sets, "cursor": cursor, "ended": ended })
    }
}

impl SourceReader for RedisSets {
    fn go_to(&mut self, place: &SourcePlace) -> Result<(), Failure> {
        self.walk = KeyWalk::default();
        if place.is_null() {
            return Ok(());
        }
        if place["run"].as_str() != self.link.run.as_deref() {
            eprintln!("Redis was started anew since: its keys are walked from the beginning");
            return Ok(());
        }
        let wrong = |_| Failure::file("the file of --place holds no place of these sets");
        self.walk = KeyWalk {
            sets: serde_json::from_value(place["sets"].clone()).map_err(wrong)?,
            cursor: serde_json::from_value(place["cursor"].clone()).map_err(wrong)?,
            ended: serde_json::from_value(place["ended"].clone()).map_err(wrong)?,
        };
        Ok(())
    }

    fn page(&mut self) -> Result<Option<Vec<SourceItem>>, Failure> {
        let rows = match (self.walk.sets.is_empty(), self.walk.ended) {
            (true, true) => return Ok(None),
            (false, _) => self.members()?,
            (true, false) => {
                let (next, sets, others) = self.step(self.walk.cursor)?;
                let sets = sets.into_iter().map(|key| (key, 0)).collect();
                self.walk = KeyWalk { sets, cursor: next, ended: next == 0 };
                others
            }
        };
        let mut items: Vec<SourceItem> = rows
            .into_iter()
            .map(|row| SourceItem { found: SourceFinding::Edge(row), place: None })
            .collect();
        // Only what was read to the end of a step can be gone on from.
        let place = Some(self.place());
        match items.last_mut() {
            Some(last) => last.place = place,
            None => items.push(SourceItem { found: SourceFinding::Nothing, place }),
        }
        Ok(Some(items))
    }

    fn nodes(&mut self) -> Result<Option<Vec<SourceNode>>, Failure> {
        if self.nodes.ended {
            return Ok(None);
        }
        let (next, keys, _) = self.step(self.nodes.cursor)?;
        self.nodes = KeyWalk { cursor: next, ended: next == 0, ..KeyWalk::default() };
        let side = self.pattern.side;
        let nodes = keys.into_iter().filter_map(|key| {
            let id = self.pattern.node(&key)?.parse().ok().filter(|id| *id > 0)?;
            Some(SourceNode { id, side, key })
        });
        Ok(Some(nodes.collect()))
    }

    fn known(&mut self, node: &SourceNode, others: &[u64]) -> Result<Vec<bool>, Failure> {
        let mut scores = redis::pipe();
        for other in others {
            scores.cmd("ZSCORE").arg(&node.key).arg(other);
        }
        let scores: Vec<Value> = self.ask(&scores)?;
        Ok(scores.iter().map(|score| *score != Value::Nil).collect())
    }
}

/// The way to the server, which is found again when it is lost.
struct RedisLink {
    client: Client,
    /// None where the last one broke.
    connection: Option<Connection>,
    /// Names the server's run: a place in a walk means nothing to another.
    run: Option<String>,
}

impl RedisLink {
    /// Asks over a connection, and again over a new one where it broke: on the old one late answers
    /// would be taken for others.
    fn over<T>(&mut self, ask: impl Fn(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let mut tries = 1;
        loop {
            match self.connected().and_then(&ask) {
                Err(error) if broke(&error) && tries < TRIES_MAX => tries += 1,
                asked => return asked,
            }
            self.connection = None;
        }
    }

    fn connected(&mut self) -> RedisResult<&mut Connection> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        Ok(self.connection.insert(connection))
    }

    fn connect(&mut self) -> RedisResult<Connection> {
        let mut connection = self.client.get_connection_with_timeout(CONNECT_TIMEOUT)?;
        connection.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        connection.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        let about: String = redis::cmd("INFO").arg("server").query(&mut connection)?;
        let run = about.lines().find_map(|line| line.strip_prefix("run_id:"));
        let run = run.unwrap_or_default().trim();
        if *self.run.get_or_insert_with(|| run.to_owned()) != run {
            return Err((ErrorKind::Client, "it was started anew").into());
        }
        Ok(connection)
    }
}

/// One after the other up to the first that does not come: whoever waits for the others, too, waits
/// as often as long.
fn answers(connection: &mut Connection, question: &Pipeline) -> RedisResult<Vec<Value>> {
    connection.send_packed_command(&question.get_packed_pipeline())?;
    let answer = |_| connection.recv_response()?.extract_error();
    (0..question.len()).map(answer).collect()
}

/// Whether the connection is of no use any more though the server may well be. A read with a
/// timeout ends with an error, too, when the process is stopped and continued.
fn broke(error: &RedisError) -> bool {
    error.is_io_error() && !error.is_timeout() && !error.is_connection_refusal()
}

fn failed(error: &RedisError) -> Failure {
    let said = without_passwords(&error.to_string());
    Failure::failed(format!("reading from Redis failed: {said}"))
        .next("when it answers again, run the same command: it goes on")
}

/// Which keys are meant, and where in them the node stands.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    before: String,
    behind: String,
    side: ListSide,
    /// What SCAN matches.
    glob: String,
}

impl Pattern {
    fn read(keys: &str) -> Result<Pattern, Failure> {
        let cut = |place: &str| keys.split_once(place);
        let (side, (before, behind)) = match (cut("{source}"), cut("{target}")) {
            (Some(around), None) => (ListSide::Outgoing, around),
            (None, Some(around)) => (ListSide::Incoming, around),
            _ => return Err(wrong_pattern(keys)),
        };
        if behind.contains("{source}") || behind.contains("{target}") {
            return Err(wrong_pattern(keys));
        }
        let glob = format!("{}*{}", literally(before), literally(behind));
        Ok(Pattern { before: before.to_owned(), behind: behind.to_owned(), side, glob })
    }

    /// What a key has in the place of the node.
    fn node(&self, key: &str) -> Option<String> {
        let rest = key.strip_prefix(&self.before)?;
        rest.strip_suffix(&self.behind).map(str::to_owned)
    }
}

fn wrong_pattern(keys: &str) -> Failure {
    Failure::usage(format!("--keys: '{keys}' has neither one {{source}} nor one {{target}}")).next(
        "'following:{source}' has sets of targets, 'fans:{target}' has sets of sources; one of them",
    )
}

/// A text that matches nothing but itself.
fn literally(text: &str) -> String {
    let mut glob = String::with_capacity(text.len());
    for character in text.chars() {
        if "*?[]^-\\".contains(character) {
            glob.push('\\');
        }
        glob.push(character);
    }
    glob
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_say_where_the_node_stands() {
        let pattern = Pattern::read("u:{source}:[x]*").unwrap();
        assert_eq!(pattern.glob, r"u:*:\[x\]\*");
        assert_eq!(pattern.side, ListSide::Outgoing);
        assert_eq!(pattern.node("u:17:[x]*").as_deref(), Some("17"));
        assert_eq!(pattern.node("u:17:x"), None);
        assert_eq!(Pattern::read("{target}").unwrap().side, ListSide::Incoming);
        for wrong in ["", "following:*", "{source}:{target}", "{source}{source}"] {
            assert!(Pattern::read(wrong).is_err(), "{wrong}");
        }
    }
}
