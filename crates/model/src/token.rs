//! Positions in the log, epochs of its lineage, and the token that a write returns:
//! "show me at least this". The two deployments' tokens share an envelope; `cluster` has what a
//! cluster's stands for.

pub mod cluster;

use crate::codec::{CodecError, Decoder, Encoder};
use crate::error::Error;
use crate::node::TenantId;
use crate::secret::Secret;

/// A place in the log; 0 is before the first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// The log's lineage; restore and promotion begin a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

/// The first byte of a token; cursors and event ids begin with others, so that none is taken for
/// another.
const FORMAT: u8 = 1;
pub(crate) const MODE_EMBEDDED: u8 = 1;
pub(crate) const MODE_CLUSTER: u8 = 2;

/// What a write returns and a read may present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub tenant: TenantId,
    pub epoch: Epoch,
    pub position: Position,
}

impl Token {
    pub fn to_text(self, secret: &Secret) -> String {
        place_text(FORMAT, self.tenant, self.epoch, self.position, secret)
    }

    pub fn parse(text: &str, tenant: TenantId, secret: &Secret) -> Result<Token, Error> {
        let (epoch, position) = place_of(FORMAT, text, tenant, secret).ok_or_else(|| {
            Error::invalid("this is not a token that a write to this service returned")
        })?;
        Ok(Token { tenant, epoch, position })
    }
}

/// A tenant's place in the log as an opaque text; the format says what it is for.
pub(crate) fn place_text(
    format: u8,
    tenant: TenantId,
    epoch: Epoch,
    position: Position,
    secret: &Secret,
) -> String {
    let mut out = Encoder::with_capacity(32);
    out.u8(format);
    out.u8(MODE_EMBEDDED);
    out.varint(u64::from(tenant.0));
    out.varint(u64::from(epoch.0));
    out.varint(position.0);
    secret.sealed(out)
}

/// The place in a text of this format and tenant; none in any other.
pub(crate) fn place_of(
    format: u8,
    text: &str,
    tenant: TenantId,
    secret: &Secret,
) -> Option<(Epoch, Position)> {
    let body = secret.unsealed(text)?;
    let mut input = Decoder::new(&body);
    let mut read = || {
        let head = (input.u8()?, input.u8()?, TenantId(input.varint_u32()?));
        let place = (Epoch(input.varint_u32()?), Position(input.varint()?));
        input.finish()?;
        Ok::<_, CodecError>((head, place))
    };
    let (head, place) = read().ok()?;
    (head == (format, MODE_EMBEDDED, tenant)).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_nothing_else_does() {
        let secret = Secret::new([1; 32]);
        let token =
            Token { tenant: TenantId(1), epoch: Epoch(3), position: Position(u64::MAX >> 1) };
        let text = token.to_text(&secret);
        assert_eq!(Token::parse(&text, TenantId(1), &secret), Ok(token));
        assert!(
            Token::parse(&text, TenantId(2), &secret).is_err(),
            "a token belongs to its tenant"
        );
        for at in 0..text.len() {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(Token::parse(&mangled, TenantId(1), &secret).is_err(), "{mangled}");
        }
        assert!(Token::parse("", TenantId(1), &secret).is_err());
        assert!(Token::parse(&"A".repeat(10_000), TenantId(1), &secret).is_err());
    }
}
