//! The cluster's audit on real servers: every sort of drift is planted in SQL, found under its
//! name, mended, and found no more; and there is no false alarm beside writers and a lagging
//! applier.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cluster_parts/log.rs"]
mod log;
#[path = "cluster_parts/proxy.rs"]
mod proxy;
#[path = "cluster_parts/world.rs"]
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::audit::{SqlAuditor, SqlAuditorParts};
use guanxi_core::AuditSettings;
use guanxi_core::audit::{AuditReport, Drift};
use guanxi_core::clock::SystemClock;
use guanxi_model::change::{Field, Put};
use guanxi_model::{Change, GroupName, GroupsKey, KindId, Millis, SourceId};
use log::{Node, hasty, topics};
use proxy::{Cut, Plan, Proxy, port_of};
use world::{FOLLOW, LIKE, TENANT, databases, edge, eventually, now_ms, number, put, run};

const HOUR_MS: u64 = 3_600_000;

/// Users that follow, in a group and with an end; likes of posts with authors.
fn fill(node: &Node) {
    let groups = |source| GroupsKey { tenant: TENANT, kind: FOLLOW, source: SourceId(source) };
    let name = GroupName::new("friends").unwrap();
    let mut changes = Vec::new();
    for source in 1..=20 {
        changes.push(Change::CreateGroup { groups: groups(source), name: name.clone() });
    }
    for source in 1..=20 {
        for target in 21..=30 {
            let mut put = Put::plain(edge(FOLLOW, source, target));
            if target % 2 == 0 {
                put.group = Field::Set(name.clone());
            }
            if target % 5 == 0 {
                put.expires_at = Field::Set(Millis(now_ms() + HOUR_MS));
            }
            put.approval = target == 23;
            changes.push(Change::Put(put));
        }
        for post in 100..110 {
            let put =
                Put { owner: Field::Set(post % 3 + 1), ..Put::plain(edge(LIKE, source, post)) };
            changes.push(Change::Put(put));
        }
        changes.push(Change::Delete { edge: edge(LIKE, source, 109), strict: false });
    }
    node.instance.write_all(changes);
    node.settle();
}

/// What was planted: its statement, and what must be found.
struct Plant {
    statement: &'static str,
    kind: KindId,
    found: &'static [(Drift, u64)],
}

const PLANTS: [Plant; 13] = [
    Plant {
        statement: "DELETE FROM incoming WHERE kind=1 AND target=21 AND source=1",
        kind: FOLLOW,
        found: &[(Drift::MissingIncoming, 1)],
    },
    Plant {
        statement: "INSERT INTO incoming (tenant,kind,target,source,version,state,since) \
                    VALUES (1,1,21,999,1,0,1)",
        kind: FOLLOW,
        found: &[(Drift::SurplusIncoming, 1)],
    },
    Plant {
        statement: "UPDATE incoming SET since=since-1 WHERE kind=1 AND target=22 AND source=2",
        kind: FOLLOW,
        found: &[(Drift::MissingIncoming, 1), (Drift::SurplusIncoming, 1)],
    },
    Plant {
        statement: "UPDATE incoming SET state=2 WHERE kind=2 AND target=100 AND source=3",
        kind: LIKE,
        found: &[(Drift::MissingIncoming, 1)],
    },
    Plant {
        statement: "UPDATE incoming SET state=0 WHERE kind=2 AND target=109 AND source=3",
        kind: LIKE,
        found: &[(Drift::SurplusIncoming, 1)],
    },
    Plant {
        statement: "UPDATE tally SET incoming=incoming+5 WHERE kind=1 AND node=24 AND slot=0",
        kind: FOLLOW,
        found: &[(Drift::WrongTally, 1)],
    },
    Plant {
        statement: "DELETE FROM tally WHERE kind=1 AND node=23",
        kind: FOLLOW,
        found: &[(Drift::WrongTally, 1)],
    },
    Plant {
        statement: "UPDATE tally SET owned=owned-1 WHERE kind=2 AND node=2 AND slot>0 \
                    ORDER BY slot LIMIT 1",
        kind: LIKE,
        found: &[(Drift::WrongTally, 1)],
    },
    Plant {
        statement: "UPDATE head SET outgoing=outgoing-2, pending_outgoing=7 \
                    WHERE kind=1 AND source=4",
        kind: FOLLOW,
        found: &[(Drift::WrongTally, 2)],
    },
    Plant {
        statement: "DELETE FROM head WHERE kind=2 AND source=5",
        kind: LIKE,
        found: &[(Drift::WrongTally, 1)],
    },
    Plant {
        statement: "UPDATE `groups` SET size=size+1 WHERE kind=1 AND source=6",
        kind: FOLLOW,
        found: &[(Drift::WrongGroupSize, 1)],
    },
    Plant {
        statement: "DELETE FROM expiry WHERE kind=1 AND source=7 AND target=25",
        kind: FOLLOW,
        found: &[(Drift::MissingExpiry, 1)],
    },
    Plant {
        statement: "INSERT INTO expiry (shard,expires_at,tenant,kind,source,target) \
                    VALUES (9,9999999999999,1,1,8,26)",
        kind: FOLLOW,
        found: &[(Drift::SurplusExpiry, 1)],
    },
];

