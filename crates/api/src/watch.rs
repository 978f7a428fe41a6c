//! Records of edges as a watcher reads them, and as the cluster's topic carries them: the same
//! object, with what only the topic's readers need added there.

use std::borrow::Cow;

use guanxi_model::record::EdgeRecord;
use guanxi_model::{EdgeRow, GroupName, Kind, Millis, Origin, OriginText};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::edges::VersionText;
use crate::id::{Id, IdText};
use crate::state::WireState;
use crate::time::Time;

/// One change of one edge.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Record)]
pub struct RecordView<'a> {
    /// To read on after this one. In the topic its offset says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, required, value_type = String)]
    pub id: Option<Cow<'a, str>>,
    /// Only in the topic, as are the tenant and the kind's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub format: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub tenant: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub kind_id: Option<u16>,
    /// When it was committed.
    pub time: Time,
    /// put, delete, approve, decline, move, expire, cut, erase, import or repair.
    #[schema(value_type = String)]
    pub op: Cow<'static, str>,
    #[schema(value_type = String)]
    pub kind: Cow<'a, str>,
    #[schema(value_type = IdText, inline)]
    pub source: Id,
    #[schema(value_type = IdText, inline)]
    pub target: Id,
    /// What stood before; null when nothing did.
    #[schema(required)]
    pub old: Option<RowView<'a>>,
    pub new: RowView<'a>,
    pub version: VersionText,
    /// A new edge whose source had fewer than four outgoing edges of the kind before, live or
    /// pending. Absent when not, and for kinds that do not count them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub fresh: bool,
    /// The id of the key that the caller showed. This and what follows is absent when it is not
    /// known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub by: Option<Cow<'a, str>>,
    /// For whom the caller acted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub subject: Option<Cow<'a, str>>,
    /// The rule that made the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub rule: Option<Cow<'a, str>>,
    /// The job that made the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<IdText>)]
    pub job: Option<Id>,
    /// Why, as the caller said in the header guanxi-reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub reason: Option<Cow<'a, str>>,
}

/// An edge as it stood or stands.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Row)]
pub struct RowView<'a> {
    #[schema(inline)]
    pub state: WireState,
    pub since: Time,
    #[schema(required, value_type = Option<String>)]
    pub group: Option<Cow<'a, str>>,
    #[schema(required, value_type = Option<IdText>)]
    pub owner: Option<Id>,
    #[schema(required, value_type = Option<String>)]
    pub data: Option<Cow<'a, str>>,
    #[schema(required)]
    pub expires_at: Option<Time>,
    /// Only in the topic.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub group_id: Option<u32>,
    /// Only in the topic, of what stood before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub version: Option<VersionText>,
}

/// Says that the stream is alive, and up to where everything has been looked at.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat<'a> {
    #[schema(min_length = 1)]
    pub id: &'a str,
}

/// The format of the topic's values; readers refuse one that they do not know.
pub const TOPIC_FORMAT: u32 = 1;

impl<'a> RecordView<'a> {
    /// As a watcher gets it.
    pub fn new(id: &'a str, time: Millis, kind: &'a Kind, record: &'a EdgeRecord) -> Self {
        RecordView { id: Some(id.into()), ..Self::plain(time, kind, record) }
    }

    /// As the topic carries it: nothing of the record is missing.
    pub fn in_topic(time: Millis, kind: &'a Kind, record: &'a EdgeRecord) -> Self {
        let mut view = Self::plain(time, kind, record);
        view.format = Some(TOPIC_FORMAT);
        view.tenant = Some(record.key.tenant.0);
        view.kind_id = Some(record.key.kind.0);
        view.new.group_id = record.new.group.map(|group| group.0);
        if let (Some(view), Some(row)) = (&mut view.old, &record.old) {
            view.group_id = row.group.map(|group| group.0);
            view.version = Some(VersionText(row.version.0));
        }
        view
    }

    fn plain(time: Millis, kind: &'a Kind, record: &'a EdgeRecord) -> Self {
        let old = record.old.as_ref();
        let Origin { by, subject, rule, job, reason } = &record.origin;
        let text = |text: &'a Option<OriginText>| text.as_ref().map(|text| text.as_str().into());
        RecordView {
            id: None,
            format: None,
            tenant: None,
            kind_id: None,
            time: Time(time),
            op: record.cause.name().into(),
            kind: kind.name.as_str().into(),
            source: Id(record.key.source.0),
            target: Id(record.key.target.0),
            old: old.map(|row| RowView::new(row, record.old_group.as_ref())),
            new: RowView::new(&record.new, record.new_group.as_ref()),
            version: VersionText(record.new.version.0),
            fresh: record.fresh,
            by: text(by),
            subject: text(subject),
            rule: text(rule),
            job: job.map(|job| Id(job.0)),
            reason: text(reason),
        }
    }
}

impl<'a> RowView<'a> {
    fn new(row: &'a EdgeRow, group: Option<&'a GroupName>) -> Self {
        RowView {
            state: row.state.into(),
            since: Time(row.since),
            group: group.map(|group| group.as_str().into()),
            owner: row.owner.map(Id),
            data: row.data.as_deref().map(Cow::from),
            expires_at: row.expires_at.map(Time),
            group_id: None,
            version: None,
        }
    }
}
