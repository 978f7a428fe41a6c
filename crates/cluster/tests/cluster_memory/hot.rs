//! Hot keys over a real Redis that is stopped and comes back; and what is pinned, read again behind
//! its readers from a real database.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::cache::{PINNED_AGE_MAX, ReadCache, RefresherParts, read_behind};
use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::hot::share_hot_keys;
use guanxi_cluster::memory::tier::Tier;
use guanxi_cluster::snapshot::SqlSnapshot;
use guanxi_cluster::sql::Database;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::hot::{HOT_PER_SECOND, HotReads, ReadKey, What};
use guanxi_core::{Direction, HydrateQuery, ListQuery, ReadObject, Reader};
use guanxi_model::State;
use guanxi_services::Redis;
use tokio::runtime::Runtime;

use crate::stage::secret;
use crate::world::{FOLLOW, Instance, TENANT, USER, databases, eventually, run, soon};

const STAR: u64 = 9;

fn list_of(id: u64) -> ReadKey {
    ReadKey { tenant: TENANT, what: What::Incoming(FOLLOW), id }
}

fn tallies_of(id: u64) -> ReadKey {
    ReadKey { tenant: TENANT, what: What::Tallies(USER), id }
}

struct Member {
    hot: Arc<HotReads>,
    _sharing: Workers,
}

impl Member {
    fn start(number: u64, tier: Option<Tier>) -> Member {
        let hot = Arc::<HotReads>::default();
        let sharing = share_hot_keys(&Crew::default(), hot.clone(), tier, number).unwrap();
        Member { hot, _sharing: sharing }
    }
}

/// Notes a key so often a second until it is over, also on a machine that stalls.
fn read_steadily(hot: &HotReads, key: ReadKey, per_second: f64, ends: &AtomicBool) {
    let (begun, mut noted) = (Instant::now(), 0);
    while !ends.load(Ordering::Relaxed) {
        let due = (begun.elapsed().as_secs_f64() * per_second) as u64;
        (noted..due).for_each(|_| hot.note(key));
        noted = due;
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Says that it is over when it goes, also by a failed assertion: a scope waits for its threads.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn what_is_hot_only_in_sum_is_hot_everywhere_while_redis_is_there() {
    let Some(redis) = Redis::start_or_skip("hot keys") else { return };
    let runtime = Runtime::new().unwrap();
    let tier = || Some(Tier::start(&redis.url(), runtime.handle(), &Crew::default()).unwrap());
    let readers = [Member::start(1, tier()), Member::start(2, tier())];
    let silent = Member::start(3, tier());
    let alone = Member::start(4, None);
    let all = || readers.iter().chain([&silent]);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&ends);
        // Less than what is hot at each, by more than the noise of a sample.
        let each = HOT_PER_SECOND * 0.6;
        for reader in readers.iter().chain([&alone]) {
            let ends = &ends;
            scope.spawn(move || read_steadily(&reader.hot, list_of(STAR), each, ends));
        }
        eventually("all hear each other", || all().all(|member| member.hot.instances() == 3));
        eventually("it is pinned everywhere", || {
            all().all(|member| member.hot.is_pinned(&list_of(STAR)))
        });
        assert_eq!(alone.hot.instances(), 1);
        assert!(!alone.hot.is_pinned(&list_of(STAR)), "{:?}", alone.hot.hottest(TENANT, 3));
        let shown = silent.hot.hottest(TENANT, 10);
        assert_eq!((shown[0].key, shown[0].pinned), (list_of(STAR), true));
        assert_eq!(silent.hot.own(10), []);
    });
    redis.kill();
    eventually("each is alone", || all().all(|member| member.hot.instances() == 1));
    // Each goes by what it reads itself.
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ending = Ending(&ends);
        let key = list_of(STAR + 1);
        let (reader, ends) = (&readers[0], &ends);
        scope.spawn(move || read_steadily(&reader.hot, key, 5.0 * HOT_PER_SECOND, ends));
        eventually("it is pinned where it is read", || readers[0].hot.is_pinned(&key));
        assert!(!readers[1].hot.is_pinned(&key), "nobody could tell it");
        redis.start_again();
        eventually("all hear each other again", || all().all(|m| m.hot.instances() == 3));
        eventually("it is pinned everywhere", || all().all(|m| m.hot.is_pinned(&key)));
    });
}

/// Tables with a celebrity, and a cache in which it is pinned.
struct Stage {
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    cache: Arc<ReadCache>,
    hot: Arc<HotReads>,
}

impl Stage {
    fn on(url: &str) -> Stage {
        // It makes the built-in kinds.
        let Instance { database, catalog, .. } = Instance::start(url, 1);
        let hot = Arc::<HotReads>::default();
        let cache = Arc::new(ReadCache::new(hot.clone()));
        let stage = Stage { database, catalog, cache, hot };
        run(
            &stage.database,
            &format!(
                "INSERT INTO tally (tenant,node_type,node,kind,slot) VALUES ({},{},{STAR},{},0)",
                TENANT.0, USER.0, FOLLOW.0
            ),
        );
        stage
    }

