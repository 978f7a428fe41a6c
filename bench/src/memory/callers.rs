//! Callers that ask one after the other, and what their questions cost the servers.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_tests::{Client, Server};
use serde_json::{Value, json};

use super::world::{CELEBRITY, OBJECTS, World};
use crate::processor::processor_time;

/// Kinds that a hydrate asks about each object.
const KINDS: [&str; 3] = ["like", "favorite", "follow"];
const TALLIES: [&str; 4] = ["like", "favorite", "view", "follow"];
/// Of so many objects the viewer likes one: one of a hundred checks is positive.
const OBJECTS_TO_A_LIKE: u64 = 33;

pub struct Run {
    pub callers: usize,
    pub time: Duration,
}

/// What requests cost.
pub struct Cost {
    pub requests: u64,
    pub rate: f64,
    /// Processor time of the instance and of Redis for each request, in microseconds.
    pub each: f64,
    pub redis_each: f64,
    /// Checks that were answered with no.
    pub negative: u64,
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cost { requests, rate, each, redis_each, .. } = self;
        write!(f, "{requests} at {rate:.0}/s; {each:.0} us of CPU each, Redis {redis_each:.0}")
    }
}

impl Run {
    pub fn hydrate(&self, server: &Server, world: &World) -> anyhow::Result<Cost> {
        self.cost(server, world, |client| {
            let viewer = world.any_viewer();
            let objects: Vec<Value> = (0..OBJECTS)
                .map(|_| {
                    let id = match fastrand::u64(..OBJECTS_TO_A_LIKE) {
                        0 => world.liked_by(viewer),
                        _ => world.any_post(),
                    };
                    json!({"id": id.to_string(), "author": world.author_of(id).to_string()})
                })
                .collect();
            let body = json!({"viewer": viewer.to_string(), "objects": objects, "kinds": KINDS,
                              "tallies": TALLIES});
            let answer = client.post_json("/v1/hydrate", body);
            let objects = answer.ok()["objects"].as_array().map_or(&[][..], Vec::as_slice);
            let related: usize =
                objects.iter().map(|it| it["related"].as_array().map_or(0, Vec::len)).sum();
            (OBJECTS * KINDS.len() - related) as u64
        })
    }

    /// The first page of followers and the tally, by turns.
    pub fn celebrity(&self, world: &World) -> anyhow::Result<Cost> {
        self.cost(&world.instance, world, |client| {
            if fastrand::bool() {
                client.get(format!("/v1/edges/follow/{CELEBRITY}/incoming?limit=20")).ok();
            } else {
                let body = json!({"ids": [CELEBRITY.to_string()], "kinds": ["follow"]});
                client.post_json("/v1/tallies", body).ok();
            }
            0
        })
    }

    fn cost(
        &self,
        server: &Server,
        world: &World,
        ask: impl Fn(&Client) -> u64 + Sync,
    ) -> anyhow::Result<Cost> {
        let (asked, negative) = (AtomicU64::new(0), AtomicU64::new(0));
        let times = || [server.pid(), world.redis.pid()].map(processor_time);
        let (begun, before) = (Instant::now(), times());
        std::thread::scope(|scope| {
            for _ in 0..self.callers {
                scope.spawn(|| {
                    // Each has a connection of its own, kept for all its questions.
                    let client = Client::new(server.address());
                    while begun.elapsed() < self.time {
                        negative.fetch_add(ask(&client), Ordering::Relaxed);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let (took, after) = (begun.elapsed(), times());
        let requests = asked.into_inner();
        let each = |index: usize| (after[index] - before[index]) / requests.max(1) as f64;
        Ok(Cost {
            requests,
            rate: requests as f64 / took.as_secs_f64(),
            each: each(0) + each(1),
            redis_each: each(1),
            negative: negative.into_inner(),
        })
    }
}
