//! Batch tallies of nodes.

use std::sync::Arc;

use guanxi_model::{Kind, TallyRow, Which};
use serde::ser::{Serialize as SerializeTrait, SerializeMap, Serializer};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::id::{Id, IdText};
use crate::name::Name;
use crate::object::entries;

/// Ids × kinds, at most 1000.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TalliesRequest<'a> {
    pub ids: Vec<Id>,
    #[serde(borrow)]
    #[schema(value_type = Vec<Name>)]
    pub kinds: Vec<Name<'a>>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NodeTallies)]
pub struct TalliesOf {
    #[schema(value_type = IdText, inline)]
    pub id: Id,
    /// By kind.
    #[schema(value_type = std::collections::HashMap<String, KindTallies>)]
    pub tallies: TalliesByKind,
}

/// In the order in which the kinds were named.
#[derive(Debug)]
pub struct TalliesByKind(pub Vec<(Arc<str>, KindTallies)>);

impl SerializeTrait for TalliesByKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (kind, tallies) in &self.0 {
            map.serialize_entry(kind, tallies)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TalliesByKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TalliesByKind, D::Error> {
        entries(deserializer).map(TalliesByKind)
    }
}

/// The numbers that a kind keeps: an id stands for the source in outgoing, for the target in
/// incoming, for the owner in owned; a counter has a value.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct KindTallies {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incoming: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_outgoing: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending_incoming: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owned: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<i64>,
}

impl KindTallies {
    /// What a kind keeps of an id, read from the rows of the node that the id stands for in each
    /// role.
    pub fn of(kind: &Kind, source: &TallyRow, target: &TallyRow, owner: &TallyRow) -> KindTallies {
        let number = |kept: bool, row: &TallyRow, which| kept.then(|| row.get(kind.id, which));
        if kind.fixed.counter {
            let value = number(true, target, Which::Value);
            return KindTallies { value, ..KindTallies::default() };
        }
        let (outgoing, incoming) = (kind.fixed.outgoing_tally, kind.fixed.incoming_tally);
        let approval = kind.rules.approval;
        KindTallies {
            outgoing: number(outgoing, source, Which::Outgoing),
            incoming: number(incoming, target, Which::Incoming),
            pending_outgoing: number(approval && outgoing, source, Which::PendingOutgoing),
            pending_incoming: number(approval && incoming, target, Which::PendingIncoming),
            owned: number(kind.fixed.owner_type.is_some(), owner, Which::Owned),
            value: None,
        }
    }
}

impl PartialSchema for KindTallies {
    fn schema() -> RefOr<Schema> {
        let names =
            ["outgoing", "incoming", "pending_outgoing", "pending_incoming", "owned", "value"];
        let object = names.into_iter().fold(ObjectBuilder::new(), |object, name| {
            let number = ObjectBuilder::new().schema_type(Type::Integer);
            object.property(name, Schema::from(number))
        });
        let closed = AdditionalProperties::FreeForm(false);
        RefOr::T(Schema::from(object.additional_properties(Some(closed))))
    }
}

impl ToSchema for KindTallies {}

/// One entry per id, in order.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TalliesAnswer {
    pub results: Vec<TalliesOf>,
    /// The database has too much to do: what is not known is 0. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub degraded: bool,
}
