//! What a server asks of whatever it serves: an embedded engine, or an instance of a cluster. The
//! process chooses one of them when it starts; who calls does not know which it is.
//!
//! The trait is object-safe, so what is generic elsewhere has one shape here. A read is a function of
//! a `Reader` that answers a box: it may be run several times and on any thread, as a cluster tries
//! it on what is at hand, asks the database, and makes it up at last, and which of these was the last
//! is not the caller's business. Whoever reads knows the type of the answer and takes it out again.
//! A call that may wait is one boxed future.

mod filters;
mod letters;
mod places;
mod watching;

pub use self::filters::{FilterStage, FilterStatus, RedisStatus};
pub use self::letters::{DeadLetterStore, Letter, RetriedLetter};
pub use self::places::{WorkPermits, with_place};
pub use self::watching::{SharedRecord, WatchFrom, Watched, Watcher};

use std::any::Any;
use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use guanxi_model::idempotency::Answers;
use guanxi_model::job::Remains;
use guanxi_model::{AnyEventId, AnyToken, Catalog, Change, Error, Kind, Request, Secret, TenantId};

use crate::audit::{AuditQuery, AuditRun, AuditState};
use crate::crew::Crew;
use crate::hot::HotReads;
use crate::read::Reader;

/// What a call answers when it is done.
pub type Eventually<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

pub trait Deployment: Debug + Send + Sync {
    /// The threads that do its work.
    fn crew(&self) -> &Crew;

    /// What tokens, cursors and event ids are sealed with.
    fn secret(&self) -> &Arc<Secret>;

    /// The kinds as they are known here.
    fn catalog(&self) -> Arc<Catalog>;

    /// After it, kinds and node types are known that were there when it was called.
    fn look_for_names(&self, _deadline: Instant) -> Eventually<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    /// Brings the catalog up to the one that a token stands for. What is wrong with the token is said
    /// when it is met.
    fn learn_kinds<'a>(&'a self, _tenant: TenantId, _token: &'a str) -> Eventually<'a, ()> {
        Box::pin(async {})
    }

    /// Refuses callers where this process has no part for them; it answers for its health alone.
    fn takes_calls(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether anything may be shown at all.
    fn may_be_shown(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Why it is not ready, if it is not, beside a lost thread.
    fn unready(&self) -> Option<Error>;

    /// Waits shortly until what the token stands for can be read.
    fn meet<'a>(
        &'a self,
        token: &'a AnyToken,
        deadline: Instant,
    ) -> Eventually<'a, Result<(), Error>>;

    /// Makes a token fit that stands for more than one can name.
    fn cover(&self, token: AnyToken, deadline: Instant) -> Eventually<'_, Result<AnyToken, Error>>;

    /// What stands for everything that is visible now, where nothing was written.
    fn token_now(&self, tenant: TenantId) -> AnyToken;

    /// Does the request's changes; resolves when they are durable. They are on their way when this
    /// is first polled.
    fn write(
        &self,
        request: Request,
        deadline: Instant,
    ) -> Eventually<'_, Result<Committed, Error>>;

    /// How a change may be given beside others of the same caller that wait to be answered, so that
    /// all of them are decided in the order in which they were given.
    fn write_order(&self, _change: &Change) -> WriteOrder {
        WriteOrder::Together
    }

    /// Whether the answer to a counter's change knows its value.
    fn knows_counters(&self) -> bool;

    /// Runs a quick read on one consistent picture, on the spot and without a box, where that takes
    /// no waiting; none where only `read` can do it.
    fn read_at_once(&self, _read: &mut AtOnce<'_>) -> Option<Result<(), Error>> {
        None
    }

    /// Runs a read on one consistent picture.
    fn read<'a>(
        &'a self,
        read: AnyRead,
        terms: ReadTerms<'a>,
    ) -> Eventually<'a, Result<ReadAnswer<AnyAnswer>, Error>>;

