//! What every server under load can do: be asked in its protocol, and be understood.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use super::generator::Protocol;
use super::graph::{FOLLOW, Graph};
use super::question::{Answer, Check, Question, Work};
use super::truth::Truth;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Questions whose answers are compared with the graph before a measurement.
pub const COMPARED: usize = 200;
/// Of those that are 64 in one.
const COMPARED_MANY: usize = 4;
/// Read again after a put.
const SHOWN_CHARS_MAX: usize = 600;

pub trait Peer {
    fn name(&self) -> &'static str;
    fn address(&self) -> SocketAddr;
    fn pid(&self) -> u32;
    /// Whether it knows the work.
    fn does(&self, work: Work) -> bool;
    fn protocol(&self, question: &Question) -> Protocol;
    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>);
    fn read(&self, question: &Question, answer: &[u8]) -> anyhow::Result<Answer>;
}

/// Asks one after the other, and compares each answer with the graph; of puts, that they changed
/// something and can be read.
pub fn compare(peer: &dyn Peer, truth: &Truth, questions: &[Question]) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(peer.address())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let compared = match questions.first() {
        Some(Question::Many(_)) => COMPARED_MANY,
        _ => COMPARED,
    };
    for question in questions.iter().take(compared) {
        let (answer, bytes) = ask(peer, truth, &mut stream, question)?;
        let right = truth.answer(question);
        if !answer.same(&right) {
            let mut request = Vec::new();
            peer.write(&truth.graph, question, &mut request);
            let shown = |text: String| text.chars().take(SHOWN_CHARS_MAX).collect::<String>();
            let text = |bytes: &[u8]| shown(String::from_utf8_lossy(bytes).into_owned());
            anyhow::bail!(
                "{} answers wrongly\nasked: {}\nanswered: {}\nread as: {}\nright is: {}",
                peer.name(),
                text(&request),
                text(&bytes),
                shown(format!("{answer:?}")),
                shown(format!("{right:?}")),
            );
        }
        if let Question::Follow { source, target } = *question {
            let check = Question::CheckById { kind: FOLLOW, source, target };
            let (answer, _) = ask(peer, truth, &mut stream, &check)?;
            let followed = answer == Answer::Related(vec![true]);
            anyhow::ensure!(followed, "{} does not have a follow that it took", peer.name());
        }
    }
    Ok(())
}

fn ask(
    peer: &dyn Peer,
    truth: &Truth,
    stream: &mut TcpStream,
    question: &Question,
) -> anyhow::Result<(Answer, Vec<u8>)> {
    let mut request = Vec::new();
    peer.write(&truth.graph, question, &mut request);
    stream.write_all(&request)?;
    let (mut bytes, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    let protocol = peer.protocol(question);
    loop {
        let count = stream.read(&mut piece)?;
        anyhow::ensure!(count > 0, "{} closed the connection", peer.name());
        bytes.extend_from_slice(&piece[..count]);
        let length = protocol.length(&bytes);
        let asked =
            String::from_utf8_lossy(&request).chars().take(SHOWN_CHARS_MAX).collect::<String>();
        if let Some(length) = length.with_context(|| format!("{}: {asked}", peer.name()))? {
            anyhow::ensure!(length == bytes.len(), "{} answers too much", peer.name());
            let answer = peer.read(question, &bytes);
            let answer = answer.with_context(|| format!("{}: {asked}", peer.name()))?;
            return Ok((answer, bytes));
        }
    }
}

/// The same check by id.
pub fn by_id(graph: &Graph, check: &Check) -> (usize, u64, u64) {
    (check.kind, graph.user_id(check.source), graph.target_id(check.kind, check.target))
}
