//! Audits: whether everything that follows from the edges agrees with them.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;
use crate::time::Time;

/// What to compare, and whether to mend what is wrong.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditRequest<'a> {
    /// One kind; without it all of them.
    #[serde(default, borrow)]
    #[schema(value_type = Option<Name>)]
    pub kind: Option<Name<'a>>,
    #[serde(default)]
    pub repair: bool,
}

/// An audit that takes longer than its request goes on without it.
#[derive(Debug)]
pub enum AuditAnswer {
    Report(ReportView),
    GoesOn(StateView),
}

/// What an audit found and did. Everything is of one position.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AuditReport)]
pub struct ReportView {
    /// Where everything was compared, the last time.
    pub position: u64,
    /// Edges that were looked at.
    pub edges: u64,
    /// Tallies that were compared.
    pub tallies: u64,
    /// What was wrong.
    pub drift: u64,
    /// What of it is right now.
    pub repaired: u64,
    /// What is wrong still.
    pub left: u64,
    /// The kind that was asked for.
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    pub repair: bool,
    pub started_at: Time,
    pub finished_at: Time,
    /// Rows that were read for it.
    pub rows: u64,
    pub kinds: Vec<KindDrift>,
    /// Some of what was wrong, in words.
    pub examples: Vec<String>,
}

/// What was found of one kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KindDrift {
    /// Null for what belongs to no kind.
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    pub edges: u64,
    pub tallies: u64,
    pub drift: u64,
    /// Edges that are not in their target's list.
    pub missing_incoming: u64,
    /// Places in targets' lists without an edge.
    pub surplus_incoming: u64,
    /// Edges that are not in their source's list.
    pub missing_outgoing: u64,
    /// Places in sources' lists without an edge.
    pub surplus_outgoing: u64,
    /// Edges that would never expire.
    pub missing_expiry: u64,
    /// Expiries without an edge.
    pub surplus_expiry: u64,
    pub wrong_tallies: u64,
    pub wrong_group_sizes: u64,
    /// Rows that say nothing; a repair leaves them as they are.
    pub unreadable: u64,
}

/// The last word on drift, and what is under way.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AuditState)]
pub struct StateView {
    /// What was wrong when everything was compared the last time; null before the first time.
    #[schema(required)]
    pub drift: Option<u64>,
    /// The position that this is true of.
    #[schema(required)]
    pub position: Option<u64>,
    #[schema(required)]
    pub finished_at: Option<Time>,
    pub scrubber: ScrubberView,
    /// An audit that somebody asked for and that has not ended.
    #[schema(required)]
    pub running: Option<RunningView>,
    /// The last audit that somebody asked for, if it has ended and has a result.
    #[schema(required)]
    pub last: Option<ReportView>,
    /// Why the last one has none.
    #[schema(required)]
    pub failed: Option<String>,
}

/// What compares everything again and again, slowly.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Scrubber)]
pub struct ScrubberView {
    /// 0 when it is off.
    pub rows_per_second: u64,
    /// Passes since the start.
    pub passes: u64,
    /// Rows that the present pass has read.
    pub rows: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RunningAudit)]
pub struct RunningView {
    #[schema(required, value_type = Option<String>)]
    pub kind: Option<Arc<str>>,
    pub repair: bool,
    pub started_at: Time,
    pub rows: u64,
}
