//! What a cluster does for the tokens it gave out, on a real database and a real log: who waits for
//! a barrier holds no thread and asks for all, what can never be met is refused at once, and a write
//! that changes nothing costs no barrier.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/world.rs"]
mod world;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use guanxi_cluster::barrier;
use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_cluster::instance::{Cluster, ClusterSettings, Roles, WAITS_MAX, migrate};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::read_budget::ReadBudgetSettings;
use guanxi_cluster::sql::Database;
use guanxi_cluster::sql::tls::Tls;
use guanxi_core::AuditSettings;
use guanxi_model::token::cluster::{TOKEN_EDGES_MAX, TokenBarrier};
use guanxi_model::{
    AnyToken, BarrierId, Change, ClusterToken, Code, Error, Millis, NodeKey, Region, Request, Which,
};
use guanxi_services::{fresh_database, shared, topic_name};
use tokio::runtime::Runtime;
use world::{FOLLOW, TENANT, USER, eventually, now_ms, number, open, put, soon};

const PARTITIONS: u32 = 4;
const WHOLE: Roles = Roles { api: true, relay: true, applier: true, upkeep: false };
/// Takes writes, and moves nothing.
const SILENT: Roles = Roles { api: true, relay: false, applier: false, upkeep: false };

struct Stage {
    settings: ClusterSettings,
    database: Arc<Database>,
    runtime: Runtime,
}

impl Stage {
    fn set(test: &str) -> Option<Stage> {
        let (server, kafka) = (shared::mariadb_or_skip(test)?, shared::kafka_or_skip(test)?);
        let url = fresh_database(server);
        let settings = ClusterSettings {
            url: url.clone(),
            connections_max: 16,
            reads: ReadBudgetSettings::of_connections(16),
            kafka: KafkaSettings {
                brokers: kafka.brokers(),
                topic: topic_name("records"),
                dead_letter_topic: topic_name("dead"),
                partitions: PARTITIONS,
                security: Default::default(),
            },
            ticdc_topic: None,
            roles: WHOLE,
            region: Region::default(),
            commit: SqlCommitSettings::default(),
            audit: AuditSettings { scrub_rows_per_second: 0 },
            tls: Tls::Off,
            clock_may_have_jumped: false,
            memory: None,
        };
        migrate(&settings).unwrap();
        // Few threads: whoever blocked one of them would be noticed.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).max_blocking_threads(4).enable_all();
        Some(Stage { settings, database: open(&url), runtime: runtime.build().unwrap() })
    }

    fn instance(&self, roles: Roles) -> Arc<Cluster> {
        Cluster::open(ClusterSettings { roles, ..self.settings.clone() }).unwrap()
    }

    /// As many edges of this source as a token names.
    fn write_from(&self, cluster: &Cluster, source: u64) -> ClusterToken {
        let targets = 0..TOKEN_EDGES_MAX as u64;
        let changes = targets.map(|target| put(FOLLOW, source, 100 + target)).collect();
        let written = cluster.write(Request::new(TENANT, changes), soon());
        let (_, token) = self.runtime.block_on(written).unwrap();
        assert_eq!(token.edges().len(), TOKEN_EDGES_MAX);
        token
    }

    fn meet(&self, cluster: &Cluster, token: &ClusterToken) -> Result<(), Error> {
        self.runtime.block_on(cluster.meet(token, soon()))
    }
}

fn of_barrier(id: BarrierId) -> ClusterToken {
    let mut token = ClusterToken::new(TENANT);
    token.cover(TokenBarrier { id, at: Millis(now_ms()) });
    token
}

#[test]
fn instances_share_a_secret_and_nobody_else_has_it() {
    let test = "instances_share_a_secret_and_nobody_else_has_it";
    let (Some(stage), Some(elsewhere)) = (Stage::set(test), Stage::set(test)) else { return };
    let instances = [stage.instance(SILENT), stage.instance(SILENT)];
    let stranger = elsewhere.instance(SILENT);
    let token = of_barrier(BarrierId(7));
    let text = token.to_text(instances[0].secret());
    let known = AnyToken::parse(&text, TENANT, instances[1].secret());
    assert_eq!(known, Ok(AnyToken::Cluster(token)));
    assert!(AnyToken::parse(&text, TENANT, stranger.secret()).is_err());
    // Migrating again leaves it.
    migrate(&stage.settings).unwrap();
    assert_eq!(stage.instance(SILENT).secret(), instances[0].secret());
}

