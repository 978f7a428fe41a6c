//! A database, a Redis, and instances with their memories.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guanxi_cluster::leases::Leases;
use guanxi_cluster::memory::filter::ExistenceFilter;
use guanxi_cluster::memory::keeper::{KeeperParts, keep};
use guanxi_cluster::memory::{Kit, MemorySettings, SharedMemory};
use guanxi_core::crew::{Crew, Workers};
use guanxi_model::filter::Say;
use guanxi_model::{EdgeKey, Secret};
use guanxi_services::Redis;
use redis::cmd;
use tokio::runtime::Runtime;

use crate::world::{Instance, databases, open};

/// What cursors are sealed with here.
pub fn secret() -> Arc<Secret> {
    Arc::new(Secret::new([3; 32]))
}

pub struct Stage {
    pub url: String,
    pub runtime: Runtime,
    pub redis: Redis,
}

/// An instance and its memory.
pub struct Member {
    pub instance: Instance,
    pub memory: Arc<SharedMemory>,
}

impl Stage {
    /// On each database that is there.
    pub fn each(test: &str, act: impl Fn(&Stage)) {
        for (_, url) in databases(test) {
            let Some(redis) = Redis::start_or_skip(test) else { return };
            let runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
            act(&Stage { url, runtime, redis });
        }
    }

    pub fn member(&self, number: u64) -> Member {
        let url = Some(self.redis.url());
        let runtime = self.runtime.handle().clone();
        let settings =
            MemorySettings { filter_url: url.clone(), list_url: url, tally_url: None, runtime };
        self.member_with(number, Some(&settings))
    }

    pub fn member_with(&self, number: u64, settings: Option<&MemorySettings>) -> Member {
        let memory = SharedMemory::start(&Crew::default(), settings, open(&self.url)).unwrap();
        let memory = Arc::new(memory);
        let instance = Instance::start_with(&self.url, number, Some(memory.clone()));
        Member { instance, memory }
    }

    pub fn keeper(&self, member: &Member) -> Workers {
        let filter = Some(member.memory.filter().clone());
        keeper(member, member.memory.filter_part(), filter)
    }

    pub fn list_keeper(&self, member: &Member) -> Workers {
        keeper(member, member.memory.lists_part(), None)
    }

    pub fn ask(&self, member: &Member, edges: &[EdgeKey]) -> Vec<Say> {
        self.runtime.block_on(member.memory.filter().ask(edges))
    }

    pub fn flush(&self) {
        let client = redis::Client::open(self.redis.url()).unwrap();
        cmd("FLUSHALL").exec(&mut client.get_connection().unwrap()).unwrap();
    }
}

impl Member {
    pub fn serves(&self) -> bool {
        self.memory.figures().serves
    }
}

fn keeper(member: &Member, kit: &Kit, filter: Option<Arc<ExistenceFilter>>) -> Workers {
    let Instance { database, catalog, number, .. } = &member.instance;
    keep(KeeperParts {
        crew: Crew::default(),
        database: database.clone(),
        catalog: catalog.clone(),
        leases: Leases::start(&Crew::default(), database.clone(), *number).unwrap(),
        tier: kit.tier.clone().unwrap(),
        plans: kit.plans.clone(),
        filter,
    })
    .unwrap()
}

/// Says that it is over when it goes, also by a failed assertion: a scope waits for its threads.
pub struct Ending<'a>(pub &'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
