//! A database that has more to do than it can, or does nothing, or is gone: reads are bounded by
//! the budget, kinds that say so are answered by default and marked as degraded, the others are
//! refused, and all of it ends by itself.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::sql::Database;
use guanxi_services::{MariaDb, Redis, SqlServer, fresh_database, shared};
use guanxi_tests::grpc::channel;
use guanxi_tests::grpc::proto::{self, reads_client::ReadsClient};
use guanxi_tests::{
    Answer, Cluster, Options, Server, edge, edge_call, metric, node_run, nodes, poll_until, put_all,
};
use serde_json::{Value, json};

/// Generous: a busy machine is no failure.
const SOON: Duration = Duration::from_secs(60);
/// Filling the filter waits for the longest write that may be under way.
const FILLED: Duration = Duration::from_secs(180);
/// What is said without the database comes long before a request's time is over.
const QUICKLY: Duration = Duration::from_secs(5);
const KINDS: &str = "/v1/admin/kinds";

/// A database of the test's own, which it may break.
fn cluster_on_own_database(test: &str) -> Option<(Cluster, MariaDb)> {
    let kafka = shared::kafka_or_skip(test)?;
    let mariadb = MariaDb::start_or_skip(test)?;
    let cluster = Cluster::on(&fresh_database(&mariadb), &kafka.brokers());
    cluster.migrate().ok();
    Some((cluster, mariadb))
}

/// An instance with a small budget.
fn instance(cluster: &Cluster, arguments: &[&str], settings: &[(&str, &str)]) -> Server {
    let environment =
        settings.iter().map(|(name, value)| (format!("GUANXI_STORE_{name}"), (*value).to_owned()));
    Server::start_with(Options { environment: environment.collect(), ..cluster.options(arguments) })
}

const SMALL: [(&str, &str); 5] = [
    ("READS_MAX", "2"),
    ("LISTS_MAX", "2"),
    ("READS_WAITING_MAX", "64"),
    ("READS_WAIT_MS", "200"),
    ("READS_TIMEOUT_MS", "500"),
];

/// Answered, and not by default.
fn is_whole(answer: &Answer) -> bool {
    answer.status == 200 && answer.body.get("degraded").is_none()
}

/// A user who likes a post (which may be answered by default) and follows another.
struct Feed {
    fan: u64,
    star: u64,
    post: u64,
    token: String,
}

impl Feed {
    fn write(server: &Server) -> Feed {
        server.patch_json(format!("{KINDS}/like"), json!({"on_overload": "answer_default"})).ok();
        let [fan, star, post] = nodes();
        server.put(edge("like", fan, post)).ok();
        let token = server.put(edge("follow", fan, star)).token();
        Feed { fan, star, post, token }
    }

    fn likes(&self, server: &Server) -> Answer {
        server.get(edge("like", self.fan, self.post))
    }

    fn follows(&self, server: &Server) -> Answer {
        server.get(edge("follow", self.fan, self.star))
    }

    fn pairs(&self, server: &Server, kinds: &[&str]) -> Answer {
        let (source, target) = (self.fan.to_string(), self.post.to_string());
        let pair = |kind: &&str| json!({"kind": kind, "source": source, "target": target});
        server.post_json("/v1/check", json!({"pairs": kinds.iter().map(pair).collect::<Vec<_>>()}))
    }

    fn hydrate(&self, server: &Server, kinds: &[&str], tallies: &[&str]) -> Answer {
        let object = json!({"id": self.post.to_string(), "author": self.star.to_string()});
        server.post_json(
            "/v1/hydrate",
            json!({"viewer": self.fan.to_string(), "objects": [object],
                   "kinds": kinds, "tallies": tallies}),
        )
    }

    fn tallies(&self, server: &Server, kind: &str) -> Answer {
        server.post_json("/v1/tallies", json!({"ids": [self.post.to_string()], "kinds": [kind]}))
    }

    fn list(&self, server: &Server) -> Answer {
        server.get(edge_call("like", self.fan, "outgoing"))
    }

