//! Random histories of every change, on the database and on plain rows side by side: the same
//! answers to every request, and the same rows in the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_embedded::simulation::Twin;
use guanxi_model::idempotency::Answers;
use guanxi_model::job::{JobId, JobWork};
use guanxi_model::{
    Answer, Change, Error, GroupsKey, Index, Millis, NodeRow, Request, SourceId, Version, Which,
};

use crate::bench::{Instance, TENANT, databases};
use crate::tables::Tables;

const REQUESTS: usize = 400;
const SEEDS: [u64; 2] = [1, 2];

#[test]
fn random_histories_are_answered_as_plain_rows_are() {
    for seed in SEEDS {
        for (server, url) in databases("random_histories_are_answered_as_plain_rows_are") {
            History::new(&url, seed).run(&format!("{server}, seed {seed}"));
        }
    }
}

struct History {
    clock: Arc<VirtualClock>,
    instance: Instance,
    twin: Twin,
    /// The cluster's ids of the twin's jobs.
    jobs: BTreeMap<JobId, JobId>,
}

impl History {
    fn new(url: &str, seed: u64) -> History {
        let clock = Arc::new(VirtualClock::new(SystemClock.now_ms()));
        // Small batches, so that long requests are cut.
        let settings = SqlCommitSettings { batch_changes_max: 16, ..Default::default() };
        let instance = Instance::start_with(url, clock.clone(), settings);
        let twin = Twin::new(seed, Millis(clock.now_ms())).unwrap();
        History { clock, instance, twin, jobs: BTreeMap::new() }
    }

    fn run(mut self, name: &str) {
        for step in 0..REQUESTS {
            // It stands still during a request, and never far from the database's.
            self.clock.set(SystemClock.now_ms().max(self.clock.now_ms()));
            let now = Millis(self.clock.now_ms());
            let chore = if step % 3 == 0 { self.twin.chore(now) } else { None };
            let mut request = chore.unwrap_or_else(|| self.twin.request(now).unwrap());
            request.changes.retain(of_the_source_side);
            let expected = self.twin.answer(&request, now);
            let asked = self.translated(&request);
            let found = self.instance.write(asked).map(|written| written.answers);
            self.note_jobs(&expected, &found);
            let expected = expected.map(plain);
            let found = found.map(plain);
            assert_eq!(found, expected, "{name}, step {step}: {request:?}");
            if step % 50 == 49 {
                self.compare(&format!("{name}, step {step}"));
            }
        }
        self.compare(name);
    }

    /// Jobs are named by versions, which the twin gives out otherwise.
    fn translated(&self, request: &Request) -> Request {
        let mut request = request.clone();
        for change in &mut request.changes {
            if let Change::EraseStep { job, .. }
            | Change::FinishErase { job, .. }
            | Change::BuildIndexStep { job, .. }
            | Change::FinishBuildIndex { job, .. } = change
            {
                *job = self.jobs.get(job).copied().unwrap_or_else(|| self.build_job(*job));
            }
        }
        request
    }

    /// A job that fills an index is begun by a change that does not tell its id.
    fn build_job(&self, twins: JobId) -> JobId {
        let kind = self.twin.building(twins).expect("a job that builds an index");
        let tables = Tables::read(&self.instance.database);
        let mut jobs = tables.jobs.iter().filter(|job| job.finished.is_none());
        let same =
            |work: &JobWork| matches!(work, JobWork::BuildIndex { kind: k, .. } if *k == kind);
        jobs.find(|job| same(&job.work)).expect("the same job").id
    }

    fn note_jobs(&mut self, expected: &Result<Answers, Error>, found: &Result<Answers, Error>) {
        let (Ok(expected), Ok(found)) = (expected, found) else {
            return;
        };
        for pair in expected.iter().zip(found) {
            if let (Ok(Answer::Job(theirs)), Ok(Answer::Job(ours))) = pair {
                self.jobs.insert(*theirs, *ours);
            }
        }
    }

    fn compare(&self, name: &str) {
        let tables = Tables::read(&self.instance.database);
        tables.check();
        let unversioned = |mut row: guanxi_model::EdgeRow| {
            row.version = Version::ZERO;
            row
        };
        let found: BTreeMap<_, _> =
            tables.standing().map(|(key, row)| (*key, unversioned(row.clone()))).collect();
        let expected: BTreeMap<_, _> =
            self.twin.edges().into_iter().map(|(key, row)| (key, unversioned(row))).collect();
        assert_eq!(found, expected, "{name}: edges");
        assert_eq!(*tables.catalog, *self.twin.catalog(), "{name}: kinds");
        let private = |nodes: BTreeMap<_, NodeRow>| -> BTreeMap<_, _> {
            let marks = |row: NodeRow| (row.private, row.erased_by.is_some());
            nodes.into_iter().map(|(node, row)| (node, marks(row))).collect()
        };
        assert_eq!(private(tables.nodes.clone()), private(self.twin.nodes()), "{name}: nodes");
        for kind in self.twin.catalog().kinds(TENANT) {
            for id in [1, 2, 3, u64::MAX] {
                let key = GroupsKey { tenant: TENANT, kind: kind.id, source: SourceId(id) };
                let groups = self.twin.groups(&key);
                let found = tables.groups.get(&key).cloned().unwrap_or_default();
                assert_eq!(found, groups.groups, "{name}: groups of {key:?}");
            }
        }
        let mut counters = tables.counters.clone();
        counters.retain(|_, value| *value != 0);
        let mut expected = BTreeMap::new();
        for (node, row) in self.twin.tallies() {
            for (kind, which, value) in row.entries() {
                if which == Which::Value {
                    let source = SourceId(node.id);
                    expected.insert(GroupsKey { tenant: node.tenant, kind, source }, value);
                }
            }
        }
        assert_eq!(counters, expected, "{name}: counters");
    }
}

/// What the target's side keeps is mended there.
fn of_the_source_side(change: &Change) -> bool {
    match change {
        Change::RepairTally { .. } => false,
        Change::RepairEntry { entry } => matches!(entry.index, Index::Expiry { .. }),
        _ => true,
    }
}

/// Answers without versions and ids that come from them.
fn plain(mut answers: Answers) -> Answers {
    for answer in answers.iter_mut().flatten() {
        match answer {
            Answer::Edge(edge) => edge.version = edge.version.map(|_| Version::ZERO),
            Answer::Job(id) => *id = JobId(0),
            Answer::Node(row) => row.erased_by = row.erased_by.map(|_| JobId(0)),
            _ => {}
        }
    }
    answers
}
