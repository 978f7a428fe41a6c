//! The listener: it accepts connections up to a bound, speaks HTTP/1.1 and HTTP/2 on them, and on
//! SIGTERM or SIGINT stops accepting and lets what is under way finish.

mod connections;
mod http1;
mod resp;
mod rewound;
mod serving_threads;
mod unread;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderValue, header};
use guanxi_embedded::store::disk::OPEN_TABLES_MAX;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use self::connections::{Connection, Connections, GuardedBody, WatchedSocket};
use self::http1::{Conversation, Ended};
use self::rewound::RewoundSocket;
pub use self::serving_threads::ServingThreads;
use crate::config::{HttpSection, RespSection};
use crate::service::Served;
use crate::wire::{Front, Streamed};

/// Header fields of one request: a feed's client sends a dozen.
const HEADER_FIELDS_MAX: usize = 100;
/// Connections that the system may hold for us until we accept them.
const BACKLOG: u32 = 1_024;
/// A failed accept (no descriptors left) is tried again after this.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How often connections are looked at; timeouts are late by at most this.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// How often the end of the drain is looked for.
const DRAIN_INTERVAL: Duration = Duration::from_millis(5);
/// Open files of other sorts than connections and tables: the log's, the store's own and those
/// that it merges, a copy that is being taken.
const OTHER_FILES: u64 = 124;
/// Open files that the store and the log need beside the connections.
pub const FILES_RESERVED: u64 = OPEN_TABLES_MAX as u64 + OTHER_FILES;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}: {source}; choose another address with --listen")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot listen on {address}: {source}; choose another address with --resp")]
    Resp { address: SocketAddr, source: io::Error },
    #[error("cannot wait for signals: {0}")]
    Signals(io::Error),
}

/// Serves until a signal asks to stop, then drains.
pub async fn serve(
    settings: &HttpSection,
    resp: &RespSection,
    served: Served,
    threads: ServingThreads,
) -> Result<(), ServeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(ServeError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(ServeError::Signals)?;
    let listen_error = |source| ServeError::Listen { address: settings.listen, source };
    let listener = listen(settings.listen).map_err(listen_error)?;
    let address = listener.local_addr().map_err(listen_error)?;
    let resp_listener = resp::listen(resp)?;
    let connections = Connections::new(settings, connections_max(settings), served.metrics.clone());
    let crew = served.deployment.crew().clone();
    let front = Arc::new(Front::new(settings, served));
    let (stop, stopping) = watch::channel(false);
    let watching = connections.clone().watch(WATCH_INTERVAL);
    let watcher = crew.task("guanxi-connections", &Handle::current(), || true, watching);

    if let Some((_, address)) = &resp_listener {
        println!("guanxi speaks RESP on {address}");
    }
    println!("guanxi is ready on http://{address}");
    tracing::info!(%address, "ready");
    let signalled = pin!(either(&mut terminate, &mut interrupt));
    let resp_front = Arc::new(front.resp(settings));
    let resp_parts = resp::RespParts { front: resp_front, stopping: stopping.clone() };
    let speaker = Arc::new(Speaker {
        front: front.clone(),
        hyper: hyper(settings),
        header_bytes_max: settings.header_bytes_max,
        stopping,
    });
    let accepting = accept(&listener, &speaker, &connections, &threads);
    let resp_accepting = resp::accept(&resp_listener, resp, &resp_parts, &connections, &threads);
    tokio::select! {
        () = accepting => {}
        () = resp_accepting => {}
        () = signalled => {}
    }
    drop((listener, resp_listener));
    tracing::info!("stopping: no new connections, finishing what is under way");
    front.stop();
    let _ = stop.send(true);
    drain(&connections, Duration::from_millis(settings.drain_timeout_ms)).await;
    watcher.abort();
    threads.stop();
    Ok(())
}

/// As many descriptors as the system lets us have, so that connections find room.
pub fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it was");
    }
}

fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// What the store and the log get of so many descriptors: no more than half of few.
fn files_reserved(files: u64) -> u64 {
    FILES_RESERVED.min(files / 2)
}

/// Tables that the store may keep open; few where the system gives few descriptors.
pub fn open_tables_max() -> usize {
    let tables = files_reserved(open_files_limit()).saturating_sub(OTHER_FILES);
    usize::try_from(tables).unwrap_or(OPEN_TABLES_MAX).max(1)
}

