//! An instance: it reads the plan, asks the filter and writes edges.

use guanxi_model::filter::{HeldPlan, PlanReading, Say, Seal, StandingFilter, WriterStep};

use super::servers::{EDGES, Edges, SHARDS, Shard, found, shard_of};
use super::{Broken, Common, Connection, WRITE_LIFE_MS};

/// How seldom a late answer comes: while it is on its way, a generation may be withdrawn, resumed and
/// completed.
const LATE_ONE_IN: u64 = 24;

#[derive(Debug, Default)]
pub struct Instance {
    held: Option<HeldPlan>,
    asked_ms: u64,
    connection: Option<Connection>,
    /// It cannot reach Redis, though others can.
    cut: bool,
    /// It cannot read the plan, though others can.
    deaf: bool,
    write: Option<Write>,
    reading: Option<Reading>,
}

/// A question whose answer is on its way.
#[derive(Debug)]
pub struct Reading {
    asked: StandingFilter,
    /// As they were when the server looked.
    shards: [Option<Shard>; SHARDS],
    /// What was committed then.
    rows: Edges,
}

#[derive(Debug)]
struct Write {
    edge: u8,
    /// The seals under which **set** was answered.
    reached: Vec<Seal>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Bits are to be set as this revision wants it, if it is known yet.
    Setting,
    Asking {
        revision: u64,
    },
    Permitted {
        revision: u64,
        at_ms: u64,
    },
    Committed,
}

impl Instance {
    /// Redis cannot be reached from here any more, or it can again.
    pub fn cut_or_mend(&mut self) {
        self.connection = None;
        self.cut = !self.cut;
    }

    /// The plan cannot be read from here any more, or it can again.
    pub fn deafen_or_mend(&mut self) {
        self.deaf = !self.deaf;
    }

    /// What the fence asks: this revision is known here, and no write goes on that an older plan
    /// let through. An instance that never read the plan has no write.
    pub fn has_no_write_before(&self, wanted: u64) -> bool {
        let Some(held) = &self.held else {
            return true;
        };
        let older = match self.write.as_ref().map(|write| write.stage) {
            Some(Stage::Permitted { revision, .. }) => revision < wanted,
            _ => false,
        };
        held.plan().revision >= wanted && !older
    }

    /// Asks the shards about everything, if they are worth asking.
    pub fn asks(&self, common: &Common) -> Option<Reading> {
        let connection =
            self.connection.filter(|connection| common.servers[connection.server].up)?;
        let plan = self.held.as_ref()?.plan();
        let lineage = match common.broken {
            Some(Broken::BelieveAfterFailover) => plan.serving?.lineage,
            _ => connection.lineage,
        };
        let asked = self.held.as_ref()?.askable(Some(lineage))?;
        let strings = found(&common.servers[connection.server].keys, asked.generation);
        let shards = strings.map_or([None; SHARDS], |strings| strings.shards);
        Some(Reading { asked, shards, rows: common.rows })
    }

    /// What an answer says of an edge now that it has come, and whether the edge stood when it was
    /// given.
    pub fn hears(&self, common: &Common, reading: &Reading, edge: u8) -> (Say, bool) {
        let stood = reading.rows >> edge & 1 == 1;
        let now_ms = match common.broken {
            Some(Broken::ReadByOldPlan) => self.asked_ms,
            _ => common.now_ms,
        };
        let believed = self.held.as_ref().and_then(|held| held.believed(&reading.asked, now_ms));
        let say = match (believed, reading.shards[shard_of(edge)]) {
            (Some(seal), Some(shard)) if shard.seal == seal => match shard.edges >> edge & 1 {
                0 => Say::SurelyNot,
                _ => Say::Maybe,
            },
            _ => Say::Unknown,
        };
        (say, stood)
    }

    /// The answer to a question that was asked before, if it comes now.
    pub fn late_answer(&mut self, common: &mut Common) -> Option<Reading> {
        if self.reading.is_none() {
            self.reading = self.asks(common);
            return None;
        }
        if common.chance(LATE_ONE_IN) { self.reading.take() } else { None }
    }

