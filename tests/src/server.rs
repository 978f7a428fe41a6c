//! Owns the life of one guanxi process: start, ready line, stop, kill, restart on the same
//! directory. A server that goes out of scope is killed by its own process id.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use guanxi_services::Port;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::client::Client;
use crate::cluster::Cluster;
use crate::differences::{Deployment, deployment};

/// A debug build on a busy machine still starts within this.
const READY_DEADLINE: Duration = Duration::from_secs(60);
/// The drain of a stopping server is itself bounded; this is well above that bound.
const EXIT_DEADLINE: Duration = Duration::from_secs(60);
const READY_PREFIX: &str = "guanxi is ready on http://";
const RESP_PREFIX: &str = "guanxi speaks RESP on ";

#[derive(Default, Clone)]
pub struct Options {
    /// Any free port of 127.0.0.1 by default.
    pub listen: Option<String>,
    /// Kept for as long as a server may be started on it.
    pub port: Option<Arc<Port>>,
    /// The settings of a cluster, whose instances have no data directory.
    pub config: Option<PathBuf>,
    /// Kept for as long as an instance may be started on it.
    pub cluster: Option<Arc<Cluster>>,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

pub struct Server {
    process: Child,
    address: SocketAddr,
    resp_address: Option<SocketAddr>,
    client: Client,
    log: Arc<Mutex<String>>,
    directory: Arc<Directory>,
    options: Options,
    ended: bool,
}

/// The data directory outlives each of the processes that use it in turn.
struct Directory {
    path: PathBuf,
    _temporary: Option<TempDir>,
}

static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());

/// The server that the tests of one file share; the last of them to end stops it. Tests are
/// told apart by their node ids (see [`crate::nodes`]).
pub fn shared() -> Arc<Server> {
    let mut shared = SHARED.lock();
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(Server::start());
    *shared = Arc::downgrade(&server);
    server
}

impl Server {
    /// Starts on an empty temporary directory.
    pub fn start() -> Self {
        Self::start_with(Options::default())
    }

