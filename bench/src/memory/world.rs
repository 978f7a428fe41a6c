//! The same people, posts and edges in an embedded service and in a cluster with a Redis.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use guanxi_services::Redis;
use guanxi_tests::{Cluster, Server, metric, poll_until, put_all};

/// Those who look, and what each has related to before.
const VIEWERS: u64 = 5_000;
const FOLLOWS: u64 = 20;
const LIKES: u64 = 15;
const FAVORITES: u64 = 5;
const POSTS: u64 = 20_000;
const AUTHORS: u64 = 2_000;
/// Ids of posts and authors begin here.
const FIRST_POST: u64 = 1_000_000;
const FIRST_AUTHOR: u64 = 500_000;
/// Objects of a hydrate.
pub const OBJECTS: usize = 6;
pub const CELEBRITY: u64 = 400_000;
const CELEBRITY_FOLLOWERS: u64 = 20_000;
/// Filling the filter waits for the longest write that may be under way.
const FILLED: Duration = Duration::from_secs(180);
/// Who fill both: a service takes as many batches at once, and no more.
const FILLERS: u64 = 4;
/// Writers of the storm.
const STORM_WRITERS: u64 = 2;

pub struct World {
    pub embedded: Server,
    /// Serves callers and nothing else, so that its cost is that of serving.
    pub instance: Server,
    /// Takes the writes of a storm, and does all other work.
    writing: Server,
    pub redis: Redis,
    stormed: AtomicU64,
}

/// What the filter has said, of edges.
pub struct Checked {
    pub surely_not: f64,
}

impl World {
    pub fn set() -> anyhow::Result<World> {
        let cluster = Cluster::start_or_skip("bench").context("there are no servers")?;
        let redis = Redis::start_or_skip("bench").context("there is no Redis")?;
        cluster.configure(&format!("[cache]\nredis = \"{}\"", redis.url()));
        let (instance, writing) = (cluster.instance_with_roles("api"), cluster.instance());
        let embedded = Server::start();
        let stormed = AtomicU64::new(0);
        let world = World { embedded, instance, writing, redis, stormed };
        world.fill(&world.embedded);
        world.fill(&world.writing);
        let serves = || world.instance.get("/readyz").ok()["cluster"]["filter_serves"] == true;
        poll_until("the filter", FILLED, || serves().then_some(()));
        Ok(world)
    }

    fn fill(&self, server: &Server) {
        std::thread::scope(|scope| {
            for part in 0..FILLERS {
                scope.spawn(move || {
                    let client = server.client();
                    let viewers = (1..=VIEWERS).filter(|viewer| viewer % FILLERS == part);
                    let viewers: Vec<u64> = viewers.collect();
                    let all = |count: u64, target: fn(u64, u64) -> u64| -> Vec<(u64, u64)> {
                        let of = |viewer: u64| (0..count).map(move |n| (viewer, target(viewer, n)));
                        viewers.iter().flat_map(|viewer| of(*viewer)).collect()
                    };
                    put_all(&client, "follow", &all(FOLLOWS, followed));
                    put_all(&client, "like", &all(LIKES, liked));
                    put_all(&client, "favorite", &all(FAVORITES, favored));
                    let fans = (0..CELEBRITY_FOLLOWERS).filter(|fan| fan % FILLERS == part);
                    let fans: Vec<_> = fans.map(|fan| (600_000 + fan, CELEBRITY)).collect();
                    put_all(&client, "follow", &fans);
                });
            }
        });
    }

    pub fn any_viewer(&self) -> u64 {
        fastrand::u64(1..=VIEWERS)
    }

    pub fn any_post(&self) -> u64 {
        FIRST_POST + fastrand::u64(..POSTS)
    }

    pub fn liked_by(&self, viewer: u64) -> u64 {
        liked(viewer, fastrand::u64(..LIKES))
    }

    pub fn author_of(&self, post: u64) -> u64 {
        FIRST_AUTHOR + post % AUTHORS
    }

    pub fn checked(&self) -> Checked {
        Checked { surely_not: metric(&self.instance, "guanxi_filter_surely_not_total") }
    }

    /// Runs `act` while others follow the celebrity; returns how many did.
    pub fn storm<T>(&self, act: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, u64)> {
        let (ends, before) = (AtomicBool::new(false), self.stormed.load(Ordering::Relaxed));
        let done = std::thread::scope(|scope| {
            for _ in 0..STORM_WRITERS {
                scope.spawn(|| {
                    let client = self.writing.client();
                    while !ends.load(Ordering::Relaxed) {
                        let first = self.stormed.fetch_add(100, Ordering::Relaxed);
                        let fans: Vec<_> =
                            (0..100).map(|fan| (10_000_000 + first + fan, CELEBRITY)).collect();
                        put_all(&client, "follow", &fans);
                    }
                });
            }
            let done = act();
            ends.store(true, Ordering::Relaxed);
            done
        })?;
        Ok((done, self.stormed.load(Ordering::Relaxed) - before))
    }
}

fn followed(viewer: u64, number: u64) -> u64 {
    FIRST_AUTHOR + (viewer * 7 + number * 97) % AUTHORS
}

fn liked(viewer: u64, number: u64) -> u64 {
    FIRST_POST + (viewer * 31 + number * 1_009) % POSTS
}

fn favored(viewer: u64, number: u64) -> u64 {
    FIRST_POST + (viewer * 17 + number * 2_003) % POSTS
}
