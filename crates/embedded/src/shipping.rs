//! What standbys have of the log: their acknowledgements, and, where some are required, whether a
//! batch may be shown yet. A standby is a directory: it counts once, whoever runs on it and however
//! often that was started. How frames travel is the protocols' affair.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guanxi_model::{Code, Error, Position};
use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

/// Standbys that are remembered; beyond, the one that was silent longest is forgotten.
const STANDBYS_MAX: usize = 16;
/// A standby that was silent for this long is gone: it acknowledges every few seconds.
const STANDBY_GONE_AFTER: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
pub struct ShippingSettings {
    /// How many standbys must have a batch on disk before anybody sees it; 0 asks for none.
    pub required: usize,
    /// How long callers wait for that.
    pub timeout: Duration,
}

impl Default for ShippingSettings {
    fn default() -> ShippingSettings {
        ShippingSettings { required: 0, timeout: Duration::from_secs(5) }
    }
}

/// A standby as the instance that it follows sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyStatus {
    /// Of its directory.
    pub id: u64,
    /// It has everything up to here on disk.
    pub position: Position,
    /// How long ago it acknowledged last.
    pub silent_ms: u64,
}

#[derive(Debug)]
pub struct Shipping {
    settings: ShippingSettings,
    durable: watch::Sender<Position>,
    state: Mutex<StandbyTable>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct StandbyTable {
    standbys: BTreeMap<u64, StandbyProgress>,
    /// What as many standbys as are required have on disk. It never goes back.
    confirmed: Position,
    /// Whether batches wait for their confirmation already.
    demanded: bool,
    /// Nothing is shown until this is confirmed.
    held_until: Position,
    /// A batch that ends there has waited past the timeout, and still waits.
    stalled_at: Option<Position>,
    stopped: bool,
}

#[derive(Debug, Clone, Copy)]
struct StandbyProgress {
    position: Position,
    heard: Instant,
}

/// How a batch's wait for its confirmation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confirmation {
    Confirmed,
    /// Not within the time that callers wait.
    Late,
    /// The engine stops; nobody may see the batch.
    Stopped,
}

