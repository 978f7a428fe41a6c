//! The outbox's rows: all that a transaction tells the log, packed into one row, and the way on
//! which a committer hands its rows to the relay of its own process.
//!
//! A row's value is a format byte, the time of the commit, and each record as the model encodes it
//! with its length before it; the topic's public values are made when they are sent. The row's
//! shard only shares the work among relays and says nothing about its records: those of any
//! partition stand together.

use guanxi_model::codec::{CodecError, Decoder, Encoder, decode_record, encode_edge_record};
use guanxi_model::places::SHARDS;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{Millis, Record, Version};

/// A row that has grown to this takes no more records: statements stay well below what servers
/// take at once, and a relay reads many rows together.
pub const ROW_BYTES_MAX: usize = 256 * 1024;

/// The first byte of a row's value. The first had records without an origin.
const FORMAT: u8 = 2;

/// The primary key. The version is the lowest of the row's records, by which scans look; the id is
/// drawn at random. A barrier has its own id as both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboxKey {
    pub shard: u8,
    pub version: Version,
    pub id: u64,
}

/// Tells the operator of a row that cannot be read, one of so many.
pub(super) fn tell_unreadable(key: &OutboxKey, cause: &str, rows: usize) {
    let OutboxKey { shard, version, id } = key;
    tracing::error!(
        shard,
        version = version.0,
        id,
        cause,
        rows,
        "a row of the outbox cannot be read and does not reach the target's side; it stays there, \
         and no barrier passes it. Another release may have written it: run that one"
    );
}

/// A row as its writer has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxRow {
    pub key: OutboxKey,
    /// When it was committed.
    pub time: Millis,
    pub records: Vec<EdgeRecord>,
}

/// Who moves a committer's rows to the log.
pub trait OutboxMover: Send + Sync {
    /// The shard for a transaction's rows.
    fn shard(&self) -> u8;

    /// These rows are committed. Whoever takes them must not lose them, but may decline: they stand
    /// in the outbox, where a relay finds them.
    fn committed(&self, rows: Vec<OutboxRow>);
}

/// No relay runs in this process: another's finds the rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unrelayed;

impl OutboxMover for Unrelayed {
    fn shard(&self) -> u8 {
        fastrand::u8(..SHARDS)
    }

    fn committed(&self, _rows: Vec<OutboxRow>) {}
}

/// The rows of these records, each with its value.
pub fn pack(records: Vec<EdgeRecord>, time: Millis, shard: u8) -> Vec<(OutboxRow, Vec<u8>)> {
    let mut packed = Vec::new();
    let mut open = OpenRow::new(time);
    for record in records {
        open.add(record);
        if open.bytes >= ROW_BYTES_MAX {
            packed.extend(std::mem::replace(&mut open, OpenRow::new(time)).close(shard));
        }
    }
    packed.extend(open.close(shard));
    packed
}

/// A row that takes more records.
struct OpenRow {
    time: Millis,
    records: Vec<EdgeRecord>,
    value: Encoder,
    /// Of the records in the value.
    bytes: usize,
}

impl OpenRow {
    fn new(time: Millis) -> OpenRow {
        let mut value = Encoder::default();
        value.u8(FORMAT);
        value.varint(time.0);
        OpenRow { time, records: Vec::new(), value, bytes: 0 }
    }

    fn add(&mut self, record: EdgeRecord) {
        let encoded = encode_edge_record(&record);
        self.value.bytes(&encoded);
        self.bytes += encoded.len();
        self.records.push(record);
    }

    fn close(self, shard: u8) -> Option<(OutboxRow, Vec<u8>)> {
        let version = self.records.iter().map(|record| record.new.version).min()?;
        let key = OutboxKey { shard, version, id: fastrand::u64(..) };
        let row = OutboxRow { key, time: self.time, records: self.records };
        Some((row, self.value.into_bytes()))
    }
}

/// Reads a row's value: the time of its commit and its records. The error says why it is none.
pub fn unpack(value: &[u8]) -> Result<(Millis, Vec<EdgeRecord>), String> {
    let mut input = Decoder::new(value);
    let read = |error: CodecError| error.to_string();
    match input.u8().map_err(read)? {
        FORMAT => {}
        older @ 1..FORMAT => {
            return Err(format!(
                "it has format {older} of an earlier release, and this one knows {FORMAT}: let that \
                 release run until the outbox is empty"
            ));
        }
        newer => return Err(format!("it has format {newer}, this release knows {FORMAT}")),
    }
    let time = Millis(input.varint().map_err(read)?);
    let mut records = Vec::new();
    while !input.is_empty() {
        match decode_record(input.bytes().map_err(read)?).map_err(read)? {
            Record::Edge(record) => records.push(*record),
            _ => return Err("it holds a record that is not of an edge".into()),
        }
    }
    Ok((time, records))
}

#[cfg(test)]
mod tests {
    use guanxi_model::{
        EdgeKey, EdgeRow, GroupId, GroupName, KindId, SourceId, State, TargetId, TenantId,
    };

    use super::*;

    fn record(number: u64) -> EdgeRecord {
        let (tenant, kind) = (TenantId(1), KindId(2));
        let key = EdgeKey { tenant, kind, source: SourceId(number), target: TargetId(7) };
        let new = EdgeRow {
            version: Version(1_000 - number % 10),
            state: State::Live,
            since: Millis(5),
            group: Some(GroupId(3)),
            owner: Some(u64::MAX),
            data: Some("d".repeat(128).into_boxed_str()),
            expires_at: Some(Millis(9)),
        };
        let old = Some(EdgeRow { version: Version(1), ..new.clone() });
        let group = GroupName::new("friends").unwrap();
        EdgeRecord {
            old,
            new_group: Some(group),
            fresh: number.is_multiple_of(2),
            ..EdgeRecord::of(key, new)
        }
    }

    #[test]
    fn records_survive_in_rows_of_a_bounded_size() {
        let records: Vec<EdgeRecord> = (0..3_000).map(record).collect();
        let packed = pack(records.clone(), Millis(77), 5);
        assert!(packed.len() > 1, "one row would be too long");
        let mut read = Vec::new();
        for (row, value) in &packed {
            assert!(value.len() < ROW_BYTES_MAX + 16 * 1_024, "{}", value.len());
            let (time, records) = unpack(value).unwrap();
            assert_eq!((time, row.time, row.key.shard), (Millis(77), Millis(77), 5));
            assert_eq!(records, row.records);
            let lowest = records.iter().map(|record| record.new.version).min();
            assert_eq!(Some(row.key.version), lowest);
            read.extend(records);
        }
        assert_eq!(read, records);
        assert!(pack(Vec::new(), Millis(1), 0).is_empty());
    }

    #[test]
    fn what_is_no_row_is_said_to_be_none() {
        let (_, value) = pack(vec![record(1)], Millis(1), 0).remove(0);
        assert!(unpack(&[]).is_err());
        assert!(unpack(&value[..value.len() - 1]).is_err());
        assert!(unpack(&[9, 1]).unwrap_err().contains("format 9"));
        assert!(unpack(&[1, 1]).unwrap_err().contains("until the outbox is empty"));
    }
}
