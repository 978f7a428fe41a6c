//! Writes that come to their COMMIT long after they were allowed to, as those of a process or a
//! machine that was paused. Whoever waited for the end of all writes must never meet one of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/log.rs"]
mod log;
#[path = "cluster_parts/proxy.rs"]
mod proxy;
#[path = "cluster_memory/stage.rs"]
mod stage;
#[path = "cluster_parts/world.rs"]
mod world;

use std::sync::Arc;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use guanxi_cluster::catalog::SharedCatalog;
use guanxi_cluster::counters::{CounterSettings, Counters, CountersParts};
use guanxi_cluster::kafka::KafkaSettings;
use guanxi_cluster::memory::SharedMemory;
use guanxi_cluster::sql::commit_deadline::COMMIT_WITHIN;
use guanxi_cluster::upkeep::UpkeepSettings;
use guanxi_core::clock::SystemClock;
use guanxi_core::crew::Crew;
use guanxi_model::change::CounterDelta;
use guanxi_model::filter::Say;
use guanxi_model::{Answer, Change, EdgeKey, NodeKey, Request};
use log::{Node, hasty, topics};
use proxy::{Cut, Plan, Proxy, port_of};
use stage::Stage;
use world::{FOLLOW, Instance, TENANT, USER, VIEW, databases, edge, eventually, number, put, soon};

/// In the text by which a write is committed: the question whether it is too late.
const COMMIT: &str = "SELECT 18446744073709551615+";
/// How long a COMMIT is held back at least, longer than anybody waits for writes to end.
const PAUSED: Duration = Duration::from_secs(45);
/// In which a statement that was let go has come to the server, and was done if it ever is.
const ARRIVED: Duration = Duration::from_secs(5);
/// Past the time in which a write must be committed, but not so that its client gives it up.
const LATE: Duration = COMMIT_WITHIN.saturating_add(Duration::from_secs(3));

/// How long a server takes for a COMMIT that it begins in time: longer than the deadlines are waited
/// for, but not so that its client gives up asking what became of it.
const SLOW: Duration = Duration::from_secs(30);
/// The question on a server that is slow. Its answer is that of the moment when it was asked.
const SLOW_COMMIT: &str = "SELECT SLEEP(30),18446744073709551615+";

/// What a server is asked for on every connection; without it, only the deadline in the text of the
/// COMMIT stands between a late write and its commit.
const IDLE_LIMITS: [(&str, &str); 2] = [
    ("idle_write_transaction_timeout = 10", "idle_write_transaction_timeout = 900"),
    ("tidb_idle_transaction_timeout = 10", "tidb_idle_transaction_timeout = 900"),
];

fn lenient(proxy: &Proxy) {
    for (asked, given) in IDLE_LIMITS {
        proxy.replace(asked, given);
    }
}

/// An instance whose COMMIT is held back. The server ends its idle transaction: where it does not,
/// whoever waits for the end of writes waits for this one's, and there is nothing to see.
struct Paused {
    proxy: Proxy,
    instance: Instance,
    edge: EdgeKey,
}

impl Paused {
    fn start(url: &str, number: u64, memory: Option<Arc<SharedMemory>>, edge: EdgeKey) -> Paused {
        let proxy = Proxy::start(port_of(url));
        let instance = Instance::start_with(&proxy.url(url), number, memory);
        Paused { proxy, instance, edge }
    }

    /// Puts its edge, and returns when the COMMIT of it is on its way. The caller has no patience
    /// for a second try.
    fn put<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
    ) -> ScopedJoinHandle<'scope, bool> {
        self.put_by(scope, Plan { at: COMMIT, cut: Cut::HeldUntilLetGo })
    }

    /// The same with a COMMIT that is in time, and that the server takes long for.
    fn put_slowly<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
    ) -> ScopedJoinHandle<'scope, bool> {
        self.proxy.replace(COMMIT, SLOW_COMMIT);
        self.put_by(scope, Plan { at: SLOW_COMMIT, cut: Cut::Kept(SLOW * 2) })
    }

    fn put_by<'scope>(
        &'scope self,
        scope: &'scope std::thread::Scope<'scope, '_>,
        plan: Plan,
    ) -> ScopedJoinHandle<'scope, bool> {
        self.proxy.arm(&[plan]);
        let putting = scope.spawn(|| {
            let request = Request::one(TENANT, put(FOLLOW, self.edge.source.0, self.edge.target.0));
            let deadline = Instant::now() + Duration::from_secs(10);
            self.instance.committer.write_waiting(request, deadline).is_ok()
        });
        eventually("the COMMIT is on its way", || self.proxy.armed() == 0);
        putting
    }
}

