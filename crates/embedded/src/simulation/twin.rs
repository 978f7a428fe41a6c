//! A twin of a deployment that is not simulated: the same random requests, decided on plain rows,
//! so that a real database can be held against them.

use std::collections::BTreeMap;
use std::sync::Arc;

use guanxi_model::idempotency::Answers;
use guanxi_model::job::{JobId, JobWork};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Error, GroupSet, GroupsKey, KindId, Millis, NodeKey, NodeRow,
    Request, TallyRow,
};

use super::reference::ReferenceService;
use super::requests::{RequestAuthor, chore, first_kinds};
use super::rows::ReferenceRows;

/// Edges that a step of a job takes: few, so that jobs have several.
const CHORE_EDGES_MAX: usize = 3;

pub struct Twin {
    author: RequestAuthor,
    reference: ReferenceService,
}

impl std::fmt::Debug for Twin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Twin").finish_non_exhaustive()
    }
}

impl Twin {
    /// One that has the built-in kinds.
    pub fn new(seed: u64, now: Millis) -> Result<Twin, Error> {
        let author = RequestAuthor::new(fastrand::Rng::with_seed(seed));
        let mut twin = Twin { author, reference: ReferenceService::new(super::REGION) };
        if let Some(kinds) = first_kinds(&Catalog::default())? {
            twin.answer(&kinds, now)?;
        }
        Ok(twin)
    }

    /// A request of a caller who knows the rows about right.
    pub fn request(&mut self, now: Millis) -> Result<Request, Error> {
        let rows = self.rows();
        self.author.request(&rows, now)
    }

    /// What the sweeper or the jobs would ask for now.
    pub fn chore(&self, now: Millis) -> Option<Request> {
        chore(&self.rows(), now, CHORE_EDGES_MAX)
    }

    /// What the request must be answered; its effects stand from then on.
    pub fn answer(&mut self, request: &Request, now: Millis) -> Result<Answers, Error> {
        let mut expected = self.reference.decide(std::slice::from_ref(request), now);
        self.reference.show(expected.applied.position);
        let none = || Error::new(guanxi_model::Code::Internal, "no answer");
        expected.answers.pop().ok_or_else(none)?
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.rows().catalog.clone()
    }

    pub fn edges(&self) -> BTreeMap<EdgeKey, EdgeRow> {
        self.rows().edges.clone()
    }

    /// Settings of nodes that have any.
    pub fn nodes(&self) -> BTreeMap<NodeKey, NodeRow> {
        let mut nodes = self.rows().nodes.clone();
        nodes.retain(|_, row| *row != NodeRow::default());
        nodes
    }

    pub fn tallies(&self) -> BTreeMap<NodeKey, TallyRow> {
        self.rows().all_tallies()
    }

    pub fn groups(&self, key: &GroupsKey) -> GroupSet {
        self.rows().groups_of(key)
    }

    /// The kind whose index the job builds.
    pub fn building(&self, id: JobId) -> Option<KindId> {
        self.rows().jobs.values().find(|job| job.id == id).and_then(|job| match job.work {
            JobWork::BuildIndex { kind, .. } => Some(kind),
            JobWork::Erase { .. } => None,
        })
    }

    fn rows(&self) -> std::rc::Rc<ReferenceRows> {
        self.reference.tip().rows
    }
}
