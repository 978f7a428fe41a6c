//! Which of the two deployments this process serves, behind one face: handlers ask it and do not
//! know which it is. Tokens and places in the log cross it as texts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_api::jobs::{BACKUPS_CLUSTER, BACKUPS_EMBEDDED, Remains};
use guanxi_cluster::budget::ReadBudget;
use guanxi_cluster::dead_letters::DeadLetters;
use guanxi_cluster::instance::{Cluster, ClusterStatus, Recalled};
use guanxi_cluster::memory::FilterStatus;
use guanxi_cluster::snapshot::{Defaulted, Remembered};
use guanxi_core::audit::{AuditRun, AuditState};
use guanxi_core::crew::Crew;
use guanxi_core::hot::HotKeys;
use guanxi_core::{AuditQuery, Reader};
use guanxi_embedded::{Engine, FollowStatus};
use guanxi_model::idempotency::Answers;
use guanxi_model::{
    AnyToken, Catalog, ClusterToken, Code, Error, EventId, Request, Secret, TenantId,
};

#[derive(Debug, Clone)]
pub enum Deployment {
    /// One process, one data directory.
    Embedded(Arc<Engine>),
    /// One of many instances over a database and a log.
    Cluster(Arc<Cluster>),
}

/// The name under which errors speak of a token that must be seen.
const AT_LEAST: &str = "at_least";
/// How long kinds that a token stands for are waited for before the call is read.
const LEARN_WAIT: Duration = Duration::from_secs(2);

/// A committed request: one answer per change, and what stands for all of it.
#[derive(Debug)]
pub struct Committed {
    pub answers: Answers,
    pub token: AnyToken,
}

impl Deployment {
    pub fn catalog(&self) -> Arc<Catalog> {
        match self {
            Deployment::Embedded(engine) => engine.catalog(),
            Deployment::Cluster(cluster) => cluster.catalog(),
        }
    }

    /// Brings this instance's catalog up to the one that a token stands for.
    pub fn learn_kinds(
        &self,
        tenant: TenantId,
        token: Option<&str>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let lacking = token.and_then(|token| self.lacking_kinds(tenant, token));
        async move {
            if let Some((cluster, token)) = lacking {
                // Whoever meets the token later is told what went wrong.
                let deadline = Instant::now() + LEARN_WAIT;
                let _met_later = cluster.learn_catalog_of(&token, deadline).await;
            }
        }
    }

    /// What names mean. Those that this instance's copy of the catalog does not have may be new: it
    /// is brought up to date once, and they are looked up again.
    pub async fn resolve<T>(
        &self,
        deadline: Instant,
        find: impl Fn(&Catalog) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match find(&self.catalog()) {
            Err(error) if may_be_new(&error) => {}
            found => return found,
        }
        self.look_for_names(deadline).await?;
        find(&self.catalog())
    }

    /// After it, kinds and node types are known that were there when it was called.
    pub async fn look_for_names(&self, deadline: Instant) -> Result<(), Error> {
        match self {
            Deployment::Embedded(_) => Ok(()),
            Deployment::Cluster(cluster) => cluster.look_for_names(deadline).await,
        }
    }

    fn lacking_kinds(&self, tenant: TenantId, token: &str) -> Option<(Arc<Cluster>, ClusterToken)> {
        let Deployment::Cluster(cluster) = self else {
            return None;
        };
        match AnyToken::parse(token, tenant, cluster.secret()) {
            Ok(AnyToken::Cluster(token)) if cluster.lacks_catalog_of(&token) => {
                Some((cluster.clone(), token))
            }
            _ => None,
        }
    }

    /// What tokens, cursors and event ids are sealed with.
    pub fn secret(&self) -> &Arc<Secret> {
        match self {
            Deployment::Embedded(engine) => engine.secret(),
            Deployment::Cluster(cluster) => cluster.secret(),
        }
    }

    /// The engine of an embedded service, for calls that only it has; `instead` says what to do
    /// in a cluster.
    pub fn embedded(&self, instead: &str) -> Result<&Arc<Engine>, Error> {
        match self {
            Deployment::Embedded(engine) => Ok(engine),
            Deployment::Cluster(_) => {
                let message = format!("a cluster does not have this call: {instead}");
                Err(Error::new(Code::Conflict, message))
            }
        }
    }

