//! Holds: which part of the log somebody still reads, a backup or a standby, so that trimming
//! leaves it alone.

use std::sync::Arc;

use guanxi_model::{Code, Error, Position};
use parking_lot::Mutex;

use crate::log::{Log, LogError};

/// How many may hold the log at once: each of them walks over the whole store or log.
const HOLDS_MAX: usize = 16;

/// All holds on one log.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    held: Mutex<HoldTable>,
}

#[derive(Debug, Default)]
struct HoldTable {
    given: u64,
    from: Vec<(u64, Position)>,
}

/// While it lives, the log keeps everything from a position on.
#[derive(Debug)]
pub(crate) struct Hold {
    holds: Arc<Holds>,
    number: u64,
}

impl Holds {
    /// Holds the log from this position on; `position_expired` when it no longer has it.
    pub fn take(self: &Arc<Self>, log: &dyn Log, from: Position) -> Result<Hold, Error> {
        // Trimming holds the same lock, so what is found here stays.
        let mut held = self.held.lock();
        if from < log.first() {
            return Err(Error::new(
                Code::PositionExpired,
                format!(
                    "position {} is no longer in the log, which begins at {}",
                    from.0,
                    log.first().0
                ),
            ));
        }
        if held.from.len() >= HOLDS_MAX {
            let text = format!("{HOLDS_MAX} copies of this service are being made already");
            return Err(Error::new(Code::Overloaded, text));
        }
        held.given += 1;
        let number = held.given;
        held.from.push((number, from));
        Ok(Hold { holds: self.clone(), number })
    }

    /// Trims the log up to this position, or up to what is held. Whoever holds more than what is from
    /// `held_from` on has taken too long, and holds nothing any more.
    pub fn trim(
        &self,
        log: &dyn Log,
        keep_from: Position,
        held_from: Position,
    ) -> Result<(), LogError> {
        let mut held = self.held.lock();
        let before = held.from.len();
        held.from.retain(|(_, from)| *from >= held_from);
        let released = before - held.from.len();
        if released > 0 {
            tracing::warn!(
                copies = released,
                from = held_from.0,
                "copies that take too long no longer keep the log from being trimmed"
            );
        }
        let oldest = held.from.iter().map(|(_, from)| *from).min();
        log.trim(oldest.map_or(keep_from, |oldest| oldest.min(keep_from)))
    }
}

impl Hold {
    /// `position_expired` once it holds nothing any more.
    pub fn check(&self) -> Result<(), Error> {
        match self.holds.held.lock().from.iter().any(|(number, _)| *number == self.number) {
            true => Ok(()),
            false => Err(Error::new(
                Code::PositionExpired,
                "the copy took so long that the log no longer has what it lacks; take it again, by a \
                 faster way",
            )),
        }
    }

    /// Lets go of what is before this position.
    pub fn advance(&self, from: Position) {
        let mut held = self.holds.held.lock();
        if let Some((_, standing)) = held.from.iter_mut().find(|(number, _)| *number == self.number)
        {
            *standing = from.max(*standing);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.holds.held.lock().from.retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Frame, MemoryLog};

    #[test]
    fn what_is_held_is_not_trimmed() {
        let log = MemoryLog::default();
        for first in 1..=9 {
            let (epoch, records) = (log.epoch(), vec![vec![0]]);
            log.append(&Frame { epoch, first: Position(first), commit_ms: 1, records }).unwrap();
        }
        let holds = Arc::new(Holds::default());
        let hold = holds.take(&log, Position(3)).unwrap();
        let other = holds.take(&log, Position(5)).unwrap();
        let trimmed_to = |keep_from| {
            holds.trim(&log, Position(keep_from), Position(0)).unwrap();
            log.first().0
        };
        assert_eq!(trimmed_to(2), 2);
        assert_eq!(trimmed_to(9), 3);
        hold.advance(Position(4));
        hold.advance(Position(1));
        assert_eq!(trimmed_to(9), 4, "a hold never goes back");
        drop(hold);
        assert_eq!(trimmed_to(9), 5);
        drop(other);
        assert_eq!(trimmed_to(9), 9);
        let error = holds.take(&log, Position(8)).unwrap_err();
        assert_eq!(error.code, Code::PositionExpired);
    }

    #[test]
    fn whoever_holds_too_much_holds_nothing_any_more() {
        let log = MemoryLog::default();
        for first in 1..=9 {
            let (epoch, records) = (log.epoch(), vec![vec![0]]);
            log.append(&Frame { epoch, first: Position(first), commit_ms: 1, records }).unwrap();
        }
        let holds = Arc::new(Holds::default());
        let [slow, quick] = [2, 5].map(|from| holds.take(&log, Position(from)).unwrap());
        holds.trim(&log, Position(9), Position(2)).unwrap();
        assert_eq!(log.first(), Position(2));
        holds.trim(&log, Position(9), Position(3)).unwrap();
        assert_eq!(log.first(), Position(5));
        assert_eq!(slow.check().unwrap_err().code, Code::PositionExpired);
        assert!(quick.check().is_ok());
        slow.advance(Position(6));
        drop(slow);
        holds.trim(&log, Position(9), Position(0)).unwrap();
        assert_eq!(log.first(), Position(5), "the other holds on");
    }

    #[test]
    fn there_is_a_bound() {
        let (log, holds) = (MemoryLog::default(), Arc::new(Holds::default()));
        let held: Vec<Hold> =
            (0..HOLDS_MAX).map(|_| holds.take(&log, Position(1)).unwrap()).collect();
        assert_eq!(holds.take(&log, Position(1)).unwrap_err().code, Code::Overloaded);
        drop(held);
        assert!(holds.take(&log, Position(1)).is_ok());
    }
}
