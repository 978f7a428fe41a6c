//! Open connections and the time they may take: a bound on their number, and deadlines for heads,
//! for reading answers and for being idle. Streams have their own: each must be read from now and
//! then. One look at all of them every quarter second serves
//! HTTP/1.1 and HTTP/2 alike and costs a request no timer.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Version;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::config::HttpSection;
use crate::telemetry::Metrics;
use crate::wire::AnswerPlace;

/// How an HTTP/2 client opens; its connection may be quiet in the middle of nothing.
const HTTP2_OPENING: &[u8] = b"PRI";

/// What is handed to a connection at once. It keeps whatever it was handed until that is read, and
/// nobody counts it any more.
const PIECE_BYTES_MAX: usize = 16 * 1024;

/// How long a stopping service waits for a stream's last item to be read.
const LAST_ITEM_MS: u64 = 1_000;

#[derive(Debug)]
pub struct Connections {
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    max: usize,
    head_ms: u64,
    write_ms: u64,
    stall_ms: u64,
    idle_ms: u64,
    begun: Instant,
    metrics: Arc<Metrics>,
}

/// What is known of one connection. Times are milliseconds of the listener's life; 0 means "not
/// now", so they begin at 1.
#[derive(Debug)]
pub struct Connection {
    number: u64,
    all: Arc<Connections>,
    http2: AtomicBool,
    /// It has had an answer: a client that talks, not one that only holds the line.
    served: AtomicBool,
    /// Requests whose answer is not yet handed to the socket.
    requests: AtomicU32,
    /// Of those, the ones whose answer is gone and whose body is still read and dropped.
    drains: AtomicU32,
    idle_since: AtomicU64,
    /// How long it may be idle.
    idle_ms: u64,
    /// When the first byte of an unfinished head came.
    head_since: AtomicU64,
    /// When the socket last began to refuse bytes.
    write_since: AtomicU64,
    /// For each answer that was not yet handed to the socket, since when it is there.
    unread: Mutex<Vec<u64>>,
    /// For each stream on it, when an item was last left waiting for the reader.
    streams: Mutex<Vec<Arc<AtomicU64>>>,
    close: Notify,
}

impl Connections {
    pub fn new(settings: &HttpSection, max: usize, metrics: Arc<Metrics>) -> Arc<Connections> {
        Arc::new(Connections {
            open: Mutex::default(),
            next: AtomicU64::new(1),
            max,
            head_ms: settings.header_timeout_ms,
            write_ms: settings.write_timeout_ms,
            // A stream that ends because it stalls leaves a last item, which has the time of any
            // answer to be read.
            stall_ms: settings.stream_stall_timeout_ms.saturating_add(settings.write_timeout_ms),
            idle_ms: settings.idle_timeout_ms,
            begun: Instant::now(),
            metrics,
        })
    }

    /// A place for a new connection. At the bound the idlest one is closed for it; none is left
    /// when all are busy.
    pub fn admit(self: &Arc<Connections>) -> Option<Arc<Connection>> {
        self.admit_for(Duration::from_millis(self.idle_ms))
    }

    /// The same for one that may be idle for so long.
    pub fn admit_for(self: &Arc<Connections>, idle: Duration) -> Option<Arc<Connection>> {
        let now = self.now();
        let mut open = self.open.lock();
        if open.len() >= self.max {
            let idlest = idlest(&open)?;
            open.remove(&idlest.number);
            self.metrics.connections_closed.inc();
            idlest.close.notify_one();
        }
        let connection = Arc::new(Connection {
            number: self.next.fetch_add(1, Ordering::Relaxed),
            all: self.clone(),
            http2: AtomicBool::new(false),
            served: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            drains: AtomicU32::new(0),
            idle_since: AtomicU64::new(now),
            idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
            head_since: AtomicU64::new(0),
            write_since: AtomicU64::new(0),
            unread: Mutex::default(),
            streams: Mutex::default(),
            close: Notify::new(),
        });
        open.insert(connection.number, connection.clone());
        self.metrics.connections.set(open.len() as i64);
        Some(connection)
    }

    pub fn open(&self) -> usize {
        self.open.lock().len()
    }

    pub fn close_idlest(&self) {
        if let Some(idlest) = idlest(&self.open.lock()) {
            idlest.close.notify_one();
        }
    }

    /// For the drain: whoever only holds the line is let go at once, and so is whoever leaves the
    /// end of its stream unread.
    pub fn close_all_idle(&self) {
        let now = self.now();
        let open = self.open.lock();
        for connection in open.values().filter(|c| c.is_idle() || c.leaves_unread(now)) {
            connection.close.notify_one();
        }
    }

