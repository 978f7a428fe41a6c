//! Who may commit now: every lane beside the others, or wide work alone. Both get their turn,
//! however much of the other waits. It only keeps transactions of one instance out of each other's
//! way; what must never meet is kept apart by the heads' locks.

use parking_lot::{Condvar, Mutex};

#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<TurnsState>,
    changed: Condvar,
}

#[derive(Debug)]
struct TurnsState {
    lanes: Vec<LaneTurn>,
    /// Wide work waits or runs: no lane begins.
    wide: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct LaneTurn {
    running: bool,
    waiting: bool,
    /// It waited while wide work ran, and goes before the next.
    owed: bool,
}

/// A turn, over when it is dropped.
#[derive(Debug)]
pub(super) struct CommitTurn<'a> {
    turns: &'a Turns,
    /// None: wide.
    lane: Option<usize>,
}

impl Turns {
    pub fn new(lanes: usize) -> Turns {
        let state = TurnsState { lanes: vec![LaneTurn::default(); lanes], wide: false };
        Turns { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub fn lane(&self, lane: usize) -> CommitTurn<'_> {
        let mut state = self.state.lock();
        state.lanes[lane].waiting = true;
        while state.wide {
            self.changed.wait(&mut state);
        }
        state.lanes[lane] = LaneTurn { running: true, waiting: false, owed: false };
        drop(state);
        self.changed.notify_all();
        CommitTurn { turns: self, lane: Some(lane) }
    }

    /// One thread does the wide work.
    pub fn wide(&self) -> CommitTurn<'_> {
        let mut state = self.state.lock();
        while state.lanes.iter().any(|lane| lane.owed) {
            self.changed.wait(&mut state);
        }
        state.wide = true;
        while state.lanes.iter().any(|lane| lane.running) {
            self.changed.wait(&mut state);
        }
        CommitTurn { turns: self, lane: None }
    }
}

impl Drop for CommitTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        match self.lane {
            Some(lane) => state.lanes[lane].running = false,
            None => {
                state.wide = false;
                for lane in &mut state.lanes {
                    lane.owed = lane.waiting;
                }
            }
        }
        drop(state);
        self.turns.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const TURNS_EACH: usize = 200;

    #[test]
    fn wide_work_is_alone_and_neither_side_starves() {
        let turns = Arc::new(Turns::new(2));
        let (inside, wide_inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut threads = Vec::new();
        for lane in 0..2 {
            let (turns, inside, wide) = (turns.clone(), inside.clone(), wide_inside.clone());
            threads.push(std::thread::spawn(move || {
                for _ in 0..TURNS_EACH {
                    let _turn = turns.lane(lane);
                    inside.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(wide.load(Ordering::SeqCst), 0, "a lane beside wide work");
                    inside.fetch_sub(1, Ordering::SeqCst);
                }
            }));
        }
        threads.push(std::thread::spawn(move || {
            for _ in 0..TURNS_EACH {
                let _turn = turns.wide();
                wide_inside.fetch_add(1, Ordering::SeqCst);
                assert_eq!(inside.load(Ordering::SeqCst), 0, "wide work beside a lane");
                wide_inside.fetch_sub(1, Ordering::SeqCst);
            }
        }));
        for thread in threads {
            thread.join().unwrap();
        }
    }
}
