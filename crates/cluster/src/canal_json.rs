//! TiCDC's canal-json, with and without its TiDB extension: what a message says, and what it says
//! about a row of `outgoing`. The format alone; whoever applies it is elsewhere.
//!
//! A message may lack columns (a changefeed can be told to send keys only, and does so by itself
//! where a message would grow too large). A column that is missing is unknown, never null, so such
//! a row must be read again from the table.

use std::collections::BTreeMap;

use guanxi_model::record::Cause;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, KindId, Millis, SourceId, State, TargetId, TenantId, Version,
};
use serde::Deserialize;

/// The table whose rows are edges.
const TABLE: &str = "outgoing";

/// A message as it stands: of any table, its columns by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanalMessage {
    pub event: CanalEvent,
    pub table: String,
    /// When it was committed, in milliseconds.
    pub time: Millis,
    /// The commit's timestamp, a watermark's own; only the extension tells.
    pub commit_ts: Option<u64>,
    /// The row before the change, whole even where the message holds only what changed.
    pub old: Option<CanalColumns>,
    pub new: Option<CanalColumns>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CanalEvent {
    Insert,
    Update,
    Delete,
    /// A change of the schema.
    Ddl,
    /// Every change up to its timestamp has been sent to this partition.
    Watermark,
}

/// Values by column; none is null, an absent column is unknown. Binary ones are their bytes.
pub type CanalColumns = BTreeMap<String, Option<Vec<u8>>>;

/// What a message means to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CanalChange {
    /// An edge's row was written.
    Edge(Box<EdgeChange>),
    /// Every change up to here has been sent to this partition.
    Watermark { commit_ts: u64 },
    /// Nothing: a change of the schema, the clean-up of a tombstone, another table.
    PassedOver,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeChange {
    pub key: EdgeKey,
    pub time: Millis,
    pub commit_ts: Option<u64>,
    pub old: ToldRow,
    pub new: ToldRow,
}

/// How much a message tells of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToldRow {
    /// There was none.
    None,
    Row(OutgoingRow),
    /// Columns are lacking: read the row again.
    Lacking,
}

/// A row of `outgoing` beside its key, in the table's own terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingRow {
    pub version: u64,
    pub state: u8,
    pub since: u64,
    pub group_id: Option<u32>,
    pub owner: Option<u64>,
    pub data: Option<Vec<u8>>,
    pub expires_at: Option<u64>,
    pub cause: Option<String>,
}

impl OutgoingRow {
    /// The row as the model's.
    pub fn whole(&self) -> Result<EdgeRow, String> {
        let data = self.data.as_deref().map(std::str::from_utf8).transpose();
        let data = data.map_err(|_| "an edge's data is not the text that it should be")?;
        Ok(EdgeRow { data: data.map(Box::from), ..self.target_side()? })
    }

    /// The same without the caller's data, which the target's side does not keep.
    pub fn target_side(&self) -> Result<EdgeRow, String> {
        let state = [State::Live, State::Pending, State::Removed]
            .into_iter()
            .find(|state| *state as u8 == self.state)
            .ok_or_else(|| format!("{} is no state of an edge", self.state))?;
        Ok(EdgeRow {
            version: Version(self.version),
            state,
            since: Millis(self.since),
            group: self.group_id.map(GroupId),
            owner: self.owner,
            data: None,
            expires_at: self.expires_at.map(Millis),
        })
    }

    /// Why it was written, by the state where nothing better is said.
    pub fn cause(&self) -> Cause {
        cause_named(self.cause.as_deref(), self.state == State::Removed as u8)
    }
}

/// The cause of this name, as a row has it; else the one that most likely made the row.
pub(crate) fn cause_named(name: Option<&str>, removed: bool) -> Cause {
    let named = Cause::ALL.into_iter().find(|cause| Some(cause.name()) == name);
    named.unwrap_or(if removed { Cause::Delete } else { Cause::Put })
}

