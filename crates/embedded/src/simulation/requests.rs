//! Random requests over so few ids, groups and keys that everything collides.

use guanxi_model::change::{CounterDelta, Field, ImportEdge, KindPatch, KindSpec, Put};
use guanxi_model::decide::built_in_kinds;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::{ImportId, ImportLines, ImportStep, LinesDigest, RejectedLine};
use guanxi_model::job::{Job, JobWork};
use guanxi_model::limits::OUTGOING_SORTED_MAX;
use guanxi_model::{
    Catalog, Change, EdgeKey, Ends, Error, GroupId, GroupName, GroupsKey, Index, IndexEntry, Kind,
    KindId, KindName, Millis, NodeKey, OriginText, Request, SourceId, State, TargetId, TenantId,
    Which,
};

use super::rows::ReferenceRows;

pub(super) const TENANT: TenantId = TenantId::DEFAULT;
pub(super) const IDS: [u64; 4] = [1, 2, 3, u64::MAX];

const GROUPS: [&str; 3] = ["friends", "work", "爱"];
const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const KINDS: [&str; 5] = ["k1", "k2", "k3", "k4", "k5"];
/// Keyed requests that may come once more.
const EARLIER_MAX: usize = 8;

/// Invents requests.
pub(super) struct RequestAuthor {
    pub random: fastrand::Rng,
    /// Keyed requests to be sent again.
    earlier: Vec<Request>,
}

impl RequestAuthor {
    pub fn new(random: fastrand::Rng) -> RequestAuthor {
        RequestAuthor { random, earlier: Vec::new() }
    }

    /// A request of a caller who knows the rows and the time about right.
    pub fn request(&mut self, rows: &ReferenceRows, now: Millis) -> Result<Request, Error> {
        if !self.earlier.is_empty() && self.random.u8(..10) == 0 {
            return Ok(self.earlier[self.random.usize(..self.earlier.len())].clone());
        }
        let changes = match self.random.u8(..20) {
            0 => self.random.usize(10..40),
            1..5 => self.random.usize(2..6),
            _ => 1,
        };
        if self.random.u8(..8) == 0 {
            return self.import(rows, now, changes);
        }
        let keyed = self.random.u8(..4) == 0;
        let mut request = Request::new(TENANT, Vec::with_capacity(changes));
        for _ in 0..changes {
            // Only changes of edges are told apart by a request's hash.
            request.changes.push(match keyed {
                true => self.edge_change(rows, now)?,
                false => self.change(rows, now)?,
            });
        }
        if self.random.u8(..4) == 0 {
            request.origin.reason = Some(OriginText::new(KEYS[self.random.usize(..KEYS.len())])?);
        }
        if keyed {
            request.key = Some(self.key()?);
            if self.earlier.len() == EARLIER_MAX {
                self.earlier.swap_remove(self.random.usize(..EARLIER_MAX));
            }
            self.earlier.push(request.clone());
        }
        Ok(request)
    }

    /// A chunk of an import, at its place or at a wrong one.
    fn import(
        &mut self,
        rows: &ReferenceRows,
        now: Millis,
        lines: usize,
    ) -> Result<Request, Error> {
        let mut changes = Vec::with_capacity(lines);
        for _ in 0..lines {
            changes.push(self.line(rows, now)?);
        }
        let id = ImportId::new(KEYS[self.random.usize(..KEYS.len())])?;
        let row = rows.imports.get(&(TENANT, id.clone())).cloned().unwrap_or_default();
        let astray = u64::from(self.random.u8(..4) == 0);
        let before = row.lines + astray;
        let changed = before + lines as u64;
        let after = changed + self.random.u64(..3);
        let error = Error::invalid("it cannot be read");
        let unreadable = (changed + 1..=after).map(|line| RejectedLine::new(line, &error));
        let lines = ImportLines {
            before,
            after,
            of_changes: (before + 1..=changed).collect(),
            unreadable: unreadable.collect(),
            digest: LinesDigest(self.random.u128(..)),
        };
        let step = ImportStep { id, lines };
        Ok(Request { import: Some(step), ..Request::new(TENANT, changes) })
    }

