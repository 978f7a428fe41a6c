//! What every server under load can do: be asked in its protocol, and be understood.

pub mod grpc;
pub mod guanxi;
pub mod http;
pub mod mariadb;
pub mod redis;
pub mod resp;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use crate::wire::graph::{FOLLOW, Graph};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::grpc::set_stream;
use crate::wire::question::{Answer, Asked, Check, Question, Work};
use crate::wire::truth::Truth;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Questions whose answers are compared with the graph before a measurement.
const COMPARED: usize = 200;
/// Of those that are 64 in one.
const COMPARED_MANY: usize = 4;
/// Of a wrong answer.
const SHOWN_CHARS_MAX: usize = 600;

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// As an operator stops it.
    Stop,
    /// By kill -9.
    Kill,
}

pub trait Peer {
    fn name(&self) -> &'static str;
    fn address(&self) -> SocketAddr;
    fn pid(&self) -> u32;
    fn protocol(&self) -> Protocol;
    /// Of a server that speaks several protocols, the last peer ends it.
    fn end(self: Box<Self>, ending: Ending) -> anyhow::Result<()>;
    /// Whether it knows the work.
    fn does(&self, _work: Work) -> bool {
        true
    }
    /// Replies to a question, where a protocol sends several.
    fn replies(&self, _question: &Question) -> usize {
        1
    }
    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>);
    fn read(&self, graph: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer>;
}

/// Asks one after the other, and compares each answer with the graph; of puts, that they changed
/// something and can be read. Puts that were asked are taken from what is left to ask.
pub fn compare(peer: &dyn Peer, truth: &Truth, asked: &mut Asked) -> anyhow::Result<()> {
    let mut stream = connect(peer)?;
    let compared = match asked.reads.first() {
        Some(Question::Many(_)) => COMPARED_MANY,
        _ => COMPARED,
    };
    for question in asked.reads.iter().take(compared) {
        compare_one(peer, truth, &mut stream, question)?;
    }
    for put in asked.puts.split_off(asked.puts.len().saturating_sub(COMPARED)) {
        compare_one(peer, truth, &mut stream, &put)?;
        if let Question::Follow { source, target } = put {
            let check = Question::CheckById { kind: FOLLOW, source, target };
            compare_one(peer, truth, &mut stream, &check)?;
        }
    }
    Ok(())
}

/// Asks one question on a connection of its own.
pub fn compare_first(peer: &dyn Peer, truth: &Truth, question: &Question) -> anyhow::Result<()> {
    compare_one(peer, truth, &mut connect(peer)?, question)
}

fn connect(peer: &dyn Peer) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(peer.address())?;
    stream.set_nodelay(true)?;
    peer.protocol().greet(&mut stream)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

fn compare_one(
    peer: &dyn Peer,
    truth: &Truth,
    stream: &mut TcpStream,
    question: &Question,
) -> anyhow::Result<()> {
    let mut request = Vec::new();
    peer.write(&truth.graph, question, &mut request);
    if peer.protocol() == Protocol::Grpc {
        // The answers to all earlier calls have come whole, so the stream's number may be any.
        static NEXT_STREAM: AtomicU32 = AtomicU32::new(1);
        set_stream(&mut request, NEXT_STREAM.fetch_add(2, Ordering::Relaxed));
    }
    let said = |what: &str| format!("{} {what}: {}", peer.name(), shown(&request));
    let bytes = ask(peer, stream, question, &request).with_context(|| said("refuses"))?;
    let answer =
        peer.read(&truth.graph, question, &bytes).with_context(|| said("answers strangely"))?;
    let right = truth.answer(question);
    anyhow::ensure!(
        answer.same(&right),
        "{} answers wrongly\nasked: {}\nanswered: {}\nread as: {}\nright is: {}",
        peer.name(),
        shown(&request),
        shown(&bytes),
        shown(format!("{answer:?}").as_bytes()),
        shown(format!("{right:?}").as_bytes()),
    );
    Ok(())
}

fn ask(
    peer: &dyn Peer,
    stream: &mut TcpStream,
    question: &Question,
    request: &[u8],
) -> anyhow::Result<Vec<u8>> {
    stream.write_all(request)?;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let (protocol, replies) = (peer.protocol(), peer.replies(question));
    loop {
        let count = stream.read(&mut piece)?;
        anyhow::ensure!(count > 0, "the connection was closed");
        bytes.extend_from_slice(&piece[..count]);
        if let Some(length) = protocol.length(&bytes, replies)? {
            let all = length == bytes.len() || protocol == Protocol::Grpc;
            anyhow::ensure!(all, "more was answered than was asked");
            return Ok(bytes);
        }
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().take(SHOWN_CHARS_MAX).collect()
}

/// The same check by id.
pub fn by_id(graph: &Graph, check: &Check) -> (usize, u64, u64) {
    (check.kind, graph.user_id(check.source), graph.target_id(check.kind, check.target))
}
