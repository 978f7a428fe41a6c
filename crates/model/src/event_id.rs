//! Event ids: where a reader of the log is, as a text that it keeps and shows to read on. Opaque
//! to callers; here it is an epoch and the position of the last record that was looked at.

use data_encoding::BASE64URL_NOPAD;

use crate::codec::{CodecError, Decoder, Encoder};
use crate::error::Error;
use crate::node::TenantId;
use crate::token::{Epoch, Position, Token, sealed, unsealed};

/// Other than a token's first byte, so that neither is taken for the other.
const FORMAT: u8 = 65;
const MODE_EMBEDDED: u8 = 1;

/// Everything up to this position has been seen; reading goes on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    pub tenant: TenantId,
    pub epoch: Epoch,
    pub position: Position,
}

impl EventId {
    pub fn to_text(self) -> String {
        let mut out = Encoder::with_capacity(24);
        out.u8(FORMAT);
        out.u8(MODE_EMBEDDED);
        out.varint(u64::from(self.tenant.0));
        out.varint(u64::from(self.epoch.0));
        out.varint(self.position.0);
        BASE64URL_NOPAD.encode(&sealed(out))
    }

    pub fn parse(text: &str, tenant: TenantId) -> Result<EventId, Error> {
        let refuse = || Error::invalid("this is not the id of an event of this service");
        let body = unsealed(text).ok_or_else(refuse)?;
        let mut input = Decoder::new(&body);
        let mut read = || {
            let format = input.u8()?;
            let mode = input.u8()?;
            let id = EventId {
                tenant: TenantId(input.varint_u32()?),
                epoch: Epoch(input.varint_u32()?),
                position: Position(input.varint()?),
            };
            input.finish()?;
            Ok::<_, CodecError>((format, mode, id))
        };
        match read() {
            Ok((FORMAT, MODE_EMBEDDED, id)) if id.tenant == tenant => Ok(id),
            _ => Err(refuse()),
        }
    }
}

/// What a token stands for has been seen.
impl From<Token> for EventId {
    fn from(token: Token) -> EventId {
        EventId { tenant: token.tenant, epoch: token.epoch, position: token.position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_and_nothing_else_does() {
        let token = Token { tenant: TenantId(1), epoch: Epoch(3), position: Position(u64::MAX) };
        let id = EventId::from(token);
        let text = id.to_text();
        assert_eq!(EventId::parse(&text, TenantId(1)), Ok(id));
        assert!(EventId::parse(&text, TenantId(2)).is_err(), "an id belongs to its tenant");
        for at in 0..text.len() {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(EventId::parse(&mangled, TenantId(1)).is_err(), "{mangled}");
        }
        assert!(EventId::parse(&token.to_text(), TenantId(1)).is_err(), "a token is no event id");
        assert!(Token::parse(&text, TenantId(1)).is_err(), "nor the other way round");
    }
}