    /// Everything is as it was written, and nothing says otherwise.
    fn is_well(&self, server: &Server) -> Option<()> {
        let (liked, followed) = (self.likes(server), self.follows(server));
        let hydrated = self.hydrate(server, &["like", "follow"], &["like"]);
        let list = self.list(server);
        let whole = [&liked, &followed, &hydrated, &list].into_iter().all(is_whole);
        let right = liked.body["related"] == true
            && followed.body["related"] == true
            && hydrated.body["objects"][0]["related"] == json!(["like", "follow"])
            && list.body["items"][0]["id"] == *self.post.to_string();
        (whole && right).then_some(())
    }

    /// Waits for it: a busy database does not always answer within the small budget.
    #[track_caller]
    fn await_well(&self, server: &Server) {
        poll_until("everything is well", SOON, || self.is_well(server));
    }

    /// What may be said by default is, at once, and marked; the rest is refused with this code.
    fn assert_degraded(&self, server: &Server, code: &str) {
        let timed = |read: &dyn Fn() -> Answer| {
            let begun = Instant::now();
            let answer = read();
            assert!(begun.elapsed() < QUICKLY, "{:?}: {answer:?}", begun.elapsed());
            answer
        };
        let degraded = |read: &dyn Fn() -> Answer| {
            let answer = timed(read);
            assert_eq!(answer.ok()["degraded"], true, "{answer:?}");
            answer.body
        };
        let liked = degraded(&|| self.likes(server));
        assert_eq!((&liked["related"], &liked["state"]), (&json!(false), &Value::Null));
        let paired = degraded(&|| self.pairs(server, &["like"]));
        assert_eq!(paired["results"], json!([{"related": false, "state": null}]));
        let hydrated = degraded(&|| self.hydrate(server, &["like"], &["like"]));
        assert_eq!(hydrated["objects"][0]["related"], json!([]));
        assert_eq!(hydrated["objects"][0]["tallies"], json!({"like": 0}));
        let tallies = degraded(&|| self.tallies(server, "like"));
        assert_eq!(tallies["results"][0]["tallies"]["like"]["incoming"], 0);

        let token = &self.token;
        let with_token = format!("{}?at_least={token}", edge("like", self.fan, self.post));
        let refused: [(&str, &dyn Fn() -> Answer); 6] = [
            ("a kind that refuses", &|| self.follows(server)),
            ("one of several kinds refuses", &|| self.pairs(server, &["like", "favorite"])),
            ("a feed with such a kind", &|| self.hydrate(server, &["like", "follow"], &["like"])),
            ("a tally of such a kind", &|| self.hydrate(server, &["like"], &["favorite"])),
            ("tallies of such a kind", &|| self.tallies(server, "favorite")),
            ("a promise", &|| server.get(with_token.clone())),
        ];
        for (what, read) in refused {
            let answer = timed(read);
            assert_eq!(answer.body["code"], code, "{what}: {answer:?}");
            answer.expect_error(503, code);
        }
    }
}

/// Reads that nobody waits for any more take every place.
fn take_every_place(feed: &Feed, server: &Server) {
    poll_until("every place to be taken", SOON, || {
        feed.likes(server);
        (metric(server, "guanxi_database_reads") == 2.0).then_some(())
    });
}

#[test]
fn a_database_that_does_nothing_is_done_without_where_kinds_allow_it() {
    let test = "a_database_that_does_nothing_is_done_without_where_kinds_allow_it";
    let Some((cluster, mariadb)) = cluster_on_own_database(test) else { return };
    let server = instance(&cluster, &[], &SMALL);
    let feed = Feed::write(&server);
    feed.await_well(&server);

    mariadb.pause();
    take_every_place(&feed, &server);
    feed.assert_degraded(&server, "overloaded");
    assert!(metric(&server, "guanxi_database_reads_refused_total") > 0.0);
    assert!(metric(&server, "guanxi_database_reads_unanswered_total") > 0.0);
    assert!(metric(&server, "guanxi_reads_degraded_total") >= 4.0);
    assert_eq!(metric(&server, "guanxi_database_overloaded"), 1.0);
    // No list is made up.
    feed.list(&server).expect_error(503, "overloaded");
    mariadb.resume();

    // Nobody helps it.
    feed.await_well(&server);
    poll_until("the end of the overload", SOON, || {
        let ready = server.get("/readyz");
        (ready.status == 200 && ready.body["cluster"]["overloaded"] == false).then_some(())
    });
    server.put(edge("favorite", feed.fan, feed.post)).ok();

    // Gone altogether: the same, but for what the others are told.
    mariadb.kill();
    poll_until("its absence", SOON, || {
        let (liked, followed) = (feed.likes(&server), feed.follows(&server));
        (liked.body["degraded"] == true && followed.body["code"] == "unavailable").then_some(())
    });
    poll_until("the end of what the process keeps", SOON, || {
        let hydrated = feed.hydrate(&server, &["like"], &["like"]);
        (hydrated.ok()["objects"][0]["tallies"]["like"] == 0).then_some(())
    });
    feed.assert_degraded(&server, "unavailable");
    mariadb.start_again();
    feed.await_well(&server);
}

