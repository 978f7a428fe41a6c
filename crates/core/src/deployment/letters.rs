//! Dead letters as an operator meets them: records that never could be applied.

use std::fmt::Debug;

use guanxi_model::{EdgeKey, Error, Millis};

/// Each call blocks.
pub trait DeadLetterStore: Debug + Send + Sync {
    /// Letters in the order of their ids, oldest first, after the one given. A full page may have a
    /// next one.
    fn list(&self, after: Option<u64>, items_max: usize) -> Result<Vec<Letter>, Error>;

    /// A letter and the record as it came.
    fn show(&self, id: u64) -> Result<(Letter, Vec<u8>), Error>;

    /// Brings the edge's target side to what the source says now, and removes the letter.
    fn retry(&self, id: u64) -> Result<RetriedLetter, Error>;

    /// Forgets a letter.
    fn forget(&self, id: u64) -> Result<(), Error>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    pub id: u64,
    pub topic: String,
    pub partition: u32,
    pub position: u64,
    /// The edge that it is about, where that could be read.
    pub edge: Option<EdgeKey>,
    pub at: Millis,
    pub cause: String,
}

/// What a retry did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetriedLetter {
    pub edge: EdgeKey,
    /// Whether the target's side differed from what the source says.
    pub changed: bool,
}
