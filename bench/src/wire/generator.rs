//! The load: one thread that holds all connections and costs every server the same. Requests are
//! bytes that were made before; of an answer it looks only for the end, and whether it is a
//! refusal. A connection asks again as soon as it was answered.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::{http, resp};
use crate::processor::processor_time;

/// A server that answers nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const BUFFER_BYTES: usize = 64 << 10;
const EVENTS: usize = 1_024;

#[derive(Clone, Copy)]
pub enum Protocol {
    Http,
    /// So many replies to a request.
    Resp {
        replies: usize,
    },
}

/// Requests as bytes, one after the other.
#[derive(Default)]
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[begin..self.ends[index]]
    }
}

pub struct Load<'a> {
    pub address: SocketAddr,
    /// Whose processor time is taken.
    pub pid: u32,
    pub protocol: Protocol,
    pub requests: &'a Requests,
    /// Whether requests may be asked again when all were.
    pub again: bool,
    pub connections: usize,
    /// Before anything is counted.
    pub warm: Duration,
    pub time: Duration,
}

pub struct Outcome {
    pub requests: u64,
    pub took: Duration,
    /// In microseconds.
    pub latencies: Histogram<u64>,
    /// Of the server, all its threads.
    pub cpu_us: f64,
}

impl Outcome {
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.took.as_secs_f64()
    }

    pub fn cpu_each_us(&self) -> f64 {
        self.cpu_us / self.requests.max(1) as f64
    }
}

struct Connection {
    stream: TcpStream,
    /// The request under way, and how much of it is sent.
    request: usize,
    sent: usize,
    asked: Instant,
    buffer: Vec<u8>,
    filled: usize,
}

struct Counting {
    begun: Instant,
    cpu_us: f64,
    answers: u64,
    latencies: Histogram<u64>,
}

impl Load<'_> {
    /// The first request of the pool that is asked is the first that was added.
    pub fn run(&self) -> anyhow::Result<Outcome> {
        let mut poll = Poll::new()?;
        let mut events = Events::with_capacity(EVENTS);
        let begun = Instant::now();
        let mut counting: Option<Counting> = None;
        let mut next = 0;
        let mut connections = Vec::with_capacity(self.connections);
        for index in 0..self.connections {
            let mut connection = Connection::open(self.address)?;
            let interests = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.stream, Token(index), interests)?;
            connections.push(connection);
        }
        for connection in &mut connections {
            connection.ask(self.requests, &mut next, self.again)?;
        }
        loop {
            poll.poll(&mut events, Some(SILENCE_MAX)).or_else(unless_interrupted)?;
            anyhow::ensure!(!events.is_empty(), "no answer within {SILENCE_MAX:?}");
            for event in &events {
                let connection = &mut connections[event.token().0];
                connection.send_rest(self.requests)?;
                if !event.is_readable() || !connection.answered(self.protocol)? {
                    continue;
                }
                let now = Instant::now();
                if let Some(counting) = &mut counting {
                    counting.answers += 1;
                    let took = now - connection.asked;
                    counting.latencies.record(took.as_micros() as u64)?;
                }
                connection.asked = now;
                let dry = !connection.ask(self.requests, &mut next, self.again)?;
                match &counting {
                    None if now - begun >= self.warm => counting = Some(Counting::new(self.pid)?),
                    Some(counted) if dry || now - counted.begun >= self.time => {
                        let (took, cpu_us) = (counted.begun.elapsed(), processor_time(self.pid));
                        let counted = counting.take().context("it counts")?;
                        return Ok(counted.end(took, cpu_us));
                    }
                    None if dry => anyhow::bail!("all requests were asked before counting began"),
                    _ => {}
                }
            }
        }
    }
}

impl Counting {
    fn new(pid: u32) -> anyhow::Result<Counting> {
        let cpu_us = processor_time(pid);
        Ok(Counting { cpu_us, begun: Instant::now(), answers: 0, latencies: Histogram::new(3)? })
    }

    fn end(self, took: Duration, cpu_us: f64) -> Outcome {
        let Counting { answers, latencies, .. } = self;
        Outcome { requests: answers, took, latencies, cpu_us: cpu_us - self.cpu_us }
    }
}