    /// Closes whoever overstays, for ever.
    pub async fn watch(self: Arc<Connections>, interval: Duration) {
        let mut ticks = tokio::time::interval(interval);
        loop {
            ticks.tick().await;
            let now = self.now();
            let open = self.open.lock();
            for connection in open.values().filter(|c| c.overstays(now)) {
                self.metrics.connections_closed.inc();
                connection.close.notify_one();
            }
        }
    }

    fn now(&self) -> u64 {
        1 + u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }

    fn remove(&self, number: u64) {
        let mut open = self.open.lock();
        open.remove(&number);
        self.metrics.connections.set(open.len() as i64);
    }
}

/// First those that have their answer and only go on sending what nobody reads; of the idle ones,
/// first those that never asked anything, then the longest idle.
fn idlest(open: &HashMap<u64, Arc<Connection>>) -> Option<Arc<Connection>> {
    let rank = |connection: &&Arc<Connection>| {
        let served = connection.served.load(Ordering::Relaxed);
        let idle_since = connection.idle_since.load(Ordering::Relaxed);
        // Of those of the same millisecond the first that came.
        (connection.is_idle(), served, idle_since, connection.number)
    };
    let idle = open.values().filter(|connection| connection.is_idle() || connection.only_drains());
    idle.min_by_key(rank).cloned()
}

