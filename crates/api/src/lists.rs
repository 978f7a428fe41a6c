//! Lists of edges seen from one node.

use serde::Serialize;
use utoipa::ToSchema;

use crate::id::{Id, IdText};
use crate::state::WireState;
use crate::time::Time;

/// One page of a list. It may be short with `next` set; a null `next` is the only end.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct List<'a> {
    #[schema(inline)]
    pub items: Vec<Item<'a>>,
    /// How many there are in all, where that is kept.
    #[schema(required)]
    pub total: Option<i64>,
    /// The cursor of the next page.
    #[schema(required)]
    pub next: Option<&'a str>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ListItem)]
pub struct Item<'a> {
    /// The other end.
    #[schema(value_type = IdText, inline)]
    pub id: Id,
    #[schema(inline)]
    pub state: WireState,
    #[schema(inline)]
    pub since: Time,
    /// With `mutual=true`: whether the other end relates back.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mutual: Option<bool>,
    /// What the source keeps for itself; outgoing items only.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub own: Option<OwnFields<'a>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OwnFields<'a> {
    pub group: Option<&'a str>,
    pub owner: Option<Id>,
    pub data: Option<&'a str>,
    pub expires_at: Option<Time>,
}
