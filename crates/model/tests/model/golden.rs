//! The bytes of one record of each tag and one row of each type, as they stand in logs and
//! stores already: a format that changes must say so by its version byte.

use std::fmt::Debug;
use std::sync::Arc;

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::codec::{
    CodecError, decode_edge_row, decode_group, decode_idempotency, decode_import, decode_job,
    decode_kind, decode_node, decode_record, decode_with_origin, encode_edge_row, encode_group,
    encode_idempotency, encode_import, encode_job, encode_kind, encode_node, encode_record,
};
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow, LinesDigest, RejectedLine};
use guanxi_model::job::{Job, JobId, JobWork, Receipt};
use guanxi_model::kind::{FixedRules, OnOverload, Rules, TimeIndex};
use guanxi_model::record::{Cause, EdgeRecord, Repair};
use guanxi_model::{
    Answer, Code, EdgeKey, EdgeRow, Error, GroupId, GroupsKey, Index, IndexEntry, Kind, KindId,
    Millis, Node, NodeKey, NodeRow, NodeTypeId, Origin, OriginText, Record, SourceId, State,
    TallyRow, TargetId, TenantId, Version, Which,
};

use crate::codec::{Ending, check_flipped};
use crate::world::{group_name, kind_name};

const TENANT: TenantId = TenantId(1);
const MOMENT: Millis = Millis(1_700_000_000_000);
const VERSION: Version = Version(0x18bc_fe56_8000_0302);
const SOURCE: SourceId = SourceId(0x0102_0304_0506_0708);
const TARGET: TargetId = TargetId(300);

fn check<T: PartialEq + Debug>(
    value: &T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ending: Ending,
    golden: &str,
) {
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let golden: String = golden.split_whitespace().collect();
    assert_eq!(hex(&encode(value)), golden, "{value:?}");
    check_flipped(value, encode, decode, ending, 1..=u8::MAX);
}

fn check_record(record: &Record, golden: &str) {
    let encode = |record: &Record| encode_record(record, &Origin::default());
    check(record, encode, decode_record, Ending::Inside, golden);
}

/// Every optional field is there, and since is not the version's own time.
fn full_row() -> EdgeRow {
    EdgeRow {
        version: VERSION,
        state: State::Pending,
        since: Millis(1_600_000_000_000),
        group: Some(GroupId(5)),
        owner: Some(77),
        data: Some("hi 友".into()),
        expires_at: Some(Millis(1_800_000_000_000)),
    }
}

fn bare_row() -> EdgeRow {
    EdgeRow { state: State::Live, ..EdgeRow::removed(VERSION, VERSION.time()) }
}

fn kind() -> Kind {
    Kind {
        id: KindId(300),
        name: kind_name("a.b_9"),
        fixed: FixedRules {
            source_type: NodeTypeId(1),
            target_type: NodeTypeId(2),
            counter: false,
            reconciled: true,
            owner_type: Some(NodeTypeId(3)),
            outgoing_list: true,
            incoming_list: false,
            outgoing_tally: true,
            incoming_tally: false,
        },
        rules: Rules {
            self_allowed: true,
            outgoing_max: Some(2_000),
            groups_max: 20,
            approval: true,
            data_bytes_max: 128,
            excludes: vec![KindId(1), KindId(200)],
            expires: true,
            list_depth_max: 10_000,
            on_overload: OnOverload::Refuse,
        },
        time_index: TimeIndex::Ready,
    }
}

fn erasure() -> Job {
    Job {
        id: JobId(9),
        work: JobWork::Erase { node: NodeKey { tenant: TENANT, node_type: NodeTypeId(2), id: 7 } },
        edges_done: 500,
        started: Millis(1),
        finished: Some(Millis(2)),
        receipt: Some(Receipt { groups_removed: 3, counters_removed: 4 }),
    }
}

fn building() -> Job {
    Job {
        work: JobWork::BuildIndex { kind: KindId(1), after: Some((SOURCE, TARGET)) },
        finished: None,
        receipt: None,
        ..erasure()
    }
}

