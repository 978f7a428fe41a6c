//! The encoding of records: version byte, tag, flags, what they say is there of the origin, content.

mod repair;

use self::repair::{read_groups_key, read_repair, write_groups_key, write_repair};
use super::import::{read_import, write_import};
use super::row::{
    read_edge_row, read_ends, read_group_name, read_idempotency, read_job, read_kind,
    read_kind_name, read_node, read_node_key, write_edge_row, write_ends, write_idempotency,
    write_job, write_kind, write_node, write_node_key,
};
use super::{CodecError, Decoder, Encoder};
use crate::group::GroupId;
use crate::idempotency::IdempotencyKey;
use crate::import::ImportId;
use crate::job::JobId;
use crate::node::{NodeTypeId, TenantId};
use crate::origin::{Origin, OriginText};
use crate::record::{Cause, EdgeRecord, Record};

// Tags are never reused; 10 and 12 were an import's place without its rejected lines.
const EDGE: u8 = 1;
const GROUP: u8 = 2;
const NODE: u8 = 3;
const NODE_TYPE: u8 = 4;
const KIND: u8 = 5;
const COUNTER: u8 = 6;
const IDEMPOTENCY: u8 = 7;
const JOB: u8 = 8;
const BUILD_INDEX: u8 = 9;
const REPAIR: u8 = 11;
const IMPORT: u8 = 13;

/// The version byte of a record. The first had no origin.
pub const RECORD_FORMAT: u8 = 2;

// Flags: which parts of the origin follow, and whether the edge's source was fresh.
const HAS_BY: u8 = 0b0000_0001;
const HAS_SUBJECT: u8 = 0b0000_0010;
const HAS_RULE: u8 = 0b0000_0100;
const HAS_JOB: u8 = 0b0000_1000;
const HAS_REASON: u8 = 0b0001_0000;
const FRESH: u8 = 0b0010_0000;
const KNOWN_FLAGS: u8 = 0b0011_1111;

/// An edge's record has its origin in it; the others take this one.
pub fn encode_record(record: &Record, origin: &Origin) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    let head = |out: &mut Encoder, tag| write_head(out, tag, false, origin);
    let tenant = |out: &mut Encoder, tenant: &TenantId| out.varint(u64::from(tenant.0));
    match record {
        Record::Edge(edge) => write_edge(&mut out, edge),
        Record::Group { groups, id, name } => {
            head(&mut out, GROUP);
            write_groups_key(&mut out, groups);
            out.varint(u64::from(id.0));
            out.option(name.as_ref(), |out, name| out.str(name.as_str()));
        }
        Record::Node { node, row } => {
            head(&mut out, NODE);
            write_node_key(&mut out, node);
            write_node(&mut out, row);
        }
        Record::NodeType { tenant: of, id, name } => {
            head(&mut out, NODE_TYPE);
            tenant(&mut out, of);
            out.varint(u64::from(id.0));
            out.str(name.as_str());
        }
        Record::Kind { tenant: of, kind } => {
            head(&mut out, KIND);
            tenant(&mut out, of);
            write_kind(&mut out, kind);
        }
        Record::Counter { tenant: of, kind, id, delta } => {
            head(&mut out, COUNTER);
            tenant(&mut out, of);
            out.varint(u64::from(kind.0));
            out.fixed_u64(*id);
            out.signed(*delta);
        }
        Record::Idempotency { tenant: of, key, row } => {
            head(&mut out, IDEMPOTENCY);
            tenant(&mut out, of);
            out.str(key.as_str());
            write_idempotency(&mut out, row);
        }
        Record::Job { tenant: of, job } => {
            head(&mut out, JOB);
            tenant(&mut out, of);
            write_job(&mut out, job);
        }
        Record::Import { tenant: of, id, row } => {
            head(&mut out, IMPORT);
            tenant(&mut out, of);
            out.str(id.as_str());
            write_import(&mut out, row);
        }
        Record::BuildIndex { tenant: of, kind, job, after, until } => {
            head(&mut out, BUILD_INDEX);
            tenant(&mut out, of);
            out.varint(u64::from(kind.0));
            out.varint(job.0);
            out.option(*after, write_ends);
            write_ends(&mut out, *until);
        }
        Record::Repair(repair) => {
            head(&mut out, REPAIR);
            write_repair(&mut out, repair);
        }
    }
    out.into_bytes()
}

/// As `encode_record` writes an edge's record.
pub fn encode_edge_record(edge: &EdgeRecord) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    write_edge(&mut out, edge);
    out.into_bytes()
}

