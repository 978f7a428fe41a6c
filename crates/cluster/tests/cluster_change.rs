//! A change of `log.source` with whole instances, one by one, under steady writes: from the outbox
//! to a changefeed and back. Whatever was acknowledged is on the target's side after each step.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/player.rs"]
mod player;
#[path = "cluster_parts/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::barrier;
use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterSettings, Roles, migrate};
use guanxi_cluster::kafka::{KafkaSettings, Offsets};
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::rows::{INCOMING_COLUMNS, incoming};
use guanxi_cluster::sql::Database;
use guanxi_cluster::sql::tls::Tls;
use guanxi_core::{AuditQuery, AuditSettings};
use guanxi_model::change::{Field, Put};
use guanxi_model::{Change, Code, EdgeKey, EdgeRow, Region, Request, State};
use guanxi_services::{fresh_database, shared, topic_name};
use parking_lot::{Mutex, RwLock};
use player::Player;
use tokio::runtime::Runtime;
use world::{FOLLOW, LIKE, TENANT, edge, eventually, now_ms, number, open, put, soon};

const PARTITIONS: u32 = 4;
const WHOLE: Roles = Roles { api: true, relay: true, applier: true, upkeep: true };
const WRITERS: u64 = 3;
/// Edges of one writer: it alone writes their sources, so it knows what they must be.
const SOURCES: u64 = 10;
const TARGETS: u64 = 25;
/// Acknowledged writes between two steps.
const WRITES_MIN: u64 = 200;
/// Longer than it takes to look at the outbox again, several times.
const KEPT_MS: u64 = 3_000;

/// The states that were acknowledged; an edge whose last write had no answer is not there.
type Acknowledged = BTreeMap<EdgeKey, State>;

struct Stage {
    url: String,
    kafka: KafkaSettings,
    changefeed: String,
    database: Arc<Database>,
    runtime: Runtime,
    instances: [RwLock<Option<Arc<Cluster>>>; 2],
    /// Held by whoever writes, and alone by whoever compares.
    gate: RwLock<()>,
    acknowledged: Mutex<Acknowledged>,
    writes: AtomicU64,
    stop: AtomicBool,
}

impl Stage {
    fn set(test: &str) -> Option<Stage> {
        let tidb = shared::tidb_or_skip(test)?;
        let kafka = shared::kafka_or_skip(test)?;
        let changefeed = topic_name("changefeed");
        kafka.create_topic(&changefeed, PARTITIONS as u16);
        let url = fresh_database(tidb);
        let stage = Stage {
            database: open(&url),
            url,
            kafka: KafkaSettings {
                brokers: kafka.brokers(),
                topic: topic_name("records"),
                dead_letter_topic: topic_name("dead"),
                partitions: PARTITIONS,
                security: Default::default(),
            },
            changefeed,
            runtime: tokio::runtime::Builder::new_multi_thread()
                .worker_threads(1)
                .enable_all()
                .build()
                .unwrap(),
            instances: Default::default(),
            gate: RwLock::new(()),
            acknowledged: Mutex::default(),
            writes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        };
        migrate(&stage.settings(false, WHOLE)).unwrap();
        Some(stage)
    }

    fn settings(&self, ticdc: bool, roles: Roles) -> ClusterSettings {
        ClusterSettings {
            url: self.url.clone(),
            tls: Tls::Off,
            connections_max: 16,
            reads: ReadBudgetSettings::of_connections(16),
            kafka: self.kafka.clone(),
            ticdc_topic: ticdc.then(|| self.changefeed.clone()),
            roles,
            region: Region::default(),
            commit: SqlCommitSettings::default(),
            audit: AuditSettings { scrub_rows_per_second: 0 },
            memory: None,
            clock_may_have_jumped: false,
        }
    }

    /// The new instance starts when the old one has ended.
    fn restart(&self, index: usize, ticdc: bool) {
        let old = self.instances[index].write().take();
        if let Some(old) = old {
            old.close();
        }
        let new = Cluster::open(self.settings(ticdc, WHOLE)).unwrap();
        *self.instances[index].write() = Some(new);
    }

