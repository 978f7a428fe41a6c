//! The upkeep: it follows the log, and does what `next_step` says, a small piece at a time.

use guanxi_model::filter::{
    FillNeed, FillProgress, FilterPlan, FilterStep, Generation, HeldPlan, PlanReading, Seal, Sight,
    StandingFilter, next_step,
};

use super::servers::{EDGES, SHARDS, Shard, found, strings};
use super::{Broken, Common, Connection, WRITE_LIFE_MS};

/// Records that are followed at once.
const RECORDS_MAX: usize = 3;
/// Edges of one piece of a scan.
const SCAN_MAX: u64 = 6;

#[derive(Debug, Default)]
pub struct Upkeep {
    held: Option<HeldPlan>,
    connection: Option<Connection>,
    progress: Option<FillProgress>,
    /// How far the present fill has come.
    filling: Filling,
    /// Shards of this standing have got their seal; it is announced next, over this revision.
    prepared: Option<(FilterPlan, StandingFilter, FillNeed)>,
    /// Positions, as last seen in the ledgers over this connection.
    positions: Vec<(Generation, usize)>,
    /// Half of a move is done: the bits are set, the ledger has still to go from the first to the
    /// second position.
    moving: Option<(Generation, usize, usize)>,
}

#[derive(Debug, Default)]
struct Filling {
    seal: Option<Seal>,
    /// The log's end when the fill began.
    noted: usize,
    scanned: u8,
}

impl Upkeep {
    /// `no_write_before(revision)` is what the instances say to the fence.
    pub fn step(&mut self, common: &mut Common, who: usize, no_write_before: impl Fn(u64) -> bool) {
        let gone = |connection: Connection| !common.servers[connection.server].up;
        if self.connection.is_none_or(gone) || common.chance(20) {
            self.connection = common.connect();
            self.prepared = None;
            if !common.is_broken(Broken::PositionFromMemory) {
                self.positions.clear();
                self.moving = None;
            }
            return;
        }
        if self.held.is_none() || common.chance(4) {
            return self.read_plan(common);
        }
        if common.chance(3) {
            self.follow(common);
        } else {
            self.act(common, who, no_write_before);
        }
    }

    fn read_plan(&mut self, common: &Common) {
        let (plan, now_ms) = (common.plan.clone(), common.now_ms);
        let asked = PlanReading { here_ms: now_ms, there_ms: now_ms };
        match &mut self.held {
            Some(held) => held.renew(plan, asked, now_ms),
            None => self.held = Some(HeldPlan::new(plan, asked, now_ms)),
        }
    }

    /// Sets the bits of the next records, and at another time moves the ledger.
    fn follow(&mut self, common: &mut Common) {
        let (Some(connection), Some(held)) = (self.connection, &self.held) else {
            return;
        };
        if let Some((generation, from, to)) = self.moving.take() {
            if common.is_broken(Broken::LedgerBeforeBits) {
                self.set(common, connection, generation, from, to);
                return;
            }
            return self.move_ledger(common, connection, generation, from, to);
        }
        let owed: Vec<Generation> = held
            .owed()
            .filter(|standing| standing.lineage == connection.lineage)
            .map(|standing| standing.generation)
            .collect();
        if owed.is_empty() {
            return;
        }
        let generation = owed[common.draw(owed.len() as u64) as usize];
        let keys = &common.servers[connection.server].keys;
        let remembered = self.positions.iter().find(|(known, _)| *known == generation);
        let position = match remembered {
            Some((_, position)) => Some(*position),
            None => found(keys, generation).and_then(|strings| strings.ledger),
        };
        let Some(from) = position.filter(|from| *from >= common.log_start) else {
            return;
        };
        let to = common.log.len().min(from + RECORDS_MAX);
        if common.is_broken(Broken::LedgerBeforeBits) {
            self.move_ledger(common, connection, generation, from, to);
        } else if !self.set(common, connection, generation, from, to)
            && !common.is_broken(Broken::LedgerPastAnotherSeal)
        {
            return;
        }
        self.moving = Some((generation, from, to));
    }

    /// False when a **set** said 0.
    fn set(
        &self,
        common: &mut Common,
        connection: Connection,
        generation: Generation,
        from: usize,
        to: usize,
    ) -> bool {
        let Some(held) = &self.held else {
            return false;
        };
        let mut all = true;
        for standing in held.owed() {
            if standing.generation == generation && standing.lineage == connection.lineage {
                for position in from..to {
                    let edge = common.log[position];
                    let server = &mut common.servers[connection.server];
                    all &= server.set(generation, standing.seal, edge);
                }
            }
        }
        all
    }

    /// Compare-and-set of the ledger.
    fn move_ledger(
        &mut self,
        common: &mut Common,
        connection: Connection,
        generation: Generation,
        from: usize,
        to: usize,
    ) {
        self.positions.retain(|(known, _)| *known != generation);
        let memory = common.is_broken(Broken::PositionFromMemory);
        let keys = &mut common.servers[connection.server].keys;
        let strings = keys.iter_mut().find(|strings| strings.generation == generation);
        let ledger = strings.and_then(|strings| strings.ledger.as_mut());
        if let Some(ledger) = ledger.filter(|ledger| **ledger == from || memory) {
            *ledger = to;
            self.positions.push((generation, to));
        }
    }

