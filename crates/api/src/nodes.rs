//! A node's settings, and the job that erases it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::field::given;

#[derive(Debug, Serialize, ToSchema)]
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

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobStarted {
    #[schema(pattern = "^[0-9]{1,20}$")]
    pub job: String,
}
