//! Loads a snapshot: its rows become rows of the tables, so many to a transaction, which also says
//! how far the load is. One that was cut off goes on behind the last of them.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use guanxi_cluster::move_phase::Phase;
use guanxi_cluster::rows::cell;
use guanxi_cluster::sql::{Database, SqlError};
use guanxi_core::snapshot::StoreError;
use guanxi_embedded::archive::ArchivePart;
use guanxi_embedded::overlay::{Dirty, EdgeCell};
use guanxi_embedded::store::RawRow;
use guanxi_embedded::store::carried::{Carried, InParts};
use guanxi_model::codec::{decode_idempotency, decode_import};
use guanxi_model::group::Group;
use guanxi_model::{Catalog, GroupId, GroupsKey};

use super::facts::{Facts, ROWS};
use super::{ClusterMove, MoveError, SnapshotFile, TRIES_MAX, TellMoved, pause_before};
use crate::store::script::LoadScript;

const WAIT: Duration = Duration::from_secs(30);
/// Rows of the snapshot that one transaction writes: enough that its fsync does not matter, few
/// enough that its undo log does not either.
const STEP_ROWS: usize = 4_000;
/// Bytes of rows in parts that one transaction writes, as a single one may be long.
const STEP_PART_BYTES: usize = 4 << 20;

impl ClusterMove {
    /// Loads what of the snapshot is not there yet; the progress is in its rows. The move must have
    /// begun with it.
    pub fn load(
        &mut self,
        snapshot: &SnapshotFile,
        progress: &mut TellMoved<'_>,
    ) -> Result<(), MoveError> {
        if self.facts.phase != Some(Phase::Loading)
            || !snapshot.is_of(self.facts.created_ms, self.facts.position)
        {
            return Err(MoveError::Unfit("the move did not begin with this snapshot".into()));
        }
        let mut loaded = self.facts.rows;
        let mut row_number = 0;
        let mut step = LoadStep::default();
        let owned = self.owned();
        snapshot.each_part(|part| {
            let ArchivePart::Rows(rows) = part else {
                return Ok(ControlFlow::Continue(()));
            };
            for row in &rows {
                row_number += 1;
                if row_number <= loaded {
                    continue;
                }
                step.take(row_number, row)?;
                if step.is_full() {
                    let until = step.whole_until(row_number);
                    let mut script = LoadScript::fresh(owned);
                    step.write(snapshot, &mut script);
                    self.step(&script, loaded, Facts { rows: until, ..self.facts })?;
                    loaded = until;
                }
            }
            Ok(progress(row_number))
        })?;
        let mut script = LoadScript::fresh(owned);
        step.end()?;
        step.write(snapshot, &mut script);
        script.catalog(&Catalog::default(), snapshot.catalog());
        script.place(snapshot.applied());
        let facts = Facts { phase: Some(Phase::Following), rows: row_number, ..self.facts };
        self.step(&script, loaded, facts)?;
        self.facts = facts;
        self.open_store()?;
        self.follow_snapshot(snapshot, progress)
    }

    /// The frames that the service wrote while its rows were copied.
    fn follow_snapshot(
        &mut self,
        snapshot: &SnapshotFile,
        progress: &mut TellMoved<'_>,
    ) -> Result<(), MoveError> {
        let rows = snapshot.rows();
        snapshot.each_part(|part| {
            if let ArchivePart::Frames(frames) = part {
                self.apply(&frames)?;
            }
            Ok(progress(rows))
        })
    }

    /// One transaction of the load, which brings it from one row to another.
    fn step(&self, script: &LoadScript, from: u64, facts: Facts) -> Result<(), MoveError> {
        let mut tries = 0;
        loop {
            match try_step(&self.database, script, from, facts) {
                Err(error) if error.may_pass() && tries < TRIES_MAX => {
                    std::thread::sleep(pause_before(tries));
                    tries += 1;
                }
                done => return Ok(done?),
            }
        }
    }
}

