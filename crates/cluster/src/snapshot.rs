//! Reads from the tables. The source's side (outgoing rows, groups, settings, the heads' tallies)
//! is current; the target's side (incoming rows, tallies) is as far as the appliers are, with the
//! edges of a presented token laid over it.
//!
//! What is read in several round trips is read in one read-only transaction with a consistent
//! snapshot, so that a page's items and its total are of one moment; what fits into one round trip
//! ends with it and keeps no connection. `fetch` reads rows by their keys, `lists` walks by time,
//! `walks` by key, `listed` along a list that is at hand; `reading_with_token` lays a token's edges
//! over lists and tallies.
//!
//! TiDB's embedded storage (a test server's, not TiKV) shows newer rows to backward scans within a
//! snapshot; `Scans::Forward` is for those who need exactness there.

mod at_hand;
mod defaults;
mod fetch;
mod filling;
mod listed;
mod lists;
mod reading_with_token;
mod walks;

pub use at_hand::Remembered;
pub use defaults::Defaulted;
pub(super) use defaults::DefaultsNote;
pub(super) use fetch::target_side;
use guanxi_core::read::{ListQuery, Page};
use guanxi_core::snapshot::{
    Ahead, Direction, IncomingList, Snapshot, StoreError, TimeRange, Timeline, Wanted,
};
use guanxi_model::codec::{decode_idempotency, decode_import, decode_job};
use guanxi_model::group::Group;
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::import::{ImportId, ImportRow};
use guanxi_model::job::{Job, JobId};
use guanxi_model::page::PagePlace;
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, Ends, Error, GroupSet, GroupsKey, KindId, Millis, Node, NodeKey,
    NodeRow, NodeTypeId, SourceId, TallyRow, TargetId, TenantId, View, Which,
};
pub(super) use lists::place;
pub use lists::{CHUNK_PLACES, statements as list_statements};

use std::cell::{OnceCell, RefCell};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use mysql::Row;

use self::at_hand::Lacking;
use self::fetch::KnownRows;
use self::filling::TalliesToFill;
use self::listed::list_key;
use self::reading_with_token::Late;
use super::cache::ReadCache;
use super::rows::cell;
use super::sql::commit_deadline::COMMIT_WITHIN;
use super::sql::{Database, Dialect, Session, SqlError, text};
use super::token_edges::SeenEdge;

/// Connections that were found dead before a read gives up; the pool may hold several after the
/// database was started again.
const DEAD_CONNECTIONS_MAX: usize = 4;

/// Which way an index is walked for what comes last in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scans {
    /// Backward, from the end: a page costs what it shows.
    Backward,
    /// Forward over all of it, then turned round.
    Forward,
}

pub struct SqlSnapshot {
    database: Arc<Database>,
    catalog: Arc<Catalog>,
    deadline: Instant,
    /// It may go on for longer than servers let transactions be idle, as an export to a slow client
    /// does.
    rests: bool,
    scans: Scans,
    talk: RefCell<Talk>,
    known: RefCell<KnownRows>,
    seen: Vec<SeenEdge>,
    late: OnceCell<Late>,
    cache: Option<Arc<ReadCache>>,
    filling: Option<TalliesToFill>,
    /// Where the database is not to be asked: what would have been asked of it.
    lacking: Option<RefCell<Lacking>>,
    /// Where what is lacking is shown by default.
    defaults: Option<DefaultsNote>,
}

/// Where a snapshot is with the database.
enum Talk {
    /// Nothing is open: the next read in several parts begins a transaction.
    Idle,
    Open(Session<'static>),
    /// The transaction is lost, and the moment with it.
    Failed(StoreError),
}

impl std::fmt::Debug for SqlSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlSnapshot").field("seen", &self.seen).finish_non_exhaustive()
    }
}

impl SqlSnapshot {
    /// Sends nothing yet: the moment is that of the first read.
    pub fn begin(
        database: &Arc<Database>,
        catalog: Arc<Catalog>,
        deadline: Instant,
    ) -> SqlSnapshot {
        SqlSnapshot {
            database: database.clone(),
            catalog,
            deadline,
            rests: deadline > Instant::now() + COMMIT_WITHIN,
            scans: Scans::Backward,
            talk: RefCell::new(Talk::Idle),
            known: RefCell::default(),
            seen: Vec::new(),
            late: OnceCell::new(),
            cache: None,
            filling: None,
            lacking: None,
            defaults: None,
        }
    }