    pub fn start_with(options: Options) -> Self {
        Self::try_start_with(options).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// The error is what the process said.
    pub fn try_start_with(mut options: Options) -> Result<Self, String> {
        if deployment() == Deployment::Cluster && options.config.is_none() {
            let cluster = Cluster::start();
            options.config = Some(cluster.config());
            options.cluster = Some(Arc::new(cluster));
        }
        let temporary = TempDir::with_prefix("guanxi-test-").expect("a temporary directory");
        let directory =
            Directory { path: temporary.path().join("data"), _temporary: Some(temporary) };
        Self::launch(Arc::new(directory), options)
    }

    /// Tries to start on a directory of the caller's; the error is what the process said.
    pub fn try_start_in(directory: &Path) -> Result<Self, String> {
        Self::try_start_in_with(directory, Options::default())
    }

    pub fn try_start_in_with(directory: &Path, options: Options) -> Result<Self, String> {
        let directory = Directory { path: directory.to_path_buf(), _temporary: None };
        Self::launch(Arc::new(directory), options)
    }

    /// The same as a standby of this primary.
    pub fn try_start_following(directory: &Path, primary: &str) -> Result<Self, String> {
        let directory = Directory { path: directory.to_path_buf(), _temporary: None };
        let arguments = vec!["--follow".to_owned(), primary.to_owned()];
        Self::launch(Arc::new(directory), Options { arguments, ..Options::default() })
    }

    fn launch(directory: Arc<Directory>, options: Options) -> Result<Self, String> {
        let mut command = command();
        command.arg("serve");
        match &options.config {
            Some(config) => command.arg("--config").arg(config),
            None => command.arg("--data-dir").arg(&directory.path),
        };
        let mut process = command
            .arg("--listen")
            .arg(options.listen.as_deref().unwrap_or("127.0.0.1:0"))
            .args(&options.arguments)
            .envs(options.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", binary().display()))?;
        let log = gather_log(process.stderr.take().expect("stderr is piped"));
        let ready = ready_line(process.stdout.take().expect("stdout is piped"));
        match ready.recv_timeout(READY_DEADLINE) {
            Ok(Addresses { http: address, resp: resp_address }) => Ok(Self {
                process,
                address,
                resp_address,
                client: match options.cluster {
                    Some(_) => Client::new(address).reading_its_writes(),
                    None => Client::new(address),
                },
                log,
                directory,
                options,
                ended: false,
            }),
            Err(reason) => {
                if reason == RecvTimeoutError::Timeout {
                    kill(&process, Signal::KILL);
                }
                let status = process.wait().expect("the process can be waited for");
                // Its last words may still be on their way through the pipe.
                thread::sleep(Duration::from_millis(50));
                let said = log.lock().clone();
                Err(format!("guanxi did not become ready ({status}): {said}"))
            }
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it speaks RESP; it was started with `--resp`.
    pub fn resp_address(&self) -> SocketAddr {
        self.resp_address.expect("the server was told to speak RESP")
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn data_directory(&self) -> &Path {
        &self.directory.path
    }

    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// What the process wrote to stderr so far.
    pub fn log(&self) -> String {
        self.log.lock().clone()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.process.id());
        let statm = std::fs::read_to_string(path).expect("the process runs");
        let pages: u64 = statm
            .split_whitespace()
            .nth(1)
            .and_then(|field| field.parse().ok())
            .expect("statm has a resident field");
        pages * rustix::param::page_size() as u64
    }

    /// Lets the process do nothing at all until `resume`; its connections stay open.
    pub fn pause(&self) {
        kill(&self.process, Signal::STOP);
    }

    pub fn resume(&self) {
        kill(&self.process, Signal::CONT);
    }

    /// Asks the process to stop without waiting for it.
    pub fn send_terminate(&self) {
        kill(&self.process, Signal::TERM);
    }

    /// kill -9 without waiting for the end; `kill` does.
    pub fn send_kill(&self) {
        kill(&self.process, Signal::KILL);
    }

    /// SIGTERM, then waits for the drained exit.
    pub fn terminate(mut self) -> Stopped {
        self.send_terminate();
        let status = self.wait_for_exit();
        self.stopped(status)
    }

    /// kill -9: no destructor, no flush.
    pub fn kill(mut self) -> Stopped {
        kill(&self.process, Signal::KILL);
        let status = self.wait_for_exit();
        self.stopped(status)
    }

    fn stopped(mut self, status: ExitStatus) -> Stopped {
        self.ended = true;
        Stopped {
            status,
            log: self.log(),
            directory: self.directory.clone(),
            options: self.options.clone(),
        }
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + EXIT_DEADLINE;
        loop {
            if let Some(status) = self.process.try_wait().expect("the process is ours") {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "guanxi did not exit within {EXIT_DEADLINE:?}; it said:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            kill(&self.process, Signal::KILL);
            let _ = self.process.wait();
            if thread::panicking() {
                eprintln!("--- what the server said ---\n{}", self.log());
            }
        }
    }
}

/// A directory whose process has ended.
pub struct Stopped {
    pub status: ExitStatus,
    pub log: String,
    directory: Arc<Directory>,
    options: Options,
}

impl Stopped {
    pub fn data_directory(&self) -> &Path {
        &self.directory.path
    }

    /// The same directory, to be started with other settings.
    pub fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    /// Starts again on the same directory.
    pub fn restart(self) -> Server {
        self.try_restart().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Starts again on the same directory, set up otherwise.
    pub fn restart_with(self, options: Options) -> Server {
        let started = Server::launch(self.directory.clone(), options);
        started.unwrap_or_else(|failure| panic!("{failure}"))
    }

    pub fn try_restart(&self) -> Result<Server, String> {
        Server::launch(self.directory.clone(), self.options.clone())
    }
}

/// The binary, free of the settings that the developer's own environment may have.
pub(crate) fn command() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("GUANXI_") {
            command.env_remove(name);
        }
    }
    command
}

/// The binary under test: `GUANXI_BIN`, or the one beside this test in the target directory.
pub fn binary() -> PathBuf {
    if let Some(given) = std::env::var_os("GUANXI_BIN") {
        return PathBuf::from(given);
    }
    // Test binaries stand in <target>/<profile>/deps, the service's one directory up.
    let own = std::env::current_exe().expect("the test binary has a path");
    let beside = own
        .parent()
        .and_then(Path::parent)
        .expect("test binaries stand in a profile's deps directory")
        .join("guanxi");
    assert!(
        beside.exists(),
        "no guanxi binary: build it with the tests' profile, or set GUANXI_BIN"
    );
    beside
}

fn kill(process: &Child, signal: Signal) {
    let raw = i32::try_from(process.id()).expect("a process id fits");
    let pid = Pid::from_raw(raw).expect("a process id is not zero");
    let _ = kill_process(pid, signal);
}

fn gather_log(stderr: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let log = Arc::new(Mutex::new(String::new()));
    let written = log.clone();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines() {
            let Ok(line) = line else { break };
            let mut log = written.lock();
            log.push_str(&line);
            log.push('\n');
        }
    });
    log
}

/// What a process says when it is ready.
struct Addresses {
    http: SocketAddr,
    resp: Option<SocketAddr>,
}

/// Reads stdout to its end, so that the process never blocks on a full pipe, and passes on the
/// addresses of the ready lines.
fn ready_line(stdout: impl Read + Send + 'static) -> mpsc::Receiver<Addresses> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let (mut sender, mut resp) = (Some(sender), None);
        for line in BufReader::new(stdout).lines() {
            let Ok(line) = line else { break };
            if let Some(rest) = line.strip_prefix(RESP_PREFIX) {
                resp = rest.trim().parse().ok();
            }
            let Some(rest) = line.strip_prefix(READY_PREFIX) else {
                continue;
            };
            if let (Some(sender), Ok(http)) = (sender.take(), rest.trim().parse()) {
                let _ = sender.send(Addresses { http, resp });
            }
        }
    });
    receiver
}

/// Runs the binary with these arguments in this directory, for commands that must end by
/// themselves.
pub fn run_to_exit(arguments: &[&str], directory: &Path) -> Output {
    let mut process = command()
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", binary().display()));
    let deadline = Instant::now() + READY_DEADLINE;
    while process.try_wait().expect("the process is ours").is_none() {
        if Instant::now() > deadline {
            kill(&process, Signal::KILL);
            panic!("guanxi {arguments:?} did not end by itself");
        }
        thread::sleep(Duration::from_millis(5));
    }
    process.wait_with_output().expect("its output can be read")
}
