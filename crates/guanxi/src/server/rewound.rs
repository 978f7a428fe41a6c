//! A socket of which somebody has read already: what came is read once more, then the rest.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::connections::WatchedSocket;

#[derive(Debug)]
pub struct RewoundSocket {
    came: Bytes,
    socket: WatchedSocket,
}

impl RewoundSocket {
    pub fn new(came: Bytes, socket: WatchedSocket) -> RewoundSocket {
        RewoundSocket { came, socket }
    }
}

impl AsyncRead for RewoundSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.came.is_empty() {
            return Pin::new(&mut self.socket).poll_read(context, buffer);
        }
        let bytes = self.came.len().min(buffer.remaining());
        buffer.put_slice(&self.came[..bytes]);
        self.came.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for RewoundSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}
