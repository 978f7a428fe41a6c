//! Reads: everything is answered from one consistent snapshot of the store, which has the last
//! acknowledged write and nothing that is not durable.

mod export;
mod hydrate;
mod kind_set;
mod lists;

pub use export::Exported;
pub use hydrate::{HydrateQuery, Hydrated, HydratedObject, ReadObject};
pub use kind_set::KindSet;
pub use lists::{GroupFilter, ListQuery, ListedEdge, Page};

use std::ops::ControlFlow;
use std::sync::Arc;

use guanxi_model::codec::Encoder;
use guanxi_model::hash::hash64;
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::page::{Cursor, PagePlace};
use guanxi_model::{
    Catalog, Code, EdgeKey, EdgeRow, Error, GroupName, GroupSet, GroupsKey, Kind, NodeKey, NodeRow,
    Secret, SourceId, State, TallyRow, TargetId, TenantId,
};

use crate::snapshot::{Snapshot, StoreError, Wanted};

pub struct Reader {
    snapshot: Box<dyn Snapshot>,
    /// What cursors are sealed with.
    secret: Arc<Secret>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// One target of a batch check, by the kinds asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checked {
    pub related: KindSet,
    pub pending: KindSet,
    /// Kinds by which the target relates to the source.
    pub reverse: KindSet,
}

/// Jobs, and the cursor of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobsPage {
    pub jobs: Vec<Job>,
    pub next: Option<String>,
}

impl Reader {
    pub fn new(snapshot: Box<dyn Snapshot>, secret: &Arc<Secret>) -> Reader {
        Reader { snapshot, secret: secret.clone() }
    }

    pub fn catalog(&self) -> &Catalog {
        self.snapshot.catalog()
    }

    /// Gets rows ready that the next calls will ask for, at once where they are far away. What is
    /// asked for without it may then be of a later moment.
    pub fn prefetch(&self, mut want: impl FnMut(&mut Wanted)) -> Result<(), Error> {
        self.snapshot.prefetch(&mut want).map_err(unreadable)
    }

    /// What the reads so far asked for and this reader did not have at hand; with it they might
    /// answer. Nothing where every row can be had.
    pub fn lacked(&self) -> Option<Wanted> {
        self.snapshot.lacked()
    }

    /// The edge's row when it stands, live or pending.
    pub fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, Error> {
        Ok(self.snapshot.edge(key).map_err(unreadable)?.filter(EdgeRow::stands))
    }

    /// The name of the group that an edge is in.
    pub fn group_name(&self, key: &EdgeKey, row: &EdgeRow) -> Result<Option<GroupName>, Error> {
        if row.group.is_none() {
            return Ok(None);
        }
        Ok(self.groups(&GroupsKey::of(key))?.name_of(row.group).cloned())
    }

    pub fn tallies(&self, node: &NodeKey) -> Result<TallyRow, Error> {
        self.prefetch(|wanted| wanted.nodes.push(*node))?;
        self.snapshot.tallies(node).map_err(unreadable)
    }

    pub fn groups(&self, key: &GroupsKey) -> Result<GroupSet, Error> {
        self.prefetch(|wanted| wanted.groups.push(*key))?;
        self.snapshot.groups(key).map_err(unreadable)
    }

    pub fn node(&self, node: &NodeKey) -> Result<NodeRow, Error> {
        self.prefetch(|wanted| wanted.nodes.push(*node))?;
        self.snapshot.node(node).map_err(unreadable)
    }

    pub fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, Error> {
        self.snapshot.import(tenant, id).map_err(unreadable)
    }

    pub fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, Error> {
        self.snapshot.job(tenant, id).map_err(unreadable)
    }

    /// A page of the jobs, running and done, the newest first.
    pub fn jobs(
        &self,
        tenant: TenantId,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<JobsPage, Error> {
        let mut name = Encoder::with_capacity(16);
        name.str("jobs");
        name.varint(u64::from(tenant.0));
        let call = hash64(&name.into_bytes());
        let cursor = cursor.map(|text| Cursor::parse(text, call, &self.secret)).transpose()?;
        let before = cursor.map(|cursor| JobId(cursor.place.id));
        let mut jobs: Vec<Job> = Vec::new();
        let mut next = None;
        let read = self.snapshot.jobs(tenant, before, &mut |job| {
            if let Some(last) = jobs.last().filter(|_| jobs.len() >= limit) {
                let place = PagePlace { since: last.started, id: last.id.0 };
                next = Some(Cursor { place, depth: 0 }.to_text(call, &self.secret));
                return ControlFlow::Break(());
            }
            jobs.push(job);
            ControlFlow::Continue(())
        });
        read.map_err(unreadable)?;
        Ok(JobsPage { jobs, next })
    }

    /// One source against many targets. Only kinds of one node type have a reverse.
    pub fn check(
        &self,
        tenant: TenantId,
        source: SourceId,
        targets: &[TargetId],
        kinds: &[Arc<Kind>],
        reverse: bool,
    ) -> Result<Vec<Checked>, Error> {
        for kind in kinds {
            kind.require_edges()?;
        }
        self.prefetch(|wanted| {
            for target in targets {
                for kind in kinds {
                    let key = EdgeKey { tenant, kind: kind.id, source, target: *target };
                    wanted.edges.push(key);
                    if reverse && kind.same_type() {
                        wanted.edges.push(key.reversed());
                    }
                }
            }
        })?;
        let check = |target: &TargetId| {
            let mut checked = Checked::default();
            for (place, kind) in kinds.iter().enumerate() {
                let key = EdgeKey { tenant, kind: kind.id, source, target: *target };
                match self.state(&key)? {
                    Some(State::Live) => checked.related.insert(place),
                    Some(State::Pending) => checked.pending.insert(place),
                    _ => {}
                }
                if reverse && kind.same_type() && self.is_live(&key.reversed())? {
                    checked.reverse.insert(place);
                }
            }
            Ok(checked)
        };
        targets.iter().map(check).collect()
    }

    /// The edge's state when it stands, live or pending.
    pub fn state(&self, key: &EdgeKey) -> Result<Option<State>, Error> {
        let state = self.snapshot.edge_state(key).map_err(unreadable)?;
        Ok(state.filter(|state| *state != State::Removed))
    }

    fn is_live(&self, key: &EdgeKey) -> Result<bool, Error> {
        Ok(self.state(key)? == Some(State::Live))
    }
}

/// The driver's words go to the log of the service, never to a caller.
pub fn unreadable(error: StoreError) -> Error {
    if !matches!(error, StoreError::NotAtHand) {
        tracing::error!(%error, "a read failed");
    }
    match error {
        StoreError::Io(_) | StoreError::Full | StoreError::Stopped | StoreError::NotAtHand => {
            Error::new(Code::Unavailable, "the store could not be read")
        }
        StoreError::Damaged(_) => {
            Error::new(Code::Internal, "the store holds a row that cannot be read")
        }
    }
}
