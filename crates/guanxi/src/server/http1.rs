//! HTTP/1.1 as nearly every request speaks it: a head, a body of a stated length, one answer. They are
//! read from one buffer of the connection and answered from another, which costs about half of what
//! a server for all of HTTP does. It knows no more than that: whatever is not so plain, or is wrong,
//! goes to hyper with every byte that came of it, and so does all that follows on the connection.

mod head;
mod reply;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use self::head::{Head, HeadReader, Parsed};
use super::connections::{Connection, RequestGuard, WatchedSocket};
use crate::wire::{AnswerPlace, Front, RouteMatch};

/// What is asked of the socket at once; most requests are smaller.
const READ_BYTES: usize = 4 * 1024;
/// Longer bodies are hyper's, which reads them piece by piece.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// Answers to requests that came together are sent together, up to about so much.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// How long the rest of a body is waited for here. Then it is a slow one, whose time hyper's readers
/// bound.
const REST_WAIT: Duration = Duration::from_millis(250);

/// How a conversation ended here.
pub enum Ended {
    Over,
    /// The rest of it is hyper's, beginning with these bytes.
    HandedOver(Bytes),
}

/// One connection's conversation.
pub struct Conversation<'a> {
    pub connection: &'a Arc<Connection>,
    pub front: &'a Front,
    pub stopping: &'a watch::Receiver<bool>,
    pub header_bytes_max: usize,
}

/// What was read and not yet understood, and what was answered and not yet sent.
struct Buffers {
    input: BytesMut,
    output: Vec<u8>,
    /// Held until the answers in `output` have left.
    unsent: Vec<(AnswerPlace, RequestGuard)>,
}

/// The connection has ended: its client is gone, or was told to go.
struct Gone;

impl Conversation<'_> {
    pub async fn go_on(
        &self,
        socket: &mut WatchedSocket,
        mut closed: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Ended {
        let mut heads = HeadReader::new(self.header_bytes_max);
        let mut buffers =
            Buffers { input: BytesMut::new(), output: Vec::new(), unsent: Vec::new() };
        tokio::select! {
            biased;
            ended = self.take_turns(socket, &mut heads, &mut buffers) => match ended {
                Ok(()) => Ended::HandedOver(buffers.input.freeze()),
                Err(Gone) => Ended::Over,
            },
            () = &mut closed => Ended::Over,
        }
    }

    /// Answers one request after the other; returns when one comes that is not for here.
    async fn take_turns(
        &self,
        socket: &mut WatchedSocket,
        heads: &mut HeadReader,
        buffers: &mut Buffers,
    ) -> Result<(), Gone> {
        loop {
            let head = loop {
                match heads.read(&buffers.input) {
                    Parsed::Head(head) => break head,
                    Parsed::Other => return buffers.send(socket).await,
                    Parsed::Unfinished => {
                        buffers.send(socket).await?;
                        buffers.receive(socket).await?;
                    }
                }
            };
            let Some((request, found)) = self.whole(socket, heads, &head, buffers).await? else {
                return buffers.send(socket).await;
            };
            let guard = self.connection.begin_request();
            let (answer, place) = self.front.answer_call(request, found).await;
            let ends = head.closes || *self.stopping.borrow();
            reply::write(answer, ends, &mut buffers.output).await;
            buffers.unsent.push((place, guard));
            if ends {
                buffers.send(socket).await?;
                let _gone = socket.shutdown().await;
                return Err(Gone);
            }
            if buffers.output.len() >= OUTPUT_BYTES_MAX {
                buffers.send(socket).await?;
            }
        }
    }

    /// The request with its whole body, and its call; none where that is not for here.
    async fn whole(
        &self,
        socket: &mut WatchedSocket,
        heads: &HeadReader,
        head: &Head,
        buffers: &mut Buffers,
    ) -> Result<Option<(Request, RouteMatch)>, Gone> {
        let Some(found) = self.front.plain_call(&head.method, heads.path(&buffers.input)) else {
            return Ok(None);
        };
        let bytes = head.bytes + head.body_bytes;
        if head.body_bytes > BODY_BYTES_MAX {
            return Ok(None);
        }
        let held = match self.front.hold_body(head.body_bytes) {
            Ok(held) => held,
            Err(_) => return Ok(None),
        };
        if buffers.input.len() < bytes {
            buffers.send(socket).await?;
            buffers.input.reserve(bytes - buffers.input.len());
            let rest = async {
                while buffers.input.len() < bytes {
                    buffers.receive(socket).await?;
                }
                Ok(())
            };
            match tokio::time::timeout(REST_WAIT, rest).await {
                Ok(read) => read?,
                Err(_slow) => return Ok(None),
            }
        }
        let head_bytes = buffers.input.split_to(head.bytes).freeze();
        let body = buffers.input.split_to(head.body_bytes).freeze();
        let body = if body.is_empty() { Body::empty() } else { Body::from(body) };
        let Some(mut request) = heads.request(head, &head_bytes, body) else {
            // It cannot be: what is refused here was refused when it was read.
            return Err(Gone);
        };
        if let Some(held) = held {
            request.extensions_mut().insert(held);
        }
        Ok(Some((request, found)))
    }
}

impl Buffers {
    async fn receive(&mut self, socket: &mut WatchedSocket) -> Result<(), Gone> {
        self.input.reserve(READ_BYTES);
        match socket.read_buf(&mut self.input).await {
            Ok(1..) => Ok(()),
            Ok(0) | Err(_) => Err(Gone),
        }
    }

    async fn send(&mut self, socket: &mut WatchedSocket) -> Result<(), Gone> {
        if self.output.is_empty() {
            return Ok(());
        }
        let sent = socket.write_all(&self.output).await;
        self.output.clear();
        self.output.shrink_to(OUTPUT_BYTES_MAX);
        self.unsent.clear();
        sent.map_err(|_| Gone)
    }
}
