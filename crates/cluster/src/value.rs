//! The values of the topic: what it carries is public. An edge's value is the watch's JSON with
//! `format`, `tenant`, `kind_id`, the groups' ids and the old version added; nothing of the record
//! is lost on the way. A barrier's value is `{"format":1,"barrier":"7","shards":"10"}`; readers other
//! than appliers pass it over.
//!
//! Fields that a reader does not know are ignored, so some may be added; a change of meaning is a
//! new format, which older readers refuse by its number.

use std::borrow::Cow;

use guanxi_api::id::Id;
use guanxi_api::time::Time;
use guanxi_api::watch::{RecordView, TOPIC_FORMAT};
use guanxi_model::job::JobId;
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{
    BarrierId, EdgeKey, EdgeRow, GroupId, GroupName, Kind, KindId, Millis, Origin, OriginText,
    SourceId, State, TargetId, TenantId, Version,
};
use serde::{Deserialize, Serialize};

/// Most values are smaller; larger ones grow.
const VALUE_BYTES_TYPICAL: usize = 512;

/// What a value of the topic says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// One change of one edge, and when it was committed.
    Edge { record: Box<EdgeRecord>, time: Millis },
    /// All that stood in these shards of the outbox (a bit for each) when the barrier was raised
    /// is before it in the log, as far as it is in this partition.
    Barrier { id: BarrierId, shards: u64 },
}

/// The value of an edge's record.
pub fn encode(record: &EdgeRecord, kind: &Kind, time: Millis) -> Vec<u8> {
    let mut out = Vec::with_capacity(VALUE_BYTES_TYPICAL);
    encode_into(&mut out, record, kind, time);
    out
}

/// The same, for those who make many.
pub fn encode_into(out: &mut Vec<u8>, record: &EdgeRecord, kind: &Kind, time: Millis) {
    // Writing into memory cannot fail.
    let _ = serde_json::to_writer(out, &RecordView::in_topic(time, kind, record));
}

/// The key that goes with an edge's value: its target.
pub fn key(target: TargetId) -> String {
    target.0.to_string()
}

/// The value of a barrier.
pub fn encode_barrier(id: BarrierId, shards: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing into memory cannot fail.
    let barrier = Some(id.0.to_string().into());
    let head = ValueHead { format: TOPIC_FORMAT, barrier, shards: Some(shards.to_string().into()) };
    let _ = serde_json::to_writer(&mut out, &head);
    out
}

/// Reads a value; the error says why it is none.
pub fn decode(value: &[u8]) -> Result<Message, String> {
    match serde_json::from_slice::<ReadRecord<'_>>(value) {
        Ok(read) if read.format == TOPIC_FORMAT => read.message(),
        Ok(read) => Err(unknown_format(read.format)),
        // Barriers are rare, and what is neither is rarer.
        Err(error) => decode_other(value).unwrap_or_else(|| {
            Err(match error.is_data() {
                true => format!("it is JSON, but no record of the topic's format: {error}"),
                false => format!("it is no record of the topic's format, which is JSON: {error}"),
            })
        }),
    }
}

/// A barrier, or an error better than "not an edge"; none if there is nothing better to say.
fn decode_other(value: &[u8]) -> Option<Result<Message, String>> {
    let head = serde_json::from_slice::<ValueHead<'_>>(value).ok()?;
    if head.format != TOPIC_FORMAT {
        return Some(Err(unknown_format(head.format)));
    }
    let id = head.barrier?.parse().ok().map(BarrierId);
    let shards = head.shards.and_then(|shards| shards.parse::<u64>().ok());
    Some(match (id, shards) {
        (Some(id), Some(shards)) => Ok(Message::Barrier { id, shards }),
        _ => Err("a barrier without a proper id and shards".into()),
    })
}

fn unknown_format(format: u32) -> String {
    format!("the value has format {format}, this release knows {TOPIC_FORMAT}: run a newer guanxi")
}

#[derive(Serialize, Deserialize)]
struct ValueHead<'a> {
    format: u32,
    #[serde(borrow)]
    barrier: Option<Cow<'a, str>>,
    #[serde(borrow)]
    shards: Option<Cow<'a, str>>,
}

/// The same object as `RecordView`, to be read; unlike a watcher's, more fields may be there.
#[derive(Deserialize)]
struct ReadRecord<'a> {
    format: u32,
    tenant: u32,
    kind_id: u16,
    time: Time,
    #[serde(borrow)]
    op: Cow<'a, str>,
    source: Id,
    target: Id,
    #[serde(borrow)]
    old: Option<ReadRow<'a>>,
    #[serde(borrow)]
    new: ReadRow<'a>,
    #[serde(borrow)]
    version: Cow<'a, str>,
    #[serde(default)]
    fresh: bool,
    #[serde(borrow)]
    by: Option<Cow<'a, str>>,
    #[serde(borrow)]
    subject: Option<Cow<'a, str>>,
    #[serde(borrow)]
    rule: Option<Cow<'a, str>>,
    job: Option<Id>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct ReadRow<'a> {
    #[serde(borrow)]
    state: Cow<'a, str>,
    since: Time,
    #[serde(borrow)]
    group: Option<Cow<'a, str>>,
    owner: Option<Id>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
    expires_at: Option<Time>,
    group_id: Option<u32>,
    #[serde(borrow)]
    version: Option<Cow<'a, str>>,
}

impl ReadRecord<'_> {
    fn message(self) -> Result<Message, String> {
        let cause = Cause::ALL.into_iter().find(|cause| cause.name() == self.op);
        let cause = cause.ok_or_else(|| format!("'{}' is no operation", self.op))?;
        let key = EdgeKey {
            tenant: TenantId(self.tenant),
            kind: KindId(self.kind_id),
            source: SourceId(self.source.0),
            target: TargetId(self.target.0),
        };
        let (new, new_group) = self.new.row(Some(&self.version))?;
        let (old, old_group) = match self.old {
            Some(row) => {
                let (row, group) = row.row(None)?;
                (Some(row), group)
            }
            None => (None, None),
        };
        let text = |text: Option<Cow<'_, str>>| text.map(|text| OriginText::stored(&text));
        let origin = Origin {
            by: text(self.by),
            subject: text(self.subject),
            rule: text(self.rule),
            job: self.job.map(|job| JobId(job.0)),
            reason: text(self.reason),
        };
        let fresh = self.fresh;
        let record = EdgeRecord { key, cause, old, new, old_group, new_group, fresh, origin };
        Ok(Message::Edge { record: Box::new(record), time: self.time.0 })
    }
}

impl ReadRow<'_> {
    /// The new row's version stands beside it, the old one's in it.
    fn row(self, version: Option<&str>) -> Result<(EdgeRow, Option<GroupName>), String> {
        let version = version.or(self.version.as_deref()).and_then(|text| text.parse().ok());
        let state = [State::Live, State::Pending, State::Removed]
            .into_iter()
            .find(|state| state.name() == self.state);
        let group = self.group.as_deref().map(GroupName::new).transpose();
        let row = EdgeRow {
            version: Version(version.ok_or("a row without a proper version")?),
            state: state.ok_or_else(|| format!("'{}' is no state", self.state))?,
            since: self.since.0,
            group: self.group_id.map(GroupId),
            owner: self.owner.map(|owner| owner.0),
            data: self.data.map(|data| data.into_owned().into_boxed_str()),
            expires_at: self.expires_at.map(|time| time.0),
        };
        Ok((row, group.map_err(|error| error.message.to_string())?))
    }
}

#[cfg(test)]
mod tests;