/// One answer of each shape.
fn idempotency() -> IdempotencyRow {
    let edge = |since, version| EdgeAnswer { changed: true, state: State::Removed, since, version };
    IdempotencyRow {
        request: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        at: MOMENT,
        answers: vec![
            Err(Error::new(Code::LimitReached, "no").outcome_unknown()),
            Ok(Answer::Edge(edge(Some(MOMENT), Some(VERSION)))),
            Ok(Answer::Edge(edge(None, None))),
            Ok(Answer::Group { name: group_name("g"), size: -1 }),
            Ok(Answer::Node(NodeRow { private: true, erased_by: None })),
            Ok(Answer::Counter { value: 300 }),
            Ok(Answer::Kind(Box::new(kind()))),
            Ok(Answer::Job(JobId(9))),
            Ok(Answer::Repaired),
        ],
    }
}

/// A reason shares its beginning with the last one of its code.
const IMPORT: &str = "ac02a202020780d095ffbc31 01230000000000000000000000000000 03 \
                      02100009 6e6f646520e58f8b31 01110002 6e6f a9021008 0132";

fn import() -> ImportRow {
    let digest = LinesDigest(0x0123 << 112);
    let (lines, accepted, changed, rejected) = (300, 290, 2, 7);
    let reject = |line, code, reason: &str| RejectedLine { line, code, reason: reason.into() };
    let rejects = vec![
        reject(2, Code::SelfRelation, "node 友1"),
        reject(3, Code::LimitReached, "no"),
        reject(300, Code::SelfRelation, "node 友2"),
    ];
    let rejects = Arc::new(rejects);
    ImportRow { lines, accepted, changed, rejected, rejects, at: MOMENT, digest }
}

#[test]
fn rows() {
    let inside = Ending::Inside;
    let (encode, decode) = (encode_edge_row, decode_edge_row);
    check(&bare_row(), encode, decode, inside, "010018bcfe5680000302");
    check(
        &full_row(),
        encode,
        decode,
        inside,
        "017d18bcfe56800003028080babbc82e054d06686920e58f8b80a0f1c2b134",
    );
    // Each optional field alone, so that no two can change places.
    let (bare, full) = (bare_row(), full_row());
    let alone = |change: fn(&mut EdgeRow, EdgeRow), golden| {
        let mut row = bare.clone();
        change(&mut row, full.clone());
        check(&row, encode, decode, inside, golden);
    };
    alone(|row, full| row.since = full.since, "010418bcfe56800003028080babbc82e");
    alone(|row, full| row.group = full.group, "010818bcfe568000030205");
    alone(|row, full| row.owner = full.owner, "011018bcfe56800003024d");
    alone(|row, full| row.data = full.data, "012018bcfe568000030206686920e58f8b");
    alone(|row, full| row.expires_at = full.expires_at, "014018bcfe568000030280a0f1c2b134");
    let mut tallies = TallyRow::default();
    for (at, which) in Which::ALL.into_iter().enumerate() {
        tallies.add(KindId(1), which, 10i64.pow(at as u32));
    }
    tallies.add(KindId(300), Which::Value, -1);
    check(
        &Node { settings: NodeRow { private: true, erased_by: Some(JobId(9)) }, tallies },
        encode_node,
        decode_node,
        Ending::AtTheEnd,
        "0103090100020101140102c8010103d00f0104a09c010105c09a0cac020501",
    );
    let group = Group { id: GroupId(5), name: group_name("密友"), size: 1_000 };
    let decode = |bytes: &[u8]| decode_group(GroupId(5), bytes);
    check(&group, encode_group, decode, inside, "0106e5af86e58f8bd00f");
    check(
        &kind(),
        encode_kind,
        decode_kind,
        inside,
        "01ac0205612e625f39010201030001010001000101d00f140180010201c80101 \
         904e02",
    );
    // The bytes above are also those from before kinds knew what to do on overload.
    let mut lenient = kind();
    lenient.rules.on_overload = OnOverload::AnswerDefault;
    check(
        &lenient,
        encode_kind,
        decode_kind,
        inside,
        "01ac0205612e625f39010201030001010001000101d00f140180010201c80101 \
         904e06",
    );
    for unknown in [0x03, 0x07, 0x0a, 0x82] {
        let mut bytes = encode_kind(&kind());
        *bytes.last_mut().unwrap() = unknown;
        assert!(decode_kind(&bytes).unwrap_err().0.contains("last byte"), "{unknown}");
    }
    check(&import(), encode_import, decode_import, inside, &format!("03{IMPORT}"));
    check(&erasure(), encode_job, decode_job, inside, "01090101020000000000000007f403010102010304");
    check(
        &building(),
        encode_job,
        decode_job,
        inside,
        "01090201010102030405060708000000000000012cf403010000",
    );
    check(
        &idempotency(),
        encode_idempotency,
        decode_idempotency,
        inside,
        "010102030405060708090a0b0c0d0e0f1080d095ffbc31090011026e6f010101 \
         020180d095ffbc310118bcfe568000030201010200000201670103010004d804 \
         05ac0205612e625f39010201030001010001000101d00f140180010201c80101 \
         904e02060907",
    );
}

