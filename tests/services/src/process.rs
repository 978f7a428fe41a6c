//! Owns the life of one server process: start, readiness, stop, kill, pause, start again in the
//! same directory. A process that goes out of scope is killed by its own id, and it dies with the
//! process of the tests however that one ends.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{LazyLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::place::Place;

/// Kafka after kill -9 takes 16 s on an idle machine; test machines are busy.
const READY_DEADLINE: Duration = Duration::from_secs(180);
/// Also for programs that prepare a server's directory.
const EXIT_DEADLINE: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// What a failure message can hold.
const LOG_TAIL_BYTES: usize = 4_096;

/// Why a server does not answer yet.
pub(crate) type NotReady = String;
type Probe = Box<dyn Fn() -> Result<(), NotReady> + Send + Sync>;

/// How to start a program.
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<OsString>,
}

/// One server: what all of them can do. The servers' own types give it by `Deref`.
pub struct Process {
    name: &'static str,
    launch: Launch,
    probe: Probe,
    /// `None` while it is down.
    child: Mutex<Option<Child>>,
    place: Place,
}

impl Launch {
    pub fn new(program: impl Into<PathBuf>) -> Self {
        Self { program: program.into(), arguments: Vec::new() }
    }

    pub fn argument(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// `NAME=PATH`, as many programs want it.
    pub fn path(self, name: &str, path: &Path) -> Self {
        let mut argument = OsString::from(name);
        argument.push("=");
        argument.push(path);
        self.argument(argument)
    }

    pub fn arguments<A: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = A>) -> Self {
        arguments.into_iter().fold(self, Launch::argument)
    }

    /// Runs to a successful end what prepares a server's directory.
    pub fn run(&self, place: &Place) {
        let program = self.program.display();
        let mut child =
            self.spawn(place).unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let status = wait_for_exit(&mut child).unwrap_or_else(|| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{program} did not end within {EXIT_DEADLINE:?}: {}", log_tail(place.path()))
        });
        assert!(status.success(), "{program} failed ({status}): {}", log_tail(place.path()));
    }

    fn spawn(&self, place: &Place) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(log_path(place.path()))?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(&self.program)
            .args(&self.arguments)
            .current_dir(place.path())
            // TiDB spills there, whatever else it is told, and cleans up only when it stops well.
            .env("TMPDIR", place.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        spawn_from_lasting_thread(command)
    }
}

impl Process {
    pub(crate) fn start(
        name: &'static str,
        place: Place,
        launch: Launch,
        probe: impl Fn() -> Result<(), NotReady> + Send + Sync + 'static,
    ) -> Self {
        let process = Self { name, launch, probe: Box::new(probe), child: Mutex::new(None), place };
        process.start_again();
        process
    }

    /// Starts a server that was stopped or killed, in the same directory on the same ports, and
    /// waits until it is ready.
    pub fn start_again(&self) {
        {
            let mut child = self.child.lock();
            assert!(child.is_none(), "{} runs already", self.name);
            let spawned = self.launch.spawn(&self.place);
            *child = Some(spawned.unwrap_or_else(|error| {
                panic!("cannot start {}, by setpriv of util-linux: {error}", self.name)
            }));
        }
        self.wait_until_ready();
    }

    /// Waits until the server answers as a client needs it; an open port is not enough.
    pub fn wait_until_ready(&self) {
        let deadline = Instant::now() + READY_DEADLINE;
        while let Err(not_ready) = (self.probe)() {
            let ended = match self.child.lock().as_mut() {
                Some(child) => child.try_wait().expect("the process is ours"),
                None => panic!("{} was ended while it was waited for", self.name),
            };
            if let Some(status) = ended {
                panic!("{} ended ({status}):\n{}", self.name, self.log_tail());
            }
            assert!(
                Instant::now() < deadline,
                "{} is not ready within {READY_DEADLINE:?} ({not_ready}):\n{}",
                self.name,
                self.log_tail()
            );
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// The process id; the server must not be down.
    pub fn pid(&self) -> u32 {
        self.child.lock().as_ref().unwrap_or_else(|| panic!("{} is down", self.name)).id()
    }

    pub fn is_running(&self) -> bool {
        let mut child = self.child.lock();
        child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// SIGTERM, then waits for the end. A paused server is resumed to hear it.
    pub fn stop(&self) {
        self.end(&[Signal::TERM, Signal::CONT]);
    }

    /// kill -9, then waits for the end.
    pub fn kill(&self) {
        self.end(&[Signal::KILL]);
    }

    /// Lets the server do nothing at all until `resume`; its connections stay open. On a busy
    /// machine its threads stop one by one: it is waited for the last.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        let (pid, deadline) = (self.pid(), Instant::now() + EXIT_DEADLINE);
        while !all_stopped(pid) {
            assert!(Instant::now() < deadline, "{} does not stop", self.name);
            thread::sleep(POLL_INTERVAL);
        }
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn directory(&self) -> &Path {
        self.place.path()
    }

    /// The last that the server said, over all its starts.
    pub fn log_tail(&self) -> String {
        log_tail(self.place.path())
    }

    fn signal(&self, signal: Signal) {
        let mut child = self.child.lock();
        send(child.as_mut().unwrap_or_else(|| panic!("{} is down", self.name)), signal);
    }

    fn end(&self, signals: &[Signal]) {
        let mut child = self.child.lock();
        let running = child.as_mut().unwrap_or_else(|| panic!("{} is down", self.name));
        for signal in signals {
            send(running, *signal);
        }
        if wait_for_exit(running).is_none() {
            panic!("{} did not end within {EXIT_DEADLINE:?}:\n{}", self.name, self.log_tail());
        }
        *child = None;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("--- the last that {} said ---\n{}", self.name, self.log_tail());
        }
        if let Some(child) = self.child.lock().as_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The signal of a parent's death comes when the thread ends that started the child, and a test's
/// thread ends before the servers that its file shares. So one thread starts them all.
fn spawn_from_lasting_thread(command: Command) -> io::Result<Child> {
    type Asked = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Asked>> = LazyLock::new(|| {
        let (sender, asked) = mpsc::channel::<Asked>();
        thread::spawn(move || {
            for (mut command, answer) in asked {
                let _ = answer.send(command.spawn());
            }
        });
        sender
    });
    let (sender, answer) = mpsc::channel();
    let gone = || io::Error::other("the thread that starts servers has ended");
    SPAWNER.send((command, sender)).map_err(|_| gone())?;
    answer.recv().map_err(|_| gone())?
}

fn send(child: &mut Child, signal: Signal) {
    // The id of a process that has ended may be another's by now.
    if !matches!(child.try_wait(), Ok(None)) {
        return;
    }
    let raw = i32::try_from(child.id()).expect("a process id fits");
    let pid = Pid::from_raw(raw).expect("a process id is not zero");
    let _ = kill_process(pid, signal);
}

fn wait_for_exit(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + EXIT_DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("the process is ours") {
            return Some(status);
        }
        if Instant::now() >= deadline {
            return None;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn log_path(directory: &Path) -> PathBuf {
    directory.join("log")
}

/// Whether every thread of the process has been stopped.
fn all_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is ours");
    threads.flatten().all(|thread| {
        // A thread that ended meanwhile does nothing either. The state follows the name, which may
        // hold anything but is in parentheses.
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

fn log_tail(directory: &Path) -> String {
    let log = fs::read(log_path(directory)).unwrap_or_default();
    String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL_BYTES)..]).into_owned()
}