/// The drift of each sort and kind, without what is none.
fn found(report: &AuditReport) -> Vec<(KindId, Drift, u64)> {
    let mut found = Vec::new();
    for (kind, findings) in &report.findings.kinds {
        for drift in Drift::ALL {
            if findings.count(drift) > 0 {
                found.push((kind.unwrap().1, drift, findings.count(drift)));
            }
        }
    }
    found
}

#[test]
fn what_is_planted_is_found_by_its_name_and_mended() {
    let test = "what_is_planted_is_found_by_its_name_and_mended";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let node = Node::start(&url, 1, &log_of(&kafka, server));
        fill(&node);
        let report = node.audit(false);
        assert_eq!(found(&report), [], "{server} {:?}", report.findings.examples);
        assert_eq!(report.findings.edges(), 20 * 10 + 20 * 9, "{server}");
        assert!(report.position.0 > 0, "{server}");
        for plant in PLANTS {
            run(&node.instance.database, plant.statement);
            let expected: Vec<_> =
                plant.found.iter().map(|(drift, count)| (plant.kind, *drift, *count)).collect();
            let report = node.audit(true);
            let examples = &report.findings.examples;
            assert_eq!(found(&report), expected, "{server} {}: {examples:?}", plant.statement);
            assert_eq!(report.left, 0, "{server} {}", plant.statement);
            assert_eq!(report.repaired, report.findings.drift(), "{server} {}", plant.statement);
        }
        let report = node.audit(false);
        assert_eq!(found(&report), [], "{server}");
        // Everything at once: rows and the tallies that they count for.
        let all: Vec<&str> = PLANTS.iter().map(|plant| plant.statement).collect();
        run(&node.instance.database, &all.join(";"));
        let report = node.audit(true);
        let planted: u64 =
            PLANTS.iter().flat_map(|plant| plant.found).map(|(_, count)| count).sum();
        assert_eq!(report.findings.drift(), planted, "{server} {:?}", report.findings.examples);
        assert_eq!(report.left, 0, "{server}");
        assert_eq!(node.audit(false).findings.drift(), 0, "{server}");
        // What was mended is what the writes had made.
        let followers = "SELECT CAST(SUM(incoming) AS SIGNED) FROM tally WHERE kind=1";
        assert_eq!(number(&node.instance.database, followers), 20 * 9, "{server}");
        let owned = "SELECT CAST(SUM(owned) AS SIGNED) FROM tally WHERE kind=2";
        assert_eq!(number(&node.instance.database, owned), 20 * 9, "{server}");
    }
}

