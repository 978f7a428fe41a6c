//! Watching: the edge records of one tenant as events, filtered, with heartbeats in between. It
//! knows no protocol; HTTP and gRPC turn the events into what they send.

mod pump;

use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::feed::{FeedEvent, FeedFrom, FeedRecord};
use guanxi_cluster::instance::Cluster;
use guanxi_embedded::{Engine, Tail, TailFrame, TailFrom, TailRecord};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{
    Catalog, ClusterEventId, Code, Error, EventId, Kind, Millis, Position, Secret, TenantId,
};
use tokio::time::Instant;

use self::pump::Pump;
use super::Caller;
use super::streams::Sender;
use crate::deployment::Deployment;
use crate::telemetry::Metrics;

/// Events that are rendered and sent together.
const EVENTS_TOGETHER_MAX: usize = 64;
/// How long the database may take to tell of a kind that a record is the first of.
const NAMES_WAIT: Duration = Duration::from_secs(5);
/// How much of a wrong word an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Where a watcher wants to begin, in the log of the deployment that it asks.
#[derive(Debug, Clone)]
enum WatchFrom {
    Log(TailFrom),
    Topic(FeedFrom),
}

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
pub struct Asked(WatchQuery);

/// Looks up what a watcher names.
pub async fn ask(caller: &Caller, request: &WatchRequest<'_>) -> Result<Asked, Error> {
    let mut kinds = Vec::with_capacity(request.kinds.len());
    for name in &request.kinds {
        let kind = caller.kind_named(name).await?;
        kind.require_edges()?;
        kinds.push(kind);
    }
    let ops = request.ops.iter().map(|name| op_named(name)).collect::<Result<_, Error>>()?;
    let deployment = &caller.app.deployment;
    let named = place_named(deployment, request.from, caller.tenant)?;
    let from = match request.after {
        Some((what, id)) => place_after(deployment, what, id, caller.tenant)?,
        None => named,
    };
    Ok(Asked(WatchQuery { tenant: caller.tenant, from, kinds, ops }))
}

#[derive(Debug, Clone)]
pub enum Event {
    Record {
        id: PlaceId,
        time: Millis,
        kind: Arc<Kind>,
        record: WatchedRecord,
    },
    /// Nothing was sent for a while; everything up to here has been looked at.
    Heartbeat {
        id: PlaceId,
    },
}

/// An event's id, made into text only where it is sent.
#[derive(Debug, Clone)]
pub enum PlaceId {
    Log(EventId),
    Topic(ClusterEventId),
}

impl PlaceId {
    pub fn to_text(&self, secret: &Secret) -> String {
        match self {
            PlaceId::Log(id) => id.to_text(secret),
            PlaceId::Topic(id) => id.to_text(secret),
        }
    }
}

#[derive(Debug, Clone)]
pub enum WatchedRecord {
    Log(Arc<TailRecord>),
    Topic(Arc<FeedEvent>),
}

impl WatchedRecord {
    pub fn edge(&self) -> &EdgeRecord {
        match self {
            WatchedRecord::Log(record) => &record.edge,
            WatchedRecord::Topic(event) => &event.record,
        }
    }
}

/// One watcher at its place in the log.
#[derive(Debug)]
pub struct Watch {
    metrics: Arc<Metrics>,
    query: WatchQuery,
    source: Source,
    heartbeat: Duration,
    /// When the next heartbeat is due.
    due: Instant,
}

#[derive(Debug)]
enum Source {
    Log { engine: Arc<Engine>, tail: Tail },
    Topic { cluster: Arc<Cluster>, pump: Pump },
}

impl Watch {
    /// Refuses a place that the log no longer has, so that a stream begins only where it can.
    pub async fn begin(caller: &Caller, Asked(query): Asked) -> Result<Watch, Error> {
        caller.meet().await?;
        let (metrics, heartbeat) = (caller.app.metrics.clone(), caller.app.heartbeat);
        let source = match (caller.app.deployment.clone(), &query.from) {
            (Deployment::Embedded(engine), WatchFrom::Log(from)) => {
                let tail = engine.tail(*from)?;
                Source::Log { engine, tail }
            }
            (Deployment::Cluster(cluster), WatchFrom::Topic(from)) => {
                let pump = Pump::start(cluster.clone(), from.clone()).await?;
                Source::Topic { cluster, pump }
            }
            _ => return Err(Error::new(Code::Internal, "the place is of another deployment")),
        };
        metrics.watchers.inc();
        // The first one is due at once: it tells the reader where it is.
        Ok(Watch { metrics, query, source, heartbeat, due: Instant::now() })
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
            let events = match &mut self.source {
                Source::Log { engine, tail } => {
                    let seen = tail.position();
                    let frames = tokio::select! {
                        biased;
                        () = reached(self.due) => None,
                        frames = tail.next() => Some(frames?),
                    };
                    match frames {
                        None => {
                            let now = EventId::from(engine.token(self.query.tenant));
                            let id = EventId { position: tail.position(), ..now };
                            vec![Event::Heartbeat { id: PlaceId::Log(id) }]
                        }
                        Some(frames) => {
                            let catalog = engine.catalog();
                            self.query.of_frames(&catalog, &frames, seen)?
                        }
                    }
                }
                Source::Topic { cluster, pump } => {
                    let records = tokio::select! {
                        biased;
                        () = reached(self.due) => None,
                        records = pump.next() => Some(records?),
                    };
                    match records {
                        None => {
                            let id = cluster.event_id(self.query.tenant, pump.positions());
                            vec![Event::Heartbeat { id: PlaceId::Topic(id) }]
                        }
                        Some(records) => self.query.of_topic(cluster, &records).await?,
                    }
                }
            };
            if !events.is_empty() {
                self.due = Instant::now() + self.heartbeat;
                return Ok(events);
            }
        }
    }
}

