//! The switch at the end of a move: the service's writes pause, the last of them are carried over, and
//! the service confirms that it takes no more. Tried again where it cannot be done in time.

use std::time::{Duration, Instant};

use guanxi_model::Position;

use super::service::{PausedService, ServiceStanding};
use super::{Mover, failure};
use crate::failure::Failure;

/// How long writes may pause, and how much of it is kept for the end.
const PAUSE_MAX: Duration = Duration::from_millis(guanxi_api::moving::PAUSE_MS_MAX);
const PAUSE_RESERVE: Duration = Duration::from_millis(1_500);
/// How often the switch is tried before somebody has to see to it.
const SWITCH_TRIES_MAX: u32 = 10;
/// How long the command waits for the service to let writes pause again.
const REST_MAX: Duration = Duration::from_secs(10);
/// How often the service is asked whether it has moved, when its answer was lost.
const ASKED_TRIES_MAX: u32 = 10;
const ASKED_PAUSE: Duration = Duration::from_millis(500);

impl Mover<'_> {
    /// Lets writes pause, takes over the last of them, and ends them there for good.
    pub(super) fn switch(&mut self) -> Result<(), Failure> {
        for tried in 1..=SWITCH_TRIES_MAX {
            self.figures.tries = tried;
            self.rest()?;
            self.tail()?;
            let begun = Instant::now();
            let switched = self.try_switch(begun);
            self.figures.pause = self.figures.pause.max(begun.elapsed().min(PAUSE_MAX));
            if switched? {
                return Ok(());
            }
        }
        let seconds = PAUSE_MAX.as_secs();
        let message = format!(
            "in {SWITCH_TRIES_MAX} tries the last writes could not be carried over within \
             {seconds} s; the service goes on as before"
        );
        Err(Failure::failed(message).next("write less for a while, and run it again"))
    }

    /// Lets writes be taken for a while after a pause.
    fn rest(&self) -> Result<(), Failure> {
        let rest = self.service().go_on()?;
        if rest > REST_MAX {
            let message = format!(
                "writes of {} have paused for as long as they may within an hour; the service goes \
                 on as before",
                self.context.client.server()
            );
            let minutes = rest.as_secs().div_ceil(60);
            return Err(Failure::found(message).next(format!(
                "see why the last writes took so long to carry over, and run the same command \
                 again in {minutes} min: it goes on"
            )));
        }
        std::thread::sleep(rest);
        Ok(())
    }

    /// Whether it was done in time; where not, writes are taken again.
    fn try_switch(&mut self, begun: Instant) -> Result<bool, Failure> {
        let PausedService { position } = self.service().pause()?;
        let drained = self.drain(position, begun + PAUSE_MAX - PAUSE_RESERVE);
        let ready = drained.and_then(|drained| {
            if drained {
                self.tables.raise_floor().map_err(failure)?;
            }
            Ok(drained)
        });
        if !matches!(ready, Ok(true)) {
            // It ends by itself where this is not heard.
            let _ends_by_itself = self.service().let_go();
            return ready;
        }
        let confirmed = self.service().confirm(position, self.now_at.as_deref());
        let moved = match confirmed {
            Ok(()) => true,
            Err(failure) => self.has_moved(position, failure)?,
        };
        if moved {
            self.tables.finish().map_err(failure)?;
        }
        Ok(moved)
    }

    fn drain(&mut self, position: Position, until: Instant) -> Result<bool, Failure> {
        loop {
            self.follow(Some(until))?;
            if self.tables.applied().position >= position {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
        }
    }

    /// After a confirmation that was refused or lost: whether the service has moved all the same.
    fn has_moved(&self, position: Position, failure: Failure) -> Result<bool, Failure> {
        for _ in 0..ASKED_TRIES_MAX {
            match self.service().state() {
                Ok(ServiceStanding::Moved { id, position: at, .. }) => {
                    return Ok(id == self.tables.id() && at == position);
                }
                Ok(ServiceStanding::Here) => return Ok(false),
                Err(_) => std::thread::sleep(ASKED_PAUSE),
            }
        }
        Err(failure.next(
            "whether the service has moved is not known; run the same command again when it can be \
             reached",
        ))
    }
}