/// Of the texts that add what a head or a tally lacks, and commit it.
const ADDS: [(&str, &str); 2] = [
    (
        "pending_outgoing=pending_outgoing+VALUES",
        "UPDATE head SET outgoing=outgoing-2 WHERE kind=1",
    ),
    ("),revision=revision+1", "UPDATE tally SET incoming=incoming+5 WHERE kind=1 AND node=24"),
];

/// A COMMIT that was done may be answered with an error, or with nothing.
#[test]
fn a_repair_that_was_done_is_not_done_again() {
    let test = "a_repair_that_was_done_is_not_done_again";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let proxy = Proxy::start(port_of(&url));
        let node = Node::start(&proxy.url(&url), 1, &log_of(&kafka, server));
        fill(&node);
        for (at, statement) in ADDS {
            for cut in [Cut::Denied(1317), Cut::Denied(1205), Cut::After, Cut::Before] {
                run(&node.instance.database, statement);
                // The second order is for a second addition, and passes it on.
                proxy.arm(&[cut, Cut::Held(Duration::ZERO)].map(|cut| Plan { at, cut }));
                let report = node.audit(true);
                let again = usize::from(cut != Cut::Before);
                assert_eq!(proxy.armed(), again, "{server} {statement} {cut:?}");
                assert_eq!(report.left, 0, "{server} {statement} {cut:?}");
                let again = node.audit(false);
                assert_eq!(found(&again), [], "{server} {statement} {cut:?}");
            }
        }
    }
}

/// How long the text of a repair is held back, longer than anybody asks what became of it.
const PAUSED: Duration = Duration::from_secs(45);

/// A repair that is paused before its COMMIT must not add what was added meanwhile.
#[test]
fn a_repair_that_comes_late_leaves_nothing() {
    let test = "a_repair_that_comes_late_leaves_nothing";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let proxy = Proxy::start(port_of(&url));
        // Only the deadline stands between the late text and its commit.
        proxy
            .replace("idle_write_transaction_timeout = 10", "idle_write_transaction_timeout = 900");
        proxy.replace("tidb_idle_transaction_timeout = 10", "tidb_idle_transaction_timeout = 900");
        let node = Node::start(&proxy.url(&url), 1, &log_of(&kafka, server));
        fill(&node);
        let (at, statement) = ADDS[0];
        run(&node.instance.database, statement);
        let begun = Instant::now();
        proxy.arm(&[Plan { at, cut: Cut::Held(PAUSED) }]);
        // Nobody knows what became of it, so this one may be refused.
        let _refused = node.audit_result(node.begin_audit(true));
        assert_eq!(proxy.armed(), 0, "{server}: nothing was held");
        node.audit(true);
        std::thread::sleep((PAUSED + Duration::from_secs(5)).saturating_sub(begun.elapsed()));
        assert_eq!(found(&node.audit(false)), [], "{server}");
    }
}

/// An audit that was stopped between its look and its repair, for so long that another one has begun
/// and mended the same, mends nothing.
#[test]
fn an_audit_that_another_one_followed_mends_nothing() {
    let test = "an_audit_that_another_one_followed_mends_nothing";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        fill(&Node::start(&url, 1, &kafka));
        for (number, statement, mended) in [
            (
                2,
                "UPDATE head SET outgoing=outgoing-2 WHERE kind=1",
                "UPDATE head SET outgoing=outgoing+2 WHERE kind=1",
            ),
            (
                3,
                "UPDATE tally SET incoming=incoming+5 WHERE kind=1 AND node=24",
                "UPDATE tally SET incoming=incoming-5 WHERE kind=1 AND node=24",
            ),
        ] {
            let proxy = Proxy::start(port_of(&url));
            let node = Node::start(&proxy.url(&url), number, &kafka);
            run(&node.instance.database, statement);
            // A repair's first words: its deadline is drawn, and far away.
            let at = "INSERT INTO head (tenant,kind,source,version) VALUES";
            proxy.arm(&[Plan { at, cut: Cut::HeldUntilLetGo }]);
            let number = node.begin_audit(true);
            eventually("the repair begins", || proxy.armed() == 0);
            // What another audit does, as it stands in the database.
            let other = world::open(&url);
            run(
                &other,
                "INSERT INTO facts (name,value) VALUES ('audit',1) \
                 ON DUPLICATE KEY UPDATE value=value+1",
            );
            run(&other, mended);
            proxy.let_go();
            let refused = node.audit_result(number).unwrap_err();
            assert_eq!(refused.code, guanxi_model::Code::Conflict, "{server} {statement}");
            assert_eq!(found(&node.audit(false)), [], "{server} {statement}");
        }
    }
}

