//! What is at hand in memory, through a real engine: that a start finds the filter again or builds
//! it, that readers beside a writer see exact moments, and what reads cost.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_core::{Direction, HydrateQuery, ListQuery, ReadObject, Reader};
use guanxi_embedded::{Engine, Settings};
use guanxi_model::change::Put;
use guanxi_model::{
    Change, EdgeKey, Kind, NodeKey, Request, SourceId, State, TargetId, TenantId, Which,
};

const TENANT: TenantId = TenantId::DEFAULT;
const DEADLINE: Duration = Duration::from_secs(30);

struct Bench {
    engine: Arc<Engine>,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn open(folder: &Path) -> Bench {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let mut settings = Settings::new(folder);
        settings.log.segment_bytes = 1 << 20;
        Bench { engine: Engine::open(settings).unwrap(), runtime }
    }

    fn write(&self, changes: Vec<Change>) {
        let request = Request::new(TENANT, changes);
        let written = self.engine.write(request, Instant::now() + DEADLINE);
        for answer in self.runtime.block_on(written).unwrap().answers {
            answer.unwrap();
        }
    }

    fn put(&self, kind: &Kind, ends: impl IntoIterator<Item = (u64, u64)>) {
        let puts = ends.into_iter().map(|(a, b)| Change::Put(Put::plain(edge(kind, a, b))));
        let puts: Vec<Change> = puts.collect();
        puts.chunks(1_000).for_each(|some| self.write(some.to_vec()));
    }

    fn kind(&self, name: &str) -> Arc<Kind> {
        self.engine.catalog().named(TENANT, name).unwrap().clone()
    }

    fn reader(&self) -> Reader {
        self.engine.reader().unwrap()
    }

