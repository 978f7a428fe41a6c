//! Arbitrary rows and records, every variant of each, for the codecs.

use std::sync::Arc;

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow, LinesDigest, RejectedLine};
use guanxi_model::job::{Job, JobId, JobWork, Receipt};
use guanxi_model::kind::{FixedRules, OnOverload, Rules, TimeIndex};
use guanxi_model::record::{Cause, EdgeRecord, Repair};
use guanxi_model::{
    Answer, Code, EdgeKey, EdgeRow, Ends, Error, GroupId, GroupName, GroupsKey, Index, IndexEntry,
    Kind, KindId, KindName, Millis, NodeKey, NodeRow, NodeTypeId, Origin, OriginText, Record,
    SourceId, State, TallyRow, TargetId, TenantId, Version, Which,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Numbers of every length of a varint.
fn numbers() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64u32).prop_map(|(number, shift)| number >> shift)
}

fn moments() -> impl Strategy<Value = Millis> {
    numbers().prop_map(Millis)
}

fn tenants() -> impl Strategy<Value = TenantId> {
    any::<u32>().prop_map(TenantId)
}

fn kind_ids() -> impl Strategy<Value = KindId> {
    any::<u16>().prop_map(KindId)
}

fn node_types() -> impl Strategy<Value = NodeTypeId> {
    any::<u16>().prop_map(NodeTypeId)
}

fn group_ids() -> impl Strategy<Value = GroupId> {
    any::<u32>().prop_map(GroupId)
}

fn job_ids() -> impl Strategy<Value = JobId> {
    numbers().prop_map(JobId)
}

fn kind_names() -> impl Strategy<Value = KindName> {
    "[a-z][a-z0-9_.]{0,31}".prop_map(|name| KindName::new(&name).unwrap())
}

fn group_names() -> impl Strategy<Value = GroupName> {
    "[a-z友\u{1f600} ]{1,64}".prop_map(|name| GroupName::new(&name).unwrap())
}

fn ends() -> impl Strategy<Value = Ends> {
    (numbers(), numbers()).prop_map(|(source, target)| (SourceId(source), TargetId(target)))
}

fn edge_keys() -> impl Strategy<Value = EdgeKey> {
    (tenants(), kind_ids(), ends()).prop_map(|(tenant, kind, (source, target))| EdgeKey {
        tenant,
        kind,
        source,
        target,
    })
}

fn node_keys() -> impl Strategy<Value = NodeKey> {
    (tenants(), node_types(), numbers()).prop_map(|(tenant, node_type, id)| NodeKey {
        tenant,
        node_type,
        id,
    })
}

fn states() -> impl Strategy<Value = State> {
    select(vec![State::Live, State::Pending, State::Removed])
}

pub fn edge_rows() -> impl Strategy<Value = EdgeRow> {
    (
        any::<u64>().prop_map(Version),
        states(),
        option::of(moments()),
        option::of(group_ids()),
        option::of(numbers()),
        option::of("[a-z友]{0,40}".prop_map(Box::from)),
        option::of(moments()),
    )
        .prop_map(|(version, state, since, group, owner, data, expires_at)| EdgeRow {
            version,
            state,
            // Most rows have the time of their version, which the codec leaves out.
            since: since.unwrap_or(version.time()),
            group,
            owner,
            data,
            expires_at,
        })
}

pub fn tally_rows() -> impl Strategy<Value = TallyRow> {
    let entry = (kind_ids(), select(Which::ALL.to_vec()), any::<i64>());
    vec(entry, 0..6).prop_map(|entries| {
        let mut row = TallyRow::default();
        for (kind, which, value) in entries {
            // Sums of arbitrary numbers need not fit, so each is set once.
            if row.get(kind, which) == 0 {
                row.add(kind, which, value);
            }
        }
        row
    })
}

pub fn groups() -> impl Strategy<Value = Group> {
    (group_ids(), group_names(), any::<i64>()).prop_map(|(id, name, size)| Group { id, name, size })
}

pub fn node_rows() -> impl Strategy<Value = NodeRow> {
    (any::<bool>(), option::of(job_ids()))
        .prop_map(|(private, erased_by)| NodeRow { private, erased_by })
}