    /// Begins a read that outlives its request.
    fn keep_reading(
        &self,
        tenant: TenantId,
        terms: ReadTerms<'_>,
        until: Instant,
    ) -> Eventually<'_, Result<KeptReading, Error>>;

    /// How many long reads it takes at once, where it has a bound of its own.
    fn long_reads_max(&self) -> Option<usize> {
        None
    }

    /// The event that a text names, if this deployment gave out the text.
    fn event(&self, text: &str, tenant: TenantId) -> Result<AnyEventId, Error>;

    /// Follows the records of a tenant's edges from there on. Refuses a place that the log no longer
    /// has.
    fn watch(
        &self,
        tenant: TenantId,
        from: WatchFrom,
    ) -> Eventually<'_, Result<Box<dyn Watcher>, Error>>;

    /// Begins an audit in the background and returns its number; there is one at a time.
    fn begin_audit(&self, query: AuditQuery) -> Result<u64, Error>;

    /// The audit of this number, once it has ended.
    fn audit_ended(&self, number: u64) -> Eventually<'_, Option<AuditRun>>;

    fn audit_state(&self) -> AuditState;

    /// Where what was erased may still be found.
    fn remains(&self) -> Remains;

    /// What is read most.
    fn hot(&self) -> &HotReads;

    /// How it fares as one of many instances.
    fn instance(&self) -> Option<InstanceHealth> {
        None
    }

    /// What is to be said of the existence filter, where there is one or might be.
    fn filter_status(&self) -> Option<FilterStatus> {
        None
    }

    /// Records that could not be applied, where that may happen.
    fn dead_letters(&self) -> Option<Arc<dyn DeadLetterStore>> {
        None
    }
}

/// How a change may be given beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteOrder {
    /// In one request with them.
    Together,
    /// In a request of its own, without waiting for theirs.
    Apart,
    /// When they are answered; and what follows it, when it is.
    Alone,
}

/// A committed request: one answer per change, and what stands for all of it.
#[derive(Debug)]
pub struct Committed {
    pub answers: Answers,
    pub token: AnyToken,
}

pub type AnyRead = Arc<dyn Fn(&Reader) -> Result<AnyAnswer, Error> + Send + Sync>;
pub type AnyAnswer = Box<dyn Any + Send>;
/// A read that keeps its answer itself.
pub type AtOnce<'a> = dyn FnMut(&Reader) -> Result<(), Error> + 'a;

/// On what terms a read is done.
#[derive(Debug, Clone, Copy)]
pub struct ReadTerms<'a> {
    /// What it shows at least; that has been met.
    pub met: Option<&'a AnyToken>,
    pub lane: ReadLane,
    pub deadline: Instant,
    /// The kinds that say whether a default may be told; without them it never is.
    pub or_default: Option<&'a [Arc<Kind>]>,
}

/// What a read costs where that differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadLane {
    /// Rows by their keys: done on the spot where that is memory and files.
    Reads,
    /// Pages, large hydrates and walks: apart from the workers that serve everyone.
    Lists,
}

/// What was read.
#[derive(Debug)]
pub struct ReadAnswer<T> {
    pub answer: T,
    /// Some of it was not known and is said by default.
    pub degraded: bool,
}

/// A picture to keep.
#[derive(Debug)]
pub struct KeptReading {
    pub reader: Reader,
    /// The id of an event that everything in it comes before: watching from there has no gap.
    pub position: String,
    /// Its place among reads, held as long as it is read.
    pub place: Option<tokio::sync::OwnedSemaphorePermit>,
}

/// How one of many instances fares, for whoever balances load between them.
#[derive(Debug, Clone)]
pub struct InstanceHealth {
    pub roles: Vec<&'static str>,
    pub clock_held_back_ms: Option<u64>,
    pub clock_offset_ms: i64,
    pub log_reachable: bool,
    pub relay_lag_ms: u64,
    pub applier_lag_records: Option<u64>,
    pub dead_letters: u64,
    pub redis_reachable: Option<bool>,
    pub filter_serves: Option<bool>,
    pub overloaded: bool,
}
