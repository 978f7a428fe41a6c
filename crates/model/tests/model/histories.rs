//! Random histories of every change, decided in both deployments side by side.

use guanxi_model::change::{CounterDelta, Field, ImportEdge, KindPatch, KindSpec, Put};
use guanxi_model::decide::Decided;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    Answer, Change, EdgeKey, EdgeRow, Error, GroupName, Millis, NodeKey, Record, State, Version,
    Which,
};
use proptest::prelude::*;

use crate::orders::{choices, delivered};
use crate::reference::Rows;
use crate::world::{
    BLOCK, Deployment, FOLLOW, LIKE, POST, TENANT, USER, VIEW, World, edge, group_name, groups_of,
    kind_name, node,
};

/// The limit that histories begin with, low enough to be met.
const OUTGOING_MAX: u32 = 2;

#[derive(Debug, Clone)]
enum Step {
    Change(Change),
    /// The clock goes on, or steps back.
    Clock(i64),
    /// The sweeper looks at an edge's expiry.
    Sweep(EdgeKey),
    /// The job removes up to so many edges of a node that is being erased.
    EraseSome(NodeKey, usize),
    /// The job ends, if no edge is left.
    EraseEnd(NodeKey),
}

fn users() -> impl Strategy<Value = u64> {
    1..=4u64
}

fn edges() -> impl Strategy<Value = EdgeKey> {
    let kinds = prop_oneof![4 => Just(FOLLOW), 2 => Just(BLOCK), 2 => Just(LIKE)];
    (kinds, users(), users()).prop_map(|(kind, source, target)| edge(kind, source, target))
}

fn names() -> impl Strategy<Value = GroupName> {
    prop_oneof![Just("a"), Just("b"), Just("c")].prop_map(group_name)
}

fn fields<T: Clone + std::fmt::Debug + 'static>(
    values: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = Field<T>> {
    prop_oneof![
        4 => Just(Field::Keep),
        1 => Just(Field::Clear),
        2 => values.prop_map(Field::Set),
    ]
}

fn puts() -> impl Strategy<Value = Put> {
    let owners = fields(77..=78u64);
    let data = fields(prop_oneof![Just("x"), Just("y")].prop_map(Box::from));
    let expiries = fields((0..20_000u64).prop_map(Millis));
    let flags = (prop::bool::weighted(0.2), prop::bool::weighted(0.1));
    (edges(), fields(names()), owners, data, expiries, flags).prop_map(
        |(edge, group, owner, data, expires_at, (approval, strict))| Put {
            edge,
            // Other kinds refuse these, and a refusal teaches little.
            group: if edge.kind == FOLLOW { group } else { Field::Keep },
            owner: if edge.kind == LIKE { owner } else { Field::Keep },
            data,
            expires_at,
            approval: approval && edge.kind == FOLLOW,
            strict,
        },
    )
}

fn imported() -> impl Strategy<Value = ImportEdge> {
    let states = proptest::option::of(prop_oneof![Just(State::Live), Just(State::Pending)]);
    let since = proptest::option::of((0..3_000u64).prop_map(Millis));
    (puts(), since, states).prop_map(|(put, since, state)| ImportEdge {
        put: Put { strict: false, ..put },
        since,
        state,
        ignore_limits: false,
    })
}

fn counts() -> impl Strategy<Value = CounterDelta> {
    let keys = proptest::option::of(prop_oneof![Just("a"), Just("b")]);
    (11..=12u64, -2..=2i64, keys).prop_map(|(id, delta, key)| CounterDelta {
        tenant: TENANT,
        kind: VIEW,
        id,
        delta,
        key: key.map(|key| IdempotencyKey::new(key).unwrap()),
    })
}

/// Changes of rules that bind new writes; `excludes` stays, so that the check of it may be total.
fn patches() -> impl Strategy<Value = KindPatch> {
    let limits = prop_oneof![
        2 => Just(Field::Keep),
        3 => Just(Field::Set(OUTGOING_MAX)),
        1 => Just(Field::Set(2_001)),
    ];
    let truth = || proptest::option::of(any::<bool>());
    (truth(), limits, truth()).prop_map(|(self_allowed, outgoing_max, approval)| KindPatch {
        self_allowed,
        outgoing_max,
        approval,
        ..KindPatch::default()
    })
}