/// A scrubber that goes slowly rests within its picture for longer than a server lets transactions
/// be idle that have written.
#[test]
fn a_slow_scrubber_comes_to_its_end() {
    let test = "a_slow_scrubber_comes_to_its_end";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let mut node = Node::start(&url, 1, &kafka);
        node.instance.write_all((1..=12).map(|target| put(FOLLOW, 1, 100 + target)).collect());
        node.settle();
        node.auditor = Arc::new(SqlAuditor::new(SqlAuditorParts {
            database: node.instance.database.clone(),
            catalog: node.instance.catalog.clone(),
            leases: node.leases.clone(),
            clock: Arc::new(SystemClock),
            settings: AuditSettings { scrub_rows_per_second: 1 },
            topic: kafka.topic.clone(),
            partitions: kafka.partitions,
        }));
        let _upkeep = node.upkeep(hasty());
        let until = Instant::now() + Duration::from_secs(150);
        while node.auditor.verdict().is_none() {
            assert!(Instant::now() < until, "{server}: it never ends");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Each database has a log of its own.
fn log_of(
    kafka: &guanxi_cluster::kafka::KafkaSettings,
    server: &str,
) -> guanxi_cluster::kafka::KafkaSettings {
    let mut settings = kafka.clone();
    settings.topic = format!("{}.{server}", kafka.topic);
    settings.dead_letter_topic = format!("{}.{server}", kafka.dead_letter_topic);
    guanxi_cluster::kafka::create_topics(&settings).unwrap();
    settings
}

#[test]
fn no_false_alarm_beside_writers_and_a_lagging_applier() {
    let test = "no_false_alarm_beside_writers_and_a_lagging_applier";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let mut node = Node::start(&url, 1, &log_of(&kafka, server));
        fill(&node);
        // The applier stands still while much is written, and an audit waits for it.
        node.stop_applying();
        let mut changes = Vec::new();
        for source in 1..=20 {
            changes.push(Change::Delete { edge: edge(FOLLOW, source, 21), strict: false });
            changes.push(put(FOLLOW, source, 31));
            changes.push(put(LIKE, source, 100 + source));
        }
        node.instance.write_all(changes);
        let audit = node.begin_audit(false);
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert!(node.auditor.state().run.unwrap().ended.is_none(), "{server}: it waits");
        node.apply();
        let report = node.audit_result(audit).unwrap();
        assert_eq!(found(&report), [], "{server} {:?}", report.findings.examples);
        // Writers on all sources and a few hot edges, audits beside them, also with repair.
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Also when an assertion fails: the scope waits for the writers.
            let _stop = StopOnDrop(stop.clone());
            for writer in 0..2_u64 {
                let (instance, stop) = (&node.instance, stop.clone());
                scope.spawn(move || {
                    let mut round = writer;
                    while !stop.load(Ordering::SeqCst) {
                        round += 2;
                        let (source, target) = (round % 20 + 1, 21 + round % 7);
                        let hot = edge(FOLLOW, 1 + writer, 50);
                        let like = Put {
                            owner: Field::Set(round % 3 + 1),
                            ..Put::plain(edge(LIKE, source, 100 + round % 9))
                        };
                        instance.write_all(vec![
                            put(FOLLOW, source, target),
                            Change::Delete { edge: hot, strict: false },
                            Change::Put(like),
                            Change::Delete {
                                edge: edge(LIKE, round % 20 + 1, 100 + round % 5),
                                strict: false,
                            },
                            Change::Put(Put::plain(hot)),
                        ]);
                    }
                });
            }
            for round in 0..4 {
                let report = node.audit(round % 2 == 1);
                let examples = &report.findings.examples;
                assert_eq!(found(&report), [], "{server} {round}: {examples:?}");
            }
        });
        node.settle();
        assert_eq!(node.audit(false).findings.drift(), 0, "{server}");
    }
}

