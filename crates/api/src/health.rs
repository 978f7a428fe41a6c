//! What machines ask about the service itself.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::standby::RoleName;
use crate::time::Time;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Health {
    #[schema(value_type = String)]
    pub status: Cow<'static, str>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Readiness {
    #[schema(value_type = String)]
    pub status: Cow<'static, str>,
    #[schema(inline)]
    pub role: RoleName,
    /// Where the cluster is that a service, or a standby's primary, has moved to, if somebody said
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now_at: Option<String>,
    /// How far ahead this machine's clock is since it jumped. It is not believed: nothing expires
    /// or is trimmed early. Absent when all is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_held_back_ms: Option<u64>,
    /// How far a standby is behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_positions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<u64>,
    /// When a standby last heard of its primary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_contact: Option<Time>,
    /// How the cluster fares, as this instance of it sees it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(inline)]
    pub cluster: Option<ClusterHealth>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClusterHealth {
    /// The parts that this instance plays.
    #[schema(value_type = Vec<String>)]
    pub roles: Vec<Cow<'static, str>>,
    /// Without the log, writes and what they changed on the source's side go on; the target's
    /// side stands still.
    pub log_reachable: bool,
    /// Age of the oldest record that the log does not have.
    pub relay_lag_ms: u64,
    /// Records of the log that the target's side does not have; null while this instance does not
    /// know, because the log does not answer it.
    pub applier_lag_records: Option<u64>,
    pub dead_letters: u64,
    /// The database's clock less that of this instance.
    pub clock_offset_ms: i64,
    /// Whether Redis answers this instance; absent where none is set. Without it reads ask the
    /// database.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_reachable: Option<bool>,
    /// Whether checks may end in the filter; it is filled anew after Redis was away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter_serves: Option<bool>,
    /// Whether reads found no place at the database, or no answer, in the last seconds. They are
    /// refused or degraded, as their kinds say.
    pub overloaded: bool,
}