    /// Whether this process serves callers; one that does not answers for its health alone.
    pub fn takes_calls(&self) -> bool {
        match self {
            Deployment::Embedded(_) => true,
            Deployment::Cluster(cluster) => cluster.roles().api,
        }
    }

    /// The threads that do its work.
    pub fn crew(&self) -> &Crew {
        match self {
            Deployment::Embedded(engine) => engine.crew(),
            Deployment::Cluster(cluster) => cluster.crew(),
        }
    }

    /// Whether anything may be shown at all.
    pub fn may_be_shown(&self) -> Result<(), Error> {
        match self {
            Deployment::Embedded(engine) => engine.may_be_shown(),
            Deployment::Cluster(_) => Ok(()),
        }
    }

    /// Why the service is not ready, if it is not.
    pub fn unready(&self) -> Option<Error> {
        if let Some(lost) = self.crew().lost() {
            return Some(Error::new(Code::Unavailable, format!("{lost}; the process ends")));
        }
        match self {
            Deployment::Embedded(engine) => engine_unready(engine),
            Deployment::Cluster(cluster) => cluster_unready(&cluster.status()),
        }
    }

    /// Waits shortly until what the presented tokens stand for can be read, and returns what
    /// stands for all of them.
    pub async fn meet(
        &self,
        tenant: TenantId,
        texts: impl Iterator<Item = &str>,
        deadline: Instant,
    ) -> Result<Option<AnyToken>, Error> {
        let mut met: Option<AnyToken> = None;
        for text in texts {
            let token = AnyToken::parse(text, tenant, self.secret())
                .map_err(|error| Error::invalid(format!("{AT_LEAST}: {}", error.message)))?;
            self.wait_for(&token, deadline).await?;
            met = Some(match met {
                Some(met) => self.merged_met(met, token),
                None => token,
            });
        }
        Ok(met)
    }

    async fn wait_for(&self, token: &AnyToken, deadline: Instant) -> Result<(), Error> {
        match (self, token) {
            (Deployment::Embedded(engine), AnyToken::Embedded(token)) => {
                engine.at_least(token).await
            }
            (Deployment::Embedded(_), AnyToken::Cluster(_)) => Err(Error::new(
                Code::PositionExpired,
                "the token is of a cluster, and this service is none",
            )),
            // What a directory had is in the cluster that it was moved to.
            (Deployment::Cluster(_), AnyToken::Embedded(_)) => Ok(()),
            (Deployment::Cluster(cluster), AnyToken::Cluster(token)) => {
                cluster.meet(token, deadline).await
            }
        }
    }

    /// What stands for both, which have been met.
    fn merged_met(&self, first: AnyToken, second: AnyToken) -> AnyToken {
        match (first, second) {
            (AnyToken::Cluster(mut first), AnyToken::Cluster(second)) => {
                first.merge_met(&second);
                AnyToken::Cluster(first)
            }
            (first, second) => self.merged(first, second),
        }
    }

    /// What stands for both.
    pub fn merged(&self, first: AnyToken, second: AnyToken) -> AnyToken {
        match (first, second) {
            (AnyToken::Embedded(first), AnyToken::Embedded(second)) => {
                // A replayed answer may be older than the token that the caller already holds.
                let keeps = first.epoch == second.epoch && first.position > second.position;
                AnyToken::Embedded(if keeps { first } else { second })
            }
            (AnyToken::Cluster(mut first), AnyToken::Cluster(second)) => {
                first.merge(&second);
                AnyToken::Cluster(first)
            }
            // An embedded token in a cluster counts as met.
            (cluster @ AnyToken::Cluster(_), _) | (_, cluster) => cluster,
        }
    }

    /// One consistent picture that shows at least what the token stands for. In a cluster this
    /// asks the database, so it is for threads that may block.
    pub fn reader(&self, met: Option<&AnyToken>, deadline: Instant) -> Result<Reader, Error> {
        match self {
            Deployment::Embedded(engine) => engine.reader(),
            Deployment::Cluster(cluster) => cluster.reader(of_cluster(met), deadline),
        }
    }

