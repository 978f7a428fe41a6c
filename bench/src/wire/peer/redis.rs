//! Redis as teams use it for this: a sorted set of each user's edges and of each target's, by
//! time; a packed string of each post's tallies; a script for a follow with its rules.

use std::io::{BufWriter, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;

use anyhow::Context as _;
use guanxi_services::Redis;

use crate::wire::graph::{FAVORITE, FOLLOW, Graph, KINDS, LIKE};
use crate::wire::peer::{Ending, Peer, by_id};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::resp::{self, Reply, command};
use crate::wire::question::{Answer, Feed, NEWEST_ITEMS, Question, Seen};

/// Prefixes of keys, by kind: a source's targets, and a target's sources.
const OUTGOING: [&str; KINDS.len()] = ["f:", "l:", "v:"];
const INCOMING: [&str; KINDS.len()] = ["F:", "L:", "V:"];
const TALLIES: &str = "t:";
/// A follow with the rules that Guanxi has for it: no block either way, at most 2000. A tally of
/// followers needs no room of its own, as ZCARD has it.
const FOLLOW_SCRIPT: &str = "\
if redis.call('ZSCORE', KEYS[3], ARGV[2]) or redis.call('ZSCORE', KEYS[4], ARGV[1]) then
  return redis.error_reply('EXCLUDED')
end
if redis.call('ZCARD', KEYS[1]) >= 2000 then return redis.error_reply('LIMIT_REACHED') end
local added = redis.call('ZADD', KEYS[1], 'NX', ARGV[3], ARGV[2])
if added == 1 then redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1]) end
return added";
/// Members that one ZADD of the load has at most.
const LOAD_MEMBERS_MAX: usize = 128;
/// Replies that the load lets wait.
const LOAD_WINDOW: usize = 10_000;
const PUT_SINCE_MS: &str = "1767225600000";

pub struct RedisPeer {
    server: Redis,
    script: String,
}

impl RedisPeer {
    /// Every write is on disk before it is answered, as in Guanxi. The log is not rewritten while
    /// we measure, which spares it work.
    pub fn start(directory: &Path) -> anyhow::Result<RedisPeer> {
        std::fs::create_dir_all(directory)?;
        let place = directory.to_str().context("a path in UTF-8")?;
        let server = Redis::start_with(&[
            "--dir",
            place,
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--auto-aof-rewrite-percentage",
            "0",
        ]);
        let mut peer = RedisPeer { server, script: String::new() };
        let replies = peer.ask(&["SCRIPT", "LOAD", FOLLOW_SCRIPT])?;
        let Reply::Text(script) = replies else { anyhow::bail!("no script: {replies:?}") };
        peer.script = String::from_utf8(script)?;
        Ok(peer)
    }

    pub fn load(&self, graph: &Graph) -> anyhow::Result<()> {
        self.ask(&["FLUSHALL"])?;
        self.ask(&["CONFIG", "SET", "appendfsync", "no"])?;
        let mut load = Loading::begin(self.address())?;
        for kind in [FOLLOW, LIKE, FAVORITE] {
            for user in 0..graph.users() {
                let edges = graph.outgoing(kind, user);
                let items = edges.iter().map(|it| (it.since_ms, graph.target_id(kind, it.target)));
                load.add(&format!("{}{}", OUTGOING[kind], graph.user_id(user)), items)?;
            }
            let edges = graph.by_target(kind);
            for edges in edges.chunk_by(|one, next| one.target == next.target) {
                let key = format!("{}{}", INCOMING[kind], graph.target_id(kind, edges[0].target));
                for edges in edges.chunks(LOAD_MEMBERS_MAX) {
                    load.add(&key, edges.iter().map(|it| (it.since_ms, graph.user_id(it.source))))?;
                }
            }
        }
        let mut tallies = vec![[0_u64; 4]; graph.posts() as usize];
        for (place, kind) in [LIKE, FAVORITE].into_iter().enumerate() {
            for user in 0..graph.users() {
                for edge in graph.outgoing(kind, user) {
                    tallies[edge.target as usize][place] += 1;
                }
            }
        }
        for (post, tallies) in (0..).zip(&mut tallies) {
            (tallies[2], tallies[3]) = (graph.views(post), graph.played(post));
            let packed: Vec<u8> = tallies.iter().flat_map(|it| it.to_le_bytes()).collect();
            let key = format!("{TALLIES}{}", graph.post_id(post));
            load.send(&[b"SET", key.as_bytes(), &packed])?;
        }
        load.end()?;
        // The log becomes a picture of the content, as a running Redis makes now and then.
        self.ask(&["BGREWRITEAOF"])?;
        loop {
            std::thread::sleep(std::time::Duration::from_millis(100));
            let info = self.ask(&["INFO", "persistence"])?;
            let Reply::Text(info) = info else { anyhow::bail!("no INFO: {info:?}") };
            let info = String::from_utf8_lossy(&info);
            let runs = ["aof_rewrite_in_progress:1", "aof_rewrite_scheduled:1"];
            if !runs.iter().any(|word| info.contains(word)) {
                anyhow::ensure!(info.contains("aof_last_bgrewrite_status:ok"), "no rewrite");
                break;
            }
        }
        self.ask(&["CONFIG", "SET", "appendfsync", "always"])?;
        Ok(())
    }

