//! One instance of a cluster: opens the database and the log, runs the parts that its roles name,
//! and is what the protocols ask. It keeps nothing of its own: any instance may end at any time.

mod defaults;
mod health;
mod reading_at_hand;
mod roles;
mod serving;
mod settings;
mod token;
mod waiting_calls;
mod watching;

pub use self::health::{ClusterStatus, Reach};
pub use self::reading_at_hand::RecalledRead;
pub use self::serving::ServedCluster;
pub use self::settings::{ClusterError, ClusterSettings, Migrated, Roles, migrate};
pub use self::waiting_calls::WAITS_MAX;

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::audit::{AuditQuery, AuditRun, AuditState};
use guanxi_core::clock::{SteadyClock, SystemClock};
use guanxi_core::crew::{Crew, Workers};
use guanxi_core::deployment::FilterStatus;
use guanxi_core::hot::HotReads;
use guanxi_core::read::Reader;
use guanxi_model::idempotency::Answers;
use guanxi_model::token::cluster::TokenEdge;
use guanxi_model::{Catalog, Change, ClusterToken, Code, EdgeKey, Error, Request, Secret};
use parking_lot::Mutex;

use self::health::HealthCheck;
use self::roles::{InstanceParts, PartsGround};
use self::settings::{bind_to_none, bind_to_topics, refuse_move};
use self::waiting_calls::TokenWaits;
use super::applier::Applier;
use super::audit::{SqlAuditor, SqlAuditorParts};
use super::cache::{ReadCache, RefresherParts, read_behind};
use super::catalog::{SharedCatalog, watch_catalog};
use super::clock::steady_clock;
use super::dead_letters::DeadLetterTable;
use super::hot::share_hot_keys;
use super::kafka::TopicError;
use super::leases::{Leases, Share};
use super::memory::SharedMemory;
use super::read_budget::ReadBudget;
use super::relay::Relay;
use super::rows::{cell, edge_tuple};
use super::schema;
use super::secret;
use super::snapshot::SqlSnapshot;
use super::sql::{Database, SqlError, text};
use super::token_edges::{SeenEdge, wait_for_seen};
use super::upkeep::{self, UpkeepParts, UpkeepSettings};

/// How long a stop waits for the relay to move what was committed into the log. Another instance
/// moves what is left.
const LAST_RELAY_WAIT: Duration = Duration::from_secs(2);
/// Between two looks whether it has.
const LAST_RELAY_LOOK: Duration = Duration::from_millis(20);

pub struct Cluster {
    settings: ClusterSettings,
    crew: Crew,
    /// The clock of what removes.
    steady: Arc<SteadyClock>,
    database: Arc<Database>,
    catalog: Arc<SharedCatalog>,
    catalog_watch: Workers,
    leases: Arc<Leases>,
    secret: Arc<Secret>,
    waits: TokenWaits,
    /// Says to a move that there is an instance.
    _presence: Share,
    auditor: Arc<SqlAuditor>,
    dead_letters: DeadLetterTable,
    health: HealthCheck,
    cache: Arc<ReadCache>,
    hot: Arc<HotReads>,
    budget: ReadBudget,
    memory: Arc<SharedMemory>,
    parts: InstanceParts,
    closed: Mutex<bool>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("roles", &self.settings.roles).finish_non_exhaustive()
    }
}

