//! The threads of the committer: each takes what waits for its lane, commits it, tries again what
//! may pass, and answers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew;
use guanxi_core::queue::Pending;
use guanxi_model::{Code, Error, Request};

use super::transaction::{self, CommitFailure, SqlResults};
use super::{CommitterShared, SqlWritten, changes_catalog};
use crate::sql::SqlError;

/// Tries of a batch before its requests go one by one, and of a request before its caller is told.
const TRIES_MAX: u32 = 6;
/// A lane whose callers were just answered would take the first of them that comes back alone: it
/// waits so long for three quarters of as many as it had last.
const GATHER_MAX: Duration = Duration::from_micros(300);
/// Pauses between tries.
const PAUSE_FIRST: Duration = Duration::from_millis(8);
const PAUSE_MAX: Duration = Duration::from_millis(256);

type PendingWrite = Pending<SqlWritten>;

/// Serves one lane, or (the number after the last) wide work, until its queue is closed and empty.
pub(super) fn serve(shared: &Arc<CommitterShared>, lane: usize) {
    let queue = &shared.queues[lane];
    let wide = lane == shared.lanes();
    let mut last = 0;
    loop {
        if !wide {
            queue.gather(last * 3 / 4, GATHER_MAX);
        }
        let Some(batch) = queue.take(shared.batch_changes_max) else {
            return;
        };
        crew::turn();
        last = batch.len();
        let _turn = if wide { shared.turns.wide() } else { shared.turns.lane(lane) };
        commit(shared, lane, batch);
    }
}

fn commit(shared: &CommitterShared, lane: usize, batch: VecDeque<PendingWrite>) {
    let (alone, mut together): (Vec<PendingWrite>, Vec<PendingWrite>) =
        batch.into_iter().partition(|waiting| needs_parts(shared, &waiting.request));
    if !together.is_empty() {
        let done = attempt(shared, lane, &mut together);
        match done {
            Ok(results) => {
                for (waiting, result) in together.into_iter().zip(results) {
                    waiting.answer(result);
                }
            }
            Err(CommitFailure::Unknown(error)) => {
                tracing::error!(%error, "a COMMIT was lost");
                for waiting in together {
                    waiting.answer(Err(transaction::unknown()));
                }
            }
            Err(CommitFailure::Nothing(error)) => one_by_one(shared, lane, together, &error),
        }
    }
    for waiting in alone {
        let result = in_parts(shared, lane, &waiting.request, waiting.deadline);
        waiting.answer(result);
    }
}

/// After a batch failed: one request may be what fails it, or be in another's way.
fn one_by_one(shared: &CommitterShared, lane: usize, batch: Vec<PendingWrite>, error: &SqlError) {
    let alone = batch.len() == 1;
    let reached = matches!(error, SqlError::Busy(_) | SqlError::Refused(_));
    for waiting in batch {
        let result = match alone || !reached {
            true => Err(failed(error)),
            false => one(shared, lane, &waiting.request, waiting.deadline),
        };
        waiting.answer(result);
    }
}

/// Tries the batch until it passes. Requests whose deadline is over are answered and left out:
/// nothing of them was done.
fn attempt(
    shared: &CommitterShared,
    lane: usize,
    batch: &mut Vec<PendingWrite>,
) -> Result<SqlResults, CommitFailure> {
    let (mut tries, mut backoff) = (0, Backoff::new(PAUSE_FIRST, PAUSE_MAX));
    loop {
        let requests: Vec<&Request> = batch.iter().map(|waiting| &waiting.request).collect();
        let error = match transaction::run(shared, lane, &requests) {
            Ok(results) => return Ok(results),
            Err(CommitFailure::Nothing(error)) if error.may_pass() => error,
            Err(failure) => return Err(failure),
        };
        tries += 1;
        if tries >= TRIES_MAX || shared.is_closed() {
            return Err(CommitFailure::Nothing(error));
        }
        pause(&mut backoff);
        drop_late(batch);
        if batch.is_empty() {
            return Ok(Vec::new());
        }
    }
}

fn drop_late(batch: &mut Vec<PendingWrite>) {
    let now = Instant::now();
    let mut index = 0;
    while index < batch.len() {
        if batch[index].deadline <= now {
            batch.remove(index).answer(Err(late()));
        } else {
            index += 1;
        }
    }
}

/// One request as a transaction of its own.
fn one(
    shared: &CommitterShared,
    lane: usize,
    request: &Request,
    deadline: Instant,
) -> Result<SqlWritten, Error> {
    let (mut tries, mut backoff) = (0, Backoff::new(PAUSE_FIRST, PAUSE_MAX));
    loop {
        match transaction::run(shared, lane, &[request]) {
            Ok(mut results) => {
                let lost = || Error::new(Code::Internal, "a transaction gave no answer");
                return results.pop().ok_or_else(lost)?;
            }
            Err(CommitFailure::Unknown(error)) => {
                tracing::error!(%error, "a COMMIT was lost");
                return Err(transaction::unknown());
            }
            Err(CommitFailure::Nothing(error)) => {
                tries += 1;
                if tries >= TRIES_MAX || !error.may_pass() || shared.is_closed() {
                    return Err(failed(&error));
                }
            }
        }
        pause(&mut backoff);
        if deadline <= Instant::now() {
            return Err(late());
        }
    }
}

/// Whether a request is more than one transaction: nothing holds its changes together, and it is
/// long or changes the catalog, which decides how the rest of it is done.
fn needs_parts(shared: &CommitterShared, request: &Request) -> bool {
    let free = request.key.is_none() && request.import.is_none();
    let long = request.changes.len() > shared.batch_changes_max;
    free && (long || request.changes.iter().any(changes_catalog))
}

/// A request in consecutive transactions. Each change is decided on its own, so those after a
/// failure say so, and those before it stand.
fn in_parts(
    shared: &CommitterShared,
    lane: usize,
    request: &Request,
    deadline: Instant,
) -> Result<SqlWritten, Error> {
    let mut whole = SqlWritten::default();
    let mut left = request.changes.as_slice();
    while !left.is_empty() {
        let bound = left.len().min(shared.batch_changes_max);
        let plain = left[..bound].iter().take_while(|change| !changes_catalog(change)).count();
        let (part, rest) = left.split_at(plain.max(1));
        let origin = request.origin.clone();
        let part = Request { origin, ..Request::new(request.tenant, part.to_vec()) };
        match one(shared, lane, &part, deadline) {
            Ok(written) => {
                whole.join(written);
            }
            Err(error) if whole.answers.is_empty() => return Err(error),
            Err(error) => {
                let undone = part.changes.len();
                whole.answers.extend(std::iter::repeat_n(Err(error), undone));
                let error = Error::new(Code::Unavailable, "a change before this one failed");
                whole.answers.extend(std::iter::repeat_n(Err(error), rest.len()));
                return Ok(whole);
            }
        }
        left = rest;
    }
    Ok(whole)
}

fn failed(error: &SqlError) -> Error {
    tracing::error!(%error, "a transaction was given up");
    transaction::failed(error)
}

fn late() -> Error {
    let message = "the write was not done before its deadline; nothing of it stands";
    Error::new(Code::DeadlineExceeded, message)
}

fn pause(backoff: &mut Backoff) {
    backoff.failed();
    std::thread::sleep(backoff.left());
}
