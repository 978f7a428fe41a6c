//! A watcher of the topic. A thread reads the log for it, as reading it blocks.

use std::sync::Arc;
use std::time::Duration;

use guanxi_core::crew;
use guanxi_core::deployment::{Eventually, SharedRecord, WatchFrom, Watched, Watcher, with_place};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{AnyEventId, Code, Error, TenantId};
use tokio::sync::mpsc;

use super::{positions, refusal};
use crate::feed::{FeedEvent, FeedFrom, FeedReader, FeedRecord};
use crate::instance::Cluster;
use crate::kafka::LogPosition;

/// Records that are read at once.
const RECORDS_MAX: usize = 256;
/// Readings that may wait for the watcher.
const AHEAD_MAX: usize = 2;
/// How long a reading waits; a watcher that has gone is noticed after this.
const WAIT: Duration = Duration::from_millis(500);

/// What one reading found, and the place after it.
type TopicRead = Result<(Vec<FeedRecord>, Vec<LogPosition>), Error>;

#[derive(Debug)]
pub(in crate::instance) struct TopicWatcher {
    cluster: Arc<Cluster>,
    tenant: TenantId,
    read: mpsc::Receiver<TopicRead>,
    /// The place after all that was given out.
    positions: Vec<LogPosition>,
}

impl TopicWatcher {
    /// The thread ends when it is dropped.
    pub async fn begin(
        cluster: Arc<Cluster>,
        tenant: TenantId,
        from: WatchFrom,
    ) -> Result<TopicWatcher, Error> {
        let from = match from {
            WatchFrom::Now => FeedFrom::Now,
            WatchFrom::Earliest => FeedFrom::Earliest,
            WatchFrom::After(AnyEventId::Cluster(id)) => FeedFrom::At(positions(&id)),
            WatchFrom::After(AnyEventId::Embedded(_)) => {
                return Err(Error::new(Code::Internal, "the place is of an embedded service"));
            }
        };
        let own = cluster.clone();
        let reader = with_place((), move || own.watch(from)).await?;
        let positions = reader.positions().to_vec();
        let (sender, read) = mpsc::channel(AHEAD_MAX);
        let thread = crew::aside("guanxi-watch", move || read_on(reader, &sender));
        thread.map_err(|error| {
            tracing::error!(%error, "a watcher's thread could not be started");
            Error::new(Code::Unavailable, "the watch could not be started; try again")
        })?;
        Ok(TopicWatcher { cluster, tenant, read, positions })
    }
}

impl Watcher for TopicWatcher {
    fn next<'a>(
        &'a mut self,
        wants: &'a (dyn Fn(&EdgeRecord) -> bool + Sync),
    ) -> Eventually<'a, Result<Vec<Watched>, Error>> {
        Box::pin(async move {
            // Without an error before it, only a panic ends the reading.
            let broken =
                || Error::new(Code::Internal, "the watch broke off; go on after the last event");
            let (records, positions) = self.read.recv().await.ok_or_else(broken)??;
            self.positions = positions;
            let wanted = records.into_iter().filter(|record| wants(&record.event.record));
            let watched = wanted.map(|FeedRecord { event, after, .. }| Watched {
                id: AnyEventId::Cluster(self.cluster.event_id(self.tenant, &after)),
                time: event.time,
                record: event,
            });
            Ok(watched.collect())
        })
    }

    fn place(&self) -> AnyEventId {
        AnyEventId::Cluster(self.cluster.event_id(self.tenant, &self.positions))
    }
}

/// Its id depends on what the watcher has read of other partitions, so each sends it anew.
impl SharedRecord for FeedEvent {
    fn edge(&self) -> &EdgeRecord {
        &self.record
    }
}

fn read_on(mut reader: FeedReader, sender: &mpsc::Sender<TopicRead>) {
    let mut told = reader.positions().to_vec();
    while !sender.is_closed() {
        let read = match reader.next(RECORDS_MAX, WAIT) {
            Ok(records) if records.is_empty() && reader.positions() == told => continue,
            Ok(records) => {
                told = reader.positions().to_vec();
                Ok((records, told.clone()))
            }
            Err(error) => Err(refusal(error)),
        };
        let failed = read.is_err();
        if sender.blocking_send(read).is_err() || failed {
            return;
        }
    }
}
