//! The listener of RESP: its connections are counted with all others, and end by the same deadlines.
//! What a client asks is `wire::resp`'s business.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::connections::{Connection, Connections, WatchedSocket};
use super::{ACCEPT_PAUSE, ServeError, ServingThreads};
use crate::config::RespSection;
use crate::wire::{Came, Pause, RespConversation, RespFront};

/// What is read and dropped of a client that was told that its connection ends, so that it sees
/// that; and for how long.
const DROPPED_BYTES_MAX: usize = 1 << 20;
const DROPPING_MAX: Duration = Duration::from_secs(1);

/// What every connection is served with.
#[derive(Debug, Clone)]
pub struct RespParts {
    pub front: Arc<RespFront>,
    pub stopping: watch::Receiver<bool>,
}

/// The listener and its address, where one is wanted.
pub fn listen(settings: &RespSection) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    let Some(address) = settings.listen else {
        return Ok(None);
    };
    let listen_error = |source| ServeError::Resp { address, source };
    let listener = super::listen(address).map_err(listen_error)?;
    let address = listener.local_addr().map_err(listen_error)?;
    Ok(Some((listener, address)))
}

/// Takes connections for ever; where there is no listener, none.
pub async fn accept(
    listener: &Option<(TcpListener, SocketAddr)>,
    settings: &RespSection,
    parts: &RespParts,
    connections: &Arc<Connections>,
    threads: &ServingThreads,
) {
    let Some((listener, _)) = listener else {
        return std::future::pending().await;
    };
    let idle_timeout = Duration::from_millis(settings.idle_timeout_ms);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // When all are busy the newcomer is closed; otherwise the idlest makes room.
                let Some(connection) = connections.admit_for(idle_timeout) else {
                    continue;
                };
                let RespParts { front, stopping } = parts.clone();
                threads.serve(stream, move |stream| converse(stream, connection, front, stopping));
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                connections.close_idlest();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection from its first byte to its end.
pub async fn converse(
    stream: TcpStream,
    connection: Arc<Connection>,
    front: Arc<RespFront>,
    stopping: watch::Receiver<bool>,
) {
    // Answers are written together, so waiting for more to send gains nothing.
    let _ = stream.set_nodelay(true);
    let socket = WatchedSocket::new(stream, connection.clone());
    tokio::select! {
        () = talk(socket, &connection, front, stopping) => {}
        () = connection.closed() => {}
    }
}

async fn talk(
    mut socket: WatchedSocket,
    connection: &Arc<Connection>,
    front: Arc<RespFront>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut talk = RespConversation::new(front);
    let (mut busy, mut ended) = (None, false);
    loop {
        let mut pause = Pause::Starved;
        if talk.has_work() {
            busy.get_or_insert_with(|| connection.begin_request());
            pause = talk.go_on().await;
        }
        if !talk.out().is_empty() {
            if socket.write_all(talk.out()).await.is_err() {
                return;
            }
            talk.sent();
        }
        match pause {
            Pause::Turn => {
                tokio::task::yield_now().await;
                continue;
            }
            Pause::Cut => return,
            Pause::Over => {
                let _dropping = connection.begin_drain();
                drop_rest(&mut socket).await;
                return;
            }
            Pause::Starved | Pause::Waits => {}
        }
        if !talk.is_waiting() {
            busy = None;
            connection.note_amid(talk.is_amid());
        }
        let reads = pause == Pause::Starved && !ended && !*stopping.borrow();
        if !reads && !talk.is_waiting() {
            return;
        }
        tokio::select! {
            came = talk.wait(&mut socket, reads) => match came {
                Ok(Came::Bytes | Came::Answers) => {}
                Ok(Came::End) => ended = true,
                Err(_gone) => return,
            },
            _ = stopping.changed(), if reads => {}
        }
    }
}

/// A client that sends all before it reads would not see its last answer if the connection were
/// closed on it.
async fn drop_rest(socket: &mut WatchedSocket) {
    if socket.shutdown().await.is_err() {
        return;
    }
    let mut piece = [0; 4 * 1024];
    let dropping = async {
        let mut dropped = 0;
        while dropped < DROPPED_BYTES_MAX {
            match socket.read(&mut piece).await {
                Ok(count) if count > 0 => dropped += count,
                _ => return,
            }
        }
    };
    let _ended = tokio::time::timeout(DROPPING_MAX, dropping).await;
}
