//! A line of an offline import on its way through the sort: its change as bytes, behind a key that
//! brings together what is decided together, in the order in which it must be.
//!
//! Nodes come first, as their settings matter to edges, then kinds from the youngest to the oldest:
//! a kind can only exclude kinds that were there before it.

use guanxi_model::change::{Change, Field, ImportEdge, Put};
use guanxi_model::codec::{CodecError, Decoder, Encoder};
use guanxi_model::{
    Catalog, Code, EdgeKey, Error, GroupName, GroupsKey, Kind, KindId, Millis, NodeKey, NodeTypeId,
    SourceId, State, TargetId, TenantId,
};

/// Files of one import: a line's number keeps ten bits for its file.
pub const FILES_MAX: usize = 1 << (PLACE_BITS - LINE_BITS);
/// Lines of one file.
pub const LINES_MAX: u64 = (1 << LINE_BITS) - 1;

const LINE_BITS: u32 = 38;
const PLACE_BITS: u32 = 48;
const PLACE_BYTES: usize = PLACE_BITS as usize / 8;

/// Where a line stands: its file, and its number there, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinePlace {
    pub file: usize,
    pub line: u64,
}

impl LinePlace {
    pub(super) fn bytes(self) -> [u8; PLACE_BYTES] {
        let number = (self.file as u64) << LINE_BITS | self.line;
        let mut bytes = [0; PLACE_BYTES];
        bytes.copy_from_slice(&number.to_be_bytes()[8 - PLACE_BYTES..]);
        bytes
    }

    pub(super) fn read(input: &mut Decoder<'_>) -> Result<LinePlace, CodecError> {
        let number = big_endian(input.take(PLACE_BYTES)?);
        Ok(LinePlace { file: (number >> LINE_BITS) as usize, line: number & LINES_MAX })
    }
}

/// What is decided in one go, from the first line to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    Nodes(NodeTypeId),
    Counters(KindId),
    Edges(KindId),
}

const NODES: u16 = 0 << 14;
const COUNTERS: u16 = 1 << 14;
const EDGES: u16 = 2 << 14;
const NUMBER_MASK: u16 = (1 << 14) - 1;

impl Lane {
    fn number(self) -> u16 {
        match self {
            Lane::Nodes(node_type) => NODES | node_type.0 & NUMBER_MASK,
            Lane::Counters(kind) => COUNTERS | kind.0 & NUMBER_MASK,
            // The youngest first.
            Lane::Edges(kind) => EDGES | (NUMBER_MASK - (kind.0 & NUMBER_MASK)),
        }
    }

    fn of_number(number: u16) -> Result<Lane, CodecError> {
        let low = number & NUMBER_MASK;
        match number & !NUMBER_MASK {
            NODES => Ok(Lane::Nodes(NodeTypeId(low))),
            COUNTERS => Ok(Lane::Counters(KindId(low))),
            EDGES => Ok(Lane::Edges(KindId(NUMBER_MASK - low))),
            _ => Err(CodecError(format!("{number} is no lane"))),
        }
    }
}

/// What is decided together, line by line: a node, or the edges of a source, or of a kind that
/// counts and groups none one edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unit {
    pub lane: Lane,
    pub id: u64,
    pub target: Option<u64>,
}

/// Whether the lines of a source depend on each other, beyond those of the same edge.
pub(super) fn decided_by_source(kind: &Kind) -> bool {
    kind.rules.outgoing_max.is_some() || kind.rules.groups_max > 0
}

const HAS_SINCE: u8 = 1 << 0;
const HAS_STATE: u8 = 1 << 1;
const IS_PENDING: u8 = 1 << 2;
const IGNORES_LIMITS: u8 = 1 << 3;
const HAS_FIELDS: u8 = 1 << 4;
const IS_GROUP: u8 = 1 << 5;

/// Writes the key and what follows it. Changes of other sorts come from no line.
pub(super) fn write(
    change: &Change,
    place: LinePlace,
    catalog: &Catalog,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match change {
        Change::ImportEdge(line) => {
            let EdgeKey { tenant, kind, source, target } = line.put.edge;
            let kind = found(catalog, tenant, kind)?;
            edge_key(kind, source, Some(target), place, out);
            edge(line, out);
        }
        Change::ImportGroup { groups: GroupsKey { tenant, kind, source }, name } => {
            let kind = found(catalog, *tenant, *kind)?;
            edge_key(kind, *source, None, place, out);
            out.push(IS_GROUP);
            out.extend_from_slice(name.as_str().as_bytes());
        }
        Change::SetNode { node, private } => {
            key(Lane::Nodes(node.node_type), node.id, place, out);
            out.push(private.map_or(2, u8::from));
        }
        Change::ImportCounter { kind, id, value, .. } => {
            key(Lane::Counters(*kind), *id, place, out);
            out.extend_from_slice(&value.to_be_bytes());
        }
        _ => return Err(Error::new(Code::Internal, "a line asks for what no line can")),
    }
    Ok(())
}

fn found(catalog: &Catalog, tenant: TenantId, kind: KindId) -> Result<&Kind, Error> {
    let kind = catalog.kind(tenant, kind).map(AsRef::as_ref);
    kind.ok_or_else(|| Error::new(Code::UnknownKind, "there is no such kind"))
}

fn key(lane: Lane, id: u64, place: LinePlace, out: &mut Vec<u8>) {
    out.extend_from_slice(&lane.number().to_be_bytes());
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(&place.bytes());
}