    fn ask(&self, words: &[&str]) -> anyhow::Result<Reply> {
        let mut stream = TcpStream::connect(self.address())?;
        let mut bytes = Vec::new();
        command(words, &mut bytes);
        stream.write_all(&bytes)?;
        let (mut answer, mut piece) = (Vec::new(), [0; 4_096]);
        while resp::length(&answer, 1)?.is_none() {
            let count = stream.read(&mut piece)?;
            anyhow::ensure!(count > 0, "Redis closed the connection");
            answer.extend_from_slice(&piece[..count]);
        }
        let mut replies = resp::replies(&answer, 1)?;
        replies.pop().context("one reply")
    }

    fn feed(graph: &Graph, feed: &Feed, with_tallies: bool, to: &mut Vec<u8>) {
        let viewer = graph.user_id(feed.viewer);
        let checks: Vec<_> = feed.checks().collect();
        for checks in checks.chunks(feed.objects.len()) {
            let mut words =
                vec!["ZMSCORE".to_owned(), format!("{}{viewer}", OUTGOING[checks[0].kind])];
            let targets = checks.iter().map(|it| graph.target_id(it.kind, it.target).to_string());
            words.extend(targets);
            command(&words, to);
        }
        if with_tallies {
            let posts = feed.objects.map(|object| object.post);
            Self::tallies(graph, &posts, to);
        }
    }

    fn tallies(graph: &Graph, posts: &[u32], to: &mut Vec<u8>) {
        let mut words = vec!["MGET".to_owned()];
        words.extend(posts.iter().map(|post| format!("{TALLIES}{}", graph.post_id(*post))));
        command(&words, to);
    }
}

impl Peer for RedisPeer {
    fn name(&self) -> &'static str {
        "redis"
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
        Protocol::Resp
    }

    fn replies(&self, question: &Question) -> usize {
        match question {
            Question::Hydrate(_) => KINDS.len() + 1,
            Question::Many(feeds) => feeds.len() * (KINDS.len() + 1),
            Question::Related(_) | Question::Checks(_) => KINDS.len(),
            _ => 1,
        }
    }

    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>) {
        let check = |(kind, source, target): (usize, u64, u64), to: &mut Vec<u8>| {
            command(["ZSCORE", &format!("{}{source}", OUTGOING[kind]), &target.to_string()], to);
        };
        match question {
            Question::Hydrate(feed) => Self::feed(graph, feed, true, to),
            Question::Many(feeds) => {
                feeds.iter().for_each(|feed| Self::feed(graph, feed, true, to));
            }
            Question::Related(feed) | Question::Checks(feed) => Self::feed(graph, feed, false, to),
            Question::Check(one) => check(by_id(graph, one), to),
            Question::CheckById { kind, source, target } => check((*kind, *source, *target), to),
            Question::Tallies(posts) => Self::tallies(graph, posts, to),
            Question::Newest(user) => {
                let key = format!("{}{}", INCOMING[FOLLOW], graph.user_id(*user));
                let last = (NEWEST_ITEMS - 1).to_string();
                command(["ZREVRANGE", &key, "0", &last, "WITHSCORES"], to);
            }
            Question::Follow { source, target } => {
                let keys = [
                    format!("{}{source}", OUTGOING[FOLLOW]),
                    format!("{}{target}", INCOMING[FOLLOW]),
                    format!("b:{source}"),
                    format!("b:{target}"),
                ];
                let (source, target) = (source.to_string(), target.to_string());
                let mut words = vec!["EVALSHA", &self.script, "4"];
                words.extend(keys.iter().map(String::as_str));
                words.extend([source.as_str(), &target, PUT_SINCE_MS]);
                command(&words, to);
            }
            Question::Empty => command(["PING"], to),
        }
    }

    fn read(&self, _: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer> {
        let replies = resp::replies(answer, self.replies(question))?;
        Ok(match question {
            Question::Hydrate(_) | Question::Many(_) => {
                Answer::Feeds(replies.chunks(KINDS.len() + 1).map(seen).collect::<Result<_, _>>()?)
            }
            Question::Related(_) | Question::Checks(_) => {
                let rows: Vec<Vec<bool>> = replies.iter().map(present).collect::<Result<_, _>>()?;
                Answer::Related(rows.concat())
            }
            Question::Check(_) | Question::CheckById { .. } => {
                Answer::Related(vec![replies[0] != Reply::Nothing])
            }
            Question::Tallies(_) => Answer::Tallies(unpacked(&replies[0])?),
            Question::Newest(_) => {
                let items: Vec<u64> =
                    many(&replies[0])?.iter().map(whole).collect::<Result<_, _>>()?;
                Answer::Page(items.chunks_exact(2).map(|item| (item[0], item[1])).collect())
            }
            Question::Follow { .. } => Answer::Changed(replies[0] == Reply::Number(1)),
            Question::Empty => {
                anyhow::ensure!(replies[0] == Reply::Text(b"PONG".to_vec()), "no PONG");
                Answer::Empty
            }
        })
    }
}

