//! A move of an embedded service into a cluster. This alone knows both deployments: it reads the
//! snapshot and the log of the one, and writes the tables of the other, as the store that these
//! are to it.

mod run;
pub mod store;

pub use run::{ClusterMove, MoveError, MoveStanding, SnapshotFile, TellMoved};
