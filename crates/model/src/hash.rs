//! The hashes whose values are stored or compared across instances: XXH3 of 64 and 128 bits.
//! Their results never change meaning; the vectors below hold them to it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

pub fn hash64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

pub fn hash128(bytes: &[u8]) -> u128 {
    xxh3_128(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors() {
        assert_eq!(hash64(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(hash128(b""), 0x99aa_06d3_0147_98d8_6001_c324_468d_497f);
        assert_eq!(hash64(b"guanxi"), 0xf609_4bac_7c74_f4bd);
        assert_eq!(hash128(b"guanxi"), 0xbc7e_201d_7ddd_58d9_3f19_4a26_9f57_56b3);
    }
}