#[test]
fn what_can_never_be_met_is_refused_at_once() {
    let Some(stage) = Stage::set("what_can_never_be_met_is_refused_at_once") else { return };
    let cluster = stage.instance(SILENT);
    let mut later = ClusterToken::new(TENANT);
    later.add_catalog(1 << 40);
    for token in [of_barrier(BarrierId(12_345)), later] {
        let refused = stage.meet(&cluster, &token).unwrap_err();
        assert_eq!(refused.code, Code::PositionExpired, "{}", refused.message);
    }
    // One that was raised, and that nobody moves, may still pass.
    let raised = of_barrier(barrier::raise(&stage.database, soon()).unwrap());
    let refused = stage.meet(&cluster, &raised).unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "{}", refused.message);
}

#[test]
fn those_who_wait_for_barriers_have_places_and_block_no_thread() {
    let test = "those_who_wait_for_barriers_have_places_and_block_no_thread";
    let Some(stage) = Stage::set(test) else { return };
    let cluster = stage.instance(SILENT);
    let token = of_barrier(barrier::raise(&stage.database, soon()).unwrap());
    let beyond = 40;
    stage.runtime.block_on(async {
        // All of them come at the same moment, however busy the machine is.
        let mut waiting = Vec::new();
        let mut refused = 0;
        for _ in 0..WAITS_MAX + beyond {
            let mut meeting = Box::pin(cluster.meet(&token, soon()));
            match poll_fn(|context| Poll::Ready(meeting.as_mut().poll(context))).await {
                Poll::Pending => waiting.push(meeting),
                Poll::Ready(met) => {
                    assert_eq!(met.unwrap_err().code, Code::Overloaded);
                    refused += 1;
                }
            }
        }
        assert_eq!((waiting.len(), refused), (WAITS_MAX, beyond));
        // Meanwhile others are served: no thread is held.
        let request = Request::one(TENANT, put(FOLLOW, 1, 2));
        cluster.write(request, soon()).await.unwrap();
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        let begun = Instant::now();
        for meeting in waiting {
            assert_eq!(meeting.await.unwrap_err().code, Code::Unavailable);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "they wait beside one another");
    });
    // The places are free again, and the barrier passes when somebody moves it.
    let whole = stage.instance(WHOLE);
    eventually("the barrier passes", || stage.meet(&whole, &token).is_ok());
    stage.meet(&cluster, &token).unwrap();
}

#[test]
fn kinds_that_a_token_stands_for_are_learnt() {
    let Some(stage) = Stage::set("kinds_that_a_token_stands_for_are_learnt") else { return };
    let [one, other] = [stage.instance(SILENT), stage.instance(SILENT)];
    let user = guanxi_model::KindName::new("user").unwrap();
    for round in 0..5 {
        let name = guanxi_model::KindName::new(&format!("round{round}")).unwrap();
        let spec = guanxi_model::change::KindSpec::edges(name, user.clone(), user.clone());
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let written = one.write(Request::one(TENANT, create), soon());
        let (_, token) = stage.runtime.block_on(written).unwrap();
        stage.meet(&other, &token).unwrap();
        assert!(other.catalog().find(TENANT, &format!("round{round}")).is_some());
    }
}

/// A kind that is there when somebody begins to look for it is found, whoever looks at that moment
/// or has just looked.
#[test]
fn whoever_looks_for_names_finds_those_that_were_there_before() {
    let test = "whoever_looks_for_names_finds_those_that_were_there_before";
    let Some(stage) = Stage::set(test) else { return };
    let [one, other] = [stage.instance(SILENT), stage.instance(SILENT)];
    let user = guanxi_model::KindName::new("user").unwrap();
    for round in 0..20 {
        let name = format!("round{round}");
        let looking = || {
            let other = other.clone();
            stage.runtime.spawn(async move {
                other.look_for_names(soon()).await.unwrap();
                other.catalog()
            })
        };
        // Some look while the kind is made, and may find it or not.
        let early: Vec<_> = (0..4).map(|_| looking()).collect();
        let name_of_kind = guanxi_model::KindName::new(&name).unwrap();
        let spec = guanxi_model::change::KindSpec::edges(name_of_kind, user.clone(), user.clone());
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let written = one.write(Request::one(TENANT, create), soon());
        stage.runtime.block_on(written).unwrap();
        for looking in [looking(), looking(), looking()] {
            let catalog = stage.runtime.block_on(looking).unwrap();
            assert!(catalog.find(TENANT, &name).is_some(), "{name}");
        }
        for looking in early {
            stage.runtime.block_on(looking).unwrap();
        }
    }
}