    fn line(&mut self, rows: &ReferenceRows, now: Millis) -> Result<Change, Error> {
        let Some(kind) = self.kind(rows, false) else {
            return self.create_kind();
        };
        let edge = self.edge(kind.id);
        Ok(match self.random.u8(..12) {
            0 => Change::ImportGroup { groups: GroupsKey::of(&edge), name: self.group()? },
            1 => Change::ImportCounter {
                tenant: TENANT,
                kind: self.kind(rows, true).unwrap_or(kind).id,
                id: self.id(),
                value: self.random.i64(-9..9),
            },
            _ => Change::ImportEdge(Box::new(ImportEdge {
                put: self.put(edge, &kind, now, false)?,
                since: self
                    .random
                    .bool()
                    .then(|| Millis(now.0.saturating_sub(self.random.u64(..500)))),
                state: [None, Some(State::Live), Some(State::Pending)][self.random.usize(..3)],
                ignore_limits: self.random.bool(),
            })),
        })
    }

    fn change(&mut self, rows: &ReferenceRows, now: Millis) -> Result<Change, Error> {
        let Some(kind) = self.kind(rows, false) else {
            return self.create_kind();
        };
        let edge = self.edge(kind.id);
        let groups = GroupsKey::of(&edge);
        Ok(match self.random.u8(..100) {
            0..4 => Change::Expire {
                edge,
                expires_at: Millis(now.0.saturating_sub(self.random.u64(..100))),
            },
            4..10 => Change::AddMember { edge, group: self.group()? },
            10..13 => Change::DropMember { edge, group: self.group()? },
            13..19 => Change::CreateGroup { groups, name: self.group()? },
            19..21 => Change::RenameGroup { groups, name: self.group()?, to: self.group()? },
            21..24 => Change::DeleteGroup { groups, name: self.group()? },
            24..27 => Change::SetNode { node: self.node(&kind), private: Some(self.random.bool()) },
            27..37 => Change::Count(CounterDelta {
                tenant: TENANT,
                kind: self.kind(rows, true).unwrap_or(kind).id,
                id: self.id(),
                delta: self.random.i64(-3..9),
                key: match self.random.bool() {
                    true => Some(self.key()?),
                    false => None,
                },
            }),
            37..39 => self.create_kind()?,
            39..41 => Change::SetKind {
                tenant: TENANT,
                kind: kind.id,
                patch: Box::new(self.kind_patch()),
            },
            41 => Change::BeginErase { node: self.node(&kind) },
            42..44 => self.repair(rows, edge, &kind, now),
            _ => self.edge_change(rows, now)?,
        })
    }

    /// A repair of what is right, which must leave it so.
    fn repair(&mut self, rows: &ReferenceRows, edge: EdgeKey, kind: &Kind, now: Millis) -> Change {
        let row = rows.edges.get(&edge);
        let (state, since) = row.map_or((State::Live, now), |row| (row.state, row.since));
        let at = row.and_then(|row| row.expires_at).unwrap_or(now);
        let (node, groups) = (self.node(kind), GroupsKey::of(&edge));
        let index = match self.random.u8(..5) {
            0 => Index::Incoming { state, since },
            1 => Index::Outgoing { state, since },
            2 => Index::Expiry { at },
            3 => {
                let which = Which::ALL[self.random.usize(..Which::ALL.len() - 1)];
                return Change::RepairTally { node, kind: kind.id, which, delta: 0 };
            }
            _ => {
                let id = GroupId(self.random.u32(1..4));
                return Change::RepairGroupSize { groups, id, delta: 0 };
            }
        };
        Change::RepairEntry { entry: IndexEntry { edge, index } }
    }

