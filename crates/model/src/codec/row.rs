//! The encodings of rows: what stores keep as values and records carry inside.

use super::{CodecError, Decoded, Decoder, Encoder, FORMAT};
use crate::answer::{Answer, EdgeAnswer};
use crate::edge::{EdgeRow, Ends, SourceId, State, TargetId};
use crate::error::{Code, Error, Outcome};
use crate::group::{Group, GroupId, GroupName};
use crate::idempotency::{Answers, IdempotencyRow};
use crate::job::{Job, JobId, JobWork, Receipt};
use crate::kind::{FixedRules, Kind, KindId, KindName, OnOverload, Rules, TimeIndex};
use crate::node::{Node, NodeKey, NodeRow, NodeTypeId, TenantId};
use crate::tally::{TallyRow, Which};
use crate::time::Millis;
use crate::version::Version;

// Flags of an edge row. Most rows have none of the optional fields and a since that is their
// version's own time, and then take ten bytes.
const STATE_MASK: u8 = 0b0000_0011;
const HAS_SINCE: u8 = 0b0000_0100;
const HAS_GROUP: u8 = 0b0000_1000;
const HAS_OWNER: u8 = 0b0001_0000;
const HAS_DATA: u8 = 0b0010_0000;
const HAS_EXPIRY: u8 = 0b0100_0000;

// A kind's last byte: its index by time, and what came later in the bits above.
const TIME_INDEX_MASK: u8 = 0b0000_0011;
const ANSWERS_DEFAULT: u8 = 0b0000_0100;

// Flags of a node's row.
const PRIVATE: u8 = 0b0000_0001;
const ERASED: u8 = 0b0000_0010;

pub fn encode_edge_row(row: &EdgeRow) -> Vec<u8> {
    let mut out = Encoder::with_capacity(16);
    out.u8(FORMAT);
    write_edge_row(&mut out, row);
    out.into_bytes()
}

pub fn decode_edge_row(bytes: &[u8]) -> Decoded<EdgeRow> {
    whole(bytes, read_edge_row)
}

/// The state alone of a row that `decode_edge_row` would take: checks ask for nothing else.
pub fn decode_edge_state(bytes: &[u8]) -> Decoded<State> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let state = State::from_u8(input.u8()? & STATE_MASK);
    state.ok_or_else(|| CodecError("an edge row has no known state".into()))
}

pub(super) fn write_edge_row(out: &mut Encoder, row: &EdgeRow) {
    let flag = |set: bool, bit: u8| if set { bit } else { 0 };
    let since_differs = row.since != row.version.time();
    out.u8(row.state as u8
        | flag(since_differs, HAS_SINCE)
        | flag(row.group.is_some(), HAS_GROUP)
        | flag(row.owner.is_some(), HAS_OWNER)
        | flag(row.data.is_some(), HAS_DATA)
        | flag(row.expires_at.is_some(), HAS_EXPIRY));
    out.fixed_u64(row.version.0);
    if since_differs {
        out.varint(row.since.0);
    }
    if let Some(group) = row.group {
        out.varint(u64::from(group.0));
    }
    if let Some(owner) = row.owner {
        out.varint(owner);
    }
    if let Some(data) = &row.data {
        out.str(data);
    }
    if let Some(at) = row.expires_at {
        out.varint(at.0);
    }
}

pub(super) fn read_edge_row(input: &mut Decoder<'_>) -> Decoded<EdgeRow> {
    let flags = input.u8()?;
    let has = |bit: u8| flags & bit != 0;
    let state = State::from_u8(flags & STATE_MASK);
    let version = Version(input.fixed_u64()?);
    Ok(EdgeRow {
        version,
        state: state.ok_or_else(|| CodecError("an edge row has no known state".into()))?,
        since: if has(HAS_SINCE) { Millis(input.varint()?) } else { version.time() },
        group: if has(HAS_GROUP) { Some(GroupId(input.varint_u32()?)) } else { None },
        owner: if has(HAS_OWNER) { Some(input.varint()?) } else { None },
        data: if has(HAS_DATA) { Some(input.str()?.into()) } else { None },
        expires_at: if has(HAS_EXPIRY) { Some(Millis(input.varint()?)) } else { None },
    })
}

