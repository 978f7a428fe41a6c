//! Lines of imports and exports: edges, and by `type` groups, nodes' settings and counters. A line
//! is JSON, or a row of CSV under a header line of the same names. What a line says is checked
//! here; whether it may be is the model's to decide.

mod csv;
mod cutter;
mod rejected;

pub use csv::{CsvColumns, write_csv, write_csv_header};
pub use cutter::LineCutter;
pub use rejected::RejectedColumns;

use guanxi_model::change::{Change, Field, ImportEdge, Put};
use guanxi_model::{
    Catalog, Code, EdgeKey, Error, GroupsKey, Kind, NodeKey, SourceId, State, TargetId, TenantId,
};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::edges::VersionText;
use crate::field::{field, mapped};
use crate::id::Id;
use crate::name::{Name, WireGroupName};
use crate::time::Time;

/// Far more than the longest line that says something; it bounds the memory of a reader.
pub const LINE_BYTES_MAX: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineFormat {
    Ndjson,
    Csv,
}

/// One line, as it came. Which fields it may have depends on its type.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line<'a> {
    #[serde(default, rename = "type", borrow)]
    line_type: Option<Name<'a>>,
    #[serde(default, borrow)]
    kind: Option<Name<'a>>,
    #[serde(default)]
    source: Option<Id>,
    #[serde(default)]
    target: Option<Id>,
    #[serde(default, borrow)]
    state: Option<Name<'a>>,
    #[serde(default)]
    since: Option<Time>,
    #[serde(default, deserialize_with = "field")]
    group: Field<WireGroupName>,
    #[serde(default, deserialize_with = "field")]
    owner: Field<Id>,
    #[serde(default, deserialize_with = "field")]
    data: Field<Box<str>>,
    #[serde(default, deserialize_with = "field")]
    expires_at: Field<Time>,
    /// An export says it; an edge gets a new one when it is imported.
    #[serde(default)]
    version: Option<IgnoredAny>,
    /// A file of rejected lines says why; it may be imported again.
    #[serde(default)]
    error: Option<IgnoredAny>,
    #[serde(default, borrow)]
    node_type: Option<Name<'a>>,
    #[serde(default)]
    id: Option<Id>,
    #[serde(default)]
    private: Option<bool>,
    #[serde(default)]
    value: Option<i64>,
}

impl Line<'_> {
    /// What the line asks for.
    pub fn into_change(
        self,
        tenant: TenantId,
        catalog: &Catalog,
        ignore_limits: bool,
    ) -> Result<Change, Error> {
        match self.line_type.as_ref().map_or("edge", Name::as_str) {
            "edge" => self.edge(tenant, catalog, ignore_limits),
            "group" => self.group(tenant, catalog),
            "node" => self.node(tenant, catalog),
            "counter" => self.counter(tenant, catalog),
            _ => Err(Error::invalid("type: it is edge, group, node or counter")),
        }
    }

    fn edge(
        self,
        tenant: TenantId,
        catalog: &Catalog,
        ignore_limits: bool,
    ) -> Result<Change, Error> {
        self.refuse("an edge", &["node_type", "id", "private", "value"])?;
        let edge = EdgeKey {
            tenant,
            kind: self.kind_in(tenant, catalog)?.id,
            source: SourceId(needed(self.source, "source")?.0),
            target: TargetId(needed(self.target, "target")?.0),
        };
        let state = match self.state.as_ref().map(Name::as_str) {
            None => None,
            Some("live") => Some(State::Live),
            Some("pending") => Some(State::Pending),
            Some(_) => return Err(Error::invalid("state: it is live or pending")),
        };
        let put = Put {
            group: mapped(self.group, |name| name.0),
            owner: mapped(self.owner, |owner| owner.0),
            data: self.data,
            expires_at: mapped(self.expires_at, |time| time.0),
            ..Put::plain(edge)
        };
        let since = self.since.map(|time| time.0);
        Ok(Change::ImportEdge(Box::new(ImportEdge { put, since, state, ignore_limits })))
    }

    fn group(self, tenant: TenantId, catalog: &Catalog) -> Result<Change, Error> {
        let foreign = ["target", "state", "since", "owner", "data", "expires_at"];
        self.refuse("a group", &foreign)?;
        self.refuse("a group", &["node_type", "id", "private", "value"])?;
        let kind = self.kind_in(tenant, catalog)?.id;
        let source = SourceId(needed(self.source, "source")?.0);
        let Field::Set(name) = self.group else {
            return Err(missing("group"));
        };
        Ok(Change::ImportGroup { groups: GroupsKey { tenant, kind, source }, name: name.0 })
    }

    fn node(self, tenant: TenantId, catalog: &Catalog) -> Result<Change, Error> {
        self.refuse("a node", &["kind", "source", "target", "state", "since", "group"])?;
        self.refuse("a node", &["owner", "data", "expires_at", "value"])?;
        let name = needed(self.node_type, "node_type")?;
        let node_type = catalog.type_named(tenant, name.as_str()).ok_or_else(|| {
            Error::new(Code::NotFound, "node_type: there is no node type of this name")
        })?;
        let node = NodeKey { tenant, node_type, id: needed(self.id, "id")?.0 };
        Ok(Change::SetNode { node, private: self.private })
    }

    fn counter(self, tenant: TenantId, catalog: &Catalog) -> Result<Change, Error> {
        self.refuse("a counter", &["source", "target", "state", "since", "group", "owner"])?;
        self.refuse("a counter", &["data", "expires_at", "node_type", "private"])?;
        let kind = self.kind_in(tenant, catalog)?.id;
        let id = needed(self.id, "id")?.0;
        let value = needed(self.value, "value")?;
        Ok(Change::ImportCounter { tenant, kind, id, value })
    }

    fn kind_in<'c>(&self, tenant: TenantId, catalog: &'c Catalog) -> Result<&'c Kind, Error> {
        let name = self.kind.as_ref().ok_or_else(|| missing("kind"))?;
        catalog.named(tenant, name.as_str()).map(AsRef::as_ref)
    }

    /// Fields that a line of this type has no use for are refused by name.
    fn refuse(&self, what: &str, names: &[&str]) -> Result<(), Error> {
        let foreign = names.iter().find(|name| self.has(name));
        foreign.map_or(Ok(()), |name| Err(Error::invalid(format!("{name}: {what} has none"))))
    }

    fn has(&self, name: &str) -> bool {
        match name {
            "kind" => self.kind.is_some(),
            "source" => self.source.is_some(),
            "target" => self.target.is_some(),
            "state" => self.state.is_some(),
            "since" => self.since.is_some(),
            "group" => self.group != Field::Keep,
            "owner" => self.owner != Field::Keep,
            "data" => self.data != Field::Keep,
            "expires_at" => self.expires_at != Field::Keep,
            "node_type" => self.node_type.is_some(),
            "id" => self.id.is_some(),
            "private" => self.private.is_some(),
            "value" => self.value.is_some(),
            _ => false,
        }
    }
}

fn needed<T>(value: Option<T>, name: &str) -> Result<T, Error> {
    value.ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::invalid(format!("{name}: it is missing"))
}

/// A line of an export; what is absent is left out.
#[derive(Debug, Default, Serialize)]
pub struct ExportLine<'a> {
    /// None for an edge.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub line_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionText>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Id>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<i64>,
}
