//! Those who ask: callers, the sweeper and the jobs. What each is told is held against what the
//! reference decided.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use guanxi_core::queue::{Pending, Ticket};
use guanxi_model::idempotency::Answers;
use guanxi_model::{Error, Outcome, Position, Request};
use tokio::sync::oneshot::error::TryRecvError;

use super::Life;
use crate::commit::Written;
use crate::simulation::compare::same;
use crate::simulation::reference::Expected;
use crate::simulation::requests;

/// Somebody who waits for an answer.
pub(super) struct SimulatedCaller {
    ticket: Ticket<Written>,
    chore: bool,
    pub(super) withdrawn: bool,
    due: Option<DueAnswer>,
}

/// What the caller of a decided request is to be told.
struct DueAnswer {
    answers: Result<Answers, Error>,
    /// The first position of its batch; none when that left no record.
    first: Option<Position>,
    last: Position,
}

impl Life {
    pub(super) fn ask_anything(&self) {
        let tip = self.reference.borrow().tip();
        let request = self.author.borrow_mut().request(&tip.rows, self.now());
        match request {
            Ok(request) => self.ask(request, false),
            Err(error) => self.breaks(error.to_string()),
        }
    }

    /// The sweeper and the jobs' thread act on what readers see, one step at a time.
    pub(super) fn ask_chore(&self) {
        if self.chore_waits.get() {
            return;
        }
        let seen = self.reference.borrow().at(self.visible.get());
        let edges_max = 1 + self.roll(6) as usize;
        let chore = seen.and_then(|seen| requests::chore(&seen.rows, self.now(), edges_max));
        if let Some(request) = chore {
            self.ask(request, true);
        }
    }

    pub(super) fn ask(&self, request: Request, chore: bool) {
        // Far away: nothing here takes real time.
        let deadline = Instant::now() + Duration::from_secs(3_600);
        match self.shared.push(request, deadline) {
            Ok(ticket) => {
                self.chore_waits.set(self.chore_waits.get() || chore);
                self.queued.borrow_mut().push_back(SimulatedCaller {
                    ticket,
                    chore,
                    withdrawn: false,
                    due: None,
                });
            }
            Err(error) if error.outcome == Outcome::None => self.deeds.borrow_mut().refused += 1,
            Err(error) => self.breaks(format!("an unqueued request has an outcome: {error}")),
        }
    }

    /// A caller's deadline passes. Chores have none.
    pub(super) fn withdraw(&self) {
        let mut queued = self.queued.borrow_mut();
        let mut taken = self.taken.borrow_mut();
        let place = self.roll(1 + queued.len() as u32 + taken.len() as u32) as usize;
        let in_queue = queued.len();
        if let Some(caller) = queued.get_mut(place) {
            if caller.chore || caller.withdrawn {
                return;
            }
            caller.withdrawn = true;
            if caller.ticket.withdraw().outcome != Outcome::None {
                self.breaks("a request that waits was withdrawn with an unknown outcome".into());
            }
        } else if taken.get(place - in_queue).is_some_and(|caller| !caller.chore) {
            let caller = taken.swap_remove(place - in_queue);
            if caller.ticket.withdraw().outcome != Outcome::Unknown {
                self.breaks("a request was withdrawn after it was taken".into());
            }
        }
    }

    /// The callers of what was taken from the queue.
    pub(super) fn callers_of(&self, waiting: &VecDeque<Pending<Written>>) -> Vec<SimulatedCaller> {
        let mut queued = self.queued.borrow_mut();
        let mut callers = Vec::with_capacity(waiting.len());
        while callers.len() < waiting.len() {
            match queued.pop_front() {
                Some(caller) if caller.withdrawn => {}
                Some(caller) => callers.push(caller),
                None => {
                    self.breaks("more was taken from the queue than waited there".into());
                    break;
                }
            }
        }
        callers
    }

    /// Hears what callers are told. Only the store's stage may tell of a success, and only while
    /// nothing has failed.
    pub(super) fn collect(&self, may_succeed: bool) {
        let mut taken = self.taken.borrow_mut();
        let mut waiting = Vec::with_capacity(taken.len());
        for mut caller in taken.drain(..) {
            match caller.ticket.reply.try_recv() {
                Err(TryRecvError::Empty) => waiting.push(caller),
                Err(TryRecvError::Closed) => self.breaks("a caller was never answered".into()),
                Ok(reply) => {
                    self.chore_waits.set(self.chore_waits.get() && !caller.chore);
                    self.check(self.hear(&reply, caller.due.as_ref(), may_succeed));
                }
            }
        }
        *taken = waiting;
    }

    fn hear(
        &self,
        reply: &Result<Written, Error>,
        due: Option<&DueAnswer>,
        may_succeed: bool,
    ) -> Result<(), String> {
        let mut deeds = self.deeds.borrow_mut();
        match reply {
            Ok(written) => {
                deeds.acknowledged += 1;
                let Some(due) = due else {
                    return Err("a request succeeded that was not decided".into());
                };
                if !may_succeed {
                    return Err("a write succeeded before its time or after a failure".into());
                }
                if self.visible.get() < due.last {
                    return Err(format!(
                        "position {} was acknowledged, but readers see {}",
                        due.last.0,
                        self.visible.get().0
                    ));
                }
                same(|| "token".into(), &written.token.position, &due.last)?;
                same(|| "answers".into(), &Ok(written.answers.clone()), &due.answers)?;
                self.reference.borrow_mut().show(due.last);
            }
            // Refused by a rule, and said so when everything before it stood.
            Err(error) if due.is_some_and(|due| due.answers.as_ref() == Err(error)) => {
                deeds.refused += 1;
            }
            Err(error) if self.shared.refusing.get().is_none() => {
                return Err(format!("nothing had failed, but a caller was told: {error}"));
            }
            Err(error) if error.outcome == Outcome::None => {
                deeds.refused += 1;
                if let Some(first) = due.and_then(|due| due.first) {
                    self.reference.borrow_mut().refuse(first);
                }
            }
            Err(_) => deeds.unknown += 1,
        }
        Ok(())
    }
}

/// Notes what the callers of a decided batch are to be told.
pub(super) fn note_due(callers: &mut [SimulatedCaller], expected: Expected) {
    let first = expected.frame.as_ref().map(|frame| frame.first);
    let last = expected.applied.position;
    for (caller, answers) in callers.iter_mut().zip(expected.answers) {
        caller.due = Some(DueAnswer { answers, first, last });
    }
}
