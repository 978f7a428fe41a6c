//! The load: one thread that holds all connections and costs every server the same. Of an answer it
//! looks only for the end, and whether it is a refusal. In the closed loop a connection asks again
//! as soon as it was answered; in the open one requests are due at a steady rate, whatever the
//! server does, and a latency begins when its request was due.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::fd::OwnedFd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::processor::processor_time;
use crate::wire::load::connection::Connection;
use crate::wire::load::requests::Supply;
use crate::wire::protocol::Protocol;

/// A server that answers nothing for so long has failed.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const EVENTS: usize = 1_024;
/// No shorter wait is asked of the timer: zero would disarm it.
const TIMER_MIN: Duration = Duration::from_micros(1);

pub struct Load<'a> {
    pub address: SocketAddr,
    /// Whose processor time is taken.
    pub pid: u32,
    pub protocol: Protocol,
    pub connections: usize,
    /// Before anything is counted.
    pub warm: Duration,
    pub time: Duration,
    pub supply: Supply<'a>,
    /// Requests per second in the open loop; none in the closed one.
    pub rate: Option<f64>,
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

    pub fn ms(&self, quantile: f64) -> f64 {
        self.latencies.value_at_quantile(quantile) as f64 / 1_000.0
    }
}

struct Counting {
    begun: Instant,
    cpu_us: f64,
    answers: u64,
    latencies: Histogram<u64>,
}

/// When requests are due.
struct Pace {
    begun: Instant,
    each: Duration,
    asked: u32,
    idle: VecDeque<usize>,
    timer: OwnedFd,
}

impl Load<'_> {
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let mut poll = Poll::new()?;
        let mut connections = Vec::with_capacity(self.connections);
        for index in 0..self.connections {
            let mut connection = Connection::open(self.address, self.protocol)?;
            let interests = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(connection.stream(), Token(index), interests)?;
            connections.push(connection);
        }
        let mut pace = self.rate.map(|rate| Pace::begin(rate, self.connections)).transpose()?;
        match &pace {
            Some(pace) => poll.registry().register(
                &mut SourceFd(&pace.timer.as_raw_fd()),
                Token(self.connections),
                Interest::READABLE,
            )?,
            None => {
                for connection in &mut connections {
                    let request = self.supply.next().context("fewer requests than connections")?;
                    connection.ask(request, Instant::now())?;
                }
            }
        }
        self.turn(&mut poll, &mut connections, &mut pace)
    }

    fn turn(
        &mut self,
        poll: &mut Poll,
        connections: &mut [Connection],
        pace: &mut Option<Pace>,
    ) -> anyhow::Result<Outcome> {
        let mut events = Events::with_capacity(EVENTS);
        let begun = Instant::now();
        let mut counting: Option<Counting> = None;
        loop {
            let mut dry = match pace {
                Some(pace) => pace.ask(connections, &mut self.supply)?,
                None => false,
            };
            poll.poll(&mut events, Some(SILENCE_MAX)).or_else(unless_interrupted)?;
            anyhow::ensure!(!events.is_empty(), "no answer within {SILENCE_MAX:?}");
            for event in &events {
                let Some(connection) = connections.get_mut(event.token().0) else { continue };
                connection.send_rest()?;
                if !event.is_readable() || !connection.answered()? {
                    continue;
                }
                let now = Instant::now();
                if let Some(counting) = &mut counting {
                    counting.answers += 1;
                    let took = now - connection.asked();
                    counting.latencies.record(took.as_micros() as u64)?;
                }
                match pace {
                    Some(pace) => pace.idle.push_back(event.token().0),
                    None => match self.supply.next() {
                        Some(request) => connection.ask(request, now)?,
                        None => dry = true,
                    },
                }
            }
            let now = Instant::now();
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

impl Pace {
    fn begin(rate: f64, connections: usize) -> anyhow::Result<Pace> {
        anyhow::ensure!(rate > 0.0, "a rate of {rate} asks nothing");
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        let each = Duration::from_secs_f64(1.0 / rate);
        let idle = (0..connections).collect();
        Ok(Pace { begun: Instant::now(), each, asked: 0, idle, timer })
    }

    /// Asks all that is due as far as connections are idle, and sets the timer for the next.
    /// Whether all requests were asked.
    fn ask(&mut self, connections: &mut [Connection], from: &mut Supply) -> anyhow::Result<bool> {
        let now = Instant::now();
        loop {
            let due = self.begun + self.each * self.asked;
            let Some(index) = self.idle.front() else { return Ok(false) };
            if due > now {
                let wait = (due - now).max(TIMER_MIN);
                let it_value = Timespec {
                    tv_sec: wait.as_secs() as i64,
                    tv_nsec: i64::from(wait.subsec_nanos()),
                };
                let once = Timespec { tv_sec: 0, tv_nsec: 0 };
                let at = Itimerspec { it_interval: once, it_value };
                timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &at)?;
                return Ok(false);
            }
            let Some(request) = from.next() else { return Ok(true) };
            connections[*index].ask(request, due)?;
            self.idle.pop_front();
            self.asked += 1;
        }
    }
}

fn unless_interrupted(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::wire::load::requests::Requests;

    const PAUSE: Duration = Duration::from_millis(10);

    /// Answers each request of four bytes with them after so long, in two pieces.
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

    fn load(
        reads: &Requests,
        puts: &Requests,
        pause: Duration,
        rate: Option<f64>,
    ) -> Option<Outcome> {
        let load = Load {
            address: slow_echo(pause),
            pid: std::process::id(),
            protocol: Protocol::Resp,
            connections: 3,
            warm: Duration::from_millis(20),
            time: Duration::from_millis(300),
            supply: Supply::new(reads, puts, 0),
            rate,
        };
        load.run().ok()
    }

    fn replies(count: usize, text: &str) -> Requests {
        let mut requests = Requests::default();
        for _ in 0..count {
            requests.add(1, |bytes| bytes.extend_from_slice(text.as_bytes()));
        }
        requests
    }

    #[test]
    fn answers_are_counted_and_timed() {
        let (reads, none) = (replies(4, ":1\r\n"), Requests::default());
        let Some(outcome) = load(&reads, &none, PAUSE, None) else { panic!("an outcome") };
        assert!((3..=93).contains(&outcome.requests), "{}", outcome.requests);
        assert!(outcome.latencies.min() >= 9_900, "{}", outcome.latencies.min());
        assert!(outcome.took >= Duration::from_millis(300));
    }

    #[test]
    fn puts_are_asked_once() {
        let (none, puts) = (Requests::default(), replies(20, ":1\r\n"));
        let Some(outcome) = load(&none, &puts, PAUSE, None) else { panic!("an outcome") };
        assert!(outcome.requests <= 20, "{}", outcome.requests);
    }

    #[test]
    fn a_refusal_ends_the_load() {
        let (reads, none) = (replies(1, "-E\r\n"), Requests::default());
        assert!(load(&reads, &none, Duration::ZERO, None).is_none());
    }

    /// Three connections can answer 300 a second: what is due beyond that waits, and that shows.
    #[test]
    fn in_the_open_loop_waiting_counts() {
        let (reads, none) = (replies(1, ":1\r\n"), Requests::default());
        let Some(slow) = load(&reads, &none, PAUSE, Some(1_000.0)) else { panic!("an outcome") };
        assert!(slow.ms(1.0) > 100.0, "{}", slow.ms(1.0));
        let Some(quick) = load(&reads, &none, Duration::ZERO, Some(200.0)) else {
            panic!("an outcome")
        };
        assert!((10..=66).contains(&quick.requests), "{}", quick.requests);
    }
}
