//! Brings to Redis what was read from the database, behind those who read it, and deletes strings
//! whose counters were committed: a bounded queue, a bounded set and one thread. What finds no room,
//! or no Redis, is dropped; the next reader fills it, and a counter's age is bounded.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use guanxi_core::crew::{self, Crew, Workers};
use guanxi_core::signal::Signal;
use guanxi_model::{KindId, NodeKey, Which};
use parking_lot::Mutex;
use redis::Value;
use rustc_hash::FxHashSet;

use super::packed::{PackedTallies, TallyField};
use super::{TalliesParts, TallyClaim, add, key, life_ms, merging, wall_ms};
use crate::memory::follower::reread;

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
/// How often strings are deleted: one whose counter is raised all the time is filled anew once in
/// this while.
const FORGET_EVERY: Duration = Duration::from_secs(1);
/// Nodes whose strings wait to be deleted: what counters of an instance commit in a second.
const FORGOTTEN_MAX: usize = 65_536;

/// Numbers for a string, and how long it lives then.
#[derive(Debug)]
pub(super) struct TallyFill {
    pub claim: TallyClaim,
    pub fields: Vec<TallyField>,
    pub read_ms: u64,
    pub life_ms: u64,
}

/// A string whose numbers should be read again.
#[derive(Debug)]
pub(super) struct Refresh {
    claim: TallyClaim,
    kinds: Vec<KindId>,
    counters: Vec<KindId>,
}

impl Refresh {
    pub fn of(epoch: u64, node: NodeKey, packed: &PackedTallies) -> Refresh {
        let counts = packed.fields.iter().any(|field| field.value != 0);
        let of = |which| {
            let fields = packed.fields.iter().filter(move |field| field.which == which);
            fields.map(|field| field.kind).collect()
        };
        let claim = TallyClaim { epoch, node, token: packed.token, counts };
        Refresh { claim, kinds: of(Which::Incoming), counters: of(Which::Value) }
    }
}

#[derive(Debug)]
enum FillJob {
    Fill(TallyFill),
    Refresh(Refresh),
}

#[derive(Debug)]
pub(super) struct TallyFiller {
    shared: Arc<TalliesParts>,
    queue: SyncSender<FillJob>,
    /// Nodes that are in the queue to be read again.
    refreshing: Arc<Mutex<FxHashSet<NodeKey>>>,
    /// Nodes whose strings are to be deleted.
    forgotten: Arc<Mutex<FxHashSet<NodeKey>>>,
    workers: Workers,
}

impl TallyFiller {
    pub fn start(crew: &Crew, shared: Arc<TalliesParts>) -> io::Result<TallyFiller> {
        let (queue, jobs) = sync_channel(QUEUE_MAX);
        let (refreshing, forgotten) = (Arc::default(), Arc::default());
        let work = TallyFillerWork {
            shared: shared.clone(),
            jobs,
            refreshing: Arc::clone(&refreshing),
            forgotten: Arc::clone(&forgotten),
        };
        let workers = crew.spawn("guanxi-tally-fill", move |signal| work.run(signal))?;
        Ok(TallyFiller { shared, queue, refreshing, forgotten, workers })
    }

    pub fn fill(&self, fill: TallyFill) {
        self.send(FillJob::Fill(fill));
    }

    pub fn refresh(&self, refresh: Refresh) {
        let node = refresh.claim.node;
        {
            let mut refreshing = self.refreshing.lock();
            if refreshing.len() >= REFRESHING_MAX || !refreshing.insert(node) {
                return;
            }
        }
        if !self.send(FillJob::Refresh(refresh)) {
            self.refreshing.lock().remove(&node);
        }
    }

    /// Deletes the strings of these nodes when it is time.
    pub fn forget(&self, nodes: impl IntoIterator<Item = NodeKey>) {
        let mut forgotten = self.forgotten.lock();
        for node in nodes {
            if forgotten.len() >= FORGOTTEN_MAX {
                add(&self.shared.counts.dropped, 1);
                return;
            }
            forgotten.insert(node);
        }
    }

    fn send(&self, job: FillJob) -> bool {
        let sent = self.queue.try_send(job);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = &sent {
            add(&self.shared.counts.dropped, 1);
        }
        sent.is_ok()
    }

    pub fn close(&self) {
        self.workers.stop();
    }
}

struct TallyFillerWork {
    shared: Arc<TalliesParts>,
    jobs: Receiver<FillJob>,
    refreshing: Arc<Mutex<FxHashSet<NodeKey>>>,
    forgotten: Arc<Mutex<FxHashSet<NodeKey>>>,
}

impl TallyFillerWork {
    fn run(self, signal: &Signal) {
        let mut looked: Option<Instant> = None;
        let mut forgot = Instant::now();
        while !signal.is_stopped() {
            crew::turn();
            if forgot.elapsed() >= FORGET_EVERY {
                forgot = Instant::now();
                self.forget();
            }
            if looked.is_none_or(|at| at.elapsed() >= FOLLOWED_EVERY) {
                looked = Some(Instant::now());
                self.shared.look();
            }
            let first = match self.jobs.recv_timeout(LOOK_EVERY) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let (mut fills, mut refreshes) = (Vec::new(), Vec::new());
            for job in std::iter::once(first).chain(self.jobs.try_iter()).take(AT_ONCE_MAX) {
                match job {
                    FillJob::Fill(fill) => fills.push(fill),
                    FillJob::Refresh(refresh) => refreshes.push(refresh),
                }
            }
            fills.extend(self.read_again(&refreshes));
            self.write(&fills);
            let mut refreshing = self.refreshing.lock();
            for refresh in &refreshes {
                refreshing.remove(&refresh.claim.node);
            }
        }
        self.forget();
    }

    fn forget(&self) {
        let nodes: Vec<NodeKey> = std::mem::take(&mut *self.forgotten.lock()).into_iter().collect();
        let TalliesParts { tier, plans, counts, .. } = &*self.shared;
        let (Some(epoch), Some(mut link)) = (plans.epoch(), tier.link()) else {
            return add(&counts.dropped, nodes.len());
        };
        for nodes in nodes.chunks(AT_ONCE_MAX) {
            let mut unlink = redis::cmd("UNLINK");
            for node in nodes {
                unlink.arg(key(epoch, node));
            }
            if tier.wait(link.ask(&unlink, LIMIT)).is_err() {
                add(&counts.dropped, nodes.len());
            }
        }
    }

    fn read_again(&self, refreshes: &[Refresh]) -> Vec<TallyFill> {
        let wanted = |kinds: fn(&Refresh) -> &[KindId]| -> Vec<(NodeKey, KindId)> {
            let of = |refresh| kinds(refresh).iter().map(|kind| (refresh.claim.node, *kind));
            refreshes.iter().flat_map(of).collect()
        };
        let (database, read_ms) = (&self.shared.database, wall_ms());
        let read = reread::incoming(database, &wanted(|refresh| &refresh.kinds)).and_then(|read| {
            reread::counters(database, &wanted(|refresh| &refresh.counters), read_ms, read)
        });
        let read = match read {
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
            TallyFill { claim: *claim, fields, read_ms, life_ms }
        };
        refreshes.iter().map(fill).collect()
    }

    fn write(&self, fills: &[TallyFill]) {
        let TalliesParts { tier, merge, counts, .. } = &*self.shared;
        let calls: Vec<_> = fills
            .iter()
            .map(|TallyFill { claim, fields, read_ms, life_ms }| {
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
