//! Histories for the suite: batches that the real decider decides on a store of its own and on a
//! virtual clock, from a seed or from a script. What they must lead to is `reference`'s.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_core::clock::{Clock, VirtualClock};
use guanxi_model::change::{CounterDelta, Field, ImportEdge, KindPatch, KindSpec, Put};
use guanxi_model::decide::built_in_kinds;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::{ImportId, ImportLines, ImportStep, LinesDigest};
use guanxi_model::job::{Job, JobWork};
use guanxi_model::{
    Change, EdgeKey, Epoch, GroupId, GroupName, GroupsKey, Index, IndexEntry, Kind, KindId,
    KindName, Millis, NodeKey, Region, Request, SourceId, State, TargetId, TenantId, Which,
};

use crate::commit::Decider;
use crate::log::Frame;
use crate::overlay::Dirty;
use crate::store::memory::MemoryBackend;
use crate::store::{Applied, KeyedStore, Store};

/// The last one sorts behind every other, so that a range that ends too far shows.
pub const TENANTS: [TenantId; 2] = [TenantId::DEFAULT, TenantId(u32::MAX)];
/// Few, so that edges meet; with those whose keys carry or end in ones.
pub const IDS: [u64; 8] = [1, 2, 3, 255, 256, 257, u64::MAX - 1, u64::MAX];
pub const HOUR_MS: u64 = 60 * 60 * 1_000;

const START_MS: u64 = 1_700_000_000_000;
const GROUPS: [&str; 3] = ["friends", "work", "爱"];
/// Batches that may be decided before the first of them is written.
const BEHIND_MAX: usize = 3;

/// One batch in the two shapes in which it reaches a store: decided, and as the log has it.
#[derive(Debug, Clone)]
pub struct StoreBatch {
    pub frame: Frame,
    pub dirty: Arc<Dirty>,
    pub applied: Applied,
}

/// Decides batches as the committer does.
pub struct Scribe {
    pub clock: VirtualClock,
    store: KeyedStore<MemoryBackend>,
    decider: Decider,
    /// Decided, not yet written.
    behind: VecDeque<StoreBatch>,
}

impl Scribe {
    /// A scribe and its first batch, which has the kinds.
    pub fn new() -> Result<(Scribe, StoreBatch), String> {
        let store = KeyedStore::open(MemoryBackend::default()).map_err(text)?;
        let mut scribe = Scribe {
            clock: VirtualClock::new(START_MS),
            store,
            decider: Decider::new(Epoch(1), Applied::NOTHING, Region::MAX),
            behind: VecDeque::new(),
        };
        let mut requests = Vec::new();
        for tenant in TENANTS {
            let changes = kinds()?
                .into_iter()
                .map(|spec| Change::CreateKind { tenant, spec: Box::new(spec) });
            requests.push(Request::new(tenant, changes.collect()));
        }
        let batch = scribe.decide(&requests, 0)?;
        let batch = batch.ok_or("the kinds left no record")?;
        Ok((scribe, batch))
    }

    /// One batch of changes that must all be taken.
    pub fn write(&mut self, changes: Vec<Change>) -> Result<StoreBatch, String> {
        self.write_keyed(changes, None)
    }

    pub fn write_keyed(
        &mut self,
        changes: Vec<Change>,
        key: Option<&str>,
    ) -> Result<StoreBatch, String> {
        let key = key.map(IdempotencyKey::new).transpose().map_err(text)?;
        let tenant = TenantId::DEFAULT;
        let request = Request { key, ..Request::new(tenant, changes) };
        self.decide(&[request], 0)?.ok_or_else(|| "a scripted batch changed nothing".to_owned())
    }

    pub fn kind(&self, name: &str) -> Result<Arc<Kind>, String> {
        let catalog = self.store.catalog();
        let kind = catalog.named(TenantId::DEFAULT, name);
        kind.cloned().map_err(text)
    }

    pub fn edge(&self, kind: &str, source: u64, target: u64) -> Result<EdgeKey, String> {
        Ok(EdgeKey {
            tenant: TenantId::DEFAULT,
            kind: self.kind(kind)?.id,
            source: SourceId(source),
            target: TargetId(target),
        })
    }

    /// The unfinished jobs, the newest first.
    pub fn jobs(&self) -> Result<Vec<(TenantId, Job)>, String> {
        let mut found = Vec::new();
        for tenant in TENANTS {
            let read = self.store.snapshot().jobs(tenant, None, &mut |job| {
                if job.finished.is_none() {
                    found.push((tenant, job));
                }
                ControlFlow::Continue(())
            });
            read.map_err(text)?;
        }
        Ok(found)
    }

