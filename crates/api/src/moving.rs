//! A move into a cluster, as the service that is moved sees it: somebody begins, writes pause for a
//! moment, and then for good.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How long writes may pause before they are taken again by themselves.
pub const PAUSE_MS_MAX: u64 = 5_000;
/// The longest address that callers are told.
pub const ADDRESS_CHARS_MAX: usize = 256;

/// Whether callers can be sent there: `http://` or `https://`, and a host behind it.
pub fn is_address(text: &str) -> bool {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let begins =
        |rest: &str| rest.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '[');
    let plain = text.chars().all(|char| char.is_ascii_graphic());
    rest.is_some_and(begins) && plain && text.len() <= ADDRESS_CHARS_MAX
}

/// Begins a move, or goes on with it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MoveBegin)]
pub struct BeginRequest {
    /// The move's own number, which is the same whenever it is run again.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub id: String,
    /// The run that goes on; without it a new one begins, and takes the place of an earlier one of
    /// the same move.
    #[serde(default)]
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub run: Option<String>,
}

/// Makes writes pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MovePause)]
pub struct PauseRequest {
    /// The run of a move that has begun, and that follows the log.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub run: String,
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
    /// The run that made writes pause.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub run: String,
    /// The position that the pause answered with.
    pub position: u64,
    /// The address of the cluster, which refused writes name.
    #[serde(default)]
    #[schema(max_length = 256, pattern = r"^https?://[A-Za-z0-9\[][!-~]*$")]
    pub now_at: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MoveStateName {
    /// Nobody has begun.
    Here,
    /// A move has begun, and nothing pauses.
    Begun,
    /// Writes pause.
    Paused,
    /// Writes are refused for good.
    Moved,
}

/// How a move stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Move)]
pub struct MoveView {
    #[schema(inline)]
    pub state: MoveStateName,
    /// The move that has begun, or that the service has moved with.
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

/// What a move is told that has begun.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MoveBegun)]
pub struct BegunView {
    /// What every further call of this run names.
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub run: String,
    /// How long to wait before writes may pause: they have paused a moment ago, or too often.
    pub rest_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for good in ["http://cluster:7420", "https://a", "http://[::1]:7420/x?y#z"] {
            assert!(is_address(good), "{good}");
        }
        let long = format!("http://{}", "h".repeat(ADDRESS_CHARS_MAX));
        for wrong in ["", "cluster:7420", "not a url", "http://", "http:///x", "http://a b", &long]
        {
            assert!(!is_address(wrong), "{wrong}");
        }
    }
}
