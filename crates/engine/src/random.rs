//! The system's source of randomness, for what must differ between directories: seeds and epochs.

use std::hash::{BuildHasher, RandomState};

/// A random number. The hasher's keys come from the system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
