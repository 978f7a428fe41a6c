//! What runs beside the callers: the commit path and the chores, where writes are taken;
//! checkpoints and the scrubber, everywhere.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::signal::Signal;
use guanxi_core::snapshot::StoreError;
use guanxi_model::decide::built_in_kinds;
use guanxi_model::{Catalog, Change, Error, Request, TenantId};

use super::moving::moved_away;
use super::{Engine, OpenError};
use crate::background::Workbench;
use crate::checkpoint;
use crate::commit::{Committer, CommitterParts};
use crate::directory::note_clock;
use crate::{disk_room, jobs, scrubber, sweeper};

/// How long the first start may take to write the built-in kinds.
const FIRST_KINDS_DEADLINE: Duration = Duration::from_secs(30);

impl Engine {
    /// Starts the commit path and what writes of its own accord.
    pub(super) fn take_writes(&self) -> Result<(), OpenError> {
        let start = |error: std::io::Error| OpenError::Start(error.to_string());
        let parts = CommitterParts {
            crew: self.crew.clone(),
            log: self.log.clone(),
            store: self.store.clone(),
            clock: self.clock.clone(),
            meter: self.settings.meter.clone(),
            settings: self.settings.commit,
            region: self.settings.region,
            shipping: self.shipping.clone(),
            room: self.room.clone(),
            applied: self.applied.clone(),
            job_changed: Box::new({
                let signal = self.signal.clone();
                move || signal.wake()
            }),
        };
        let committer = Arc::new(Committer::start(parts).map_err(start)?);
        if let Some(moved) = self.moving.moved() {
            committer.refuse(moved_away(&moved));
            let _only_here = self.committer.set(committer);
            return Ok(());
        }
        // A standby has the kinds of its primary, and a fresh one could not be confirmed yet.
        if self.following.is_none() {
            create_kinds(&committer, &self.store.catalog()).map_err(|error| {
                match self.room.is_full() {
                    true => OpenError::Store(StoreError::Full),
                    false => error,
                }
            })?;
        }
        let _only_here = self.committer.set(committer);
        let bench = self.bench();
        let (trouble, backoff) = ("expired edges could not be looked up", Backoff::default());
        let sweep = move |_: &Signal| sweeper::turn(&bench);
        self.workers.repeat("guanxi-sweep", trouble, backoff, sweep).map_err(start)?;
        let bench = self.bench();
        let (trouble, backoff) = ("the jobs could not be read", Backoff::default());
        let work = move |_: &Signal| jobs::turn(&bench);
        self.workers.repeat("guanxi-jobs", trouble, backoff, work).map_err(start)
    }

    /// Starts what a standby does too.
    pub(super) fn start_upkeep(&self) -> std::io::Result<()> {
        let (bench, persisted, holds) = (self.bench(), self.persisted.clone(), self.holds.clone());
        let settings = self.settings.log;
        let (disk, clock) = (self.disk.clone(), self.clock.clone());
        let directory = self.settings.data_dir.clone();
        let note_clock = move || note_clock(disk.as_ref(), &directory, &clock);
        let room = self.room.clone();
        self.workers.spawn("guanxi-checkpoint", move |_| {
            checkpoint::run(&bench, &persisted, &holds, &settings, &room, note_clock);
        })?;
        let (room, store) = (self.room.clone(), self.store.clone());
        let look = move |signal: &Signal| disk_room::run(&room, store.as_ref(), signal);
        self.workers.spawn("guanxi-room", look)?;
        if self.settings.resident.filter_bytes_max > 0 {
            let filter = self.filter.clone();
            let trouble = "the filter of edges could not be built";
            let keep = move |signal: &Signal| filter.turn(signal);
            self.workers.repeat("guanxi-filter", trouble, Backoff::default(), keep)?;
        }
        let rate = self.settings.audit.scrub_rows_per_second;
        if rate == 0 {
            return Ok(());
        }
        let auditor = self.auditor.clone();
        let trouble = "the scrubber could not go on";
        let scrub = move |_: &Signal| scrubber::turn(&auditor, rate);
        self.workers.repeat("guanxi-scrub", trouble, scrubber::backoff(), scrub)
    }

    fn bench(&self) -> Workbench {
        Workbench {
            store: self.store.clone(),
            log: self.log.clone(),
            clock: self.clock.clone(),
            committer: self.committer.clone(),
            signal: self.signal.clone(),
        }
    }
}

/// The kinds that come ready, where they are missing.
fn create_kinds(committer: &Committer, catalog: &Catalog) -> Result<(), OpenError> {
    let tenant = TenantId::DEFAULT;
    let start = |error: Error| OpenError::Start(error.to_string());
    let missing: Vec<Change> = built_in_kinds()
        .map_err(start)?
        .into_iter()
        .filter(|spec| catalog.find(tenant, spec.name.as_str()).is_none())
        .map(|spec| Change::CreateKind { tenant, spec: Box::new(spec) })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let request = Request::new(tenant, missing);
    let deadline = Instant::now() + FIRST_KINDS_DEADLINE;
    let written = committer.write_blocking(request, deadline).map_err(start)?;
    for answer in written.answers {
        answer.map_err(start)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