pub fn kinds() -> impl Strategy<Value = Kind> {
    let fixed = ((node_types(), node_types(), option::of(node_types())), any::<[bool; 6]>())
        .prop_map(|((source_type, target_type, owner_type), flags)| FixedRules {
            source_type,
            target_type,
            owner_type,
            counter: flags[0],
            reconciled: flags[1],
            outgoing_list: flags[2],
            incoming_list: flags[3],
            outgoing_tally: flags[4],
            incoming_tally: flags[5],
        });
    let rules = (
        any::<[bool; 4]>(),
        option::of(any::<u32>()),
        any::<[u32; 2]>(),
        vec(kind_ids(), 0..8),
        numbers(),
    )
        .prop_map(|(flags, outgoing_max, bounds, excludes, list_depth_max)| Rules {
            self_allowed: flags[0],
            outgoing_max,
            groups_max: bounds[0],
            approval: flags[1],
            data_bytes_max: bounds[1],
            excludes,
            expires: flags[2],
            list_depth_max,
            on_overload: match flags[3] {
                true => OnOverload::AnswerDefault,
                false => OnOverload::Refuse,
            },
        });
    let indexes = select(vec![TimeIndex::Absent, TimeIndex::Building, TimeIndex::Ready]);
    (kind_ids(), kind_names(), fixed, rules, indexes).prop_map(
        |(id, name, fixed, rules, time_index)| Kind { id, name, fixed, rules, time_index },
    )
}

pub fn jobs() -> impl Strategy<Value = Job> {
    let work = prop_oneof![
        node_keys().prop_map(|node| JobWork::Erase { node }),
        (kind_ids(), option::of(ends()))
            .prop_map(|(kind, after)| JobWork::BuildIndex { kind, after }),
    ];
    let receipts = (numbers(), numbers()).prop_map(|(groups_removed, counters_removed)| Receipt {
        groups_removed,
        counters_removed,
    });
    (job_ids(), work, numbers(), moments(), option::of(moments()), option::of(receipts)).prop_map(
        |(id, work, edges_done, started, finished, receipt)| Job {
            id,
            work,
            edges_done,
            started,
            finished,
            receipt,
        },
    )
}

fn answers() -> impl Strategy<Value = Result<Answer, Error>> {
    let edges = (
        any::<bool>(),
        states(),
        option::of(moments()),
        option::of(any::<u64>().prop_map(Version)),
    )
        .prop_map(|(changed, state, since, version)| {
            Answer::Edge(EdgeAnswer { changed, state, since, version })
        });
    let errors = (select(Code::ALL.to_vec()), "[a-z →]{0,40}", any::<bool>(), any::<bool>());
    prop_oneof![
        edges.prop_map(Ok),
        (group_names(), any::<i64>()).prop_map(|(name, size)| Ok(Answer::Group { name, size })),
        node_rows().prop_map(|row| Ok(Answer::Node(row))),
        any::<i64>().prop_map(|value| Ok(Answer::Counter { value })),
        kinds().prop_map(|kind| Ok(Answer::Kind(Box::new(kind)))),
        job_ids().prop_map(|id| Ok(Answer::Job(id))),
        Just(Ok(Answer::Repaired)),
        errors.prop_map(|(code, message, unknown, passing)| {
            let error = Error::new(code, message);
            let error = if passing { error.passing() } else { error.lasting() };
            Err(if unknown { error.outcome_unknown() } else { error })
        }),
    ]
}

pub fn idempotency_rows() -> impl Strategy<Value = IdempotencyRow> {
    (any::<u128>(), moments(), vec(answers(), 0..3))
        .prop_map(|(request, at, answers)| IdempotencyRow { request, at, answers })
}

pub fn import_rows() -> impl Strategy<Value = ImportRow> {
    let rejects = (any::<u64>(), select(Code::ALL.to_vec()), "(no|node) ?[友a-c]{0,4}")
        .prop_map(|(line, code, reason)| RejectedLine { line, code, reason: reason.into() });
    let numbers = (any::<[u64; 3]>(), any::<u32>());
    (numbers, vec(rejects, 0..5), moments(), any::<u128>()).prop_map(
        |(([lines, accepted, changed], more), rejects, at, digest)| ImportRow {
            lines,
            accepted,
            changed,
            rejected: rejects.len() as u64 + u64::from(more),
            rejects: Arc::new(rejects),
            at,
            digest: LinesDigest(digest),
        },
    )
}

