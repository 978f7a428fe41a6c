//! Kinds over the admin API: as they are shown, created and changed.

use std::borrow::Cow;
use std::sync::Arc;

use guanxi_model::change::{Field, KindPatch, KindSpec};
use guanxi_model::limits::{DATA_BYTES_MAX, EXCLUDES_MAX, GROUPS_PER_SOURCE_MAX};
use guanxi_model::{Catalog, Error, Kind, KindName, OnOverload, TenantId};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::field::given;
use crate::name::{Name, name_text};
use crate::number::{given_whole, whole};
use crate::schema::{nullable, object, one_of};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Kind)]
pub struct KindView {
    #[schema(value_type = Name, inline)]
    pub name: Arc<str>,
    pub id: u16,
    /// Null for a counter, which has no sources.
    #[schema(required, value_type = Option<String>)]
    pub source_type: Option<Arc<str>>,
    #[schema(value_type = String)]
    pub target_type: Arc<str>,
    pub counter: bool,
    pub reconciled: bool,
    #[schema(required, value_type = Option<String>)]
    pub owner_type: Option<Arc<str>>,
    pub outgoing_list: bool,
    pub incoming_list: bool,
    pub outgoing_tally: bool,
    pub incoming_tally: bool,
    pub self_allowed: bool,
    #[schema(required)]
    pub outgoing_max: Option<u32>,
    pub groups_max: u32,
    pub approval: bool,
    pub data_bytes_max: u32,
    #[schema(value_type = Vec<String>)]
    pub excludes: Vec<Arc<str>>,
    pub expires: bool,
    pub list_depth_max: u64,
    #[schema(inline)]
    pub on_overload: WireOnOverload,
}

impl KindView {
    pub fn new(kind: &Kind, tenant: TenantId, catalog: &Catalog) -> KindView {
        let Kind { fixed, rules, .. } = kind;
        let named = |id| catalog.type_name(tenant, id).map(KindName::shared);
        let edges = !fixed.counter;
        let excluded = rules.excludes.iter();
        KindView {
            name: kind.name.shared(),
            id: kind.id.0,
            source_type: named(fixed.source_type).filter(|_| edges),
            target_type: named(fixed.target_type).unwrap_or_else(|| "".into()),
            counter: fixed.counter,
            reconciled: fixed.reconciled,
            owner_type: fixed.owner_type.and_then(named),
            outgoing_list: fixed.outgoing_list && edges,
            incoming_list: fixed.incoming_list && edges,
            outgoing_tally: fixed.outgoing_tally && edges,
            incoming_tally: fixed.incoming_tally && edges,
            self_allowed: rules.self_allowed,
            outgoing_max: rules.outgoing_max,
            groups_max: rules.groups_max,
            approval: rules.approval,
            data_bytes_max: rules.data_bytes_max,
            excludes: excluded
                .filter_map(|id| catalog.kind(tenant, *id))
                .map(|kind| kind.name.shared())
                .collect(),
            expires: rules.expires,
            list_depth_max: rules.list_depth_max,
            on_overload: rules.on_overload.into(),
        }
    }
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kinds {
    pub kinds: Vec<KindView>,
}

#[derive(Debug)]
pub struct ChangeKind<'a> {
    pub name: Name<'a>,
    pub amendment: KindAmendment,
}

/// A kind after a change of it.
#[derive(Debug)]
pub struct KindChanged {
    pub kind: KindView,
    pub token: Arc<str>,
}

/// A new kind. What is left out takes the plainest value: every list and tally, no further rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KindCreation {
    pub name: String,
    /// The node type of sources; a counter has none.
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub source_type: Option<String>,
    /// The node type of targets, or of the nodes that a counter counts for.
    pub target_type: String,
    /// A pure counter instead of edges.
    #[serde(default)]
    pub counter: bool,
    /// Each delta of the counter must carry an idempotency key.
    #[serde(default)]
    pub reconciled: bool,
    /// Live edges also count for an owner of this node type.
    pub owner_type: Option<String>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub outgoing_list: Option<bool>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub incoming_list: Option<bool>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub outgoing_tally: Option<bool>,
    #[serde(default, deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    pub incoming_tally: Option<bool>,
    /// A node may relate to itself.
    #[serde(default)]
    pub self_allowed: bool,
    /// Live and pending outgoing edges of one source; null for no limit.
    #[serde(default, deserialize_with = "nullable_whole")]
    pub outgoing_max: Option<u32>,
    #[serde(default, deserialize_with = "whole")]
    pub groups_max: u32,
    /// Targets may ask to approve edges first.
    #[serde(default)]
    pub approval: bool,
    #[serde(default, deserialize_with = "whole")]
    pub data_bytes_max: u32,
    /// Kinds whose edges a put of this kind removes and from then on forbids, both ways.
    #[serde(default)]
    pub excludes: Vec<String>,
    /// Edges may have an end.
    #[serde(default)]
    pub expires: bool,
    /// How deep a public walk of an incoming list may go; 0 = without bound.
    #[serde(default, deserialize_with = "whole")]
    pub list_depth_max: u64,
    /// What reads of a cluster are told when its database has more to do than it can.
    #[serde(default)]
    pub on_overload: WireOnOverload,
}

