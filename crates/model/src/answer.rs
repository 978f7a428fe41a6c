//! What a decided change tells its caller. Kept with idempotency keys, so it has a codec.

use crate::edge::{EdgeRow, State};
use crate::group::GroupName;
use crate::job::JobId;
use crate::kind::Kind;
use crate::node::NodeRow;
use crate::time::Millis;
use crate::version::Version;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Edge(EdgeAnswer),
    Group { name: GroupName, size: i64 },
    Node(NodeRow),
    Counter { value: i64 },
    Kind(Box<Kind>),
    Job(JobId),
    Repaired,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EdgeAnswer {
    pub changed: bool,
    pub state: State,
    /// None when nothing stood and nothing was changed.
    pub since: Option<Millis>,
    pub version: Option<Version>,
}

impl EdgeAnswer {
    pub fn changed(row: &EdgeRow) -> Answer {
        Answer::Edge(EdgeAnswer {
            changed: true,
            state: row.state,
            since: Some(row.since),
            version: Some(row.version),
        })
    }

    /// The edge stood already, or (without a row) was not there already.
    pub fn unchanged(row: Option<&EdgeRow>) -> Answer {
        Answer::Edge(EdgeAnswer {
            changed: false,
            state: row.map_or(State::Removed, |row| row.state),
            since: row.map(|row| row.since),
            version: row.map(|row| row.version),
        })
    }
}
