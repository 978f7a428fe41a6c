//! Long answers: watch, export, backup, shipping of the log. Each is made by a task of its own and
//! handed to its reader through a bounded queue, so that whoever reads slowly holds nobody else.
//!
//! A stream has no deadline as a whole. It ends when its maker is done, when its reader goes or
//! takes nothing for too long, and when the service stops. Its end is always told apart from a
//! broken connection: in order, with a last item that says why, or by breaking off. What the items
//! are is the caller's affair; bytes become a body with `reply`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use guanxi_model::{Code, Error};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};

use crate::config::Http;
use crate::telemetry::Metrics;

/// Items that may wait for the reader. The socket's buffer bridges its pauses; this only keeps
/// maker and socket from waiting for one another, and costs each stalled reader's memory.
const QUEUE_ITEMS_MAX: usize = 4;
/// What an item of bytes should not exceed by much, for the same reason.
pub const ITEM_BYTES_TYPICAL: usize = 32 * 1024;

/// All streams of the service: their number is bounded, and they end with it.
#[derive(Debug)]
pub struct Streams {
    places: Arc<Semaphore>,
    places_max: usize,
    stall: Duration,
    stopping: watch::Sender<bool>,
    metrics: Arc<Metrics>,
}

/// Marks an answer whose body is a stream, for whoever watches over connections.
#[derive(Debug, Clone, Copy)]
pub struct Streamed;

impl Streams {
    pub fn new(settings: &Http, metrics: Arc<Metrics>) -> Streams {
        Streams {
            places: Arc::new(Semaphore::new(settings.streams_max)),
            places_max: settings.streams_max,
            stall: Duration::from_millis(settings.stream_stall_timeout_ms),
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

    /// Starts a stream. `make` runs as a task of its own and sends the items; when it fails, is
    /// stalled or the service stops, `last_item` may put the error into a last item, after which
    /// the stream ends in order. Without one it breaks off.
    pub fn start<T, Making>(
        &self,
        last_item: impl FnOnce(&Error) -> Option<T> + Send + 'static,
        make: impl FnOnce(Sender<T>) -> Making,
    ) -> Result<Items<T>, Error>
    where
        T: Send + 'static,
        Making: Future<Output = Result<(), Error>> + Send + 'static,
    {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let max = self.places_max;
            let message = format!("all {max} streams that the service takes are open; try later");
            Error::new(Code::Overloaded, message)
        })?;
        let (to_reader, from_maker) = mpsc::channel(QUEUE_ITEMS_MAX);
        let (end, ending) = oneshot::channel();
        let stalled = self.metrics.streams_stalled.clone();
        let making = make(Sender { queue: to_reader.clone(), stall: self.stall, stalled });
        let mut stopping = self.stopping.subscribe();
        tokio::spawn(async move {
            let made = tokio::select! {
                made = making => made,
                _ = stopping.wait_for(|stopping| *stopping) => Err(stopped()),
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
        let open = Open::new(self.metrics.streams.clone(), place);
        Ok(Items { queue: from_maker, ending: Some(ending), _open: open })
    }
}

/// An answer whose body is this stream of bytes.
pub fn reply(content_type: &'static str, headers: HeaderMap, items: Items<Bytes>) -> Response {
    let mut answer = Response::new(Body::from_stream(items));
    *answer.headers_mut() = headers;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer.extensions_mut().insert(Streamed);
    answer
}

/// The maker's end of a stream.
#[derive(Debug)]
pub struct Sender<T> {
    queue: mpsc::Sender<T>,
    stall: Duration,
    stalled: Counter,
}

impl<T> Sender<T> {
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

/// The reader's end of a stream.
#[derive(Debug)]
pub struct Items<T> {
    queue: mpsc::Receiver<T>,
    /// None once the stream has ended.
    ending: Option<oneshot::Receiver<End<T>>>,
    _open: Open,
}

#[derive(Debug)]
enum End<T> {
    InOrder(Option<T>),
    Broken,
}

/// The stream ended before everything was sent; the service's log says why.
#[derive(Debug, thiserror::Error)]
#[error("the stream broke off")]
pub struct Broken;

impl<T: Unpin> Stream for Items<T> {
    type Item = Result<T, Broken>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, Broken>>> {
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
            End::Broken => Some(Err(Broken)),
        })
    }
}

/// Counts the stream as open and keeps its place until it is dropped.
#[derive(Debug)]
struct Open {
    gauge: Gauge,
    _place: OwnedSemaphorePermit,
}

impl Open {
    fn new(gauge: Gauge, place: OwnedSemaphorePermit) -> Open {
        gauge.inc();
        Open { gauge, _place: place }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

fn stopped() -> Error {
    let message = "the service is stopping, so the stream ends; read on from the last item that \
                   came when it is back";
    Error::new(Code::Unavailable, message)
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;
    use crate::config::Mode;

    fn streams(streams_max: usize) -> (Streams, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new(Mode::Embedded));
        let settings = Http { streams_max, stream_stall_timeout_ms: 50, ..Http::default() };
        (Streams::new(&settings, metrics.clone()), metrics)
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
        let one = |sender: Sender<String>| async move { sender.send("one".to_owned()).await };
        let fails = |sender: Sender<String>| async move {
            sender.send("one".to_owned()).await?;
            Err(Error::new(Code::PositionExpired, "gone"))
        };
        let panics = |sender: Sender<String>| async move {
            sender.send("one".to_owned()).await?;
            panic!("a planted mistake")
        };
        let said = |text: &str| Ok(text.to_owned());
        let broken = || Err("the stream broke off".to_owned());
        let items = streams.start(code, one).unwrap();
        assert_eq!(read(items).await, [said("one")]);
        let items = streams.start(code, fails).unwrap();
        assert_eq!(read(items).await, [said("one"), said("position_expired")]);
        let items = streams.start(|_| None, fails).unwrap();
        assert_eq!(read(items).await, [said("one"), broken()]);
        let items = streams.start(code, panics).unwrap();
        assert_eq!(read(items).await, [said("one"), broken()]);
    }

    #[tokio::test]
    async fn a_stalled_reader_finds_the_queue_and_the_reason() {
        let (streams, metrics) = streams(9);
        let endless = |sender: Sender<String>| async move {
            loop {
                sender.send("item".to_owned()).await?;
            }
        };
        let items = streams.start(code, endless).unwrap();
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
    async fn a_stop_ends_what_runs_and_what_begins() {
        let (streams, metrics) = streams(9);
        let waits = |_sender: Sender<String>| std::future::pending();
        let running = streams.start(code, waits).unwrap();
        assert_eq!(metrics.streams.get(), 1);
        streams.stop();
        assert_eq!(read(running).await, [Ok("unavailable".to_owned())]);
        let begun = streams.start(code, waits).unwrap();
        assert_eq!(read(begun).await, [Ok("unavailable".to_owned())]);
        assert_eq!(metrics.streams.get(), 0);
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_the_reader_goes() {
        let (streams, _) = streams(1);
        let (gone, maker_gone) = oneshot::channel::<()>();
        let waits = |sender: Sender<String>| async move {
            let _held = (sender, gone);
            std::future::pending().await
        };
        let items = streams.start(code, waits).unwrap();
        let idle = |_sender: Sender<String>| std::future::pending();
        assert_eq!(streams.start(code, idle).unwrap_err().code, Code::Overloaded);
        drop(items);
        assert!(maker_gone.await.is_err(), "its maker ends with it");
        streams.start(code, idle).unwrap();
    }
}
