//! A node's tallies as one string: a token, the time of the last reading, then fields of fixed size,
//! each with a stamp of its own. Pure.

use guanxi_model::{KindId, Which};

/// The token and the time.
pub const HEADER_BYTES: usize = 16;
/// Kind, which, stamp, value.
pub const FIELD_BYTES: usize = 19;
pub const TOKEN_BYTES: usize = 8;

/// Which string it is: drawn anew whenever one is made where there was none. Whoever writes shows
/// the token that it saw before it read the database, so that what it read is never put into a
/// string that was not there while it read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StringToken(pub [u8; TOKEN_BYTES]);

impl StringToken {
    pub fn draw() -> StringToken {
        StringToken(fastrand::u64(..).to_be_bytes())
    }
}

/// A number with the stamp of the row that it was read from: of two, the higher one is newer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TallyField {
    pub kind: KindId,
    pub which: Which,
    pub stamp: u64,
    pub value: i64,
}

/// What a string says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedTallies {
    pub token: StringToken,
    /// When its fields were last read for a caller, in milliseconds of the readers' clocks.
    pub read_ms: u64,
    pub fields: Vec<TallyField>,
}

impl PackedTallies {
    /// A string that has no number yet.
    pub fn empty(token: StringToken, read_ms: u64) -> PackedTallies {
        PackedTallies { token, read_ms, fields: Vec::new() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.fields.len() * FIELD_BYTES);
        out.extend(self.token.0);
        out.extend(self.read_ms.to_be_bytes());
        encode_fields(&mut out, &self.fields);
        out
    }

    /// None when it is not one of ours.
    pub fn decode(bytes: &[u8]) -> Option<PackedTallies> {
        let (token, rest) = bytes.split_first_chunk::<TOKEN_BYTES>()?;
        let (read_ms, rest) = rest.split_first_chunk::<8>()?;
        let (fields, rest) = rest.as_chunks::<FIELD_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let fields = fields.iter().map(field).collect::<Option<_>>()?;
        Some(PackedTallies {
            token: StringToken(*token),
            read_ms: u64::from_be_bytes(*read_ms),
            fields,
        })
    }

    pub fn get(&self, kind: KindId, which: Which) -> Option<&TallyField> {
        self.fields.iter().find(|field| field.kind == kind && field.which == which)
    }

    /// What `merge.lua` does with these fields.
    pub fn merge(&mut self, fields: &[TallyField]) {
        for new in fields {
            let same = |old: &&mut TallyField| (old.kind, old.which) == (new.kind, new.which);
            match self.fields.iter_mut().find(same) {
                Some(old) if new.stamp > old.stamp => *old = *new,
                Some(_) => {}
                None => self.fields.push(*new),
            }
        }
    }
}

pub fn encode_fields(out: &mut Vec<u8>, fields: &[TallyField]) {
    for TallyField { kind, which, stamp, value } in fields {
        out.extend(kind.0.to_be_bytes());
        out.push(*which as u8);
        out.extend(stamp.to_be_bytes());
        out.extend(value.to_be_bytes());
    }
}

fn field(bytes: &[u8; FIELD_BYTES]) -> Option<TallyField> {
    let (kind, rest) = bytes.split_first_chunk::<2>()?;
    let (which, rest) = rest.split_first()?;
    let (stamp, rest) = rest.split_first_chunk::<8>()?;
    let (value, _) = rest.split_first_chunk::<8>()?;
    Some(TallyField {
        kind: KindId(u16::from_be_bytes(*kind)),
        which: Which::ALL.into_iter().find(|known| *known as u8 == *which)?,
        stamp: u64::from_be_bytes(*stamp),
        value: i64::from_be_bytes(*value),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_read_as_it_was_written() {
        let one =
            TallyField { kind: KindId(7), which: Which::Incoming, stamp: u64::MAX, value: -3 };
        let other =
            TallyField { kind: KindId(u16::MAX), which: Which::Value, stamp: 0, value: 1 << 40 };
        let packed = PackedTallies {
            token: StringToken([9; 8]),
            read_ms: 1 << 41,
            fields: vec![one, other],
        };
        let bytes = packed.encode();
        assert_eq!(bytes.len(), HEADER_BYTES + 2 * FIELD_BYTES);
        assert_eq!(PackedTallies::decode(&bytes), Some(packed.clone()));
        assert_eq!(packed.get(KindId(7), Which::Incoming), Some(&one));
        assert_eq!(packed.get(KindId(7), Which::Value), None);
        assert_eq!(PackedTallies::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(PackedTallies::decode(&bytes[..HEADER_BYTES - 1]), None);
        let mut unknown = bytes;
        unknown[HEADER_BYTES + 2] = 77;
        assert_eq!(PackedTallies::decode(&unknown), None);
    }
}