/// What a message of the changefeed's topic means. The error says what is wrong with it.
pub fn decode(value: &[u8]) -> Result<CanalChange, String> {
    change(&message(value)?)
}

/// Reads the format, whatever the table.
pub fn message(value: &[u8]) -> Result<CanalMessage, String> {
    let wire: CanalText = serde_json::from_slice(value)
        .map_err(|error| format!("not a canal-json message: {error}"))?;
    let event = event(&wire)?;
    let extension = wire.tidb.unwrap_or_default();
    let columns = |rows: Option<Vec<WireColumns>>, name| match rows {
        None => Ok(None),
        Some(rows) => {
            let mut rows = rows.into_iter();
            let (Some(row), None) = (rows.next(), rows.next()) else {
                return Err(format!("{name} does not hold one row"));
            };
            columns(row, &wire.mysql_type).map(Some)
        }
    };
    let (data, old) = (columns(wire.data, "data")?, columns(wire.old, "old")?);
    let (old, new) = match event {
        CanalEvent::Insert => (None, data),
        CanalEvent::Delete => (data, None),
        // What changed, or all of it: a column that is not told did not change.
        CanalEvent::Update => {
            let mut whole = data.clone().unwrap_or_default();
            whole.extend(old.ok_or("an UPDATE without old")?);
            (Some(whole), data)
        }
        CanalEvent::Ddl | CanalEvent::Watermark => (None, None),
    };
    let row_missing = match event {
        CanalEvent::Insert | CanalEvent::Update => new.is_none(),
        CanalEvent::Delete => old.is_none(),
        CanalEvent::Ddl | CanalEvent::Watermark => false,
    };
    if row_missing {
        return Err("a change of a row without data".into());
    }
    let commit_ts = match event {
        CanalEvent::Watermark => extension.watermark_ts,
        _ => extension.commit_ts,
    };
    Ok(CanalMessage { event, table: wire.table, time: Millis(wire.es), commit_ts, old, new })
}

/// What a message means for the edges.
pub fn change(message: &CanalMessage) -> Result<CanalChange, String> {
    match message.event {
        CanalEvent::Ddl | CanalEvent::Delete => return Ok(CanalChange::PassedOver),
        CanalEvent::Watermark => {
            let commit_ts = message.commit_ts.ok_or("a watermark without its timestamp")?;
            return Ok(CanalChange::Watermark { commit_ts });
        }
        CanalEvent::Insert | CanalEvent::Update => {}
    }
    if message.table != TABLE {
        return Ok(CanalChange::PassedOver);
    }
    let new = message.new.as_ref().ok_or("a change of a row without data")?;
    let key = EdgeKey {
        tenant: TenantId(key_part(new, "tenant")?),
        kind: KindId(key_part(new, "kind")?),
        source: SourceId(key_part(new, "source")?),
        target: TargetId(key_part(new, "target")?),
    };
    let old = message.old.as_ref().map_or(Ok(ToldRow::None), told)?;
    let (time, commit_ts) = (message.time, message.commit_ts);
    Ok(CanalChange::Edge(Box::new(EdgeChange { key, time, commit_ts, old, new: told(new)? })))
}

#[derive(Deserialize)]
struct CanalText {
    #[serde(default)]
    table: String,
    #[serde(rename = "type")]
    event: String,
    #[serde(rename = "isDdl", default)]
    is_ddl: bool,
    /// Past 2^53 in no file, but a u64 all the same.
    #[serde(default)]
    es: u64,
    #[serde(rename = "mysqlType", default)]
    mysql_type: Option<BTreeMap<String, String>>,
    #[serde(default)]
    old: Option<Vec<WireColumns>>,
    #[serde(default)]
    data: Option<Vec<WireColumns>>,
    #[serde(rename = "_tidb", default)]
    tidb: Option<Extension>,
}

