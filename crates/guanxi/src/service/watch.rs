//! Watching: the edge records of one tenant as events, filtered, with heartbeats in between. It
//! knows no protocol; HTTP and gRPC turn the events into what they send.

use std::sync::Arc;
use std::time::Duration;

use guanxi_core::deployment::{Deployment, SharedRecord, WatchFrom, Watched, Watcher};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{AnyEventId, Code, Error, Kind, Millis, TenantId};
use tokio::time::Instant;

use super::Caller;
use super::streams::StreamSender;
use crate::telemetry::Metrics;

/// Events that are rendered and sent together.
const EVENTS_TOGETHER_MAX: usize = 64;
/// How long the database may take to tell of a kind that a record is the first of.
const NAMES_WAIT: Duration = Duration::from_secs(5);
/// How much of a wrong word an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// What a watcher asks for, in its own words.
#[derive(Debug, Default)]
pub struct WatchRequest<'a> {
    /// `now` unless said, `earliest`, or the id of an event.
    pub from: Option<&'a str>,
    /// The event after which a reader that was cut off goes on, whatever `from` says, and what it is
    /// called where it stands.
    pub after: Option<(&'a str, &'a str)>,
    /// Only records of these kinds; none: of all.
    pub kinds: Vec<&'a str>,
    /// Only records of these operations; none: of all.
    pub ops: Vec<&'a str>,
}

#[derive(Debug)]
struct WatchQuery {
    tenant: TenantId,
    from: WatchFrom,
    kinds: Vec<Arc<Kind>>,
    ops: Vec<Cause>,
}

/// What is to be watched, if there is such a thing: looked up before a stream takes its place.
pub struct WatchOrder(WatchQuery);

/// Looks up what a watcher names.
pub async fn ask(caller: &Caller, request: &WatchRequest<'_>) -> Result<WatchOrder, Error> {
    let mut kinds = Vec::with_capacity(request.kinds.len());
    for name in &request.kinds {
        let kind = caller.kind_named(name).await?;
        kind.require_edges()?;
        kinds.push(kind);
    }
    let ops = request.ops.iter().map(|name| op_named(name)).collect::<Result<_, Error>>()?;
    let deployment = &*caller.app.deployment;
    let named = place_named(deployment, request.from, caller.tenant)?;
    let from = match request.after {
        Some((what, id)) => place_after(deployment, what, id, caller.tenant)?,
        None => named,
    };
    Ok(WatchOrder(WatchQuery { tenant: caller.tenant, from, kinds, ops }))
}

#[derive(Debug, Clone)]
pub enum WatchedEvent {
    Record {
        id: AnyEventId,
        time: Millis,
        kind: Arc<Kind>,
        record: Arc<dyn SharedRecord>,
    },
    /// Nothing was sent for a while; everything up to here has been looked at.
    Heartbeat {
        id: AnyEventId,
    },
}

/// One watcher at its place in the log.
#[derive(Debug)]
pub struct WatchStream {
    deployment: Arc<dyn Deployment>,
    metrics: Arc<Metrics>,
    query: WatchQuery,
    watcher: Box<dyn Watcher>,
    heartbeat: Duration,
    /// When the next heartbeat is due.
    due: Instant,
}

impl WatchStream {
    /// Refuses a place that the log no longer has, so that a stream begins only where it can.
    pub async fn begin(
        caller: &Caller,
        WatchOrder(query): WatchOrder,
    ) -> Result<WatchStream, Error> {
        caller.meet().await?;
        let (metrics, heartbeat) = (caller.app.metrics.clone(), caller.app.heartbeat);
        let deployment = caller.app.deployment.clone();
        let watcher = deployment.watch(query.tenant, query.from.clone()).await?;
        metrics.watchers.inc();
        // The first one is due at once: it tells the reader where it is.
        Ok(WatchStream { deployment, metrics, query, watcher, heartbeat, due: Instant::now() })
    }

    /// Sends events until something ends it.
    pub async fn run<T, Items>(
        mut self,
        sender: StreamSender<T>,
        render: impl Fn(&[WatchedEvent]) -> Items,
    ) -> Result<(), Error>
    where
        Items: IntoIterator<Item = T>,
    {
        let ended = self.send_all(&sender, render).await;
        if let Err(error) = &ended
            && matches!(error.code, Code::Overloaded | Code::PositionExpired)
        {
            self.metrics.watchers_dropped.inc();
        }
        ended
    }

