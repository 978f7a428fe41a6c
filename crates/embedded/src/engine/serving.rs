//! The engine as a server's deployment, and how it is written to and read. What it reads is memory
//! and files: quick reads are done on the spot, and the others among so many at once.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use guanxi_core::audit::{AuditQuery, AuditRun, AuditState};
use guanxi_core::crew::Crew;
use guanxi_core::deployment::{
    AnyAnswer, AnyRead, AtOnce, Committed, Deployment, Eventually, KeptReading, ReadAnswer,
    ReadLane, ReadTerms, SharedRecord, WatchFrom, Watched, Watcher, WorkPermits,
};
use guanxi_core::hot::HotReads;
use guanxi_core::read::{Reader, unreadable};
use guanxi_model::job::Remains;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{
    AnyEventId, AnyToken, Catalog, Code, Epoch, Error, EventId, Position, Request, Secret,
    TenantId, Token,
};

use super::Engine;
use crate::commit::Written;
use crate::following::FollowStatus;
use crate::log::Log;
use crate::tail::{Tail, TailFrom, TailRecord};

/// How long a read waits for the position of its token.
const TOKEN_WAIT: Duration = Duration::from_millis(200);
/// What operators have to do about copies of what was erased.
const BACKUPS: &str = "Backups taken before erased_at, and those that continue one of them, still \
    hold what was erased: take a full backup, then delete them. The store's own files drop it when \
    they are next compacted.";

#[derive(Debug)]
pub struct ServedEngine {
    engine: Arc<Engine>,
    long_reads: WorkPermits,
}

impl ServedEngine {
    /// Serves the engine, with at most so many long reads at once.
    pub fn new(engine: Arc<Engine>, long_reads_max: usize) -> ServedEngine {
        ServedEngine { engine, long_reads: WorkPermits::new(long_reads_max) }
    }
}

impl Deployment for ServedEngine {
    fn crew(&self) -> &Crew {
        self.engine.crew()
    }

    fn secret(&self) -> &Arc<Secret> {
        self.engine.secret()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.engine.catalog()
    }

    fn may_be_shown(&self) -> Result<(), Error> {
        self.engine.may_be_shown()
    }

    fn unready(&self) -> Option<Error> {
        if let Err(hidden) = self.engine.may_be_shown() {
            return Some(hidden);
        }
        let status = self.engine.status();
        if let Some(FollowStatus { is_stuck: true, trouble: Some(why), .. }) = &status.following {
            let message = format!("this standby does not follow: {why}");
            return Some(Error::new(Code::Unavailable, message));
        }
        let why = status.refusing?;
        Some(Error::new(Code::Unavailable, format!("writes are refused: {why}")))
    }

    fn meet<'a>(
        &'a self,
        token: &'a AnyToken,
        _deadline: Instant,
    ) -> Eventually<'a, Result<(), Error>> {
        Box::pin(async move {
            match token {
                AnyToken::Embedded(token) => self.engine.at_least(token).await,
                AnyToken::Cluster(_) => Err(Error::new(
                    Code::PositionExpired,
                    "the token is of a cluster, and this service is none",
                )),
            }
        })
    }

    fn cover(&self, _: AnyToken, _deadline: Instant) -> Eventually<'_, Result<AnyToken, Error>> {
        let error = Error::new(Code::Internal, "the write has a token of a cluster");
        Box::pin(async { Err(error) })
    }

    fn token_now(&self, tenant: TenantId) -> AnyToken {
        AnyToken::Embedded(self.engine.token(tenant))
    }

    fn write(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Eventually<'_, Result<Committed, Error>> {
        Box::pin(async move {
            let written = self.engine.write(request, deadline).await?;
            let token = AnyToken::Embedded(written.token);
            Ok(Committed { answers: written.answers, token })
        })
    }

    fn knows_counters(&self) -> bool {
        true
    }

    fn read_at_once(&self, read: &mut AtOnce<'_>) -> Option<Result<(), Error>> {
        Some(self.engine.reader().and_then(|reader| read(&reader)))
    }

    fn read<'a>(
        &'a self,
        read: AnyRead,
        terms: ReadTerms<'a>,
    ) -> Eventually<'a, Result<ReadAnswer<AnyAnswer>, Error>> {
        Box::pin(async move {
            let answer = match terms.lane {
                ReadLane::Reads => read(&self.engine.reader()?)?,
                ReadLane::Lists => {
                    let engine = self.engine.clone();
                    let read = move || read(&engine.reader()?);
                    self.long_reads.run(terms.deadline, read).await?
                }
            };
            Ok(ReadAnswer { answer, degraded: false })
        })
    }

    fn keep_reading(
        &self,
        tenant: TenantId,
        terms: ReadTerms<'_>,
        _until: Instant,
    ) -> Eventually<'_, Result<KeptReading, Error>> {
        let (engine, deadline) = (self.engine.clone(), terms.deadline);
        Box::pin(self.long_reads.run(deadline, move || {
            let (reader, epoch, position) = engine.reader_and_position()?;
            let position = EventId { tenant, epoch, position }.to_text(engine.secret());
            Ok(KeptReading { reader, position, place: None })
        }))
    }

    fn event(&self, text: &str, tenant: TenantId) -> Result<AnyEventId, Error> {
        EventId::parse(text, tenant, self.secret()).map(AnyEventId::Embedded)
    }

    fn watch(
        &self,
        tenant: TenantId,
        from: WatchFrom,
    ) -> Eventually<'_, Result<Box<dyn Watcher>, Error>> {
        Box::pin(async move {
            let tail = self.engine.tail(match from {
                WatchFrom::Now => TailFrom::Now,
                WatchFrom::Earliest => TailFrom::Earliest,
                WatchFrom::After(AnyEventId::Embedded(id)) => TailFrom::After(id),
                WatchFrom::After(AnyEventId::Cluster(_)) => {
                    return Err(Error::new(Code::Internal, "the place is of a cluster"));
                }
            })?;
            let engine = self.engine.clone();
            Ok(Box::new(LogWatcher { engine, tenant, tail }) as Box<dyn Watcher>)
        })
    }

    fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        self.engine.begin_audit(query)
    }

    fn audit_ended(&self, number: u64) -> Eventually<'_, Option<AuditRun>> {
        Box::pin(self.engine.audit_ended(number))
    }

    fn audit_state(&self) -> AuditState {
        self.engine.audit_state()
    }

    fn remains(&self) -> Remains {
        Remains { log_keeps_ms: self.engine.status().log_keeps_ms, backups: BACKUPS }
    }

    fn hot(&self) -> &HotReads {
        self.engine.hot()
    }
}