/// A node's settings in one byte where it has no mark, then its tallies.
pub fn encode_node(node: &Node) -> Vec<u8> {
    let Node { settings, tallies } = node;
    let mut out = Encoder::with_capacity(2 + 4 * tallies.entries().len());
    out.u8(FORMAT);
    let private = if settings.private { PRIVATE } else { 0 };
    let erased = if settings.erased_by.is_some() { ERASED } else { 0 };
    out.u8(private | erased);
    if let Some(job) = settings.erased_by {
        out.varint(job.0);
    }
    for (kind, which, value) in tallies.entries() {
        out.varint(u64::from(kind.0));
        out.u8(which as u8);
        out.signed(value);
    }
    out.into_bytes()
}

pub fn decode_node(bytes: &[u8]) -> Decoded<Node> {
    let mut tallies = TallyRow::default();
    let settings = read_node_row(bytes, |kind, which, value| tallies.add(kind, which, value))?;
    Ok(Node { settings, tallies })
}

/// The numbers that are wanted of a node's row, in their order; what it does not have is 0. For
/// reads that need a few of them and no row.
pub fn decode_node_numbers(
    bytes: &[u8],
    wanted: &[(KindId, Which)],
    numbers: &mut [i64],
) -> Decoded<()> {
    numbers.fill(0);
    read_node_row(bytes, |kind, which, value| {
        for (_, number) in wanted.iter().zip(&mut *numbers).filter(|(of, _)| **of == (kind, which))
        {
            *number = value;
        }
    })?;
    Ok(())
}

/// Hands over each number, and returns the settings.
fn read_node_row(bytes: &[u8], mut number: impl FnMut(KindId, Which, i64)) -> Decoded<NodeRow> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let flags = input.u8()?;
    if flags & !(PRIVATE | ERASED) != 0 {
        return Err(CodecError("a node has an unknown flag".into()));
    }
    let erased_by = if flags & ERASED != 0 { Some(JobId(input.varint()?)) } else { None };
    let mut last = None;
    while !input.is_empty() {
        let kind = input.kind_id()?;
        let which = input.closed("tally", Which::from_u8)?;
        // A number that came twice would be a sum, which need not fit.
        if last >= Some((kind, which)) {
            return Err(CodecError("tallies are out of order".into()));
        }
        last = Some((kind, which));
        number(kind, which, input.signed()?);
    }
    Ok(NodeRow { private: flags & PRIVATE != 0, erased_by })
}

/// A group's name and size; its id stands in the key.
pub fn encode_group(group: &Group) -> Vec<u8> {
    let mut out = Encoder::with_capacity(8 + group.name.as_str().len());
    out.u8(FORMAT);
    out.str(group.name.as_str());
    out.signed(group.size);
    out.into_bytes()
}

pub fn decode_group(id: GroupId, bytes: &[u8]) -> Decoded<Group> {
    whole(bytes, |input| Ok(Group { id, name: read_group_name(input)?, size: input.signed()? }))
}

pub(super) fn read_group_name(input: &mut Decoder<'_>) -> Decoded<GroupName> {
    Ok(GroupName::stored(input.str()?))
}

pub(super) fn write_node(out: &mut Encoder, row: &NodeRow) {
    out.bool(row.private);
    out.option(row.erased_by, |out, job| out.varint(job.0));
}

pub(super) fn read_node(input: &mut Decoder<'_>) -> Decoded<NodeRow> {
    let private = input.bool()?;
    let erased_by = input.option(|input| Ok(JobId(input.varint()?)))?;
    Ok(NodeRow { private, erased_by })
}