    fn edge_change(&mut self, rows: &ReferenceRows, now: Millis) -> Result<Change, Error> {
        let Some(kind) = self.kind(rows, false) else {
            return self.create_kind();
        };
        let edge = self.edge(kind.id);
        let strict = self.random.u8(..8) == 0;
        Ok(match self.random.u8(..10) {
            0 | 1 => Change::Delete { edge, strict },
            2 => Change::Approve { edge },
            3 if self.random.bool() => Change::Decline { edge },
            _ => Change::Put(self.put(edge, &kind, now, strict)?),
        })
    }

    fn put(&mut self, edge: EdgeKey, kind: &Kind, now: Millis, strict: bool) -> Result<Put, Error> {
        let mut put = Put::plain(edge);
        put.strict = strict;
        // Now and then a field that the kind does not take.
        let odd = self.random.u8(..20) == 0;
        if odd || kind.rules.groups_max > 0 {
            let group = self.group()?;
            put.group = self.field(group);
        }
        if odd || kind.fixed.owner_type.is_some() {
            let owner = self.id();
            put.owner = self.field(owner);
        }
        if odd || kind.rules.data_bytes_max > 0 {
            let data = "x".repeat(self.random.usize(..100)).into_boxed_str();
            put.data = self.field(data);
        }
        if odd || kind.rules.expires {
            let at = Millis(now.0 + self.random.u64(..500));
            put.expires_at = self.field(at);
        }
        put.approval = (odd || kind.rules.approval) && self.random.bool();
        Ok(put)
    }

    fn field<T>(&mut self, value: T) -> Field<T> {
        match self.random.u8(..4) {
            0 => Field::Set(value),
            1 => Field::Clear,
            _ => Field::Keep,
        }
    }

    fn create_kind(&mut self) -> Result<Change, Error> {
        Ok(Change::CreateKind { tenant: TENANT, spec: Box::new(self.kind_spec()?) })
    }

    fn kind_spec(&mut self) -> Result<KindSpec, Error> {
        let name = KindName::new(KINDS[self.random.usize(..KINDS.len())])?;
        let user = KindName::new("user")?;
        let target = KindName::new(["user", "post", "photo"][self.random.usize(..3)])?;
        if self.random.u8(..4) == 0 {
            let mut counter = KindSpec::counter(name, target);
            counter.reconciled = self.random.bool();
            return Ok(counter);
        }
        let mut spec = KindSpec::edges(name, user.clone(), target);
        spec.outgoing_list = self.random.u8(..4) > 0;
        spec.incoming_list = self.random.u8(..4) > 0;
        spec.incoming_tally = self.random.u8(..4) > 0;
        spec.outgoing_tally = self.random.u8(..4) > 0;
        if spec.outgoing_tally && self.random.u8(..4) > 0 {
            spec.outgoing_max = Some(self.random.u32(1..5));
        }
        spec.owner_type = self.random.bool().then_some(user);
        spec.groups_max = self.random.u32(..3);
        spec.approval = self.random.bool();
        spec.expires = self.random.bool();
        spec.data_bytes_max = self.random.u32(..128);
        spec.self_allowed = self.random.u8(..4) == 0;
        if self.random.u8(..4) == 0 {
            spec.excludes = vec!["follow".into()];
        }
        Ok(spec)
    }

    fn kind_patch(&mut self) -> KindPatch {
        let mut patch = KindPatch::default();
        match self.random.u8(..5) {
            0 => patch.outgoing_max = Field::Set(self.random.u32(1..5)),
            1 => patch.outgoing_max = Field::Set(OUTGOING_SORTED_MAX + 1),
            2 => patch.groups_max = Some(self.random.u32(..4)),
            3 => patch.approval = Some(self.random.bool()),
            _ => patch.outgoing_max = Field::Clear,
        }
        patch
    }

