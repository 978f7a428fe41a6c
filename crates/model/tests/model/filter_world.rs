//! A world for `filter_histories`: a database with a plan, a log, Redis servers, instances that read
//! and write, and the upkeep. Time passes in jumps; whoever is not drawn stands still, so every
//! pause between two of its acts is tried. Nothing here decides by itself: that is the model's.

mod instance;
mod servers;
mod upkeep;

use guanxi_model::filter::{FillNeed, FilterLineage, FilterPlan, Say};

use instance::Instance;
use servers::{EDGES, Edges, Keys, SHARDS, Server};
use upkeep::Upkeep;

/// The longest life of a write after it was permitted.
const WRITE_LIFE_MS: u64 = 500;
const INSTANCES: usize = 2;
/// The second has lost its lease and does not know it.
const UPKEEPS: usize = 2;
/// How far time goes on with a step: mostly little, sometimes past a plan's age or a write's life.
const JUMPS_MS: [u64; 16] = [0, 0, 0, 0, 0, 0, 1, 1, 1, 20, 20, 50, 100, 200, 600, 1_100];
/// Far more than the upkeep needs for a generation when it is left alone.
const SETTLE_STEPS_MAX: usize = 10_000;
/// Lines of a history that are told when it went wrong.
const STORY_LINES: usize = 400;

/// A rule left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Broken {
    /// Writers do not set bits in what is being built.
    SkipDoubleWrite,
    /// Readers do not look at the connection's lineage.
    BelieveAfterFailover,
    /// A generation is completed before its scan has ended.
    SwapBeforeScanEnds,
    /// The scan begins before every writer is known to write twice.
    NoFence,
    /// What was withdrawn is believed again without a replay.
    ResumeWithoutReplay,
    /// After a reconnect the upkeep goes on from where it was, not from the ledger.
    PositionFromMemory,
    /// The ledger moves before the bits are set.
    LedgerBeforeBits,
    /// A writer that cannot reach what serves commits all the same.
    CommitWithoutWithdrawing,
    /// A writer that withdrew does not wait for the readers.
    CommitWithoutWaiting,
    /// Readers believe a plan of any age.
    ReadByOldPlan,
    /// Writers commit by a plan of any age.
    WriteByOldPlan,
    /// Writers owe nothing to what is leaving.
    SkipLeaving,
    /// **Set** makes a string where there is none.
    SetMakesStrings,

    /// The ledger moves although **set** found another seal.
    LedgerPastAnotherSeal,
    /// A generation's shards are made anew beside the ledger of an earlier attempt.
    PrepareKeepsLedger,
}

impl Broken {
    pub const ALL: [Broken; 15] = [
        Broken::SkipDoubleWrite,
        Broken::BelieveAfterFailover,
        Broken::SwapBeforeScanEnds,
        Broken::NoFence,
        Broken::ResumeWithoutReplay,
        Broken::PositionFromMemory,
        Broken::LedgerBeforeBits,
        Broken::CommitWithoutWithdrawing,
        Broken::CommitWithoutWaiting,
        Broken::ReadByOldPlan,
        Broken::WriteByOldPlan,
        Broken::SkipLeaving,
        Broken::SetMakesStrings,
        Broken::LedgerPastAnotherSeal,
        Broken::PrepareKeepsLedger,
    ];
}

/// What happened, over a history.
#[derive(Debug, Default)]
pub struct Tally {
    pub surely_not: u64,
    pub maybe: u64,
    pub unknown: u64,
    pub acknowledged: u64,
    pub completed: u64,
    pub resumed: u64,
    pub withdrawn: u64,
    pub grown: u64,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.surely_not += other.surely_not;
        self.maybe += other.maybe;
        self.unknown += other.unknown;
        self.acknowledged += other.acknowledged;
        self.completed += other.completed;
        self.resumed += other.resumed;
        self.withdrawn += other.withdrawn;
        self.grown += other.grown;
    }
}

