//! Watching a cluster: places in its topic as callers hold them, and readers from there.

mod topic;

pub(super) use self::topic::TopicWatcher;

use guanxi_model::{ClusterEventId, Code, Error, TenantId};

use super::{Cluster, no_callers};
use crate::feed::{FeedError, FeedFrom, FeedReader};
use crate::kafka::{BrokerError, LogPosition, RecordMark, TopicId, end_positions};

impl Cluster {
    /// The event of this text. One of another log (another topic, a changefeed's instead of our
    /// own or the other way round) or of the time before a move into the cluster is not in this one.
    pub fn event(&self, text: &str, tenant: TenantId) -> Result<ClusterEventId, Error> {
        let expired = || {
            let message = "the event is of another log than this cluster has now; begin anew";
            Error::new(Code::PositionExpired, message)
        };
        let id = match ClusterEventId::parse(text, tenant, &self.secret) {
            Ok(id) => id,
            Err(_) if guanxi_model::EventId::parse(text, tenant, &self.secret).is_ok() => {
                let message = "the event is of the service's log before it moved into this \
                               cluster, which has a log of its own; begin anew: from now after an \
                               export, or from the earliest";
                return Err(Error::new(Code::PositionExpired, message));
            }
            Err(error) => return Err(error),
        };
        match id.log == self.log_mark() {
            true => Ok(id),
            false => Err(expired()),
        }
    }

    /// Begins to read the log. Asks the broker: for threads that may block.
    pub fn watch(&self, from: FeedFrom) -> Result<FeedReader, Error> {
        let Some(feed) = &self.parts.feed else {
            return Err(no_callers());
        };
        feed.begin(from).map_err(refusal)
    }

    /// The id of an event after which a watcher stands at these positions of one topic.
    pub fn event_id(&self, tenant: TenantId, positions: &[LogPosition]) -> ClusterEventId {
        let topic = positions.first().map_or(0, |at| at.topic.0);
        let next = positions.iter().map(|at| (at.next, at.before.0)).collect();
        ClusterEventId { tenant, log: self.log_mark(), topic, next }
    }

    /// Where the log ends now: everything that is in it before is committed. For threads that may
    /// block.
    pub fn place_now(&self, tenant: TenantId) -> Result<ClusterEventId, Error> {
        let kafka = &self.settings.kafka;
        let topic = self.settings.applied_topic();
        let ends = end_positions(kafka, topic).map_err(|error| refusal(FeedError::Log(error)))?;
        Ok(self.event_id(tenant, &ends))
    }

    fn log_mark(&self) -> u32 {
        match &self.settings.ticdc_topic {
            None => ClusterEventId::topic_mark(&self.settings.kafka.topic),
            Some(topic) => ClusterEventId::changefeed_mark(topic),
        }
    }
}

fn positions(id: &ClusterEventId) -> Vec<LogPosition> {
    let topic = TopicId(id.topic);
    let position =
        |(next, mark): &(u64, u32)| LogPosition { next: *next, topic, before: RecordMark(*mark) };
    id.next.iter().map(position).collect()
}

/// What a watcher is told.
fn refusal(error: FeedError) -> Error {
    match &error {
        FeedError::Expired { .. } | FeedError::Foreign { .. } => {
            let message = "the log no longer has what comes after this event; begin anew";
            Error::new(Code::PositionExpired, message)
        }
        FeedError::Busy => Error::new(Code::Overloaded, error.to_string()),
        FeedError::Log(BrokerError::Passing(_) | BrokerError::Permanent(_)) => {
            tracing::error!(%error, "the log could not be read");
            Error::new(Code::Unavailable, "the log cannot be reached; try again")
        }
    }
}
