//! Long answers: watch, export, backup, shipping of the log. Each is made by a task of its own and
//! handed to its reader through a bounded queue, so that whoever reads slowly holds nobody else.
//!
//! A stream has no deadline as a whole. It ends when its maker is done, when its reader goes or
//! takes nothing for too long, or, where it keeps something from others, too little (`Paced`), and
//! when the service stops. Its end is always told apart from a
//! broken connection: in order, with a last item that says why, or by breaking off. What the items
//! are is the caller's affair; bytes become a body with `reply`.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_util::Stream;
use guanxi_model::{Code, Error};
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::config::HttpSection;
use crate::telemetry::Metrics;

/// Items that may wait for the reader. The socket's buffer bridges its pauses; this only keeps
/// maker and socket from waiting for one another, and costs each stalled reader's memory.
const QUEUE_ITEMS_MAX: usize = 4;
/// What an item of bytes should not exceed by much, for the same reason.
pub const ITEM_BYTES_TYPICAL: usize = 32 * 1024;
/// Backups, first copies of standbys and copies for a move at once: each walks over the whole store
/// and keeps the log from being trimmed.
const COPIES_MAX: usize = 8;
/// A copy that has lasted so long may have to give its place to a newcomer. At a place of its own a
/// store of a terabyte is copied sooner; whoever reads as slowly as is allowed takes half a day.
const COPY_YIELDS_AFTER: Duration = Duration::from_secs(60 * 60);
/// Pieces of the log that are waited for or sent at once to standbys: one for each that is
/// remembered, and some for those that went without a word.
const SHIPMENTS_MAX: usize = 24;
/// Pieces of the log for everybody else: nothing but their reader waits for them.
const LOG_READERS_MAX: usize = 8;
/// So many times as long as a reader may stall, it may be behind the pace.
const STALLS_OWED_MAX: u32 = 2;

/// What a stream is for. Each purpose has places of its own, so that callers never take those of
/// operators, nor copies or strangers those of standbys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamPurpose {
    /// Watch and export.
    Callers,
    /// Backups and the like.
    Copies,
    /// The log, for standbys that have acknowledged some of it.
    Shipping,
    /// The log, for whoever is no such standby.
    LogReaders,
}

/// All streams of the service: their number is bounded, and they end with it.
#[derive(Debug)]
pub struct Streams {
    places: [(Arc<Semaphore>, usize); 4],
    copies: Mutex<Vec<Weak<Seat>>>,
    copy_yields_after: Duration,
    stall: Duration,
    bytes_per_second_min: u64,
    stopping: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

impl Streams {
    pub fn new(settings: &HttpSection, metrics: Arc<Metrics>) -> Streams {
        let places = [settings.streams_max, COPIES_MAX, SHIPMENTS_MAX, LOG_READERS_MAX];
        Streams {
            places: places.map(|max| (Arc::new(Semaphore::new(max)), max)),
            copies: Mutex::default(),
            copy_yields_after: COPY_YIELDS_AFTER,
            stall: Duration::from_millis(settings.stream_stall_timeout_ms),
            bytes_per_second_min: settings.stream_bytes_per_second_min,
            stopping: watch::Sender::new(false),
            metrics,
        }
    }

