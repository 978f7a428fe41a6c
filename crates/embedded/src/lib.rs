//! The embedded deployment: one service beside its data directory. It owns the log, the store that
//! follows the log, the commit path between them, and what is made of them: the tail that watchers
//! read, backups, standbys.
//!
//! It knows no protocol, and nothing of the cluster.

pub mod archive;
mod audit;
mod background;
pub mod backup;
mod checkpoint;
pub mod commit;
pub mod directory;
pub mod disk;
pub mod disk_room;
pub mod engine;
mod following;
pub mod ingest;
mod jobs;
pub mod log;
mod log_holds;
pub mod overlay;
mod reopening;
pub mod resident;
pub mod restore;
mod scrubber;
mod shipping;
#[cfg(any(test, feature = "conformance"))]
pub mod simulation;
pub mod store;
mod sweeper;
mod tail;
pub mod transfer;

pub use commit::{CommitSettings, Meter, Unmetered, Written};
pub use engine::{
    Acknowledgement, Confirmed, Engine, EngineStatus, LogSettings, MoveState, Moved, OpenError,
    Paused, Promoted, ServedEngine, Settings, Shipped, unshipped,
};
pub use following::{FollowError, FollowStatus};
pub use resident::{ResidentSettings, ResidentStatus};
pub use shipping::{ShippingSettings, StandbyStatus};
pub use store::disk::StoreSettings;
pub use tail::{Tail, TailFrame, TailFrom, TailRecord};
