//! What the answers that wait to be read may take together. Beyond it a read is refused instead of
//! answered; what a write has done is always told, so a write whose answer may be long is refused
//! before it is done. Short answers are never counted: the bound on requests bounds them, too.
//! Streams have bounds of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use guanxi_model::{Code, Error};
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream, StreamBody};
use tokio::sync::OwnedSemaphorePermit;

use super::Streamed;
use super::http::problem;
use crate::config::HttpSection;

/// Of each answer so many bytes are not counted.
const UNCOUNTED_BYTES: usize = 16 * 1024;

/// The bytes that all answers share.
#[derive(Debug, Clone)]
pub struct AnswerBudget {
    /// Below zero where writes were answered beyond it.
    left: Arc<AtomicI64>,
}

/// What a request and its answer hold until the answer has been read.
#[derive(Debug, Default)]
pub struct AnswerPlace {
    _request: Option<OwnedSemaphorePermit>,
    _bytes: Option<HeldBytes>,
}

#[derive(Debug)]
struct HeldBytes {
    left: Arc<AtomicI64>,
    bytes: i64,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

impl AnswerBudget {
    pub fn new(settings: &HttpSection) -> AnswerBudget {
        let bytes = i64::try_from(settings.answers_bytes_max).unwrap_or(i64::MAX);
        AnswerBudget { left: Arc::new(AtomicI64::new(bytes)) }
    }

    /// Refuses a write whose answer may be long as long as nothing is left.
    pub fn admit_long_write(&self) -> Result<(), Error> {
        match self.left.load(Ordering::Relaxed) > 0 {
            true => Ok(()),
            false => Err(no_room()),
        }
    }

    /// The answer with its place, or a refusal, still unwritten, if it is a read's and finds no room.
    pub fn place(
        &self,
        answer: Response,
        request: Option<OwnedSemaphorePermit>,
        may_write: bool,
    ) -> (Response, AnswerPlace) {
        if answer.extensions().get::<Streamed>().is_some() {
            // It may last for days; its own bound counts it.
            return (answer, AnswerPlace::default());
        }
        let (answer, bytes) = measured(answer);
        match self.hold(bytes.saturating_sub(UNCOUNTED_BYTES), may_write) {
            Ok(held) => (answer, AnswerPlace { _request: request, _bytes: held }),
            Err(error) => (problem::answer(error), AnswerPlace { _request: request, _bytes: None }),
        }
    }

    /// A share for answers that are sent together, one behind the other.
    pub fn share(&self) -> AnswerShare {
        AnswerShare { budget: self.clone(), held: Vec::new(), bytes: 0 }
    }

    fn hold(&self, bytes: usize, may_write: bool) -> Result<Option<HeldBytes>, Error> {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        if bytes == 0 {
            return Ok(None);
        }
        let take =
            |left: i64| Some(left.saturating_sub(bytes)).filter(|left| may_write || *left >= 0);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            Ok(_) => Ok(Some(HeldBytes { left: self.left.clone(), bytes })),
            Err(_) => Err(no_room()),
        }
    }
}

/// What the answers of one connection take until they are sent.
#[derive(Debug)]
pub struct AnswerShare {
    budget: AnswerBudget,
    held: Vec<HeldBytes>,
    bytes: usize,
}

impl AnswerShare {
    /// Has the budget's part for so many bytes in all, or refuses the last of them, unless they tell
    /// what a write has done.
    pub fn hold(&mut self, bytes: usize, may_write: bool) -> Result<(), Error> {
        let counted = bytes.saturating_sub(UNCOUNTED_BYTES);
        if counted > self.bytes {
            self.held.extend(self.budget.hold(counted - self.bytes, may_write)?);
            self.bytes = counted;
        }
        Ok(())
    }

    /// All of it was sent.
    pub fn release(&mut self) {
        self.held.clear();
        self.bytes = 0;
    }
}

fn no_room() -> Error {
    Error::new(
        Code::Overloaded,
        "the answers that nobody has read yet take all the room there is for them; try again in a \
         moment, or ask for less at once",
    )
}

/// The answer, and how many bytes its body has. A message of gRPC does not tell; it is made when it
/// is first asked for, at once and as a whole, and what is not there at once has no end either.
fn measured(answer: Response) -> (Response, usize) {
    if let Some(bytes) = answer.body().size_hint().exact() {
        return (answer, usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    let (head, mut body) = answer.into_parts();
    let (body, bytes) = match body.frame().now_or_never() {
        None => (body, 0),
        Some(None) => (Body::empty(), 0),
        Some(Some(frame)) => {
            let data = frame.as_ref().ok().and_then(|frame| frame.data_ref());
            let bytes = data.map_or(0, Bytes::len);
            let frames = stream::iter([frame]).chain(BodyStream::new(body));
            (Body::new(StreamBody::new(frames)), bytes)
        }
    };
    (Response::from_parts(head, body), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: usize) -> Response {
        Response::new(Body::from(vec![b' '; bytes]))
    }

    fn unmeasured(pieces: &'static [&'static [u8]]) -> Response {
        let pieces = pieces.iter().map(|piece| Ok::<_, Error>(Bytes::from_static(piece)));
        Response::new(Body::from_stream(stream::iter(pieces)))
    }

    #[test]
    fn long_answers_share_the_room_and_writes_are_always_answered() {
        let settings = HttpSection { answers_bytes_max: 1 << 20, ..HttpSection::default() };
        let budget = AnswerBudget::new(&settings);
        let left = || budget.left.load(Ordering::Relaxed);
        let (_, short) = budget.place(answer(UNCOUNTED_BYTES), None, false);
        assert_eq!(left(), 1 << 20);
        let (_, long) = budget.place(answer(UNCOUNTED_BYTES + (1 << 20)), None, false);
        assert_eq!(left(), 0);
        let (refused, _place) = budget.place(answer(UNCOUNTED_BYTES + 1), None, false);
        assert!(!refused.status().is_success());
        assert_eq!(budget.admit_long_write().unwrap_err().code, Code::Overloaded);
        let (written, told) = budget.place(answer(UNCOUNTED_BYTES + 5), None, true);
        assert!(written.status().is_success());
        assert_eq!(left(), -5, "what a write was told is counted, too");
        drop((short, long));
        assert_eq!(left(), (1 << 20) - 5);
        assert!(budget.admit_long_write().is_ok());
        drop(told);
        assert_eq!(left(), 1 << 20);
    }

    #[tokio::test]
    async fn what_does_not_tell_its_length_is_measured_and_goes_on() {
        let settings = HttpSection { answers_bytes_max: 1 << 20, ..HttpSection::default() };
        let budget = AnswerBudget::new(&settings);
        static LONG: [u8; UNCOUNTED_BYTES + 8] = [b' '; UNCOUNTED_BYTES + 8];
        static PIECES: [&[u8]; 2] = [&LONG, b"end"];
        let (answer, place) = budget.place(unmeasured(&PIECES), None, false);
        assert_eq!(budget.left.load(Ordering::Relaxed), (1 << 20) - 8);
        let whole = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(whole.len(), LONG.len() + 3);
        drop(place);
        assert_eq!(budget.left.load(Ordering::Relaxed), 1 << 20);
        let pending = Body::from_stream(stream::pending::<Result<Bytes, Error>>());
        let (_, _place) = budget.place(Response::new(pending), None, false);
        assert_eq!(budget.left.load(Ordering::Relaxed), 1 << 20, "it is not waited for");
    }
}
