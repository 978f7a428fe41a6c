//! Reading: one consistent picture that shows at least what the caller asks for. What a read costs,
//! and what is told when it cannot be had, is the deployment's business; calls that have a default
//! name the kinds that say whether it may be told.

use std::sync::Arc;
use std::time::Instant;

use guanxi_core::Reader;
use guanxi_core::deployment::{AnyAnswer, KeptReading, ReadAnswer, ReadLane, ReadTerms};
use guanxi_model::{Code, Error, Kind};

use super::Caller;

impl Caller {
    /// A quick read. It may be run several times.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        Ok(self.run(ReadLane::Reads, None, read).await?.answer)
    }

    /// A list, or what else may take a while.
    pub async fn read_list<T: Send + 'static>(
        &self,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        Ok(self.run(ReadLane::Lists, None, read).await?.answer)
    }

    /// What has a default: these kinds say whether it may be told.
    pub async fn read_or_default<T: Send + 'static>(
        &self,
        lane: ReadLane,
        kinds: &[Arc<Kind>],
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<ReadAnswer<T>, Error> {
        self.run(lane, Some(kinds), read).await
    }

    /// A picture to keep until then, for a walk that outlives the request.
    pub async fn keep_reading(&self, until: Instant) -> Result<KeptReading, Error> {
        let met = self.meet().await?;
        let (lane, deadline) = (ReadLane::Lists, self.context.deadline);
        let terms = ReadTerms { met: met.as_ref(), lane, deadline, or_default: None };
        self.app.deployment.keep_reading(self.tenant, terms, until).await
    }

    async fn run<T: Send + 'static>(
        &self,
        lane: ReadLane,
        or_default: Option<&[Arc<Kind>]>,
        read: impl Fn(&Reader) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<ReadAnswer<T>, Error> {
        let met = self.meet().await?;
        let deadline = self.context.deadline;
        let terms = ReadTerms { met: met.as_ref(), lane, deadline, or_default };
        let boxed = move |reader: &Reader| read(reader).map(|answer| Box::new(answer) as AnyAnswer);
        let ReadAnswer { answer, degraded } =
            self.app.deployment.read(Arc::new(boxed), terms).await?;
        let another = |_| Error::new(Code::Internal, "the read has another answer");
        Ok(ReadAnswer { answer: *answer.downcast().map_err(another)?, degraded })
    }
}
