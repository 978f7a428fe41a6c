//! Brings to Redis what was read from the database, behind those who read it: a bounded queue and one
//! thread. What finds no room, or no Redis, is dropped; the next reader fills it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use guanxi_model::{KindId, NodeKey, Which};
use redis::Value;
use rustc_hash::FxHashSet;

use super::packed::{Field, Packed};
use super::{Claim, Shared, add, key, life_ms, merging, wall_ms};
use crate::cluster::ending;
use crate::cluster::memory::follower::reread;

/// Nodes that wait to be filled: some hundred bytes each.
const QUEUE_MAX: usize = 8_192;
/// Strings that are written at once.
const AT_ONCE_MAX: usize = 256;
/// How long Redis may take for them.
const LIMIT: Duration = Duration::from_secs(1);
/// How often an idle filler looks whether it should end.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often it looks whether there is a follower.
const FOLLOWED_EVERY: Duration = Duration::from_secs(1);
/// Nodes that are being read again at once.
const REFRESHING_MAX: usize = 1_024;

/// Numbers for a string, and how long it lives then.
#[derive(Debug)]
pub(super) struct Fill {
    pub claim: Claim,
    pub fields: Vec<Field>,
    pub read_ms: u64,
    pub life_ms: u64,
}

/// A string whose numbers should be read again.
#[derive(Debug)]
pub(super) struct Refresh {
    claim: Claim,
    kinds: Vec<KindId>,
}

impl Refresh {
    pub fn of(epoch: u64, node: NodeKey, packed: &Packed) -> Refresh {
        let counts = packed.fields.iter().any(|field| field.value != 0);
        let incoming = packed.fields.iter().filter(|field| field.which == Which::Incoming);
        let kinds = incoming.map(|field| field.kind).collect();
        Refresh { claim: Claim { epoch, node, token: packed.token, counts }, kinds }
    }
}

#[derive(Debug)]
enum Job {
    Fill(Fill),
    Refresh(Refresh),
}

#[derive(Debug)]
pub(super) struct Filler {
    shared: Arc<Shared>,
    queue: SyncSender<Job>,
    /// Nodes that are in the queue to be read again.
    refreshing: Arc<Mutex<FxHashSet<NodeKey>>>,
    closed: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Filler {
    pub fn start(shared: Arc<Shared>) -> io::Result<Filler> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let (refreshing, closed) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let work = Work {
            shared: shared.clone(),
            jobs,
            refreshing: Arc::clone(&refreshing),
            closed: closed.clone(),
        };
        let thread = std::thread::Builder::new().name("guanxi-tally-fill".into());
        let thread = thread.spawn(move || work.run())?;
        Ok(Filler { shared, queue, refreshing, closed, thread: Mutex::new(Some(thread)) })
    }

    pub fn fill(&self, fill: Fill) {
        self.send(Job::Fill(fill));
    }

    pub fn refresh(&self, refresh: Refresh) {
        let node = refresh.claim.node;
        {
            let mut refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
            if refreshing.len() >= REFRESHING_MAX || !refreshing.insert(node) {
                return;
            }
        }
        if !self.send(Job::Refresh(refresh)) {
            self.refreshing.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
        }
    }

    fn send(&self, job: Job) -> bool {
        let sent = self.queue.try_send(job);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = &sent {
            add(&self.shared.counts.dropped, 1);
        }
        sent.is_ok()
    }

    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        ending::join(&self.thread);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.close();
    }
}

struct Work {
    shared: Arc<Shared>,
    jobs: Receiver<Job>,
    refreshing: Arc<Mutex<FxHashSet<NodeKey>>>,
    closed: Arc<AtomicBool>,
}

impl Work {
    fn run(self) {
        let mut looked: Option<Instant> = None;
        while !self.closed.load(Ordering::Relaxed) {
            if looked.is_none_or(|at| at.elapsed() >= FOLLOWED_EVERY) {
                looked = Some(Instant::now());
                self.shared.look();
            }
            let first = match self.jobs.recv_timeout(LOOK_EVERY) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut fills, mut refreshes) = (Vec::new(), Vec::new());
            for job in std::iter::once(first).chain(self.jobs.try_iter()).take(AT_ONCE_MAX) {
                match job {
                    Job::Fill(fill) => fills.push(fill),
                    Job::Refresh(refresh) => refreshes.push(refresh),
                }
            }
            fills.extend(self.read_again(&refreshes));
            self.write(&fills);
            let mut refreshing = self.refreshing.lock().unwrap_or_else(PoisonError::into_inner);
            for refresh in &refreshes {
                refreshing.remove(&refresh.claim.node);
            }
        }
    }

    fn read_again(&self, refreshes: &[Refresh]) -> Vec<Fill> {
        let wanted = refreshes
            .iter()
            .flat_map(|refresh| refresh.kinds.iter().map(|kind| (refresh.claim.node, *kind)));
        let wanted: Vec<(NodeKey, KindId)> = wanted.collect();
        let read_ms = wall_ms();
        let read = match reread::incoming(&self.shared.database, &wanted) {
            Ok(read) => read,
            Err(error) => {
                tracing::debug!(%error, "tallies could not be read again");
                return Vec::new();
            }
        };
        add(&self.shared.counts.refreshes, refreshes.len());
        let fill = |Refresh { claim, .. }: &Refresh| {
            let fields = read.get(&claim.node).cloned().unwrap_or_default();
            let life_ms = life_ms(claim, &fields);
            Fill { claim: *claim, fields, read_ms, life_ms }
        };
        refreshes.iter().map(fill).collect()
    }

    fn write(&self, fills: &[Fill]) {
        let Shared { tier, merge, counts, .. } = &*self.shared;
        let calls: Vec<_> = fills
            .iter()
            .map(|Fill { claim, fields, read_ms, life_ms }| {
                let key = key(claim.epoch, &claim.node);
                merging(key, claim.token, Some(*read_ms), fields, *life_ms)
            })
            .collect();
        let answers = match tier.link() {
            Some(mut link) => tier.wait(link.call_all(merge, &calls, LIMIT)).unwrap_or_default(),
            None => Vec::new(),
        };
        let filled = answers.iter().filter(|answer| **answer == Value::Int(1)).count();
        add(&counts.fills, filled);
        add(&counts.dropped, fills.len() - filled);
    }
}