    /// Ends every stream, and those that are yet to begin.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns when streams are to end.
    pub async fn stopped(&self) {
        // The sender lives as long as this does, so there is no other way for the wait to end.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    /// A place for a stream, which is taken before any work is done for it.
    pub fn place(&self, purpose: StreamPurpose) -> Result<StreamPlace, Error> {
        let (places, max) = &self.places[purpose as usize];
        let free = places.clone().try_acquire_owned().ok();
        let place = match purpose {
            StreamPurpose::Copies => free.or_else(|| self.slowest_copys_place()),
            _ => free,
        };
        let place = place.ok_or_else(|| {
            let message = match purpose {
                StreamPurpose::Callers => {
                    format!("all {max} streams that the service takes are open; try again later")
                }
                StreamPurpose::Copies => format!(
                    "{max} copies of this service are being made, as many as it makes at once; \
                     try again when one has ended"
                ),
                StreamPurpose::Shipping => format!(
                    "{max} pieces of the log are being sent, as many as the service sends at \
                     once; try again in a moment"
                ),
                StreamPurpose::LogReaders => format!(
                    "{max} pieces of the log are being sent to others than known standbys, as \
                     many as the service sends at once; try again in a moment, or, as a standby, \
                     acknowledge first and name its id"
                ),
            };
            Error::new(Code::Overloaded, message)
        })?;
        let seat = Arc::new(Seat {
            place: Mutex::new(Some(place)),
            since: Instant::now(),
            bytes: AtomicU64::new(0),
            lost: Notify::new(),
        });
        if purpose == StreamPurpose::Copies {
            let mut copies = self.copies.lock();
            copies.retain(|copy| copy.strong_count() > 0);
            copies.push(Arc::downgrade(&seat));
        }
        Ok(StreamPlace { gauge: self.metrics.streams.clone(), seat })
    }

    /// The place of the copy with the slowest reader, which ends for it, if it has lasted long.
    fn slowest_copys_place(&self) -> Option<OwnedSemaphorePermit> {
        let seats: Vec<Arc<Seat>> = self.copies.lock().iter().filter_map(Weak::upgrade).collect();
        let long = seats.iter().filter(|seat| seat.since.elapsed() > self.copy_yields_after);
        let slowest = long.filter(|seat| seat.place().is_some()).min_by_key(|seat| seat.pace())?;
        let place = slowest.place().take()?;
        tracing::warn!(
            lasted_s = slowest.since.elapsed().as_secs(),
            bytes_per_second = slowest.pace(),
            "a copy of this service ends, as all places for copies are taken and its reader is the \
             slowest; another begins in its place"
        );
        slowest.lost.notify_one();
        Some(place)
    }

    /// Starts a stream. `make` runs as a task of its own and sends the items; when it fails, is
    /// stalled or the service stops, `last_item` may put the error into a last item, after which
    /// the stream ends in order. Without one it breaks off.
    pub fn start<T, Making>(
        &self,
        place: StreamPlace,
        last_item: impl FnOnce(&Error) -> Option<T> + Send + 'static,
        make: impl FnOnce(StreamSender<T>) -> Making,
    ) -> Items<T>
    where
        T: Send + 'static,
        Making: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let (to_reader, from_maker) = mpsc::channel(QUEUE_ITEMS_MAX);
        let (end, ending) = oneshot::channel();
        let stalled = self.metrics.streams_stalled.clone();
        let making = make(StreamSender {
            queue: to_reader.clone(),
            stall: self.stall,
            bytes_per_second_min: self.bytes_per_second_min,
            stalled,
            seat: place.seat.clone(),
        });
        let seat = place.seat.clone();
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            let made = tokio::select! {
                made = making => made,
                _ = stopping.wait_for(|stopping| *stopping) => Err(stopped()),
                () = seat.lost.notified() => Err(gave_way()),
                // Nobody is left to hear how it ended.
                () = to_reader.closed() => return,
            };
            let how = match made {
                Ok(()) => End::InOrder(None),
                Err(error) => match last_item(&error) {
                    Some(item) => End::InOrder(Some(item)),
                    None => End::Broken,
                },
            };
            let _ = end.send(how);
        });
        Items { queue: from_maker, ending: Some(ending), _open: OpenStream::new(place) }
    }
}

/// The maker's end of a stream.
#[derive(Debug)]
pub struct StreamSender<T> {
    queue: mpsc::Sender<T>,
    stall: Duration,
    bytes_per_second_min: u64,
    stalled: Counter,
    seat: Arc<Seat>,
}

impl<T> StreamSender<T> {
    /// The same for a stream whose reader must keep a pace.
    pub fn paced(self) -> Paced<T> {
        Paced { sender: self, owed: Duration::ZERO }
    }