fn seen(replies: &[Reply]) -> anyhow::Result<Vec<Seen>> {
    let (tallies, related) = replies.split_last().context("replies")?;
    let related: Vec<Vec<bool>> = related.iter().map(present).collect::<Result<_, _>>()?;
    let tallies = unpacked(tallies)?.into_iter().enumerate();
    let seen = tallies.map(|(place, tallies)| Seen {
        related: std::array::from_fn(|kind| related[kind][place]),
        tallies,
    });
    Ok(seen.collect())
}

fn many(reply: &Reply) -> anyhow::Result<&[Reply]> {
    match reply {
        Reply::Many(items) => Ok(items),
        other => anyhow::bail!("no list: {other:?}"),
    }
}

/// Which of the scores are there.
fn present(reply: &Reply) -> anyhow::Result<Vec<bool>> {
    Ok(many(reply)?.iter().map(|score| *score != Reply::Nothing).collect())
}

fn unpacked(reply: &Reply) -> anyhow::Result<Vec<[u64; 4]>> {
    let unpack = |item: &Reply| -> anyhow::Result<[u64; 4]> {
        let Reply::Text(packed) = item else { return Ok([0; 4]) };
        let mut tallies = [0; 4];
        anyhow::ensure!(packed.len() == 32, "a packed string of {} bytes", packed.len());
        for (tally, bytes) in tallies.iter_mut().zip(packed.chunks_exact(8)) {
            *tally = u64::from_le_bytes(bytes.try_into()?);
        }
        Ok(tallies)
    };
    many(reply)?.iter().map(unpack).collect()
}

fn whole(reply: &Reply) -> anyhow::Result<u64> {
    let Reply::Text(text) = reply else { anyhow::bail!("no number: {reply:?}") };
    Ok(std::str::from_utf8(text)?.parse()?)
}

/// Sends without waiting for each reply.
struct Loading {
    to: BufWriter<TcpStream>,
    from: TcpStream,
    unread: Vec<u8>,
    waiting: usize,
}

impl Loading {
    fn begin(address: SocketAddr) -> anyhow::Result<Loading> {
        let from = TcpStream::connect(address)?;
        let to = BufWriter::with_capacity(1 << 20, from.try_clone()?);
        Ok(Loading { to, from, unread: Vec::new(), waiting: 0 })
    }

    fn add(&mut self, key: &str, items: impl Iterator<Item = (u64, u64)>) -> anyhow::Result<()> {
        let mut words = vec!["ZADD".to_owned(), key.to_owned()];
        words.extend(items.flat_map(|(since, member)| [since.to_string(), member.to_string()]));
        let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
        self.send(&words)
    }

    fn send(&mut self, words: &[&[u8]]) -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        command(words, &mut bytes);
        self.to.write_all(&bytes)?;
        self.waiting += 1;
        if self.waiting >= LOAD_WINDOW { self.take() } else { Ok(()) }
    }

    /// Waits for all replies.
    fn take(&mut self) -> anyhow::Result<()> {
        self.to.flush()?;
        let mut piece = [0; 64 << 10];
        while self.waiting > 0 {
            let mut done = 0;
            while let Some(length) = resp::length(&self.unread[done..], 1)? {
                (done, self.waiting) = (done + length, self.waiting - 1);
                if self.waiting == 0 {
                    break;
                }
            }
            self.unread.drain(..done);
            if self.waiting > 0 {
                let count = self.from.read(&mut piece)?;
                anyhow::ensure!(count > 0, "Redis closed the connection");
                self.unread.extend_from_slice(&piece[..count]);
            }
        }
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        self.take()
    }
}
