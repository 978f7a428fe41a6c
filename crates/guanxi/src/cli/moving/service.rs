//! The service that is moved, as its admin calls show it.

use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use guanxi_api::moving::{BegunView, MoveStateName, MoveView};
use guanxi_api::standby::{RoleName, StandbyView};
use guanxi_model::{Epoch, Position};
use serde_json::json;

use crate::cli::backup::stopped;
use crate::cli::client::{Client, foreign};
use crate::cli::interrupt::Interrupt;
use crate::cli::progress::ProgressLine;
use crate::cli::unfinished::{FilePurpose, UnfinishedFile};
use crate::failure::Failure;
use crate::service::backup::place_text;

const MOVE: &str = "/v1/admin/move";
const PAUSE: &str = "/v1/admin/move/pause";
const BACKUP: &str = "/v1/admin/backup";
const PURPOSE: FilePurpose = FilePurpose { name: "move", nothing: "nothing was moved" };
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
pub enum ServiceStanding {
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
pub struct PausedService {
    pub position: Position,
}

impl<'a> Service<'a> {
    pub fn new(client: &'a Client, id: u64, run: u64) -> Service<'a> {
        Service { client, id, run }
    }

    /// Begins a run of the move; returns its number.
    pub fn begin(&self) -> Result<u64, Failure> {
        let body = json!({ "id": self.id.to_string() });
        let begun = self.client.post(MOVE).ask_json::<BegunView>(&body)?.means;
        self.number(&begun.run)
    }

    /// The run is alive; returns how long it has to wait before writes may pause.
    pub fn go_on(&self) -> Result<Duration, Failure> {
        let body = json!({ "id": self.id.to_string(), "run": self.run.to_string() });
        let begun = self.client.post(MOVE).ask_json::<BegunView>(&body)?.means;
        Ok(Duration::from_millis(begun.rest_ms))
    }

    pub fn state(&self) -> Result<ServiceStanding, Failure> {
        let view = self.client.get(MOVE).ask::<MoveView>();
        let view = view.map_err(|failure| match failure.code.as_deref() {
            Some("not_found") => failure.next("the server is older than `guanxi move`: update it"),
            _ => failure,
        })?;
        let MoveView { state, id, position, now_at, .. } = view.means;
        if state != MoveStateName::Moved {
            return Ok(ServiceStanding::Here);
        }
        let id = self.number(id.as_deref().unwrap_or_default())?;
        Ok(ServiceStanding::Moved { id, position: Position(position), now_at })
    }

    pub fn refuse_standby(&self) -> Result<(), Failure> {
        let StandbyView { role, following, .. } = self.client.get("/v1/admin/standby").ask()?.means;
        if role != RoleName::Standby {
            return Ok(());
        }
        let primary = following.map_or_else(|| "its primary".to_owned(), |view| view.primary);
        Err(Failure::found(format!("{} is a standby, which takes no writes", self.client.server()))
            .next(format!("move its primary: --server {primary}")))
    }

    /// Writes a full backup into a file, which has its name when all is there.
    pub fn snapshot(
        &self,
        to: &Path,
        interrupt: &Interrupt,
        progress: &ProgressLine,
    ) -> Result<(), Failure> {
        let part = UnfinishedFile::begin(to, PURPOSE)?;
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
    pub fn pause(&self) -> Result<PausedService, Failure> {
        let body = json!({ "run": self.run.to_string() });
        let paused = self.client.post(PAUSE).ask_json::<MoveView>(&body)?.means;
        Ok(PausedService { position: Position(paused.position) })
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

    /// A number of the move, which is sent as text.
    fn number(&self, text: &str) -> Result<u64, Failure> {
        text.parse().map_err(|_| foreign(self.client.server(), "about its move", text))
    }
}