/// What reads of a cluster are told when its database has more to do than it can: that they should
/// come again, or what is known and for the rest not related and 0, marked as degraded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = OnOverload)]
pub enum WireOnOverload {
    #[default]
    Refuse,
    AnswerDefault,
}

impl From<OnOverload> for WireOnOverload {
    fn from(rule: OnOverload) -> WireOnOverload {
        match rule {
            OnOverload::Refuse => WireOnOverload::Refuse,
            OnOverload::AnswerDefault => WireOnOverload::AnswerDefault,
        }
    }
}

impl From<WireOnOverload> for OnOverload {
    fn from(rule: WireOnOverload) -> OnOverload {
        match rule {
            WireOnOverload::Refuse => OnOverload::Refuse,
            WireOnOverload::AnswerDefault => OnOverload::AnswerDefault,
        }
    }
}

impl KindCreation {
    pub fn into_spec(self) -> Result<KindSpec, Error> {
        let name = |field: &str, text: &str| {
            KindName::new(text)
                .map_err(|error| Error::invalid(format!("{field}: {}", error.message)))
        };
        let target_type = name("target_type", &self.target_type)?;
        let source_type = match (&self.source_type, self.counter) {
            (Some(text), false) => name("source_type", text)?,
            (None, true) => target_type.clone(),
            (Some(_), true) => {
                return Err(Error::invalid("source_type: a counter has no sources"));
            }
            (None, false) => {
                return Err(Error::invalid("source_type: a kind of edges needs one, such as user"));
            }
        };
        let lists = [
            ("outgoing_list", self.outgoing_list),
            ("incoming_list", self.incoming_list),
            ("outgoing_tally", self.outgoing_tally),
            ("incoming_tally", self.incoming_tally),
        ];
        let given = lists.iter().find(|(_, kept)| kept.is_some());
        if let (Some((field, _)), true) = (given, self.counter) {
            return Err(Error::invalid(format!(
                "{field}: a counter keeps no lists and tallies of edges"
            )));
        }
        let keeps = |given: Option<bool>| self.counter || given.unwrap_or(true);
        let owner_type = match &self.owner_type {
            Some(text) => Some(name("owner_type", text)?),
            None => None,
        };
        Ok(KindSpec {
            name: name("name", &self.name)?,
            source_type,
            target_type,
            owner_type,
            counter: self.counter,
            reconciled: self.reconciled,
            outgoing_list: keeps(self.outgoing_list),
            incoming_list: keeps(self.incoming_list),
            outgoing_tally: keeps(self.outgoing_tally),
            incoming_tally: keeps(self.incoming_tally),
            self_allowed: self.self_allowed,
            outgoing_max: self.outgoing_max,
            groups_max: self.groups_max,
            approval: self.approval,
            data_bytes_max: self.data_bytes_max,
            excludes: self.excludes,
            expires: self.expires,
            list_depth_max: self.list_depth_max,
            on_overload: self.on_overload.into(),
        })
    }
}

impl PartialSchema for KindCreation {
    /// Three sorts of kinds, as rules that go together: a limit needs the outgoing tally, and a
    /// counter has no rule of edges.
    fn schema() -> RefOr<Schema> {
        let of = |kind| ObjectBuilder::new().schema_type(kind);
        let flag = || RefOr::T(Schema::from(of(Type::Boolean)));
        let never = || RefOr::T(Schema::from(of(Type::Boolean).enum_values(Some([false]))));
        let always = || RefOr::T(Schema::from(of(Type::Boolean).enum_values(Some([true]))));
        let up_to = |max: u64| {
            let number = of(Type::Integer).minimum(Some(0)).maximum(Some(max));
            RefOr::T(Schema::from(number))
        };
        let null = || RefOr::T(Schema::from(of(Type::Null)));
        let limit = of(Type::Integer).minimum(Some(1)).maximum(Some(u32::MAX));
        let limit = RefOr::T(Schema::from(limit));
        let edges = |tally: RefOr<Schema>, limit: RefOr<Schema>, required: &[&str]| {
            let excludes = ArrayBuilder::new().items(name_text()).max_items(Some(EXCLUDES_MAX));
            let fields = [
                ("name", name_text()),
                ("source_type", name_text()),
                ("target_type", name_text()),
                ("counter", never()),
                ("reconciled", never()),
                ("owner_type", nullable(name_text())),
                ("outgoing_list", flag()),
                ("incoming_list", flag()),
                ("outgoing_tally", tally),
                ("incoming_tally", flag()),
                ("self_allowed", flag()),
                ("outgoing_max", limit),
                ("groups_max", up_to(u64::from(GROUPS_PER_SOURCE_MAX))),
                ("approval", flag()),
                ("data_bytes_max", up_to(DATA_BYTES_MAX as u64)),
                ("excludes", RefOr::T(Schema::from(excludes))),
                ("expires", flag()),
                ("list_depth_max", up_to(u64::MAX)),
                ("on_overload", WireOnOverload::schema()),
            ];
            RefOr::T(object(fields, required))
        };
        let no_list = ArrayBuilder::new().items(name_text()).max_items(Some(0));
        let counter = object(
            [
                ("name", name_text()),
                ("target_type", name_text()),
                ("counter", always()),
                ("reconciled", flag()),
                ("owner_type", null()),
                ("self_allowed", flag()),
                ("outgoing_max", null()),
                ("groups_max", up_to(0)),
                ("approval", never()),
                ("data_bytes_max", up_to(0)),
                ("excludes", RefOr::T(Schema::from(no_list))),
                ("expires", never()),
                ("list_depth_max", up_to(0)),
                ("on_overload", WireOnOverload::schema()),
            ],
            &["name", "target_type", "counter"],
        );
        let required = ["name", "source_type", "target_type"];
        let limited = ["name", "source_type", "target_type", "outgoing_max"];
        one_of([
            edges(flag(), null(), &required),
            edges(always(), limit, &limited),
            RefOr::T(counter),
        ])
    }
}

