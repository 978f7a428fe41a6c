//! A thread that reads a cluster's log for one watcher: reading it blocks.

use std::sync::Arc;
use std::time::Duration;

use guanxi_cluster::feed::{FeedFrom, FeedReader, FeedRecord};
use guanxi_cluster::instance::{Cluster, refusal};
use guanxi_cluster::kafka::LogPosition;
use guanxi_core::crew;
use guanxi_model::{Code, Error};
use tokio::sync::mpsc;

use crate::deployment;

/// Records that are read at once.
const RECORDS_MAX: usize = 256;
/// Readings that may wait for the watcher.
const AHEAD_MAX: usize = 2;
/// How long a reading waits; a watcher that has gone is noticed after this.
const WAIT: Duration = Duration::from_millis(500);

/// What one reading found, and the place after it.
type Read = Result<(Vec<FeedRecord>, Vec<LogPosition>), Error>;

#[derive(Debug)]
pub struct Pump {
    read: mpsc::Receiver<Read>,
    positions: Vec<LogPosition>,
}

impl Pump {
    /// Ends when it is dropped.
    pub async fn start(cluster: Arc<Cluster>, from: FeedFrom) -> Result<Pump, Error> {
        let reader = deployment::blocking(move || cluster.watch(from)).await?;
        let positions = reader.positions().to_vec();
        let (sender, read) = mpsc::channel(AHEAD_MAX);
        let thread = crew::aside("guanxi-watch", move || pump(reader, &sender));
        thread.map_err(|error| {
            tracing::error!(%error, "a watcher's thread could not be started");
            Error::new(Code::Unavailable, "the watch could not be started; try again")
        })?;
        Ok(Pump { read, positions })
    }

    /// The next records; none when the place moved past what is not for watchers.
    pub async fn next(&mut self) -> Result<Vec<FeedRecord>, Error> {
        // Without an error before it, only a panic ends the reading.
        let broken =
            || Error::new(Code::Internal, "the watch broke off; go on after the last event");
        let (records, positions) = self.read.recv().await.ok_or_else(broken)??;
        self.positions = positions;
        Ok(records)
    }

    /// The place after all that was given out.
    pub fn positions(&self) -> &[LogPosition] {
        &self.positions
    }
}

fn pump(mut reader: FeedReader, sender: &mpsc::Sender<Read>) {
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