fn changes() -> impl Strategy<Value = Change> {
    let groups = || users().prop_map(|source| groups_of(FOLLOW, source));
    let user = || users().prop_map(|id| node(USER, id));
    let new_kinds = prop_oneof![Just("knows"), Just("reads")].prop_map(|name| {
        let target = if name == "reads" { "page" } else { "user" };
        KindSpec::edges(kind_name(name), kind_name("user"), kind_name(target))
    });
    prop_oneof![
        30 => puts().prop_map(Change::Put),
        8 => (edges(), any::<bool>()).prop_map(|(edge, strict)| Change::Delete { edge, strict }),
        4 => edges().prop_map(|edge| Change::Approve { edge }),
        2 => edges().prop_map(|edge| Change::Decline { edge }),
        4 => (edges(), names()).prop_map(|(edge, group)| Change::AddMember { edge, group }),
        2 => (edges(), names()).prop_map(|(edge, group)| Change::DropMember { edge, group }),
        6 => (groups(), names()).prop_map(|(groups, name)| Change::CreateGroup { groups, name }),
        2 => (groups(), names(), names())
            .prop_map(|(groups, name, to)| Change::RenameGroup { groups, name, to }),
        2 => (groups(), names()).prop_map(|(groups, name)| Change::DeleteGroup { groups, name }),
        3 => (user(), proptest::option::of(any::<bool>()))
            .prop_map(|(node, private)| Change::SetNode { node, private }),
        4 => counts().prop_map(Change::Count),
        8 => imported().prop_map(|line| Change::ImportEdge(Box::new(line))),
        1 => (groups(), names()).prop_map(|(groups, name)| Change::ImportGroup { groups, name }),
        1 => (11..=12u64, -5..=5i64).prop_map(|(id, value)| Change::ImportCounter {
            tenant: TENANT,
            kind: VIEW,
            id,
            value,
        }),
        1 => new_kinds.prop_map(|spec| Change::CreateKind { tenant: TENANT, spec: Box::new(spec) }),
        2 => patches().prop_map(|patch| Change::SetKind {
            tenant: TENANT,
            kind: FOLLOW,
            patch: Box::new(patch),
        }),
        1 => user().prop_map(|node| Change::BeginErase { node }),
        1 => Just(Change::BeginErase { node: node(POST, 11) }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let user = || users().prop_map(|id| node(USER, id));
    let step = prop_oneof![
        20 => changes().prop_map(Step::Change),
        4 => (-500..5_000i64).prop_map(Step::Clock),
        2 => edges().prop_map(Step::Sweep),
        2 => (user(), 1..4usize).prop_map(|(node, edges)| Step::EraseSome(node, edges)),
        1 => user().prop_map(Step::EraseEnd),
        1 => Just(Step::EraseEnd(node(POST, 11))),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The change that a step stands for in this world; jobs and expiries are found by their rows.
fn resolve(step: &Step, world: &World) -> Option<Change> {
    let erased_by = |node: &NodeKey| world.rows.nodes.get(node)?.erased_by;
    match step {
        Step::Change(change) => Some(change.clone()),
        Step::Clock(_) => None,
        Step::Sweep(edge) => {
            Some(Change::Expire { edge: *edge, expires_at: world.rows.standing(edge)?.expires_at? })
        }
        Step::EraseSome(node, count) => Some(Change::EraseStep {
            tenant: TENANT,
            job: erased_by(node)?,
            edges: touching(&world.rows, node).take(*count).collect(),
        }),
        Step::EraseEnd(node) if touching(&world.rows, node).next().is_some() => None,
        Step::EraseEnd(node) => Some(Change::FinishErase { tenant: TENANT, job: erased_by(node)? }),
    }
}

/// The standing edges that have the node as one of their ends.
fn touching<'a>(rows: &'a Rows, node: &'a NodeKey) -> impl Iterator<Item = EdgeKey> + 'a {
    let stands = rows.edges.iter().filter(|(_, row)| row.stands());
    stands.map(|(key, _)| *key).filter(|key| {
        let fixed = rows.kind(key.tenant, key.kind).fixed;
        (fixed.source_type == node.node_type && key.source.0 == node.id)
            || (fixed.target_type == node.node_type && key.target.0 == node.id)
    })
}

fn begin(deployment: Deployment) -> World {
    let mut world = World::new(deployment);
    let low = Change::SetKind {
        tenant: TENANT,
        kind: FOLLOW,
        patch: Box::new(KindPatch {
            outgoing_max: Field::Set(OUTGOING_MAX),
            groups_max: Some(2),
            ..KindPatch::default()
        }),
    };
    world.change(&low).unwrap();
    world
}

fn take(step: &Step, world: &mut World) -> Option<Result<Decided, Error>> {
    if let Step::Clock(by) = step {
        world.now = Millis(world.now.0.saturating_add_signed(*by));
    }
    let change = resolve(step, world)?;
    let before = world.rows.clone();
    let decided = world.change(&change);
    match &decided {
        Err(_) => assert_eq!(world.rows, before, "a refusal leaves nothing"),
        Ok(decided) => {
            assert_idempotent(&change, world);
            for record in edge_records(&decided.records) {
                assert_limit(&record, &world.rows);
            }
        }
    }
    assert_excluded(&world.rows);
    Some(decided)
}

/// The same change at once again finds nothing to do. Those left out refuse it, or add up.
fn assert_idempotent(change: &Change, world: &World) {
    let again = match change {
        Change::Put(put) => Change::Put(Put { strict: false, ..put.clone() }),
        // A node's edge to itself may go where the kind no longer takes such changes.
        Change::Delete { edge, .. } if edge.source.0 == edge.target.0 => return,
        Change::Delete { edge, .. } => Change::Delete { edge: *edge, strict: false },
        Change::ImportEdge(_)
        | Change::ImportGroup { .. }
        | Change::ImportCounter { .. }
        | Change::Approve { .. }
        | Change::Expire { .. }
        | Change::AddMember { .. }
        | Change::DropMember { .. }
        | Change::SetNode { .. }
        | Change::SetKind { .. }
        | Change::BeginErase { .. }
        | Change::EraseStep { .. } => change.clone(),
        Change::Count(count) if count.key.is_some() => change.clone(),
        _ => return,
    };
    let decided = world.clone().change(&again).expect("again");
    assert_eq!(decided.records, [], "{again:?}");
    if let Answer::Edge(answer) = decided.answer {
        assert!(!answer.changed, "{again:?}");
    }
}

/// Where a block is live, no follow stands either way.
fn assert_excluded(rows: &Rows) {
    let blocks = rows.edges.iter().filter(|(key, _)| key.kind == BLOCK);
    for (block, _) in blocks.filter(|(_, row)| row.is_live()) {
        let there = block.of_kind(FOLLOW);
        for follow in [there, there.reversed()] {
            assert_eq!(rows.standing(&follow), None, "{block:?} and {follow:?}");
        }
    }
}

/// A new edge stays within its kind's limit, pending ones counted. (A lowered limit may leave
/// more standing.)
fn assert_limit(record: &EdgeRecord, rows: &Rows) {
    let kind = rows.kind(TENANT, record.key.kind);
    let (None, Some(max)) = (&record.old, kind.rules.outgoing_max) else {
        return;
    };
    let source = node(kind.fixed.source_type, record.key.source.0);
    let held = rows.tally(&source, kind.id, Which::Outgoing)
        + rows.tally(&source, kind.id, Which::PendingOutgoing);
    assert!(held <= i64::from(max), "{held} of {max}: {record:?}");
}

/// An answer without what the deployments number differently.
fn unnumbered(answer: &Answer) -> Answer {
    let mut answer = answer.clone();
    match &mut answer {
        Answer::Edge(edge) => edge.version = edge.version.map(|_| Version::ZERO),
        Answer::Node(row) => row.erased_by = None,
        Answer::Job(id) => id.0 = 0,
        _ => {}
    }
    answer
}

fn standing(rows: &Rows) -> Vec<(EdgeKey, EdgeRow)> {
    let stands = rows.edges.iter().filter(|(_, row)| row.stands());
    stands
        .map(|(key, row)| {
            let version = Version::ZERO;
            (*key, EdgeRow { version, ..row.clone() })
        })
        .collect()
}

fn edge_records(log: &[Record]) -> Vec<EdgeRecord> {
    let edges = log.iter().filter_map(|record| match record {
        Record::Edge(record) => Some(EdgeRecord::clone(record)),
        _ => None,
    });
    edges.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn both_deployments_decide_alike_and_any_delivery_ends_alike(
        steps in steps(),
        choices in choices(),
    ) {
        let mut embedded = begin(Deployment::Embedded);
        let mut cluster = begin(Deployment::Cluster);
        for step in &steps {
            let answers = [&mut embedded, &mut cluster].map(|world| {
                let decided = take(step, world)?;
                Some(decided.map(|decided| unnumbered(&decided.answer)))
            });
            prop_assert_eq!(&answers[0], &answers[1], "{:?}", step);
        }
        prop_assert_eq!(standing(&embedded.rows), standing(&cluster.rows));
        prop_assert_eq!(&embedded.rows.tallies, &cluster.rows.tallies);
        prop_assert_eq!(&embedded.rows.groups, &cluster.rows.groups);

        // One clock for the whole log: its versions grow along it.
        let versions: Vec<_> = edge_records(&embedded.log).iter().map(|r| r.new.version).collect();
        prop_assert!(versions.is_sorted_by(|a, b| a < b));

        // All durable state comes from the log.
        let mut replayed = Rows::without_tombstones();
        for record in &embedded.log {
            replayed.apply(record);
        }
        prop_assert_eq!(&replayed, &embedded.rows);

        let mut late = Rows::default();
        for record in cluster.log.iter().filter(|record| !matches!(record, Record::Edge(_))) {
            late.apply(record);
        }
        let decided = edge_records(&cluster.log);
        for record in delivered(&decided, &choices) {
            late.apply_edge(record);
        }
        prop_assert_eq!(&late, &cluster.rows);
    }
}