#[test]
fn one_audit_at_a_time_in_the_cluster_and_long_lists() {
    let test = "one_audit_at_a_time_in_the_cluster_and_long_lists";
    let Some(kafka) = topics(test) else { return };
    for (server, url) in databases(test) {
        let kafka = log_of(&kafka, server);
        let node = Node::start(&url, 1, &kafka);
        // More than a stretch of one source and of many, laid down directly on both sides.
        let (of_one, of_many) = (21_000, 3_000);
        lay(&node, 7, of_one, of_many);
        let report = node.audit(false);
        assert_eq!(found(&report), [], "{server} {:?}", report.findings.examples);
        assert_eq!(report.findings.edges(), of_one + of_many, "{server}");
        run(
            &node.instance.database,
            "DELETE FROM incoming WHERE kind=2 AND source=7 AND target=20000;\
             UPDATE head SET outgoing=outgoing+1 WHERE kind=2 AND source=3500",
        );
        let other = Node::start(&url, 2, &kafka);
        let (first, second) = (node.begin_audit(true), other.begin_audit(true));
        assert!(node.auditor.begin(guanxi_core::AuditQuery { kind: None, repair: false }).is_err());
        let reports = [node.audit_result(first), other.audit_result(second)];
        let mut mended = 0;
        for report in reports {
            match report {
                Ok(report) => {
                    assert_eq!(report.left, 0, "{server}");
                    mended += report.repaired;
                }
                Err(error) => assert_eq!(error.code, guanxi_model::Code::Conflict, "{server}"),
            }
        }
        assert_eq!(mended, 2, "{server}: each thing is mended once");
        assert_eq!(node.audit(false).findings.drift(), 0, "{server}");
    }
}

struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Likes of one source for many posts, and of many sources for one post.
fn lay(node: &Node, source: u64, of_one: u64, of_many: u64) {
    let database = &node.instance.database;
    let mut pairs: Vec<(u64, u64)> = (0..of_one).map(|i| (source, 1_000 + i)).collect();
    pairs.extend((0..of_many).map(|i| (1_000 + i, 900)));
    for pairs in pairs.chunks(2_000) {
        let list = |one: &dyn Fn(u64, u64) -> String| {
            pairs.iter().map(|(source, target)| one(*source, *target)).collect::<Vec<_>>().join(",")
        };
        let outgoing = list(&|source, target| format!("(1,2,{source},{target},256000,0,5)"));
        let incoming = list(&|source, target| format!("(1,2,{target},{source},256000,0,5)"));
        run(
            database,
            &format!(
                "INSERT INTO outgoing (tenant,kind,source,target,version,state,since) VALUES \
                 {outgoing};INSERT INTO incoming (tenant,kind,target,source,version,state,since) \
                 VALUES {incoming}"
            ),
        );
    }
    // What follows from them.
    run(
        database,
        "INSERT INTO head (tenant,kind,source,version,outgoing) SELECT tenant,kind,source,1000,\
         COUNT(*) FROM outgoing GROUP BY tenant,kind,source;\
         INSERT INTO tally (tenant,node_type,node,kind,slot,incoming) SELECT tenant,2,target,kind,\
         0,COUNT(*) FROM incoming GROUP BY tenant,kind,target",
    );
}
