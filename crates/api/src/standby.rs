//! A primary and its standbys: who follows whom, how far behind, and what a promotion leaves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::time::Time;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RoleName {
    Primary,
    Standby,
    /// One of a cluster's.
    Instance,
    /// Its history goes on in a cluster: it takes reads, and no more writes.
    Moved,
}

/// The service's part in a pair.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Standby)]
pub struct StandbyView {
    #[schema(inline)]
    pub role: RoleName,
    pub epoch: u32,
    /// What readers see.
    pub position: u64,
    /// Whom a standby follows, and how far behind it is.
    #[schema(required)]
    pub following: Option<FollowingView>,
    /// Those who follow this service.
    pub standbys: Vec<FollowerView>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Following)]
pub struct FollowingView {
    pub primary: String,
    /// The primary's last position when it was last heard of.
    pub primary_position: u64,
    pub lag_positions: u64,
    /// The age of the last record here while the primary has later ones, or the time since the
    /// last contact while it cannot be reached.
    pub lag_ms: u64,
    /// When the primary was last heard of.
    #[schema(required)]
    pub last_contact: Option<Time>,
    /// Why it does not follow at the moment.
    #[schema(required)]
    pub trouble: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Follower)]
pub struct FollowerView {
    /// The id of its data directory, which it keeps over restarts.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub id: String,
    /// It has everything up to here on disk.
    pub position: u64,
    pub lag_positions: u64,
    pub last_contact: Time,
}

/// What a standby has on disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Acknowledge)]
pub struct AcknowledgeRequest {
    pub epoch: u32,
    /// It has everything up to here.
    pub position: u64,
    /// The commit time of the frame that ends there, which tells apart histories with the same
    /// numbers; 0 at position 0.
    pub commit_ms: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Acknowledged)]
pub struct AcknowledgedView {
    /// Whether it counts for `standby.required`. It does not where the log no longer has the frame
    /// that it would be compared with.
    pub counts: bool,
}

/// What a promoted standby goes on from.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Promotion {
    /// The last position that it has.
    pub position: u64,
    /// The epoch that begins after it.
    pub epoch: u32,
    /// When that position was committed; null when there is nothing.
    #[schema(required)]
    pub committed_at: Option<Time>,
    /// How long ago that was.
    pub age_ms: u64,
}