    fn kind(&mut self, rows: &ReferenceRows, counter: bool) -> Option<Kind> {
        let kinds = rows.catalog.kinds(TENANT);
        let fitting: Vec<_> = kinds.filter(|kind| kind.fixed.counter == counter).collect();
        self.random.choice(fitting).map(|kind| Kind::clone(kind))
    }

    fn edge(&mut self, kind: KindId) -> EdgeKey {
        EdgeKey { tenant: TENANT, kind, source: SourceId(self.id()), target: TargetId(self.id()) }
    }

    fn node(&mut self, kind: &Kind) -> NodeKey {
        NodeKey { tenant: TENANT, node_type: kind.fixed.target_type, id: self.id() }
    }

    fn id(&mut self) -> u64 {
        IDS[self.random.usize(..IDS.len())]
    }

    fn key(&mut self) -> Result<IdempotencyKey, Error> {
        IdempotencyKey::new(KEYS[self.random.usize(..KEYS.len())])
    }

    fn group(&mut self) -> Result<GroupName, Error> {
        GroupName::new(GROUPS[self.random.usize(..GROUPS.len())])
    }
}

/// The kinds that come ready, where they are missing.
pub(super) fn first_kinds(catalog: &Catalog) -> Result<Option<Request>, Error> {
    let missing = built_in_kinds()?
        .into_iter()
        .filter(|spec| catalog.find(TENANT, spec.name.as_str()).is_none());
    let changes: Vec<Change> =
        missing.map(|spec| Change::CreateKind { tenant: TENANT, spec: Box::new(spec) }).collect();
    Ok((!changes.is_empty()).then_some(Request::new(TENANT, changes)))
}

/// What the sweeper or the jobs' thread asks for when it sees these rows.
pub(super) fn chore(rows: &ReferenceRows, now: Millis, edges_max: usize) -> Option<Request> {
    let due = rows.edges.iter().filter_map(|(edge, row)| {
        let expires_at = row.expires_at.filter(|at| *at <= now)?;
        Some(Change::Expire { edge: *edge, expires_at })
    });
    let mut changes: Vec<Change> = due.take(edges_max).collect();
    if changes.is_empty() {
        let mut jobs = rows.jobs.values();
        let job = jobs.find(|job| job.finished.is_none())?;
        changes.push(match job.work {
            JobWork::Erase { node } => erase_step(rows, job, node, edges_max),
            JobWork::BuildIndex { kind, after } => index_step(rows, job, kind, after, edges_max),
        });
    }
    Some(Request::new(TENANT, changes))
}

fn erase_step(rows: &ReferenceRows, job: &Job, node: NodeKey, edges_max: usize) -> Change {
    let touches = |edge: &EdgeKey| {
        let kind = rows.catalog.kind(TENANT, edge.kind);
        kind.is_some_and(|kind| {
            (kind.fixed.source_type == node.node_type && edge.source.0 == node.id)
                || (kind.fixed.target_type == node.node_type && edge.target.0 == node.id)
        })
    };
    let edges = rows.edges.keys().copied().filter(touches);
    let edges: Vec<EdgeKey> = edges.take(edges_max).collect();
    let (tenant, job) = (TENANT, job.id);
    match edges.is_empty() {
        true => Change::FinishErase { tenant, job },
        false => Change::EraseStep { tenant, job, edges },
    }
}

fn index_step(
    rows: &ReferenceRows,
    job: &Job,
    kind: KindId,
    after: Option<Ends>,
    edges_max: usize,
) -> Change {
    let edges = rows.edges.keys().filter(|edge| edge.kind == kind);
    let left = edges
        .map(|edge| (edge.source, edge.target))
        .filter(|ends| after.is_none_or(|after| *ends > after));
    let next: Vec<Ends> = left.take(edges_max).collect();
    let (tenant, job) = (TENANT, job.id);
    match next.last() {
        None => Change::FinishBuildIndex { tenant, job },
        Some(until) => {
            Change::BuildIndexStep { tenant, job, until: *until, edges: next.len() as u64 }
        }
    }
}
