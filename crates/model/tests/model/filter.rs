//! The filter's rates on items as a service has them, against its arithmetic, and no item lost.

use guanxi_model::change::{CounterDelta, Field, ImportEdge, Put};
use guanxi_model::filter::geometry::{Geometry, WORD_BITS};
use guanxi_model::filter::{Asker, Spot, met};
use guanxi_model::group::GroupName;
use guanxi_model::{
    Change, EdgeKey, GroupsKey, KindId, NodeKey, NodeTypeId, SourceId, TargetId, TenantId,
};

const LIKE: KindId = KindId(2);
const FAVORITE: KindId = KindId(3);
/// Negative questions of one measurement.
const QUESTIONS: u64 = 1_000_000;

/// The filter as a process keeps it.
struct Shards {
    geometry: Geometry,
    words: Vec<Vec<u64>>,
    items: u64,
}

impl Shards {
    fn new(geometry: Geometry) -> Shards {
        let words = vec![vec![0; geometry.words() as usize]; geometry.shards() as usize];
        Shards { geometry, words, items: 0 }
    }

    fn spot(&mut self, edge: &EdgeKey) -> (&mut u64, Spot) {
        let shard = Asker::of(edge).shard(self.geometry) as usize;
        let spot = Spot::of(edge, self.geometry);
        (&mut self.words[shard][spot.word as usize], spot)
    }

    fn add(&mut self, edge: &EdgeKey) {
        let (word, spot) = self.spot(edge);
        *word |= spot.mask;
        self.items += 1;
    }

    fn may_have(&mut self, edge: &EdgeKey) -> bool {
        let (word, spot) = self.spot(edge);
        spot.may_be_in(*word)
    }

    fn estimated(&self) -> u64 {
        let ones: u64 = self.words.iter().flatten().map(|word| u64::from(word.count_ones())).sum();
        self.geometry.items_estimated(ones, self.geometry.words_all())
    }
}

fn edge(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TenantId(1), kind, source: SourceId(source), target: TargetId(target) }
}

/// How many edges of a kind the n-th source has: most have few, one in 4096 has 16 times 256.
fn edges_of(source: u64) -> u64 {
    16 << (source.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 << 52)
        .leading_zeros()
        .min(12)
        .saturating_sub(4)
}

/// Fills a filter by `add`, which has sources until it is full, and asks of every source what it
/// has not.
fn measured(load: f64, edges: impl Fn(u64) -> u64, kinds: &[KindId]) -> (Shards, f64) {
    let geometry = Geometry::new(4, 10).unwrap();
    let mut shards = Shards::new(geometry);
    let wanted = (geometry.items_nominal() as f64 * load) as u64;
    let mut sources = 0;
    while shards.items < wanted {
        for target in 0..edges(sources) {
            for kind in kinds {
                shards.add(&edge(*kind, sources, target));
            }
        }
        sources += 1;
    }
    for source in 0..sources {
        for target in 0..edges(source) {
            for kind in kinds {
                assert!(shards.may_have(&edge(*kind, source, target)), "{source} to {target}");
            }
        }
    }
    let maybes = (0..QUESTIONS)
        .filter(|question| {
            let kind = kinds[(question % kinds.len() as u64) as usize];
            shards.may_have(&edge(kind, question % sources, 1 << 32 | question))
        })
        .count();
    (shards, maybes as f64 / QUESTIONS as f64)
}

#[test]
fn the_measured_rate_is_the_calculated_one() {
    for load in [0.5, 1.0, 4.0 / 3.0] {
        let (shards, rate) = measured(load, |_| 32, &[LIKE]);
        let calculated = shards.geometry.false_positive_rate(shards.items);
        println!("load {load:.2}: {:.3} % measured, {:.3} %", rate * 100.0, calculated * 100.0);
        // Five standard deviations of the count, and 3 % for the hash and the spread of sources.
        let allowed = 5.0 * (calculated / QUESTIONS as f64).sqrt() + 0.03 * calculated;
        assert!((rate - calculated).abs() < allowed, "load {load}: {rate}, not {calculated}");
    }
}

#[test]
fn sources_of_many_edges_and_pairs_of_two_kinds_stay_within_the_aim() {
    for (name, kinds) in [("one kind", &[LIKE][..]), ("both kinds of a pair", &[LIKE, FAVORITE])] {
        let (shards, rate) = measured(1.0, edges_of, kinds);
        println!("{name}, skewed: {:.3} % of {} items", rate * 100.0, shards.items);
        assert!(rate < 0.01, "{name}: {rate} of negative questions pass the filter");
    }
}

#[test]
fn items_are_counted_from_the_bits() {
    for load in [0.01, 0.5, 1.0, 2.0] {
        let (shards, _) = measured(load, |_| 32, &[LIKE]);
        let estimated = shards.estimated();
        let error = estimated.abs_diff(shards.items) as f64 / shards.items as f64;
        assert!(error < 0.02, "load {load}: {estimated} estimated of {}", shards.items);
    }
    let geometry = Geometry::new(4, 10).unwrap();
    assert_eq!(geometry.items_estimated(0, 1_000), 0);
    assert_eq!(geometry.items_estimated(0, 0), 0);
    let full = geometry.items_estimated(1_000 * u64::from(WORD_BITS), 1_000);
    assert!(full > 10 * geometry.items_nominal(), "a full sample says {full}");
}

/// What each change must tell the filter: an edge it may add, and every id it may be the first to
/// speak of.
#[test]
fn a_change_tells_of_its_edge_and_of_all_it_speaks_of() {
    const TENANT: TenantId = TenantId(1);
    let (follow, groups) =
        (edge(LIKE, 1, 2), GroupsKey { tenant: TENANT, kind: LIKE, source: SourceId(4) });
    let node = NodeKey { tenant: TENANT, node_type: NodeTypeId(1), id: 5 };
    let name = || GroupName::new("friends").expect("a name");
    let owned = |owner| Put { owner, ..Put::plain(follow) };
    let import =
        ImportEdge { put: owned(Field::Set(3)), since: None, state: None, ignore_limits: false };
    let count = CounterDelta { tenant: TENANT, kind: KindId(6), id: 7, delta: 1, key: None };
    let counter = Change::ImportCounter { tenant: TENANT, kind: KindId(6), id: 8, value: 1 };
    let cases: [(Change, &[EdgeKey], &[u64]); 10] = [
        (Change::Put(owned(Field::Keep)), &[follow], &[1, 2]),
        (Change::Put(owned(Field::Clear)), &[follow], &[1, 2]),
        (Change::Put(owned(Field::Set(3))), &[follow], &[1, 2, 3]),
        (Change::ImportEdge(Box::new(import)), &[follow], &[1, 2, 3]),
        (Change::CreateGroup { groups, name: name() }, &[], &[4]),
        (Change::ImportGroup { groups, name: name() }, &[], &[4]),
        (Change::SetNode { node, private: Some(true) }, &[], &[5]),
        (Change::Count(count), &[], &[7]),
        (counter, &[], &[8]),
        (Change::Delete { edge: follow, strict: false }, &[], &[]),
    ];
    for (change, edges, ids) in cases {
        let mut items = Vec::new();
        change.filter_items(&mut items);
        let ids = ids.iter().map(|id| met(TENANT, *id));
        let expected: Vec<EdgeKey> = edges.iter().copied().chain(ids).collect();
        assert_eq!(items, expected, "{change:?}");
    }
}
