//! Places for work that blocks: so much of a sort is done at once, each on a thread of its own and
//! off the workers that serve everyone.

use std::sync::Arc;
use std::time::Instant;

use guanxi_model::{Code, Error};
use tokio::sync::Semaphore;

#[derive(Debug, Clone)]
pub struct WorkPermits(Arc<Semaphore>);

impl WorkPermits {
    pub fn new(places_max: usize) -> WorkPermits {
        WorkPermits(Arc::new(Semaphore::new(places_max)))
    }

    /// Runs the work when there is a place. Whoever finds none before its deadline is told so.
    pub async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let closed = |_| Error::new(Code::Unavailable, "the service is stopping");
        let crowded = |_| {
            let message = "as many reads as the service does at once are under way; try again";
            Error::new(Code::DeadlineExceeded, message)
        };
        let place = tokio::time::timeout_at(deadline.into(), self.0.clone().acquire_owned());
        let place = place.await.map_err(crowded)?.map_err(closed)?;
        with_place(place, work).await
    }
}

/// Runs what blocks off the workers. It keeps its place to its end, whether or not somebody waits
/// for it.
pub async fn with_place<T: Send + 'static>(
    place: impl Send + 'static,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(place);
        result
    });
    work.await.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the work failed; it was logged")))
}
