//! An instance as a server's deployment, and the ladder of its reads: what instances remember; the
//! database, with a place in the read budget; at last, for what has a default, what is at hand and
//! defaults for the rest, where all kinds concerned allow it. Everything else is refused when the
//! database has no time or gives no answer. Whoever presents a token wants a promise, so it is asked
//! of the database alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::audit::{AuditQuery, AuditRun, AuditState};
use guanxi_core::crew::Crew;
use guanxi_core::deployment::{
    AnyAnswer, AnyRead, Committed, DeadLetterStore, Deployment, Eventually, FilterStatus,
    InstanceHealth, KeptReading, ReadAnswer, ReadLane, ReadTerms, WatchFrom, Watcher, WriteOrder,
    with_place,
};
use guanxi_core::hot::HotReads;
use guanxi_model::job::Remains;
use guanxi_model::{
    AnyEventId, AnyToken, Catalog, Change, ClusterToken, Code, Error, Kind, OnOverload, Request,
    Secret, TenantId,
};
use tokio::sync::OwnedSemaphorePermit;

use super::watching::TopicWatcher;
use super::{Cluster, ClusterStatus, RecalledRead, no_callers};
use crate::commit;
use crate::snapshot::Remembered;

/// How long kinds that a token stands for are waited for before the call is read.
const LEARN_WAIT: Duration = Duration::from_secs(2);
/// How long before its deadline a caller hears what can be said without the database.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);
/// What operators have to do about copies of what was erased.
const BACKUPS: &str = "The database keeps a row with the two ids of each removed edge until about \
    a day after log_forgets_at. Copies from before erased_at still hold what was erased: the \
    database's own backups, binary logs and replicas that lag, what readers of the topics keep, and \
    dead letters. Delete them, or let them expire.";

#[derive(Debug)]
pub struct ServedCluster(Arc<Cluster>);

impl ServedCluster {
    pub fn new(cluster: Arc<Cluster>) -> ServedCluster {
        ServedCluster(cluster)
    }
}

impl Deployment for ServedCluster {
    fn crew(&self) -> &Crew {
        self.0.crew()
    }

    fn secret(&self) -> &Arc<Secret> {
        self.0.secret()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.0.catalog()
    }

    fn look_for_names(&self, deadline: Instant) -> Eventually<'_, Result<(), Error>> {
        Box::pin(self.0.look_for_names(deadline))
    }

    fn learn_kinds<'a>(&'a self, tenant: TenantId, token: &'a str) -> Eventually<'a, ()> {
        Box::pin(async move {
            if let Ok(AnyToken::Cluster(token)) = AnyToken::parse(token, tenant, self.secret()) {
                let _met_later = self.0.learn_catalog_of(&token, Instant::now() + LEARN_WAIT).await;
            }
        })
    }

    fn takes_calls(&self) -> Result<(), Error> {
        match self.0.roles().api {
            true => Ok(()),
            false => Err(no_callers()),
        }
    }

    fn unready(&self) -> Option<Error> {
        unready(&self.0.status())
    }

    fn meet<'a>(
        &'a self,
        token: &'a AnyToken,
        deadline: Instant,
    ) -> Eventually<'a, Result<(), Error>> {
        Box::pin(async move {
            match token {
                // What a directory had is in the cluster that it was moved to.
                AnyToken::Embedded(_) => Ok(()),
                AnyToken::Cluster(token) => self.0.meet(token, deadline).await,
            }
        })
    }

    fn cover(&self, token: AnyToken, deadline: Instant) -> Eventually<'_, Result<AnyToken, Error>> {
        let AnyToken::Cluster(mut token) = token else {
            return Box::pin(async { Ok(token) });
        };
        let cluster = self.0.clone();
        Box::pin(with_place((), move || {
            cluster.cover(&mut token, deadline)?;
            Ok(AnyToken::Cluster(token))
        }))
    }

    fn token_now(&self, tenant: TenantId) -> AnyToken {
        AnyToken::Cluster(ClusterToken::new(tenant))
    }

    fn write(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Eventually<'_, Result<Committed, Error>> {
        Box::pin(async move {
            let (answers, token) = self.0.write(request, deadline).await?;
            Ok(Committed { answers, token: AnyToken::Cluster(token) })
        })
    }

    /// Each lane is a queue of its own, and a request for several lanes keeps all of them waiting.
    fn write_order(&self, change: &Change) -> WriteOrder {
        match commit::only_source(change, &self.0.catalog()) {
            Some(_) => WriteOrder::Apart,
            None => WriteOrder::Alone,
        }
    }

    /// A value is the sum of what all instances count.
    fn knows_counters(&self) -> bool {
        false
    }

    fn read<'a>(
        &'a self,
        read: AnyRead,
        terms: ReadTerms<'a>,
    ) -> Eventually<'a, Result<ReadAnswer<AnyAnswer>, Error>> {
        Box::pin(async move {
            let remembered = match of_cluster(terms.met) {
                Some(_) => Remembered::default(),
                None => match self.0.recall(&*read).await {
                    RecalledRead::Read(answer) => return answer.map(whole),
                    RecalledRead::Lacking(remembered) => remembered,
                },
            };
            match self.ask(&read, terms, &remembered).await {
                Err(error) if matches!(error.code, Code::Unavailable | Code::Overloaded) => {
                    self.by_default(error, &read, terms, &remembered)
                }
                asked => asked.map(whole),
            }
        })
    }

    fn keep_reading(
        &self,
        tenant: TenantId,
        terms: ReadTerms<'_>,
        until: Instant,
    ) -> Eventually<'_, Result<KeptReading, Error>> {
        let (cluster, met) = (self.0.clone(), of_cluster(terms.met).cloned());
        let answer_by = before(terms.deadline);
        Box::pin(async move {
            let place = self.place(ReadLane::Lists, answer_by).await?;
            with_place((), move || {
                let position = cluster.place_now(tenant)?.to_text(cluster.secret());
                let reader = cluster.reader(met.as_ref(), until)?;
                Ok(KeptReading { reader, position, place: Some(place) })
            })
            .await
        })
    }

    fn long_reads_max(&self) -> Option<usize> {
        Some(self.0.budget().figures().lists.places_max)
    }

    fn event(&self, text: &str, tenant: TenantId) -> Result<AnyEventId, Error> {
        self.0.event(text, tenant).map(AnyEventId::Cluster)
    }

    fn watch(
        &self,
        tenant: TenantId,
        from: WatchFrom,
    ) -> Eventually<'_, Result<Box<dyn Watcher>, Error>> {
        Box::pin(async move {
            let watcher = TopicWatcher::begin(self.0.clone(), tenant, from).await?;
            Ok(Box::new(watcher) as Box<dyn Watcher>)
        })
    }

    fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error> {
        self.0.begin_audit(query)
    }

    fn audit_ended(&self, number: u64) -> Eventually<'_, Option<AuditRun>> {
        Box::pin(self.0.audit_ended(number))
    }

    fn audit_state(&self) -> AuditState {
        self.0.audit_state()
    }

    fn remains(&self) -> Remains {
        Remains { log_keeps_ms: self.0.log_keeps_ms(), backups: BACKUPS }
    }

    fn hot(&self) -> &HotReads {
        self.0.hot()
    }

    fn instance(&self) -> Option<InstanceHealth> {
        let status = self.0.status();
        Some(InstanceHealth {
            roles: status.roles.names(),
            clock_held_back_ms: status.clock_held_back_ms,
            clock_offset_ms: status.clock_offset_ms,
            log_reachable: status.log.reachable,
            relay_lag_ms: status.relay_lag_ms,
            applier_lag_records: status.applier_lag_records,
            dead_letters: status.dead_letters,
            redis_reachable: status.memory.map(|memory| memory.tier.reachable),
            filter_serves: status.memory.map(|memory| memory.serves),
            overloaded: status.reads.is_some_and(|reads| reads.overloaded),
        })
    }

    fn filter_status(&self) -> Option<FilterStatus> {
        self.0.filter_status()
    }

    fn dead_letters(&self) -> Option<Arc<dyn DeadLetterStore>> {
        Some(Arc::new(self.0.dead_letters().clone()))
    }
}

