//! A move into a cluster, as the service that is moved sees it: writes pause for a moment, and then
//! for good.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How long writes may pause before they are taken again by themselves.
pub const PAUSE_MS_MAX: u64 = 5_000;
/// The longest address that callers are told.
pub const ADDRESS_CHARS_MAX: usize = 256;

/// Makes writes pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MovePause)]
pub struct PauseRequest {
    /// The move's own number.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub id: String,
    /// Without a confirmation writes are taken again after this.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 5000)]
    pub limit_ms: Option<u64>,
}

/// Says that everything up to a position is in the cluster.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MoveConfirmation)]
pub struct ConfirmRequest {
    /// The move that made writes pause.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub id: String,
    /// The position that the pause answered with.
    pub position: u64,
    /// The address of the cluster, which refused writes name.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub now_at: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveStateName {
    /// Nothing pauses.
    Here,
    /// Writes pause.
    Paused,
    /// Writes are refused for good.
    Moved,
}

/// How a move stands.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Move)]
pub struct MoveView {
    #[schema(inline)]
    pub state: MoveStateName,
    /// The move that made writes pause, or that the service has moved with.
    #[schema(required, pattern = "^[0-9]{1,20}$")]
    pub id: Option<String>,
    pub epoch: u32,
    /// What readers see; the log's last position while writes pause.
    pub position: u64,
    /// When writes are taken again, while they pause.
    #[schema(required)]
    pub left_ms: Option<u64>,
    /// Where the cluster is, once the service has moved and if somebody said it.
    #[schema(required)]
    pub now_at: Option<String>,
}