/// What is shared: truth, time, chance and the servers.
pub struct Common {
    random: u64,
    now_ms: u64,
    broken: Option<Broken>,
    plan: FilterPlan,
    /// Committed edges that are live or pending.
    rows: Edges,
    /// The puts that were committed, in the log's order. Before `log_start` they are forgotten.
    log: Vec<u8>,
    log_start: usize,
    /// What the database says of the number of edges: it makes generations grow.
    items: u64,
    servers: Vec<Server>,
    /// The server that new connections reach.
    current: usize,
    replica: Keys,
    snapshot: Keys,
    tally: Tally,
    story: Option<Vec<String>>,
}

impl Common {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % below
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.draw(one_in) == 0
    }

    fn fresh_number(&mut self) -> u64 {
        self.draw(u64::MAX) + 1
    }

    fn is_broken(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        let now_ms = self.now_ms;
        if let Some(story) = &mut self.story {
            story.push(format!("{now_ms:>6} {}", line()));
        }
    }

    /// Compare-and-set of the plan. False when another change came first.
    fn publish(&mut self, plan: FilterPlan) -> bool {
        let first = plan.revision == self.plan.revision + 1;
        self.tell(|| format!("publish {first} {plan:?}"));
        if first {
            match (self.plan.serving, plan.serving) {
                (_, Some(new)) if self.plan.building.is_some_and(|old| old.standing == new) => {
                    self.tally.completed += 1;
                    if self.plan.building.is_some_and(|old| old.fill == FillNeed::Replay) {
                        self.tally.resumed += 1;
                    }
                    if self.plan.serving.is_some_and(|old| old.geometry != new.geometry) {
                        self.tally.grown += 1;
                    }
                }
                (Some(_), None) => self.tally.withdrawn += 1,
                _ => {}
            }
            self.plan = plan;
        }
        first
    }

    fn connect(&self) -> Option<Connection> {
        let server = &self.servers[self.current];
        server.up.then_some(Connection { server: self.current, lineage: server.lineage })
    }

    fn start_server(&mut self, keys: Keys) {
        let lineage = FilterLineage(u128::from(self.fresh_number()));
        self.servers.push(Server { lineage, up: true, keys });
        self.current = self.servers.len() - 1;
    }
}

/// A connection and the lineage that was read over it when it was made.
#[derive(Debug, Clone, Copy)]
pub struct Connection {
    server: usize,
    lineage: FilterLineage,
}

pub struct World {
    common: Common,
    instances: [Instance; INSTANCES],
    upkeeps: [Upkeep; UPKEEPS],
    seed: u64,
}

impl World {
    pub fn new(seed: u64, broken: Option<Broken>) -> World {
        World::with_story(seed, broken, false)
    }

    fn with_story(seed: u64, broken: Option<Broken>, told: bool) -> World {
        let mut common = Common {
            random: seed.wrapping_mul(0xd134_2543_de82_ef95),
            now_ms: 10_000,
            broken,
            plan: FilterPlan::default(),
            rows: 0,
            log: Vec::new(),
            log_start: 0,
            items: 0,
            servers: Vec::new(),
            current: 0,
            replica: Keys::new(),
            snapshot: Keys::new(),
            tally: Tally::default(),
            story: told.then(Vec::new),
        };
        common.start_server(Keys::new());
        let instances = Default::default();
        let mut world = World { common, instances, upkeeps: Default::default(), seed };
        if seed % 2 == 1 {
            world.settle();
        }
        world
    }

    /// Half of the histories begin with a filter that serves.
    fn settle(&mut self) {
        for _ in 0..SETTLE_STEPS_MAX {
            if self.common.plan.serving.is_some() {
                return;
            }
            self.common.now_ms += 500;
            self.upkeeps[0].step(&mut self.common, 0, |_| true);
        }
        panic!("the upkeep alone makes a filter in {SETTLE_STEPS_MAX} steps");
    }

