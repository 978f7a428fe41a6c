//! Does Guanxi's work and knows no protocol: the log, the store that follows it, the commit path
//! and the reads, behind seams for clock and disk.

pub mod archive;
pub mod audit;
mod background;
pub mod backup;
mod checkpoint;
pub mod clock;
pub mod cluster;
pub mod commit;
pub mod crew;
pub mod deployment;
pub mod directory;
pub mod disk;
pub mod engine;
mod following;
mod holds;
pub mod hot;
mod jobs;
pub mod log;
mod mending;
pub mod overlay;
mod random;
pub mod read;
pub mod restore;
pub mod room;
mod scrubber;
mod shipping;
#[cfg(any(test, feature = "conformance"))]
pub mod simulation;
pub mod store;
mod sweeper;
mod tail;
pub mod transfer;

pub use audit::{AuditQuery, AuditSettings};
pub use commit::{CommitSettings, Meter, Request, Unmetered, Written};
pub use engine::{
    Acknowledgement, Confirmed, Engine, LogSettings, MoveState, Moved, OpenError, Paused, Promoted,
    ServedEngine, Settings, Shipped, Status, unshipped,
};
pub use following::{FollowError, FollowStatus};
pub use read::{
    Checked, Exported, GroupFilter, HydrateObject, HydrateQuery, Hydrated, Item, JobsPage,
    ListQuery, Page, Reader,
};
pub use shipping::{ShippingSettings, StandbyStatus};
pub use store::Direction;
pub use store::disk::StoreSettings;
pub use tail::{Tail, TailFrame, TailFrom, TailRecord};
