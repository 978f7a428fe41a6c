//! The hashes whose values are stored or compared across instances: XXH3 of 64 and 128 bits.
//! Their results never change meaning; the vectors below hold them to it.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed, xxh3_128};

pub fn hash64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

pub fn seeded_hash64(bytes: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(bytes, seed)
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
        assert_eq!(seeded_hash64(b"guanxi", 0), hash64(b"guanxi"));
        assert_eq!(seeded_hash64(b"guanxi", 1), 0xdd5b_52d0_c41a_b64d);
        assert_eq!(hash128(b"guanxi"), 0xbc7e_201d_7ddd_58d9_3f19_4a26_9f57_56b3);
    }
}
