//! Ids that nobody has ever written about: the filter answers for them, and the database is not asked.
//! Whatever a change speaks of is no stranger from before it is acknowledged.

use guanxi_cluster::instance::Cluster;
use guanxi_core::read::{ListQuery, Reader};
use guanxi_core::snapshot::Direction;
use guanxi_model::change::{CounterDelta, Field, Put};
use guanxi_model::filter::{Say, met};
use guanxi_model::group::GroupName;
use guanxi_model::page::Order;
use guanxi_model::{Change, GroupsKey, NodeKey, SourceId, State, TallyRow};

use crate::stage::{ALL, From, SERVING, Stage};
use crate::world::{FOLLOW, LIKE, TENANT, USER, VIEW, edge, eventually};

/// Nobody writes about ids from here on.
const STRANGERS: u64 = 1 << 52;

/// A change of every sort that speaks of ids, and those ids, which begin at `first`.
fn changes(first: u64) -> (Vec<Change>, Vec<u64>) {
    let owned = Put { owner: Field::Set(first + 2), ..Put::plain(edge(LIKE, first, first + 1)) };
    let groups = GroupsKey { tenant: TENANT, kind: FOLLOW, source: SourceId(first + 3) };
    let node = NodeKey { tenant: TENANT, node_type: USER, id: first + 4 };
    let count = |id| CounterDelta { tenant: TENANT, kind: VIEW, id, delta: 1, key: None };
    let counter = |id| Change::ImportCounter { tenant: TENANT, kind: VIEW, id, value: 9 };
    let changes = vec![
        Change::Put(owned),
        Change::CreateGroup { groups, name: GroupName::new("friends").unwrap() },
        Change::SetNode { node, private: Some(true) },
        Change::Count(count(first + 5)),
        counter(first + 6),
    ];
    (changes, (first..first + 7).collect())
}

fn says(stage: &Stage, cluster: &Cluster, ids: &[u64]) -> Vec<Say> {
    let items: Vec<_> = ids.iter().map(|id| met(TENANT, *id)).collect();
    let mut says = Vec::new();
    // A busy machine may answer late.
    eventually("an answer", || {
        says = stage.runtime.block_on(cluster.memory().filter().ask(&items));
        !says.contains(&Say::Unknown)
    });
    says
}

fn write_each(stage: &Stage, cluster: &Cluster, changes: Vec<Change>) {
    // Counters and edges are requests of their own.
    changes.into_iter().for_each(|change| stage.write(cluster, vec![change]));
}

#[test]
fn who_was_met_is_no_stranger() {
    let Some(stage) = Stage::open("strangers met") else { return };
    let (one, two) = (stage.instance_with_filter(ALL), stage.instance_with_filter(SERVING));
    let (before, old) = changes(1_000);
    write_each(&stage, &two, before);
    let serves = |cluster: &Cluster| cluster.memory().figures().serves;
    eventually("the filter serves", || serves(&one) && serves(&two));
    assert_eq!(says(&stage, &one, &old), vec![Say::Maybe; old.len()], "filled by a scan");
    for first in (2_000..2_500).step_by(10) {
        let (changes, met) = changes(first);
        write_each(&stage, &two, changes);
        assert_eq!(says(&stage, &one, &met), vec![Say::Maybe; met.len()], "{met:?}");
    }
    // What an instance has met it does not set again, but what was flushed is set anew.
    let mut redis = stage.connection();
    redis::cmd("FLUSHALL").exec(&mut redis).unwrap();
    let (again, met) = changes(2_000);
    write_each(&stage, &two, again);
    eventually("whoever asks finds that it is gone", || {
        stage.runtime.block_on(one.memory().filter().ask(&[edge(FOLLOW, 1, 2)]));
        !serves(&one)
    });
    eventually("it is filled again", || serves(&one) && serves(&two));
    assert_eq!(says(&stage, &one, &met), vec![Say::Maybe; met.len()]);
    assert_eq!(says(&stage, &one, &old), vec![Say::Maybe; old.len()]);
}

#[test]
fn reads_about_strangers_ask_no_database_and_fill_no_redis() {
    let Some(stage) = Stage::open("strangers read") else { return };
    let one = stage.instance_with_filter(ALL);
    eventually("the filter serves", || one.memory().figures().serves);
    stage.settle();
    // What the filter is unsure of the database is asked for; it is unsure of few.
    let (mut numbers, mut nodes, mut lists) = (0, 0, 0);
    const COUNT: u64 = 100;
    for id in STRANGERS..STRANGERS + COUNT {
        let (tallies, from) = stage.tallies(&one, VIEW, &[id]);
        assert_eq!(tallies, [0]);
        numbers += u64::from(from == From::Memory);
        let node = NodeKey { tenant: TENANT, node_type: USER, id };
        let (row, from) = stage.read(&one, move |reader: &Reader| {
            reader.prefetch(|wanted| wanted.nodes.push(node))?;
            reader.tallies(&node)
        });
        assert_eq!(row, TallyRow::default());
        nodes += u64::from(from == From::Memory);
        let kind = one.catalog().kind(TENANT, FOLLOW).unwrap().clone();
        let (page, from) = stage.read(&one, move |reader| {
            reader.list(&ListQuery {
                tenant: TENANT,
                kind: kind.clone(),
                id,
                direction: Direction::Outgoing,
                state: State::Live,
                order: Order::Newest,
                limit: 20,
                cursor: None,
                page: None,
                since: None,
                until: None,
                group: None,
                mutual: false,
            })
        });
        assert!(page.items.is_empty() && page.total == Some(0) && page.next.is_none());
        lists += u64::from(from == From::Memory);
    }
    assert!(numbers > COUNT * 9 / 10, "{numbers} of {COUNT} counters");
    assert!(nodes > COUNT * 9 / 10, "{nodes} of {COUNT} nodes");
    assert!(lists > COUNT * 9 / 10, "{lists} of {COUNT} lists");
    let made = stage.strings().keys().filter(|(_, id)| *id >= STRANGERS).count();
    assert!(made < 10, "{made} strings were made for strangers");
}
