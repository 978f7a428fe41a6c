//! What both deployments share, and nothing that only one of them needs: threads and what becomes
//! of them, the clock, the queue before a commit path, the picture of rows that reads need and the
//! reads themselves, what is read most, and how audits are spoken of.
//!
//! It keeps no rows and knows no disk, no database and no protocol.

pub mod audit;
pub mod backoff;
pub mod clock;
pub mod crew;
pub mod deployment;
pub mod hot;
pub mod queue;
pub mod random;
pub mod read;
pub mod signal;
pub mod snapshot;

pub use audit::{AuditQuery, AuditSettings};
pub use read::{
    Checked, Exported, GroupFilter, HydrateQuery, Hydrated, HydratedObject, JobsPage, KindSet,
    ListQuery, ListedEdge, Page, ReadObject, Reader,
};
pub use snapshot::Direction;