#[test]
fn records() {
    let (tenant, id) = (TENANT, 7);
    let edge = EdgeRecord {
        key: EdgeKey { tenant, kind: KindId(1), source: SOURCE, target: TARGET },
        cause: Cause::Approve,
        old: Some(full_row()),
        new: bare_row(),
        old_group: Some(group_name("g")),
        new_group: None,
        fresh: false,
        origin: Origin::default(),
    };
    check_record(
        &Record::Edge(Box::new(edge)),
        "02010001010102030405060708000000000000012c03017d18bcfe568000030280 \
         80babbc82e054d06686920e58f8b80a0f1c2b1340018bcfe5680000302010167 \
         00",
    );
    let group = Record::Group {
        groups: GroupsKey { tenant, kind: KindId(1), source: SOURCE },
        id: GroupId(5),
        name: Some(group_name("g")),
    };
    check_record(&group, "0202000101010203040506070805010167");
    let node = Record::Node {
        node: NodeKey { tenant, node_type: NodeTypeId(2), id },
        row: NodeRow::default(),
    };
    check_record(&node, "020300010200000000000000070000");
    let node_type = Record::NodeType { tenant, id: NodeTypeId(3), name: kind_name("page") };
    check_record(&node_type, "02040001030470616765");
    let kind = Record::Kind { tenant, kind: Box::new(kind()) };
    check_record(
        &kind,
        "02050001ac0205612e625f39010201030001010001000101d00f140180010201c8 \
         0101904e02",
    );
    let counter = Record::Counter { tenant, kind: KindId(5), id, delta: -300 };
    check_record(&counter, "02060001050000000000000007d704");
    let idempotency = Record::Idempotency {
        tenant,
        key: IdempotencyKey::new("key").unwrap(),
        row: IdempotencyRow { answers: Vec::new(), ..idempotency() },
    };
    check_record(&idempotency, "02070001036b65790102030405060708090a0b0c0d0e0f1080d095ffbc3100");
    let import = Record::Import { tenant, id: ImportId::new("file").unwrap(), row: import() };
    check_record(&import, &format!("020d00010466696c65{IMPORT}"));
    let job = Record::Job { tenant, job: Box::new(erasure()) };
    check_record(&job, "02080001090101020000000000000007f403010102010304");
    let build_index = Record::BuildIndex {
        tenant,
        kind: KindId(1),
        job: JobId(9),
        after: None,
        until: (SOURCE, TARGET),
    };
    check_record(&build_index, "020900010109000102030405060708000000000000012c");
}