/// The target stands in the key of all lines; where a source's lines belong together it stands
/// behind their places.
fn edge_key(
    kind: &Kind,
    source: SourceId,
    target: Option<TargetId>,
    place: LinePlace,
    out: &mut Vec<u8>,
) {
    let target = target.map_or(0, |target| target.0).to_be_bytes();
    out.extend_from_slice(&Lane::Edges(kind.id).number().to_be_bytes());
    out.extend_from_slice(&source.0.to_be_bytes());
    if decided_by_source(kind) {
        out.extend_from_slice(&place.bytes());
        out.extend_from_slice(&target);
    } else {
        out.extend_from_slice(&target);
        out.extend_from_slice(&place.bytes());
    }
}

fn edge(line: &ImportEdge, out: &mut Vec<u8>) {
    let Put { group, owner, data, expires_at, .. } = &line.put;
    let has_fields = *group != Field::Keep
        || *owner != Field::Keep
        || *data != Field::Keep
        || *expires_at != Field::Keep;
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    out.push(
        flag(line.since.is_some(), HAS_SINCE)
            | flag(line.state.is_some(), HAS_STATE)
            | flag(line.state == Some(State::Pending), IS_PENDING)
            | flag(line.ignore_limits, IGNORES_LIMITS)
            | flag(has_fields, HAS_FIELDS),
    );
    if let Some(since) = line.since {
        out.extend_from_slice(&since.0.to_be_bytes());
    }
    if has_fields {
        let mut fields = Encoder::default();
        fields.field(group, |out, name| out.str(name.as_str()));
        fields.field(owner, |out, owner| out.varint(*owner));
        fields.field(data, |out, data| out.str(data));
        fields.field(expires_at, |out, at| out.varint(at.0));
        out.extend_from_slice(&fields.into_bytes());
    }
}

/// A line as it was written, cut into what it is decided with and by.
pub(super) struct SortedLine<'a> {
    pub unit: Unit,
    pub place: LinePlace,
    /// Of an edge.
    target: u64,
    rest: Decoder<'a>,
}

impl<'a> SortedLine<'a> {
    pub fn read(
        record: &'a [u8],
        tenant: TenantId,
        catalog: &Catalog,
    ) -> Result<SortedLine<'a>, CodecError> {
        let mut rest = Decoder::new(record);
        let lane = Lane::of_number(big_endian(rest.take(2)?) as u16)?;
        let id = rest.fixed_u64()?;
        let Lane::Edges(kind) = lane else {
            let place = LinePlace::read(&mut rest)?;
            return Ok(SortedLine {
                unit: Unit { lane, id, target: None },
                place,
                target: 0,
                rest,
            });
        };
        let kind = catalog.kind(tenant, kind);
        let kind = kind.ok_or_else(|| CodecError("a line of no kind".to_owned()))?;
        if decided_by_source(kind) {
            let place = LinePlace::read(&mut rest)?;
            let target = rest.fixed_u64()?;
            return Ok(SortedLine { unit: Unit { lane, id, target: None }, place, target, rest });
        }
        let target = rest.fixed_u64()?;
        let place = LinePlace::read(&mut rest)?;
        Ok(SortedLine { unit: Unit { lane, id, target: Some(target) }, place, target, rest })
    }

    /// What the line asks for.
    pub fn change(self, tenant: TenantId) -> Result<Change, CodecError> {
        let SortedLine { unit: Unit { lane, id, .. }, target, mut rest, .. } = self;
        match lane {
            Lane::Nodes(node_type) => {
                let private = Some(rest.u8()?).filter(|private| *private < 2);
                let node = NodeKey { tenant, node_type, id };
                Ok(Change::SetNode { node, private: private.map(|private| private == 1) })
            }
            Lane::Counters(kind) => {
                let value = rest.fixed_u64()?.cast_signed();
                Ok(Change::ImportCounter { tenant, kind, id, value })
            }
            Lane::Edges(kind) => {
                let source = SourceId(id);
                let flags = rest.u8()?;
                if flags & IS_GROUP != 0 {
                    let name = group_name(rest.rest())?;
                    let groups = GroupsKey { tenant, kind, source };
                    return Ok(Change::ImportGroup { groups, name });
                }
                let edge = EdgeKey { tenant, kind, source, target: TargetId(target) };
                Ok(Change::ImportEdge(Box::new(read_edge(edge, flags, &mut rest)?)))
            }
        }
    }
}

fn read_edge(edge: EdgeKey, flags: u8, rest: &mut Decoder<'_>) -> Result<ImportEdge, CodecError> {
    let has = |bit: u8| flags & bit != 0;
    let since = if has(HAS_SINCE) { Some(Millis(rest.fixed_u64()?)) } else { None };
    let mut put = Put::plain(edge);
    if has(HAS_FIELDS) {
        put.group = rest.field(|input| group_name(input.bytes()?))?;
        put.owner = rest.field(Decoder::varint)?;
        put.data = rest.field(|input| Ok(input.str()?.into()))?;
        put.expires_at = rest.field(|input| Ok(Millis(input.varint()?)))?;
    }
    let state = match (has(HAS_STATE), has(IS_PENDING)) {
        (false, _) => None,
        (true, true) => Some(State::Pending),
        (true, false) => Some(State::Live),
    };
    Ok(ImportEdge { put, since, state, ignore_limits: has(IGNORES_LIMITS) })
}

fn group_name(bytes: &[u8]) -> Result<GroupName, CodecError> {
    let name = std::str::from_utf8(bytes).ok().and_then(|name| GroupName::new(name).ok());
    name.ok_or_else(|| CodecError("a group's name cannot be read".to_owned()))
}

pub(super) fn big_endian(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
