//! Answers of many messages, on the streams of the service: their places, stalls and ends.

use std::future::Future;
use std::pin::Pin;

use futures_util::{Stream, StreamExt, stream};
use guanxi_model::{Code, Error};
use tonic::{Response, Status};

use super::{GrpcAnswered, Services, status};
use crate::service::Caller;
use crate::service::streams::{BrokenStream, StreamPlace, StreamPurpose, StreamSender};
use crate::wire::Streamed;

pub type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
/// Messages that are sent together, or why there are no more.
pub type StreamItem<T> = Result<Vec<T>, Error>;

/// A place for a stream, which is taken before any work is done for it.
pub fn place(services: &Services, purpose: StreamPurpose) -> Result<StreamPlace, Status> {
    services.app.streams.place(purpose).map_err(status::refusal)
}

/// Starts a stream whose maker sends messages; an error of the maker ends it as a status.
pub fn start<T, Making>(
    caller: &Caller,
    place: StreamPlace,
    make: impl FnOnce(StreamSender<StreamItem<T>>) -> Making,
) -> GrpcAnswered<Messages<T>>
where
    T: Send + Unpin + 'static,
    Making: Future<Output = Result<(), Error>> + Send + 'static,
{
    let last = |error: &Error| Some(Err(error.clone()));
    let items = caller.app.streams.start(place, last, make);
    let request_id = caller.context.request_id.clone();
    let messages = items.flat_map(move |item| {
        let item = item.unwrap_or_else(|BrokenStream| {
            Err(Error::new(Code::Internal, "the stream broke off; the service's log says why"))
        });
        stream::iter(match item {
            Ok(messages) => messages.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(status::written(&error, &request_id))],
        })
    });
    let mut answer = Response::new(Box::pin(messages) as Messages<T>);
    answer.extensions_mut().insert(Streamed);
    Ok(answer)
}
