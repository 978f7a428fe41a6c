//! The secret of a service: how it knows the opaque texts that it gave out itself. Tokens, cursors
//! and event ids are sealed with it, so that nobody makes it wait for, or read from, a place that it
//! never named. What they say is no secret; a seal hides nothing.

use data_encoding::BASE64URL_NOPAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::codec::Encoder;

/// What the hash takes in at once; a key is filled up to it with zeros.
const BLOCK_BYTES: usize = 64;
/// How much of the HMAC a text carries: to guess it, 2^63 requests are needed on average.
const SEAL_BYTES: usize = 8;
/// Tokens, event ids and cursors are short; a longer text is not one of ours. The longest are a
/// cluster's: an id with 64 offsets and a mark with each, or a token with 16 edges and 16 counters.
pub(crate) const OPAQUE_TEXT_BYTES_MAX: usize = 2_048;

#[derive(Clone)]
pub struct Secret {
    bytes: [u8; Secret::BYTES],
    /// The HMAC that has taken in the key.
    keyed: Hmac<Sha256>,
}

impl Secret {
    pub const BYTES: usize = 32;

    pub fn new(bytes: [u8; Secret::BYTES]) -> Secret {
        let mut block = [0; BLOCK_BYTES];
        block[..Secret::BYTES].copy_from_slice(&bytes);
        Secret { bytes, keyed: <Hmac<Sha256> as hmac::digest::KeyInit>::new(&block.into()) }
    }

    /// For whoever keeps it.
    pub fn bytes(&self) -> &[u8; Secret::BYTES] {
        &self.bytes
    }

    /// The text of these bytes. The first of them must say what they are: one seal serves for
    /// everything.
    pub(crate) fn sealed(&self, out: Encoder) -> String {
        let mut bytes = out.into_bytes();
        let mut mac = self.keyed.clone();
        mac.update(&bytes);
        bytes.extend_from_slice(&mac.finalize().into_bytes()[..SEAL_BYTES]);
        BASE64URL_NOPAD.encode(&bytes)
    }

    /// The bytes of a text that was sealed with this secret; none of any other.
    pub(crate) fn unsealed(&self, text: &str) -> Option<Vec<u8>> {
        if text.len() > OPAQUE_TEXT_BYTES_MAX {
            return None;
        }
        let mut bytes = BASE64URL_NOPAD.decode(text.as_bytes()).ok()?;
        let seal = bytes.split_off(bytes.len().checked_sub(SEAL_BYTES)?);
        let mut mac = self.keyed.clone();
        mac.update(&bytes);
        // Takes as long for every wrong seal.
        mac.verify_truncated_left(&seal).ok()?;
        Some(bytes)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Secret {}

/// It must not get into a log by accident.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash64;

    fn encoded(text: &str) -> Encoder {
        let mut out = Encoder::with_capacity(32);
        out.str(text);
        out
    }

    #[test]
    fn a_seal_is_the_beginning_of_the_hmac() {
        // RFC 4231, test case 2, with its key filled up: the key is its own padding.
        let mut key = [0; Secret::BYTES];
        key[..4].copy_from_slice(b"Jefe");
        let mut mac = Secret::new(key).keyed;
        mac.update(b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(data_encoding::HEXLOWER.encode(&mac.finalize().into_bytes()), expected);
    }

    #[test]
    fn nobody_without_the_secret_makes_a_text() {
        let (ours, theirs) = (Secret::new([7; 32]), Secret::new([8; 32]));
        let text = ours.sealed(encoded("place"));
        assert_eq!(ours.unsealed(&text), Some(encoded("place").into_bytes()));
        assert_eq!(theirs.unsealed(&text), None);
        // What anybody can compute.
        let plain = encoded("place").into_bytes();
        let sum = hash64(&plain);
        for tail in [&b""[..], &(sum as u32).to_be_bytes(), &sum.to_be_bytes(), &[0; SEAL_BYTES]] {
            let forged = BASE64URL_NOPAD.encode(&[&plain[..], tail].concat());
            assert_eq!(ours.unsealed(&forged), None, "{forged}");
        }
        // A seal of which a part is right.
        let sealed = BASE64URL_NOPAD.decode(text.as_bytes()).unwrap();
        for cut in 1..=SEAL_BYTES {
            let forged = BASE64URL_NOPAD.encode(&sealed[..sealed.len() - cut]);
            assert_eq!(ours.unsealed(&forged), None, "{cut} bytes short");
        }
        assert_eq!(format!("{ours:?}"), "Secret");
    }
}
