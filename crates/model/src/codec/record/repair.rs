//! The encoding of repairs.

use super::super::row::{read_node_key, write_node_key};
use super::super::{CodecError, Decoded, Decoder, Encoder};
use crate::edge::{SourceId, State};
use crate::entry::{Index, IndexEntry};
use crate::group::{GroupId, GroupsKey};
use crate::record::Repair;
use crate::tally::Which;
use crate::time::Millis;

const TALLY: u8 = 1;
const GROUP_SIZE: u8 = 2;
const ENTRY: u8 = 3;

const INCOMING: u8 = 1;
const OUTGOING: u8 = 2;
const EXPIRY: u8 = 3;

pub(super) fn write_repair(out: &mut Encoder, repair: &Repair) {
    match repair {
        Repair::Tally { node, kind, which, value } => {
            out.u8(TALLY);
            write_node_key(out, node);
            out.varint(u64::from(kind.0));
            out.u8(*which as u8);
            out.signed(*value);
        }
        Repair::GroupSize { groups, id, size } => {
            out.u8(GROUP_SIZE);
            write_groups_key(out, groups);
            out.varint(u64::from(id.0));
            out.signed(*size);
        }
        Repair::Entry { entry, present } => {
            out.u8(ENTRY);
            write_entry(out, entry);
            out.bool(*present);
        }
    }
}

pub(super) fn read_repair(input: &mut Decoder<'_>) -> Decoded<Repair> {
    Ok(match input.u8()? {
        TALLY => Repair::Tally {
            node: read_node_key(input)?,
            kind: input.kind_id()?,
            which: input.closed("tally", Which::from_u8)?,
            value: input.signed()?,
        },
        GROUP_SIZE => Repair::GroupSize {
            groups: read_groups_key(input)?,
            id: GroupId(input.varint_u32()?),
            size: input.signed()?,
        },
        ENTRY => Repair::Entry { entry: read_entry(input)?, present: input.bool()? },
        other => return Err(CodecError(format!("{other} is no known repair"))),
    })
}

fn write_entry(out: &mut Encoder, entry: &IndexEntry) {
    out.edge_key(&entry.edge);
    let mut timed = |index: u8, state: State, since: Millis| {
        out.u8(index);
        out.u8(state as u8);
        out.varint(since.0);
    };
    match entry.index {
        Index::Incoming { state, since } => timed(INCOMING, state, since),
        Index::Outgoing { state, since } => timed(OUTGOING, state, since),
        Index::Expiry { at } => {
            out.u8(EXPIRY);
            out.varint(at.0);
        }
    }
}

fn read_entry(input: &mut Decoder<'_>) -> Decoded<IndexEntry> {
    let edge = input.edge_key()?;
    let index = input.u8()?;
    if index == EXPIRY {
        return Ok(IndexEntry { edge, index: Index::Expiry { at: Millis(input.varint()?) } });
    }
    let state = input.closed("state", State::from_u8)?;
    let since = Millis(input.varint()?);
    let index = match index {
        INCOMING => Index::Incoming { state, since },
        OUTGOING => Index::Outgoing { state, since },
        other => return Err(CodecError(format!("{other} is no known index"))),
    };
    Ok(IndexEntry { edge, index })
}

pub(super) fn write_groups_key(out: &mut Encoder, groups: &GroupsKey) {
    out.varint(u64::from(groups.tenant.0));
    out.varint(u64::from(groups.kind.0));
    out.fixed_u64(groups.source.0);
}

pub(super) fn read_groups_key(input: &mut Decoder<'_>) -> Decoded<GroupsKey> {
    Ok(GroupsKey {
        tenant: input.tenant()?,
        kind: input.kind_id()?,
        source: SourceId(input.fixed_u64()?),
    })
}