    pub fn step(&mut self, common: &mut Common, who: usize) {
        if self.connection.is_none_or(|connection| !common.servers[connection.server].up) {
            self.connection = if self.cut { None } else { common.connect() };
        }
        if self.held.is_none() || (!self.deaf && common.chance(3)) {
            self.read_plan(common);
            return;
        }
        let Some(write) = &mut self.write else {
            return self.begin(common, who);
        };
        let edge = write.edge;
        match write.stage {
            Stage::Setting => self.set(common, who),
            Stage::Asking { revision } => self.ask(common, who, revision),
            Stage::Permitted { at_ms, .. } if common.now_ms - at_ms > WRITE_LIFE_MS => {
                self.write = None;
            }
            Stage::Permitted { .. } => {
                write.stage = Stage::Committed;
                common.rows |= 1 << edge;
                common.log.push(edge);
                common.tell(|| format!("instance {who} commits edge {edge}"));
            }
            Stage::Committed => {
                common.tally.acknowledged += 1;
                self.write = None;
            }
        }
    }

    fn begin(&mut self, common: &mut Common, who: usize) {
        let edge = common.draw(u64::from(EDGES)) as u8;
        if common.chance(4) {
            common.rows &= !(1 << edge);
            common.tell(|| format!("instance {who} deletes edge {edge}"));
            return;
        }
        self.write = Some(Write { edge, reached: Vec::new(), stage: Stage::Setting });
    }

    fn read_plan(&mut self, common: &Common) {
        if self.deaf {
            return;
        }
        let (plan, now_ms) = (common.plan.clone(), common.now_ms);
        let asked = PlanReading { here_ms: now_ms, there_ms: now_ms };
        match &mut self.held {
            Some(held) => held.renew(plan, asked, now_ms),
            None => self.held = Some(HeldPlan::new(plan, asked, now_ms)),
        }
        self.asked_ms = now_ms;
    }

    /// Sets the bits wherever they are owed and can be set.
    fn set(&mut self, common: &mut Common, who: usize) {
        let (Some(write), Some(held)) = (&mut self.write, &self.held) else {
            return;
        };
        for standing in held.owed() {
            if skipped(common.broken, held, standing) {
                write.reached.push(standing.seal);
            }
            let Some(connection) = self.connection else {
                continue;
            };
            if connection.lineage != standing.lineage || write.reached.contains(&standing.seal) {
                continue;
            }
            let StandingFilter { generation, seal, .. } = *standing;
            let server = &mut common.servers[connection.server];
            let done = server.set(generation, seal, write.edge);
            if !done && common.broken == Some(Broken::SetMakesStrings) {
                server.set_or_make(generation, seal, write.edge);
            }
            write.reached.push(seal);
            let edge = write.edge;
            common.tell(|| format!("instance {who} sets edge {edge} in {generation:?}: {done}"));
        }
        write.stage = Stage::Asking { revision: held.plan().revision };
    }

    fn ask(&mut self, common: &mut Common, who: usize, revision: u64) {
        let (Some(write), Some(held)) = (&mut self.write, &self.held) else {
            return;
        };
        if held.plan().revision != revision {
            write.stage = Stage::Setting;
            return;
        }
        let now_ms = match common.broken {
            Some(Broken::WriteByOldPlan) => self.asked_ms,
            _ => common.now_ms,
        };
        let reached = |standing: &StandingFilter| write.reached.contains(&standing.seal);
        let permission = held.permission(now_ms, reached);
        common.tell(|| format!("instance {who} asks with revision {revision}: {permission:?}"));
        match permission {
            WriterStep::Hold { .. } if !common.is_broken(Broken::CommitWithoutWaiting) => {}
            WriterStep::Commit | WriterStep::Hold { .. } => {
                write.stage = Stage::Permitted { revision, at_ms: common.now_ms };
            }
            WriterStep::Reread => self.reread(common),
            WriterStep::Publish(plan) => {
                common.publish(*plan);
                self.reread(common);
            }
        }
    }

    fn reread(&mut self, common: &Common) {
        self.read_plan(common);
        if let Some(write) = &mut self.write {
            write.stage = Stage::Setting;
        }
    }
}

/// Whether the broken rule leaves these bits out, and says that they were set.
fn skipped(broken: Option<Broken>, held: &HeldPlan, standing: &StandingFilter) -> bool {
    let plan = held.plan();
    match broken {
        Some(Broken::SkipDoubleWrite) => plan.building.is_some_and(|it| it.standing == *standing),
        Some(Broken::CommitWithoutWithdrawing) => plan.serving == Some(*standing),
        Some(Broken::SkipLeaving) => plan.leaving.contains(standing),
        _ => false,
    }
}
