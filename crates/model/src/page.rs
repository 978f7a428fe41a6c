//! Pages: the order of lists and the opaque cursor between two pages.

use crate::codec::{Decoder, Encoder};
use crate::error::Error;
use crate::secret::Secret;
use crate::time::Millis;

/// Newest first is (since, id) descending; oldest first is its exact reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Order {
    #[default]
    Newest = 0,
    Oldest = 1,
}

/// A place in a list: the last item that was looked at. Keyset, so that an edge which nobody
/// touches during a walk appears exactly once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PagePlace {
    pub since: Millis,
    pub id: u64,
}

impl PagePlace {
    /// Whether an item at `self` comes after `other` in this order.
    pub fn is_after(self, other: PagePlace, order: Order) -> bool {
        match order {
            Order::Newest => self < other,
            Order::Oldest => self > other,
        }
    }
}

/// Other than the first bytes of tokens and event ids: a caller chooses part of what a cursor says,
/// and must not make one of those of it.
const FORMAT: u8 = 33;

/// Where the next page begins. Bound to its call: `call` is a hash of everything that says which
/// list this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    pub place: PagePlace,
    /// Items shown so far, for the depth bound.
    pub depth: u64,
}

impl Cursor {
    pub fn to_text(self, call: u64, secret: &Secret) -> String {
        let mut out = Encoder::with_capacity(40);
        out.u8(FORMAT);
        out.fixed_u64(call);
        out.varint(self.place.since.0);
        out.varint(self.place.id);
        out.varint(self.depth);
        secret.sealed(out)
    }

    pub fn parse(text: &str, call: u64, secret: &Secret) -> Result<Cursor, Error> {
        let refuse =
            || Error::invalid("cursor: this is not the 'next' that an earlier page returned");
        let body = secret.unsealed(text).ok_or_else(refuse)?;
        let mut input = Decoder::new(&body);
        let mut read = || {
            let format = input.u8()?;
            let of_call = input.fixed_u64()?;
            let place = PagePlace { since: Millis(input.varint()?), id: input.varint()? };
            let cursor = Cursor { place, depth: input.varint()? };
            input.finish()?;
            Ok::<_, crate::codec::CodecError>((format, of_call, cursor))
        };
        match read() {
            Ok((FORMAT, of_call, cursor)) if of_call == call => Ok(cursor),
            Ok((FORMAT, _, _)) => Err(Error::invalid(
                "cursor: it belongs to another list; send it with the list and the parameters \
                 of the page that returned it",
            )),
            _ => Err(refuse()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AnyToken, ClusterEventId, EventId, TenantId};

    #[test]
    fn a_cursor_is_bound_to_its_call() {
        let cursor = Cursor { place: PagePlace { since: Millis(5), id: u64::MAX }, depth: 40 };
        let secret = Secret::new([1; 32]);
        let text = cursor.to_text(77, &secret);
        assert_eq!(Cursor::parse(&text, 77, &secret), Ok(cursor));
        assert!(Cursor::parse(&text, 78, &secret).unwrap_err().message.contains("another list"));
        assert!(Cursor::parse(&text[1..], 77, &secret).is_err());
        assert!(Cursor::parse("garbage!", 77, &secret).is_err());
        assert!(Cursor::parse(&text, 77, &Secret::new([2; 32])).is_err(), "of another service");
    }

    /// Whoever chooses a list's parameters may find some whose hash reads as the beginning of a
    /// token that never ends to be waited for. Its first byte says that it is none.
    #[test]
    fn a_cursor_is_no_token_whatever_its_call() {
        let (secret, tenant) = (Secret::new([1; 32]), TenantId::DEFAULT);
        let cursor = Cursor { place: PagePlace { since: Millis(1), id: 1 }, depth: 0 };
        // After the format: a cluster's mode, tenant 1, no edge, no counter, a barrier.
        for call in [[2, 1, 0, 0, 1, 9, 9, 9], [1, 1, 1, 1, 0, 0, 0, 0]] {
            for call in [u64::from_be_bytes(call), u64::from_le_bytes(call)] {
                let text = cursor.to_text(call, &secret);
                assert!(AnyToken::parse(&text, tenant, &secret).is_err());
                assert!(EventId::parse(&text, tenant, &secret).is_err());
                assert!(ClusterEventId::parse(&text, tenant, &secret).is_err());
            }
        }
    }

    #[test]
    fn oldest_is_the_exact_reverse_of_newest() {
        let place = |since, id| PagePlace { since: Millis(since), id };
        let places = [place(1, 1), place(1, 2), place(2, 1), place(3, 9)];
        for a in places {
            for b in places {
                assert_eq!(a.is_after(b, Order::Newest), b.is_after(a, Order::Oldest));
            }
        }
    }
}
