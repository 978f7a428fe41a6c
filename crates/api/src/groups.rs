//! Groups of one source.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::WireGroupName;

/// The name of a new group, or the new name of one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupNaming {
    #[schema(inline)]
    pub name: WireGroupName,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Group)]
pub struct GroupView<'a> {
    #[schema(value_type = WireGroupName, inline)]
    pub name: &'a str,
    /// Live edges in it.
    pub size: i64,
}

/// In the order of their creation.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Groups<'a> {
    pub groups: Vec<GroupView<'a>>,
}