impl Connection {
    /// Returns when this connection is to end.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    pub fn begin_request(self: &Arc<Connection>) -> RequestGuard {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.head_since.store(0, Ordering::Relaxed);
        RequestGuard { connection: self.clone() }
    }

    /// Whether a part of a request is there, for protocols whose requests have no head.
    pub fn note_amid(&self, amid: bool) {
        if !amid {
            self.head_since.store(0, Ordering::Relaxed);
        } else if self.head_since.load(Ordering::Relaxed) == 0 {
            self.head_since.store(self.all.now(), Ordering::Relaxed);
        }
    }

    /// A request was answered, and the rest of its body is read and dropped.
    pub fn begin_drain(self: &Arc<Connection>) -> DrainGuard {
        let request = self.begin_request();
        self.drains.fetch_add(1, Ordering::Relaxed);
        DrainGuard { request }
    }

    /// It has nothing but bodies that are dropped.
    fn only_drains(&self) -> bool {
        let drains = self.drains.load(Ordering::Relaxed);
        drains != 0
            && self.requests.load(Ordering::Relaxed) == drains
            && self.write_since.load(Ordering::Relaxed) == 0
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0 && self.write_since.load(Ordering::Relaxed) == 0
    }

    /// It has nothing but streams, and one of them waits for its reader.
    fn leaves_unread(&self, now: u64) -> bool {
        let streams = self.streams();
        let requests = self.requests.load(Ordering::Relaxed) as usize;
        let waits = |since: u64| since != 0 && now.saturating_sub(since) > LAST_ITEM_MS;
        requests == streams.len()
            && streams.iter().any(|unread_since| waits(unread_since.load(Ordering::Relaxed)))
    }

    fn overstays(&self, now: u64) -> bool {
        let past = |since: &AtomicU64, limit: u64| {
            let since = since.load(Ordering::Relaxed);
            since != 0 && now.saturating_sub(since) > limit
        };
        let all = &self.all;
        let streams = self.streams();
        let write_ms = if streams.is_empty() { all.write_ms } else { all.stall_ms };
        let stuck = past(&self.write_since, write_ms)
            || self.unread.lock().iter().any(|since| now.saturating_sub(*since) > all.write_ms)
            || streams.iter().any(|unread_since| past(unread_since, all.stall_ms));
        let quiet = self.requests.load(Ordering::Relaxed) == 0
            && (past(&self.head_since, all.head_ms) || past(&self.idle_since, self.idle_ms));
        stuck || quiet
    }

    fn bytes_came(&self, bytes: &[u8]) {
        let first = !self.served.load(Ordering::Relaxed) && !self.http2.load(Ordering::Relaxed);
        if first && bytes.starts_with(HTTP2_OPENING) {
            self.http2.store(true, Ordering::Relaxed);
        }
        // Between requests, bytes of HTTP/1.1 are the beginning of a head.
        let idle = self.requests.load(Ordering::Relaxed) == 0;
        if idle
            && !self.http2.load(Ordering::Relaxed)
            && self.head_since.load(Ordering::Relaxed) == 0
        {
            self.head_since.store(self.all.now(), Ordering::Relaxed);
        }
    }

    /// So many of these bytes went to the socket.
    fn wrote(&self, count: usize, of: usize) {
        let waits = self.write_since.load(Ordering::Relaxed) != 0;
        // An answer must be read as a whole in time; of a stream, any piece will do.
        let moved = count > 0 && waits && !self.streams().is_empty();
        if count == of {
            if waits {
                self.write_since.store(0, Ordering::Relaxed);
            }
        } else if !waits || moved {
            self.write_since.store(self.all.now(), Ordering::Relaxed);
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.streams.lock()
    }

    fn end_request(&self) {
        self.served.store(true, Ordering::Relaxed);
        self.idle_since.store(self.all.now(), Ordering::Relaxed);
        self.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request under way; the connection is busy until it is dropped.
#[derive(Debug)]
pub struct RequestGuard {
    connection: Arc<Connection>,
}

impl RequestGuard {
    /// The answer exists; it now waits to be read.
    pub fn answered(self, place: AnswerPlace) -> AnswerGuard {
        let since = self.connection.all.now();
        self.connection.unread.lock().push(since);
        AnswerGuard { request: self, _place: place, unread: Unread::Whole(since) }
    }

    /// The answer is a stream, which is read piece by piece.
    pub fn streams(self) -> AnswerGuard {
        let unread_since = Arc::new(AtomicU64::new(self.connection.all.now()));
        self.connection.streams().push(unread_since.clone());
        let place = AnswerPlace::default();
        AnswerGuard { request: self, _place: place, unread: Unread::Stream(unread_since) }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.end_request();
    }
}

/// A body that is dropped. The connection is busy, not idle or late with a head, but gives way to
/// one that has more to say.
#[derive(Debug)]
pub struct DrainGuard {
    request: RequestGuard,
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.request.connection.drains.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Held until the answer has left for the socket's buffer, so that answers nobody reads count
/// against the bounds on requests and answers and cannot pile up.
#[derive(Debug)]
pub struct AnswerGuard {
    request: RequestGuard,
    _place: AnswerPlace,
    unread: Unread,
}

/// Since when an answer waits to be read.
#[derive(Debug)]
enum Unread {
    Whole(u64),
    /// 0 while its reader waits for us, not we for it.
    Stream(Arc<AtomicU64>),
}

impl AnswerGuard {
    /// The body was asked for more; `gave` when it had an item.
    fn polled(&self, gave: bool) {
        if let Unread::Stream(unread_since) = &self.unread {
            let since = if gave { self.request.connection.all.now() } else { 0 };
            unread_since.store(since, Ordering::Relaxed);
        }
    }
}

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        let connection = &self.request.connection;
        match &self.unread {
            Unread::Whole(since) => {
                let mut unread = connection.unread.lock();
                if let Some(at) = unread.iter().position(|other| other == since) {
                    unread.swap_remove(at);
                }
            }
            Unread::Stream(unread_since) => {
                connection.streams().retain(|other| !Arc::ptr_eq(other, unread_since));
            }
        }
    }
}

/// A body with its guard, handed on in pieces.
#[derive(Debug)]
pub struct GuardedBody {
    body: Body,
    guard: AnswerGuard,
    http2: bool,
    /// What was not yet handed on of the body's last frame.
    rest: Bytes,
}

impl GuardedBody {
    pub fn new(body: Body, guard: AnswerGuard, version: Version) -> GuardedBody {
        GuardedBody { body, guard, http2: version == Version::HTTP_2, rest: Bytes::new() }
    }

    /// How much of the rest is the next piece. HTTP/2 takes a piece as soon as its reader has room
    /// for all before it and one byte; so the last byte of an answer goes alone, and the guard goes
    /// when the whole answer has room, not when it begins to.
    fn piece_bytes(&self) -> usize {
        let last_apart = self.http2 && matches!(self.guard.unread, Unread::Whole(_));
        let bytes = self.rest.len();
        let at_once = if last_apart && bytes > 1 { bytes - 1 } else { bytes };
        at_once.min(PIECE_BYTES_MAX)
    }
}

impl http_body::Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            self.guard.polled(polled.is_ready());
            match polled {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return other,
            }
        }
        self.guard.polled(true);
        let bytes = self.piece_bytes();
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower().saturating_add(rest));
        if let Some(upper) = body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

