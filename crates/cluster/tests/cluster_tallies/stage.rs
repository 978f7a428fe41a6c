//! Whole instances of a cluster that share a database, a log and a Redis.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterSettings, RecalledRead, Roles};
use guanxi_cluster::kafka::{KafkaSettings, create_topics};
use guanxi_cluster::memory::MemorySettings;
use guanxi_cluster::memory::tallies::TallyFigures;
use guanxi_cluster::memory::tallies::packed::PackedTallies;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::sql::Database;
use guanxi_cluster::sql::tls::Tls;
use guanxi_cluster::{barrier, schema};
use guanxi_core::AuditSettings;
use guanxi_core::read::{HydrateQuery, ReadObject, Reader};
use guanxi_model::{Change, Error, KindId, NodeTypeId, Region, Request, Which};
use guanxi_services::{Redis, fresh_database, shared, topic_name};
use redis::{Connection, cmd};
use tokio::runtime::Runtime;

use crate::world::{FOLLOW, LIKE, POST, TENANT, USER, eventually, number, open, soon};

const PARTITIONS: u32 = 4;
/// What all keys of values begin with.
const PREFIX: &str = "guanxi:tally:1:";

pub const ALL: Roles = Roles { api: true, relay: true, applier: true, upkeep: true };
/// Everything but to follow.
pub const SERVING: Roles = Roles { upkeep: false, ..ALL };

pub struct Stage {
    pub url: String,
    pub database: Arc<Database>,
    pub kafka: KafkaSettings,
    pub redis: Redis,
    pub runtime: Runtime,
}

/// Whether an answer came without the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Memory,
    Database,
}

impl Stage {
    pub fn open(test: &str) -> Option<Stage> {
        Stage::on(test, fresh_database(shared::mariadb_or_skip(test)?))
    }

    pub fn open_on_tidb(test: &str) -> Option<Stage> {
        Stage::on(test, fresh_database(shared::tidb_or_skip(test)?))
    }

    fn on(test: &str, url: String) -> Option<Stage> {
        schema::migrate(&open(&url)).unwrap();
        let broker = shared::kafka_or_skip(test)?;
        let redis = Redis::start_or_skip(test)?;
        let kafka = KafkaSettings {
            brokers: broker.brokers(),
            topic: topic_name("records"),
            dead_letter_topic: topic_name("dead"),
            partitions: PARTITIONS,
            security: Default::default(),
        };
        create_topics(&kafka).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
        Some(Stage { database: open(&url), url, kafka, redis, runtime })
    }

    pub fn instance(&self, roles: Roles) -> Arc<Cluster> {
        self.instance_of(roles, None)
    }

    /// One that reads this changefeed, or the outbox's log.
    pub fn instance_of(&self, roles: Roles, changefeed: Option<&str>) -> Arc<Cluster> {
        self.open_instance(roles, changefeed, Some(self.tallies_alone()))
    }

    /// One that keeps outgoing lists, too.
    pub fn instance_with_lists(&self, roles: Roles) -> Arc<Cluster> {
        let list_url = Some(self.redis.url());
        let memory = MemorySettings { list_url, ..self.tallies_alone() };
        self.instance_of_memory(roles, Some(memory))
    }

    /// One that has the filter and the lists beside the tallies.
    pub fn instance_with_filter(&self, roles: Roles) -> Arc<Cluster> {
        let url = Some(self.redis.url());
        let memory =
            MemorySettings { filter_url: url.clone(), list_url: url, ..self.tallies_alone() };
        self.instance_of_memory(roles, Some(memory))
    }

    /// One whose memory has these parts.
    pub fn instance_of_memory(&self, roles: Roles, memory: Option<MemorySettings>) -> Arc<Cluster> {
        self.open_instance(roles, None, memory)
    }

    /// A memory of what the follower keeps.
    pub fn tallies_alone(&self) -> MemorySettings {
        MemorySettings {
            filter_url: None,
            list_url: None,
            tally_url: Some(self.redis.url()),
            runtime: self.runtime.handle().clone(),
        }
    }

    fn open_instance(
        &self,
        roles: Roles,
        changefeed: Option<&str>,
        memory: Option<MemorySettings>,
    ) -> Arc<Cluster> {
        let settings = ClusterSettings {
            url: self.url.clone(),
            tls: Tls::Off,
            connections_max: 12,
            kafka: self.kafka.clone(),
            ticdc_topic: changefeed.map(str::to_owned),
            roles,
            region: Region::default(),
            commit: SqlCommitSettings::default(),
            audit: AuditSettings { scrub_rows_per_second: 0 },
            reads: ReadBudgetSettings::of_connections(12),
            memory,
            clock_may_have_jumped: false,
        };
        Cluster::open(settings).unwrap()
    }

    /// Writes, whatever becomes of each change.
    pub fn write(&self, cluster: &Cluster, changes: Vec<Change>) {
        let request = Request::new(TENANT, changes);
        self.runtime.block_on(cluster.write(request, soon())).unwrap();
    }

    /// Reads as a caller without a token does.
    pub fn read<T>(
        &self,
        cluster: &Cluster,
        read: impl Fn(&Reader) -> Result<T, Error> + Sync,
    ) -> (T, From) {
        match self.runtime.block_on(cluster.recall(&read)) {
            RecalledRead::Read(answer) => (answer.unwrap(), From::Memory),
            RecalledRead::Lacking(remembered) => {
                let reader = cluster.reader_with(&remembered, soon());
                (read(&reader).unwrap(), From::Database)
            }
        }
    }