    /// Shows these edges on the target's side too, whether the appliers have them or not.
    pub fn with_seen(mut self, seen: &[SeenEdge]) -> SqlSnapshot {
        self.seen = seen.to_vec();
        self
    }

    /// Takes what the process keeps: target-side tallies for reads of one round trip, and pages of
    /// incoming lists.
    pub fn with_cache(mut self, cache: &Arc<ReadCache>) -> SqlSnapshot {
        self.cache = Some(cache.clone());
        self
    }

    pub fn with_scans(mut self, scans: Scans) -> SqlSnapshot {
        self.scans = scans;
        self
    }

    /// Makes the moment that of now, and every read fail if there is none.
    pub fn open(&self) -> Result<(), StoreError> {
        self.read(&[]).map(|_| ())
    }

    /// Sends statements in one round trip, within the transaction; the rows of each.
    fn read(&self, statements: &[String]) -> Result<Vec<Vec<Row>>, StoreError> {
        self.may_ask()?;
        let talk = &mut *self.talk.borrow_mut();
        let answered = match talk {
            Talk::Failed(error) => return Err(error.clone()),
            Talk::Open(_) if statements.is_empty() => return Ok(Vec::new()),
            Talk::Open(session) => self.in_time().and_then(|()| session.run(&statements.join(";"))),
            Talk::Idle => self.begin_with(statements).map(|(session, sets)| {
                *talk = Talk::Open(session);
                sets
            }),
        };
        match answered {
            Ok(mut sets) => {
                let begun = sets.len().saturating_sub(statements.len());
                Ok(sets.drain(begun..).map(|set| set.rows).collect())
            }
            Err(error) => {
                let error = unreadable(error);
                if let Talk::Open(session) = talk {
                    // Also where it was not asked any more: its old moment is for nobody else.
                    session.close();
                }
                *talk = Talk::Failed(error.clone());
                Err(error)
            }
        }
    }

    /// Sends statements that are all there is to read: of one moment, in one round trip that
    /// leaves nothing open. Within an open transaction, of its moment.
    fn read_whole(&self, statements: &[String]) -> Result<Vec<Vec<Row>>, StoreError> {
        self.may_ask()?;
        if !self.is_idle() {
            return self.read(statements);
        }
        let text = match statements {
            // One statement is of one moment by itself.
            [single] => single.clone(),
            several => format!("{};{};COMMIT", begin(self.database.dialect()), several.join(";")),
        };
        let (_, mut sets) = self.fresh(&text).map_err(unreadable)?;
        if statements.len() > 1 {
            sets.pop();
        }
        let begun = sets.len().saturating_sub(statements.len());
        Ok(sets.drain(begun..).map(|set| set.rows).collect())
    }

    fn begin_with(&self, statements: &[String]) -> Result<OpenedSession, SqlError> {
        let mut text = String::new();
        if self.rests {
            text.push_str(&self.database.idle_limit_off());
        }
        text.push_str(begin(self.database.dialect()));
        for statement in statements {
            text.push(';');
            text.push_str(statement);
        }
        self.fresh(&text)
    }

    /// Sends the first statements over a connection from the pool. One that died there is no
    /// reason to fail: nothing was read yet, so another is tried.
    fn fresh(&self, text: &str) -> Result<OpenedSession, SqlError> {
        let mut dead = 0;
        loop {
            self.in_time()?;
            let mut session = self.database.kept_session(self.deadline)?;
            match session.run(text) {
                Ok(sets) => return Ok((session, sets)),
                Err(SqlError::Lost(_)) if dead < DEAD_CONNECTIONS_MAX => dead += 1,
                Err(error) => return Err(error),
            }
        }
    }

    fn is_idle(&self) -> bool {
        matches!(&*self.talk.borrow(), Talk::Idle)
    }

    fn in_time(&self) -> Result<(), SqlError> {
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(SqlError::Away("the read's time is over".into())),
        }
    }

    /// The first row of a statement about one key.
    fn row<T>(
        &self,
        statement: String,
        decode: impl FnOnce(&Row) -> Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        let sets = self.read_whole(&[statement])?;
        sets.first().and_then(|rows| rows.first()).map(decode).transpose()
    }
}

type OpenedSession = (Session<'static>, Vec<super::sql::RowSet>);

/// The level holds for this transaction alone; the connection's own stays READ COMMITTED.
fn begin(dialect: Dialect) -> &'static str {
    match dialect {
        // TiDB knows no read-only transactions, and needs none: a reader locks nothing.
        Dialect::TiDb => {
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;\
             START TRANSACTION WITH CONSISTENT SNAPSHOT"
        }
        Dialect::MariaDb | Dialect::MySql => {
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;\
             START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
        }
    }
}

