//! MariaDB as teams use it for this: a table of each kind with an index for either direction, a row
//! of tallies for each post and user, and a procedure for a follow with its rules. A question is one
//! message, of several statements where it must be.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, bail};
use guanxi_services::{MariaDb, SqlServer as _};
use mysql::prelude::Queryable as _;
use mysql::{Conn, Opts};

use crate::wire::graph::{Edge, FAVORITE, Graph, KINDS, LIKE};
use crate::wire::peer::{Ending, Peer, by_id};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::mysql::{DATABASE, Row, query, results};
use crate::wire::question::{Answer, Feed, NEWEST_ITEMS, OBJECTS, Question, Seen, Work};

/// Tables of edges, by kind. `blocks` is looked at by a follow.
const TABLES: [&str; KINDS.len()] = ["follows", "likes", "favorites"];
const EDGE_COLUMNS: &str = "source BIGINT UNSIGNED NOT NULL, target BIGINT UNSIGNED NOT NULL, \
                            since BIGINT UNSIGNED NOT NULL, PRIMARY KEY (source, target)";
const INCOMING_INDEX: &str = "ADD INDEX incoming (target, since, source)";
const POSTS: &str = "CREATE TABLE posts (id BIGINT UNSIGNED PRIMARY KEY, likes BIGINT NOT NULL, \
                     favorites BIGINT NOT NULL, views BIGINT NOT NULL, played BIGINT NOT NULL)";
const USERS: &str = "CREATE TABLE users (id BIGINT UNSIGNED PRIMARY KEY, \
                     follows BIGINT NOT NULL, followers BIGINT NOT NULL)";
const FOLLOW_PROCEDURE: &str = "\
CREATE PROCEDURE follow(IN follower BIGINT UNSIGNED, IN followed BIGINT UNSIGNED, IN at BIGINT)
BEGIN
  DECLARE added INT;
  START TRANSACTION;
  IF EXISTS (SELECT 1 FROM blocks WHERE source = follower AND target = followed)
     OR EXISTS (SELECT 1 FROM blocks WHERE source = followed AND target = follower) THEN
    ROLLBACK;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'EXCLUDED';
  END IF;
  IF (SELECT follows FROM users WHERE id = follower) >= 2000 THEN
    ROLLBACK;
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'LIMIT_REACHED';
  END IF;
  INSERT IGNORE INTO follows VALUES (follower, followed, at);
  SET added = ROW_COUNT();
  IF added = 1 THEN
    INSERT INTO users VALUES (follower, 1, 0) ON DUPLICATE KEY UPDATE follows = follows + 1;
    INSERT INTO users VALUES (followed, 0, 1) ON DUPLICATE KEY UPDATE followers = followers + 1;
  END IF;
  COMMIT;
  SELECT added;
END";
const LOAD_ROWS: usize = 2_000;
const PUT_SINCE_MS: u64 = 1_767_225_600_000;
/// Memory for its pages; an answer from the disk would be no fair one.
const POOL_OPTION: &str = "--innodb-buffer-pool-size=3G";
const LOG_OPTION: &str = "--innodb-log-file-size=1G";
const ISOLATION_OPTION: &str = "--transaction-isolation=READ-COMMITTED";

pub struct MariaDbPeer {
    server: MariaDb,
}

