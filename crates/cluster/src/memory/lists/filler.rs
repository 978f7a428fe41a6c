//! Reads lists that were missed from the database, to be kept in Redis.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::crew::Crew;
use guanxi_model::{GroupId, GroupSet, GroupsKey, State};

use super::Lists;
use super::packed::{EDGES_MAX, OutgoingList};
use crate::memory::filler::FillThreads;
use crate::memory::tier::Tier;
use crate::rows::{self, GROUP_COLUMNS, OUTGOING_COLUMNS, cell};
use crate::sql::{Database, SqlError};

/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(2);

pub(in crate::memory) fn start(
    crew: &Crew,
    lists: &Arc<Lists>,
    tier: &Tier,
    database: &Arc<Database>,
) -> io::Result<FillThreads<GroupsKey>> {
    let work =
        ListFillerWork { lists: lists.clone(), tier: tier.clone(), database: database.clone() };
    FillThreads::start(crew, "guanxi-lists-fill", move |list| work.fill(*list))
}

#[derive(Clone)]
struct ListFillerWork {
    lists: Arc<Lists>,
    tier: Tier,
    database: Arc<Database>,
}

impl ListFillerWork {
    fn fill(&self, list: GroupsKey) {
        let Some(lease) = self.tier.wait(self.lists.lease(list)) else { return };
        match self.read(&list) {
            Ok(found) => self.tier.wait(self.lists.fill(lease, found.as_ref())),
            Err(error) => tracing::debug!(%error, "a list could not be read to be kept"),
        }
    }

    /// The edges that stand, by target; none where there are too many. What is read apart is of one
    /// moment if no write ended the lease meanwhile.
    fn read(&self, list: &GroupsKey) -> Result<Option<OutgoingList>, SqlError> {
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
        Ok(Some(OutgoingList { rows, groups: GroupSet { next: GroupId(next), groups } }))
    }
}
