//! Small text files that end in a checksum line, so that a person can read them and a flipped bit
//! is noticed. What the lines mean belongs to whoever writes them.

const PREFIX: &str = "crc32c ";

/// The lines with a last one that holds their checksum. `body` ends in a line break.
pub fn with_checksum(body: &str) -> Vec<u8> {
    debug_assert!(body.ends_with('\n'), "the checksum needs a line of its own");
    let crc = crc32c::crc32c(body.as_bytes());
    format!("{body}{PREFIX}{crc:08x}\n").into_bytes()
}

/// The lines before the checksum, or `None` when it is missing or does not fit them.
pub fn without_checksum(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
    let body_bytes = text.rfind('\n')? + 1;
    let (body, last) = text.split_at(body_bytes);
    let crc = last.strip_prefix(PREFIX)?;
    (crc == format!("{:08x}", crc32c::crc32c(body.as_bytes()))).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = with_checksum("format 1\nseed 00ff\n");
        assert_eq!(without_checksum(&bytes), Some("format 1\nseed 00ff\n"));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(without_checksum(&flipped), None, "bit {bit}");
        }
        for kept in 0..bytes.len() {
            assert_eq!(without_checksum(&bytes[..kept]), None, "{kept} bytes");
        }
    }
}