impl ServedCluster {
    /// Asks the database, if it has time. The thread that asks keeps its place when nobody waits for
    /// it any more.
    async fn ask(
        &self,
        read: &AnyRead,
        terms: ReadTerms<'_>,
        remembered: &Remembered,
    ) -> Result<AnyAnswer, Error> {
        let ReadTerms { met, lane, deadline, .. } = terms;
        let budget = self.0.budget();
        let place = self.place(lane, before(deadline)).await?;
        let answer_by = budget.answer_by(lane, before(deadline));
        let asking = {
            let (cluster, read) = (self.0.clone(), read.clone());
            let (met, remembered) = (of_cluster(met).cloned(), remembered.clone());
            move || match met {
                Some(token) => read(&cluster.reader(Some(&token), answer_by)?),
                None => read(&cluster.reader_with(&remembered, answer_by)),
            }
        };
        let answered = tokio::time::timeout_at(answer_by.into(), with_place(place, asking)).await;
        answered.unwrap_or_else(|_| {
            budget.note_unanswered();
            let message = "the database did not answer in time; try again in a moment";
            Err(Error::new(Code::Overloaded, message))
        })
    }

    async fn place(
        &self,
        lane: ReadLane,
        answer_by: Instant,
    ) -> Result<OwnedSemaphorePermit, Error> {
        let place = self.0.budget().enter(lane, answer_by).await;
        place.ok_or_else(|| {
            let message = "as many reads as the database is sent at once are under way; try again \
                           in a moment";
            Error::new(Code::Overloaded, message)
        })
    }

    /// What can be said without the database, if all kinds that it lacks rows of allow that.
    fn by_default(
        &self,
        error: Error,
        read: &AnyRead,
        terms: ReadTerms<'_>,
        remembered: &Remembered,
    ) -> Result<ReadAnswer<AnyAnswer>, Error> {
        let (Some(kinds), None) = (terms.or_default, of_cluster(terms.met)) else {
            return Err(error);
        };
        let (answer, defaulted) = self.0.read_by_default(remembered, &**read);
        let answer = answer?;
        let refuses = |kind: &Arc<Kind>| {
            defaulted.concerns(kind) && kind.rules.on_overload == OnOverload::Refuse
        };
        if kinds.iter().any(refuses) {
            return Err(error);
        }
        let degraded = !defaulted.is_nothing();
        if degraded {
            self.0.budget().note_degraded();
        }
        Ok(ReadAnswer { answer, degraded })
    }
}

fn whole(answer: AnyAnswer) -> ReadAnswer<AnyAnswer> {
    ReadAnswer { answer, degraded: false }
}

fn before(deadline: Instant) -> Instant {
    deadline.checked_sub(ANSWER_MARGIN).unwrap_or(deadline)
}

fn of_cluster(token: Option<&AnyToken>) -> Option<&ClusterToken> {
    match token {
        Some(AnyToken::Cluster(token)) => Some(token),
        _ => None,
    }
}

/// Writes, and reads of all sorts, need the database. The log does not make an instance unready
/// that serves callers: both go on without it, and its lag is said instead. An instance that only
/// works on the log has nothing to do without it.
fn unready(status: &ClusterStatus) -> Option<Error> {
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
