//! Positions in the log, epochs of its lineage, and the token that a write returns:
//! "show me at least this". The two deployments' tokens share an envelope; `cluster` has what a
//! cluster's stands for.

pub mod cluster;

use data_encoding::BASE64URL_NOPAD;

use crate::codec::{CodecError, Decoder, Encoder};
use crate::error::Error;
use crate::hash::hash64;
use crate::node::TenantId;

/// A place in the log; 0 is before the first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub u64);

/// The log's lineage; restore and promotion begin a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

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
    pub fn to_text(self) -> String {
        place_text(FORMAT, self.tenant, self.epoch, self.position)
    }

    pub fn parse(text: &str, tenant: TenantId) -> Result<Token, Error> {
        let (epoch, position) = place_of(FORMAT, text, tenant)
            .ok_or_else(|| Error::invalid("this is not a token that a write returned"))?;
        Ok(Token { tenant, epoch, position })
    }
}

/// A tenant's place in the log as an opaque text; the format says what it is for.
pub(crate) fn place_text(format: u8, tenant: TenantId, epoch: Epoch, position: Position) -> String {
    let mut out = Encoder::with_capacity(24);
    out.u8(format);
    out.u8(MODE_EMBEDDED);
    out.varint(u64::from(tenant.0));
    out.varint(u64::from(epoch.0));
    out.varint(position.0);
    BASE64URL_NOPAD.encode(&sealed(out))
}

/// The place in a text of this format and tenant; none in any other.
pub(crate) fn place_of(format: u8, text: &str, tenant: TenantId) -> Option<(Epoch, Position)> {
    let body = unsealed(text)?;
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

/// Opaque texts carry four bytes of checksum, so that a mangled one is refused, not misread.
pub(crate) fn sealed(out: Encoder) -> Vec<u8> {
    let mut bytes = out.into_bytes();
    let sum = hash64(&bytes) as u32;
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

/// Tokens, event ids and cursors are short; a longer text is not one of ours. The longest are a
/// cluster's: an id with 64 offsets, or a token with 16 edges and 16 counters.
pub(crate) const OPAQUE_TEXT_BYTES_MAX: usize = 1_024;

pub(crate) fn unsealed(text: &str) -> Option<Vec<u8>> {
    if text.len() > OPAQUE_TEXT_BYTES_MAX {
        return None;
    }
    let mut bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
    let body = bytes.len().checked_sub(4)?;
    let sum = u32::from_be_bytes(bytes[body..].try_into().ok()?);
    bytes.truncate(body);
    (hash64(&bytes) as u32 == sum).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_nothing_else_does() {
        let token =
            Token { tenant: TenantId(1), epoch: Epoch(3), position: Position(u64::MAX >> 1) };
        let text = token.to_text();
        assert_eq!(Token::parse(&text, TenantId(1)), Ok(token));
        assert!(Token::parse(&text, TenantId(2)).is_err(), "a token belongs to its tenant");
        for at in 0..text.len() {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(Token::parse(&mangled, TenantId(1)).is_err(), "{mangled}");
        }
        assert!(Token::parse("", TenantId(1)).is_err());
        assert!(Token::parse(&"A".repeat(10_000), TenantId(1)).is_err());
    }
}
