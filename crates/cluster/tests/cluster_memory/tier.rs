//! A tier through the bad days of its Redis: it never holds anybody up, comes back by itself, and
//! knows whom it speaks to.

use std::time::{Duration, Instant};

use guanxi_cluster::memory::tier::{MemoryError, RedisScript, ScriptCall, Tier, TierLink};
use guanxi_core::crew::Crew;
use guanxi_services::Redis;
use redis::{Pipeline, Value, cmd};
use tokio::runtime::Runtime;

/// Generous: a busy machine is no failure.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_millis(200);
/// What a busy machine adds to a limit.
const SLACK: Duration = Duration::from_secs(5);

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The tier's connection, as soon as there is one.
fn linked(tier: &Tier) -> TierLink {
    let begun = Instant::now();
    loop {
        if let Some(link) = tier.link() {
            return link;
        }
        assert!(begun.elapsed() < PATIENCE, "there is no connection");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn commands_pipelines_and_scripts_are_answered() {
    let Some(redis) = Redis::start_or_skip("tier") else { return };
    let runtime = runtime();
    let tier = Tier::start(&redis.url(), runtime.handle(), &Crew::default()).unwrap();
    let mut link = linked(&tier);
    runtime.block_on(async {
        assert_eq!(link.ask(cmd("SET").arg("a").arg("1"), PATIENCE).await, Ok(Value::Okay));
        let mut both = Pipeline::new();
        both.cmd("GET").arg("a").cmd("LPUSH").arg("a").arg("x").cmd("STRLEN").arg("a");
        let answers = link.ask_all(&both, PATIENCE).await.unwrap();
        assert_eq!(answers[0], Value::BulkString(b"1".into()));
        assert!(matches!(answers[1], Value::ServerError(_)), "one of them was refused");
        assert_eq!(answers[2], Value::Int(1));
        // Unknown to Redis at first, known later.
        let script = RedisScript::new("return redis.call('GET', KEYS[1]) .. ARGV[1]");
        for _ in 0..2 {
            let call = ScriptCall { key: b"a".into(), arguments: vec![b"+".into()] };
            let answers = link.call_all(&script, &[call.clone(), call], PATIENCE).await.unwrap();
            assert_eq!(answers, [Value::BulkString(b"1+".into()), Value::BulkString(b"1+".into())]);
        }
        let refused = link.ask(cmd("LPUSH").arg("a").arg("x"), PATIENCE).await;
        assert!(matches!(refused, Err(MemoryError::Refused(_))), "{refused:?}");
    });
    let figures = tier.figures();
    assert!(figures.reachable && figures.refused > 0 && figures.unanswered == 0, "{figures:?}");
    assert_eq!(figures.connections, 1, "a refusal breaks no connection");
}

#[test]
fn a_redis_that_does_not_answer_holds_nobody_up_and_comes_back() {
    let Some(redis) = Redis::start_or_skip("tier away") else { return };
    let runtime = runtime();
    let tier = Tier::start(&redis.url(), runtime.handle(), &Crew::default()).unwrap();
    let mut link = linked(&tier);
    let lineage = link.lineage();
    redis.pause();
    let begun = Instant::now();
    let answer = runtime.block_on(link.ask(&cmd("PING"), LIMIT));
    assert!(matches!(answer, Err(MemoryError::Away(_))), "{answer:?}");
    assert!(begun.elapsed() < LIMIT + SLACK);
    until("it is given up", || {
        let _unanswered = runtime.block_on(link.ask(&cmd("PING"), LIMIT));
        tier.link().is_none()
    });
    redis.resume();
    let mut again = linked(&tier);
    assert_eq!(again.lineage(), lineage, "it is the same process");
    assert_eq!(
        runtime.block_on(again.ask(&cmd("PING"), PATIENCE)),
        Ok(Value::SimpleString("PONG".into()))
    );
}

#[test]
fn another_process_is_another_lineage() {
    let Some(redis) = Redis::start_or_skip("tier lineage") else { return };
    let runtime = runtime();
    let tier = Tier::start(&redis.url(), runtime.handle(), &Crew::default()).unwrap();
    let mut first = linked(&tier);
    redis.kill();
    // Nobody asks anything: the tier notices by itself.
    until("the end is noticed", || tier.link().is_none());
    redis.start_again();
    let second = linked(&tier);
    assert_ne!(second.lineage(), first.lineage());
    let answer = runtime.block_on(first.ask(&cmd("PING"), PATIENCE));
    assert!(answer.is_err(), "what was of the first is never answered by the second: {answer:?}");
}

#[test]
fn a_promoted_replica_is_another_lineage_and_a_replica_is_none() {
    let Some(master) = Redis::start_or_skip("tier failover") else { return };
    let port = master.port().to_string();
    let replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]);
    let runtime = runtime();
    let of_master =
        linked(&Tier::start(&master.url(), runtime.handle(), &Crew::default()).unwrap()).lineage();
    let tier = Tier::start(&replica.url(), runtime.handle(), &Crew::default()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert!(tier.link().is_none(), "a replica takes no writes");
    let plain = redis::Client::open(replica.url()).unwrap();
    cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut plain.get_connection().unwrap()).unwrap();
    assert_ne!(linked(&tier).lineage(), of_master);
}

#[test]
fn an_address_that_is_none_is_refused() {
    let runtime = runtime();
    assert!(Tier::start("http://127.0.0.1", runtime.handle(), &Crew::default()).is_err());
}
