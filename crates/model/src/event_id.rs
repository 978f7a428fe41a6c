//! Event ids: where a reader of the log is, as a text that it keeps and shows to read on. Opaque
//! to callers; here it is an epoch and the position of the last record that was looked at.

use crate::error::Error;
use crate::node::TenantId;
use crate::token::{Epoch, Position, Token, place_of, place_text};

/// Other than a token's first byte, so that neither is taken for the other.
const FORMAT: u8 = 65;

/// Everything up to this position has been seen; reading goes on after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventId {
    pub tenant: TenantId,
    pub epoch: Epoch,
    pub position: Position,
}

impl EventId {
    pub fn to_text(self) -> String {
        place_text(FORMAT, self.tenant, self.epoch, self.position)
    }

    pub fn parse(text: &str, tenant: TenantId) -> Result<EventId, Error> {
        let (epoch, position) = place_of(FORMAT, text, tenant)
            .ok_or_else(|| Error::invalid("this is not the id of an event of this service"))?;
        Ok(EventId { tenant, epoch, position })
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