impl Drop for SqlSnapshot {
    fn drop(&mut self) {
        if let Talk::Open(session) = self.talk.get_mut() {
            // A session that cannot say it is at rest does not go back to the pool.
            let mut text = String::from("COMMIT");
            if self.rests {
                text.push_str(&self.database.idle_limit_on());
            }
            let _ = session.run(&text);
        }
    }
}

pub fn unreadable(error: SqlError) -> StoreError {
    match error {
        SqlError::Refused(text) => StoreError::Damaged(text),
        SqlError::Busy(_) | SqlError::Lost(_) | SqlError::Late(_) | SqlError::Away(_) => {
            StoreError::Io(error.to_string())
        }
    }
}

fn blob(row: &Row, index: usize) -> Result<Vec<u8>, StoreError> {
    cell(row, index).map_err(unreadable)
}

impl View for SqlSnapshot {
    type Error = StoreError;

    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn edge(&self, key: &EdgeKey) -> Result<Option<EdgeRow>, StoreError> {
        if let Some(row) = self.known.borrow().edge(key) {
            return Ok(row.cloned());
        }
        self.fetch(Wanted { edges: vec![*key], more: true, ..Wanted::default() })?;
        Ok(self.known.borrow().edge(key).flatten().cloned())
    }

    fn tallies(&self, node: &NodeKey) -> Result<TallyRow, StoreError> {
        self.with_node(node, |node| node.tallies.clone())
    }

    fn groups(&self, key: &GroupsKey) -> Result<GroupSet, StoreError> {
        if let Some(groups) = self.known.borrow().groups.get(key) {
            return Ok(groups.clone());
        }
        self.fetch(Wanted { groups: vec![*key], more: true, ..Wanted::default() })?;
        Ok(self.known.borrow().groups.get(key).cloned().unwrap_or_default())
    }

    fn node(&self, node: &NodeKey) -> Result<NodeRow, StoreError> {
        self.with_node(node, |node| node.settings)
    }

    fn idempotency(
        &self,
        tenant: TenantId,
        key: &IdempotencyKey,
    ) -> Result<Option<IdempotencyRow>, StoreError> {
        let mut statement =
            format!("SELECT answers FROM idempotency WHERE tenant={} AND name=", tenant.0);
        text::bytes(&mut statement, key.as_str().as_bytes());
        // A key that a batch has taken and not answered yet is none.
        statement.push_str(" AND answers IS NOT NULL");
        self.row(statement, |row| Ok(decode_idempotency(&blob(row, 0)?)?))
    }

    fn import(&self, tenant: TenantId, id: &ImportId) -> Result<Option<ImportRow>, StoreError> {
        let mut statement = format!("SELECT place FROM imports WHERE tenant={} AND id=", tenant.0);
        text::bytes(&mut statement, id.as_str().as_bytes());
        self.row(statement, |row| Ok(decode_import(&blob(row, 0)?)?))
    }

    fn job(&self, tenant: TenantId, id: JobId) -> Result<Option<Job>, StoreError> {
        let statement = format!("SELECT job FROM jobs WHERE tenant={} AND id={}", tenant.0, id.0);
        self.row(statement, |row| Ok(decode_job(&blob(row, 0)?)?))
    }
}

impl Snapshot for SqlSnapshot {
    fn prefetch(&self, want: &mut dyn FnMut(&mut Wanted)) -> Result<(), StoreError> {
        let mut wanted = Wanted::default();
        want(&mut wanted);
        match &self.lacking {
            None => self.fetch(wanted),
            Some(lacking) => {
                self.look_at_hand(wanted, lacking);
                Ok(())
            }
        }
    }

    fn lacked(&self) -> Option<Wanted> {
        self.lacking.as_ref().and_then(|lacking| lacking.borrow().missed())
    }

    fn through_kept(
        &self,
        query: &ListQuery,
        read: &mut dyn FnMut() -> Result<Page, Error>,
    ) -> Result<Page, Error> {
        let cache = self.cache.as_ref().filter(|_| self.seen.is_empty() && self.is_idle());
        match (cache, &self.lacking) {
            (None, _) => read(),
            (Some(cache), None) => cache.page(query, read),
            // What is at hand is read at once, and nobody waits for it.
            (Some(cache), Some(_)) => {
                cache.kept_page(query).map_or_else(|| self.page_at_hand(query, cache, read), Ok)
            }
        }
    }