impl Engine {
    /// Does the request's changes; resolves when they are durable and visible.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Written, Error> {
        self.may_be_shown()?;
        let Some(committer) = self.committer.get() else {
            return Err(self.read_only());
        };
        committer.write(request, deadline).await
    }

    /// One consistent picture with everything that was acknowledged.
    pub fn reader(&self) -> Result<Reader, Error> {
        self.may_be_shown()?;
        Ok(Reader::new(self.store.snapshot(), self.secret()))
    }

    /// The same, and where in the log it is.
    pub fn reader_and_position(&self) -> Result<(Reader, Epoch, Position), Error> {
        self.may_be_shown()?;
        let picture = self.store.picture();
        let applied = picture.applied().map_err(unreadable)?;
        Ok((Reader::new(picture, self.secret()), applied.epoch, applied.position))
    }

    /// The token of what readers see now.
    pub fn token(&self, tenant: TenantId) -> Token {
        let applied = self.store.applied();
        Token { tenant, epoch: self.log.epoch(), position: applied.position }
    }

    /// Waits shortly until readers see what the token stands for.
    pub async fn at_least(&self, token: &Token) -> Result<(), Error> {
        self.may_be_shown()?;
        let early = self.may_learn_of(token);
        if !early && !self.log.lineage().accepts(token.epoch, token.position) {
            return Err(Error::new(
                Code::PositionExpired,
                "the token is of another history of this service than the one it has now",
            ));
        }
        // Waits for the epoch too: positions below it mean the same in both.
        let is_met =
            |position: &Position| *position >= token.position && token.epoch <= self.log.epoch();
        if is_met(&self.store.applied().position) {
            return Ok(());
        }
        let mut applied = self.applied.subscribe();
        let reached = applied.wait_for(is_met);
        match tokio::time::timeout(TOKEN_WAIT, reached).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::new(
                Code::Unavailable,
                "what the token stands for is not here yet; try again shortly",
            )),
        }
    }
}

/// A tail for a watcher of one tenant.
#[derive(Debug)]
struct LogWatcher {
    engine: Arc<Engine>,
    tenant: TenantId,
    tail: Tail,
}

impl Watcher for LogWatcher {
    fn next<'a>(
        &'a mut self,
        wants: &'a (dyn Fn(&EdgeRecord) -> bool + Sync),
    ) -> Eventually<'a, Result<Vec<Watched>, Error>> {
        Box::pin(async move {
            let seen = self.tail.position();
            let frames = self.tail.next().await?;
            let mut watched = Vec::new();
            for frame in frames {
                let records = frame.edges_from(Position(seen.0 + 1)).iter();
                for record in records.filter(|record| wants(&record.edge)) {
                    let (tenant, position) = (self.tenant, record.position);
                    let id = EventId { tenant, epoch: frame.epoch, position };
                    watched.push(Watched {
                        id: AnyEventId::Embedded(id),
                        time: frame.time,
                        record: record.clone(),
                    });
                }
            }
            Ok(watched)
        })
    }

    fn place(&self) -> AnyEventId {
        let now = EventId::from(self.engine.token(self.tenant));
        AnyEventId::Embedded(EventId { position: self.tail.position(), ..now })
    }
}

impl SharedRecord for TailRecord {
    fn edge(&self) -> &EdgeRecord {
        &self.edge
    }

    fn sent_as(&self) -> Option<&OnceLock<Box<[u8]>>> {
        Some(&self.sent_as)
    }
}