    fn instance(&self, index: usize) -> Arc<Cluster> {
        self.instances[index].read().clone().expect("it runs")
    }

    /// Writes through whichever instance is there, until the end.
    fn write_on(&self, writer: u64) {
        let mut random = fastrand::Rng::with_seed(writer);
        while !self.stop.load(Ordering::SeqCst) {
            let gate = self.gate.read();
            let slot = &self.instances[random.usize(..2)];
            let Some(cluster) = slot.read().clone() else { continue };
            let kind = *random.choice([FOLLOW, LIKE].iter()).unwrap();
            let source = writer * 1_000 + random.u64(1..=SOURCES);
            let key = edge(kind, source, random.u64(1..=TARGETS));
            let (change, state) = match random.u8(..3) {
                0 => (Change::Delete { edge: key, strict: false }, State::Removed),
                _ if kind == LIKE => {
                    let owner = Field::Set(key.target.0 % 3 + 1);
                    (Change::Put(Put { owner, ..Put::plain(key) }), State::Live)
                }
                _ => (Change::Put(Put::plain(key)), State::Live),
            };
            let request = Request::one(TENANT, change);
            let deadline = Instant::now() + Duration::from_secs(10);
            let written = self.runtime.block_on(cluster.write(request, deadline));
            let mut acknowledged = self.acknowledged.lock();
            match written {
                Ok((answers, _)) => {
                    answers[0].as_ref().unwrap();
                    acknowledged.insert(key, state);
                    self.writes.fetch_add(1, Ordering::SeqCst);
                }
                // An instance that ends takes no more; it may have taken this one.
                Err(error) => {
                    assert_eq!(error.code, Code::Unavailable, "{error:?}");
                    acknowledged.remove(&key);
                }
            }
            drop((acknowledged, gate));
        }
    }

    /// Lets the writers go on for a while.
    fn write_more(&self) {
        let until = self.writes.load(Ordering::SeqCst) + WRITES_MIN;
        eventually("writes go on", || self.writes.load(Ordering::SeqCst) >= until);
    }

    /// While nobody writes: after a barrier everything acknowledged is on the target's side, no
    /// audit finds anything, and the outbox empties itself.
    fn compare(&self, step: &str) {
        let _alone = self.gate.write();
        let id = barrier::raise(&self.database, soon()).unwrap();
        let passed = barrier::wait(&self.database, id, PARTITIONS, soon()).unwrap();
        assert!(passed, "{step}: no barrier passes");
        let (outgoing, target_side) = (self.edges("outgoing"), self.edges("incoming"));
        for (key, state) in self.acknowledged.lock().iter() {
            let found = target_side.get(key).map(|row| row.state);
            // What was never there leaves no tombstone.
            assert_eq!(found.unwrap_or(State::Removed), *state, "{step}: {key:?}");
        }
        assert_eq!(target_side, outgoing, "{step}");
        for index in 0..2 {
            assert_eq!(self.drift(&self.instance(index)), 0, "{step}: instance {index}");
        }
        eventually("the outbox is empty", || {
            number(&self.database, "SELECT COUNT(*) FROM outbox") == 0
        });
        assert_eq!(number(&self.database, "SELECT COUNT(*) FROM dead_letters"), 0, "{step}");
    }

    fn edges(&self, table: &str) -> BTreeMap<EdgeKey, EdgeRow> {
        let mut session = self.database.session(soon()).unwrap();
        let found = session.rows(&format!("SELECT {INCOMING_COLUMNS} FROM {table}")).unwrap();
        found.iter().map(|row| incoming(row).unwrap()).collect()
    }

    fn drift(&self, cluster: &Cluster) -> u64 {
        let number = cluster.begin_audit(AuditQuery { kind: None, repair: false }).unwrap();
        let run = self.runtime.block_on(cluster.audit_ended(number)).unwrap();
        run.ended.unwrap().result.unwrap().findings.drift()
    }

