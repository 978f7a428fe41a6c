//! A move that begins and an instance that starts, each held at the moment between its look at the
//! other and its own word: at most one of them goes on.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::thread;

use guanxi_services::{SqlServer, shared as services};
use guanxi_tests::{Cli, Cluster, Options, Ran, Server, edge, freeze, nodes, poll_until, thaw};
use parking_lot::{Condvar, Mutex};

use super::{SOON, fact, run_move};

/// Lets nothing through that begins with certain words, until it is opened.
#[derive(Default)]
struct Gate {
    /// Somebody waits; it is open.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.0 = true;
        while !state.1 {
            self.changed.wait(&mut state);
        }
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().0
    }

    fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }
}

/// The settings of a cluster whose statements with these words wait at the gate.
fn through_gate(
    cluster: &Cluster,
    database: &dyn SqlServer,
    words: &'static str,
    gate: &Arc<Gate>,
) -> PathBuf {
    let settings = std::fs::read_to_string(cluster.config()).expect("the settings are there");
    let direct = format!(":{}/", database.port());
    assert!(settings.contains(&direct), "{settings}");
    let gate_port = way_to(database.port(), words, gate);
    let through = format!(":{gate_port}/");
    let path = cluster.directory().join(format!("through_{gate_port}.toml"));
    std::fs::write(&path, settings.replace(&direct, &through)).expect("it can be written");
    path
}

/// A way to the database on which statements with these words wait at the gate.
fn way_to(port: u16, words: &'static str, gate: &Arc<Gate>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("a bound address").port();
    let gate = gate.clone();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("the database is there");
            let both = |stream: &TcpStream| stream.try_clone().expect("a second handle");
            let (from_server, to_client) = (both(&server), both(&client));
            thread::spawn(move || carry(from_server, to_client, |_| {}));
            let gate = gate.clone();
            thread::spawn(move || {
                carry(client, server, |bytes| {
                    if String::from_utf8_lossy(bytes).contains(words) {
                        gate.pass();
                    }
                });
            });
        }
    });
    own
}

fn carry(mut from: TcpStream, mut to: TcpStream, before: impl Fn(&[u8])) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        before(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Either side may have gone already.
    let _ = to.shutdown(Shutdown::Write);
}

/// Ends with the test, however that ends.
struct Killed(Option<Child>);

impl Killed {
    fn ran(mut self) -> Ran {
        Ran::of(self.0.take().expect("it runs"))
    }