#[test]
fn what_redis_knows_stays_right_when_the_database_has_no_time() {
    let test = "what_redis_knows_stays_right_when_the_database_has_no_time";
    let Some((cluster, mariadb)) = cluster_on_own_database(test) else { return };
    let Some(redis) = Redis::start_or_skip(test) else { return };
    cluster.configure(&format!("[cache]\nredis = \"{}\"", redis.url()));
    let server = instance(&cluster, &[], &SMALL);
    // One whose lists Redis comes to know, and one that nobody has read.
    let (read, feed) = (Feed::write(&server), Feed::write(&server));
    poll_until("the filter and the lists", FILLED, || {
        let serves = |part: &str| metric(&server, part) == 1.0;
        (serves("guanxi_filter_serves") && serves("guanxi_lists_serve")).then_some(())
    });
    poll_until("its lists in Redis", SOON, || {
        read.is_well(&server)?;
        (metric(&server, "guanxi_lists_filled_total") >= 2.0).then_some(())
    });

    // Reads of edges wait for this; the filter's row in the database can be read all the same.
    let database = Database::open(&mariadb.database_url(&cluster.database), 1).expect("it opens");
    let mut session = database.session(Instant::now() + SOON).expect("a connection");
    session.run("LOCK TABLES outgoing WRITE").expect("it is locked");
    take_every_place(&feed, &server);
    let degraded = feed.likes(&server);
    assert_eq!(degraded.ok()["degraded"], true, "{degraded:?}");
    feed.follows(&server).expect_error(503, "overloaded");
    // Redis, too, is late at times on a busy machine; what it says is right each time.
    let post = json!(read.post.to_string());
    let known: [(&dyn Fn() -> Answer, &str, Value); 3] = [
        (&|| read.likes(&server), "/related", json!(true)),
        (&|| read.follows(&server), "/related", json!(true)),
        (&|| read.list(&server), "/items/0/id", post),
    ];
    for (ask, field, value) in known {
        poll_until("what Redis knows", SOON, || {
            let answer = ask();
            let knows = is_whole(&answer);
            assert!(!knows || answer.body.pointer(field) == Some(&value), "{answer:?}");
            knows.then_some(())
        });
    }
    // A filter is at times unsure of an edge that does not stand; nearly all of these it knows.
    let strangers = node_run(50);
    let known = strangers.iter().filter(|stranger| {
        (0..20).any(|_| {
            let answer = server.get(edge("follow", feed.fan, **stranger));
            let knows = is_whole(&answer);
            assert!(!knows || answer.body["related"] == false, "{answer:?}");
            knows
        })
    });
    let known = known.count();
    assert!(known >= 45, "the filter knew {known} of 50");
    // Only what is unknown is said by default, and it alone decides whether it may be.
    let kinds = ["like", "favorite"];
    let paired = poll_until("favorite refuses, but is known", SOON, || {
        Some(feed.pairs(&server, &kinds)).filter(|answer| answer.status == 200)
    });
    assert_eq!(paired.body["degraded"], true, "{paired:?}");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let over_grpc = poll_until("the same over gRPC", SOON, || {
        let request = proto::CheckRequest {
            source: feed.fan,
            targets: vec![feed.post],
            kinds: kinds.map(str::to_owned).to_vec(),
            ..Default::default()
        };
        let asked = async { ReadsClient::new(channel(&server)).check(request).await };
        Some(runtime.block_on(asked).ok()?.into_inner())
    });
    assert!(over_grpc.degraded && over_grpc.results[0].related.is_empty(), "{over_grpc:?}");
    session.run("UNLOCK TABLES").expect("it is unlocked");
    drop(session);

    feed.await_well(&server);
}