/// The socket, telling its connection what passes.
#[derive(Debug)]
pub struct WatchedSocket {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl WatchedSocket {
    pub fn new(stream: TcpStream, connection: Arc<Connection>) -> WatchedSocket {
        WatchedSocket { stream, connection }
    }
}

impl Drop for WatchedSocket {
    fn drop(&mut self) {
        self.connection.all.remove(self.connection.number);
    }
}

impl AsyncRead for WatchedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = &buffer.filled()[before..];
        if !came.is_empty() {
            self.connection.bytes_came(came);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        match &result {
            Poll::Ready(Ok(count)) => self.connection.wrote(*count, bytes.len()),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.connection.wrote(0, bytes.len()),
        }
        result
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize) -> Arc<Connections> {
        Connections::new(&HttpSection::default(), max, Arc::new(Metrics::new(|_| {})))
    }

    #[test]
    fn at_the_bound_the_idlest_makes_room_and_the_busy_stay() {
        let all = connections(2);
        let first = all.admit().unwrap();
        let second = all.admit().unwrap();
        let busy = first.begin_request();
        let third = all.admit().unwrap();
        let numbers = |all: &Connections| {
            let mut numbers: Vec<u64> = all.open.lock().keys().copied().collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(&all), [first.number, third.number]);
        assert_ne!(second.number, third.number);
        let also_busy = third.begin_request();
        assert!(all.admit().is_none(), "all are busy");
        drop(busy);
        let fourth = all.admit().unwrap();
        assert_eq!(numbers(&all), [third.number, fourth.number]);
        // Who is answered and only goes on sending gives way before whoever is idle.
        let answering = fourth.begin_request();
        let drains = fourth.begin_drain();
        assert!(all.admit().is_none(), "its answer is not gone");
        drop(answering);
        drop(also_busy);
        let fifth = all.admit().unwrap();
        assert_eq!(numbers(&all), [third.number, fifth.number]);
        drop(drains);
        assert!(fourth.is_idle());
    }

    #[test]
    fn each_deadline_closes_its_own_laggards() {
        let all = connections(8);
        let settings = HttpSection::default();
        let connection = all.admit().unwrap();
        let at = connection.idle_since.load(Ordering::Relaxed);
        assert!(!connection.overstays(at + settings.idle_timeout_ms));
        assert!(connection.overstays(at + settings.idle_timeout_ms + 1));

        connection.bytes_came(b"GET / HT");
        let at = connection.head_since.load(Ordering::Relaxed);
        assert!(!connection.overstays(at + settings.header_timeout_ms));
        assert!(connection.overstays(at + settings.header_timeout_ms + 1));

        let busy = connection.begin_request();
        assert!(!connection.overstays(at + settings.idle_timeout_ms + 1));
        connection.wrote(0, 1);
        let at = connection.write_since.load(Ordering::Relaxed);
        assert!(connection.overstays(at + settings.write_timeout_ms + 1));
        connection.wrote(1, 1);
        assert!(!connection.overstays(at + settings.write_timeout_ms + 1));
        drop(busy);

        let streaming = all.admit().unwrap();
        let stream = streaming.begin_request().streams();
        let at = all.now();
        stream.polled(false);
        let for_ever = at + settings.idle_timeout_ms * 1_000;
        assert!(!streaming.overstays(for_ever), "its reader waits for us");
        drop(streaming.begin_request().answered(AnswerPlace::default()));
        assert!(!streaming.overstays(for_ever), "beside another answer too");
        stream.polled(true);
        assert!(!streaming.overstays(at + settings.stream_stall_timeout_ms));
        assert!(streaming.overstays(for_ever), "its reader takes nothing");
        drop(stream);
        assert!(streaming.overstays(for_ever) && streaming.is_idle(), "an idle one again");

        let choosy = all.admit().unwrap();
        let left = choosy.begin_request().answered(AnswerPlace::default());
        let at = all.now();
        // Answers that are read beside it do not help the one that is left.
        drop(choosy.begin_request().answered(AnswerPlace::default()));
        assert!(!choosy.overstays(at + settings.write_timeout_ms));
        assert!(choosy.overstays(at + settings.write_timeout_ms + 1), "an answer is left unread");
        drop(left);
        assert!(!choosy.overstays(at + settings.write_timeout_ms + 1));

        let quiet = all.admit().unwrap();
        quiet.bytes_came(b"PRI * HTTP/2.0");
        let at = quiet.idle_since.load(Ordering::Relaxed);
        assert!(!quiet.overstays(at + settings.header_timeout_ms + 1));
    }
}