impl MariaDbPeer {
    /// Each commit is on disk before it is answered.
    pub fn start(directory: &Path) -> anyhow::Result<MariaDbPeer> {
        let server = MariaDb::start_in(directory, &[POOL_OPTION, LOG_OPTION, ISOLATION_OPTION]);
        let mut connection = Conn::new(Opts::from_url(&server.url())?)?;
        connection.query_drop(format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))?;
        Ok(MariaDbPeer { server })
    }

    pub fn load(&self, graph: &Graph) -> anyhow::Result<()> {
        let mut connection = Conn::new(Opts::from_url(&self.server.database_url(DATABASE))?)?;
        connection.query_drop("SET innodb_lock_wait_timeout = 600, unique_checks = 0")?;
        for table in TABLES.iter().chain(&["blocks"]) {
            connection.query_drop(format!("CREATE TABLE {table} ({EDGE_COLUMNS})"))?;
        }
        connection.query_drop(POSTS)?;
        connection.query_drop(USERS)?;
        connection.query_drop(FOLLOW_PROCEDURE)?;
        // In the order of the primary key, which is the quickest.
        let mut users: Vec<u32> = (0..graph.users()).collect();
        users.sort_unstable_by_key(|user| graph.user_id(*user));
        let mut posts = vec![[0_u64; 2]; graph.posts() as usize];
        let mut followers = vec![0_u64; graph.users() as usize];
        for (kind, table) in TABLES.into_iter().enumerate() {
            let mut rows = Rows::new(&mut connection, table);
            for user in &users {
                let mut edges = graph.outgoing(kind, *user);
                edges.sort_unstable_by_key(|edge| graph.target_id(kind, edge.target));
                for Edge { source, target, since_ms } in edges {
                    match kind {
                        LIKE => posts[target as usize][0] += 1,
                        FAVORITE => posts[target as usize][1] += 1,
                        _ => followers[target as usize] += 1,
                    }
                    let (source, id) = (graph.user_id(source), graph.target_id(kind, target));
                    rows.add(format_args!("({source},{id},{since_ms})"))?;
                }
            }
            rows.end()?;
            connection.query_drop(format!("ALTER TABLE {table} {INCOMING_INDEX}"))?;
        }
        let mut rows = Rows::new(&mut connection, "posts");
        for (post, [likes, favorites]) in (0..).zip(posts) {
            let (id, views) = (graph.post_id(post), graph.views(post));
            let played = graph.played(post);
            rows.add(format_args!("({id},{likes},{favorites},{views},{played})"))?;
        }
        rows.end()?;
        let mut rows = Rows::new(&mut connection, "users");
        let follows = graph.edges() / u64::from(graph.users());
        for (user, followers) in (0..).zip(followers) {
            rows.add(format_args!("({},{follows},{followers})", graph.user_id(user)))?;
        }
        rows.end()?;
        connection.query_drop("ANALYZE TABLE follows, likes, favorites, posts, users")?;
        Ok(())
    }
}

/// Rows of a table, many in a statement.
struct Rows<'a> {
    connection: &'a mut Conn,
    table: &'static str,
    statement: String,
    count: usize,
}

impl<'a> Rows<'a> {
    fn new(connection: &'a mut Conn, table: &'static str) -> Rows<'a> {
        Rows { connection, table, statement: String::new(), count: 0 }
    }

    fn add(&mut self, row: std::fmt::Arguments<'_>) -> anyhow::Result<()> {
        use std::fmt::Write as _;
        match self.count {
            0 => write!(self.statement, "INSERT INTO {} VALUES ", self.table)?,
            _ => self.statement.push(','),
        }
        self.statement.write_fmt(row)?;
        self.count += 1;
        if self.count < LOAD_ROWS { Ok(()) } else { self.send() }
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.connection.query_drop(&self.statement)?;
        self.statement.clear();
        self.count = 0;
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        if self.count > 0 { self.send() } else { Ok(()) }
    }
}