    fn pin(&self, keys: &[ReadKey]) {
        self.hot.hear(vec![keys.iter().map(|key| (*key, HOT_PER_SECOND)).collect()]);
        self.hot.turn();
    }

    /// What an applier does with a new follower.
    fn follow(&self, source: u64) {
        let (tenant, kind) = (TENANT.0, FOLLOW.0);
        let live = State::Live as u8;
        run(
            &self.database,
            &format!(
                "INSERT INTO incoming (tenant,kind,target,source,version,state,since) VALUES \
                 ({tenant},{kind},{STAR},{source},{source},{live},{source});\
                 UPDATE tally SET incoming=incoming+1 WHERE tenant={tenant} AND node={STAR}"
            ),
        );
    }

    fn reader(&self, at_hand: bool) -> Reader {
        let snapshot = SqlSnapshot::begin(&self.database, self.catalog.current(), soon());
        let snapshot = snapshot.with_cache(&self.cache);
        Reader::new(Box::new(if at_hand { snapshot.at_hand() } else { snapshot }), &secret())
    }

    /// The followers by the list, by its total and by the tallies, each asked for alone; none where
    /// that is not at hand and nothing else is to be asked.
    fn followers(&self, at_hand: bool) -> Option<[i64; 3]> {
        let kind = self.catalog.current().kind(TENANT, FOLLOW).unwrap().clone();
        let query = ListQuery::newest(TENANT, &kind, Direction::Incoming, STAR, 1_000);
        let page = self.reader(at_hand).list(&query).ok()?;
        Some([page.items.len() as i64, page.total.unwrap(), self.tally(at_hand)?])
    }

    fn tally(&self, at_hand: bool) -> Option<i64> {
        let query = HydrateQuery {
            tenant: TENANT,
            viewer: 1,
            objects: vec![ReadObject { id: STAR, author: None }],
            kinds: Vec::new(),
            tallies: vec![self.catalog.current().kind(TENANT, FOLLOW).unwrap().clone()],
            reverse: Vec::new(),
            object_type: USER,
            author_type: USER,
        };
        let hydrated = self.reader(at_hand).hydrate(&query).ok()?;
        hydrated.objects().next().map(|object| object.tallies[0])
    }
}

#[test]
fn what_is_pinned_is_at_hand_and_not_old() {
    for (server, url) in databases("pinned answers") {
        let stage = Stage::on(&url);
        stage.pin(&[list_of(STAR), tallies_of(STAR)]);
        let _behind = read_behind(RefresherParts {
            crew: Crew::default(),
            database: stage.database.clone(),
            catalog: stage.catalog.clone(),
            cache: stage.cache.clone(),
            secret: secret(),
        });
        assert_eq!(stage.followers(true), None, "nothing was read yet");
        assert_eq!(stage.followers(false), Some([0, 0, 0]));
        let (mut asked, mut at_hand, mut renewed) = (0, 0, 0);
        let (mut followers, mut seen) = (0, 0);
        let begun = Instant::now();
        let mut written = begun;
        while begun.elapsed() < 3 * PINNED_AGE_MAX {
            if written.elapsed() >= Duration::from_millis(400) {
                followers += 1;
                stage.follow(followers);
                written = Instant::now();
            }
            asked += 1;
            let answer = stage.followers(true);
            at_hand += u32::from(answer.is_some());
            // What grew too old on a machine that stalls is read by whoever asks, and not behind.
            let [items, total, tally] = answer.or_else(|| stage.followers(false)).unwrap();
            // TiDB's embedded storage shows newer rows to backward scans.
            let one_moment = items == total || server == "TiDB";
            assert!(one_moment, "a page of {items} and its total {total} are of one moment");
            assert!(total >= seen && total <= followers as i64 && tally <= followers as i64);
            renewed += u32::from(answer.is_some() && total > seen);
            seen = total;
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(at_hand > asked / 2, "{at_hand} of {asked} were at hand");
        assert!(renewed > 0, "nothing of {followers} was read behind");
        // All of it within the bound, by a reader who asks the database where it must.
        let all = followers as i64;
        eventually("all followers", || stage.followers(false) == Some([all, all, all]));
        // What is not pinned is not kept beyond its life.
        stage.pin(&[]);
        assert_eq!(stage.hot.pinned(), 2, "what was hot stays pinned for a while");
    }
}

/// Without anybody who reads behind, an answer ends with its bound.
#[test]
fn a_pinned_answer_that_nobody_renews_ends() {
    for (_, url) in databases("pinned answers end") {
        let stage = Stage::on(&url);
        stage.pin(&[list_of(STAR), tallies_of(STAR)]);
        assert_eq!(stage.followers(false), Some([0, 0, 0]));
        let begun = Instant::now();
        stage.follow(1);
        eventually("it is not at hand any more", || stage.tally(true).is_none());
        assert!(begun.elapsed() <= PINNED_AGE_MAX + Duration::from_secs(30));
        assert_eq!(stage.followers(false), Some([1, 1, 1]));
    }
}
