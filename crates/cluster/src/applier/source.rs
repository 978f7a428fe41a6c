//! What a value of the log means to the applier, whichever log it is.

use guanxi_model::record::EdgeRecord;
use guanxi_model::{Catalog, EdgeKey, Millis, Version};

use super::super::canal_json::{self, CanalChange, EdgeChange, ToldRow};
use super::super::value::{self, Message};
use super::batch::{ApplyItem, LogKind};

/// The item, and when it was committed if it says.
pub(crate) fn read(source: LogKind, value: &[u8]) -> (ApplyItem, Option<Millis>) {
    match source {
        LogKind::Outbox => match value::decode(value) {
            Ok(Message::Edge { record, time }) => (ApplyItem::Edge(record), Some(time)),
            Ok(Message::Barrier { id, shards }) => (ApplyItem::Barrier { id, shards }, None),
            Err(cause) => (ApplyItem::Dead { edge: None, cause }, None),
        },
        LogKind::Ticdc => match canal_json::decode(value) {
            Ok(CanalChange::Edge(change)) => {
                let time = change.time;
                (from_changefeed(*change), Some(time))
            }
            Ok(CanalChange::Watermark { commit_ts }) => (ApplyItem::Watermark(commit_ts), None),
            Ok(CanalChange::PassedOver) => (ApplyItem::Nothing, None),
            Err(cause) => (ApplyItem::Dead { edge: None, cause }, None),
        },
    }
}

/// No clock that may write is so far ahead: an instance whose clock is more than a second off the
/// database's refuses writes.
const AHEAD_MS_MAX: u64 = 10_000;

/// Anyone who can write to the topic can write any version, and one of the future would win over
/// every later change: it is not believed for its own sake.
pub(crate) fn doubted(item: ApplyItem, now_ms: u64) -> ApplyItem {
    match item {
        ApplyItem::Edge(record) if is_ahead(record.new.version, now_ms) => {
            ApplyItem::Doubted(record)
        }
        item => item,
    }
}

/// Whether the version is of the future.
pub(crate) fn is_ahead(version: Version, now_ms: u64) -> bool {
    version.time().0 > now_ms + AHEAD_MS_MAX
}

fn from_changefeed(change: EdgeChange) -> ApplyItem {
    let key = change.key;
    let row = match change.new {
        ToldRow::Row(row) => row,
        ToldRow::Lacking | ToldRow::None => return ApplyItem::Reread(key),
    };
    match row.target_side() {
        Ok(new) => {
            ApplyItem::Edge(Box::new(EdgeRecord { cause: row.cause(), ..EdgeRecord::of(key, new) }))
        }
        Err(cause) => ApplyItem::Dead { edge: Some(key), cause },
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