/// Lets the COMMITs go that are held back since then, but none too early.
fn let_go(paused: &[Paused], held: Instant) {
    std::thread::sleep(PAUSED.saturating_sub(held.elapsed()));
    paused.iter().for_each(|paused| paused.proxy.let_go());
    std::thread::sleep(ARRIVED);
}

fn stands(edge: EdgeKey) -> String {
    format!(
        "SELECT COUNT(*) FROM outgoing WHERE source={} AND target={} AND state<2",
        edge.source.0, edge.target.0
    )
}

#[test]
fn a_filter_that_was_built_meanwhile_denies_no_edge_that_stands() {
    Stage::each("a_filter_that_was_built_meanwhile_denies_no_edge_that_stands", |stage| {
        let one = stage.member(1);
        let _keeper = stage.keeper(&one);
        eventually("it is believed", || one.serves());
        let paused = [2, 3].map(|number| {
            let memory = stage.member(number).memory;
            Paused::start(&stage.url, number, Some(memory), edge(FOLLOW, 70 + number, 1 << 40))
        });
        std::thread::scope(|scope| {
            let putting = paused.each_ref().map(|paused| paused.put(scope));
            let held = Instant::now();
            stage.flush();
            eventually("it is gone", || {
                stage.ask(&one, &[paused[0].edge]);
                !one.serves()
            });
            eventually("it is filled again", || one.serves());
            let_go(&paused, held);
            let acknowledged = putting.map(|putting| putting.join().unwrap());
            for (paused, acknowledged) in paused.iter().zip(acknowledged) {
                let stands = number(&one.instance.database, &stands(paused.edge)) == 1;
                assert!(stands || !acknowledged, "what was acknowledged is gone");
                let mut say = Say::Unknown;
                eventually("an answer", || {
                    say = stage.ask(&one, &[paused.edge])[0];
                    say != Say::Unknown
                });
                assert!(!stands || say == Say::Maybe, "{:?} stands and is denied", paused.edge);
            }
        });
    });
}

/// Topics of its own for each database.
fn topics_for(kafka: &KafkaSettings, server: &str) -> KafkaSettings {
    let topic = format!("{}.{server}", kafka.topic);
    let dead_letter_topic = format!("{}.{server}", kafka.dead_letter_topic);
    let kafka = KafkaSettings { topic, dead_letter_topic, ..kafka.clone() };
    guanxi_cluster::kafka::create_topics(&kafka).unwrap();
    kafka
}

#[test]
fn an_erasure_that_has_ended_meets_no_edge_any_more() {
    let test = "an_erasure_that_has_ended_meets_no_edge_any_more";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = topics_for(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        let user = NodeKey { tenant: TENANT, node_type: USER, id: 7 };
        node.instance.write_all((100..120).map(|other| put(FOLLOW, other, 7)).collect());
        let paused =
            [2, 3].map(|number| Paused::start(&url, number, None, edge(FOLLOW, 900 + number, 7)));
        std::thread::scope(|scope| {
            let putting = paused.each_ref().map(|paused| paused.put(scope));
            let held = Instant::now();
            let job = node.instance.write(Change::BeginErase { node: user }).unwrap();
            assert!(matches!(job, Answer::Job(_)), "{server}: {job:?}");
            let long = Duration::from_secs(3_600);
            let _upkeep = node.upkeep(UpkeepSettings { clean_interval: long, ..hasty() });
            let database = &node.instance.database;
            let running = "SELECT COUNT(*) FROM jobs WHERE finished=0";
            eventually("the erasure ends", || number(database, running) == 0);
            let_go(&paused, held);
            for putting in putting {
                assert!(!putting.join().unwrap(), "{server}: acknowledged after the erasure");
            }
            let left = "SELECT COUNT(*) FROM outgoing WHERE target=7 AND state<2";
            assert_eq!(number(database, left), 0, "{server}: an edge came after the receipt");
        });
    }
}