pub fn encode_kind(kind: &Kind) -> Vec<u8> {
    let mut out = Encoder::with_capacity(64);
    out.u8(FORMAT);
    write_kind(&mut out, kind);
    out.into_bytes()
}

pub fn decode_kind(bytes: &[u8]) -> Decoded<Kind> {
    whole(bytes, read_kind)
}

pub(super) fn write_kind(out: &mut Encoder, kind: &Kind) {
    let Kind { id, name, fixed, rules, time_index } = kind;
    out.varint(u64::from(id.0));
    out.str(name.as_str());
    out.varint(u64::from(fixed.source_type.0));
    out.varint(u64::from(fixed.target_type.0));
    out.option(fixed.owner_type, |out, owner| out.varint(u64::from(owner.0)));
    out.bool(fixed.counter);
    out.bool(fixed.reconciled);
    out.bool(fixed.outgoing_list);
    out.bool(fixed.incoming_list);
    out.bool(fixed.outgoing_tally);
    out.bool(fixed.incoming_tally);
    out.bool(rules.self_allowed);
    out.option(rules.outgoing_max, |out, max| out.varint(u64::from(max)));
    out.varint(u64::from(rules.groups_max));
    out.bool(rules.approval);
    out.varint(u64::from(rules.data_bytes_max));
    out.varint(rules.excludes.len() as u64);
    for excluded in &rules.excludes {
        out.varint(u64::from(excluded.0));
    }
    out.bool(rules.expires);
    out.varint(rules.list_depth_max);
    out.u8(*time_index as u8
        | match rules.on_overload {
            OnOverload::Refuse => 0,
            OnOverload::AnswerDefault => ANSWERS_DEFAULT,
        });
}

pub(super) fn read_kind(input: &mut Decoder<'_>) -> Decoded<Kind> {
    let id = input.kind_id()?;
    let name = read_kind_name(input)?;
    let fixed = FixedRules {
        source_type: NodeTypeId(input.varint_u16()?),
        target_type: NodeTypeId(input.varint_u16()?),
        owner_type: input.option(|input| Ok(NodeTypeId(input.varint_u16()?)))?,
        counter: input.bool()?,
        reconciled: input.bool()?,
        outgoing_list: input.bool()?,
        incoming_list: input.bool()?,
        outgoing_tally: input.bool()?,
        incoming_tally: input.bool()?,
    };
    let mut rules = Rules {
        self_allowed: input.bool()?,
        outgoing_max: input.option(Decoder::varint_u32)?,
        groups_max: input.varint_u32()?,
        approval: input.bool()?,
        data_bytes_max: input.varint_u32()?,
        excludes: {
            let count = input.count()?;
            (0..count).map(|_| input.kind_id()).collect::<Decoded<Vec<KindId>>>()?
        },
        expires: input.bool()?,
        list_depth_max: input.varint()?,
        on_overload: OnOverload::Refuse,
    };
    let last = input.u8()?;
    if last & ANSWERS_DEFAULT != 0 {
        rules.on_overload = OnOverload::AnswerDefault;
    }
    let time_index = match last & !(TIME_INDEX_MASK | ANSWERS_DEFAULT) {
        0 => TimeIndex::from_u8(last & TIME_INDEX_MASK),
        _ => None,
    };
    let time_index =
        time_index.ok_or_else(|| CodecError("a kind's last byte is unknown".into()))?;
    Ok(Kind { id, name, fixed, rules, time_index })
}

pub(super) fn read_kind_name(input: &mut Decoder<'_>) -> Decoded<KindName> {
    KindName::new(input.str()?).map_err(|error| CodecError(error.message))
}

pub(super) fn write_node_key(out: &mut Encoder, node: &NodeKey) {
    out.varint(u64::from(node.tenant.0));
    out.varint(u64::from(node.node_type.0));
    out.fixed_u64(node.id);
}