    /// How many records our own topic has had.
    fn relayed(&self) -> u64 {
        let offsets = Offsets::open(&self.kafka).unwrap();
        let ends = offsets.all(&self.kafka.topic, PARTITIONS).unwrap();
        ends.iter().map(|ends| ends.end).sum()
    }

    fn applied(&self) -> u64 {
        let applied = |index| self.instance(index).status().applier.unwrap().records;
        applied(0) + applied(1)
    }
}

#[test]
fn instances_change_from_the_outbox_to_a_changefeed_and_back() {
    let test = "instances_change_from_the_outbox_to_a_changefeed_and_back";
    let Some(stage) = Stage::set(test) else { return };
    stage.restart(0, false);
    stage.restart(1, false);
    std::thread::scope(|scope| {
        let _ending = Ending(&stage);
        for writer in 1..=WRITERS {
            let stage = &stage;
            scope.spawn(move || stage.write_on(writer));
        }
        stage.write_more();
        let instance = stage.instance(0);
        let place = instance.place_now(TENANT).unwrap().to_text(instance.secret());
        let changefeed = Player::start(&stage.url, &stage.kafka, &stage.changefeed);

        stage.restart(0, true);
        stage.write_more();
        stage.compare("one reads the changefeed");
        stage.restart(1, true);
        let relayed = stage.relayed();
        stage.write_more();
        stage.compare("both read the changefeed");
        assert_eq!(stage.relayed(), relayed, "nobody relays");
        assert!(changefeed.told() > 0 && stage.applied() > 0);
        // A place in one log is none in the other.
        let instance = stage.instance(0);
        let other = instance.place_now(TENANT).unwrap().to_text(instance.secret());
        let refused = stage.instance(0).event(&place, TENANT).unwrap_err();
        assert_eq!(refused.code, Code::PositionExpired);

        // The changefeed falls behind and ends: what it never tells is still in the outbox.
        changefeed.stall();
        eventually("the outbox keeps what the changefeed has not told", || {
            let oldest = "SELECT CAST(COALESCE(MIN(version)>>20,0) AS SIGNED) FROM outbox";
            let oldest = number(&stage.database, oldest) as u64;
            oldest > 0 && now_ms() > oldest + KEPT_MS
        });
        stage.restart(0, false);
        let refused = stage.instance(0).event(&other, TENANT).unwrap_err();
        assert_eq!(refused.code, Code::PositionExpired);
        assert!(stage.instance(0).event(&place, TENANT).is_ok(), "it is in this log");
        stage.write_more();
        stage.compare("one reads the outbox again");
        changefeed.close();
        stage.restart(1, false);
        stage.write_more();
        stage.compare("both read the outbox again");
        assert!(stage.relayed() > relayed, "the relays run");
    });
}

/// What was committed before the changefeed began, and had left the outbox for a topic that nobody
/// applied, is in no message of the changefeed.
#[test]
fn what_was_relayed_before_the_changefeed_is_not_lost() {
    let test = "what_was_relayed_before_the_changefeed_is_not_lost";
    let Some(stage) = Stage::set(test) else { return };
    let half = Roles { api: true, relay: true, ..Roles::NONE };
    let before = Cluster::open(stage.settings(false, half)).unwrap();
    for source in 1..=40 {
        let request = Request::one(TENANT, put(FOLLOW, source, source % 7 + 1));
        stage.runtime.block_on(before.write(request, soon())).unwrap();
    }
    eventually("all was relayed", || number(&stage.database, "SELECT COUNT(*) FROM outbox") == 0);
    before.close();
    assert_eq!(stage.edges("incoming").len(), 0);
    let changefeed = Player::start(&stage.url, &stage.kafka, &stage.changefeed);
    stage.restart(0, true);
    stage.restart(1, true);
    stage.compare("both read the changefeed");
    assert_eq!(stage.edges("incoming").len(), 40);
    assert_eq!(changefeed.told(), 0);
    changefeed.close();
}

/// Ends the writers, also where the test has failed.
struct Ending<'a>(&'a Stage);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::SeqCst);
    }
}