fn write_head(out: &mut Encoder, tag: u8, fresh: bool, origin: &Origin) {
    let Origin { by, subject, rule, job, reason } = origin;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.u8(RECORD_FORMAT);
    out.u8(tag);
    out.u8(flag(by.is_some(), HAS_BY)
        | flag(subject.is_some(), HAS_SUBJECT)
        | flag(rule.is_some(), HAS_RULE)
        | flag(job.is_some(), HAS_JOB)
        | flag(reason.is_some(), HAS_REASON)
        | flag(fresh, FRESH));
    for text in [by, subject, rule].into_iter().flatten() {
        out.str(text.as_str());
    }
    if let Some(job) = job {
        out.varint(job.0);
    }
    if let Some(reason) = reason {
        out.str(reason.as_str());
    }
}

/// The tag, whether the source was fresh, and the origin.
fn read_head(input: &mut Decoder<'_>) -> Result<(u8, bool, Origin), CodecError> {
    match input.u8()? {
        RECORD_FORMAT => {}
        other => {
            let known = format!("only {RECORD_FORMAT} is known here");
            return Err(CodecError(format!("a record has format {other}, {known}")));
        }
    }
    let (tag, flags) = (input.u8()?, input.u8()?);
    let fresh = flags & FRESH != 0;
    if flags & !KNOWN_FLAGS != 0 || (fresh && tag != EDGE) {
        return Err(CodecError("a record has an unknown flag".into()));
    }
    let has = |bit: u8| flags & bit != 0;
    let mut text = |bit| has(bit).then(|| input.str().map(OriginText::stored)).transpose();
    let (by, subject, rule) = (text(HAS_BY)?, text(HAS_SUBJECT)?, text(HAS_RULE)?);
    let job = if has(HAS_JOB) { Some(JobId(input.varint()?)) } else { None };
    let reason = has(HAS_REASON).then(|| input.str().map(OriginText::stored)).transpose()?;
    Ok((tag, fresh, Origin { by, subject, rule, job, reason }))
}

fn write_edge(out: &mut Encoder, edge: &EdgeRecord) {
    write_head(out, EDGE, edge.fresh, &edge.origin);
    out.edge_key(&edge.key);
    out.u8(edge.cause as u8);
    out.option(edge.old.as_ref(), write_edge_row);
    write_edge_row(out, &edge.new);
    out.option(edge.old_group.as_ref(), |out, name| out.str(name.as_str()));
    out.option(edge.new_group.as_ref(), |out, name| out.str(name.as_str()));
}

pub fn decode_record(bytes: &[u8]) -> Result<Record, CodecError> {
    Ok(decode_with_origin(bytes)?.0)
}

/// A record and whose doing it is.
pub fn decode_with_origin(bytes: &[u8]) -> Result<(Record, Origin), CodecError> {
    let mut input = Decoder::new(bytes);
    let (tag, fresh, origin) = read_head(&mut input)?;
    let record = match tag {
        EDGE => Record::Edge(Box::new(EdgeRecord {
            key: input.edge_key()?,
            cause: input.closed("cause", Cause::from_u8)?,
            old: input.option(read_edge_row)?,
            new: read_edge_row(&mut input)?,
            old_group: input.option(read_group_name)?,
            new_group: input.option(read_group_name)?,
            fresh,
            origin: origin.clone(),
        })),
        GROUP => Record::Group {
            groups: read_groups_key(&mut input)?,
            id: GroupId(input.varint_u32()?),
            name: input.option(read_group_name)?,
        },
        NODE => Record::Node { node: read_node_key(&mut input)?, row: read_node(&mut input)? },
        NODE_TYPE => Record::NodeType {
            tenant: input.tenant()?,
            id: NodeTypeId(input.varint_u16()?),
            name: read_kind_name(&mut input)?,
        },
        KIND => Record::Kind { tenant: input.tenant()?, kind: Box::new(read_kind(&mut input)?) },
        COUNTER => Record::Counter {
            tenant: input.tenant()?,
            kind: input.kind_id()?,
            id: input.fixed_u64()?,
            delta: input.signed()?,
        },
        IDEMPOTENCY => Record::Idempotency {
            tenant: input.tenant()?,
            key: IdempotencyKey::new(input.str()?).map_err(|error| CodecError(error.message))?,
            row: read_idempotency(&mut input)?,
        },
        JOB => Record::Job { tenant: input.tenant()?, job: Box::new(read_job(&mut input)?) },
        IMPORT => Record::Import {
            tenant: input.tenant()?,
            id: ImportId::new(input.str()?).map_err(|error| CodecError(error.message))?,
            row: read_import(&mut input)?,
        },
        BUILD_INDEX => Record::BuildIndex {
            tenant: input.tenant()?,
            kind: input.kind_id()?,
            job: JobId(input.varint()?),
            after: input.option(read_ends)?,
            until: read_ends(&mut input)?,
        },
        REPAIR => Record::Repair(read_repair(&mut input)?),
        other => return Err(CodecError(format!("{other} is no known record"))),
    };
    input.finish()?;
    Ok((record, origin))
}
