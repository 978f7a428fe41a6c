//! What a part of the memory is tried on: a whole instance that writes and keeps it, and memories of
//! other instances that ask it.

use std::sync::Arc;

use guanxi_cluster::instance::Cluster;
use guanxi_cluster::memory::{MemorySettings, SharedMemory};
use guanxi_core::crew::Crew;
use guanxi_model::{Catalog, Change};
use redis::cmd;

use crate::stage::{ALL, SERVING, Stage};
use crate::world::open;

/// What a part says of a subject: ids in their order, or a number.
pub type Answer = Vec<u64>;

/// The end of a fill that has begun.
pub type LateFill<'a> = Box<dyn FnOnce() + 'a>;

/// A part of the memory, as all laws see it.
pub trait Cache {
    /// The addresses of this part alone.
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings;

    /// What it says of the subject; none: nothing. What is missed is filled behind.
    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer>;

    /// What the tables say of it.
    fn truth(&self, ground: &Ground, of: u64) -> Answer;

    /// Whether it has a way to say this.
    fn says(&self, _truth: &Answer) -> bool {
        true
    }

    /// Whether it follows the appliers; otherwise it knows every write that was acknowledged.
    fn follows(&self) -> bool;

    /// A write that changes what is to be said of the subject, another each turn.
    fn change(&self, of: u64, turn: u64) -> Change;

    /// Changes it in the tables by someone whom Redis does not hear.
    fn change_unheard(&self, ground: &Ground, of: u64);

    /// Gets ready to fill what is to be said of a subject of which nothing is to be said; the fill
    /// comes when the answer is called.
    fn begin_fill<'a>(
        &'a self,
        ground: &'a Ground,
        memory: &'a SharedMemory,
        of: u64,
    ) -> Option<LateFill<'a>>;

    /// What this instance has put into Redis.
    fn filled(&self, memory: &SharedMemory) -> u64;

    /// Laws that it is not held to, and why.
    fn exceptions(&self) -> &'static [(crate::laws::Law, &'static str)] {
        &[]
    }
}

pub struct Ground {
    pub stage: Stage,
    /// Writes, and keeps the part.
    pub keeps: Arc<Cluster>,
    pub one: SharedMemory,
    pub two: SharedMemory,
}

impl Ground {
    pub fn open(test: &str, part: &dyn Cache) -> Option<Ground> {
        let stage = Stage::open(test)?;
        let keeps = stage.instance_of_memory(ALL, Some(settings(&stage, part)));
        let (one, two) = (memory(&stage, part), memory(&stage, part));
        Some(Ground { stage, keeps, one, two })
    }

    pub fn memories(&self) -> [&SharedMemory; 2] {
        [&self.one, &self.two]
    }

    /// The memory of an instance that has just begun.
    pub fn newcomer(&self, part: &dyn Cache) -> SharedMemory {
        memory(&self.stage, part)
    }

    /// An instance without a Redis.
    pub fn deaf(&self) -> Arc<Cluster> {
        self.stage.instance_of_memory(SERVING, None)
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.keeps.catalog()
    }

    pub fn write(&self, change: Change) {
        self.stage.write(&self.keeps, vec![change]);
    }

    /// Waits until a part that follows has what was written.
    pub fn settle(&self, part: &dyn Cache) {
        if part.follows() {
            self.stage.settle();
            self.stage.await_follower();
        }
    }

    pub fn redis(&self, command: &str) {
        cmd(command).exec(&mut self.stage.connection()).unwrap();
    }
}

fn settings(stage: &Stage, part: &dyn Cache) -> MemorySettings {
    let none = MemorySettings {
        filter_url: None,
        list_url: None,
        tally_url: None,
        runtime: stage.runtime.handle().clone(),
    };
    part.settings(stage.redis.url(), none)
}

fn memory(stage: &Stage, part: &dyn Cache) -> SharedMemory {
    let settings = settings(stage, part);
    SharedMemory::start(&Crew::default(), Some(&settings), open(&stage.url)).unwrap()
}
