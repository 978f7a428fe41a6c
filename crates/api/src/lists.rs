//! Lists of edges seen from one node.

use std::borrow::Cow;

use guanxi_model::page::Order;
use guanxi_model::{Millis, State};
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::id::{Id, id_text};
use crate::name::{Name, WireGroupName};
use crate::schema::{nullable, object};
use crate::state::WireState;
use crate::time::Time;

/// Whose list by which kind, and which of its pages. A list takes what fits it.
#[derive(Debug)]
pub struct ListOf<'a> {
    pub kind: Name<'a>,
    pub id: Id,
    pub limit: Option<usize>,
    pub cursor: Option<String>,
    pub page: Option<u64>,
    pub order: Order,
    pub since: Option<Millis>,
    pub until: Option<Millis>,
    /// The empty name stands for edges in no group.
    pub group: Option<String>,
    pub state: State,
    pub mutual: bool,
}

impl<'a> ListOf<'a> {
    /// The first page of live edges, the newest first.
    pub fn new(kind: Name<'a>, id: Id) -> ListOf<'a> {
        ListOf {
            kind,
            id,
            limit: None,
            cursor: None,
            page: None,
            order: Order::default(),
            since: None,
            until: None,
            group: None,
            state: State::Live,
            mutual: false,
        }
    }
}

/// What a node's list has to do with another node.
#[derive(Debug)]
pub struct JoinedList<'a> {
    pub list: ListOf<'a>,
    pub other: Id,
}

/// One page of a list. It may be short with `next` set; a null `next` is the only end.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[schema(inline)]
    pub items: Vec<Item>,
    /// How many there are in all, where that is kept.
    #[schema(required)]
    pub total: Option<i64>,
    /// The cursor of the next page.
    #[schema(required)]
    pub next: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Item {
    /// The other end.
    pub id: Id,
    pub state: WireState,
    pub since: Time,
    /// With `mutual=true`: whether the other end relates back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mutual: Option<bool>,
    /// What the source keeps for itself; outgoing items only.
    #[serde(flatten)]
    pub own: Option<OwnFields>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct OwnFields {
    /// It may be null and never absent, which tells items that have these fields from others.
    #[serde(deserialize_with = "Option::deserialize")]
    pub group: Option<WireGroupName>,
    pub owner: Option<Id>,
    pub data: Option<Box<str>>,
    pub expires_at: Option<Time>,
}

impl PartialSchema for Item {
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

impl ToSchema for Item {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("ListItem")
    }
}
