//! Moves the outbox into the log: reads the shards that this instance leases, sends each row to
//! its shard's partition, and deletes it once the broker has it for good.
//!
//! At least once: a row is never deleted unsent, and may be sent twice. Two relays at work on one
//! shard are safe. Order is a courtesy; versions are the guarantee. The database is what the whole
//! cluster shares, so its statements here are few and large.

mod outbox;
mod shards;
mod work;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ending;
use super::kafka::KafkaSettings;
use super::leases::Leases;
use super::places::SHARDS;
use super::sql::Database;

/// The group of the leases by which instances share the shards.
pub const LEASE_GROUP: &str = "outbox";

/// What waits in the shards that this instance holds, as it stood some seconds ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayLag {
    /// Counted up to 100,000.
    pub rows: u64,
    pub oldest_ms: u64,
}

#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    bell: Mutex<Bell>,
    rung: Condvar,
    closing: AtomicBool,
    lag: Mutex<RelayLag>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: bool,
}

impl Relay {
    /// Starts the thread. The broker need not be there yet.
    pub fn start(
        database: Arc<Database>,
        settings: KafkaSettings,
        leases: &Leases,
    ) -> io::Result<Relay> {
        let names = (0..SHARDS).map(|shard| shard.to_string()).collect();
        let share = leases.share(LEASE_GROUP, names);
        let shared = Arc::new(Shared {
            bell: Mutex::default(),
            rung: Condvar::new(),
            closing: AtomicBool::new(false),
            lag: Mutex::default(),
        });
        let runs = shared.clone();
        let thread = std::thread::Builder::new()
            .name("guanxi-relay".into())
            .spawn(move || work::Work::new(database, settings, share, runs).run())?;
        Ok(Relay { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Says that something was committed: it is looked for at once.
    pub fn wake(&self) {
        self.shared.ring();
    }

    /// The same, for those who outlive this handle.
    pub fn waker(&self) -> Arc<dyn Fn() + Send + Sync> {
        let shared = self.shared.clone();
        Arc::new(move || shared.ring())
    }

    pub fn lag(&self) -> RelayLag {
        *self.shared.lag.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Ends the thread; what is on its way is answered for, or sent again by another.
    pub fn close(&self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.ring();
        ending::join(&self.thread);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn bell(&self) -> MutexGuard<'_, Bell> {
        self.bell.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn ring(&self) {
        let mut bell = self.bell();
        if !bell.rung {
            bell.rung = true;
            self.rung.notify_all();
        }
    }

    /// Takes the bell's ringing.
    fn answer(&self) -> bool {
        std::mem::take(&mut self.bell().rung)
    }

    /// Waits until it rings, without taking it, or until the time has passed.
    fn wait(&self, time: Duration) {
        let deadline = Instant::now() + time;
        let mut bell = self.bell();
        while !bell.rung {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.rung.wait_timeout(bell, left);
            bell = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    fn set_lag(&self, lag: RelayLag) {
        *self.lag.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = lag;
    }
}
