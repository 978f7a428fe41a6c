//! The encoding of records: version byte, tag, content.

mod repair;

use self::repair::{read_groups_key, read_repair, write_groups_key, write_repair};
use super::import::{read_import, write_import};
use super::row::{
    read_edge_row, read_ends, read_group_name, read_idempotency, read_job, read_kind,
    read_kind_name, read_node, read_node_key, write_edge_row, write_ends, write_idempotency,
    write_job, write_kind, write_node, write_node_key,
};
use super::{CodecError, Decoder, Encoder, FORMAT};
use crate::group::GroupId;
use crate::idempotency::IdempotencyKey;
use crate::import::ImportId;
use crate::job::JobId;
use crate::node::{NodeTypeId, TenantId};
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

pub fn encode_record(record: &Record) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    out.u8(FORMAT);
    let tenant = |out: &mut Encoder, tenant: &TenantId| out.varint(u64::from(tenant.0));
    match record {
        Record::Edge(edge) => write_edge(&mut out, edge),
        Record::Group { groups, id, name } => {
            out.u8(GROUP);
            write_groups_key(&mut out, groups);
            out.varint(u64::from(id.0));
            out.option(name.as_ref(), |out, name| out.str(name.as_str()));
        }
        Record::Node { node, row } => {
            out.u8(NODE);
            write_node_key(&mut out, node);
            write_node(&mut out, row);
        }
        Record::NodeType { tenant: of, id, name } => {
            out.u8(NODE_TYPE);
            tenant(&mut out, of);
            out.varint(u64::from(id.0));
            out.str(name.as_str());
        }
        Record::Kind { tenant: of, kind } => {
            out.u8(KIND);
            tenant(&mut out, of);
            write_kind(&mut out, kind);
        }
        Record::Counter { tenant: of, kind, id, delta } => {
            out.u8(COUNTER);
            tenant(&mut out, of);
            out.varint(u64::from(kind.0));
            out.fixed_u64(*id);
            out.signed(*delta);
        }
        Record::Idempotency { tenant: of, key, row } => {
            out.u8(IDEMPOTENCY);
            tenant(&mut out, of);
            out.str(key.as_str());
            write_idempotency(&mut out, row);
        }
        Record::Job { tenant: of, job } => {
            out.u8(JOB);
            tenant(&mut out, of);
            write_job(&mut out, job);
        }
        Record::Import { tenant: of, id, row } => {
            out.u8(IMPORT);
            tenant(&mut out, of);
            out.str(id.as_str());
            write_import(&mut out, row);
        }
        Record::BuildIndex { tenant: of, kind, job, after, until } => {
            out.u8(BUILD_INDEX);
            tenant(&mut out, of);
            out.varint(u64::from(kind.0));
            out.varint(job.0);
            out.option(*after, write_ends);
            write_ends(&mut out, *until);
        }
        Record::Repair(repair) => {
            out.u8(REPAIR);
            write_repair(&mut out, repair);
        }
    }
    out.into_bytes()
}

/// As `encode_record` writes an edge's record.
pub fn encode_edge_record(edge: &EdgeRecord) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    out.u8(FORMAT);
    write_edge(&mut out, edge);
    out.into_bytes()
}

fn write_edge(out: &mut Encoder, edge: &EdgeRecord) {
    out.u8(EDGE);
    out.edge_key(&edge.key);
    out.u8(edge.cause as u8);
    out.option(edge.old.as_ref(), write_edge_row);
    write_edge_row(out, &edge.new);
    out.option(edge.old_group.as_ref(), |out, name| out.str(name.as_str()));
    out.option(edge.new_group.as_ref(), |out, name| out.str(name.as_str()));
}

pub fn decode_record(bytes: &[u8]) -> Result<Record, CodecError> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let record = match input.u8()? {
        EDGE => Record::Edge(Box::new(EdgeRecord {
            key: input.edge_key()?,
            cause: input.closed("cause", Cause::from_u8)?,
            old: input.option(read_edge_row)?,
            new: read_edge_row(&mut input)?,
            old_group: input.option(read_group_name)?,
            new_group: input.option(read_group_name)?,
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
    Ok(record)
}