impl Shipping {
    pub fn new(settings: ShippingSettings, durable: Position) -> Shipping {
        Shipping {
            settings,
            durable: watch::Sender::new(durable),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// The log's end moved: whoever waits for frames looks.
    pub fn appended(&self, last: Position) {
        self.durable.send_replace(last);
    }

    pub fn durable(&self) -> watch::Receiver<Position> {
        self.durable.subscribe()
    }

    /// The directory of this id has everything up to the position on disk. It takes the place of
    /// what the same directory said before.
    pub fn acknowledge(&self, id: u64, position: Position) {
        let heard = Instant::now();
        let mut state = self.state.lock();
        state.standbys.retain(|_, standby| heard - standby.heard < STANDBY_GONE_AFTER);
        state.standbys.insert(id, StandbyProgress { position, heard });
        if state.standbys.len() > STANDBYS_MAX {
            let quietest = state.standbys.iter().min_by_key(|(_, standby)| standby.heard);
            if let Some(quietest) = quietest.map(|(id, _)| *id) {
                state.standbys.remove(&quietest);
            }
        }
        let Some(nth) = self.settings.required.checked_sub(1) else {
            return;
        };
        let mut positions: Vec<_> = state.standbys.values().map(|s| s.position).collect();
        positions.sort_unstable_by(|a, b| b.cmp(a));
        let confirmed = positions.get(nth).copied().unwrap_or_default();
        if confirmed > state.confirmed {
            let was_held = state.is_held();
            state.confirmed = confirmed;
            if was_held && !state.is_held() {
                tracing::info!(position = confirmed.0, "confirmed by a standby; all is shown now");
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// From here on batches wait for their confirmation, and nothing is shown until the log as it
    /// stands is confirmed: before a stop, some of it may not have been.
    pub fn demand(&self, durable_now: impl FnOnce() -> Position) {
        if self.settings.required == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.demanded = true;
        // After the line above: what is appended later finds the demand standing.
        state.held_until = durable_now();
        tracing::warn!(
            position = state.held_until.0,
            "nothing is shown until a standby has the log up to this position"
        );
    }

    /// As `demand` for one that takes writes from now on: what it has shown stays shown.
    pub fn demand_for_new(&self) {
        self.state.lock().demanded = self.settings.required > 0;
    }

    /// Waits until the position is confirmed, for as long as callers do.
    pub fn wait(&self, position: Position) -> Confirmation {
        if self.settings.required == 0 {
            return Confirmation::Confirmed;
        }
        let until = Instant::now() + self.settings.timeout;
        let mut state = self.state.lock();
        loop {
            if !state.demanded || state.confirmed >= position {
                state.stalled_at = None;
                return Confirmation::Confirmed;
            }
            if state.stopped {
                return Confirmation::Stopped;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if state.stalled_at.is_none() {
                    tracing::error!(
                        position = position.0,
                        "not enough standbys have confirmed in time; writes are refused until \
                         they do"
                    );
                }
                state.stalled_at = Some(position);
                return Confirmation::Late;
            }
            self.changed.wait_for(&mut state, left);
        }
    }

    /// Why nothing may be read.
    pub fn refuse_held(&self) -> Result<(), Error> {
        if self.settings.required == 0 || !self.state.lock().is_held() {
            return Ok(());
        }
        Err(Error::new(
            Code::Unavailable,
            "no standby has confirmed yet what this service had when it started \
             (standby.required); start the standby, or promote it if this was replaced",
        ))
    }

    /// Refuses writes at a moment at which they are not confirmed.
    pub fn refuse_stalled(&self) -> Result<(), Error> {
        let Some(trouble) = self.trouble() else {
            return Ok(());
        };
        let message = format!("{trouble}; nothing was done, try again when they are back");
        Err(Error::new(Code::Unavailable, message))
    }

    /// Why no write is taken at the moment.
    pub fn trouble(&self) -> Option<String> {
        let required = self.settings.required;
        let state = self.state.lock();
        let position = state.stalled_at.filter(|_| required > 0)?;
        let confirm = state.standbys.values().filter(|standby| standby.position >= position);
        Some(format!(
            "{} of the {required} standbys that standby.required asks for confirm writes at the \
             moment",
            confirm.count()
        ))
    }

    /// Ends every wait.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }

    pub fn standbys(&self) -> Vec<StandbyStatus> {
        let state = self.state.lock();
        let present = state.standbys.iter().map(|(id, standby)| StandbyStatus {
            id: *id,
            position: standby.position,
            silent_ms: standby.heard.elapsed().as_millis() as u64,
        });
        let gone_ms = STANDBY_GONE_AFTER.as_millis() as u64;
        present.filter(|standby| standby.silent_ms < gone_ms).collect()
    }
}

impl StandbyTable {
    fn is_held(&self) -> bool {
        self.demanded && self.confirmed < self.held_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requiring(required: usize) -> Shipping {
        let timeout = Duration::from_millis(20);
        Shipping::new(ShippingSettings { required, timeout }, Position(10))
    }

    #[test]
    fn a_batch_waits_for_as_many_standbys_as_are_required() {
        let shipping = requiring(2);
        assert_eq!(shipping.wait(Position(10)), Confirmation::Confirmed, "not demanded yet");
        shipping.demand_for_new();
        shipping.acknowledge(1, Position(12));
        assert_eq!(shipping.wait(Position(11)), Confirmation::Late);
        shipping.acknowledge(1, Position(13));
        assert_eq!(shipping.wait(Position(11)), Confirmation::Late, "the same one again");
        let refused = shipping.refuse_stalled().unwrap_err().message;
        assert!(refused.starts_with("1 of the 2 standbys"), "{refused}");
        shipping.acknowledge(2, Position(11));
        assert_eq!(shipping.wait(Position(11)), Confirmation::Confirmed);
        assert!(shipping.refuse_stalled().is_ok() && shipping.trouble().is_none());
        assert_eq!(shipping.wait(Position(12)), Confirmation::Late, "only one has it");
        shipping.stop();
        assert_eq!(shipping.wait(Position(12)), Confirmation::Stopped);
    }

    #[test]
    fn what_stood_at_the_start_is_held_until_it_is_confirmed() {
        let shipping = requiring(1);
        shipping.demand(|| Position(10));
        assert!(shipping.refuse_held().is_err());
        shipping.acknowledge(1, Position(9));
        assert!(shipping.refuse_held().is_err());
        shipping.acknowledge(1, Position(10));
        assert!(shipping.refuse_held().is_ok());
        // A standby that begins anew takes nothing back.
        shipping.acknowledge(1, Position(3));
        assert!(shipping.refuse_held().is_ok());
    }

    #[test]
    fn without_a_requirement_nothing_waits() {
        let shipping = requiring(0);
        shipping.demand(|| Position(10));
        assert!(shipping.refuse_held().is_ok());
        assert_eq!(shipping.wait(Position(99)), Confirmation::Confirmed);
    }

    #[test]
    fn standbys_are_bounded() {
        let shipping = requiring(0);
        for id in 0..STANDBYS_MAX as u64 {
            shipping.acknowledge(id, Position(1));
        }
        shipping.acknowledge(0, Position(2));
        shipping.acknowledge(99, Position(1));
        let known: Vec<u64> = shipping.standbys().iter().map(|standby| standby.id).collect();
        assert_eq!(known.len(), STANDBYS_MAX);
        assert!(known.contains(&0) && known.contains(&99));
        assert!(!known.contains(&1), "it was silent longest");
    }
}