impl ToSchema for KindCreation {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("NewKind")
    }
}

/// Changed rules of a kind; what is absent stays. They bind new writes only, but for `on_overload`,
/// which is about reads.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KindAmendment {
    #[serde(default, deserialize_with = "given")]
    pub self_allowed: Option<bool>,
    #[serde(default, deserialize_with = "whole_field")]
    pub outgoing_max: Field<u32>,
    #[serde(default, deserialize_with = "given_whole")]
    pub groups_max: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    pub approval: Option<bool>,
    #[serde(default, deserialize_with = "given_whole")]
    pub data_bytes_max: Option<u32>,
    #[serde(default, deserialize_with = "given")]
    pub excludes: Option<Vec<String>>,
    #[serde(default, deserialize_with = "given")]
    pub expires: Option<bool>,
    #[serde(default, deserialize_with = "given_whole")]
    pub list_depth_max: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    pub on_overload: Option<WireOnOverload>,
}

/// Null or a whole number.
fn nullable_whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    struct WholeNumber(u32);
    impl<'de> Deserialize<'de> for WholeNumber {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WholeNumber, D::Error> {
            whole(deserializer).map(WholeNumber)
        }
    }
    let number = Option::<WholeNumber>::deserialize(deserializer)?;
    Ok(number.map(|number| number.0))
}

fn whole_field<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Field<u32>, D::Error> {
    Ok(match nullable_whole(deserializer)? {
        None => Field::Clear,
        Some(number) => Field::Set(number),
    })
}

impl PartialSchema for KindAmendment {
    fn schema() -> RefOr<Schema> {
        let of = |kind| ObjectBuilder::new().schema_type(kind);
        let flag = || RefOr::T(Schema::from(of(Type::Boolean)));
        let between = |min: u64, max: u64| {
            let number = of(Type::Integer).minimum(Some(min)).maximum(Some(max));
            RefOr::T(Schema::from(number))
        };
        let excludes = ArrayBuilder::new().items(of(Type::String)).max_items(Some(EXCLUDES_MAX));
        let fields = [
            ("self_allowed", flag()),
            ("outgoing_max", nullable(between(1, u64::from(u32::MAX)))),
            ("groups_max", between(0, u64::from(GROUPS_PER_SOURCE_MAX))),
            ("approval", flag()),
            ("data_bytes_max", between(0, DATA_BYTES_MAX as u64)),
            ("excludes", RefOr::T(Schema::from(excludes))),
            ("expires", flag()),
            ("list_depth_max", between(0, u64::MAX)),
            ("on_overload", WireOnOverload::schema()),
        ];
        RefOr::T(object(fields, &[]))
    }
}

impl ToSchema for KindAmendment {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("KindChange")
    }
}

impl From<KindAmendment> for KindPatch {
    fn from(amendment: KindAmendment) -> KindPatch {
        KindPatch {
            self_allowed: amendment.self_allowed,
            outgoing_max: amendment.outgoing_max,
            groups_max: amendment.groups_max,
            approval: amendment.approval,
            data_bytes_max: amendment.data_bytes_max,
            excludes: amendment.excludes,
            expires: amendment.expires,
            list_depth_max: amendment.list_depth_max,
            on_overload: amendment.on_overload.map(OnOverload::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_models() {
        for rule in [OnOverload::Refuse, OnOverload::AnswerDefault] {
            let json = serde_json::to_string(&WireOnOverload::from(rule)).unwrap();
            assert_eq!(json, format!("\"{}\"", rule.name()));
            assert_eq!(
                OnOverload::from(serde_json::from_str::<WireOnOverload>(&json).unwrap()),
                rule
            );
        }
    }
}
