//! Reading: one consistent snapshot that shows at least what the caller asks for. In a cluster a
//! read asks the database only with a place in the read budget. What is told to one that got
//! none, or no answer, is decided here: calls that have a default give it where all kinds concerned
//! allow it, marked as degraded; everything else is refused. Whoever presents a token wants a
//! promise, and is refused, too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::budget::{Lane, Place, ReadBudget};
use guanxi_cluster::instance::Recalled;
use guanxi_cluster::snapshot::Remembered;
use guanxi_core::Reader;
use guanxi_model::{AnyToken, Code, Error, Kind, OnOverload};

use super::Caller;
use super::app::with_place;

/// How long before its deadline a caller hears what can be said without the database.
const ANSWER_MARGIN: Duration = Duration::from_millis(50);

/// What was read.
#[derive(Debug)]
pub struct Reading<T> {
    pub answer: T,
    /// Some of it was not known and is said by default.
    pub degraded: bool,
}

/// A read that got no answer from the database.
struct Shortfall {
    error: Error,
    /// What was known without it.
    remembered: Remembered,
    met: Option<AnyToken>,
}

impl Caller {
    /// A quick read: on the spot where that is memory and files, or what instances remember; off
    /// the workers where it asks a database. It may be run several times.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let read = self.attempt(Lane::Reads, &Arc::new(read)).await?;
        read.map_err(|shortfall| shortfall.error)
    }

    /// The same for what has a default: these kinds say whether it may be told.
    pub async fn read_or_default<T: Send + 'static>(
        &self,
        lane: Lane,
        kinds: &[Arc<Kind>],
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Reading<T>, Error> {
        let read = Arc::new(read);
        match self.attempt(lane, &read).await? {
            Ok(answer) => Ok(Reading { answer, degraded: false }),
            Err(shortfall) => self.default(shortfall, kinds, &*read),
        }
    }

    /// A list: on the spot where it is remembered, else off the workers that serve everyone.
    pub async fn read_or_apart<T: Send + 'static>(
        &self,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let read = self.attempt(Lane::Lists, &Arc::new(read)).await?;
        read.map_err(|shortfall| shortfall.error)
    }

    /// A read that may take a while, off the workers that serve everyone.
    pub async fn read_apart<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Reader) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let met = self.meet().await?;
        let (deployment, deadline) = (self.app.deployment.clone(), self.context.deadline);
        let read = move || read(&deployment.reader(met.as_ref(), deadline)?);
        match self.app.deployment.budget() {
            None => self.app.apart(deadline, read).await,
            Some(budget) => {
                let place = self.place(budget, Lane::Lists).await?;
                in_time(budget, self.answer_by(), with_place(place, read)).await
            }
        }
    }

    /// A snapshot to keep until then, for a walk that outlives the request, the place in the log
    /// after which everything is new to its reader, and the place among reads that it keeps.
    pub async fn reader_to_keep(
        &self,
        until: Instant,
    ) -> Result<(Reader, String, Option<Place>), Error> {
        let met = self.meet().await?;
        let (deployment, tenant) = (self.app.deployment.clone(), self.tenant);
        let begin = move || deployment.reader_and_place(tenant, met.as_ref(), until);
        match self.app.deployment.budget() {
            None => {
                let (reader, position) = self.app.apart(self.context.deadline, begin).await?;
                Ok((reader, position, None))
            }
            Some(budget) => {
                let place = self.place(budget, Lane::Lists).await?;
                with_place((), move || {
                    let (reader, position) = begin()?;
                    Ok((reader, position, Some(place)))
                })
                .await
            }
        }
    }

    /// Reads, if the database has time for it.
    async fn attempt<T: Send + 'static>(
        &self,
        lane: Lane,
        read: &Arc<impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static>,
    ) -> Result<Result<T, Shortfall>, Error> {
        let met = self.meet().await?;
        let (deployment, deadline) = (&self.app.deployment, self.context.deadline);
        let Some(budget) = deployment.budget() else {
            if lane == Lane::Reads {
                return read(&deployment.reader(met.as_ref(), deadline)?).map(Ok);
            }
            let (deployment, read) = (deployment.clone(), read.clone());
            let read = move || read(&deployment.reader(met.as_ref(), deadline)?);
            return self.app.apart(deadline, read).await.map(Ok);
        };
        let remembered = match deployment.recall(met.as_ref(), &**read).await {
            Recalled::Read(answer) => return answer.map(Ok),
            Recalled::Lacking(remembered) => remembered,
        };
        let place = match self.place(budget, lane).await {
            Ok(place) => place,
            Err(error) => return Ok(Err(Shortfall { error, remembered, met })),
        };
        let answer_by = budget.answer_by(lane, self.answer_by());
        let work = {
            let (deployment, read) = (deployment.clone(), read.clone());
            let (met, remembered) = (met.clone(), remembered.clone());
            move || read(&deployment.reader_with(met.as_ref(), &remembered, answer_by)?)
        };
        match in_time(budget, answer_by, with_place(place, work)).await {
            Err(error) if matches!(error.code, Code::Unavailable | Code::Overloaded) => {
                Ok(Err(Shortfall { error, remembered, met }))
            }
            answer => answer.map(Ok),
        }
    }

    async fn place(&self, budget: &ReadBudget, lane: Lane) -> Result<Place, Error> {
        let place = budget.enter(lane, self.answer_by()).await;
        place.ok_or_else(|| {
            let message = "as many reads as the database is sent at once are under way; try again \
                           in a moment";
            Error::new(Code::Overloaded, message)
        })
    }

    fn answer_by(&self) -> Instant {
        let deadline = self.context.deadline;
        deadline.checked_sub(ANSWER_MARGIN).unwrap_or(deadline)
    }

    /// What can be said without the database, if all kinds that it lacks rows of allow that.
    fn default<T>(
        &self,
        shortfall: Shortfall,
        kinds: &[Arc<Kind>],
        read: &impl Fn(&Reader) -> Result<T, Error>,
    ) -> Result<Reading<T>, Error> {
        let Shortfall { error, remembered, met } = shortfall;
        let deployment = &self.app.deployment;
        let Some((answer, defaulted)) = deployment.read_by_default(met.as_ref(), &remembered, read)
        else {
            return Err(error);
        };
        let answer = answer?;
        let refuses = |kind: &&Arc<Kind>| {
            defaulted.concerns(kind) && kind.rules.on_overload == OnOverload::Refuse
        };
        if kinds.iter().any(|kind| refuses(&kind)) {
            return Err(error);
        }
        let degraded = !defaulted.is_nothing();
        if let (true, Some(budget)) = (degraded, deployment.budget()) {
            budget.note_degraded();
        }
        Ok(Reading { answer, degraded })
    }
}

/// The answer of the database, if it comes by then. The thread that asks keeps its place when
/// nobody waits for it any more.
async fn in_time<T>(
    budget: &ReadBudget,
    answer_by: Instant,
    reading: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let answered = tokio::time::timeout_at(answer_by.into(), reading).await;
    answered.unwrap_or_else(|_| {
        budget.note_unanswered();
        let message = "the database did not answer in time; try again in a moment";
        Err(Error::new(Code::Overloaded, message))
    })
}
