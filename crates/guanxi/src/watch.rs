//! Watching: the edge records of one tenant as events, filtered, with heartbeats in between. It
//! knows no protocol; HTTP and gRPC turn the events into what they send.

mod pump;

use std::sync::Arc;
use std::time::Duration;

use guanxi_engine::cluster::feed::{FeedEvent, FeedFrom, FeedRecord};
use guanxi_engine::cluster::instance::Cluster;
use guanxi_engine::{Engine, Tail, TailFrame, TailFrom, TailRecord};
use guanxi_model::record::{Cause, EdgeRecord};
use guanxi_model::{
    Catalog, ClusterEventId, Code, Error, EventId, Kind, Millis, Position, Secret, TenantId,
};
use tokio::time::Instant;

use self::pump::Pump;
use crate::deployment::Deployment;
use crate::http::stream::Sender;
use crate::telemetry::Metrics;

/// Events that are rendered and sent together.
const EVENTS_TOGETHER_MAX: usize = 64;
/// How long the database may take to tell of a kind that a record is the first of.
const NAMES_WAIT: Duration = Duration::from_secs(5);
/// How much of a wrong word an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Where a watcher wants to begin, in the log of the deployment that it asks.
#[derive(Debug, Clone)]
pub enum WatchFrom {
    Log(TailFrom),
    Topic(FeedFrom),
}

/// What a watcher asks for.
#[derive(Debug)]
pub struct WatchQuery {
    pub tenant: TenantId,
    pub from: WatchFrom,
    /// Only records of these; empty: of all.
    pub kinds: Vec<Arc<Kind>>,
    /// Only records of these; empty: of all.
    pub ops: Vec<Cause>,
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
    pub async fn begin(
        deployment: Deployment,
        metrics: Arc<Metrics>,
        query: WatchQuery,
        heartbeat: Duration,
    ) -> Result<Watch, Error> {
        let source = match (deployment, &query.from) {
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
pub fn place_named(
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
pub fn place_after(
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

pub fn op_named(name: &str) -> Result<Cause, Error> {
    Cause::ALL.into_iter().find(|cause| cause.name() == name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let known = Cause::ALL.map(Cause::name).join(", ");
        Error::invalid(format!("ops: there is no '{shown}'; it may be any of {known}"))
    })
}
