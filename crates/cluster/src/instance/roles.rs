//! What the roles of an instance start, and on what it stands.

use std::sync::Arc;

use guanxi_core::clock::{Clock, SteadyClock};
use guanxi_core::crew::{Crew, Workers};

use super::super::applier::{AppliedLog, Applier, ApplierParts, LogKind};
use super::super::catalog::SharedCatalog;
use super::super::commit::{SqlCommitter, SqlCommitterParts};
use super::super::counters::{CounterSettings, Counters, CountersParts};
use super::super::feed::{Feed, FeedLog};
use super::super::leases::Leases;
use super::super::memory::filter::ExistenceFilter;
use super::super::memory::follower::records::FollowedLog;
use super::super::memory::follower::{self, FollowerParts};
use super::super::memory::keeper::{self, KeeperParts};
use super::super::memory::{Kit, SharedMemory};
use super::super::outbox::Unrelayed;
use super::super::relay::Relay;
use super::super::sql::Database;
use super::{ClusterError, ClusterSettings};

/// Transactions that the applier has under way at once; each thread has its own partitions.
const APPLIER_THREADS: u32 = 2;

/// What the roles start.
#[derive(Default)]
pub(super) struct InstanceParts {
    /// Where callers are served or chores done.
    pub committer: Option<Arc<SqlCommitter>>,
    pub counters: Option<Counters>,
    pub relay: Option<Relay>,
    pub applier: Option<Applier>,
    /// Where a changefeed is the log: brings what our own topic still has, from before the
    /// changefeed or from instances that still relay.
    pub remainder: Option<Applier>,
    /// Where callers are served.
    pub feed: Option<Feed>,
    pub upkeep: Option<Workers>,
    /// Where chores are done and there is a memory.
    pub keepers: Vec<Workers>,
    /// Where callers are served: what they read most, told and heard, and read behind them.
    pub hot: Option<Workers>,
    pub behind: Option<Workers>,
    pub follower: Option<Workers>,
}

/// What the parts stand on.
pub(super) struct PartsGround {
    pub crew: Crew,
    pub database: Arc<Database>,
    pub catalog: Arc<SharedCatalog>,
    pub catalog_watch: Workers,
    pub leases: Arc<Leases>,
    pub memory: Arc<SharedMemory>,
    pub clock: Arc<dyn Clock>,
    /// The clock of what removes and forgets: it does not follow a jump.
    pub steady: Arc<SteadyClock>,
    pub instance: u64,
}

impl PartsGround {
    pub fn parts(&self, settings: &ClusterSettings) -> Result<InstanceParts, ClusterError> {
        let roles = settings.roles;
        let mut parts = InstanceParts::default();
        // With TiCDC as its source the log needs no relay.
        if roles.relay && settings.ticdc_topic.is_none() {
            let (database, catalog) = (self.database.clone(), self.catalog.clone());
            let kafka = settings.kafka.clone();
            parts.relay = Some(Relay::start(&self.crew, database, catalog, kafka, &self.leases)?);
        }
        if roles.applier {
            let log = settings.applied_log();
            if log != AppliedLog::Outbox {
                parts.remainder = Some(self.applier(settings, AppliedLog::Outbox, 1)?);
            }
            parts.applier = Some(self.applier(settings, log, APPLIER_THREADS)?);
        }
        if roles.api {
            let database = self.database.clone();
            let log = match settings.ticdc_topic.clone() {
                None => FeedLog::Outbox { database },
                Some(topic) => FeedLog::Ticdc { topic, database },
            };
            parts.feed = Some(Feed::start(&self.crew, settings.kafka.clone(), log)?);
        }
        if roles.api || roles.upkeep {
            let committer = Arc::new(SqlCommitter::start(SqlCommitterParts {
                crew: self.crew.clone(),
                database: self.database.clone(),
                catalog: self.catalog.clone(),
                clock: self.clock.clone(),
                steady: self.steady.clone(),
                settings: settings.commit,
                region: settings.region,
                outgoing: match &parts.relay {
                    Some(relay) => relay.outgoing(),
                    None => Arc::new(Unrelayed),
                },
                memory: Some(self.memory.clone()),
                instance: self.instance,
            })?);
            parts.counters = Some(Counters::start(CountersParts {
                crew: self.crew.clone(),
                database: self.database.clone(),
                catalog: self.catalog.clone(),
                clock: self.steady.clone(),
                clock_check: committer.clock_check().clone(),
                settings: CounterSettings {
                    queue_max: settings.commit.queue_max,
                    ..CounterSettings::default()
                },
                instance: self.instance,
                memory: Some(self.memory.clone()),
            })?);
            parts.committer = Some(committer);
        }
        if roles.upkeep {
            let filter = Some(self.memory.filter().clone());
            let kept = [(self.memory.filter_part(), filter), (self.memory.lists_part(), None)];
            for (kit, filter) in kept {
                parts.keepers.extend(self.keeper(kit, filter)?);
            }
        }
        if let Some(tallies) = self.memory.tallies().filter(|_| roles.upkeep) {
            parts.follower = Some(follower::follow(FollowerParts {
                crew: self.crew.clone(),
                database: self.database.clone(),
                catalog: self.catalog.clone(),
                leases: self.leases.clone(),
                kafka: settings.kafka.clone(),
                logs: followed_logs(settings),
                tallies: tallies.clone(),
            })?);
        }
        Ok(parts)
    }

    fn keeper(
        &self,
        kit: &Kit,
        filter: Option<Arc<ExistenceFilter>>,
    ) -> Result<Option<Workers>, ClusterError> {
        let Some(tier) = kit.tier.clone() else { return Ok(None) };
        Ok(Some(keeper::keep(KeeperParts {
            crew: self.crew.clone(),
            database: self.database.clone(),
            catalog: self.catalog.clone(),
            leases: self.leases.clone(),
            tier,
            plans: kit.plans.clone(),
            filter,
        })?))
    }

    fn applier(
        &self,
        settings: &ClusterSettings,
        log: AppliedLog,
        threads: u32,
    ) -> Result<Applier, ClusterError> {
        Ok(Applier::start(ApplierParts {
            crew: self.crew.clone(),
            database: self.database.clone(),
            catalog: self.catalog.clone(),
            clock: self.clock.clone(),
            leases: self.leases.clone(),
            kafka: settings.kafka.clone(),
            log,
            threads,
        })?)
    }
}

/// The logs that the appliers of these settings apply.
fn followed_logs(settings: &ClusterSettings) -> Vec<FollowedLog> {
    let partitions = settings.kafka.partitions;
    let topic = settings.kafka.topic.clone();
    let mut logs = vec![FollowedLog { topic, source: LogKind::Outbox, partitions }];
    if let AppliedLog::Ticdc { topic, partitions } = settings.applied_log() {
        logs.push(FollowedLog { topic, source: LogKind::Ticdc, partitions });
    }
    logs
}
