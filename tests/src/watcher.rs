//! A reader of server-sent events, byte by byte: it can stop reading in the middle, and it knows
//! an orderly end from a broken connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A test that waits longer for an event has found a fault.
const EVENT_DEADLINE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, PartialEq)]
pub struct WatchEvent {
    pub name: String,
    pub id: Option<String>,
    pub data: Value,
}

/// What a watcher meets next.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    Event(WatchEvent),
    /// The stream ended in order.
    Ended,
    /// The connection broke.
    Broken,
    /// Nothing came in time.
    Nothing,
}

pub struct Watcher {
    stream: TcpStream,
    /// As it came, in chunks.
    raw: Vec<u8>,
    /// Taken out of the chunks, not yet read as events.
    text: Vec<u8>,
    ended: bool,
    /// To read on from.
    pub last_id: Option<String>,
}

impl Watcher {
    /// Watches with these parameters (`from=now&kinds=follow`); anything but a stream is a panic.
    #[track_caller]
    pub fn open(address: SocketAddr, parameters: &str) -> Self {
        Self::open_with(address, parameters, None)
    }

    /// As a browser does that was cut off.
    #[track_caller]
    pub fn open_with(address: SocketAddr, parameters: &str, last_event_id: Option<&str>) -> Self {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))
            .expect("the server accepts connections");
        let header = last_event_id.map_or(String::new(), |id| format!("Last-Event-ID: {id}\r\n"));
        let request =
            format!("GET /v1/watch?{parameters} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).expect("a request can be sent");
        let last_id = last_event_id.map(str::to_owned);
        let mut watcher = Self { stream, raw: Vec::new(), text: Vec::new(), ended: false, last_id };
        watcher.read_head();
        watcher
    }

    #[track_caller]
    fn read_head(&mut self) {
        let until = Instant::now() + EVENT_DEADLINE;
        loop {
            if let Some(end) = find(&self.raw, b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.raw[..end]).to_lowercase();
                let whole = String::from_utf8_lossy(&self.raw);
                assert!(head.starts_with("http/1.1 200"), "{whole}");
                assert!(head.contains("content-type: text/event-stream"), "{whole}");
                self.raw.drain(..end + 4);
                return;
            }
            assert!(self.fill(until) == Filled::Some, "no head came");
        }
    }

    /// The next event, which must come.
    #[track_caller]
    pub fn event(&mut self) -> WatchEvent {
        match self.next(EVENT_DEADLINE) {
            Next::Event(event) => event,
            other => panic!("an event was expected: {other:?}"),
        }
    }

    /// The next record, which must come; heartbeats are passed over.
    #[track_caller]
    pub fn record(&mut self) -> Value {
        let until = Instant::now() + EVENT_DEADLINE;
        loop {
            assert!(Instant::now() < until, "no record came within {EVENT_DEADLINE:?}");
            let event = self.event();
            match event.name.as_str() {
                "record" => return event.data,
                "heartbeat" => {}
                _ => panic!("a record was expected: {event:?}"),
            }
        }
    }

    /// Records until one satisfies `last`, which is the last of them.
    #[track_caller]
    pub fn records_until(&mut self, last: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut records = Vec::new();
        loop {
            let record = self.record();
            let done = last(&record);
            records.push(record);
            if done {
                return records;
            }
        }
    }

    pub fn next(&mut self, within: Duration) -> Next {
        let until = Instant::now() + within;
        loop {
            self.take_chunks();
            if let Some(end) = find(&self.text, b"\n\n") {
                let lines: Vec<u8> = self.text.drain(..end + 2).collect();
                let event = parse(&String::from_utf8(lines).expect("events are UTF-8"));
                if event.id.is_some() {
                    self.last_id.clone_from(&event.id);
                }
                return Next::Event(event);
            }
            if self.ended {
                assert!(self.text.is_empty(), "half an event stands before the end");
                return Next::Ended;
            }
            match self.fill(until) {
                Filled::Some => {}
                Filled::Nothing => return Next::Nothing,
                Filled::Broken => return Next::Broken,
            }
        }
    }

    fn fill(&mut self, until: Instant) -> Filled {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Filled::Nothing;
        }
        self.stream.set_read_timeout(Some(left)).expect("a timeout can be set");
        let mut buffer = [0; 64 * 1024];
        match self.stream.read(&mut buffer) {
            Ok(0) => Filled::Broken,
            Ok(count) => {
                self.raw.extend_from_slice(&buffer[..count]);
                Filled::Some
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Filled::Some,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Filled::Nothing
            }
            Err(_) => Filled::Broken,
        }
    }

    /// Moves whole chunks over; the empty one is the orderly end.
    fn take_chunks(&mut self) {
        let mut taken = 0;
        while let Some(line) = find(&self.raw[taken..], b"\r\n") {
            let size = String::from_utf8_lossy(&self.raw[taken..taken + line]).into_owned();
            let size = usize::from_str_radix(&size, 16).expect("a chunk begins with its size");
            let start = taken + line + 2;
            if self.raw.len() < start + size + 2 {
                break;
            }
            self.text.extend_from_slice(&self.raw[start..start + size]);
            taken = start + size + 2;
            if size == 0 {
                self.ended = true;
                break;
            }
        }
        self.raw.drain(..taken);
    }
}

#[derive(PartialEq)]
enum Filled {
    Some,
    Nothing,
    Broken,
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn parse(lines: &str) -> WatchEvent {
    let mut event = WatchEvent { name: String::new(), id: None, data: Value::Null };
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (field, value) = line.split_once(": ").expect("a line is a field and its value");
        match field {
            "event" => event.name = value.to_owned(),
            "id" => event.id = Some(value.to_owned()),
            "data" => event.data = serde_json::from_str(value).expect("data is JSON"),
            _ => panic!("an unknown field: {line}"),
        }
    }
    event
}
