//! Reads answers about pinned keys again, behind those who read them: one thread, woken by the first
//! who finds an answer's life over. Each answer is whole and of one moment, as a reader's own is.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::backoff::Backoff;
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::read::{ListQuery, Page, Reader};
use guanxi_core::signal::Next;
use guanxi_core::snapshot::{Direction, Snapshot, StoreError, Wanted};
use guanxi_model::{Error, KindId, NodeKey, Secret, TallyRow, View};

use super::{LIFE, PINNED_AGE_MAX, PageKey, ReadCache, TalliesKey};
use crate::catalog::SharedCatalog;
use crate::snapshot::{SqlSnapshot, target_side};
use crate::sql::Database;

/// An answer that comes later helps nobody: by then readers read for themselves.
const READ_LIMIT: Duration = PINNED_AGE_MAX.saturating_sub(LIFE);

pub struct RefresherParts {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub cache: Arc<ReadCache>,
    pub secret: Arc<Secret>,
}

/// Starts the thread that reads.
pub fn read_behind(parts: RefresherParts) -> io::Result<Workers> {
    let workers = parts.crew.workers_by(parts.cache.bell.clone());
    let (trouble, backoff) = ("pinned answers could not be read again", Backoff::default());
    workers.repeat("guanxi-hot-reads", trouble, backoff, move |_| {
        parts.read_stale().map(|()| Next::Woken)
    })?;
    Ok(workers)
}

impl RefresherParts {
    /// Reads what was asked for, as far as it can be.
    fn read_stale(&self) -> Result<(), String> {
        let mut done = Ok(());
        let mut by_kinds: BTreeMap<Box<[KindId]>, Vec<NodeKey>> = BTreeMap::new();
        for TalliesKey { node, kinds } in self.cache.tallies.take_stale() {
            by_kinds.entry(kinds).or_default().push(node);
        }
        for (kinds, nodes) in by_kinds {
            let begun = Instant::now();
            let mut rows = self.tallies(&nodes, &kinds).map(Vec::into_iter);
            done = rows.as_ref().map_or_else(|error| Err(error.to_string()), |_| done);
            for node in nodes {
                let row = rows.as_mut().ok().and_then(Iterator::next);
                self.cache.tallies.renew(&TalliesKey { node, kinds: kinds.clone() }, row, begun);
            }
        }
        for key in self.cache.pages.take_stale() {
            let begun = Instant::now();
            let page = self.page(&key);
            done = page.as_ref().map_or_else(|error| Err(error.to_string()), |_| done);
            self.cache.pages.renew(&key, page.ok().flatten().map(Arc::new), begun);
        }
        done
    }

    /// Target-side tallies of the nodes, in their order.
    fn tallies(&self, nodes: &[NodeKey], kinds: &[KindId]) -> Result<Vec<TallyRow>, StoreError> {
        let snapshot = self.snapshot();
        snapshot.prefetch(&mut |wanted: &mut Wanted| match kinds.is_empty() {
            true => wanted.nodes.extend_from_slice(nodes),
            false => {
                wanted.targets.extend_from_slice(nodes);
                wanted.kinds.extend_from_slice(kinds);
            }
        })?;
        let row = |node: &NodeKey| match kinds.is_empty() {
            true => snapshot.tallies(node).map(|row| target_side(&row)),
            false => snapshot.target_tallies(node, kinds),
        };
        nodes.iter().map(row).collect()
    }

    /// The page; none when its kind is not there any more.
    fn page(&self, key: &PageKey) -> Result<Option<Page>, Error> {
        let Some(kind) = self.catalog.current().kind(key.tenant, key.kind).cloned() else {
            return Ok(None);
        };
        let query = ListQuery {
            state: key.state,
            ..ListQuery::newest(key.tenant, &kind, Direction::Incoming, key.target, key.limit)
        };
        Reader::new(Box::new(self.snapshot()), &self.secret).list(&query).map(Some)
    }

    /// Keeps and takes nothing itself.
    fn snapshot(&self) -> SqlSnapshot {
        let deadline = Instant::now() + READ_LIMIT;
        SqlSnapshot::begin(&self.database, self.catalog.current(), deadline)
    }
}