pub(super) fn read_node_key(input: &mut Decoder<'_>) -> Decoded<NodeKey> {
    let tenant = TenantId(input.varint_u32()?);
    let node_type = NodeTypeId(input.varint_u16()?);
    Ok(NodeKey { tenant, node_type, id: input.fixed_u64()? })
}

pub fn encode_job(job: &Job) -> Vec<u8> {
    let mut out = Encoder::with_capacity(48);
    out.u8(FORMAT);
    write_job(&mut out, job);
    out.into_bytes()
}

pub fn decode_job(bytes: &[u8]) -> Decoded<Job> {
    whole(bytes, read_job)
}

const WORK_ERASE: u8 = 1;
const WORK_BUILD_INDEX: u8 = 2;

pub(super) fn write_job(out: &mut Encoder, job: &Job) {
    out.varint(job.id.0);
    match &job.work {
        JobWork::Erase { node } => {
            out.u8(WORK_ERASE);
            write_node_key(out, node);
        }
        JobWork::BuildIndex { kind, after } => {
            out.u8(WORK_BUILD_INDEX);
            out.varint(u64::from(kind.0));
            out.option(*after, write_ends);
        }
    }
    out.varint(job.edges_done);
    out.varint(job.started.0);
    out.option(job.finished, |out, at| out.varint(at.0));
    out.option(job.receipt, |out, receipt| {
        out.varint(receipt.groups_removed);
        out.varint(receipt.counters_removed);
    });
}

pub(super) fn read_job(input: &mut Decoder<'_>) -> Decoded<Job> {
    let id = JobId(input.varint()?);
    let work = match input.u8()? {
        WORK_ERASE => JobWork::Erase { node: read_node_key(input)? },
        WORK_BUILD_INDEX => {
            let kind = input.kind_id()?;
            JobWork::BuildIndex { kind, after: input.option(read_ends)? }
        }
        other => return Err(CodecError(format!("{other} is no known work of a job"))),
    };
    Ok(Job {
        id,
        work,
        edges_done: input.varint()?,
        started: Millis(input.varint()?),
        finished: input.option(|input| Ok(Millis(input.varint()?)))?,
        receipt: input.option(|input| {
            let groups_removed = input.varint()?;
            Ok(Receipt { groups_removed, counters_removed: input.varint()? })
        })?,
    })
}

pub(super) fn write_ends(out: &mut Encoder, (source, target): Ends) {
    out.fixed_u64(source.0);
    out.fixed_u64(target.0);
}

pub(super) fn read_ends(input: &mut Decoder<'_>) -> Decoded<Ends> {
    Ok((SourceId(input.fixed_u64()?), TargetId(input.fixed_u64()?)))
}

pub fn encode_idempotency(row: &IdempotencyRow) -> Vec<u8> {
    let mut out = Encoder::with_capacity(48);
    out.u8(FORMAT);
    write_idempotency(&mut out, row);
    out.into_bytes()
}

pub fn decode_idempotency(bytes: &[u8]) -> Decoded<IdempotencyRow> {
    whole(bytes, read_idempotency)
}

pub(super) fn write_idempotency(out: &mut Encoder, row: &IdempotencyRow) {
    out.fixed_u64((row.request >> 64) as u64);
    out.fixed_u64(row.request as u64);
    out.varint(row.at.0);
    out.varint(row.answers.len() as u64);
    for answer in &row.answers {
        write_answer(out, answer);
    }
}

pub(super) fn read_idempotency(input: &mut Decoder<'_>) -> Decoded<IdempotencyRow> {
    let high = u128::from(input.fixed_u64()?);
    let request = high << 64 | u128::from(input.fixed_u64()?);
    let at = Millis(input.varint()?);
    Ok(IdempotencyRow { request, at, answers: read_answers(input)? })
}

fn read_answers(input: &mut Decoder<'_>) -> Decoded<Answers> {
    let count = input.count()?;
    (0..count).map(|_| read_answer(input)).collect()
}

