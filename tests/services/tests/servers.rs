//! What a test may rely on: each server starts, keeps what it promised to keep over kill -9, hears
//! pause and resume, ends with its owner; and two at once do not meet.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use guanxi_services::{
    Kafka, MariaDb, Process, Redis, SqlServer, TiDb, fresh_database, shared, topic_name,
};

/// An answer within this time shows that a server was not paused.
const SILENCE: Duration = Duration::from_millis(500);
const ANSWER_DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn mariadb_keeps_rows_over_kill_stop_and_pause() {
    let test = "mariadb_keeps_rows_over_kill_stop_and_pause";
    let Some(server) = MariaDb::start_or_skip(test) else { return };
    keeps_rows_over_kill_and_stop(&server);
    falls_silent_while_paused(&server);
}

#[test]
fn tidb_keeps_rows_over_kill_stop_and_pause() {
    let test = "tidb_keeps_rows_over_kill_stop_and_pause";
    let Some(server) = TiDb::start_or_skip(test) else { return };
    keeps_rows_over_kill_and_stop(&server);
    falls_silent_while_paused(&server);
}

#[test]
fn kafka_keeps_records_over_kill_stop_and_pause() {
    let test = "kafka_keeps_records_over_kill_stop_and_pause";
    let Some(kafka) = Kafka::start_or_skip(test) else { return };
    let topic = topic_name("kept");
    kafka.create_topic_with(&topic, 2, &[("retention.ms", "-1")]);
    produce(&kafka, &topic, "first");
    let (port, pid) = (kafka.port(), kafka.pid());
    kafka.kill();
    kafka.start_again();
    assert_eq!((kafka.port(), kafka.pid() != pid), (port, true));
    produce(&kafka, &topic, "second");
    kafka.pause();
    let (sender, answered) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            kafka.wait_until_ready();
            let _ = sender.send(());
        });
        assert_eq!(answered.recv_timeout(SILENCE), Err(RecvTimeoutError::Timeout));
        kafka.resume();
        answered.recv_timeout(ANSWER_DEADLINE).expect("a resumed broker answers");
    });
    kafka.stop();
    kafka.start_again();
    assert_eq!(consume(&kafka, &topic, 2), ["first", "second"]);
}

#[test]
fn redis_is_empty_after_every_start() {
    let Some(redis) = Redis::start_or_skip("redis_is_empty_after_every_start") else { return };
    assert_eq!(redis_call(&redis, "SET name value"), "+OK");
    assert_eq!(redis_call(&redis, "EXISTS name"), ":1");
    redis.kill();
    assert!(!redis.is_running());
    redis.start_again();
    assert_eq!(redis_call(&redis, "EXISTS name"), ":0");
    redis.stop();
    redis.start_again();
    assert_eq!(redis_call(&redis, "PING"), "+PONG");
}

#[test]
fn two_at_once_do_not_meet() {
    let test = "two_at_once_do_not_meet";
    let (first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| MariaDb::start_or_skip(test));
        let second = scope.spawn(|| MariaDb::start_or_skip(test));
        (first.join().expect("the first starts"), second.join().expect("the second starts"))
    });
    let (Some(first), Some(second)) = (first, second) else { return };
    first.query("CREATE DATABASE of_the_first");
    let seen =
        "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = 'of_the_first'";
    assert_eq!(first.query(seen), [[Some("1".to_owned())]]);
    assert_eq!(second.query(seen), [[Some("0".to_owned())]]);
}

#[test]
fn a_dropped_server_leaves_nothing() {
    let Some(redis) = Redis::start_or_skip("a_dropped_server_leaves_nothing") else { return };
    let directory = redis.directory().to_path_buf();
    let process = format!("/proc/{}", redis.pid());
    assert!(directory.exists() && fs::exists(&process).expect("/proc can be asked"));
    drop(redis);
    assert!(!directory.exists() && !fs::exists(&process).expect("/proc can be asked"));
}

#[test]
fn a_shared_server_outlives_the_thread_that_started_it() {
    let test = "a_shared_server_outlives_the_thread_that_started_it";
    let start = || shared::redis_or_skip(test).map(|redis| redis.pid());
    let Some(started) = thread::spawn(start).join().expect("it starts") else { return };
    let redis = shared::redis();
    assert_eq!(redis.pid(), started);
    assert_eq!(redis_call(redis, "PING"), "+PONG");
}

