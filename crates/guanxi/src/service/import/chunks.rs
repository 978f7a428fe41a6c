//! An import's lines on their way into the log: gathered into chunks, several of which are under
//! way at once, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use guanxi_api::import::{REJECTS_MAX, Reject};
use guanxi_core::deployment::{Committed, Deployment, Eventually};
use guanxi_model::import::{ImportId, ImportLines, ImportStep, LinesDone, RejectedLine};
use guanxi_model::{AnyToken, Change, Code, Error, Origin, Request, TenantId};

use crate::service::Caller;
use crate::service::caller::token_text;

/// Lines of a chunk: as many as any request has changes, so that others are not delayed more.
const CHUNK_LINES_MAX: usize = guanxi_model::limits::REQUEST_CHANGES_MAX;
/// Chunks under way: one for each stage of the commit path, and one that waits.
const UNDER_WAY_MAX: usize = 4;
/// How long one chunk may take, however busy the service is.
const CHUNK_DEADLINE: Duration = Duration::from_secs(30);
/// An import gives way when the queue is full, and asks again after this.
const CROWDED_PAUSE: Duration = Duration::from_millis(10);

type Writing = Eventually<'static, Result<Committed, Error>>;

/// What is done: committed, or rejected beside something that was.
#[derive(Debug, Default)]
pub struct Done {
    pub lines: u64,
    pub accepted: u64,
    pub changed: u64,
    pub rejected: u64,
    /// The first of them.
    pub rejects: Vec<Reject>,
}

pub struct Chunks {
    deployment: Arc<dyn Deployment>,
    tenant: TenantId,
    origin: Origin,
    id: Option<ImportId>,
    begun_after: u64,
    /// The caller's own.
    deadline: Instant,
    /// The last line that was read.
    line: u64,
    gathering: Chunk,
    full: VecDeque<Chunk>,
    under_way: VecDeque<(ImportLines, Writing)>,
    done: Done,
    token: Option<AnyToken>,
}

/// Lines that are committed together.
#[derive(Debug, Default)]
struct Chunk {
    changes: Vec<Change>,
    lines: ImportLines,
}

impl Chunk {
    fn after(line: u64) -> Chunk {
        let lines = ImportLines { before: line, after: line, ..ImportLines::default() };
        Chunk { changes: Vec::with_capacity(CHUNK_LINES_MAX), lines }
    }
}

impl Chunks {
    pub fn new(caller: &Caller, id: Option<ImportId>, after: u64) -> Chunks {
        Chunks {
            deployment: caller.app.deployment.clone(),
            tenant: caller.tenant,
            origin: caller.origin.clone(),
            id,
            begun_after: after,
            deadline: caller.context.deadline,
            line: after,
            gathering: Chunk::after(after),
            full: VecDeque::new(),
            under_way: VecDeque::new(),
            done: Done { lines: after, ..Done::default() },
            token: None,
        }
    }

    /// Counts a line that is no line of its own, unless it stood before where this call begins.
    pub fn skip_first_line(&mut self, line: &[u8]) {
        if self.line == 0 {
            self.take(line, Ok(None));
        }
    }

    /// Takes a line as it came, and what it says.
    pub fn take(&mut self, line: &[u8], read: Result<Option<Change>, Error>) {
        self.line += 1;
        let Chunk { changes, lines } = &mut self.gathering;
        lines.after = self.line;
        lines.digest.take(line);
        match read {
            Ok(Some(change)) => {
                changes.push(change);
                lines.of_changes.push(self.line);
            }
            Ok(None) => {}
            Err(error) => lines.unreadable.push(RejectedLine::new(self.line, &error)),
        }
        if lines.after - lines.before >= CHUNK_LINES_MAX as u64 {
            let full = std::mem::replace(&mut self.gathering, Chunk::after(self.line));
            self.full.push_back(full);
        }
    }

    /// Sends the full chunks on their way.
    pub async fn submit_full(&mut self) -> Result<(), Error> {
        while let Some(chunk) = self.full.pop_front() {
            self.submit(chunk).await?;
        }
        Ok(())
    }