    /// Waits until there is room, for as long as a reader may stall. An error is for the maker to
    /// return: there is nothing more to do.
    pub async fn send(&self, item: T) -> Result<(), Error> {
        match self.queue.send_timeout(item, self.stall).await {
            Ok(()) => Ok(()),
            Err(SendTimeoutError::Timeout(_)) => {
                self.stalled.inc();
                let message = format!(
                    "the reader took nothing for {} ms, so the stream ends; read on from the last \
                     item that came",
                    self.stall.as_millis()
                );
                Err(Error::new(Code::Overloaded, message))
            }
            Err(SendTimeoutError::Closed(_)) => {
                Err(Error::new(Code::Unavailable, "the reader has gone"))
            }
        }
    }
}

/// The maker's end of a stream that keeps something from others as long as it lasts: a part of the
/// log, replaced rows, a place. Its reader may be slow for a while, but not all the way: it owes
/// the time that it was waited for, less what its bytes take at the least pace.
#[derive(Debug)]
pub struct Paced<T> {
    sender: StreamSender<T>,
    owed: Duration,
}

impl<T> Paced<T> {
    /// As `StreamSender::send`, of an item with so many bytes.
    pub async fn send(&mut self, item: T, bytes: usize) -> Result<(), Error> {
        let sender = &self.sender;
        let begun = Instant::now();
        sender.send(item).await?;
        sender.seat.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let paid_ns = bytes as u64 * 1_000_000_000 / sender.bytes_per_second_min.max(1);
        let owed = self.owed + begun.elapsed();
        self.owed = owed.saturating_sub(Duration::from_nanos(paid_ns));
        if self.owed <= sender.stall * STALLS_OWED_MAX {
            return Ok(());
        }
        sender.stalled.inc();
        let message = format!(
            "the reader takes less than {} bytes a second, so the stream ends; read faster, or ask \
             from a place with a better way to the service",
            sender.bytes_per_second_min
        );
        Err(Error::new(Code::Overloaded, message))
    }
}

/// The reader's end of a stream.
#[derive(Debug)]
pub struct Items<T> {
    queue: mpsc::Receiver<T>,
    /// None once the stream has ended.
    ending: Option<oneshot::Receiver<End<T>>>,
    _open: OpenStream,
}

#[derive(Debug)]
enum End<T> {
    InOrder(Option<T>),
    Broken,
}

/// The stream ended before everything was sent; the service's log says why.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off")]
pub struct BrokenStream;

impl<T: Unpin> Stream for Items<T> {
    type Item = Result<T, BrokenStream>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, BrokenStream>>> {
        if let Some(item) = ready!(self.queue.poll_recv(context)) {
            return Poll::Ready(Some(Ok(item)));
        }
        let Some(ending) = &mut self.ending else {
            return Poll::Ready(None);
        };
        // A maker that panicked has left no word; that is no orderly end.
        let end = ready!(Pin::new(ending).poll(context)).unwrap_or(End::Broken);
        self.ending = None;
        Poll::Ready(match end {
            End::InOrder(last) => last.map(Ok),
            End::Broken => Some(Err(BrokenStream)),
        })
    }
}

/// A place that no stream has yet.
#[derive(Debug)]
pub struct StreamPlace {
    gauge: Gauge,
    seat: Arc<Seat>,
}

/// Where a stream has its place, and how it gets on.
#[derive(Debug)]
struct Seat {
    /// None once it has gone to another.
    place: Mutex<Option<OwnedSemaphorePermit>>,
    since: Instant,
    /// What a paced stream has sent.
    bytes: AtomicU64,
    lost: Notify,
}

impl Seat {
    fn place(&self) -> MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.place.lock()
    }

    /// Bytes a second.
    fn pace(&self) -> u64 {
        let seconds = self.since.elapsed().as_secs().max(1);
        self.bytes.load(Ordering::Relaxed) / seconds
    }
}

/// Counts the stream as open and keeps its place until it is dropped.
#[derive(Debug)]
struct OpenStream {
    gauge: Gauge,
    seat: Arc<Seat>,
}