impl Cluster {
    /// Connects, checks tables and topics, and starts what the roles name. The log may be away:
    /// writes and the source's side do without it for a while.
    pub fn open(settings: ClusterSettings) -> Result<Arc<Cluster>, ClusterError> {
        let database = settings.database()?;
        schema::check(&database)?;
        // Whoever waits for the end of a move says nothing of itself meanwhile.
        refuse_move(&database)?;
        let instance = random_id();
        let crew = Crew::default();
        let leases = Leases::start(&crew, database.clone(), instance)?;
        // Said before it is asked, as a move says first that it begins, and then looks for
        // instances: of two that come at the same moment at least one sees the other.
        let presence = leases.announce()?;
        refuse_move(&database)?;
        let is_bound = match bind_to_topics(&settings, &database) {
            Err(ClusterError::Topics(TopicError::Log(error))) if error.may_pass() => {
                tracing::warn!(%error, "the log cannot be reached; it is tried again and again");
                bind_to_none(&settings, &database)?;
                false
            }
            checked => checked.map(|()| true)?,
        };
        // Once more: what it said of itself at first runs out if it is paused for some seconds. The
        // positions that are there now do not, and no move begins beside them.
        refuse_move(&database)?;
        let secret = Arc::new(secret::read(&database)?.ok_or(ClusterError::NoSecret)?);
        let catalog = SharedCatalog::open(&database)?;
        let memory =
            Arc::new(SharedMemory::start(&crew, settings.memory.as_ref(), database.clone())?);
        let jumped = settings.clock_may_have_jumped;
        let steady = Arc::new(steady_clock(&database, Arc::new(SystemClock), jumped)?);
        let ground = PartsGround {
            memory,
            catalog_watch: watch_catalog(&crew, catalog.clone(), database.clone())?,
            leases,
            clock: Arc::new(SystemClock),
            steady,
            crew,
            database,
            catalog,
            instance,
        };
        let leases = ground.leases.clone();
        ground.crew.when_lost(move |_| leases.abandon());
        let mut parts = ground.parts(&settings)?;
        let auditor = Arc::new(SqlAuditor::new(SqlAuditorParts {
            database: ground.database.clone(),
            catalog: ground.catalog.clone(),
            leases: ground.leases.clone(),
            clock: ground.clock.clone(),
            settings: settings.audit,
            topic: settings.applied_topic().to_owned(),
            partitions: settings.kafka.partitions,
        }));
        if let (true, Some(committer)) = (settings.roles.upkeep, &parts.committer) {
            parts.upkeep = Some(upkeep::start(UpkeepParts {
                crew: ground.crew.clone(),
                database: ground.database.clone(),
                catalog: ground.catalog.clone(),
                committer: committer.clone(),
                leases: ground.leases.clone(),
                clock: ground.steady.clone(),
                auditor: auditor.clone(),
                kafka: settings.kafka.clone(),
                changefeed: settings.ticdc_topic.clone(),
                settings: UpkeepSettings::default(),
            })?);
        }
        let dead_letters = DeadLetterTable::new(
            ground.database.clone(),
            ground.catalog.clone(),
            &settings.kafka.topic,
            settings.kafka.partitions,
        );
        let health = HealthCheck::start(
            &ground.crew,
            ground.database.clone(),
            settings.kafka.clone(),
            settings.ticdc_topic.clone(),
            ground.leases.clone(),
            ground.steady.clone(),
            (!is_bound).then(|| settings.clone()),
        )?;
        let hot = Arc::<HotReads>::default();
        let cache = Arc::new(ReadCache::new(hot.clone()));
        if settings.roles.api {
            let tier = ground.memory.any_tier().cloned();
            parts.hot = Some(share_hot_keys(&ground.crew, hot.clone(), tier, ground.instance)?);
            parts.behind = Some(read_behind(RefresherParts {
                crew: ground.crew.clone(),
                database: ground.database.clone(),
                catalog: ground.catalog.clone(),
                cache: cache.clone(),
                secret: secret.clone(),
            })?);
        }
        let PartsGround { crew, database, catalog, catalog_watch, leases, memory, steady, .. } =
            ground;
        let partitions = settings.kafka.partitions;
        let waits = TokenWaits::start(&crew, database.clone(), catalog.clone(), partitions)?;
        let closed = Mutex::new(false);
        Ok(Arc::new(Cluster {
            budget: ReadBudget::new(settings.reads),
            settings,
            crew,
            steady,
            database,
            catalog,
            catalog_watch,
            leases,
            secret,
            waits,
            _presence: presence,
            auditor,
            dead_letters,
            health,
            cache,
            hot,
            memory,
            parts,
            closed,
        }))
    }

