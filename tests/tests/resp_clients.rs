//! Real clients of Redis, unmodified, in five languages: each connects as it does to Redis, writes,
//! reads, sends many commands at once, and hears of what is wrong. What they do is in
//! `tests/clients-resp`.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use guanxi_services::RespClients;
use guanxi_tests::Server;
use guanxi_tests::resp::options;
use parking_lot::Mutex;

/// A Java that compiles, or a Go that was not built before, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

fn server() -> Arc<Server> {
    static SHARED: LazyLock<Mutex<Weak<Server>>> = LazyLock::new(Mutex::default);
    let mut shared = SHARED.lock();
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(Server::start_with(options()));
    *shared = Arc::downgrade(&server);
    server
}

/// What a program says until it ends well.
#[track_caller]
fn said(command: &mut Command) -> String {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().expect("the client can be started");
    let pid = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(DEADLINE) else {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        panic!("the client did not end within {DEADLINE:?}");
    };
    let _told = waiter.join();
    let output = output.expect("its output can be read");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn try_client(clients: RespClients, test: &str, first_id: u64) {
    let Some(mut command) = clients.command_or_skip(test) else {
        return;
    };
    let server = server();
    let told = said(command.arg(server.resp_address().to_string()).arg(first_id.to_string()));
    assert!(told.trim_end().ends_with("done"), "{told}");
}

#[test]
fn redis_py() {
    try_client(RespClients::RedisPy, "redis_py", 100_000);
}

#[test]
fn go_redis_and_rueidis() {
    try_client(RespClients::Go, "go_redis_and_rueidis", 200_000);
}

#[test]
fn jedis_and_lettuce() {
    try_client(RespClients::Java, "jedis_and_lettuce", 300_000);
}

#[test]
fn ioredis() {
    try_client(RespClients::IoRedis, "ioredis", 400_000);
}

fn at(command: &mut Command, address: SocketAddr) -> &mut Command {
    command.args(["-h", &address.ip().to_string(), "-p", &address.port().to_string()])
}

#[test]
fn redis_cli() {
    let run = |arguments: &[&str]| {
        let mut command = RespClients::RedisCli.command_or_skip("redis_cli")?;
        let server = server();
        Some(said(at(&mut command, server.resp_address()).args(arguments)))
    };
    let Some(pong) = run(&["PING"]) else { return };
    assert_eq!(pong, "PONG\n");
    let put = run(&["GX.PUT", "follow", "500000", "500001"]).unwrap();
    assert!(put.starts_with("changed\n1\nstate\nlive\n"), "{put}");
    let get = run(&["-3", "--json", "GX.GET", "follow", "500000", "500001"]).unwrap();
    assert!(get.starts_with(r#"{"related":true,"state":"live","#), "{get}");
    let wrong = run(&["GX.PUT", "nothing", "1", "2"]).unwrap();
    assert!(wrong.starts_with("UNKNOWN_KIND "), "{wrong}");
}

/// Many connections and pipelines of a load generator that knows nothing of us.
#[test]
fn redis_benchmark() {
    let run = |arguments: &[&str]| {
        let mut command = RespClients::RedisBenchmark.command_or_skip("redis_benchmark")?;
        let server = server();
        at(&mut command, server.resp_address()).args(["-q", "-c", "20"]).args(arguments);
        Some(said(&mut command))
    };
    for arguments in [
        &["-n", "5000", "PING"][..],
        &["-n", "20000", "-P", "16", "GX.CHECK", "follow", "600000", "600001", "600002"],
        &["-n", "3000", "-P", "8", "GX.PUT", "like", "600000", "600001"],
        &["-n", "2000", "-3", "GX.LIST", "follow", "600000", "OUTGOING", "LIMIT", "20"],
    ] {
        let Some(told) = run(arguments) else { return };
        assert!(told.contains("requests per second") && !told.contains("rror"), "{told}");
    }
}