const ANSWER_ERROR: u8 = 0;
const ANSWER_EDGE: u8 = 1;
const ANSWER_GROUP: u8 = 2;
const ANSWER_NODE: u8 = 3;
const ANSWER_COUNTER: u8 = 4;
const ANSWER_KIND: u8 = 5;
const ANSWER_JOB: u8 = 6;
const ANSWER_REPAIRED: u8 = 7;
/// An error that may pass although its code's usually does not, or the other way round.
const ANSWER_UNUSUAL_ERROR: u8 = 8;

fn write_answer(out: &mut Encoder, answer: &Result<Answer, Error>) {
    match answer {
        Err(error) => {
            let usual = error.retryable == error.code.retryable();
            out.u8(if usual { ANSWER_ERROR } else { ANSWER_UNUSUAL_ERROR });
            out.u8(error.code as u8);
            out.str(&error.message);
            out.bool(error.outcome == Outcome::Unknown);
        }
        Ok(Answer::Edge(edge)) => {
            out.u8(ANSWER_EDGE);
            out.bool(edge.changed);
            out.u8(edge.state as u8);
            out.option(edge.since, |out, since| out.varint(since.0));
            out.option(edge.version, |out, version| out.fixed_u64(version.0));
        }
        Ok(Answer::Group { name, size }) => {
            out.u8(ANSWER_GROUP);
            out.str(name.as_str());
            out.signed(*size);
        }
        Ok(Answer::Node(row)) => {
            out.u8(ANSWER_NODE);
            write_node(out, row);
        }
        Ok(Answer::Counter { value }) => {
            out.u8(ANSWER_COUNTER);
            out.signed(*value);
        }
        Ok(Answer::Kind(kind)) => {
            out.u8(ANSWER_KIND);
            write_kind(out, kind);
        }
        Ok(Answer::Job(id)) => {
            out.u8(ANSWER_JOB);
            out.varint(id.0);
        }
        Ok(Answer::Repaired) => out.u8(ANSWER_REPAIRED),
    }
}

fn read_answer(input: &mut Decoder<'_>) -> Decoded<Result<Answer, Error>> {
    Ok(match input.u8()? {
        ANSWER_ERROR => Err(read_error(input)?),
        ANSWER_UNUSUAL_ERROR => {
            let error = read_error(input)?;
            Err(if error.retryable { error.lasting() } else { error.passing() })
        }
        ANSWER_EDGE => Ok(Answer::Edge(EdgeAnswer {
            changed: input.bool()?,
            state: input.closed("state", State::from_u8)?,
            since: input.option(|input| Ok(Millis(input.varint()?)))?,
            version: input.option(|input| Ok(Version(input.fixed_u64()?)))?,
        })),
        ANSWER_GROUP => {
            let name = read_group_name(input)?;
            Ok(Answer::Group { name, size: input.signed()? })
        }
        ANSWER_NODE => Ok(Answer::Node(read_node(input)?)),
        ANSWER_COUNTER => Ok(Answer::Counter { value: input.signed()? }),
        ANSWER_KIND => Ok(Answer::Kind(Box::new(read_kind(input)?))),
        ANSWER_JOB => Ok(Answer::Job(JobId(input.varint()?))),
        ANSWER_REPAIRED => Ok(Answer::Repaired),
        other => return Err(CodecError(format!("{other} is no known answer"))),
    })
}

fn read_error(input: &mut Decoder<'_>) -> Decoded<Error> {
    let code = input.closed("error code", Code::from_u8)?;
    let error = Error::new(code, input.str()?);
    Ok(if input.bool()? { error.outcome_unknown() } else { error })
}

/// A row of its own: version byte, content, nothing more.
fn whole<'a, T>(bytes: &'a [u8], read: impl FnOnce(&mut Decoder<'a>) -> Decoded<T>) -> Decoded<T> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let value = read(&mut input)?;
    input.finish()?;
    Ok(value)
}