    fn sight(&self, common: &Common, plan: &FilterPlan, connection: Connection) -> Sight {
        let server = &common.servers[connection.server];
        let readable = |generation| {
            let ledger = found(&server.keys, generation).and_then(|strings| strings.ledger);
            ledger.is_some_and(|position| position >= common.log_start)
        };
        Sight {
            lineage: connection.lineage,
            serving_whole: plan.serving.is_some_and(|standing| {
                server.whole(standing.generation, standing.seal) && readable(standing.generation)
            }),
            building_whole: plan.building.is_some_and(|building| {
                server.whole(building.standing.generation, building.standing.seal)
            }),
            resumable: plan.withdrawn.is_some_and(|standing| {
                let strings = found(&server.keys, standing.generation);
                strings.is_some_and(|strings| strings.shards.iter().all(Option::is_some))
                    && readable(standing.generation)
            }),
            items: common.items,
        }
    }

    fn act(&mut self, common: &mut Common, who: usize, no_write_before: impl Fn(u64) -> bool) {
        let (Some(connection), Some(held)) = (self.connection, &self.held) else {
            return;
        };
        if let Some((plan, standing, fill)) = self.prepared.take() {
            common.publish(plan.announced(standing, fill));
            return self.read_plan(common);
        }
        let plan = held.plan().clone();
        let sight = self.sight(common, &plan, connection);
        let step = next_step(held, &sight, self.progress.as_ref(), common.now_ms);
        common.tell(|| format!("upkeep {who} by revision {}: {step:?}", plan.revision));
        match step {
            FilterStep::Follow => self.follow(common),
            FilterStep::Publish(plan) => {
                common.publish(*plan);
                self.read_plan(common);
            }
            FilterStep::Prepare { generation, geometry, fill } => {
                let Some(seal) = Seal::new(common.fresh_number()) else {
                    return;
                };
                let lineage = connection.lineage;
                let format = guanxi_model::filter::header::FORMAT;
                if prepare(common, connection, generation, seal, fill) {
                    let standing = StandingFilter { generation, format, geometry, seal, lineage };
                    self.prepared = Some((plan, standing, fill));
                }
            }
            FilterStep::Fence => self.fence(common, &plan, no_write_before),
            FilterStep::Fill(fill) => self.fill(common, connection, &plan, fill),
            FilterStep::Delete(retired) => {
                let keys = &mut common.servers[connection.server].keys;
                keys.retain(|strings| strings.generation != retired.generation);
                common.publish(plan.deleted(retired.generation));
                self.read_plan(common);
            }
        }
    }

    fn fence(&mut self, common: &Common, plan: &FilterPlan, no_write_before: impl Fn(u64) -> bool) {
        let (Some(building), Some(held)) = (plan.building, &self.held) else {
            return;
        };
        let waited_ms = held.known_ms(common.now_ms);
        let longest_ms = guanxi_model::filter::plan::PLAN_AGE_MAX_MS + WRITE_LIFE_MS;
        let fenced = waited_ms > longest_ms
            || no_write_before(plan.revision)
            || common.is_broken(Broken::NoFence);
        if fenced {
            let mut progress = FillProgress::new(building.standing.seal);
            progress.fenced = true;
            self.progress = Some(progress);
        }
    }

    fn fill(
        &mut self,
        common: &mut Common,
        connection: Connection,
        plan: &FilterPlan,
        fill: FillNeed,
    ) {
        let (Some(building), Some(progress)) = (plan.building, &mut self.progress) else {
            return;
        };
        let StandingFilter { generation, seal, .. } = building.standing;
        if self.filling.seal != Some(seal) {
            self.filling = Filling { seal: Some(seal), noted: common.log.len(), scanned: 0 };
        }
        let filling = &mut self.filling;
        match fill {
            FillNeed::Scan => {
                let until = filling.scanned + common.draw(SCAN_MAX) as u8;
                let until = until.min(EDGES);
                for edge in filling.scanned..until {
                    if common.rows >> edge & 1 == 1 {
                        common.servers[connection.server].set(generation, seal, edge);
                    }
                }
                filling.scanned = until;
                let early = common.is_broken(Broken::SwapBeforeScanEnds);
                if until == EDGES || early {
                    let keys = &mut common.servers[connection.server].keys;
                    strings(keys, generation).ledger = Some(filling.noted);
                    progress.filled = true;
                }
            }
            FillNeed::Replay => {
                let keys = &common.servers[connection.server].keys;
                let ledger = found(keys, generation).and_then(|strings| strings.ledger);
                let passed = ledger.is_some_and(|position| position >= filling.noted);
                progress.filled = passed || common.is_broken(Broken::ResumeWithoutReplay);
                if !progress.filled {
                    self.follow(common);
                }
            }
        }
    }
}

/// Writes the headers. False when it stopped half way, or found nothing to resume.
fn prepare(
    common: &mut Common,
    connection: Connection,
    generation: Generation,
    seal: Seal,
    fill: FillNeed,
) -> bool {
    let stops = common.chance(10);
    let keeps = common.is_broken(Broken::PrepareKeepsLedger);
    let strings = strings(&mut common.servers[connection.server].keys, generation);
    if fill == FillNeed::Scan && !keeps {
        strings.ledger = None;
    }
    for shard in strings.shards.iter_mut().take(if stops { 1 } else { SHARDS }) {
        match (fill, shard.as_mut()) {
            (FillNeed::Scan, _) => *shard = Some(Shard { seal, edges: 0 }),
            (FillNeed::Replay, Some(shard)) => shard.seal = seal,
            (FillNeed::Replay, None) => return false,
        }
    }
    !stops
}