    /// The job's next step, as the jobs' thread would ask for it.
    pub fn step(&self, tenant: TenantId, job: &Job, edges_max: usize) -> Result<Change, String> {
        match job.work {
            JobWork::Erase { node } => self.erase_step(job, node, edges_max),
            JobWork::BuildIndex { kind, after } => {
                let (snapshot, mut next) = (self.store.snapshot(), Vec::new());
                let read = snapshot.edges_of_kind(tenant, kind, after, &mut |ends, _| {
                    next.push(ends);
                    until(next.len() == edges_max)
                });
                read.map_err(text)?;
                Ok(match next.last() {
                    None => Change::FinishBuildIndex { tenant, job: job.id },
                    Some(until) => Change::BuildIndexStep {
                        tenant,
                        job: job.id,
                        until: *until,
                        edges: next.len() as u64,
                    },
                })
            }
        }
    }

    fn erase_step(&self, job: &Job, node: NodeKey, edges_max: usize) -> Result<Change, String> {
        let (tenant, job) = (node.tenant, job.id);
        let mut edges = Vec::new();
        let snapshot = self.store.snapshot();
        for kind in snapshot.catalog().kinds(tenant) {
            let leaves =
                |source: u64| kind.fixed.source_type == node.node_type && source == node.id;
            let comes = |target: u64| kind.fixed.target_type == node.node_type && target == node.id;
            let visit = &mut |(source, target): (SourceId, TargetId), _| {
                if leaves(source.0) || comes(target.0) {
                    edges.push(EdgeKey { tenant, kind: kind.id, source, target });
                }
                ControlFlow::Continue(())
            };
            snapshot.edges_of_kind(tenant, kind.id, None, visit).map_err(text)?;
        }
        edges.truncate(edges_max);
        Ok(match edges.is_empty() {
            true => Change::FinishErase { tenant, job },
            false => Change::EraseStep { tenant, job, edges },
        })
    }

    /// Decides a batch while up to `behind_max` others are on their way; none when nothing came
    /// of it.
    fn decide(
        &mut self,
        requests: &[Request],
        behind_max: usize,
    ) -> Result<Option<StoreBatch>, String> {
        let now = Millis(self.clock.now_ms());
        let decided = self.decider.decide(requests.iter(), now, &self.store);
        let decision = decided.map_err(text)?;
        let batch = decision.frame.map(|frame| StoreBatch {
            frame,
            dirty: decision.dirty,
            applied: decision.applied,
        });
        self.behind.extend(batch.clone());
        self.settle(behind_max)?;
        Ok(batch)
    }

    fn settle(&mut self, behind_max: usize) -> Result<(), String> {
        while self.behind.len() > behind_max {
            if let Some(batch) = self.behind.pop_front() {
                self.store.write(&batch.dirty, batch.applied).map_err(text)?;
            }
        }
        Ok(())
    }
}

/// A history of all kinds of changes; the same for the same seed.
pub fn random(seed: u64, batches: usize) -> Result<Vec<StoreBatch>, String> {
    let (scribe, first) = Scribe::new()?;
    let mut author = HistoryAuthor { scribe, random: fastrand::Rng::with_seed(seed) };
    let mut history = vec![first];
    while history.len() < batches {
        history.extend(author.batch()?);
    }
    Ok(history)
}

/// Invents requests.
struct HistoryAuthor {
    scribe: Scribe,
    random: fastrand::Rng,
}

