//! What the bodies of all requests under way may take together. Beyond it a body is refused before
//! it is read, or in the middle when it came without its length. Short bodies are always taken, so
//! that nobody who sends long ones keeps ordinary calls out.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use guanxi_model::{Code, Error};
use http_body::{Body as _, Frame, SizeHint};

use crate::config::HttpSection;

/// Of each body so many bytes are not counted: the bound on requests bounds them, too.
const UNCOUNTED_BYTES: usize = 16 * 1024;

/// The bytes that all bodies share.
#[derive(Debug)]
pub struct BodyBudget {
    left: AtomicUsize,
    body_bytes_max: usize,
}

impl BodyBudget {
    pub fn new(settings: &HttpSection) -> Arc<BodyBudget> {
        let (left, body_bytes_max) = (settings.bodies_bytes_max, settings.body_bytes_max);
        Arc::new(BodyBudget { left: AtomicUsize::new(left), body_bytes_max })
    }

    /// A share for a body that is about to be read, unless it is known to find no room. One that is
    /// too large for any call is for the call to refuse.
    pub fn share(self: &Arc<BodyBudget>, body: &Body) -> Result<Arc<BodyShare>, Error> {
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let counted = length.filter(|length| *length <= self.body_bytes_max);
        let counted = counted.unwrap_or(0).saturating_sub(UNCOUNTED_BYTES);
        match counted <= self.left.load(Ordering::Relaxed) {
            true => Ok(self.empty_share()),
            false => Err(no_room()),
        }
    }

    /// The share of a body of this length that somebody is about to read whole; none where it is too
    /// short to be counted.
    pub fn hold(self: &Arc<BodyBudget>, bytes: usize) -> Result<Option<HeldBody>, Error> {
        if counted(bytes) == 0 {
            return Ok(None);
        }
        let share = self.empty_share();
        match share.take(bytes) {
            true => Ok(Some(HeldBody { _share: share })),
            false => Err(no_room()),
        }
    }

    /// A share for what comes without a head, piece by piece.
    pub fn open_share(self: &Arc<BodyBudget>) -> Arc<BodyShare> {
        self.empty_share()
    }

    fn empty_share(self: &Arc<BodyBudget>) -> Arc<BodyShare> {
        Arc::new(BodyShare {
            budget: self.clone(),
            bytes: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
        })
    }
}

fn no_room() -> Error {
    Error::new(
        Code::Overloaded,
        "the bodies of requests under way take all the room there is for them; try again in a \
         moment, or send less at once",
    )
}

/// Goes with a request whose body was counted when it was read.
#[derive(Debug, Clone)]
pub struct HeldBody {
    _share: Arc<BodyShare>,
}

/// What one body takes, until its request is done.
#[derive(Debug)]
pub struct BodyShare {
    budget: Arc<BodyBudget>,
    /// All that came of it.
    bytes: AtomicUsize,
    /// What it has of the budget.
    held: AtomicUsize,
    refused: AtomicBool,
}

impl BodyShare {
    /// The body, whose pieces are counted as they come. Of gRPC's calls with `one_message` no more
    /// than that is read: they would wait for the body's end, and keep the message meanwhile. One
    /// that `is_packed` takes when it is whole, and about to be unpacked, all that a message may,
    /// until it is known what it does (`unpacked`).
    pub fn counting(self: &Arc<BodyShare>, body: Body, one_message: bool, is_packed: bool) -> Body {
        let message = one_message.then(OneMessage::default);
        Body::new(CountedBody { body, share: self.clone(), message, is_packed })
    }

    /// Why the body ended early, if it found no room.
    pub fn refusal(&self) -> Option<Error> {
        self.refused.load(Ordering::Relaxed).then(no_room)
    }

    /// Gives back what a packed message might have taken, and does not.
    pub fn unpacked(&self, message_bytes: usize) {
        self.shrink(self.bytes.load(Ordering::Relaxed).max(message_bytes));
    }

    /// Has the budget's part for so many bytes in all; false when there is no room for them.
    pub fn holds(&self, bytes: usize) -> bool {
        self.hold(bytes)
    }