/// A second COMMIT shows that the first was refused, and the outbox that it left nothing.
#[test]
fn a_late_write_leaves_nothing_and_is_done_anew() {
    let test = "a_late_write_leaves_nothing_and_is_done_anew";
    for (server, url) in databases(test) {
        let proxy = Proxy::start(port_of(&url));
        lenient(&proxy);
        let instance = Instance::start(&proxy.url(&url), 1);
        let database = instance.database.clone();
        let catalog = SharedCatalog::open(&database).unwrap();
        let counters = Counters::start(CountersParts {
            crew: Crew::default(),
            database: database.clone(),
            catalog,
            clock: Arc::new(SystemClock),
            clock_check: Arc::default(),
            settings: CounterSettings::default(),
            instance: 1,
            memory: None,
        });
        let counters = counters.unwrap();
        let twice = [LATE, Duration::ZERO].map(|time| Plan { at: COMMIT, cut: Cut::Held(time) });
        proxy.arm(&twice);
        instance.write(put(FOLLOW, 1, 2)).unwrap();
        assert_eq!(proxy.armed(), 0, "{server}: the late COMMIT was taken");
        let records = "SELECT CAST(COALESCE(SUM(records),0) AS SIGNED) FROM outbox";
        assert_eq!(number(&database, records), 1, "{server}");
        proxy.arm(&twice);
        let count = CounterDelta { tenant: TENANT, kind: VIEW, id: 5, delta: 3, key: None };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let counted = counters.write(Request::one(TENANT, Change::Count(count)), soon());
        runtime.block_on(counted).unwrap()[0].as_ref().unwrap();
        assert_eq!(proxy.armed(), 0, "{server}: the late COMMIT of a counter was taken");
        let value = "SELECT CAST(SUM(value) AS SIGNED) FROM counter WHERE node=5";
        assert_eq!(number(&database, value), 3, "{server}");
    }
}

/// A COMMIT that was begun in time may last, as TiDB's do when a region has lost its leader.
#[test]
fn a_filter_is_not_believed_before_a_slow_commit_has_ended() {
    let test = "a_filter_is_not_believed_before_a_slow_commit_has_ended";
    Stage::each(test, |stage| {
        let one = stage.member(1);
        let memory = stage.member(2).memory;
        let slow = Paused::start(&stage.url, 2, Some(memory), edge(FOLLOW, 72, 1 << 40));
        std::thread::scope(|scope| {
            let putting = slow.put_slowly(scope);
            let _keeper = stage.keeper(&one);
            eventually("it is believed", || one.serves());
            assert_eq!(number(&one.instance.database, &stands(slow.edge)), 1, "too early");
            let mut say = Say::Unknown;
            eventually("an answer", || {
                say = stage.ask(&one, &[slow.edge])[0];
                say != Say::Unknown
            });
            assert_eq!(say, Say::Maybe, "the edge stands");
            putting.join().unwrap();
        });
    });
}

#[test]
fn an_erasure_does_not_end_before_a_slow_commit_has() {
    let test = "an_erasure_does_not_end_before_a_slow_commit_has";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = topics_for(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        let user = NodeKey { tenant: TENANT, node_type: USER, id: 7 };
        let slow = Paused::start(&url, 2, None, edge(FOLLOW, 902, 7));
        std::thread::scope(|scope| {
            let putting = slow.put_slowly(scope);
            node.instance.write(Change::BeginErase { node: user }).unwrap();
            let long = Duration::from_secs(3_600);
            let _upkeep = node.upkeep(UpkeepSettings { clean_interval: long, ..hasty() });
            let database = &node.instance.database;
            let running = "SELECT COUNT(*) FROM jobs WHERE finished=0";
            eventually("the erasure ends", || number(database, running) == 0);
            let removed = "SELECT COUNT(*) FROM outgoing WHERE source=902 AND target=7 AND state=2";
            assert_eq!(number(database, removed), 1, "{server}: it ended before the write");
            putting.join().unwrap();
        });
    }
}

/// A machine that was stopped together with its clocks takes an old plan for fresh: the proxy makes
/// a plan old by the database's clock alone.
#[test]
fn a_write_that_was_allowed_by_an_old_plan_leaves_nothing() {
    let test = "a_write_that_was_allowed_by_an_old_plan_leaves_nothing";
    for (server, url) in databases(test) {
        let direct = Instance::start(&url, 1);
        let proxy = Proxy::start(port_of(&url));
        let memory =
            SharedMemory::start(&Crew::default(), None, world::open(&proxy.url(&url))).unwrap();
        let old = Instance::start_with(&url, 2, Some(Arc::new(memory)));
        old.write(put(FOLLOW, 1, 2)).unwrap();
        proxy.replace(";SELECT plan FROM", "-45000;SELECT plan FROM");
        let mut targets = 3..;
        eventually("the plan is old", || {
            let edge = edge(FOLLOW, 1, targets.next().unwrap());
            let written = old.write(put(FOLLOW, 1, edge.target.0));
            let stands = number(&direct.database, &stands(edge)) == 1;
            assert_eq!(written.is_ok(), stands, "{server}: {written:?}");
            !stands
        });
    }
}
