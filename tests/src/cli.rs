//! Runs client commands of the binary, as a shell would.

use std::io::Read;
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::server::{Server, binary, command};

/// No command of the tests takes nearly as long.
const COMMAND_DEADLINE: Duration = Duration::from_secs(300);

/// How commands are run: whom they ask, and their environment.
#[derive(Clone, Default)]
pub struct Cli {
    environment: Vec<(String, String)>,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Ran {
    what: String,
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Cli {
    /// Commands that find this server in their environment.
    pub fn of(server: &Server) -> Self {
        Self::default().with("GUANXI_SERVER", &server.url())
    }

    /// With one more variable.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a command whose output the caller reads.
    pub fn spawn(&self, arguments: &[&str], stdout: impl Into<Stdio>) -> Child {
        command()
            .env_remove("NO_COLOR")
            .args(arguments)
            .envs(self.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", binary().display()))
    }

    /// Runs a command to its end.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.run_into(arguments, Stdio::piped())
    }

    /// The same with an output of the caller's choice.
    #[track_caller]
    pub fn run_into(&self, arguments: &[&str], stdout: impl Into<Stdio>) -> Ran {
        let process = self.spawn(arguments, stdout);
        let what = format!("guanxi {}", arguments.join(" "));
        wait(process, what)
    }
}

/// What Ctrl-C does.
pub fn interrupt(process: &Child) {
    signal(process, Signal::INT);
}

/// Stops the command where it is, until it is thawed.
pub fn freeze(process: &Child) {
    signal(process, Signal::STOP);
}

/// Lets the command run in short steps until something is so, and leaves it stopped there: nothing
/// that it does passes by while somebody looks. Where looking takes long, so do the steps, or on a
/// crowded machine the command would hardly ever run.
#[track_caller]
pub fn freeze_when(
    process: &Child,
    what: &str,
    deadline: Duration,
    mut is_so: impl FnMut() -> bool,
) {
    const STEP: Duration = Duration::from_millis(5);
    let begun = Instant::now();
    loop {
        freeze(process);
        let looked = Instant::now();
        if is_so() {
            return;
        }
        assert!(begun.elapsed() < deadline, "{what} did not come within {deadline:?}");
        let step = STEP.max(looked.elapsed() / 2);
        thaw(process);
        thread::sleep(step);
    }
}

/// Waits for a command that is stopped and continued (Ctrl-Z, fg) again and again until it ends.
#[track_caller]
pub fn outlast_stops(mut process: Child) -> Ran {
    const RUNNING: Duration = Duration::from_millis(7);
    const STOPPED: Duration = Duration::from_millis(3);
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let outputs = [stdout.map(read_in_background), stderr.map(read_in_background)];
    let begun = Instant::now();
    while process.try_wait().expect("the process is ours").is_none() {
        assert!(begun.elapsed() < COMMAND_DEADLINE, "the command does not end");
        freeze(&process);
        thread::sleep(STOPPED);
        thaw(&process);
        thread::sleep(RUNNING);
    }
    ended(process, outputs, "the command, stopped and continued".to_owned())
}

pub fn thaw(process: &Child) {
    signal(process, Signal::CONT);
}

fn signal(process: &Child, signal: Signal) {
    let id = i32::try_from(process.id()).ok().and_then(Pid::from_raw).expect("a process id");
    kill_process(id, signal).expect("the process is ours");
}

/// Reads both outputs to their end, so that a full pipe never holds the command.
#[track_caller]
fn wait(mut process: Child, what: String) -> Ran {
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    let outputs = [stdout.map(read_in_background), stderr.map(read_in_background)];
    ended(process, outputs, what)
}

/// What a command has said, of which both outputs are read.
#[track_caller]
fn ended(mut process: Child, outputs: [Option<mpsc::Receiver<Vec<u8>>>; 2], what: String) -> Ran {
    let text = |reader: Option<mpsc::Receiver<Vec<u8>>>| match reader {
        None => String::new(),
        Some(reader) => {
            let bytes = reader
                .recv_timeout(COMMAND_DEADLINE)
                .unwrap_or_else(|_| panic!("{what} did not end within {COMMAND_DEADLINE:?}"));
            String::from_utf8(bytes).unwrap_or_else(|_| panic!("{what} prints UTF-8"))
        }
    };
    let [stdout, stderr] = outputs.map(text);
    let status = process.wait().expect("the process is ours");
    Ran { what, code: status.code(), stdout, stderr }
}

fn read_in_background(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

impl Ran {
    /// Waits for a command that was started with `spawn`.
    #[track_caller]
    pub fn of(process: Child) -> Self {
        wait(process, "the command".to_owned())
    }

    #[track_caller]
    pub fn expect(&self, code: i32) -> &Self {
        let Self { what, stdout, stderr, .. } = self;
        assert_eq!(
            self.code,
            Some(code),
            "{what}\n--- stdout ---\n{stdout}\n--- stderr ---\n{stderr}"
        );
        self
    }

    /// Done, without a word on stderr.
    #[track_caller]
    pub fn ok(&self) -> &Self {
        self.expect(0);
        assert_eq!(self.stderr, "", "{} complains", self.what);
        self
    }

    /// Ended with this code, and says all of this on stderr.
    #[track_caller]
    pub fn expect_words(&self, code: i32, words: &[&str]) {
        self.expect(code);
        for word in words {
            assert!(
                self.stderr.contains(word),
                "{} does not say '{word}':\n{}",
                self.what,
                self.stderr
            );
        }
    }

    /// The one JSON value of stdout.
    #[track_caller]
    pub fn json(&self) -> Value {
        self.expect(0);
        let values = self.json_lines();
        let [value] = <[Value; 1]>::try_from(values)
            .unwrap_or_else(|values| panic!("{}: one value, not {}", self.what, values.len()));
        value
    }

    /// Every line of stdout is a JSON value.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let values = self.stdout.lines().map(|line| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}: {error}: {line}", self.what))
        });
        values.collect()
    }
}