impl OpenStream {
    fn new(StreamPlace { gauge, seat }: StreamPlace) -> OpenStream {
        gauge.inc();
        OpenStream { gauge, seat }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        // Its maker may take a moment to end, and needs no place for that.
        self.seat.place().take();
        self.gauge.dec();
    }
}

fn stopped() -> Error {
    let message = "the service is stopping, so the stream ends; read on from the last item that \
                   came when it is back";
    Error::new(Code::Unavailable, message)
}

fn gave_way() -> Error {
    let message = "all places for copies are taken and this one has the slowest reader, so another \
                   has its place now; take it again, by a faster way";
    Error::new(Code::Overloaded, message)
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, StreamExt};

    use super::*;

    fn streams(streams_max: usize) -> (Streams, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(|_| {}));
        let settings =
            HttpSection { streams_max, stream_stall_timeout_ms: 50, ..HttpSection::default() };
        (Streams::new(&settings, metrics.clone()), metrics)
    }

    fn start<Making>(
        streams: &Streams,
        last_item: impl FnOnce(&Error) -> Option<String> + Send + 'static,
        make: impl FnOnce(StreamSender<String>) -> Making,
    ) -> Items<String>
    where
        Making: Future<Output = Result<(), Error>> + Send + 'static,
    {
        streams.start(streams.place(StreamPurpose::Callers).unwrap(), last_item, make)
    }

    fn code(error: &Error) -> Option<String> {
        Some(error.code.name().to_owned())
    }

    async fn read(items: Items<String>) -> Vec<Result<String, String>> {
        items.map(|item| item.map_err(|broken| broken.to_string())).collect().await
    }

    #[tokio::test]
    async fn an_end_is_in_order_or_told_or_broken_off() {
        let (streams, _) = streams(9);
        let one = |sender: StreamSender<String>| async move { sender.send("one".to_owned()).await };
        let fails = |sender: StreamSender<String>| async move {
            sender.send("one".to_owned()).await?;
            Err(Error::new(Code::PositionExpired, "gone"))
        };
        let panics = |sender: StreamSender<String>| async move {
            sender.send("one".to_owned()).await?;
            panic!("a planted mistake")
        };
        let said = |text: &str| Ok(text.to_owned());
        let broken = || Err("the stream broke off".to_owned());
        let items = start(&streams, code, one);
        assert_eq!(read(items).await, [said("one")]);
        let items = start(&streams, code, fails);
        assert_eq!(read(items).await, [said("one"), said("position_expired")]);
        let items = start(&streams, |_| None, fails);
        assert_eq!(read(items).await, [said("one"), broken()]);
        let items = start(&streams, code, panics);
        assert_eq!(read(items).await, [said("one"), broken()]);
    }

    #[tokio::test]
    async fn a_stalled_reader_finds_the_queue_and_the_reason() {
        let (streams, metrics) = streams(9);
        let endless = |sender: StreamSender<String>| async move {
            loop {
                sender.send("item".to_owned()).await?;
            }
        };
        let items = start(&streams, code, endless);
        tokio::time::timeout(Duration::from_secs(20), async {
            while metrics.streams_stalled.get() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        let read = read(items).await;
        assert_eq!(read.len(), QUEUE_ITEMS_MAX + 1);
        assert_eq!(read.last(), Some(&Ok("overloaded".to_owned())));
    }

    #[tokio::test]
    async fn whoever_takes_too_little_is_ended_and_whoever_keeps_the_pace_is_not() {
        let metrics = Arc::new(Metrics::new(|_| {}));
        let settings = HttpSection {
            stream_stall_timeout_ms: 2_000,
            stream_bytes_per_second_min: 10_000,
            ..HttpSection::default()
        };
        let streams = Streams::new(&settings, metrics.clone());
        // Each item pays for 50 ms.
        let makes = |sender: StreamSender<String>| async move {
            let mut sender = sender.paced();
            for _ in 0..60 {
                sender.send("item".to_owned(), 500).await?;
            }
            Ok(())
        };
        for (pause_ms, all) in [(0, true), (300, false)] {
            let mut items = start(&streams, code, makes);
            let mut read = 0;
            while let Some(Ok(item)) = items.next().await {
                if item == "overloaded" {
                    break;
                }
                read += 1;
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            }
            assert_eq!(read == 60, all, "{read} came, one in {pause_ms} ms");
        }
        assert_eq!(metrics.streams_stalled.get(), 1);
    }

    #[tokio::test]
    async fn the_slowest_of_long_copies_gives_way_to_a_newcomer() {
        let (mut streams, _) = streams(9);
        let begin = |streams: &Streams, bytes: usize| {
            let makes = move |sender: StreamSender<String>| async move {
                sender.paced().send("piece".to_owned(), bytes).await?;
                std::future::pending().await
            };
            Ok::<_, Error>(streams.start(streams.place(StreamPurpose::Copies)?, |_| None, makes))
        };
        let mut copies = Vec::new();
        for copy in 0..COPIES_MAX {
            // The third is the slowest.
            let mut items = begin(&streams, if copy == 2 { 1_000 } else { 1_000_000 }).unwrap();
            assert_eq!(items.next().await.unwrap().unwrap(), "piece");
            copies.push(items);
        }
        // What came may be counted a moment later.
        tokio::time::timeout(Duration::from_secs(20), async {
            let counted =
                |seat: &Weak<Seat>| seat.upgrade().unwrap().bytes.load(Ordering::Relaxed) > 0;
            while !streams.copies.lock().iter().all(counted) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .unwrap();
        assert_eq!(begin(&streams, 1).unwrap_err().code, Code::Overloaded, "none has lasted long");
        streams.copy_yields_after = Duration::ZERO;
        let newcomer = begin(&streams, 1_000_000).unwrap();
        assert!(copies[2].next().await.unwrap().is_err(), "it is cut");
        drop(copies.remove(2));
        streams.copy_yields_after = COPY_YIELDS_AFTER;
        assert_eq!(
            begin(&streams, 1).unwrap_err().code,
            Code::Overloaded,
            "its place is another's"
        );
        for items in &mut copies {
            assert!(items.next().now_or_never().is_none(), "the others go on");
        }
        drop(newcomer);
        assert!(begin(&streams, 1).is_ok());
    }

    #[tokio::test]
    async fn a_stop_ends_what_runs_and_what_begins() {
        let (streams, metrics) = streams(9);
        let waits = |_sender: StreamSender<String>| std::future::pending();
        let running = start(&streams, code, waits);
        assert_eq!(metrics.streams.get(), 1);
        streams.stop();
        assert_eq!(read(running).await, [Ok("unavailable".to_owned())]);
        let begun = start(&streams, code, waits);
        assert_eq!(read(begun).await, [Ok("unavailable".to_owned())]);
        assert_eq!(metrics.streams.get(), 0);
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_the_reader_goes() {
        let (streams, _) = streams(1);
        let (gone, maker_gone) = oneshot::channel::<()>();
        let waits = |sender: StreamSender<String>| async move {
            let _held = (sender, gone);
            std::future::pending().await
        };
        let items = start(&streams, code, waits);
        let idle = |_sender: StreamSender<String>| std::future::pending();
        assert_eq!(streams.place(StreamPurpose::Callers).unwrap_err().code, Code::Overloaded);
        let copies: Vec<_> =
            (0..COPIES_MAX).map(|_| streams.place(StreamPurpose::Copies).unwrap()).collect();
        assert_eq!(streams.place(StreamPurpose::Copies).unwrap_err().code, Code::Overloaded);
        let readers: Vec<_> = (0..LOG_READERS_MAX)
            .map(|_| streams.place(StreamPurpose::LogReaders).unwrap())
            .collect();
        assert_eq!(streams.place(StreamPurpose::LogReaders).unwrap_err().code, Code::Overloaded);
        streams.place(StreamPurpose::Shipping).unwrap();
        drop((items, copies, readers));
        assert!(maker_gone.await.is_err(), "its maker ends with it");
        drop(start(&streams, code, idle));
    }
}