impl Peer for MariaDbPeer {
    fn name(&self) -> &'static str {
        "mariadb"
    }

    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.server.port()).into()
    }

    fn pid(&self) -> u32 {
        self.server.pid()
    }

    fn end(self: Box<Self>, ending: Ending) -> anyhow::Result<()> {
        match ending {
            Ending::Stop => self.server.stop(),
            Ending::Kill => self.server.kill(),
        }
        Ok(())
    }

    fn protocol(&self) -> Protocol {
        Protocol::MySql
    }

    /// Nobody puts 64 feeds into one message of SQL.
    fn does(&self, work: Work) -> bool {
        work != Work::Hydrate64
    }

    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>) {
        let check = |(kind, source, target): (usize, u64, u64), to: &mut Vec<u8>| {
            let table = TABLES[kind];
            let which = format!("source={source} AND target={target}");
            query(&format!("SELECT 1 FROM {table} WHERE {which}"), to);
        };
        match question {
            Question::Hydrate(feed) => {
                let posts = feed.objects.map(|object| object.post);
                query(&format!("{};{}", related(graph, feed), tallies(graph, &posts)), to);
            }
            Question::Many(feeds) => feeds.iter().for_each(|feed| query(&related(graph, feed), to)),
            Question::Related(feed) | Question::Checks(feed) => query(&related(graph, feed), to),
            Question::Check(one) => check(by_id(graph, one), to),
            Question::CheckById { kind, source, target } => check((*kind, *source, *target), to),
            Question::Tallies(posts) => query(&tallies(graph, posts), to),
            Question::Newest(user) => {
                let id = graph.user_id(*user);
                let list = format!(
                    "SELECT source, since FROM follows WHERE target={id} \
                     ORDER BY since DESC LIMIT {NEWEST_ITEMS}"
                );
                query(&list, to);
            }
            Question::Follow { source, target } => {
                query(&format!("CALL follow({source},{target},{PUT_SINCE_MS})"), to);
            }
            Question::Empty => query("DO 0", to),
        }
    }

    /// Rows come in any order, and only those that there are; so what was asked is looked for.
    fn read(&self, graph: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer> {
        let results = results(answer)?;
        let first = results.first().context("a result")?;
        Ok(match question {
            Question::Hydrate(feed) => {
                let (tallies, related) = results.split_last().context("results")?;
                let related = found(graph, feed, related)?;
                let posts = feed.objects.map(|object| object.post);
                let seen = unpacked(graph, &posts, tallies)?.into_iter().enumerate();
                let seen = seen.map(|(place, tallies)| Seen {
                    related: std::array::from_fn(|kind| related[kind * OBJECTS + place]),
                    tallies,
                });
                Answer::Feeds(vec![seen.collect()])
            }
            Question::Related(feed) | Question::Checks(feed) => {
                Answer::Related(found(graph, feed, &results)?)
            }
            Question::Check(_) | Question::CheckById { .. } => {
                Answer::Related(vec![!first.is_empty()])
            }
            Question::Tallies(posts) => Answer::Tallies(unpacked(graph, posts, first)?),
            Question::Newest(_) => {
                let items = first.iter().map(|row| Ok((number(row, 0)?, number(row, 1)?)));
                Answer::Page(items.collect::<anyhow::Result<_>>()?)
            }
            Question::Follow { .. } => {
                let added = first.first().context("what was added")?;
                Answer::Changed(number(added, 0)? == 1)
            }
            Question::Empty => Answer::Empty,
            Question::Many(_) => bail!("not asked of MariaDB"),
        })
    }
}

fn related(graph: &Graph, feed: &Feed) -> String {
    let checks: Vec<_> = feed.checks().collect();
    let statements = checks.chunks(OBJECTS).map(|checks| {
        let targets = checks.iter().map(|it| graph.target_id(it.kind, it.target).to_string());
        let targets: Vec<String> = targets.collect();
        let (table, source) = (TABLES[checks[0].kind], graph.user_id(feed.viewer));
        let targets = targets.join(",");
        format!("SELECT target FROM {table} WHERE source={source} AND target IN ({targets})")
    });
    statements.collect::<Vec<String>>().join(";")
}

fn tallies(graph: &Graph, posts: &[u32]) -> String {
    let ids: Vec<String> = posts.iter().map(|post| graph.post_id(*post).to_string()).collect();
    format!("SELECT id, likes, favorites, views, played FROM posts WHERE id IN ({})", ids.join(","))
}

fn found(graph: &Graph, feed: &Feed, results: &[Vec<Row>]) -> anyhow::Result<Vec<bool>> {
    let related = feed.checks().map(|check| {
        let id = graph.target_id(check.kind, check.target);
        let rows = results.get(check.kind).context("a result of each kind")?;
        Ok(rows.iter().any(|row| number(row, 0).is_ok_and(|target| target == id)))
    });
    related.collect()
}

fn unpacked(graph: &Graph, posts: &[u32], rows: &[Row]) -> anyhow::Result<Vec<[u64; 4]>> {
    let tallies = posts.iter().map(|post| {
        let id = graph.post_id(*post);
        let row = rows.iter().find(|row| number(row, 0).is_ok_and(|it| it == id));
        let row = row.context("a row of each post")?;
        Ok([number(row, 1)?, number(row, 2)?, number(row, 3)?, number(row, 4)?])
    });
    tallies.collect()
}

fn number(row: &Row, place: usize) -> anyhow::Result<u64> {
    let text = row.get(place).and_then(Option::as_deref).context("no number")?;
    Ok(std::str::from_utf8(text)?.parse()?)
}