    /// Reads from what instances remember, if that is enough. A token wants more than that.
    pub async fn recall<T>(
        &self,
        met: Option<&AnyToken>,
        read: &(impl Fn(&Reader) -> Result<T, Error> + Send),
    ) -> Recalled<T> {
        match self {
            Deployment::Cluster(cluster) if of_cluster(met).is_none() => cluster.recall(read).await,
            _ => Recalled::Lacking(Remembered::default()),
        }
    }

    /// What reads may ask of a database at a moment; an embedded store has no such bound.
    pub fn budget(&self) -> Option<&ReadBudget> {
        match self {
            Deployment::Embedded(_) => None,
            Deployment::Cluster(cluster) => Some(cluster.budget()),
        }
    }

    /// Reads from what is at hand, the rest by default. An embedded service always knows, and a
    /// token wants more than that.
    pub fn read_by_default<T>(
        &self,
        met: Option<&AnyToken>,
        remembered: &Remembered,
        read: &impl Fn(&Reader) -> Result<T, Error>,
    ) -> Option<(Result<T, Error>, Defaulted)> {
        match self {
            Deployment::Cluster(cluster) if of_cluster(met).is_none() => {
                Some(cluster.read_by_default(remembered, read))
            }
            _ => None,
        }
    }

    /// `reader`, which knows these facts already.
    pub fn reader_with(
        &self,
        met: Option<&AnyToken>,
        remembered: &Remembered,
        deadline: Instant,
    ) -> Result<Reader, Error> {
        match (self, of_cluster(met)) {
            (Deployment::Cluster(cluster), None) => Ok(cluster.reader_with(remembered, deadline)),
            _ => self.reader(met, deadline),
        }
    }

    /// A picture to keep until then, and the id of an event that everything in it comes before:
    /// watching from there has no gap. For threads that may block.
    pub fn reader_and_place(
        &self,
        tenant: TenantId,
        met: Option<&AnyToken>,
        until: Instant,
    ) -> Result<(Reader, String), Error> {
        match self {
            Deployment::Embedded(engine) => {
                let (reader, epoch, position) = engine.reader_and_position()?;
                Ok((reader, EventId { tenant, epoch, position }.to_text(engine.secret())))
            }
            Deployment::Cluster(cluster) => {
                let place = cluster.place_now(tenant)?.to_text(cluster.secret());
                Ok((cluster.reader(of_cluster(met), until)?, place))
            }
        }
    }

    /// Does the request's changes; resolves when they are durable.
    pub async fn write(&self, request: Request, deadline: Instant) -> Result<Committed, Error> {
        match self {
            Deployment::Embedded(engine) => {
                let written = engine.write(request, deadline).await?;
                let token = AnyToken::Embedded(written.token);
                Ok(Committed { answers: written.answers, token })
            }
            Deployment::Cluster(cluster) => {
                let (answers, token) = cluster.write(request, deadline).await?;
                Ok(Committed { answers, token: AnyToken::Cluster(token) })
            }
        }
    }

    /// What stands for everything that is visible now, where nothing was written.
    pub fn token_now(&self, tenant: TenantId) -> AnyToken {
        match self {
            Deployment::Embedded(engine) => AnyToken::Embedded(engine.token(tenant)),
            Deployment::Cluster(_) => AnyToken::Cluster(ClusterToken::new(tenant)),
        }
    }

    /// The text of what stands for all of these, the later ones written after the earlier.
    pub async fn token_text(
        &self,
        met: Option<AnyToken>,
        written: AnyToken,
        deadline: Instant,
    ) -> Result<String, Error> {
        let token = match met {
            Some(met) => self.merged(met, written),
            None => written,
        };
        match (self, token) {
            (_, AnyToken::Embedded(token)) => Ok(token.to_text(self.secret())),
            (Deployment::Cluster(cluster), AnyToken::Cluster(mut token)) => {
                if !token.needs_barrier() {
                    return Ok(token.to_text(cluster.secret()));
                }
                let cluster = cluster.clone();
                let covered = blocking(move || {
                    cluster.cover(&mut token, deadline)?;
                    Ok(token.to_text(cluster.secret()))
                });
                // The write stands, whatever became of its token.
                covered.await.map_err(Error::outcome_unknown)
            }
            (Deployment::Embedded(_), AnyToken::Cluster(_)) => {
                Err(Error::new(Code::Internal, "the write has a token of a cluster"))
            }
        }
    }

