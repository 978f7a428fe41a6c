//! What is read most.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::Id;

/// Keys of one answer at most, and unless fewer or more are asked for.
pub const HOT_KEYS_MAX: usize = 256;
pub const HOT_KEYS_DEFAULT: usize = 20;

#[derive(Debug, Default)]
pub struct ListHot {
    pub limit: Option<usize>,
}

/// What is read of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhatRead {
    /// Tallies of a node of `type`.
    Tallies,
    /// Who relates to it by `kind`.
    Incoming,
    /// Whom it relates to by `kind`.
    Outgoing,
    /// Whether it, a node of `type`, relates to others.
    Checks,
}

/// The keys that are read most, the most first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HotKeys {
    pub items: Vec<HotKey>,
    /// How many instances the numbers are of.
    pub instances: u64,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HotKey {
    pub what: WhatRead,
    /// The kind of a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, required = false)]
    pub kind: Option<Arc<str>>,
    /// The node type of what has no kind.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, required = false)]
    pub node_type: Option<Arc<str>>,
    pub id: Id,
    /// About how often it was read in the last seconds.
    pub per_second: u64,
    /// Whether its answers are kept in the process; an embedded service has no need to.
    pub pinned: bool,
}