impl HistoryAuthor {
    fn batch(&mut self) -> Result<Option<StoreBatch>, String> {
        self.pass_time();
        let mut requests = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            requests.push(self.request()?);
        }
        if self.random.u8(..3) == 0 {
            // A job asks for its next step when the last one stands.
            self.scribe.settle(0)?;
            for (tenant, job) in self.scribe.jobs()? {
                let edges_max = self.random.usize(1..6);
                let step = self.scribe.step(tenant, &job, edges_max)?;
                let at = self.random.usize(..=requests.len());
                requests.insert(at, Request::one(tenant, step));
            }
        }
        let behind_max = self.random.usize(..=BEHIND_MAX);
        self.scribe.decide(&requests, behind_max)
    }

    /// Mostly little or nothing, so that edges tie; now and then an hour, a day, or backwards.
    fn pass_time(&mut self) {
        let now_ms = self.scribe.clock.now_ms();
        let next_ms = match self.random.u8(..60) {
            0 => now_ms + 25 * HOUR_MS,
            1 | 2 => now_ms + HOUR_MS,
            3 => now_ms - 5,
            4..20 => now_ms + self.random.u64(1..3),
            _ => now_ms,
        };
        self.scribe.clock.set(next_ms);
    }

    fn request(&mut self) -> Result<Request, String> {
        let tenant = TENANTS[usize::from(self.random.u8(..4) == 0)];
        let changes = match self.random.u8(..40) {
            0 => self.random.usize(60..120),
            _ => self.random.usize(1..5),
        };
        let changes = (0..changes).map(|_| self.change(tenant));
        let changes = changes.collect::<Result<Vec<Change>, String>>()?;
        let mut request = Request::new(tenant, changes);
        match self.random.u8(..12) {
            0..4 => request.key = Some(self.key()?),
            4 | 5 => request.import = Some(self.import_step(tenant, request.changes.len())?),
            _ => {}
        }
        Ok(request)
    }

    /// Often at a wrong place, as batches are on their way; then nothing comes of the request.
    fn import_step(&mut self, tenant: TenantId, lines: usize) -> Result<ImportStep, String> {
        let id = ["i", "import-", "Z"][self.random.usize(..3)];
        let id = ImportId::new(id).map_err(text)?;
        let row = self.scribe.store.snapshot().import(tenant, &id).map_err(text)?;
        let before = row.unwrap_or_default().lines;
        let digest = LinesDigest(self.random.u128(..));
        let after = before + lines as u64;
        let (of_changes, unreadable) = ((before + 1..=after).collect(), Vec::new());
        let lines = ImportLines { before, after, of_changes, unreadable, digest };
        Ok(ImportStep { id, lines })
    }

    fn key(&mut self) -> Result<IdempotencyKey, String> {
        let key = ["k", "key", "key-", "schlüssel"][self.random.usize(..4)];
        IdempotencyKey::new(&format!("{key}{}", self.random.u8(..30))).map_err(text)
    }

    fn change(&mut self, tenant: TenantId) -> Result<Change, String> {
        let kind = self.pick_kind(tenant, false)?;
        let edge = EdgeKey {
            tenant,
            kind: kind.id,
            source: SourceId(self.id()),
            target: TargetId(self.id()),
        };
        let groups = GroupsKey::of(&edge);
        let node = NodeKey { tenant, node_type: kind.fixed.target_type, id: edge.target.0 };
        Ok(match self.random.u8(..100) {
            0..45 => Change::Put(self.put(edge, &kind)?),
            45..57 => Change::Delete { edge, strict: self.random.bool() },
            57..63 => Change::Approve { edge },
            63..66 => Change::Decline { edge },
            66..71 => Change::AddMember { edge, group: self.group()? },
            71..74 => Change::DropMember { edge, group: self.group()? },
            74..80 => Change::CreateGroup { groups, name: self.group()? },
            80..82 => Change::RenameGroup { groups, name: self.group()?, to: self.group()? },
            82..84 => Change::DeleteGroup { groups, name: self.group()? },
            84..87 => Change::SetNode { node, private: Some(self.random.bool()) },
            87 | 88 => Change::ImportEdge(Box::new(ImportEdge {
                put: self.put(edge, &kind)?,
                since: Some(Millis(self.scribe.clock.now_ms() - self.random.u64(..9))),
                state: None,
                ignore_limits: self.random.bool(),
            })),
            89..94 => Change::Count(CounterDelta {
                tenant,
                kind: self.pick_kind(tenant, true)?.id,
                id: edge.target.0,
                delta: self.random.i64(-3..9),
                key: match self.random.bool() {
                    true => Some(self.key()?),
                    false => None,
                },
            }),
            94..98 => self.expiry(tenant)?.unwrap_or(Change::Decline { edge }),
            98 if self.random.bool() => self.lift_limit(tenant, kind.id),
            98 => self.repair(edge, node)?,
            _ if self.random.u8(..3) == 0 => Change::BeginErase { node },
            _ => Change::Put(Put::plain(edge)),
        })
    }

    fn put(&mut self, edge: EdgeKey, kind: &Kind) -> Result<Put, String> {
        let now_ms = self.scribe.clock.now_ms();
        let mut put = Put::plain(edge);
        if kind.rules.groups_max > 0 {
            let group = self.group()?;
            put.group = self.field(group);
        }
        if kind.fixed.owner_type.is_some() {
            let owner = self.id();
            put.owner = self.field(owner);
        }
        if kind.rules.data_bytes_max > 0 {
            let data = "x".repeat(self.random.usize(..5)).into_boxed_str();
            put.data = self.field(data);
        }
        if kind.rules.expires {
            let at = Millis(now_ms + self.random.u64(1..2 * HOUR_MS));
            put.expires_at = self.field(at);
        }
        put.approval = kind.rules.approval && self.random.bool();
        Ok(put)
    }

    fn field<T>(&mut self, value: T) -> Field<T> {
        match self.random.u8(..4) {
            0 => Field::Set(value),
            1 => Field::Clear,
            _ => Field::Keep,
        }
    }

    fn expiry(&mut self, tenant: TenantId) -> Result<Option<Change>, String> {
        let now = Millis(self.scribe.clock.now_ms());
        let due = self.scribe.store.snapshot().due(now, 5).map_err(text)?;
        let mut of_tenant = due.into_iter().filter(|(_, edge)| edge.tenant == tenant);
        Ok(of_tenant.next().map(|(expires_at, edge)| Change::Expire { edge, expires_at }))
    }

    /// A repair of what is right, which must leave it so.
    fn repair(&mut self, edge: EdgeKey, node: NodeKey) -> Result<Change, String> {
        let (kind, groups) = (edge.kind, GroupsKey::of(&edge));
        let row = self.scribe.store.snapshot().edge(&edge).map_err(text)?;
        let now = Millis(self.scribe.clock.now_ms());
        let (state, since) = row.as_ref().map_or((State::Live, now), |row| (row.state, row.since));
        let index = match self.random.u8(..5) {
            0 => Index::Incoming { state, since },
            1 => Index::Outgoing { state, since },
            2 => Index::Expiry { at: row.and_then(|row| row.expires_at).unwrap_or(now) },
            3 => {
                let which = Which::ALL[self.random.usize(..Which::ALL.len() - 1)];
                return Ok(Change::RepairTally { node, kind, which, delta: 0 });
            }
            _ => {
                let id = GroupId(self.random.u32(1..4));
                return Ok(Change::RepairGroupSize { groups, id, delta: 0 });
            }
        };
        Ok(Change::RepairEntry { entry: IndexEntry { edge, index } })
    }

    fn lift_limit(&mut self, tenant: TenantId, kind: KindId) -> Change {
        let patch = KindPatch { outgoing_max: Field::Clear, ..KindPatch::default() };
        Change::SetKind { tenant, kind, patch: Box::new(patch) }
    }

    fn pick_kind(&mut self, tenant: TenantId, counter: bool) -> Result<Arc<Kind>, String> {
        let catalog = self.scribe.store.catalog();
        let kinds = catalog.kinds(tenant);
        let fitting: Vec<&Arc<Kind>> = kinds.filter(|kind| kind.fixed.counter == counter).collect();
        let kind = self.random.choice(fitting);
        kind.cloned().ok_or_else(|| "no kind fits".to_owned())
    }

    fn id(&mut self) -> u64 {
        IDS[self.random.usize(..IDS.len())]
    }

    fn group(&mut self) -> Result<GroupName, String> {
        GroupName::new(GROUPS[self.random.usize(..GROUPS.len())]).map_err(text)
    }
}

/// The built-in kinds, one that keeps nothing but its rows, and one with a very small limit.
fn kinds() -> Result<Vec<KindSpec>, String> {
    let mut kinds = built_in_kinds().map_err(text)?;
    let name = |name| KindName::new(name).map_err(text);
    let (user, post) = (name("user")?, name("post")?);
    let mut bare = KindSpec::edges(name("bare")?, user.clone(), post);
    bare.outgoing_list = false;
    bare.incoming_list = false;
    bare.outgoing_tally = false;
    bare.incoming_tally = false;
    let mut ring = KindSpec::edges(name("ring")?, user.clone(), user);
    ring.outgoing_max = Some(4);
    ring.groups_max = 2;
    ring.data_bytes_max = 8;
    ring.self_allowed = true;
    ring.expires = true;
    kinds.extend([bare, ring]);
    Ok(kinds)
}

fn until(done: bool) -> ControlFlow<()> {
    match done {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