#[test]
fn repairs() {
    let (tenant, kind) = (TENANT, KindId(1));
    let check = |repair, golden| check_record(&Record::Repair(repair), golden);
    let node = NodeKey { tenant, node_type: NodeTypeId(2), id: 7 };
    check(
        Repair::Tally { node, kind, which: Which::Owned, value: -300 },
        "020b0001010200000000000000070104d704",
    );
    let groups = GroupsKey { tenant, kind, source: SOURCE };
    check(
        Repair::GroupSize { groups, id: GroupId(5), size: 1_000 },
        "020b00020101010203040506070805d00f",
    );
    let edge = EdgeKey { tenant, kind, source: SOURCE, target: TARGET };
    let entry = |index, present| Repair::Entry { entry: IndexEntry { edge, index }, present };
    let (state, since) = (State::Pending, MOMENT);
    check(
        entry(Index::Incoming { state, since }, true),
        "020b000301010102030405060708000000000000012c010180d095ffbc3101",
    );
    check(
        entry(Index::Outgoing { state, since }, false),
        "020b000301010102030405060708000000000000012c020180d095ffbc3100",
    );
    check(
        entry(Index::Expiry { at: MOMENT }, true),
        "020b000301010102030405060708000000000000012c0380d095ffbc3101",
    );
}

/// What is set of the origin stands between the tag and the content.
#[test]
fn origins() {
    let text = |text| Some(OriginText::new(text).unwrap());
    let origin = Origin {
        by: text("AK"),
        subject: text("u/7"),
        rule: text("r"),
        job: Some(JobId(300)),
        reason: text("友"),
    };
    let key = EdgeKey { tenant: TENANT, kind: KindId(1), source: SOURCE, target: TARGET };
    let edge = |fresh, origin| EdgeRecord {
        key,
        cause: Cause::Put,
        old: None,
        new: bare_row(),
        old_group: None,
        new_group: None,
        fresh,
        origin,
    };
    let content = "010101020304050607080000 00000000012c010000 18bcfe56800003020000";
    let check_edge = |edge: EdgeRecord, head: &str| {
        check_record(&Record::Edge(Box::new(edge)), &format!("{head}{content}"));
    };
    check_edge(edge(false, Origin::default()), "020100");
    check_edge(edge(true, Origin::default()), "020120");
    check_edge(edge(true, origin.clone()), "02013f 02414b 03752f37 0172 ac02 03e58f8b");
    let alone = Origin { job: Some(JobId(300)), ..Origin::default() };
    check_edge(edge(false, alone.clone()), "020108 ac02");
    // Other records have none in them, and take their request's.
    let id = NodeTypeId(3);
    let record = Record::NodeType { tenant: TENANT, id, name: kind_name("page") };
    let both = (record, Origin { reason: origin.reason, ..alone });
    check(
        &both,
        |(record, origin)| encode_record(record, origin),
        decode_with_origin,
        Ending::Inside,
        "020418 ac02 03e58f8b 01030470616765",
    );
}

/// Numbers of closed lists stand in rows and records, so they keep their meaning.
#[test]
fn numbers_of_closed_lists() {
    assert_eq!(Cause::ALL.map(|cause| cause as u8), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let causes = "put delete approve decline move expire cut erase import repair";
    assert_eq!(Cause::ALL.map(Cause::name).join(" "), causes);
    assert_eq!(Which::ALL.map(|which| which as u8), [0, 1, 2, 3, 4, 5]);
    let codes: Vec<u8> = Code::ALL.iter().map(|code| *code as u8).collect();
    assert_eq!(codes, (1..=27).collect::<Vec<u8>>());
    let names = "invalid_argument unauthenticated forbidden not_found unknown_kind unknown_group \
                 method_not_allowed already_related not_related not_pending conflict \
                 key_conflict position_expired too_large unsupported_media_type self_relation \
                 limit_reached excluded target_unknown depth_exceeded guarded quota_exceeded \
                 internal overloaded unavailable read_only deadline_exceeded";
    assert_eq!(Code::ALL.map(Code::name).join(" "), names);
}