    /// Its threads.
    pub fn crew(&self) -> &Crew {
        &self.crew
    }

    pub fn roles(&self) -> Roles {
        self.settings.roles
    }

    /// The kinds as this instance knows them, at most seconds old.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.current()
    }

    /// What tokens, cursors and event ids are sealed with.
    pub fn secret(&self) -> &Arc<Secret> {
        &self.secret
    }

    /// Does the request's changes; resolves when they are durable. The token names what others may
    /// not see yet.
    pub async fn write(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Result<(Answers, ClusterToken), Error> {
        let mut token = token::of_changes(request.tenant, &request.changes);
        let of_catalog = request.changes.iter().any(changes_catalog);
        let (Some(committer), Some(counters)) = (&self.parts.committer, &self.parts.counters)
        else {
            return Err(no_callers());
        };
        if !request.changes.is_empty() && request.changes.iter().all(is_count) {
            return Ok((counters.write(request, deadline).await?, token));
        }
        let written = committer.write(request, deadline).await?;
        for SeenEdge { edge, version } in self.worth_naming(&written, deadline).await {
            token.add_edge(TokenEdge::of(&edge, version));
        }
        if of_catalog {
            token.add_catalog(self.catalog.revision());
        }
        Ok((written.answers, token))
    }

    /// One picture of the rows, with at least what the token stands for. Asks the database: for
    /// threads that may block.
    pub fn reader(&self, token: Option<&ClusterToken>, deadline: Instant) -> Result<Reader, Error> {
        let mut late = Vec::new();
        if let Some(token) = token {
            let seen = token.edges().iter();
            let seen: Vec<SeenEdge> = seen
                .map(|edge| SeenEdge { edge: edge.key(token.tenant), version: edge.version })
                .collect();
            let all = seen.is_empty()
                || wait_for_seen(&self.database, &seen, deadline).map_err(unanswered)?;
            if !all {
                self.check_known(&seen, deadline)?;
                late = seen;
            }
        }
        let snapshot = SqlSnapshot::begin(&self.database, self.catalog.current(), deadline);
        // Whoever presents a token wants more than a cache can promise.
        let snapshot = match token {
            Some(_) => snapshot.with_seen(&late),
            None => snapshot.with_cache(&self.cache),
        };
        Ok(Reader::new(Box::new(snapshot), &self.secret))
    }

    pub fn status(&self) -> ClusterStatus {
        let committer = self.parts.committer.as_ref();
        ClusterStatus {
            roles: self.settings.roles,
            queue_len: committer.map_or(0, |committer| committer.queue_len()),
            queue_max: self.settings.commit.queue_max,
            batches: committer.map_or(0, |committer| committer.batches()),
            catalog_revision: self.catalog.revision(),
            relay: self.parts.relay.as_ref().map(Relay::lag),
            applier: self.parts.applier.as_ref().map(Applier::figures),
            memory: self.memory.is_there().then(|| self.memory.figures()),
            hot_pinned: self.hot.pinned(),
            reads: Some(self.budget.figures()),
            audited: self.auditor.verdict(),
            clock_held_back_ms: self.steady.held_back_ms(),
            ..self.health.status()
        }
    }

    /// How long the log may still hold a record that was erased.
    pub fn log_keeps_ms(&self) -> u64 {
        self.health.log_keeps_ms()
    }

    /// What is read most.
    pub fn hot(&self) -> &HotReads {
        &self.hot
    }

    /// What instances share in Redis.
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// What is to be said of the existence filter, where there is one or might be.
    pub fn filter_status(&self) -> Option<FilterStatus> {
        self.memory.filter_status()
    }

    pub fn dead_letters(&self) -> &DeadLetterTable {
        &self.dead_letters
    }

    /// Begins an audit in the background and returns its number; there is one at a time.
    pub fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        self.auditor.begin(query)
    }

    /// The audit of this number, once it has ended.
    pub async fn audit_ended(&self, number: u64) -> Option<AuditRun> {
        self.auditor.ended(number).await
    }

    pub fn audit_state(&self) -> AuditState {
        self.auditor.state()
    }

    /// Takes no more writes, serves those that wait, lets the relay send what they left, and gives
    /// the leases back.
    pub fn close(&self) {
        let mut closed = self.closed.lock();
        if std::mem::replace(&mut *closed, true) {
            return;
        }
        let InstanceParts {
            committer,
            counters,
            relay,
            applier,
            remainder,
            feed,
            upkeep,
            keepers,
            hot,
            behind,
            follower,
        } = &self.parts;
        // Those that write through the committer end before it.
        if let Some(upkeep) = upkeep {
            upkeep.finish();
        }
        for workers in keepers.iter().chain(hot).chain(behind).chain(follower) {
            workers.stop();
        }
        self.auditor.close();
        if let Some(feed) = feed {
            feed.close();
        }
        if let Some(committer) = committer {
            committer.close();
        }
        if let Some(counters) = counters {
            counters.close();
        }
        if let Some(relay) = relay {
            self.let_relay_finish(relay);
            relay.close();
        }
        for applier in applier.iter().chain(remainder) {
            applier.close();
        }
        self.waits.close();
        self.leases.close();
        self.memory.close();
        self.catalog_watch.stop();
        self.health.close();
    }
}

