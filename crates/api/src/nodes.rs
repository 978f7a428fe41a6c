//! A node's settings, and the job that erases it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::field::given;
use crate::id::Id;
use crate::name::Name;

/// Which node a call is about.
#[derive(Debug)]
pub struct NodeOf<'a> {
    pub node_type: Name<'a>,
    pub id: Id,
}

#[derive(Debug)]
pub struct PutNode<'a> {
    pub node: NodeOf<'a>,
    pub change: NodeChange,
}

/// Settings after a change of them.
#[derive(Debug)]
pub struct NodeChanged {
    pub settings: NodeSettings,
    pub token: Arc<str>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeSettings {
    /// New incoming edges of kinds with approval wait for the node's word.
    pub private: bool,
}

/// What to set; an absent setting stays as it is.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    #[serde(default, deserialize_with = "given")]
    #[schema(nullable = false)]
    pub private: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobStarted {
    #[schema(value_type = String, pattern = "^[0-9]{1,20}$")]
    pub job: Id,
    #[serde(skip)]
    #[schema(ignore)]
    pub token: Arc<str>,
}
