//! Rows of the tables as the model's types, and the model's types as parts of statements. The one
//! place that knows the columns' order.

use std::fmt::Write;

use guanxi_model::group::Group;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupName, GroupsKey, HeadVersion, KindId, Millis, NodeKey,
    SourceId, State, TargetId, TenantId, Version,
};
pub use mysql::Row;
use mysql::prelude::FromValue;

use super::sql::SqlError;
use super::sql::text;

/// No tenant has this id: its heads are those of lanes.
pub const NO_TENANT: TenantId = TenantId(0);

/// The key of a head, and of a source's groups.
pub type HeadKey = GroupsKey;

/// What a head row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    pub version: HeadVersion,
    pub outgoing: i64,
    pub pending_outgoing: i64,
    pub next_group: u32,
    /// An edge that excludes some of this source's edges was put once; it may be gone.
    pub excluded: bool,
}

pub const HEAD_COLUMNS: &str =
    "tenant,kind,source,version,outgoing,pending_outgoing,next_group,excluded";
pub const OUTGOING_COLUMNS: &str =
    "tenant,kind,source,target,version,state,since,group_id,owner,data,expires_at";
pub const INCOMING_COLUMNS: &str = "tenant,kind,source,target,version,state,since,owner";
pub const GROUP_COLUMNS: &str = "tenant,kind,source,id,name,size";

/// The columns of new edges that a statement names. Those that are NULL in all of its rows are left
/// out: most edges have none of them, and each costs the server as much to read as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeColumns {
    group: bool,
    owner: bool,
    data: bool,
    expires_at: bool,
}

impl EdgeColumns {
    pub const ALL: EdgeColumns =
        EdgeColumns { group: true, owner: true, data: true, expires_at: true };

    /// Those that these rows need.
    pub fn of<'a>(rows: impl IntoIterator<Item = &'a EdgeRow>) -> EdgeColumns {
        let mut needed = EdgeColumns::default();
        for row in rows {
            needed.group |= row.group.is_some();
            needed.owner |= row.owner.is_some();
            needed.data |= row.data.is_some();
            needed.expires_at |= row.expires_at.is_some();
        }
        needed
    }

    pub fn row(&self, out: &mut String, key: &EdgeKey, row: &EdgeRow, cause: &str) {
        let EdgeKey { tenant, kind, source, target } = key;
        let _ = write!(
            out,
            "({},{},{},{},{},{},{},'{cause}'",
            tenant.0, kind.0, source.0, target.0, row.version.0, row.state as u8, row.since.0
        );
        if self.group {
            out.push(',');
            text::optional(out, row.group, |out, group| text::number(out, group.0));
        }
        if self.owner {
            out.push(',');
            text::optional(out, row.owner, text::number);
        }
        if self.data {
            out.push(',');
            text::optional(out, row.data.as_deref(), |out, data| text::bytes(out, data.as_bytes()));
        }
        if self.expires_at {
            out.push(',');
            text::optional(out, row.expires_at, |out, at| text::number(out, at.0));
        }
        out.push(')');
    }
}

/// Their names, in the order of a row's values.
impl std::fmt::Display for EdgeColumns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("tenant,kind,source,target,version,state,since,cause")?;
        let named = [
            (self.group, ",group_id"),
            (self.owner, ",owner"),
            (self.data, ",data"),
            (self.expires_at, ",expires_at"),
        ];
        named.into_iter().filter(|(needed, _)| *needed).try_for_each(|(_, name)| f.write_str(name))
    }
}

/// One cell; a missing or mistyped one means that the tables are not ours.
pub fn cell<T: FromValue>(row: &Row, index: usize) -> Result<T, SqlError> {
    let value = row.get_opt::<T, usize>(index);
    value.and_then(Result::ok).ok_or_else(|| {
        SqlError::Refused(format!("column {index} of a row is not what it should be"))
    })
}

pub fn edge_key(row: &Row) -> Result<EdgeKey, SqlError> {
    Ok(EdgeKey {
        tenant: TenantId(cell(row, 0)?),
        kind: KindId(cell(row, 1)?),
        source: SourceId(cell(row, 2)?),
        target: TargetId(cell(row, 3)?),
    })
}