impl Cluster {
    /// Refuses edges that this database never had so: the token is of another cluster, or of a
    /// later state of this one than was restored.
    fn check_known(&self, seen: &[SeenEdge], deadline: Instant) -> Result<(), Error> {
        let mut statement = String::from(
            "SELECT COUNT(*) FROM outgoing FORCE INDEX (PRIMARY) WHERE \
             (tenant,kind,source,target) IN (",
        );
        text::list(&mut statement, seen, |out, seen| edge_tuple(out, &seen.edge));
        statement.push_str(") AND version>=CASE ");
        for SeenEdge { edge, version } in seen {
            let EdgeKey { tenant, kind, source, target } = edge;
            statement.push_str(&format!(
                "WHEN tenant={} AND kind={} AND source={} AND target={} THEN {} ",
                tenant.0, kind.0, source.0, target.0, version.0
            ));
        }
        statement.push_str("END");
        let rows = self.database.session(deadline).and_then(|mut session| session.rows(&statement));
        let rows = rows.map_err(unanswered)?;
        let known: u64 = rows.first().map_or(Ok(0), |row| cell(row, 0)).map_err(unanswered)?;
        match known == seen.len() as u64 {
            true => Ok(()),
            false => Err(Error::new(
                Code::Unavailable,
                "what the token stands for is not here; is it of this cluster?",
            )),
        }
    }

    /// Gives the relay a moment to send what was committed last.
    fn let_relay_finish(&self, relay: &Relay) {
        relay.wake();
        let until = Instant::now() + LAST_RELAY_WAIT;
        while Instant::now() < until && self.health.status().log.reachable {
            let session = self.database.session(until);
            match session.and_then(|mut session| session.rows("SELECT 1 FROM outbox LIMIT 1")) {
                Ok(rows) if rows.is_empty() => return,
                Ok(_) => std::thread::sleep(LAST_RELAY_LOOK),
                Err(_) => return,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.close();
    }
}

/// What a caller hears from an instance that has no part for it: waiting does not help.
fn no_callers() -> Error {
    let message = "this instance does not serve callers; send the request to one with the role api";
    Error::new(Code::Unavailable, message).lasting()
}

fn is_count(change: &Change) -> bool {
    matches!(change, Change::Count(_))
}

fn changes_catalog(change: &Change) -> bool {
    matches!(change, Change::CreateKind { .. } | Change::SetKind { .. })
}

/// The driver's words go to the log of the service, never to a caller.
fn unanswered(error: SqlError) -> Error {
    tracing::error!(%error, "the database did not answer");
    match error.may_pass() {
        true => Error::new(Code::Unavailable, "the database did not answer; try again"),
        false => Error::new(Code::Internal, "the database refused a statement; it was logged"),
    }
}

/// Unlike any other instance's.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