    /// Sends everything on its way.
    pub async fn submit_all(&mut self) -> Result<(), Error> {
        self.submit_full().await?;
        let last = std::mem::replace(&mut self.gathering, Chunk::after(self.line));
        match last.lines.after > last.lines.before {
            true => self.submit(last).await,
            false => Ok(()),
        }
    }

    /// Waits for everything that is under way.
    pub async fn settle_all(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        while !self.under_way.is_empty() {
            let settled = self.settle_first().await;
            first = first.and(settled);
        }
        first
    }

    /// The error, with what its caller can go on from.
    pub fn stopped_at(&self, error: Error) -> Error {
        let lines = self.done.lines;
        if lines == self.begun_after {
            return error;
        }
        let message = match &self.id {
            Some(id) => format!(
                "{}; before that, import {} came to line {lines}",
                error.message,
                id.as_str()
            ),
            None => format!("{}; the lines up to {lines} are done", error.message),
        };
        Error { message, ..error }.outcome_unknown()
    }

    /// The token of all chunks, or of what stands where there was none.
    pub async fn token(&mut self) -> Result<String, Error> {
        let token = self.token.take().unwrap_or_else(|| self.deployment.token_now(self.tenant));
        let deadline = Instant::now() + CHUNK_DEADLINE;
        token_text(self.deployment.as_ref(), None, token, deadline).await
    }

    pub fn into_done(self) -> (Option<ImportId>, Done) {
        (self.id, self.done)
    }

    async fn submit(&mut self, chunk: Chunk) -> Result<(), Error> {
        while self.under_way.len() >= UNDER_WAY_MAX {
            self.settle_first().await?;
        }
        let Chunk { changes, lines } = chunk;
        if changes.is_empty() && self.id.is_none() {
            self.count(&lines, lines.done(&[]));
            return Ok(());
        }
        let import = self.id.clone().map(|id| ImportStep { id, lines: lines.clone() });
        let origin = self.origin.clone();
        let request = Request { import, origin, ..Request::new(self.tenant, changes) };
        let deadline = self.deadline.min(Instant::now() + CHUNK_DEADLINE);
        loop {
            let mut writing = begin(self.deployment.clone(), request.clone(), deadline);
            match (&mut writing).now_or_never() {
                None => {
                    self.under_way.push_back((lines, writing));
                    return Ok(());
                }
                Some(Err(error)) if error.code == Code::Overloaded => {
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                    tokio::time::sleep(CROWDED_PAUSE).await;
                }
                Some(written) => return self.written(&lines, written),
            }
        }
    }

    async fn settle_first(&mut self) -> Result<(), Error> {
        match self.under_way.pop_front() {
            Some((lines, writing)) => {
                let written = writing.await;
                self.written(&lines, written)
            }
            None => Ok(()),
        }
    }

    fn written(
        &mut self,
        lines: &ImportLines,
        written: Result<Committed, Error>,
    ) -> Result<(), Error> {
        let written = written?;
        self.token = Some(match self.token.take() {
            Some(token) => token.merged(written.token),
            None => written.token,
        });
        // Not the line's fault: it is not passed over.
        let mut failed = written.answers.iter().filter_map(|answer| answer.as_ref().err());
        if let Some(error) = failed.find(|error| error.code == Code::Unavailable) {
            return Err(error.clone());
        }
        self.count(lines, lines.done(&written.answers));
        Ok(())
    }

    fn count(&mut self, lines: &ImportLines, done: LinesDone) {
        let LinesDone { accepted, changed, rejected } = done;
        self.done.lines = lines.after;
        self.done.accepted += accepted;
        self.done.changed += changed;
        self.done.rejected += rejected.len() as u64;
        let room = REJECTS_MAX - self.done.rejects.len();
        self.done.rejects.extend(rejected.into_iter().take(room).map(Reject::from));
    }
}

/// The request enters the queue when this is first polled.
fn begin(deployment: Arc<dyn Deployment>, request: Request, deadline: Instant) -> Writing {
    Box::pin(async move { deployment.write(request, deadline).await })
}