pub fn head(row: &Row) -> Result<(HeadKey, Head), SqlError> {
    let key = GroupsKey {
        tenant: TenantId(cell(row, 0)?),
        kind: KindId(cell(row, 1)?),
        source: SourceId(cell(row, 2)?),
    };
    let head = Head {
        version: HeadVersion(cell(row, 3)?),
        outgoing: cell(row, 4)?,
        pending_outgoing: cell(row, 5)?,
        next_group: cell(row, 6)?,
        excluded: cell::<u8>(row, 7)? != 0,
    };
    Ok((key, head))
}

/// A row of `OUTGOING_COLUMNS`; tombstones too.
pub fn outgoing(row: &Row) -> Result<(EdgeKey, EdgeRow), SqlError> {
    let data: Option<Vec<u8>> = cell(row, 9)?;
    let data = data.map(String::from_utf8).transpose().map_err(|_| {
        SqlError::Refused("an edge's data is not the text that it should be".into())
    })?;
    let edge = EdgeRow {
        version: Version(cell(row, 4)?),
        state: state(cell(row, 5)?)?,
        since: Millis(cell(row, 6)?),
        group: cell::<Option<u32>>(row, 7)?.map(GroupId),
        owner: cell(row, 8)?,
        data: data.map(String::into_boxed_str),
        expires_at: cell::<Option<u64>>(row, 10)?.map(Millis),
    };
    Ok((edge_key(row)?, edge))
}

/// A row of `INCOMING_COLUMNS`: what the source alone knows is not there.
pub fn incoming(row: &Row) -> Result<(EdgeKey, EdgeRow), SqlError> {
    let edge = EdgeRow {
        version: Version(cell(row, 4)?),
        state: state(cell(row, 5)?)?,
        since: Millis(cell(row, 6)?),
        group: None,
        owner: cell(row, 7)?,
        data: None,
        expires_at: None,
    };
    Ok((edge_key(row)?, edge))
}

pub fn group(row: &Row) -> Result<(GroupsKey, Group), SqlError> {
    let key = GroupsKey {
        tenant: TenantId(cell(row, 0)?),
        kind: KindId(cell(row, 1)?),
        source: SourceId(cell(row, 2)?),
    };
    let name: Vec<u8> = cell(row, 4)?;
    let name = String::from_utf8(name).ok().and_then(|name| GroupName::new(&name).ok());
    let name = name.ok_or_else(|| SqlError::Refused("a group has no proper name".into()))?;
    Ok((key, Group { id: GroupId(cell(row, 3)?), name, size: cell(row, 5)? }))
}

fn state(value: u8) -> Result<State, SqlError> {
    [State::Live, State::Pending, State::Removed]
        .into_iter()
        .find(|state| *state as u8 == value)
        .ok_or_else(|| SqlError::Refused(format!("{value} is no state of an edge")))
}

/// `(tenant,kind,source,target)`
pub fn edge_tuple(out: &mut String, key: &EdgeKey) {
    let EdgeKey { tenant, kind, source, target } = key;
    let _ = write!(out, "({},{},{},{})", tenant.0, kind.0, source.0, target.0);
}

/// `(tenant,kind,source)`
pub fn head_tuple(out: &mut String, key: &HeadKey) {
    let _ = write!(out, "({},{},{})", key.tenant.0, key.kind.0, key.source.0);
}

/// `(tenant,node_type,id)`
pub fn node_tuple(out: &mut String, key: &NodeKey) {
    let _ = write!(out, "({},{},{})", key.tenant.0, key.node_type.0, key.id);
}

/// The rows of these edges, in no order; at most `text::TUPLES_MAX` to a statement.
pub fn select_outgoing(edges: &[EdgeKey]) -> String {
    debug_assert!(!edges.is_empty() && edges.len() <= text::TUPLES_MAX);
    let mut out = format!(
        "SELECT {OUTGOING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) \
         WHERE (tenant,kind,source,target) IN ("
    );
    text::list(&mut out, edges, edge_tuple);
    out.push(')');
    out
}

/// The same for edges of one kind, in the way that costs MariaDB a third less (and TiDB much more).
pub fn select_outgoing_of_kind(edges: &[EdgeKey]) -> String {
    let Some(EdgeKey { tenant, kind, .. }) = edges.first() else {
        return String::new();
    };
    let mut out = format!(
        "SELECT {OUTGOING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) \
         WHERE tenant={} AND kind={} AND (source,target) IN (",
        tenant.0, kind.0
    );
    text::list(&mut out, edges, |out, edge| {
        let _ = write!(out, "({},{})", edge.source.0, edge.target.0);
    });
    out.push(')');
    out
}
