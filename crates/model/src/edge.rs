//! Edges: their key, their states and the row that stands for one.

use crate::group::GroupId;
use crate::kind::KindId;
use crate::node::TenantId;
use crate::time::Millis;
use crate::version::Version;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// The two ends of an edge of a known kind, in the order of the rows.
pub type Ends = (SourceId, TargetId);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeKey {
    pub tenant: TenantId,
    pub kind: KindId,
    pub source: SourceId,
    pub target: TargetId,
}

impl EdgeKey {
    /// The edge of the same kind the other way round; only kinds of one node type have it.
    pub fn reversed(self) -> EdgeKey {
        EdgeKey { source: SourceId(self.target.0), target: TargetId(self.source.0), ..self }
    }

    /// The edge of another kind between the same two ids.
    pub fn of_kind(self, kind: KindId) -> EdgeKey {
        EdgeKey { kind, ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum State {
    Live = 0,
    /// Awaits the target's approval.
    Pending = 1,
    /// A tombstone where records may come late; otherwise the row is simply gone.
    Removed = 2,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Live => "live",
            State::Pending => "pending",
            State::Removed => "removed",
        }
    }

    pub(crate) fn from_u8(value: u8) -> Option<State> {
        [State::Live, State::Pending, State::Removed]
            .into_iter()
            .find(|state| *state as u8 == value)
    }
}

/// What is known of one edge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeRow {
    pub version: Version,
    pub state: State,
    /// When it entered its state.
    pub since: Millis,
    pub group: Option<GroupId>,
    /// Whose roll-up it counts for: a liked post's author.
    pub owner: Option<u64>,
    /// The caller's own text.
    pub data: Option<Box<str>>,
    pub expires_at: Option<Millis>,
}

impl EdgeRow {
    /// The row that a removal leaves: a version and a time, nothing of what stood.
    pub fn removed(version: Version, since: Millis) -> EdgeRow {
        EdgeRow {
            version,
            state: State::Removed,
            since,
            group: None,
            owner: None,
            data: None,
            expires_at: None,
        }
    }

    /// Whether there is an edge at all, live or pending.
    pub fn stands(&self) -> bool {
        self.state != State::Removed
    }

    pub fn is_live(&self) -> bool {
        self.state == State::Live
    }
}