/// The setting, or less where the system does not give so many descriptors.
fn connections_max(settings: &HttpSection) -> usize {
    let files = open_files_limit();
    let room = usize::try_from(files - files_reserved(files)).unwrap_or(usize::MAX);
    let room = room.max(1);
    if room < settings.connections_max {
        tracing::warn!(
            open_files = files,
            connections_max = room,
            "the limit of open files lowers http.connections_max"
        );
    }
    settings.connections_max.min(room)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn either(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

async fn accept(
    listener: &TcpListener,
    speaker: &Arc<Speaker>,
    connections: &Arc<Connections>,
    threads: &ServingThreads,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // When all are busy the newcomer is closed; otherwise the idlest makes room.
                let Some(connection) = connections.admit() else {
                    continue;
                };
                let speaker = speaker.clone();
                threads.serve(stream, move |stream| speaker.converse(stream, connection));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                connections.close_idlest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Slow and idle connections are `Connections`' business, for both protocols alike, so hyper's
/// own timers stay off.
fn hyper(settings: &HttpSection) -> auto::Builder<TokioExecutor> {
    let mut protocol = auto::Builder::new(TokioExecutor::new());
    let header_bytes_max = u32::try_from(settings.header_bytes_max).unwrap_or(u32::MAX);
    protocol
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(HEADER_FIELDS_MAX)
        .max_buf_size(settings.header_bytes_max)
        .writev(false);
    protocol
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(settings.streams_per_connection_max)
        .max_header_list_size(header_bytes_max);
    protocol
}

/// What every connection is served with.
struct Speaker {
    front: Arc<Front>,
    hyper: auto::Builder<TokioExecutor>,
    header_bytes_max: usize,
    stopping: watch::Receiver<bool>,
}

impl Speaker {
    /// One connection from its first byte to its end.
    async fn converse(self: Arc<Speaker>, stream: TcpStream, connection: Arc<Connection>) {
        // Answers are written whole, so waiting for more to send gains nothing.
        let _ = stream.set_nodelay(true);
        let mut socket = WatchedSocket::new(stream, connection.clone());
        let mut closed = pin!(connection.closed());
        let conversation = Conversation {
            connection: &connection,
            front: &self.front,
            stopping: &self.stopping,
            header_bytes_max: self.header_bytes_max,
        };
        if let Ended::HandedOver(came) = conversation.go_on(&mut socket, closed.as_mut()).await {
            let socket = RewoundSocket::new(came, socket);
            self.go_on_with_hyper(socket, &connection, closed).await;
        }
    }

    /// All of HTTP/1.1 and HTTP/2.
    async fn go_on_with_hyper(
        &self,
        socket: RewoundSocket,
        connection: &Arc<Connection>,
        mut closed: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) {
        let service = service_fn(|request: Request<Incoming>| {
            let guard = connection.begin_request();
            let version = request.version();
            let (request, uninvited) = unread::reading_on(request, connection, &self.stopping);
            let front = self.front.clone();
            async move {
                let (mut answer, place) = front.answer(request).await;
                if let Some(rest) = uninvited.take() {
                    // Its client may send it or not, and nothing behind it could be told from it.
                    let close = HeaderValue::from_static("close");
                    answer.headers_mut().insert(header::CONNECTION, close);
                    // Nobody looks at this connection again before the answer's head is written.
                    drop(rest);
                }
                let held = match answer.extensions().get::<Streamed>() {
                    Some(Streamed) => guard.streams(),
                    None => guard.answered(place),
                };
                Ok::<_, Infallible>(answer.map(|body| GuardedBody::new(body, held, version)))
            }
        });
        let io = TokioIo::new(socket);
        let mut conversation = pin!(self.hyper.serve_connection(io, service));
        let mut told = self.stopping.clone();
        let mut draining = *told.borrow_and_update();
        if draining {
            conversation.as_mut().graceful_shutdown();
        }
        loop {
            tokio::select! {
                // What a client did wrong on the wire is its own affair; it has got its answer.
                _ = conversation.as_mut() => return,
                () = &mut closed => return,
                _ = told.changed(), if !draining => {
                    draining = true;
                    conversation.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

/// Waits until every connection has ended, for at most so long.
async fn drain(connections: &Arc<Connections>, at_most: Duration) {
    let waiting = async {
        loop {
            connections.close_all_idle();
            if connections.open() == 0 {
                return;
            }
            tokio::time::sleep(DRAIN_INTERVAL).await;
        }
    };
    if tokio::time::timeout(at_most, waiting).await.is_err() {
        let open = connections.open();
        tracing::warn!(open, "connections were still busy when the drain ended");
    }
}