    /// The same history again, told.
    pub fn story(&self) -> String {
        let mut world = World::with_story(self.seed, self.common.broken, true);
        for _ in 0..STORY_LINES {
            world.step();
            if world.check().is_err() {
                break;
            }
        }
        world.common.story.unwrap_or_default().join("\n")
    }

    pub fn tally(&self) -> &Tally {
        &self.common.tally
    }

    pub fn step(&mut self) {
        let common = &mut self.common;
        common.now_ms += JUMPS_MS[common.draw(JUMPS_MS.len() as u64) as usize];
        match common.draw(100) {
            0..40 => {
                let who = common.draw(INSTANCES as u64) as usize;
                self.instances[who].step(common, who);
            }
            40..94 => {
                let who = usize::from(common.chance(6));
                let instances = &self.instances;
                self.upkeeps[who].step(common, who, |revision| {
                    instances.iter().all(|instance| instance.has_no_write_before(revision))
                });
            }
            _ => self.misfortune(),
        }
    }

    fn misfortune(&mut self) {
        let common = &mut self.common;
        let draw = common.draw(40);
        common.tell(|| format!("misfortune {draw}"));
        let current = common.current;
        match draw {
            0..12 => common.replica = common.servers[current].keys.clone(),
            12..16 => common.snapshot = common.servers[current].keys.clone(),
            // A failover; the old master may live on for those that are connected to it.
            16..20 => {
                common.servers[current].up = common.chance(2);
                let keys = common.replica.clone();
                common.start_server(keys);
            }
            // A restart, from an old snapshot or with all that there was.
            20..23 => {
                common.servers[current].up = false;
                let whole = common.chance(2);
                let keys = if whole { &common.servers[current].keys } else { &common.snapshot };
                let keys = keys.clone();
                common.start_server(keys);
            }
            23..25 => {
                let old = common.draw(common.servers.len() as u64) as usize;
                common.servers[old].up = old == current;
            }
            25..27 => common.servers[current].keys.clear(),
            27..29 => {
                let keys = common.servers[current].keys.len() as u64;
                let which = common.draw(keys.max(1)) as usize;
                let shard = common.draw(SHARDS as u64 + 1) as usize;
                if let Some(strings) = common.servers[current].keys.get_mut(which) {
                    match strings.shards.get_mut(shard) {
                        Some(shard) => *shard = None,
                        None => strings.ledger = None,
                    }
                }
            }
            29..31 => common.items += 3 << (18 + common.draw(3)),
            31 => {
                let records = (common.log.len() - common.log_start) as u64;
                common.log_start += common.draw(records + 1) as usize;
            }
            32..34 => {
                let who = common.draw(INSTANCES as u64) as usize;
                self.instances[who] = Instance::default();
            }
            34..38 => {
                let who = common.draw(INSTANCES as u64) as usize;
                if common.chance(2) {
                    self.instances[who].cut_or_mend();
                } else {
                    self.instances[who].deafen_or_mend();
                }
            }
            _ => {
                let who = common.draw(UPKEEPS as u64) as usize;
                self.upkeeps[who] = Upkeep::default();
            }
        }
    }

    /// Every instance asks about every edge. Whatever is committed must not be "surely not", even
    /// before its acknowledgement.
    pub fn check(&mut self) -> Result<(), String> {
        for (who, instance) in self.instances.iter_mut().enumerate() {
            let late = instance.late_answer(&mut self.common);
            let prompt = instance.asks(&self.common);
            for edge in 0..EDGES {
                for reading in [&late, &prompt] {
                    let (say, stood) = match reading {
                        Some(reading) => instance.hears(&self.common, reading, edge),
                        None => (Say::Unknown, false),
                    };
                    match say {
                        Say::SurelyNot => self.common.tally.surely_not += 1,
                        Say::Maybe => self.common.tally.maybe += 1,
                        Say::Unknown => self.common.tally.unknown += 1,
                    }
                    if say == Say::SurelyNot && stood {
                        return Err(format!("instance {who} says that edge {edge} is surely not"));
                    }
                }
            }
        }
        Ok(())
    }
}
