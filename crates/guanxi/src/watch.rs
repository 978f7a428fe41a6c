//! Watching: the edge records of one tenant as events, filtered, with heartbeats in between. It
//! knows no protocol; HTTP and gRPC turn the events into what they send.

use std::sync::Arc;
use std::time::Duration;

use guanxi_engine::{Engine, Tail, TailFrame, TailFrom, TailRecord};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{Code, Error, EventId, Kind, Millis, Position, TenantId};
use tokio::time::Instant;

use crate::deployment::Deployment;
use crate::http::stream::Sender;
use crate::telemetry::Metrics;

/// Events that are rendered and sent together.
const EVENTS_TOGETHER_MAX: usize = 64;
/// How much of a wrong word an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// What a watcher asks for.
#[derive(Debug)]
pub struct WatchQuery {
    pub tenant: TenantId,
    pub from: TailFrom,
    /// Only records of these; empty: of all.
    pub kinds: Vec<Arc<Kind>>,
    /// Only records of these; empty: of all.
    pub ops: Vec<Cause>,
}

#[derive(Debug, Clone)]
pub enum Event {
    Record {
        id: EventId,
        time: Millis,
        kind: Arc<Kind>,
        record: Arc<TailRecord>,
    },
    /// Nothing was sent for a while; everything up to here has been looked at.
    Heartbeat {
        id: EventId,
    },
}

/// One watcher at its place in the log.
#[derive(Debug)]
pub struct Watch {
    engine: Arc<Engine>,
    metrics: Arc<Metrics>,
    query: WatchQuery,
    tail: Tail,
    heartbeat: Duration,
    /// When the next heartbeat is due.
    due: Instant,
}

impl Watch {
    /// Refuses a place that the log no longer has, so that a stream begins only where it can.
    pub fn begin(
        deployment: Deployment,
        metrics: Arc<Metrics>,
        query: WatchQuery,
        heartbeat: Duration,
    ) -> Result<Watch, Error> {
        let engine = deployment.embedded("")?.clone();
        let tail = engine.tail(query.from)?;
        metrics.watchers.inc();
        // The first one is due at once: it tells the reader where it is.
        Ok(Watch { engine, metrics, query, tail, heartbeat, due: Instant::now() })
    }

    /// Sends events until something ends it.
    pub async fn run<T, Items>(
        mut self,
        sender: Sender<T>,
        render: impl Fn(&[Event]) -> Items,
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
        sender: &Sender<T>,
        render: impl Fn(&[Event]) -> Items,
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
    async fn next(&mut self) -> Result<Vec<Event>, Error> {
        loop {
            let seen = self.tail.position();
            let frames = tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.due) => None,
                frames = self.tail.next() => Some(frames?),
            };
            let events = match frames {
                None => vec![Event::Heartbeat { id: self.id_here() }],
                Some(frames) => self.events(&frames, seen)?,
            };
            if !events.is_empty() {
                self.due = Instant::now() + self.heartbeat;
                return Ok(events);
            }
        }
    }

    fn id_here(&self) -> EventId {
        let now = self.engine.token(self.query.tenant);
        EventId { position: self.tail.position(), ..EventId::from(now) }
    }

    fn events(&self, frames: &[Arc<TailFrame>], seen: Position) -> Result<Vec<Event>, Error> {
        let tenant = self.query.tenant;
        let catalog = self.engine.catalog();
        let mut events = Vec::new();
        for frame in frames {
            for record in frame.edges_from(Position(seen.0 + 1)) {
                let position = record.position;
                if !self.wants(&record.edge) {
                    continue;
                }
                let kind = catalog.kind(tenant, record.edge.key.kind).ok_or_else(|| {
                    tracing::error!(position = position.0, "a record of a kind that is not there");
                    Error::new(Code::Internal, "a record could not be read; it was logged")
                })?;
                events.push(Event::Record {
                    id: EventId { tenant, epoch: frame.epoch, position },
                    time: frame.time,
                    kind: kind.clone(),
                    record: record.clone(),
                });
            }
        }
        Ok(events)
    }

    fn wants(&self, record: &EdgeRecord) -> bool {
        let WatchQuery { tenant, kinds, ops, .. } = &self.query;
        record.key.tenant == *tenant
            && (kinds.is_empty() || kinds.iter().any(|kind| kind.id == record.key.kind))
            && (ops.is_empty() || ops.contains(&record.cause))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.metrics.watchers.dec();
    }
}

impl Event {
    fn is_record(&self) -> bool {
        matches!(self, Event::Record { .. })
    }
}

/// Where a watcher wants to begin: now, at the earliest, or after an event.
pub fn place_named(text: Option<&str>, tenant: TenantId) -> Result<TailFrom, Error> {
    match text {
        None | Some("now") => Ok(TailFrom::Now),
        Some("earliest") => Ok(TailFrom::Earliest),
        Some(text) => place_after("from (now, earliest or the id of an event)", text, tenant),
    }
}

/// The place after an event; `what` names its id in an error.
pub fn place_after(what: &str, text: &str, tenant: TenantId) -> Result<TailFrom, Error> {
    let id = EventId::parse(text, tenant);
    let id = id.map_err(|error| Error::invalid(format!("{what}: {}", error.message)))?;
    Ok(TailFrom::After(id))
}

pub fn op_named(name: &str) -> Result<Cause, Error> {
    Cause::ALL.into_iter().find(|cause| cause.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let known = Cause::ALL.map(Cause::name).join(", ");
        Error::invalid(format!("ops: there is no '{shown}'; it may be any of {known}"))
    })
}
