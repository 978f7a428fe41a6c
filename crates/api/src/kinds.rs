//! Kinds over the admin API: as they are shown, created and changed.

use guanxi_model::change::{Field, KindPatch, KindSpec};
use guanxi_model::{Catalog, Error, Kind, KindName, TenantId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::field::field;
use crate::name::Name;

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Kind)]
pub struct KindView<'a> {
    #[schema(value_type = Name, inline)]
    pub name: &'a str,
    pub id: u16,
    /// Null for a counter, which has no sources.
    #[schema(required)]
    pub source_type: Option<&'a str>,
    pub target_type: &'a str,
    pub counter: bool,
    pub reconciled: bool,
    #[schema(required)]
    pub owner_type: Option<&'a str>,
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
    pub excludes: Vec<&'a str>,
    pub expires: bool,
    pub list_depth_max: u64,
}

impl<'a> KindView<'a> {
    pub fn new(kind: &'a Kind, tenant: TenantId, catalog: &'a Catalog) -> KindView<'a> {
        let Kind { fixed, rules, .. } = kind;
        let named = |id| catalog.type_name(tenant, id).map(KindName::as_str);
        let edges = !fixed.counter;
        let excluded = rules.excludes.iter();
        KindView {
            name: kind.name.as_str(),
            id: kind.id.0,
            source_type: named(fixed.source_type).filter(|_| edges),
            target_type: named(fixed.target_type).unwrap_or_default(),
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
                .map(|kind| kind.name.as_str())
                .collect(),
            expires: rules.expires,
            list_depth_max: rules.list_depth_max,
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Kinds<'a> {
    pub kinds: Vec<KindView<'a>>,
}

/// A new kind. What is left out takes the plainest value: every list and tally, no further rule.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewKind)]
pub struct KindCreation {
    #[schema(pattern = "^[a-z][a-z0-9_.]{0,31}$")]
    pub name: String,
    /// The node type of sources; a counter has none.
    #[schema(pattern = "^[a-z][a-z0-9_.]{0,31}$")]
    pub source_type: Option<String>,
    /// The node type of targets, or of the nodes that a counter counts for.
    #[schema(pattern = "^[a-z][a-z0-9_.]{0,31}$")]
    pub target_type: String,
    /// A pure counter instead of edges.
    #[serde(default)]
    pub counter: bool,
    /// Each delta of the counter must carry an idempotency key.
    #[serde(default)]
    pub reconciled: bool,
    /// Live edges also count for an owner of this node type.
    #[schema(pattern = "^[a-z][a-z0-9_.]{0,31}$")]
    pub owner_type: Option<String>,
    pub outgoing_list: Option<bool>,
    pub incoming_list: Option<bool>,
    pub outgoing_tally: Option<bool>,
    pub incoming_tally: Option<bool>,
    /// A node may relate to itself.
    #[serde(default)]
    pub self_allowed: bool,
    /// Live and pending outgoing edges of one source; null for no limit.
    #[schema(minimum = 1)]
    pub outgoing_max: Option<u32>,
    #[serde(default)]
    #[schema(maximum = 1000)]
    pub groups_max: u32,
    /// Targets may ask to approve edges first.
    #[serde(default)]
    pub approval: bool,
    #[serde(default)]
    #[schema(maximum = 128)]
    pub data_bytes_max: u32,
    /// Kinds whose edges a put of this kind removes and from then on forbids, both ways.
    #[serde(default)]
    #[schema(max_items = 8)]
    pub excludes: Vec<String>,
    /// Edges may have an end.
    #[serde(default)]
    pub expires: bool,
    /// How deep a public walk of an incoming list may go; 0 = without bound.
    #[serde(default)]
    pub list_depth_max: u64,
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
                return Err(Error::invalid(
                    "source_type: a kind of edges needs one, such as user",
                ));
            }
        };
        let lists = [
            ("outgoing_list", self.outgoing_list),
            ("incoming_list", self.incoming_list),
            ("outgoing_tally", self.outgoing_tally),
            ("incoming_tally", self.incoming_tally),
        ];
        let kept = lists.iter().find(|(_, kept)| *kept == Some(true));
        if let (Some((field, _)), true) = (kept, self.counter) {
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
        })
    }
}

/// Changed rules of a kind; what is absent stays. They bind new writes only.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = KindChange)]
pub struct KindAmendment {
    pub self_allowed: Option<bool>,
    #[serde(default, deserialize_with = "field")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pub outgoing_max: Field<u32>,
    #[schema(maximum = 1000)]
    pub groups_max: Option<u32>,
    pub approval: Option<bool>,
    #[schema(maximum = 128)]
    pub data_bytes_max: Option<u32>,
    #[schema(max_items = 8)]
    pub excludes: Option<Vec<String>>,
    pub expires: Option<bool>,
    pub list_depth_max: Option<u64>,
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
        }
    }
}
