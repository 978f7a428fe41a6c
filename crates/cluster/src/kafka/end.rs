//! Where a topic ends now, as positions that know the record before them.

use std::time::{Duration, Instant};

use super::lineage::LogPosition;
use super::offsets::{Offsets, PartitionEnds};
use super::reader::{LogReader, ReadError};
use super::{BrokerError, KafkaSettings};

/// How long the last records may take to come. Where one does not, its position is given without
/// it, and is of use all the same.
const LAST_RECORDS_WAIT: Duration = Duration::from_secs(3);
/// Records taken at once; more than one of a partition come only where it grows meanwhile.
const TAKE_MAX: usize = 256;

/// The end of each of the topic's partitions.
pub fn end_positions(
    settings: &KafkaSettings,
    topic: &str,
) -> Result<Vec<LogPosition>, BrokerError> {
    let offsets = Offsets::open(settings)?;
    let id = offsets.topic_id(topic)?;
    let ends = offsets.all(topic, settings.partitions)?;
    let mut positions: Vec<LogPosition> =
        ends.iter().map(|ends| LogPosition::at(ends.end, id)).collect();
    let last = |(part, ends): (u32, &PartitionEnds)| {
        (ends.first < ends.end).then(|| (part, LogPosition::at(ends.end - 1, id)))
    };
    let last: Vec<(u32, LogPosition)> = (0..).zip(&ends).filter_map(last).collect();
    if last.is_empty() {
        return Ok(positions);
    }
    let mut left = last.len();
    let mut reader = LogReader::open(settings, topic, last)?;
    let deadline = Instant::now() + LAST_RECORDS_WAIT;
    while left > 0 && Instant::now() < deadline {
        let wait = deadline.saturating_duration_since(Instant::now());
        let taken = match reader.next(TAKE_MAX, wait) {
            Ok(taken) => taken,
            Err(ReadError::Log(error)) => return Err(error),
            // Whoever reads from the position finds out.
            Err(_) => break,
        };
        for one in taken {
            let position = &mut positions[one.partition as usize];
            if one.after.next == position.next && !position.before.is_known() {
                *position = one.after;
                left -= 1;
            }
        }
    }
    Ok(positions)
}
