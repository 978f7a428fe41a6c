//! Event ids: where a reader of the log is, as a text that it keeps and shows to read on. Opaque
//! to callers; here it is an epoch and the position of the last record that was looked at, and in
//! a cluster the next offset of every partition of its topic.

use crate::codec::{CodecError, Decoder, Encoder};
use crate::error::Error;
use crate::hash::hash64;
use crate::node::TenantId;
use crate::secret::Secret;
use crate::token::{Epoch, MODE_CLUSTER, Position, Token, place_of, place_text};

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
    pub fn to_text(self, secret: &Secret) -> String {
        place_text(FORMAT, self.tenant, self.epoch, self.position, secret)
    }

    pub fn parse(text: &str, tenant: TenantId, secret: &Secret) -> Result<EventId, Error> {
        let (epoch, position) = place_of(FORMAT, text, tenant, secret).ok_or_else(not_an_id)?;
        Ok(EventId { tenant, epoch, position })
    }
}

fn not_an_id() -> Error {
    Error::invalid("this is not the id of an event of this service")
}

/// Partitions of a topic, one offset each; as many as there are shards.
pub const EVENT_PARTITIONS_MAX: usize = 64;

/// Everything before these offsets has been seen; reading goes on with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterEventId {
    pub tenant: TenantId,
    /// Which log the offsets are of: those of another mean nothing here.
    pub log: u32,
    /// Stands for the topic's own id, which is another after it was made anew; 0 where unknown.
    pub topic: u64,
    /// The next offset of each partition, and what the record before it looked like; 0 where
    /// unknown.
    pub next: Vec<(u64, u32)>,
}

impl ClusterEventId {
    /// What stands for the cluster's own topic in an id.
    pub fn topic_mark(topic: &str) -> u32 {
        hash64(topic.as_bytes()) as u32
    }

    /// What stands for a changefeed's topic. No topic's name begins so, and one that was the
    /// cluster's own before is another log now.
    pub fn changefeed_mark(topic: &str) -> u32 {
        ClusterEventId::topic_mark(&format!("changefeed:{topic}"))
    }

    pub fn to_text(&self, secret: &Secret) -> String {
        debug_assert!(self.next.len() <= EVENT_PARTITIONS_MAX, "one offset per partition");
        let mut out = Encoder::with_capacity(24 + 9 * self.next.len());
        out.u8(FORMAT);
        out.u8(MODE_CLUSTER);
        out.varint(u64::from(self.tenant.0));
        out.varint(u64::from(self.log));
        out.fixed_u64(self.topic);
        out.varint(self.next.len() as u64);
        for (next, mark) in &self.next {
            out.varint(*next);
            out.varint(u64::from(*mark));
        }
        secret.sealed(out)
    }

    pub fn parse(text: &str, tenant: TenantId, secret: &Secret) -> Result<ClusterEventId, Error> {
        let body = secret.unsealed(text).ok_or_else(not_an_id)?;
        let mut input = Decoder::new(&body);
        let mut read = || {
            let head = (input.u8()?, input.u8()?, TenantId(input.varint_u32()?));
            let log = input.varint_u32()?;
            let topic = input.fixed_u64()?;
            let count = input.count()?;
            let mut place = || Ok((input.varint()?, input.varint_u32()?));
            let next = (0..count).map(|_| place()).collect::<Result<Vec<_>, CodecError>>()?;
            input.finish()?;
            Ok::<_, CodecError>((head, ClusterEventId { tenant, log, topic, next }))
        };
        match read() {
            Ok((head, id)) if head == (FORMAT, MODE_CLUSTER, tenant) => Ok(id),
            _ => Err(not_an_id()),
        }
    }
}

/// What a token stands for has been seen.
impl From<Token> for EventId {
    fn from(token: Token) -> EventId {
        EventId { tenant: token.tenant, epoch: token.epoch, position: token.position }
    }
}

/// An event of either deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyEventId {
    Embedded(EventId),
    Cluster(ClusterEventId),
}

impl AnyEventId {
    pub fn to_text(&self, secret: &Secret) -> String {
        match self {
            AnyEventId::Embedded(id) => id.to_text(secret),
            AnyEventId::Cluster(id) => id.to_text(secret),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_and_nothing_else_does() {
        let secret = Secret::new([1; 32]);
        let token = Token { tenant: TenantId(1), epoch: Epoch(3), position: Position(u64::MAX) };
        let id = EventId::from(token);
        let text = id.to_text(&secret);
        assert_eq!(EventId::parse(&text, TenantId(1), &secret), Ok(id));
        assert!(
            EventId::parse(&text, TenantId(2), &secret).is_err(),
            "an id belongs to its tenant"
        );
        for at in 0..text.len() {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(EventId::parse(&mangled, TenantId(1), &secret).is_err(), "{mangled}");
        }
        assert!(
            EventId::parse(&token.to_text(&secret), TenantId(1), &secret).is_err(),
            "a token is no event id"
        );
        assert!(Token::parse(&text, TenantId(1), &secret).is_err(), "nor the other way round");
    }

    #[test]
    fn a_clusters_id_survives_its_text_and_nothing_else_does() {
        let secret = Secret::new([1; 32]);
        let log = ClusterEventId::topic_mark("guanxi.records");
        assert_ne!(log, ClusterEventId::changefeed_mark("guanxi.records"));
        let next = (0..EVENT_PARTITIONS_MAX as u64)
            .map(|part| (u64::MAX - part, u32::MAX - part as u32))
            .collect();
        let id = ClusterEventId { tenant: TenantId(1), log, topic: u64::MAX, next };
        let text = id.to_text(&secret);
        assert_eq!(ClusterEventId::parse(&text, TenantId(1), &secret), Ok(id));
        assert!(ClusterEventId::parse(&text, TenantId(2), &secret).is_err());
        assert!(EventId::parse(&text, TenantId(1), &secret).is_err(), "nor is it an embedded one");
        for at in (0..text.len()).step_by(7) {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(ClusterEventId::parse(&mangled, TenantId(1), &secret).is_err(), "{mangled}");
        }
    }
}
