//! The applier's figures as plain numbers, for whoever shows them.

/// How far a partition is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionLag {
    pub partition: u32,
    /// The position that is applied next.
    pub next: u64,
    /// Records in the log that are not applied.
    pub records: u64,
    /// Age of the last applied record's commit while there are more; 0 when there are none.
    pub age_ms: u64,
}

/// Upper bounds of `ApplierFigures::ages`; one more bucket has the rest.
pub const AGE_BOUNDS_MS: [u64; 13] =
    [5, 10, 20, 50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 20_000, 60_000];

/// What an applier has done since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ApplierFigures {
    pub records: u64,
    pub batches: u64,
    /// Records that came late or twice.
    pub stale: u64,
    /// Records given up as dead letters.
    pub dead: u64,
    /// Dead letters that the topic has got from here.
    pub published: u64,
    /// Transactions tried again.
    pub retries: u64,
    /// Partitions left because another instance applies them.
    pub abandoned: u64,
    /// Partitions rebuilt from the database.
    pub rebuilt: u64,
    /// Records by the time between their commit and their being applied.
    pub ages: [u64; AGE_BOUNDS_MS.len() + 1],
}