    /// Numbers of followers, or of another kind, of these ids.
    pub fn tallies(&self, cluster: &Cluster, kind: KindId, ids: &[u64]) -> (Vec<i64>, From) {
        let catalog = cluster.catalog();
        let kind = catalog.kind(TENANT, kind).unwrap().clone();
        let object_type: NodeTypeId = kind.fixed.target_type;
        let query = HydrateQuery {
            tenant: TENANT,
            viewer: 1,
            objects: ids.iter().map(|id| ReadObject { id: *id, author: None }).collect(),
            kinds: Vec::new(),
            tallies: vec![kind],
            reverse: Vec::new(),
            object_type,
            author_type: USER,
        };
        let (hydrated, from) = self.read(cluster, move |reader| reader.hydrate(&query));
        (hydrated.objects().map(|object| object.tallies[0]).collect(), from)
    }

    pub fn followers(&self, cluster: &Cluster, ids: &[u64]) -> (Vec<i64>, From) {
        self.tallies(cluster, FOLLOW, ids)
    }

    /// Waits until all that was written has reached the target's side.
    pub fn settle(&self) {
        let id = barrier::raise(&self.database, soon()).unwrap();
        let passed = barrier::wait(&self.database, id, PARTITIONS, soon()).unwrap();
        assert!(passed, "the log stands still");
    }

    pub fn epoch(&self) -> i64 {
        let select = "SELECT COALESCE(MAX(value),0) FROM facts WHERE name='memory.values'";
        number(&self.database, select)
    }

    pub fn connection(&self) -> Connection {
        redis::Client::open(self.redis.url()).unwrap().get_connection().unwrap()
    }

    /// The key of a node's tallies in the present epoch.
    pub fn tally_key(&self, node_type: NodeTypeId, id: u64) -> String {
        format!("{PREFIX}{}:{}:{}:{id}", self.epoch(), TENANT.0, node_type.0)
    }

    /// The strings of the present epoch, by node type and id.
    pub fn strings(&self) -> BTreeMap<(u16, u64), PackedTallies> {
        let mut redis = self.connection();
        let begin = format!("{PREFIX}{}:{}:", self.epoch(), TENANT.0);
        let keys: Vec<String> = cmd("KEYS").arg(format!("{begin}*")).query(&mut redis).unwrap();
        let mut strings = BTreeMap::new();
        for key in keys {
            let node = key.strip_prefix(&begin).unwrap().split_once(':').unwrap();
            let bytes: Option<Vec<u8>> = cmd("GET").arg(&key).query(&mut redis).unwrap();
            if let Some(bytes) = bytes {
                let node = (node.0.parse().unwrap(), node.1.parse().unwrap());
                strings.insert(node, PackedTallies::decode(&bytes).unwrap());
            }
        }
        strings
    }

    /// What Redis has and the database says otherwise.
    pub fn wrong(&self) -> Vec<String> {
        let strings = self.strings();
        let mut session = self.database.session(soon()).unwrap();
        let rows = session
            .rows("SELECT node_type,node,kind,incoming,pending_incoming FROM tally WHERE slot=0");
        let mut truth: BTreeMap<(u16, u64, u16), [i64; 2]> = BTreeMap::new();
        for row in rows.unwrap() {
            let (node_type, id, kind, incoming, pending) = mysql::from_row(row);
            truth.insert((node_type, id, kind), [incoming, pending]);
        }
        let mut wrong = Vec::new();
        for ((node_type, id), packed) in strings {
            for field in packed.fields {
                let numbers =
                    truth.get(&(node_type, id, field.kind.0)).copied().unwrap_or_default();
                let right = match field.which {
                    Which::Incoming => numbers[0],
                    Which::PendingIncoming => numbers[1],
                    _ => continue,
                };
                if field.value != right {
                    wrong.push(format!("{node_type}/{id}: {field:?}, not {right}"));
                }
            }
        }
        wrong.extend(self.wrong_lists());
        wrong
    }

    /// Waits until Redis has what the database has.
    #[track_caller]
    pub fn converges(&self, what: &str) {
        self.settle();
        let mut wrong = Vec::new();
        let deadline = soon();
        loop {
            wrong.clear();
            wrong.extend(self.wrong());
            if wrong.is_empty() {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "{what}: {wrong:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until reads of these ids end in Redis.
    #[track_caller]
    pub fn until_remembered(&self, cluster: &Cluster, ids: &[u64]) -> Vec<i64> {
        let mut numbers = Vec::new();
        eventually("an answer from memory", || {
            // Past what the process keeps.
            std::thread::sleep(Duration::from_millis(950));
            let hits = figures(cluster).hits;
            let (found, from) = self.followers(cluster, ids);
            numbers = found;
            from == From::Memory && figures(cluster).hits >= hits + ids.len() as u64
        });
        numbers
    }
}

pub fn figures(cluster: &Cluster) -> TallyFigures {
    cluster.status().memory.unwrap().tallies.unwrap()
}

/// The node type of this kind's targets.
pub fn target_type(kind: KindId) -> NodeTypeId {
    match kind {
        LIKE => POST,
        _ => USER,
    }
}
