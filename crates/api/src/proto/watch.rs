//! Records of edges as messages.

use guanxi_model::record;
use guanxi_model::{GroupName, Kind, Millis, Origin, OriginText};

use super::{EdgeRecord, EdgeRow, State, timestamp};

impl EdgeRecord {
    pub fn new(time: Millis, kind: &Kind, record: &record::EdgeRecord) -> EdgeRecord {
        let old = record.old.as_ref();
        let Origin { by, subject, rule, job, reason } = &record.origin;
        let text = |text: &Option<OriginText>| text.as_ref().map(|text| text.as_str().to_owned());
        EdgeRecord {
            time: Some(timestamp(time)),
            op: record.cause.name().to_owned(),
            kind: kind.name.as_str().to_owned(),
            source: record.key.source.0,
            target: record.key.target.0,
            old: old.map(|row| EdgeRow::new(row, record.old_group.as_ref())),
            new: Some(EdgeRow::new(&record.new, record.new_group.as_ref())),
            version: record.new.version.0,
            fresh: record.fresh,
            by: text(by),
            subject: text(subject),
            rule: text(rule),
            job: job.map(|job| job.0),
            reason: text(reason),
        }
    }
}

impl EdgeRow {
    fn new(row: &guanxi_model::EdgeRow, group: Option<&GroupName>) -> EdgeRow {
        EdgeRow {
            state: State::from(row.state).into(),
            since: Some(timestamp(row.since)),
            group: group.map(|name| name.as_str().to_owned()),
            owner: row.owner,
            data: row.data.as_deref().map(str::to_owned),
            expires_at: row.expires_at.map(timestamp),
        }
    }
}
