//! The part of a body that nobody reads: its request was answered early, most often with an error.
//! A client that sends all before it reads would never see that answer if the connection were closed
//! on it, so the rest is read on and dropped, for a bounded while. Of a client that waits to be
//! invited it is read only when the answer is on its way: to read earlier would be the invitation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Version, header};
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::connections::Connection;

/// What is dropped of one body; a client that has more to say has not heard for long.
const DROPPED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long one body is dropped: its sender may have a slow way to us.
const DROPPING_MAX: Duration = Duration::from_secs(60);
/// How long nothing may come of it meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// The request with a body that is read on when its reader leaves it, and the place where it is
/// left if its client waits to be invited, and was not.
pub fn reading_on(
    request: Request<Incoming>,
    connection: &Arc<Connection>,
    stopping: &watch::Receiver<bool>,
) -> (Request, Uninvited) {
    let uninvited = Uninvited::default();
    let waits =
        request.version() < Version::HTTP_2 && request.headers().contains_key(header::EXPECT);
    let request = request.map(|body| match body.is_end_stream() {
        true => Body::empty(),
        false => Body::new(Received {
            body: Some(body),
            uninvited: waits.then(|| uninvited.clone()),
            connection: connection.clone(),
            stopping: stopping.clone(),
        }),
    });
    (request, uninvited)
}

/// A body that nobody had begun to read when its request was answered; it is read on when it is
/// taken and dropped.
#[derive(Debug, Clone, Default)]
pub struct Uninvited(Arc<Mutex<Option<Received>>>);

impl Uninvited {
    pub fn take(&self) -> Option<Received> {
        self.0.lock().take()
    }

    fn leave(&self, body: Received) {
        *self.0.lock() = Some(body);
    }
}

#[derive(Debug)]
pub struct Received {
    /// None once it has come to its end.
    body: Option<Incoming>,
    /// Where it is left, as long as its client waits.
    uninvited: Option<Uninvited>,
    connection: Arc<Connection>,
    stopping: watch::Receiver<bool>,
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.uninvited = None;
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let Some(rest) = self.body.take().filter(|body| !body.is_end_stream()) else {
            return;
        };
        let (connection, mut stopping) = (self.connection.clone(), self.stopping.clone());
        if let Some(uninvited) = self.uninvited.take() {
            let body = Some(rest);
            uninvited.leave(Received { body, uninvited: None, connection, stopping });
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let busy = connection.begin_drain();
        runtime.spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(DROPPING_MAX, drop_rest(rest)) => {}
                _ = stopping.wait_for(|stopping| *stopping) => {}
            }
            drop(busy);
        });
    }
}

/// Reads until the end, the bound or silence.
async fn drop_rest(mut rest: Incoming) {
    let mut dropped = 0;
    while let Ok(Some(Ok(frame))) = tokio::time::timeout(SILENCE_MAX, rest.frame()).await {
        dropped += frame.data_ref().map_or(0, Bytes::len);
        if dropped > DROPPED_BYTES_MAX {
            return;
        }
    }
}