    /// Begins an audit in the background and returns its number; there is one at a time.
    pub fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        match self {
            Deployment::Embedded(engine) => engine.begin_audit(query),
            Deployment::Cluster(cluster) => cluster.begin_audit(query),
        }
    }

    /// The audit of this number, once it has ended.
    pub async fn audit_ended(&self, number: u64) -> Option<AuditRun> {
        match self {
            Deployment::Embedded(engine) => engine.audit_ended(number).await,
            Deployment::Cluster(cluster) => cluster.audit_ended(number).await,
        }
    }

    pub fn audit_state(&self) -> AuditState {
        match self {
            Deployment::Embedded(engine) => engine.audit_state(),
            Deployment::Cluster(cluster) => cluster.audit_state(),
        }
    }

    /// Where what was erased may still be found.
    pub fn remains(&self) -> Remains {
        match self {
            Deployment::Embedded(engine) => {
                let log_keeps_ms = engine.status().log_keeps_ms;
                Remains { log_keeps_ms, backups: BACKUPS_EMBEDDED }
            }
            Deployment::Cluster(cluster) => {
                let log_keeps_ms = cluster.log_keeps_ms();
                Remains { log_keeps_ms, backups: BACKUPS_CLUSTER }
            }
        }
    }

    /// A counter's value after a change, where the deployment knows it: in a cluster it is the sum
    /// of what all instances count.
    pub fn counted(&self, value: i64) -> Option<i64> {
        match self {
            Deployment::Embedded(_) => Some(value),
            Deployment::Cluster(_) => None,
        }
    }

    /// What is read most.
    pub fn hot(&self) -> &HotKeys {
        match self {
            Deployment::Embedded(engine) => engine.hot(),
            Deployment::Cluster(cluster) => cluster.hot(),
        }
    }

    /// What is to be said of the existence filter, where there is one or might be.
    pub fn filter_status(&self) -> Option<FilterStatus> {
        match self {
            Deployment::Embedded(_) => None,
            Deployment::Cluster(cluster) => cluster.filter_status(),
        }
    }

    /// Records that could not be applied; an embedded service applies what it logs.
    pub fn dead_letters(&self) -> Option<DeadLetters> {
        match self {
            Deployment::Embedded(_) => None,
            Deployment::Cluster(cluster) => Some(cluster.dead_letters().clone()),
        }
    }
}

fn engine_unready(engine: &Engine) -> Option<Error> {
    if let Err(hidden) = engine.may_be_shown() {
        return Some(hidden);
    }
    let status = engine.status();
    if let Some(FollowStatus { is_stuck: true, trouble: Some(why), .. }) = &status.following {
        let message = format!("this standby does not follow: {why}");
        return Some(Error::new(Code::Unavailable, message));
    }
    let why = status.refusing?;
    Some(Error::new(Code::Unavailable, format!("writes are refused: {why}")))
}

/// Writes, and reads of all sorts, need the database. The log does not make an instance unready
/// that serves callers: both go on without it, and its lag is said instead. An instance that only
/// works on the log has nothing to do without it.
fn cluster_unready(status: &ClusterStatus) -> Option<Error> {
    let away = |what: &str, for_ms: u64| {
        let message = format!("{what} could not be reached for {} s", for_ms / 1_000);
        Some(Error::new(Code::Unavailable, message))
    };
    if !status.database.reachable {
        return away("the database", status.database.for_ms);
    }
    let on_the_log = status.roles.relay || status.roles.applier;
    if !status.roles.api && on_the_log && !status.log.reachable {
        return away("the log", status.log.for_ms);
    }
    None
}

/// Whether this is what is said of a kind or a node type that is not there.
pub fn may_be_new(error: &Error) -> bool {
    matches!(error.code, Code::UnknownKind | Code::NotFound)
}

fn of_cluster(token: Option<&AnyToken>) -> Option<&ClusterToken> {
    match token {
        Some(AnyToken::Cluster(token)) => Some(token),
        _ => None,
    }
}

/// Runs what asks the database off the workers. It is short, and bounded by the requests.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the work failed; it was logged")))
}
