//! What an instance tells the others of what it reads most, as bytes. A value that cannot be read
//! tells nothing: another release may write more.

use guanxi_model::codec::{CodecError, Decoder, Encoder};
use guanxi_model::{KindId, NodeTypeId, TenantId};

use super::{Rates, ReadKey, What};

/// Keys that an instance tells of: a few kilobytes. One that is hot in sum is among the first of
/// each that reads it, or so many others are hotter.
pub const SHARED_KEYS_MAX: usize = 128;
/// What is read less often is not worth telling.
const SHARED_PER_SECOND_MIN: f64 = 1.0;
const FORMAT: u8 = 1;
/// Rates are told in hundredths.
const PARTS: f64 = 100.0;

/// The first of these keys, which are sorted.
pub fn encode(rates: &[(ReadKey, f64)]) -> Vec<u8> {
    let told = rates.iter().take(SHARED_KEYS_MAX);
    let told = told.take_while(|(_, rate)| *rate >= SHARED_PER_SECOND_MIN);
    let mut out = Encoder::with_capacity(1 + rates.len().min(SHARED_KEYS_MAX) * 16);
    out.u8(FORMAT);
    for (key, rate) in told {
        let (tag, of) = match key.what {
            What::Tallies(node_type) => (0, node_type.0),
            What::Incoming(kind) => (1, kind.0),
            What::Outgoing(kind) => (2, kind.0),
            What::Checks(node_type) => (3, node_type.0),
        };
        out.varint(u64::from(key.tenant.0));
        out.u8(tag);
        out.varint(u64::from(of));
        out.varint(key.id);
        out.varint((rate * PARTS) as u64);
    }
    out.into_bytes()
}

pub fn decode(bytes: &[u8]) -> Result<Rates, CodecError> {
    let mut from = Decoder::new(bytes);
    if from.u8()? != FORMAT {
        return Err(CodecError("it is of a newer release".into()));
    }
    let mut rates = Vec::new();
    while !from.is_empty() && rates.len() < SHARED_KEYS_MAX {
        let tenant = TenantId(from.varint_u32()?);
        let (tag, of) = (from.u8()?, from.varint_u16()?);
        let what = match tag {
            0 => What::Tallies(NodeTypeId(of)),
            1 => What::Incoming(KindId(of)),
            2 => What::Outgoing(KindId(of)),
            3 => What::Checks(NodeTypeId(of)),
            _ => return Err(CodecError(format!("nothing has the tag {tag}"))),
        };
        let key = ReadKey { tenant, what, id: from.varint()? };
        rates.push((key, from.varint()? as f64 / PARTS));
    }
    Ok(rates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_are_told_and_understood() {
        let whats = [
            What::Tallies(NodeTypeId(2)),
            What::Incoming(KindId(u16::MAX)),
            What::Outgoing(KindId(1)),
            What::Checks(NodeTypeId(1)),
        ];
        let key = |n: u64| ReadKey {
            tenant: TenantId(n as u32 % 3),
            what: whats[n as usize % whats.len()],
            id: u64::MAX - n,
        };
        let rates: Vec<_> = (0..500).map(|n| (key(n), 10_000.25 / (n + 1) as f64)).collect();
        let bytes = encode(&rates);
        assert!(bytes.len() <= 1 + SHARED_KEYS_MAX * 24, "{} bytes", bytes.len());
        let told = decode(&bytes).unwrap();
        assert_eq!(told.len(), SHARED_KEYS_MAX);
        for (told, known) in told.iter().zip(&rates) {
            assert_eq!(told.0, known.0);
            assert!((told.1 - known.1).abs() <= 1.0 / PARTS);
        }
        assert_eq!(decode(&encode(&[(key(1), 0.5)])).unwrap(), []);
    }

    #[test]
    fn what_cannot_be_read_tells_nothing() {
        let key = ReadKey { tenant: TenantId(0), what: What::Incoming(KindId(1)), id: 1 << 60 };
        let bytes = encode(&[(key, 50.0)]);
        assert!(decode(&[]).is_err() && decode(&[FORMAT + 1]).is_err());
        assert!(decode(&bytes[..bytes.len() - 1]).is_err());
        let mut unknown = bytes;
        unknown[2] = 9;
        assert!(decode(&unknown).is_err());
    }
}