    /// Waits until there is a filter.
    fn filtered(&self) {
        let begun = Instant::now();
        while self.engine.status().resident.filter.is_none() {
            assert!(begun.elapsed() < DEADLINE, "there is no filter");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// "Surely not", so far.
    fn by_filter(&self) -> u64 {
        self.engine.status().resident.answered.by_filter
    }
}

fn edge(kind: &Kind, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind: kind.id, source: SourceId(source), target: TargetId(target) }
}

/// Every edge of these is there, and most others are surely not.
fn check_edges(bench: &Bench, kind: &Kind, there: u64) {
    let reader = bench.reader();
    for id in 1..=there {
        assert_eq!(reader.state(&edge(kind, id, id + 1)).unwrap(), Some(State::Live), "{id}");
    }
    let before = bench.by_filter();
    for id in 1..=1_000 {
        assert_eq!(reader.state(&edge(kind, id, 900_000 + id)).unwrap(), None);
    }
    drop(reader);
    let surely_not = bench.by_filter() - before;
    assert!(surely_not >= 950, "{surely_not} of 1000 ended in the filter");
}

#[test]
fn a_start_finds_the_filter_of_a_clean_stop_and_builds_one_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("FILTER");
    let mut there = 0;
    for start in 0..4 {
        let bench = Bench::open(folder.path());
        let follow = bench.kind("follow");
        bench.filtered();
        check_edges(&bench, &follow, there);
        bench.put(&follow, (there + 1..=there + 500).map(|id| (id, id + 1)));
        there += 500;
        check_edges(&bench, &follow, there);
        bench.engine.close();
        assert!(file.exists());
        match start {
            // The next one finds none, or one that is damaged.
            1 => std::fs::remove_file(&file).unwrap(),
            2 => {
                let mut bytes = std::fs::read(&file).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(&file, bytes).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn a_filter_of_another_history_is_not_believed() {
    let [folder, other] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for folder in [&folder, &other] {
        let bench = Bench::open(folder.path());
        bench.filtered();
        if folder.path() != other.path() {
            bench.put(&bench.kind("follow"), (1..=500).map(|id| (id, id + 1)));
        }
        bench.engine.close();
    }
    std::fs::copy(other.path().join("FILTER"), folder.path().join("FILTER")).unwrap();
    let bench = Bench::open(folder.path());
    bench.filtered();
    check_edges(&bench, &bench.kind("follow"), 500);
    bench.engine.close();
}

/// One edge moves from target to target, with a follower of its own at each step: whatever moment a
/// reader catches, all that it is told is of that moment.
#[test]
fn readers_beside_a_writer_see_exact_moments() {
    const STEPS: u64 = 1_500;
    const STAR: u64 = 77;
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::open(folder.path());
    bench.filtered();
    let follow = bench.kind("follow");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let look = || {
            let mut last = 0;
            loop {
                let was_done = done.load(Ordering::Acquire);
                let step = moment(&bench.reader(), &follow, STAR, last);
                assert!(step >= last, "{step} after {last}");
                last = step;
                if was_done {
                    return assert_eq!(last, STEPS);
                }
            }
        };
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(look)).collect();
        for step in 1..=STEPS {
            let mut changes = vec![
                Change::Put(Put::plain(edge(&follow, 1_000 + step, STAR))),
                Change::Put(Put::plain(edge(&follow, 1, 1_000 + step))),
            ];
            if step > 1 {
                let gone = edge(&follow, 1, 999 + step);
                changes.push(Change::Delete { edge: gone, strict: false });
            }
            bench.write(changes);
        }
        done.store(true, Ordering::Release);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
    let answered = bench.engine.status().resident.answered;
    assert!(answered.by_filter > 0 && answered.nodes_at_hand > 0 && answered.lists_at_hand > 0);
    bench.engine.close();
}

/// The step that a reader sees, by every way to tell it.
fn moment(reader: &Reader, follow: &Arc<Kind>, star: u64, from: u64) -> u64 {
    let list = ListQuery::newest(TENANT, follow, Direction::Incoming, star, 5);
    let page = reader.list(&list).unwrap();
    let step = page.items.first().map_or(0, |newest| newest.id - 1_000);
    assert_eq!(page.total, Some(step as i64), "the total beside the newest");
    let newest: Vec<u64> = page.items.iter().map(|item| item.id - 1_000).collect();
    assert_eq!(newest, (1..=step).rev().take(5).collect::<Vec<_>>());
    let node = NodeKey { tenant: TENANT, node_type: follow.fixed.target_type, id: star };
    let tally = reader.tallies(&node).unwrap().get(follow.id, Which::Incoming);
    assert_eq!(tally, step as i64);
    for other in from.saturating_sub(2).max(1)..step + 4 {
        let state = |key: &EdgeKey| reader.state(key).unwrap().is_some();
        assert_eq!(state(&edge(follow, 1, 1_000 + other)), other == step, "{other} at {step}");
        assert_eq!(state(&edge(follow, 1_000 + other, star)), other <= step, "{other} at {step}");
    }
    step
}

/// How long some reads take when all is at hand. Run with --ignored --nocapture, alone.
#[test]
#[ignore = "a measurement"]
fn what_reads_cost() {
    const OBJECTS: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::open(folder.path());
    let [follow, like, favorite] = ["follow", "like", "favorite"].map(|name| bench.kind(name));
    let mut random = fastrand::Rng::with_seed(1);
    let big = |n: u64| 1_000_000_000_000_000_000 + n * 7_919;
    for kind in [&like, &favorite] {
        bench.put(kind, (0..200_000).map(|n| (big(n % 5_000), big(random.u64(..OBJECTS)))));
    }
    bench.put(&follow, (0..100_000).map(|n| (big(n % 5_000), big(100_000 + random.u64(..2_000)))));
    bench.put(&follow, (0..30_000).map(|n| (big(500_000 + n), big(100_000))));
    // One that has grown with them.
    let grown = |filter: guanxi_embedded::resident::FilterFigures| filter.edges < filter.edges_max;
    while !bench.engine.status().resident.filter.is_some_and(grown) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let query = |random: &mut fastrand::Rng| HydrateQuery {
        tenant: TENANT,
        viewer: big(600_000 + random.u64(..1_000)),
        objects: (0..6)
            .map(|_| ReadObject {
                id: big(random.u64(..OBJECTS)),
                author: Some(big(100_000 + random.u64(..2_000))),
            })
            .collect(),
        kinds: vec![like.clone(), favorite.clone(), follow.clone()],
        tallies: vec![like.clone(), favorite.clone(), bench.kind("view"), follow.clone()],
        reverse: Vec::new(),
        object_type: like.fixed.target_type,
        author_type: follow.fixed.target_type,
    };
    let queries: Vec<HydrateQuery> = (0..4_096).map(|_| query(&mut random)).collect();
    measure("hydrate 6 × 3 + 4", || {
        queries.iter().map(|query| bench.reader().hydrate(query).unwrap().objects().len() / 6).sum()
    });
    let checks: Vec<HydrateQuery> =
        queries.iter().map(|query| HydrateQuery { tallies: Vec::new(), ..query.clone() }).collect();
    measure("18 checks", || {
        checks.iter().map(|query| bench.reader().hydrate(query).unwrap().objects().len() / 6).sum()
    });
    let reader = bench.reader();
    measure("18 checks, in one reader", || {
        checks.iter().map(|query| reader.hydrate(query).unwrap().objects().len() / 6).sum()
    });
    drop(reader);
    measure("a reader", || {
        queries.iter().map(|_| usize::from(bench.reader().lacked().is_none())).sum()
    });
    for (what, id) in [("a popular list", 100_001), ("a celebrity's list", 100_000)] {
        let list = ListQuery::newest(TENANT, &follow, Direction::Incoming, big(id), 20);
        measure(what, || {
            (0..1_000).map(|_| bench.reader().list(&list).unwrap().items.len().min(1)).sum()
        });
    }
    println!("{:#?}", bench.engine.status().resident);
    bench.engine.close();
}

fn measure(what: &str, mut round: impl FnMut() -> usize) {
    let mut best = f64::MAX;
    for _ in 0..30 {
        let begun = Instant::now();
        let calls = std::hint::black_box(round());
        best = best.min(begun.elapsed().as_nanos() as f64 / calls.max(1) as f64);
    }
    println!("{what}: {best:.0} ns");
}

/// How long a start takes that finds the filter of a clean stop, one that catches up with the log
/// after a kill, and one that scans. Run with --ignored --nocapture, alone.
#[test]
#[ignore = "a measurement"]
fn what_starts_cost() {
    const EDGES: u64 = 2_000_000;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("FILTER");
    let started = |what: &str| {
        let begun = Instant::now();
        let bench = Bench::open(folder.path());
        let open_ms = begun.elapsed().as_millis();
        bench.filtered();
        println!("{what}: open in {open_ms} ms, filter after {} ms", begun.elapsed().as_millis());
        bench
    };
    let bench = started("empty");
    let like = bench.kind("like");
    let mut random = fastrand::Rng::with_seed(1);
    let mut ends = |n: u64| (1 + n % 50_000, random.u64(1 << 60..1 << 61));
    bench.put(&like, (0..EDGES).map(&mut ends));
    println!("{:?}", bench.engine.status().resident.filter);
    bench.engine.close();
    drop(bench);
    let bench = started("after a clean stop");
    bench.put(&like, (0..EDGES / 10).map(&mut ends));
    // No stop: the log and the store are as a kill leaves them.
    let saved = std::fs::read(&file).unwrap();
    bench.engine.close();
    drop(bench);
    std::fs::write(&file, saved).unwrap();
    let bench = started("with a filter that lacks a tenth");
    bench.engine.close();
    drop(bench);
    std::fs::remove_file(&file).unwrap();
    started("without a filter").engine.close();
}
