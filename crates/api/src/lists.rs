//! Lists of edges seen from one node.

use std::borrow::Cow;

use serde::Serialize;
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::id::{Id, id_text};
use crate::schema::{nullable, object};
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

#[derive(Debug, Serialize)]
pub struct Item<'a> {
    /// The other end.
    pub id: Id,
    pub state: WireState,
    pub since: Time,
    /// With `mutual=true`: whether the other end relates back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual: Option<bool>,
    /// What the source keeps for itself; outgoing items only.
    #[serde(flatten)]
    pub own: Option<OwnFields<'a>>,
}

#[derive(Debug, Serialize)]
pub struct OwnFields<'a> {
    pub group: Option<&'a str>,
    pub owner: Option<Id>,
    pub data: Option<&'a str>,
    pub expires_at: Option<Time>,
}

impl PartialSchema for Item<'_> {
    fn schema() -> RefOr<Schema> {
        let of = |kind| RefOr::T(Schema::from(ObjectBuilder::new().schema_type(kind)));
        let fields = [
            ("id", id_text()),
            ("state", WireState::schema()),
            ("since", Time::schema()),
            ("mutual", of(Type::Boolean)),
            ("group", nullable(of(Type::String))),
            ("owner", nullable(id_text())),
            ("data", nullable(of(Type::String))),
            ("expires_at", nullable(Time::schema())),
        ];
        RefOr::T(object(fields, &["id", "state", "since"]))
    }
}

impl ToSchema for Item<'_> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ListItem")
    }
}