fn edge_records() -> impl Strategy<Value = EdgeRecord> {
    (
        edge_keys(),
        select(Cause::ALL.to_vec()),
        option::of(edge_rows()),
        edge_rows(),
        option::of(group_names()),
        option::of(group_names()),
        any::<bool>(),
    )
        .prop_map(|(key, cause, old, new, old_group, new_group, fresh)| EdgeRecord {
            key,
            cause,
            old,
            new,
            old_group,
            new_group,
            fresh,
            origin: Origin::default(),
        })
}

fn origins() -> impl Strategy<Value = Origin> {
    let text = || option::of("[ -~友]{1,60}".prop_map(|text| OriginText::stored(&text)));
    (text(), text(), text(), option::of(job_ids()), text())
        .prop_map(|(by, subject, rule, job, reason)| Origin { by, subject, rule, job, reason })
}

/// Records and their origins; an edge's has it inside too.
pub fn records() -> impl Strategy<Value = (Record, Origin)> {
    let none = proptest::strategy::Just(Origin::default());
    (plain_records(), prop_oneof![none, origins()]).prop_map(|(mut record, origin)| {
        if let Record::Edge(edge) = &mut record {
            edge.origin = origin.clone();
        }
        (record, origin)
    })
}

fn plain_records() -> impl Strategy<Value = Record> {
    let keys = "[a-z友]{1,20}".prop_map(|key| IdempotencyKey::new(&key).unwrap());
    prop_oneof![
        4 => edge_records().prop_map(|record| Record::Edge(Box::new(record))),
        1 => (group_keys(), group_ids(), option::of(group_names()))
            .prop_map(|(groups, id, name)| Record::Group { groups, id, name }),
        1 => (node_keys(), node_rows()).prop_map(|(node, row)| Record::Node { node, row }),
        1 => (tenants(), node_types(), kind_names())
            .prop_map(|(tenant, id, name)| Record::NodeType { tenant, id, name }),
        1 => (tenants(), kinds())
            .prop_map(|(tenant, kind)| Record::Kind { tenant, kind: Box::new(kind) }),
        1 => (tenants(), kind_ids(), numbers(), any::<i64>())
            .prop_map(|(tenant, kind, id, delta)| Record::Counter { tenant, kind, id, delta }),
        1 => (tenants(), keys, idempotency_rows())
            .prop_map(|(tenant, key, row)| Record::Idempotency { tenant, key, row }),
        1 => (tenants(), "[a-z._]{3,20}", import_rows()).prop_map(|(tenant, id, row)| {
            Record::Import { tenant, id: ImportId::new(&id).unwrap(), row }
        }),
        1 => (tenants(), jobs())
            .prop_map(|(tenant, job)| Record::Job { tenant, job: Box::new(job) }),
        1 => (tenants(), kind_ids(), job_ids(), option::of(ends()), ends()).prop_map(
            |(tenant, kind, job, after, until)| Record::BuildIndex {
                tenant,
                kind,
                job,
                after,
                until,
            }
        ),
        2 => repairs().prop_map(Record::Repair),
    ]
}

fn group_keys() -> impl Strategy<Value = GroupsKey> {
    (tenants(), kind_ids(), numbers()).prop_map(|(tenant, kind, source)| GroupsKey {
        tenant,
        kind,
        source: SourceId(source),
    })
}

fn repairs() -> impl Strategy<Value = Repair> {
    let states = || select(vec![State::Live, State::Pending, State::Removed]);
    let indexes = prop_oneof![
        (states(), moments()).prop_map(|(state, since)| Index::Incoming { state, since }),
        (states(), moments()).prop_map(|(state, since)| Index::Outgoing { state, since }),
        moments().prop_map(|at| Index::Expiry { at }),
    ];
    prop_oneof![
        (node_keys(), kind_ids(), select(Which::ALL.to_vec()), any::<i64>())
            .prop_map(|(node, kind, which, value)| Repair::Tally { node, kind, which, value }),
        (group_keys(), group_ids(), any::<i64>())
            .prop_map(|(groups, id, size)| Repair::GroupSize { groups, id, size }),
        (edge_keys(), indexes, any::<bool>()).prop_map(|(edge, index, present)| Repair::Entry {
            entry: IndexEntry { edge, index },
            present,
        }),
    ]
}