/// Every value is a string or null, whatever the column's type.
type WireColumns = BTreeMap<String, Option<String>>;

#[derive(Deserialize, Default)]
struct Extension {
    #[serde(rename = "commitTs", default)]
    commit_ts: Option<u64>,
    #[serde(rename = "watermarkTs", default)]
    watermark_ts: Option<u64>,
}

fn event(wire: &CanalText) -> Result<CanalEvent, String> {
    if wire.is_ddl {
        return Ok(CanalEvent::Ddl);
    }
    match wire.event.as_str() {
        "INSERT" => Ok(CanalEvent::Insert),
        "UPDATE" => Ok(CanalEvent::Update),
        "DELETE" => Ok(CanalEvent::Delete),
        "TIDB_WATERMARK" => Ok(CanalEvent::Watermark),
        other => Err(format!("unknown type {:?}", shortened(other))),
    }
}

fn columns(
    wire: WireColumns,
    types: &Option<BTreeMap<String, String>>,
) -> Result<CanalColumns, String> {
    let mut columns = CanalColumns::new();
    for (name, value) in wire {
        // The type's name alone tells: `sqlType` changes with the value.
        let binary = types
            .as_ref()
            .and_then(|types| types.get(&name))
            .is_some_and(|of| of.contains("binary") || of.contains("blob"));
        let value = match value {
            Some(text) if binary => Some(bytes(&text).ok_or_else(|| {
                format!("the binary column {:?} has a character above U+00FF", shortened(&name))
            })?),
            Some(text) => Some(text.into_bytes()),
            None => None,
        };
        columns.insert(name, value);
    }
    Ok(columns)
}

/// Each byte stands as the character of its number.
fn bytes(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|character| u8::try_from(u32::from(character)).ok()).collect()
}

fn key_part<T: std::str::FromStr>(columns: &CanalColumns, name: &str) -> Result<T, String> {
    match columns.get(name) {
        Some(Some(value)) => number(value, name),
        Some(None) => Err(format!("the key column {name} is null")),
        None => Err(format!("the key column {name} is missing")),
    }
}

/// A row, if all of its columns are there.
fn told(columns: &CanalColumns) -> Result<ToldRow, String> {
    /// A column that may be null.
    fn cell<T: std::str::FromStr>(
        columns: &CanalColumns,
        name: &str,
    ) -> Option<Result<Option<T>, String>> {
        let value = columns.get(name)?.as_ref();
        Some(value.map(|value| number(value, name)).transpose())
    }
    let (
        Some(version),
        Some(state),
        Some(since),
        Some(group_id),
        Some(owner),
        Some(data),
        Some(cause),
    ) = (
        cell(columns, "version"),
        cell(columns, "state"),
        cell(columns, "since"),
        cell(columns, "group_id"),
        cell(columns, "owner"),
        columns.get("data"),
        columns.get("cause"),
    )
    else {
        return Ok(ToldRow::Lacking);
    };
    // Tables older than the column have no expiry.
    let expires_at = cell(columns, "expires_at").unwrap_or(Ok(None))?;
    let cause = cause.as_ref().map(|cause| String::from_utf8_lossy(cause).into_owned());
    let required = |name: &str| format!("the column {name} is null");
    Ok(ToldRow::Row(OutgoingRow {
        version: version?.ok_or_else(|| required("version"))?,
        state: state?.ok_or_else(|| required("state"))?,
        since: since?.ok_or_else(|| required("since"))?,
        group_id: group_id?,
        owner: owner?,
        data: data.clone(),
        expires_at,
        cause,
    }))
}

fn number<T: std::str::FromStr>(value: &[u8], name: &str) -> Result<T, String> {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let value = String::from_utf8_lossy(value);
        format!("the column {name} is {:?}, not a number that fits", shortened(&value))
    })
}

/// What a message may add to the text of an error.
const QUOTED_CHARS_MAX: usize = 40;

fn shortened(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests;