    /// Reads what it says until these words come; a service that serves instead says so and is
    /// found out.
    fn expect_said(mut self, words: &str) {
        let mut child = self.0.take().expect("it runs");
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let _ended_with_the_test = Killed(Some(child));
        let (tell, told) = std::sync::mpsc::channel();
        let streams: [Option<Box<dyn Read + Send>>; 2] =
            [stdout.map(|out| Box::new(out) as _), stderr.map(|err| Box::new(err) as _)];
        for stream in streams.into_iter().flatten() {
            let tell = tell.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    // Nobody listens once the words have come.
                    let _ = tell.send(line);
                }
            });
        }
        loop {
            let line = told.recv_timeout(SOON).expect("it says something");
            assert!(!line.contains("guanxi is ready"), "it serves tables that a move fills");
            if line.contains(words) {
                return;
            }
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_move_does_not_begin_under_an_instance_that_is_starting() {
    let test = "a move beside a start";
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let database = services::mariadb_or_skip(test).expect("it was there a moment ago");
    let server = Server::start();
    // The instance has looked whether there is a move, and now reads what kinds there are.
    let gate = Arc::<Gate>::default();
    let config = through_gate(&cluster, database, "SELECT tenant,id,name FROM node_types", &gate);
    let arguments = vec!["--roles".to_owned(), "api".to_owned()];
    let options = Options { config: Some(config), arguments, ..Options::default() };
    let starting = thread::spawn(move || Server::try_start_with(options));
    poll_until("the instance is about to start", SOON, || gate.somebody_waits().then_some(()));
    let ran = run_move(&cluster, &server, &[]);
    gate.open();
    ran.expect_words(1, &["instances of this cluster are running", "stop them first"]);
    assert_eq!(fact(database, &cluster, "move.phase"), None, "it has left nothing");
    let instance = starting.join().expect("it was started").expect("it starts");
    instance.get("/healthz").ok();
}

#[test]
fn an_instance_that_starts_under_a_beginning_move_is_noticed() {
    let test = "a start beside a move";
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let database = services::mariadb_or_skip(test).expect("it was there a moment ago");
    let gate = Arc::<Gate>::default();
    let config = through_gate(&cluster, database, "REPLACE INTO facts", &gate);
    let server = Server::start();
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    let arguments = ["move", "--to", config.to_str().expect("UTF-8"), "--json"];
    let moving = Killed(Some(Cli::of(&server).spawn(&arguments, std::process::Stdio::piped())));
    poll_until("the move is about to take the tables", SOON, || {
        gate.somebody_waits().then_some(())
    });
    // As nothing is said yet, the instance starts, and serves.
    let instance = cluster.instance();
    instance.put(edge("follow", star, fan)).ok();
    gate.open();
    moving.ran().expect_words(1, &[]);
    assert_eq!(fact(database, &cluster, "move.phase"), None, "it has left nothing");
    assert_eq!(instance.get(edge("follow", star, fan)).ok()["related"], true);
    // Nobody waits for the end of a move that there is not.
    let instance = instance.terminate().restart();
    assert_eq!(instance.get(edge("follow", star, fan)).ok()["related"], true);
}

/// An instance that has said that it is there is stopped for longer than that counts; meanwhile a
/// move finds nobody and takes the tables.
fn paused_amid_its_start(test: &str, with_log: bool) {
    let Some(cluster) = Cluster::start_or_skip(test) else { return };
    let database = services::mariadb_or_skip(test).expect("it was there a moment ago");
    let before_positions = Arc::<Gate>::default();
    let config = through_gate(&cluster, database, "INSERT INTO applied", &before_positions);
    if !with_log {
        let settings = std::fs::read_to_string(&config).expect("the settings are there");
        let away = settings.lines().map(|line| match line.starts_with("brokers = ") {
            true => "brokers = \"127.0.0.1:9\"\n".to_owned(),
            false => format!("{line}\n"),
        });
        std::fs::write(&config, away.collect::<String>()).expect("they can be written");
    }
    let serve = ["serve", "--listen", "127.0.0.1:0", "--config"];
    let serve = [&serve[..], &[config.to_str().expect("UTF-8")]].concat();
    let instance = Killed(Some(Cli::default().spawn(&serve, std::process::Stdio::piped())));
    poll_until("the instance is about to start", SOON, || {
        before_positions.somebody_waits().then_some(())
    });
    freeze(instance.0.as_ref().expect("it runs"));
    let leases = format!(
        "SELECT 1 FROM {}.leases WHERE until_ms>UNIX_TIMESTAMP(NOW(3))*1000",
        cluster.database
    );
    poll_until("its lease is over", SOON, || database.query(&leases).is_empty().then_some(()));
    let server = Server::start();
    let [fan, star] = nodes();
    server.put(edge("follow", fan, star)).expect_change(true, "live");
    // The move has taken the tables, and is about to fill them.
    let before_load = Arc::<Gate>::default();
    let config = through_gate(&cluster, database, "('move.phase',2)", &before_load);
    let arguments = ["move", "--to", config.to_str().expect("UTF-8"), "--json"];
    let moving = Killed(Some(Cli::of(&server).spawn(&arguments, std::process::Stdio::piped())));
    poll_until("the move has the tables", SOON, || before_load.somebody_waits().then_some(()));
    before_positions.open();
    thaw(instance.0.as_ref().expect("it runs"));
    instance.expect_said("a move into this cluster is not finished");
    before_load.open();
    moving.ran().ok();
    let instance = cluster.instance();
    assert_eq!(instance.get(edge("follow", fan, star)).ok()["related"], true);
}

#[test]
fn an_instance_that_was_paused_amid_its_start_sees_a_move_that_began_meanwhile() {
    paused_amid_its_start("a pause amid a start", true);
}

#[test]
fn an_instance_without_the_log_that_was_paused_amid_its_start_sees_it_too() {
    paused_amid_its_start("a pause amid a start without the log", false);
}