/// Queries of readers that the database has at this moment.
fn reads_at(mariadb: &MariaDb, database: &str) -> u64 {
    let rows = mariadb.query(&format!(
        "SELECT COUNT(*) FROM information_schema.processlist WHERE db='{database}' AND \
         command='Query' AND (info LIKE '%FROM outgoing%' OR info LIKE '%FROM tally%')"
    ));
    let count = rows.first().and_then(|row| row.first().cloned().flatten());
    count.and_then(|count| count.parse().ok()).expect("a number")
}

#[test]
fn a_cold_start_never_sends_the_database_more_than_the_budget() {
    const READERS: usize = 200;
    const READS_MAX: u64 = 3;
    const LISTS_MAX: u64 = 2;
    let test = "a_cold_start_never_sends_the_database_more_than_the_budget";
    let Some((cluster, mariadb)) = cluster_on_own_database(test) else { return };
    let Some(redis) = Redis::start_or_skip(test) else { return };
    cluster.configure(&format!("[cache]\nredis = \"{}\"", redis.url()));
    let (sources, targets) = (node_run(20), node_run(100));
    let writer = cluster.instance();
    for source in &sources {
        let edges: Vec<(u64, u64)> = targets.iter().map(|target| (*source, *target)).collect();
        put_all(&writer, "follow", &edges);
    }
    assert!(writer.terminate().status.success());
    // Nothing is kept anywhere, and nobody else reads.
    let client = redis::Client::open(redis.url()).expect("an address");
    let mut connection = client.get_connection().expect("a connection");
    redis::cmd("FLUSHALL").exec(&mut connection).expect("it is flushed");
    let settings = [
        ("READS_MAX", READS_MAX.to_string()),
        ("LISTS_MAX", LISTS_MAX.to_string()),
        ("READS_WAIT_MS", "60000".to_owned()),
        ("READS_TIMEOUT_MS", "60000".to_owned()),
    ];
    let settings: Vec<(&str, &str)> =
        settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let server = instance(&cluster, &["--roles", "api"], &settings);
    let targets_text: Vec<String> = targets.iter().map(u64::to_string).collect();
    let (ends, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let (peak, waiting) = (AtomicU64::new(0), Mutex::new(0.0_f64));
    std::thread::scope(|scope| {
        let (server, sources, targets_text, answers) = (&server, &sources, &targets_text, &answers);
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                scope.spawn(move || {
                    let source = sources[reader % sources.len()];
                    for _ in 0..3 {
                        if reader % 5 == 0 {
                            let path =
                                format!("{}?limit=100", edge_call("follow", source, "outgoing"));
                            let page = server.get(path);
                            // Lists may be refused when too many wait; they are never made up.
                            if page.status == 200 {
                                assert_eq!(page.body["total"], 100, "{page:?}");
                            }
                        } else {
                            let body = json!({"source": source.to_string(), "kinds": ["follow"],
                                              "targets": targets_text, "reverse": true});
                            let answer = server.post_json("/v1/check", body);
                            let results = answer.ok()["results"].as_array().expect("results");
                            let related = |result: &&Value| result["related"] == json!(["follow"]);
                            assert_eq!(results.iter().filter(related).count(), 100);
                            assert_eq!(answer.ok().get("degraded"), None);
                        }
                        answers.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let (mariadb, cluster, ends, peak, waiting) = (&mariadb, &cluster, &ends, &peak, &waiting);
        let sampler = scope.spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                peak.fetch_max(reads_at(mariadb, &cluster.database), Ordering::Relaxed);
                let now = metric(server, "guanxi_database_reads_waiting");
                let mut most = waiting.lock().expect("a number");
                *most = most.max(now);
            }
        });
        let ended: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
        ends.store(true, Ordering::Relaxed);
        sampler.join().expect("samples");
        for reader in ended {
            reader.expect("a reader");
        }
    });
    let peak = peak.into_inner();
    assert!(peak >= 1, "reads were seen at the database");
    assert!(peak <= READS_MAX + LISTS_MAX, "{peak} reads at once");
    assert!(waiting.into_inner().expect("a number") > 1.0, "there were more than the budget");
    assert_eq!(answers.into_inner(), 3 * READERS as u64);
    assert_eq!(metric(&server, "guanxi_reads_degraded_total"), 0.0);
}