    /// The tables have their index by time from the beginning, whatever the kind says.
    fn lists_outgoing_by_time(&self, _tenant: TenantId, _kind: KindId) -> bool {
        true
    }

    fn target_tallies(&self, node: &NodeKey, kinds: &[KindId]) -> Result<TallyRow, StoreError> {
        if let Some(row) = self.known.borrow().target(node, kinds) {
            return Ok(row.clone());
        }
        let (targets, kinds_wanted) = (vec![*node], kinds.to_vec());
        self.fetch(Wanted { targets, kinds: kinds_wanted, more: true, ..Wanted::default() })?;
        Ok(self.known.borrow().target(node, kinds).cloned().unwrap_or_default())
    }

    fn incoming_tally(&self, node: &NodeKey, kind: KindId) -> Result<i64, StoreError> {
        let list = IncomingList { tenant: node.tenant, kind, target: TargetId(node.id) };
        match self.newest(&list).filter(|newest| newest.complete) {
            Some(newest) => Ok(newest.entries.len() as i64),
            None => Ok(self.target_tallies(node, &[kind])?.get(kind, Which::Incoming)),
        }
    }

    fn source_tallies(&self, node: &NodeKey, kind: KindId) -> Result<TallyRow, StoreError> {
        let list = GroupsKey { tenant: node.tenant, kind, source: SourceId(node.id) };
        match self.listed(&list) {
            Some(known) => Ok(known.tallies(&list)),
            None => self.tallies(node),
        }
    }

    fn whole_node(&self, node: &NodeKey) -> Result<Node, StoreError> {
        self.with_node(node, Node::clone)
    }

    fn timeline(
        &self,
        list: &Timeline,
        range: &TimeRange,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let ahead = Ahead { places: usize::MAX, wants: &|_, _| () };
        self.timeline_ahead(list, range, &ahead, visit)
    }

    fn timeline_ahead(
        &self,
        list: &Timeline,
        range: &TimeRange,
        ahead: &Ahead<'_>,
        visit: &mut dyn FnMut(PagePlace) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let listed = match list.direction {
            Direction::Outgoing => self.listed(&list_key(list)),
            Direction::Incoming => match self.newest_part(list, range, ahead.places) {
                Some(part) => return self.walk_part(&part, list, range, ahead, visit),
                None => None,
            },
        };
        let Some(listed) = listed else {
            return self.walk_by_time(list, range, ahead, visit);
        };
        listed.each_by_time(list.state, range, visit);
        Ok(())
    }

    fn edges_of_source(
        &self,
        tenant: TenantId,
        kind: KindId,
        source: SourceId,
        after: Option<TargetId>,
        visit: &mut dyn FnMut(TargetId, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let key = GroupsKey { tenant, kind, source };
        let Some(listed) = self.listed(&key) else {
            return self.walk_edges_of_source(&key, after, visit);
        };
        listed.each_by_target(after, visit);
        Ok(())
    }

    fn edges_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        after: Option<Ends>,
        visit: &mut dyn FnMut(Ends, EdgeRow) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.walk_edges_of_kind(tenant, kind, after, visit)
    }

    fn groups_of_kind(
        &self,
        tenant: TenantId,
        kind: KindId,
        visit: &mut dyn FnMut(SourceId, Group) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.walk_groups_of_kind(tenant, kind, visit)
    }

    fn nodes_of_type(
        &self,
        tenant: TenantId,
        node_type: NodeTypeId,
        visit: &mut dyn FnMut(u64, Node) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.walk_nodes_of_type(tenant, node_type, visit)
    }

    fn due(&self, now: Millis, edges_max: usize) -> Result<Vec<(Millis, EdgeKey)>, StoreError> {
        self.due_edges(now, edges_max)
    }

    fn jobs(
        &self,
        tenant: TenantId,
        before: Option<JobId>,
        visit: &mut dyn FnMut(Job) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        self.walk_jobs(tenant, before, visit)
    }
}

impl SqlSnapshot {
    fn with_node<T>(&self, key: &NodeKey, read: impl Fn(&Node) -> T) -> Result<T, StoreError> {
        if let Some(node) = self.known.borrow().nodes.get(key) {
            return Ok(read(node));
        }
        self.fetch(Wanted { nodes: vec![*key], more: true, ..Wanted::default() })?;
        Ok(read(self.known.borrow().nodes.get(key).unwrap_or(&Node::default())))
    }
}
