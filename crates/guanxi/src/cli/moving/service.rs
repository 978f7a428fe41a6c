//! The service that is moved, as its admin calls show it.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use guanxi_model::{Epoch, Position};
use serde_json::{Value, json};

use crate::cli::backup::stopped;
use crate::cli::client::Client;
use crate::cli::interrupt::Interrupt;
use crate::cli::progress::Progress;
use crate::cli::unfinished::{Purpose, Unfinished};
use crate::failure::Failure;
use crate::service::backup::place_text;

const MOVE: &str = "/v1/admin/move";
const PAUSE: &str = "/v1/admin/move/pause";
const BACKUP: &str = "/v1/admin/backup";
const PURPOSE: Purpose = Purpose { name: "move", nothing: "nothing was moved" };
/// What is read and written at once.
const COPY_BYTES: usize = 256 << 10;

#[derive(Clone, Copy)]
pub struct Service<'a> {
    client: &'a Client,
    /// The move's number, and that of its run, which the service gave; 0 before it has begun.
    id: u64,
    run: u64,
}

#[derive(Debug)]
pub enum State {
    /// It takes writes, or will again in a moment.
    Here,
    Moved {
        id: u64,
        position: Position,
        now_at: Option<String>,
    },
}

/// Where the service's log ends while its writes pause.
#[derive(Debug)]
pub struct Paused {
    pub position: Position,
}

impl<'a> Service<'a> {
    pub fn new(client: &'a Client, id: u64, run: u64) -> Service<'a> {
        Service { client, id, run }
    }

    /// Begins a run of the move; returns its number.
    pub fn begin(&self) -> Result<u64, Failure> {
        let answer = self.client.post(MOVE).send_json(&json!({ "id": self.id.to_string() }))?;
        let run = answer["run"].as_str().and_then(|run| run.parse().ok());
        run.ok_or_else(|| self.foreign(&answer))
    }

    /// The run is alive; returns how long it has to wait before writes may pause.
    pub fn go_on(&self) -> Result<Duration, Failure> {
        let body = json!({ "id": self.id.to_string(), "run": self.run.to_string() });
        let answer = self.client.post(MOVE).send_json(&body)?;
        let rest = answer["rest_ms"].as_u64().map(Duration::from_millis);
        rest.ok_or_else(|| self.foreign(&answer))
    }

    pub fn state(&self) -> Result<State, Failure> {
        let answer =
            self.client.get(MOVE).send().map_err(|failure| match failure.code.as_deref() {
                Some("not_found") => {
                    failure.next("the server is older than `guanxi move`: update it")
                }
                _ => failure,
            })?;
        if answer["state"] != "moved" {
            return Ok(State::Here);
        }
        let id = answer["id"].as_str().and_then(|id| id.parse().ok());
        Ok(State::Moved {
            id: id.ok_or_else(|| self.foreign(&answer))?,
            position: self.position(&answer)?,
            now_at: answer["now_at"].as_str().map(str::to_owned),
        })
    }

    pub fn refuse_standby(&self) -> Result<(), Failure> {
        let answer = self.client.get("/v1/admin/standby").send()?;
        if answer["role"] != "standby" {
            return Ok(());
        }
        let primary = answer["following"]["primary"].as_str().unwrap_or("its primary");
        Err(Failure::found(format!("{} is a standby, which takes no writes", self.client.server()))
            .next(format!("move its primary: --server {primary}")))
    }

    /// Writes a full backup into a file, which has its name when all is there.
    pub fn snapshot(
        &self,
        to: &Path,
        interrupt: &Interrupt,
        progress: &Progress,
    ) -> Result<(), Failure> {
        let part = Unfinished::begin(to, PURPOSE)?;
        let answer = self.client.get(BACKUP).query("move", self.run).send_for_stream()?;
        let mut body = answer.into_reader();
        let mut buffer = vec![0; COPY_BYTES];
        loop {
            if interrupt.is_set() {
                return Err(stopped("nothing was moved"));
            }
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let server = self.client.server();
                    return Err(Failure::failed(format!("{server} broke off its copy: {error}"))
                        .next("the server's log says why; run the same command again"));
                }
            };
            let written = part.file().write_all(&buffer[..read]);
            written.map_err(|error| part.cannot_write(&error))?;
            progress.advance(read as u64);
        }
        part.finish()
    }

    /// What came after a place of its log, as a backup that continues there.
    pub fn tail(&self, epoch: Epoch, position: Position) -> Result<impl Read + use<>, Failure> {
        let after = place_text(epoch, position);
        let request = self.client.get(BACKUP).query("after", after).query("move", self.run);
        Ok(request.send_for_stream()?.into_reader())
    }

    /// Lets writes pause; nothing follows the position that is returned.
    pub fn pause(&self) -> Result<Paused, Failure> {
        let answer = self.client.post(PAUSE).send_json(&json!({ "run": self.run.to_string() }))?;
        Ok(Paused { position: self.position(&answer)? })
    }

    /// Lets writes be taken again, and another move begin.
    pub fn let_go(&self) -> Result<(), Failure> {
        self.client.delete(MOVE).query("id", self.id).send().map(drop)
    }

    /// Ends writes there for good.
    pub fn confirm(&self, position: Position, now_at: Option<&str>) -> Result<(), Failure> {
        let mut body = json!({ "run": self.run.to_string(), "position": position.0 });
        if let Some(now_at) = now_at {
            body["now_at"] = json!(now_at);
        }
        self.client.put(MOVE).send_json(&body).map(drop)
    }

    fn position(&self, answer: &Value) -> Result<Position, Failure> {
        let position = answer["position"].as_u64().map(Position);
        position.ok_or_else(|| self.foreign(answer))
    }

    fn foreign(&self, answer: &Value) -> Failure {
        let server = self.client.server();
        Failure::failed(format!("{server} answered in a way that guanxi never does: {answer}"))
            .next("check with --server or GUANXI_SERVER that this is a guanxi server")
    }
}
