//! Server reflection, in both versions that clients ask for. Its conversation is a stream of
//! questions, which ends with the deadline of its request.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::map_request;
use bytes::Bytes;
use guanxi_api::proto;
use http_body::Frame;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use super::unpacking;
use crate::service::CallContext;

/// What a question may have, also when it is unpacked: it is a name. So little is not counted of any
/// body.
const QUESTION_BYTES_MAX: usize = 16 * 1024;

/// The routes of reflection; none, which is logged, if the descriptors could not be read.
pub fn router() -> Router {
    let routes = match routes() {
        Ok(routes) => routes.into_axum_router().reset_fallback(),
        Err(error) => {
            tracing::error!(%error, "there is no gRPC reflection: its descriptors are wrong");
            return Router::new();
        }
    };
    routes.layer(map_request(until_deadline))
}

fn routes() -> Result<Routes, Error> {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The details of a status, which no method names.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = unpacking!(builder().build_v1()?).max_decoding_message_size(QUESTION_BYTES_MAX);
    let v1alpha =
        unpacking!(builder().build_v1alpha()?).max_decoding_message_size(QUESTION_BYTES_MAX);
    Ok(Routes::new(v1).add_service(v1alpha))
}

async fn until_deadline(request: Request) -> Request {
    let Some(context) = request.extensions().get::<Arc<CallContext>>() else {
        return request;
    };
    let over = Box::pin(sleep_until(Instant::from_std(context.deadline)));
    request.map(|body| Body::new(Questions { body, over }))
}

/// A request's body that ends when its time is over.
struct Questions {
    body: Body,
    over: Pin<Box<Sleep>>,
}

impl http_body::Body for Questions {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(task) {
            return Poll::Ready(frame);
        }
        self.over.as_mut().poll(task).map(|()| None)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_descriptors_can_be_read() {
        assert!(super::routes().is_ok());
    }
}