fn try_step(
    database: &Database,
    script: &LoadScript,
    from: u64,
    facts: Facts,
) -> Result<(), SqlError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    let locked =
        session.run(&format!("BEGIN;SELECT value FROM facts WHERE name='{ROWS}' FOR UPDATE"))?;
    let found = locked.last().and_then(|set| set.rows.first());
    let found: u64 = found.map_or(Ok(0), |row| cell(row, 0))?;
    // The COMMIT of an earlier try, whose answer was lost, happened.
    if found == facts.rows && found != from {
        session.close();
        return Ok(());
    }
    if found != from {
        session.close();
        return Err(SqlError::Refused(format!(
            "{found} rows of the snapshot are loaded, and not {from}: another move writes too"
        )));
    }
    for part in script.parts() {
        session.run(&part)?;
    }
    session.run(&format!("{};COMMIT", facts.statement())).map(|_| ())
}

/// Rows that go together.
#[derive(Debug, Default)]
struct LoadStep {
    dirty: Dirty,
    groups: Vec<(GroupsKey, Group)>,
    next_groups: Vec<(GroupsKey, GroupId)>,
    rows: usize,
    part_bytes: usize,
    /// A row of which more parts may follow.
    partial: Option<Partial>,
}

#[derive(Debug)]
struct Partial {
    /// The number of its first part.
    first: u64,
    row: InParts,
    bytes: Vec<u8>,
}

impl LoadStep {
    fn take(&mut self, number: u64, row: &RawRow) -> Result<(), StoreError> {
        self.rows += 1;
        let carried = Carried::read(row)?;
        if let Carried::Part(row, part) = carried {
            return self.take_part(number, row, part);
        }
        self.end()?;
        match carried {
            Carried::Edge(key, row) => {
                self.dirty.edges.insert(key, EdgeCell { before: None, after: Some(row) });
            }
            Carried::Node(key, node) => {
                self.dirty.nodes.insert(key, node);
            }
            Carried::Group(key, group) => self.groups.push((key, group)),
            Carried::NextGroup(key, id) => self.next_groups.push((key, id)),
            Carried::Job(tenant, job) => {
                self.dirty.jobs.insert((tenant, job.id), *job);
            }
            // The snapshot gathered the catalog, which is written at the end.
            Carried::Kind(..) | Carried::NodeType(..) | Carried::Part(..) | Carried::Derived => {}
        }
        Ok(())
    }

    fn take_part(&mut self, number: u64, row: InParts, part: Vec<u8>) -> Result<(), StoreError> {
        self.part_bytes += part.len();
        match &mut self.partial {
            Some(partial) if partial.row == row => partial.bytes.extend_from_slice(&part),
            _ => {
                self.end()?;
                self.partial = Some(Partial { first: number, row, bytes: part });
            }
        }
        Ok(())
    }

    /// No part of the row in the making follows.
    fn end(&mut self) -> Result<(), StoreError> {
        match self.partial.take() {
            Some(Partial { row: InParts::Answer(tenant, key), bytes, .. }) => {
                self.dirty.idempotency.insert((tenant, key), decode_idempotency(&bytes)?);
            }
            Some(Partial { row: InParts::Import(tenant, id), bytes, .. }) => {
                self.dirty.imports.insert((tenant, id), decode_import(&bytes)?);
            }
            None => {}
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.rows >= STEP_ROWS || self.part_bytes >= STEP_PART_BYTES
    }

    /// The last row that is in this step as a whole.
    fn whole_until(&self, row: u64) -> u64 {
        self.partial.as_ref().map_or(row, |partial| partial.first - 1)
    }

    /// Puts the rows into the script and begins the next step, with what is in the making.
    fn write(&mut self, snapshot: &SnapshotFile, script: &mut LoadScript) {
        let partial = self.partial.take();
        let LoadStep { dirty, groups, next_groups, .. } =
            std::mem::replace(self, LoadStep { partial, ..LoadStep::default() });
        let (catalog, last) = (snapshot.catalog(), snapshot.applied().version);
        script.edges(&dirty.edges, catalog, last);
        script.nodes(&dirty.nodes, catalog, last);
        script.loaded_groups(&groups, &next_groups, last);
        script.answers(&dirty.idempotency, snapshot.applied().commit);
        script.imports(&dirty.imports);
        script.jobs(&dirty.jobs);
    }
}
