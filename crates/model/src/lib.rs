//! What Guanxi means, apart from where it is kept: nodes, kinds, edges, the state machine
//! (`decide`, `apply`), tallies, versions, pages, tokens and their encodings.
//!
//! Nothing here does I/O, reads a clock, draws a random number or waits. Time, versions and rows
//! are arguments, so the same functions serve the embedded store, the cluster and the simulator.

pub mod absorb;
pub mod answer;
pub mod catalog;
pub mod change;
pub mod codec;
pub mod decide;
pub mod edge;
pub mod entry;
pub mod error;
pub mod event_id;
pub mod filter;
pub mod footprint;
pub mod group;
pub mod hash;
pub mod idempotency;
pub mod import;
pub mod job;
pub mod kind;
pub mod limits;
pub mod node;
pub mod origin;
pub mod page;
pub mod places;
pub mod record;
pub mod request;
pub mod secret;
pub mod tally;
pub mod time;
pub mod token;
pub mod version;
pub mod view;

pub use absorb::{Sheet, absorb};
pub use answer::Answer;
pub use catalog::Catalog;
pub use change::Change;
pub use edge::{EdgeKey, EdgeRow, Ends, SourceId, State, TargetId};
pub use entry::{Index, IndexEntry};
pub use error::{Code, Error, Outcome};
pub use event_id::{AnyEventId, ClusterEventId, EventId};
pub use footprint::Footprint;
pub use group::{GroupId, GroupName, GroupSet, GroupsKey};
pub use kind::{Kind, KindId, KindName, OnOverload};
pub use node::{Node, NodeKey, NodeRow, NodeTypeId, TenantId};
pub use origin::{Origin, OriginText};
pub use record::Record;
pub use request::{Ledger, Request, decide_request};
pub use secret::Secret;
pub use tally::{TallyRow, Which};
pub use time::Millis;
pub use token::cluster::{AnyToken, ClusterToken};
pub use token::{Epoch, Position, Token};
pub use version::{BarrierId, HeadVersion, Region, Version};
pub use view::View;
