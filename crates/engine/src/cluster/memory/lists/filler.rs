//! Fills lists that were missed: one database read each, by few threads, so that a cold Redis is
//! filled at a pace that the database does not feel. Who finds no room does without.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fmt, io};

use guanxi_model::{GroupId, GroupSet, GroupsKey, State};

use super::Lists;
use super::packed::{EDGES_MAX, Outgoing};
use crate::cluster::memory::tier::Tier;
use crate::cluster::rows::{self, GROUP_COLUMNS, OUTGOING_COLUMNS, cell};
use crate::cluster::sql::{Database, SqlError};

/// Lists that are read at once.
const THREADS: usize = 2;
/// Lists that may wait to be filled.
const WAITING_MAX: usize = 1_024;
/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(2);

/// Takes lists to fill; ends with the last of its threads when dropped.
pub struct Filler {
    waiting: Option<SyncSender<GroupsKey>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Filler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filler").finish_non_exhaustive()
    }
}

impl Filler {
    pub fn start(lists: &Arc<Lists>, tier: &Tier, database: &Arc<Database>) -> io::Result<Filler> {
        let (waiting, wanted) = sync_channel(WAITING_MAX);
        let wanted = Arc::new(Mutex::new(wanted));
        let start = |_| {
            let work = Work {
                lists: lists.clone(),
                tier: tier.clone(),
                database: database.clone(),
                wanted: wanted.clone(),
            };
            std::thread::Builder::new().name("guanxi-lists-fill".into()).spawn(move || work.run())
        };
        let threads = (0..THREADS).map(start).collect::<io::Result<Vec<_>>>()?;
        Ok(Filler { waiting: Some(waiting), threads })
    }

    /// Has the list filled when there is time; a full queue forgets it, and the next who misses it
    /// asks again.
    pub fn want(&self, list: GroupsKey) {
        if let Some(waiting) = &self.waiting {
            let _full = waiting.try_send(list);
        }
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.waiting = None;
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

struct Work {
    lists: Arc<Lists>,
    tier: Tier,
    database: Arc<Database>,
    wanted: Arc<Mutex<Receiver<GroupsKey>>>,
}

impl Work {
    fn run(&self) {
        loop {
            let wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(list) = wanted else { return };
            let Some(lease) = self.tier.wait(self.lists.lease(list)) else { continue };
            match self.read(&list) {
                Ok(found) => self.tier.wait(self.lists.fill(lease, found.as_ref())),
                Err(error) => tracing::debug!(%error, "a list could not be read to be kept"),
            }
        }
    }

    /// The edges that stand, by target; none where there are too many. What is read apart is of one
    /// moment if no write ended the lease meanwhile.
    fn read(&self, list: &GroupsKey) -> Result<Option<Outgoing>, SqlError> {
        let GroupsKey { tenant, kind, source } = list;
        let (tenant, kind, source) = (tenant.0, kind.0, source.0);
        let mut session = self.database.session(Instant::now() + SESSION_WAIT)?;
        let counted = session.rows(&format!(
            "SELECT outgoing+pending_outgoing,next_group FROM head \
             WHERE tenant={tenant} AND kind={kind} AND source={source}"
        ))?;
        let count: i64 = counted.first().map_or(Ok(0), |row| cell(row, 0))?;
        let next = counted.first().map_or(Ok(1), |row| cell(row, 1))?;
        if count > EDGES_MAX as i64 {
            return Ok(None);
        }
        let (removed, limit) = (State::Removed as u8, EDGES_MAX + 1);
        let found = session.rows(&format!(
            "SELECT {OUTGOING_COLUMNS} FROM outgoing FORCE INDEX (PRIMARY) WHERE tenant={tenant} \
             AND kind={kind} AND source={source} AND state<>{removed} \
             ORDER BY tenant,kind,source,target LIMIT {limit}"
        ))?;
        let rows = found.iter().map(rows::outgoing);
        let rows: Vec<_> = rows
            .map(|row| row.map(|(edge, row)| (edge.target, row)))
            .collect::<Result<_, SqlError>>()?;
        if rows.len() > EDGES_MAX {
            return Ok(None);
        }
        let groups = session.rows(&format!(
            "SELECT {GROUP_COLUMNS} FROM `groups` \
             WHERE tenant={tenant} AND kind={kind} AND source={source} ORDER BY id"
        ))?;
        let groups = groups.iter().map(|row| rows::group(row).map(|(_, group)| group));
        let groups = groups.collect::<Result<_, SqlError>>()?;
        Ok(Some(Outgoing { rows, groups: GroupSet { next: GroupId(next), groups } }))
    }
}