    /// Gives back what is more than these bytes need.
    pub fn shrink(&self, bytes: usize) {
        let before = self.held.fetch_min(counted(bytes), Ordering::Relaxed);
        let given_back = before.saturating_sub(counted(bytes));
        if given_back > 0 {
            self.budget.left.fetch_add(given_back, Ordering::Relaxed);
        }
    }

    fn take(&self, count: usize) -> bool {
        let bytes = self.bytes.fetch_add(count, Ordering::Relaxed) + count;
        // No more than one message or body is ever kept, and none is longer.
        self.hold(bytes.min(self.budget.body_bytes_max))
    }

    /// Takes all that a message may, as one is about to be unpacked.
    fn take_all(&self) -> bool {
        self.hold(self.budget.body_bytes_max)
    }

    /// Has the budget's part for so many bytes from here on; false when there is no room. The body
    /// alone asks, one piece after the other.
    fn hold(&self, bytes: usize) -> bool {
        let wanted = counted(bytes).saturating_sub(self.held.load(Ordering::Relaxed));
        if wanted == 0 {
            return true;
        }
        let left = &self.budget.left;
        let take = |left: usize| left.checked_sub(wanted);
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if taken {
            self.held.fetch_add(wanted, Ordering::Relaxed);
        } else {
            self.refused.store(true, Ordering::Relaxed);
        }
        taken
    }
}

impl Drop for BodyShare {
    fn drop(&mut self) {
        self.budget.left.fetch_add(*self.held.get_mut(), Ordering::Relaxed);
    }
}

/// Whether it is known to be too short to be counted.
pub fn is_short(body: &Body) -> bool {
    body.size_hint().exact().is_some_and(|bytes| bytes <= UNCOUNTED_BYTES as u64)
}

fn counted(bytes: usize) -> usize {
    bytes.saturating_sub(UNCOUNTED_BYTES)
}

struct CountedBody {
    body: Body,
    share: Arc<BodyShare>,
    message: Option<OneMessage>,
    is_packed: bool,
}

impl CountedBody {
    /// Whether there is room for a piece, of which only what belongs to the one message is left.
    fn admit(&mut self, data: &mut Bytes) -> bool {
        let Some(message) = &mut self.message else {
            // Each of many messages is short when it is unpacked, too.
            return self.share.take(data.len());
        };
        data.truncate(message.takes(data));
        let unpacks = self.is_packed && message.is_whole();
        self.share.take(data.len()) && (!unpacks || self.share.take_all())
    }
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if self.message.as_ref().is_some_and(OneMessage::is_whole) {
            // Its end was looked for, as it mostly is there; it is not waited for.
            return Poll::Ready(None);
        }
        let frame = match ready!(frame) {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(mut data) => {
                    if !self.admit(&mut data) {
                        return Poll::Ready(Some(Err(axum::Error::new(no_room()))));
                    }
                    Some(Ok(Frame::data(data)))
                }
                Err(trailers) => Some(Ok(trailers)),
            },
            other => other,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A flag and the length of what follows stand before each message of gRPC.
const PREFIX_BYTES: usize = 5;

/// How much of a body's first message has come.
#[derive(Debug, Default)]
struct OneMessage {
    prefix: [u8; PREFIX_BYTES],
    bytes: usize,
}

impl OneMessage {
    fn is_whole(&self) -> bool {
        self.bytes >= PREFIX_BYTES && self.bytes == PREFIX_BYTES + self.length()
    }

    /// What its prefix says, once that has come.
    fn length(&self) -> usize {
        let [_, length @ ..] = self.prefix;
        u32::from_be_bytes(length) as usize
    }

