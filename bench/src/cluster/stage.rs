//! The servers, the peer's database, and two clusters: one whose only instance just serves callers,
//! and one whose only instance does everything.

use guanxi_model::{HeadVersion, Millis, Region};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterSettings, Roles, migrate};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::sql::tls::Tls;
use guanxi_core::audit::AuditSettings;
use guanxi_core::clock::{Clock, SystemClock};
use guanxi_services::{Kafka, MariaDb, fresh_database, topic_name};
use mysql::prelude::Queryable;
use mysql::{Conn, Opts};

use super::load::Load;
use super::seven;
use crate::commit::random_id;
use crate::processor::processor_time;

/// Those who follow and are followed.
const PEOPLE: usize = 200_000;
/// Rows that are made in one statement.
const ROWS_TOGETHER: usize = 1_000;
const CONNECTIONS_MAX: usize = 64;
/// All pages stay in memory and no log is full before its time, as on a server that is meant for
/// this: else the disk is what is measured, and the more so the longer it runs.
const DATABASE_OPTIONS: [&str; 2] = ["--innodb-buffer-pool-size=2G", "--innodb-log-file-size=2G"];
/// As the settings' default.
const PARTITIONS: u32 = 16;
/// Callers and length of a first run that nobody counts: programs and servers grow warm.
const WARM_IN_FLIGHT: usize = 64;
const WARM: Duration = Duration::from_secs(4);
/// The same for the whole: the broker compiles what it runs, and takes its time.
const WARM_WHOLE_IN_FLIGHT: usize = 256;
const WARM_WHOLE: Duration = Duration::from_secs(20);
/// Ids as long as real ones; everybody may follow anybody.
pub struct People(Vec<u64>);

impl People {
    fn new() -> People {
        People((0..PEOPLE).map(|_| random_id()).collect())
    }

    pub fn all(&self) -> &[u64] {
        &self.0
    }

    pub fn any(&self) -> u64 {
        self.0[fastrand::usize(..self.0.len())]
    }
}

pub struct Stage {
    pub people: Arc<People>,
    /// The peer's database.
    pub by_hand: String,
    /// Serves callers and nothing else.
    pub alone: Load,
    /// Does everything.
    pub whole: Load,
    kafka: Kafka,
    database: MariaDb,
}

/// Microseconds of processor time for each put.
pub struct Cost {
    pub database: f64,
    pub broker: f64,
    pub own: f64,
}

impl Stage {
    pub fn set() -> anyhow::Result<Stage> {
        let people = Arc::new(People::new());
        let (database, kafka) = (MariaDb::start_with(&DATABASE_OPTIONS), Kafka::start());
        let by_hand = fresh_database(&database);
        seven::prepare(&by_hand, &people)?;
        let serves = Roles { api: true, ..Roles::NONE };
        let all = Roles { api: true, relay: true, applier: true, upkeep: true };
        let alone = open(fresh_database(&database), &kafka, serves, &people)?;
        let whole = open(fresh_database(&database), &kafka, all, &people)?;
        Ok(Stage { people, by_hand, alone, whole, kafka, database })
    }

    pub fn warm(&self) -> anyhow::Result<()> {
        seven::rate(&self.by_hand, &self.people, None, WARM)?;
        self.alone.acknowledged(None, WARM_IN_FLIGHT, WARM)?;
        self.whole.keep_up(None, WARM_WHOLE_IN_FLIGHT, WARM_WHOLE)?;
        Ok(())
    }

    /// Prints the rate that `measure` finds and what each put cost the processors.
    pub fn costing(
        &self,
        name: &str,
        measure: impl FnOnce() -> anyhow::Result<f64>,
    ) -> anyhow::Result<f64> {
        self.whole.settle()?;
        let pids = [self.database.pid(), self.kafka.pid(), std::process::id()];
        let times = || pids.map(processor_time);
        let (begun, before) = (std::time::Instant::now(), times());
        let rate = measure()?;
        let puts = rate * begun.elapsed().as_secs_f64();
        let after = times();
        let each = |index: usize| (after[index] - before[index]) / puts;
        let cost = Cost { database: each(0), broker: each(1), own: each(2) };
        println!("{name}: {rate:.0}/s; {cost}");
        Ok(rate)
    }

    pub fn close(&self) {
        self.alone.close();
        self.whole.close();
    }
}

/// Everybody has followed before, as at the peer.
fn open(url: String, kafka: &Kafka, roles: Roles, people: &Arc<People>) -> anyhow::Result<Load> {
    let topic = topic_name("bench");
    let settings = ClusterSettings {
        url: url.clone(),
        tls: Tls::Off,
        connections_max: CONNECTIONS_MAX,
        reads: ReadBudgetSettings::of_connections(CONNECTIONS_MAX),
        kafka: KafkaSettings {
            brokers: kafka.brokers(),
            dead_letter_topic: format!("{topic}.dead"),
            topic,
            partitions: PARTITIONS,
            security: Default::default(),
        },
        ticdc_topic: None,
        roles,
        region: Region::default(),
        commit: SqlCommitSettings::default(),
        audit: AuditSettings::default(),
        memory: None,
        clock_may_have_jumped: false,
    };
    migrate(&settings)?;
    let cluster = Cluster::open(settings)?;
    let mut connection = Conn::new(Opts::from_url(&url)?)?;
    let follow = cluster.catalog();
    let follow = follow.kinds(super::load::TENANT).find(|kind| kind.id == super::load::FOLLOW);
    let node_type = follow.context("no kind to follow by")?.fixed.target_type.0;
    // As young as they are, the upkeep does not take them for leftovers.
    let version = HeadVersion::at(Millis(SystemClock.now_ms()));
    for ids in people.all().chunks(ROWS_TOGETHER) {
        let heads: Vec<String> = ids.iter().map(|id| format!("(1,1,{id},{})", version.0)).collect();
        let heads =
            format!("INSERT INTO head (tenant,kind,source,version) VALUES {}", heads.join(","));
        connection.query_drop(heads)?;
        let tallies: Vec<String> =
            ids.iter().map(|id| format!("(1,{node_type},{id},1,0)")).collect();
        connection.query_drop(format!(
            "INSERT INTO tally (tenant,node_type,node,kind,slot) VALUES {}",
            tallies.join(",")
        ))?;
    }
    Load::new(cluster, people.clone(), &url)
}
