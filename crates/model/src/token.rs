//! Positions in the log, epochs of its lineage, and the token that a write returns:
//! "show me at least this".

use data_encoding::BASE64URL_NOPAD;

use crate::codec::{Decoder, Encoder};
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
const MODE_EMBEDDED: u8 = 1;

/// What a write returns and a read may present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub tenant: TenantId,
    pub epoch: Epoch,
    pub position: Position,
}

impl Token {
    pub fn to_text(self) -> String {
        let mut out = Encoder::with_capacity(24);
        out.u8(FORMAT);
        out.u8(MODE_EMBEDDED);
        out.varint(u64::from(self.tenant.0));
        out.varint(u64::from(self.epoch.0));
        out.varint(self.position.0);
        BASE64URL_NOPAD.encode(&sealed(out))
    }

    pub fn parse(text: &str, tenant: TenantId) -> Result<Token, Error> {
        let refuse = || Error::invalid("this is not a token that a write returned");
        let body = unsealed(text).ok_or_else(refuse)?;
        let mut input = Decoder::new(&body);
        let mut read = || {
            let format = input.u8()?;
            let mode = input.u8()?;
            let token = Token {
                tenant: TenantId(input.varint_u32()?),
                epoch: Epoch(input.varint_u32()?),
                position: Position(input.varint()?),
            };
            input.finish()?;
            Ok::<_, crate::codec::CodecError>((format, mode, token))
        };
        match read() {
            Ok((FORMAT, MODE_EMBEDDED, token)) if token.tenant == tenant => Ok(token),
            _ => Err(refuse()),
        }
    }
}

/// Opaque texts carry four bytes of checksum, so that a mangled one is refused, not misread.
pub(crate) fn sealed(out: Encoder) -> Vec<u8> {
    let mut bytes = out.into_bytes();
    let sum = hash64(&bytes) as u32;
    bytes.extend_from_slice(&sum.to_be_bytes());
    bytes
}

/// Tokens and cursors are short; a longer text is not one of ours.
const OPAQUE_TEXT_BYTES_MAX: usize = 256;

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