    async fn send_all<T, Items>(
        &mut self,
        sender: &StreamSender<T>,
        render: impl Fn(&[WatchedEvent]) -> Items,
    ) -> Result<(), Error>
    where
        Items: IntoIterator<Item = T>,
    {
        loop {
            let events = self.next().await?;
            for together in events.chunks(EVENTS_TOGETHER_MAX) {
                let items: Vec<T> = render(together).into_iter().collect();
                for item in items {
                    sender.send(item).await?;
                }
                let records = together.iter().filter(|event| event.is_record()).count();
                self.metrics.watch_records.inc_by(records as u64);
                // Others have their turn now, so that a crowd that catches up delays nobody's
                // request by much.
                tokio::task::yield_now().await;
            }
        }
    }

    /// The next events, at least one; waits for them no longer than until a heartbeat is due.
    async fn next(&mut self) -> Result<Vec<WatchedEvent>, Error> {
        loop {
            let wants = |record: &EdgeRecord| self.query.wants(record);
            let watched = tokio::select! {
                biased;
                () = reached(self.due) => None,
                watched = self.watcher.next(&wants) => Some(watched?),
            };
            let events = match watched {
                None => vec![WatchedEvent::Heartbeat { id: self.watcher.place() }],
                Some(watched) => self.events(watched).await?,
            };
            if !events.is_empty() {
                self.due = Instant::now() + self.heartbeat;
                return Ok(events);
            }
        }
    }

    /// These records with their kinds, which may be newer than what is known here.
    async fn events(&self, watched: Vec<Watched>) -> Result<Vec<WatchedEvent>, Error> {
        let tenant = self.query.tenant;
        let mut catalog = self.deployment.catalog();
        let mut events = Vec::with_capacity(watched.len());
        for Watched { id, time, record } in watched {
            let kind = record.edge().key.kind;
            if catalog.kind(tenant, kind).is_none() {
                self.deployment.look_for_names((Instant::now() + NAMES_WAIT).into_std()).await?;
                catalog = self.deployment.catalog();
            }
            let Some(kind) = catalog.kind(tenant, kind).cloned() else {
                tracing::error!(?id, "watchers pass over a record of no known kind");
                continue;
            };
            events.push(WatchedEvent::Record { id, time, kind, record });
        }
        Ok(events)
    }
}

impl WatchQuery {
    fn wants(&self, record: &EdgeRecord) -> bool {
        let WatchQuery { tenant, kinds, ops, .. } = self;
        record.key.tenant == *tenant
            && (kinds.is_empty() || kinds.iter().any(|kind| kind.id == record.key.kind))
            && (ops.is_empty() || ops.contains(&record.cause))
    }
}

impl Drop for WatchStream {
    fn drop(&mut self) {
        self.metrics.watchers.dec();
    }
}

impl WatchedEvent {
    fn is_record(&self) -> bool {
        matches!(self, WatchedEvent::Record { .. })
    }
}

/// A timer alone ends only with the millisecond, and the first heartbeat comes before any record.
async fn reached(due: Instant) {
    if Instant::now() < due {
        tokio::time::sleep_until(due).await;
    }
}

/// Where a watcher wants to begin: now, at the earliest, or after an event.
fn place_named(
    deployment: &dyn Deployment,
    text: Option<&str>,
    tenant: TenantId,
) -> Result<WatchFrom, Error> {
    match text {
        None | Some("now") => Ok(WatchFrom::Now),
        Some("earliest") => Ok(WatchFrom::Earliest),
        Some(text) => {
            place_after(deployment, "from (now, earliest or the id of an event)", text, tenant)
        }
    }
}

/// The place after an event; `what` names its id in an error.
fn place_after(
    deployment: &dyn Deployment,
    what: &str,
    text: &str,
    tenant: TenantId,
) -> Result<WatchFrom, Error> {
    let event = deployment.event(text, tenant).map(WatchFrom::After);
    event.map_err(|error| Error { message: format!("{what}: {}", error.message), ..error })
}

fn op_named(name: &str) -> Result<Cause, Error> {
    Cause::ALL.into_iter().find(|cause| cause.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let known = Cause::ALL.map(Cause::name).join(", ");
        Error::invalid(format!("ops: there is no '{shown}'; it may be any of {known}"))
    })
}