impl WatchQuery {
    fn of_frames(
        &self,
        catalog: &Catalog,
        frames: &[Arc<TailFrame>],
        seen: Position,
    ) -> Result<Vec<Event>, Error> {
        let tenant = self.tenant;
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
                    id: PlaceId::Log(EventId { tenant, epoch: frame.epoch, position }),
                    time: frame.time,
                    kind: kind.clone(),
                    record: WatchedRecord::Log(record.clone()),
                });
            }
        }
        Ok(events)
    }

    /// Records of the topic, whose kinds may be newer than what this instance knows.
    async fn of_topic(
        &self,
        cluster: &Arc<Cluster>,
        records: &[FeedRecord],
    ) -> Result<Vec<Event>, Error> {
        let mut catalog = cluster.catalog();
        let mut events = Vec::new();
        for FeedRecord { event, partition, offset, after } in records {
            if !self.wants(&event.record) {
                continue;
            }
            let kind = event.record.key.kind;
            if catalog.kind(self.tenant, kind).is_none() {
                cluster.look_for_names((Instant::now() + NAMES_WAIT).into_std()).await?;
                catalog = cluster.catalog();
            }
            let Some(kind) = catalog.kind(self.tenant, kind) else {
                tracing::warn!(partition, offset, "watchers pass over a record of no known kind");
                continue;
            };
            events.push(Event::Record {
                id: PlaceId::Topic(cluster.event_id(self.tenant, after)),
                time: event.time,
                kind: kind.clone(),
                record: WatchedRecord::Topic(event.clone()),
            });
        }
        Ok(events)
    }

    fn wants(&self, record: &EdgeRecord) -> bool {
        let WatchQuery { tenant, kinds, ops, .. } = self;
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

/// A timer alone ends only with the millisecond, and the first heartbeat comes before any record.
async fn reached(due: Instant) {
    if Instant::now() < due {
        tokio::time::sleep_until(due).await;
    }
}

/// Where a watcher wants to begin: now, at the earliest, or after an event.
fn place_named(
    deployment: &Deployment,
    text: Option<&str>,
    tenant: TenantId,
) -> Result<WatchFrom, Error> {
    let either = |log: TailFrom, topic: FeedFrom| match deployment {
        Deployment::Embedded(_) => WatchFrom::Log(log),
        Deployment::Cluster(_) => WatchFrom::Topic(topic),
    };
    match text {
        None | Some("now") => Ok(either(TailFrom::Now, FeedFrom::Now)),
        Some("earliest") => Ok(either(TailFrom::Earliest, FeedFrom::Earliest)),
        Some(text) => {
            place_after(deployment, "from (now, earliest or the id of an event)", text, tenant)
        }
    }
}

/// The place after an event; `what` names its id in an error.
fn place_after(
    deployment: &Deployment,
    what: &str,
    text: &str,
    tenant: TenantId,
) -> Result<WatchFrom, Error> {
    let place = match deployment {
        Deployment::Embedded(engine) => EventId::parse(text, tenant, engine.secret())
            .map(|id| WatchFrom::Log(TailFrom::After(id))),
        Deployment::Cluster(cluster) => cluster.feed_from(text, tenant).map(WatchFrom::Topic),
    };
    place.map_err(|error| Error { message: format!("{what}: {}", error.message), ..error })
}

fn op_named(name: &str) -> Result<Cause, Error> {
    Cause::ALL.into_iter().find(|cause| cause.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let known = Cause::ALL.map(Cause::name).join(", ");
        Error::invalid(format!("ops: there is no '{shown}'; it may be any of {known}"))
    })
}
