//! One run of `guanxi serve` on a directory, recorded or not, and its HTTP calls.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::recorder::Recording;

const JSON: &str = "application/json";
const READY: &str = "guanxi is ready on ";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// How to start the binary: the same for every run of a test.
pub struct Launch {
    pub binary: PathBuf,
    /// Environment variables for the settings that the test needs small.
    pub settings: Vec<(String, String)>,
    /// What the server says on stderr is appended here.
    pub log: PathBuf,
}

pub struct Server {
    child: Child,
    address: String,
}

impl Launch {
    /// Starts the server and waits until it is ready.
    pub fn start(
        &self,
        data_directory: &Path,
        recording: Option<&Recording>,
    ) -> Result<Server, String> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log: File = log.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let mut command = Command::new(&self.binary);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_directory);
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        if let Some(recording) = recording {
            recording.attach(&mut command);
        }
        let mut child =
            command.spawn().map_err(|error| format!("{}: {error}", self.binary.display()))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut server = Server { child, address: String::new() };

        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix(READY) {
                    // The receiver may have given up; the pipe is read to its end all the same.
                    let _ = sender.send(address.to_owned());
                }
            }
        });
        match receiver.recv_timeout(START_TIMEOUT) {
            Ok(address) => {
                server.address = address;
                Ok(server)
            }
            Err(reason) => {
                // A closed stdout means that the server has ended; how is said before it is killed.
                let ended = match reason {
                    RecvTimeoutError::Disconnected => {
                        server.wait().map(|status| status.to_string())
                    }
                    RecvTimeoutError::Timeout => Ok(format!("not within {START_TIMEOUT:?}")),
                }?;
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(8).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                Err(format!(
                    "the server did not become ready ({ended}); it said: {}",
                    last.join("\n    ")
                ))
            }
        }
    }
}

impl Server {
    /// Asks for a clean stop and waits for it.
    pub fn stop(mut self) -> Result<(), String> {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        if !asked.map_err(|error| format!("kill: {error}"))?.success() {
            return Err("the server was gone before it was asked to stop".to_owned());
        }
        let status = self.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server stopped with {status}")) }
    }

    /// Waits for a server that ends by itself.
    pub fn wait(&mut self) -> Result<ExitStatus, String> {
        let deadline = Instant::now() + STOP_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().map_err(|error| error.to_string())? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Err(format!("the server did not end within {STOP_TIMEOUT:?}"))
    }

    pub fn client(&self) -> Client {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(REQUEST_TIMEOUT))
            .http_status_as_error(false)
            .build();
        Client { agent: config.into(), address: self.address.clone() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub struct Client {
    agent: ureq::Agent,
    address: String,
}

impl Client {
    pub fn get(&self, path: &str) -> Result<Value, String> {
        answer(path, self.agent.get(self.url(path)).call())
    }

    pub fn put(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = self.agent.put(self.url(path)).content_type(JSON);
        answer(path, request.send(body.to_string()))
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let request = self.agent.post(self.url(path)).content_type(JSON);
        answer(path, request.send(body.to_string()))
    }

    pub fn delete(&self, path: &str) -> Result<Value, String> {
        answer(path, self.agent.delete(self.url(path)).call())
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address)
    }
}

/// Every call of the test is right, so any status but 200 is an error.
fn answer(
    path: &str,
    sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Value, String> {
    let mut response = sent.map_err(|error| format!("{path}: {error}"))?;
    let status = response.status();
    let text = response.body_mut().read_to_string().map_err(|error| format!("{path}: {error}"))?;
    if status != 200 {
        return Err(format!("{path}: {status} {text}"));
    }
    serde_json::from_str(&text).map_err(|error| format!("{path}: {error} in {text}"))
}
