//! What a value of the log means to the applier, whichever log it is.

use guanxi_model::record::EdgeRecord;
use guanxi_model::{Catalog, EdgeKey, Millis, Version};

use super::super::canal_json::{self, CanalChange, EdgeChange, Told};
use super::super::value::{self, Message};
use super::batch::{Item, LogSource};

/// The item, and when it was committed if it says.
pub(crate) fn read(source: LogSource, value: &[u8]) -> (Item, Option<Millis>) {
    match source {
        LogSource::Outbox => match value::decode(value) {
            Ok(Message::Edge { record, time }) => (Item::Edge(record), Some(time)),
            Ok(Message::Barrier { id, shards }) => (Item::Barrier { id, shards }, None),
            Err(cause) => (Item::Dead { edge: None, cause }, None),
        },
        LogSource::Ticdc => match canal_json::decode(value) {
            Ok(CanalChange::Edge(change)) => {
                let time = change.time;
                (from_changefeed(*change), Some(time))
            }
            Ok(CanalChange::Watermark { commit_ts }) => (Item::Watermark(commit_ts), None),
            Ok(CanalChange::PassedOver) => (Item::Nothing, None),
            Err(cause) => (Item::Dead { edge: None, cause }, None),
        },
    }
}

/// No clock that may write is so far ahead: an instance whose clock is more than a second off the
/// database's refuses writes.
const AHEAD_MS_MAX: u64 = 10_000;

/// Anyone who can write to the topic can write any version, and one of the future would win over
/// every later change: it is not believed for its own sake.
pub(crate) fn doubted(item: Item, now_ms: u64) -> Item {
    match item {
        Item::Edge(record) if is_ahead(record.new.version, now_ms) => Item::Doubted(record),
        item => item,
    }
}

/// Whether the version is of the future.
pub(crate) fn is_ahead(version: Version, now_ms: u64) -> bool {
    version.time().0 > now_ms + AHEAD_MS_MAX
}

fn from_changefeed(change: EdgeChange) -> Item {
    let key = change.key;
    let row = match change.new {
        Told::Row(row) => row,
        Told::Lacking | Told::None => return Item::Reread(key),
    };
    match row.target_side() {
        Ok(new) => Item::Edge(Box::new(EdgeRecord {
            key,
            cause: row.cause(),
            old: None,
            new,
            old_group: None,
            new_group: None,
        })),
        Err(cause) => Item::Dead { edge: Some(key), cause },
    }
}

/// Whether the catalog knows this edge's kind as one of edges.
pub(crate) fn is_known(catalog: &Catalog, edge: &EdgeKey) -> bool {
    catalog.kind(edge.tenant, edge.kind).is_some_and(|kind| !kind.fixed.counter)
}

/// Why an edge of a kind that the catalog does not know, or knows as a counter, is given up.
pub(crate) fn unknown_kind(edge: &EdgeKey) -> String {
    format!("tenant {} has no kind {} of edges", edge.tenant.0, edge.kind.0)
}