#[test]
fn a_write_that_changes_nothing_needs_no_barrier() {
    let Some(stage) = Stage::set("a_write_that_changes_nothing_needs_no_barrier") else { return };
    let cluster = stage.instance(WHOLE);
    let many = 2 * TOKEN_EDGES_MAX as u64;
    let write = |targets: u64| {
        let changes = (0..targets).map(|target| put(FOLLOW, 1, 100 + target)).collect();
        let written = cluster.write(Request::new(TENANT, changes), soon());
        stage.runtime.block_on(written).unwrap().1
    };
    let token = write(many);
    assert!(token.needs_barrier(), "more was changed than a token names");
    let applied = format!("SELECT COUNT(*) FROM incoming WHERE kind={}", FOLLOW.0);
    eventually("the target's side has all", || number(&stage.database, &applied) as u64 == many);
    let token = write(many);
    assert!(!token.needs_barrier(), "nothing was changed, and everything is there: {token:?}");
    assert!(token.edges().is_empty());
    // What was changed is named, whatever else was found.
    let token = write(many + 3);
    assert!(!token.needs_barrier());
    assert_eq!(token.edges().len(), 3);
    // Few are named in any case: the caller may have tried before.
    let token = write(2);
    assert_eq!(token.edges().len(), 2);
    // Nor does it need one beside tokens that were presented, and whose edges are there.
    let mut presented = stage.write_from(&cluster, 2);
    presented.merge_met(&stage.write_from(&cluster, 3));
    let all = many + 3 + 2 * TOKEN_EDGES_MAX as u64;
    eventually("the target's side has all", || number(&stage.database, &applied) as u64 == all);
    let mut both = presented.clone();
    both.merge(&token);
    assert!(both.needs_barrier());
    cluster.cover(&mut both, soon()).unwrap();
    assert_eq!((both.edges().len(), both.barrier()), (0, None));
    // Those that passed a barrier need no other.
    let barriers = [(); 2].map(|()| {
        let barrier = of_barrier(barrier::raise(&stage.database, soon()).unwrap());
        eventually("the barrier passes", || stage.meet(&cluster, &barrier).is_ok());
        barrier
    });
    let mut both = barriers[0].clone();
    both.merge_met(&barriers[1]);
    both.merge(&token);
    assert!(!both.needs_barrier());
    let raised = number(&stage.database, "SELECT COUNT(DISTINCT id) FROM barriers");
    assert_eq!(raised, 2, "those of this test");
}

/// A read may present two tokens, each with as many edges as one names.
#[test]
fn a_read_sees_all_that_two_tokens_name() {
    let Some(stage) = Stage::set("a_read_sees_all_that_two_tokens_name") else { return };
    let cluster = stage.instance(SILENT);
    let mut token = stage.write_from(&cluster, 1);
    token.merge_met(&stage.write_from(&cluster, 2));
    // Nobody brings them to the target's side.
    let reader = cluster.reader(Some(&token), soon()).unwrap();
    for target in 0..TOKEN_EDGES_MAX as u64 {
        let node = NodeKey { tenant: TENANT, node_type: USER, id: 100 + target };
        assert_eq!(
            reader.tallies(&node).unwrap().get(FOLLOW, Which::Incoming),
            2,
            "of {}",
            node.id
        );
    }
    // A write that presents both stands for them behind a barrier.
    cluster.cover(&mut token, soon()).unwrap();
    assert!(token.barrier().is_some() && token.edges().is_empty());
}

/// An earlier try may have written them a moment ago: what is found and not yet on the target's side
/// is stood for.
#[test]
fn what_is_found_and_still_on_its_way_is_stood_for() {
    let Some(stage) = Stage::set("what_is_found_and_still_on_its_way_is_stood_for") else { return };
    let cluster = stage.instance(SILENT);
    for _ in 0..2 {
        let changes = (0..20).map(|target| put(FOLLOW, 1, 100 + target)).collect();
        let written = cluster.write(Request::new(TENANT, changes), soon());
        let (_, token) = stage.runtime.block_on(written).unwrap();
        assert!(token.needs_barrier());
    }
}