#[test]
fn a_shared_server_ends_with_its_process_and_the_next_start_cleans_up() {
    let test = "a_shared_server_ends_with_its_process_and_the_next_start_cleans_up";
    let Some(own) = Redis::start_or_skip(test) else { return };
    // This very program again, to be killed while its server runs.
    let program = std::env::current_exe().expect("a test has a path");
    let mut other = Command::new(program)
        .args(["--exact", "start_a_server_and_wait", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(other.stdout.take().expect("stdout is piped"));
    let announced = said.lines().map_while(Result::ok).find_map(|line| {
        let (_, announced) = line.split_once("started ")?;
        let (pid, directory) = announced.split_once(' ')?;
        Some((pid.to_owned(), directory.to_owned()))
    });
    other.kill().expect("it can be killed");
    other.wait().expect("it ends");
    let (pid, directory) = announced.expect("the other process announces its server");
    let deadline = Instant::now() + ANSWER_DEADLINE;
    while runs(&pid) {
        assert!(Instant::now() < deadline, "process {pid} outlived its owner");
        thread::sleep(Duration::from_millis(10));
    }
    drop(Redis::start());
    assert!(!fs::exists(&directory).expect("the directory can be asked for"), "{directory} stayed");
    assert_eq!(redis_call(&own, "PING"), "+PONG", "a living server's directory stays");
    assert!(own.directory().exists());
}

#[test]
fn a_missing_server_is_skipped_loudly_or_required() {
    let skipped = "tidb_keeps_rows_over_kill_stop_and_pause";
    let ask = |required: &str| {
        Command::new(std::env::current_exe().expect("a test has a path"))
            .args(["--exact", skipped])
            .env("GUANXI_CACHE", "/nonexistent")
            .env("GUANXI_REQUIRE_SERVICES", required)
            .output()
            .expect("it runs")
    };
    let said = format!("{skipped} needs TiDB: no /nonexistent/tidb-");
    let optional = ask("");
    let text = String::from_utf8_lossy(&optional.stderr);
    assert!(optional.status.success() && text.contains(&format!("SKIPPED: {said}")), "{text}");
    let required = ask("1");
    let text = String::from_utf8_lossy(&required.stdout);
    assert!(!required.status.success() && text.contains(&said), "{text}");
}

#[test]
#[ignore = "a part of the test of shared servers, which starts it by name"]
fn start_a_server_and_wait() {
    let redis = shared::redis();
    println!("\nstarted {} {}", redis.pid(), redis.directory().display());
    // Its parent kills it; should the parent be gone, it ends by itself.
    thread::sleep(ANSWER_DEADLINE);
}

fn keeps_rows_over_kill_and_stop<S: SqlServer + Deref<Target = Process>>(server: &S) {
    let [first, second] = [fresh_database(server), fresh_database(server)];
    assert_ne!(first, second);
    let database = first.rsplit('/').next().expect("a URL ends in the database");
    server.query(&format!(
        "CREATE TABLE {database}.kept (id INT PRIMARY KEY, name TEXT CHARACTER SET utf8mb4)"
    ));
    server.query(&format!("INSERT INTO {database}.kept VALUES (1, '关系'), (2, NULL)"));
    let rows =
        [vec![Some("1".to_owned()), Some("关系".to_owned())], vec![Some("2".to_owned()), None]];
    let select = format!("SELECT id, name FROM {database}.kept ORDER BY id");
    let (port, pid) = (server.port(), server.pid());
    server.kill();
    assert!(server.try_query("SELECT 1").is_err());
    server.start_again();
    assert_eq!((server.port(), server.pid() != pid), (port, true));
    assert_eq!(server.query(&select), rows);
    server.stop();
    assert!(!server.is_running());
    server.start_again();
    assert_eq!(server.query(&select), rows);
    let refused = server.try_query("SELECT nonsense").expect_err("there is no such column");
    assert!(refused.contains("nonsense"), "{refused}");
}

fn falls_silent_while_paused<S: SqlServer + Deref<Target = Process> + Sync>(server: &S) {
    let (sender, answered) = mpsc::channel();
    server.pause();
    thread::scope(|scope| {
        scope.spawn(|| {
            server.wait_until_ready();
            let _ = sender.send(());
        });
        assert_eq!(answered.recv_timeout(SILENCE), Err(RecvTimeoutError::Timeout));
        server.resume();
        answered.recv_timeout(ANSWER_DEADLINE).expect("a resumed server answers");
    });
}

fn produce(kafka: &Kafka, topic: &str, record: &str) {
    let mut producer = kafka
        .tool("org.apache.kafka.tools.ConsoleProducer")
        .args(["--topic", topic, "--sync"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("java starts");
    let mut input = producer.stdin.take().expect("stdin is piped");
    writeln!(input, "{record}").expect("the producer reads");
    drop(input);
    assert!(producer.wait().expect("the producer ends").success());
}

/// Every record of all partitions, in the order of the alphabet.
fn consume(kafka: &Kafka, topic: &str, records: usize) -> Vec<String> {
    let consumed = kafka
        .tool("org.apache.kafka.tools.consumer.ConsoleConsumer")
        .args(["--topic", topic, "--from-beginning", "--timeout-ms", "60000"])
        .args(["--max-messages", &records.to_string()])
        .output()
        .expect("java starts");
    let text = String::from_utf8_lossy(&consumed.stdout);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The first line of the answer.
fn redis_call(redis: &Redis, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).expect("Redis listens");
    stream.set_read_timeout(Some(ANSWER_DEADLINE)).expect("a timeout can be set");
    write!(stream, "{command}\r\nQUIT\r\n").expect("Redis reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("Redis answers");
    answer.lines().next().unwrap_or_default().to_owned()
}

/// A process that ended may stand as a zombie until whoever inherits it takes notice.
fn runs(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim().starts_with('Z'))
}