impl Connection {
    fn open(address: SocketAddr) -> anyhow::Result<Connection> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: TcpStream::from_std(stream),
            request: 0,
            sent: 0,
            asked: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
        })
    }

    /// Asks the next one, if there is one.
    fn ask(&mut self, requests: &Requests, next: &mut usize, again: bool) -> anyhow::Result<bool> {
        if *next == requests.count() {
            if !again {
                return Ok(false);
            }
            *next = 0;
        }
        (self.request, self.sent) = (*next, 0);
        *next += 1;
        self.send_rest(requests)?;
        Ok(true)
    }

    fn send_rest(&mut self, requests: &Requests) -> anyhow::Result<()> {
        let bytes = requests.get(self.request);
        while self.sent < bytes.len() {
            match self.stream.write(&bytes[self.sent..]) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what there is; whether the answer is whole.
    fn answered(&mut self, protocol: Protocol) -> anyhow::Result<bool> {
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(2 * self.filled, 0);
            }
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            // A read that left room has taken all; the next bytes come with an event of their own.
            if self.filled < self.buffer.len() {
                break;
            }
        }
        let Some(length) = protocol.length(&self.buffer[..self.filled])? else { return Ok(false) };
        anyhow::ensure!(length == self.filled, "more was answered than was asked");
        self.filled = 0;
        Ok(true)
    }
}

impl Protocol {
    /// Bytes of the answer, if it is whole; a refusal is an error.
    pub fn length(self, bytes: &[u8]) -> anyhow::Result<Option<usize>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        match self {
            Protocol::Http => {
                let Some(parts) = http::answer(bytes)? else { return Ok(None) };
                let good = (200..300).contains(&parts.status);
                anyhow::ensure!(good, "{}: {}", parts.status, http::shown(parts.body));
                Ok(Some(parts.length))
            }
            Protocol::Resp { replies } => resp::length(bytes, replies),
        }
    }
}

fn unless_interrupted(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Answers each request of four bytes after so long, in two pieces.
    fn slow_echo(pause: Duration) -> SocketAddr {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { panic!("a listener") };
        let Ok(address) = listener.local_addr() else { panic!("an address") };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || -> std::io::Result<()> {
                    let mut stream = stream?;
                    loop {
                        let mut request = [0; 4];
                        stream.read_exact(&mut request)?;
                        std::thread::sleep(pause);
                        stream.write_all(&request[..2])?;
                        stream.write_all(&request[2..])?;
                    }
                });
            }
        });
        address
    }

    fn load(requests: &Requests, address: SocketAddr, again: bool) -> anyhow::Result<Outcome> {
        let (warm, time) = (Duration::from_millis(20), Duration::from_millis(300));
        let pid = std::process::id();
        let protocol = Protocol::Resp { replies: 1 };
        Load { address, pid, protocol, requests, again, connections: 3, warm, time }.run()
    }

    fn numbers(count: usize) -> Requests {
        let mut requests = Requests::default();
        for number in 0..count {
            let reply = format!(":{}\r\n", number % 10);
            requests.add(|bytes| bytes.extend_from_slice(reply.as_bytes()));
        }
        requests
    }

    #[test]
    fn answers_are_counted_and_timed() {
        let pause = Duration::from_millis(10);
        let Ok(outcome) = load(&numbers(4), slow_echo(pause), true) else { panic!("an outcome") };
        assert!((30..=93).contains(&outcome.requests), "{}", outcome.requests);
        assert!(outcome.latencies.min() >= 9_900, "{}", outcome.latencies.min());
        assert!(outcome.took >= Duration::from_millis(300));
    }

    #[test]
    fn puts_are_asked_once() {
        let Ok(outcome) = load(&numbers(20), slow_echo(Duration::from_millis(10)), false) else {
            panic!("an outcome")
        };
        assert!(outcome.requests <= 20, "{}", outcome.requests);
        assert!(outcome.took < Duration::from_millis(300));
    }

    #[test]
    fn a_refusal_ends_the_load() {
        let mut requests = Requests::default();
        requests.add(|bytes| bytes.extend_from_slice(b"-E\r\n"));
        assert!(load(&requests, slow_echo(Duration::ZERO), true).is_err());
    }
}
