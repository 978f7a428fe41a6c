//! The system's source of randomness, for what must differ between directories, as seeds and epochs
//! do, and for what nobody may guess.

use std::hash::{BuildHasher, RandomState};
use std::io;

use guanxi_model::Secret;

/// A random number. The hasher's keys come from the system.
pub fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A secret that nobody else has.
pub fn random_secret() -> io::Result<Secret> {
    let mut bytes = [0; Secret::BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(Secret::new(bytes))
}