    /// How many of these bytes belong to it.
    fn takes(&mut self, data: &[u8]) -> usize {
        let of_prefix = data.len().min(PREFIX_BYTES.saturating_sub(self.bytes));
        let (head, rest) = data.split_at(of_prefix);
        self.prefix[self.bytes.min(PREFIX_BYTES)..][..of_prefix].copy_from_slice(head);
        self.bytes += of_prefix;
        if self.bytes < PREFIX_BYTES {
            return of_prefix;
        }
        let of_rest = rest.len().min(PREFIX_BYTES + self.length() - self.bytes);
        self.bytes += of_rest;
        of_prefix + of_rest
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn one_message_is_told_from_what_follows_however_it_comes() {
        let messages = b"\0\0\0\0\x03abc\0\0\0\0\x01d";
        for step in 1..=messages.len() {
            let mut message = OneMessage::default();
            let mut taken = 0;
            for piece in messages.chunks(step) {
                assert_eq!(message.is_whole(), taken == 8);
                taken += message.takes(piece);
            }
            assert!(message.is_whole());
            assert_eq!(taken, 8, "in steps of {step}");
        }
        let mut empty = OneMessage::default();
        assert_eq!(empty.takes(b"\0\0\0\0\0\0\0"), 5);
        assert!(empty.is_whole());
    }

    #[test]
    fn a_share_is_given_back_and_short_bodies_cost_nothing() {
        let settings = HttpSection {
            body_bytes_max: 2 << 20,
            bodies_bytes_max: 1 << 20,
            ..HttpSection::default()
        };
        let budget = BodyBudget::new(&settings);
        let left = || budget.left.load(Ordering::Relaxed);
        let first = budget.share(&Body::empty()).unwrap();
        assert!(first.take(UNCOUNTED_BYTES));
        assert_eq!(left(), 1 << 20);
        assert!(first.take(1 << 20));
        assert_eq!(left(), 0);
        let second = budget.share(&Body::empty()).unwrap();
        assert!(second.take(UNCOUNTED_BYTES - 1) && second.take(1));
        assert!(!second.take(1) && second.refusal().is_some());
        let long = Body::from(vec![0; UNCOUNTED_BYTES + 1]);
        assert_eq!(budget.share(&long).unwrap_err().code, Code::Overloaded, "before it is read");
        let too_long = Body::from(vec![0; (2 << 20) + 1]);
        assert!(budget.share(&too_long).is_ok(), "too large, which its call says");
        drop(first);
        assert_eq!(left(), 1 << 20);
        assert!(budget.share(&long).is_ok());
        assert!(budget.hold(UNCOUNTED_BYTES).unwrap().is_none());
        let held = budget.hold(UNCOUNTED_BYTES + 5).unwrap();
        assert_eq!(left(), (1 << 20) - 5);
        assert!(budget.hold(UNCOUNTED_BYTES + (1 << 20)).is_err());
        drop(held);
        assert_eq!(left(), 1 << 20);
    }

    #[tokio::test]
    async fn a_packed_message_has_all_it_may_take_from_when_it_is_whole_until_it_is_unpacked() {
        let settings = HttpSection {
            body_bytes_max: 1 << 20,
            bodies_bytes_max: 1 << 20,
            ..HttpSection::default()
        };
        let budget = BodyBudget::new(&settings);
        let left = || budget.left.load(Ordering::Relaxed);
        let share = || budget.share(&Body::empty()).unwrap();
        let packed = |share: &Arc<BodyShare>, pieces: &[&'static [u8]]| {
            let pieces =
                pieces.iter().copied().map(|piece| Ok::<_, Error>(Bytes::from_static(piece)));
            let pieces: Vec<_> = pieces.collect();
            share.counting(Body::from_stream(stream::iter(pieces)), true, true)
        };
        let first = share();
        let mut body = packed(&first, &[b"\x01\0\0", b"\0\x02a", b"b"]);
        for _ in 0..2 {
            body.frame().await.unwrap().unwrap();
            assert_eq!(left(), 1 << 20, "what is not whole takes what came of it");
        }
        body.frame().await.unwrap().unwrap();
        assert_eq!(left(), UNCOUNTED_BYTES);
        let second = share();
        let mut refused = packed(&second, &[b"\x01\0\0\0\x01a"]);
        assert!(refused.frame().await.unwrap().is_err());
        assert_eq!(second.refusal().unwrap().code, Code::Overloaded);
        assert_eq!(left(), UNCOUNTED_BYTES, "who is refused takes nothing");
        first.unpacked(4 * UNCOUNTED_BYTES);
        assert_eq!(left(), (1 << 20) - 3 * UNCOUNTED_BYTES);
        drop((body, first));
        assert_eq!(left(), 1 << 20);
    }
}
