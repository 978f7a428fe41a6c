//! What an applier does beside applying: asks where the log ends, for the lag, brings dead letters
//! to their topic, each at least once, and, where a changefeed is the log, sees to the outbox.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::super::dead_letters::{DeadLetter, mark_published, unpublished};
use super::super::kafka::{BrokerError, LogSender, Offsets};
use super::super::sql::SqlError;
use super::batch::LogKind;
use super::draining_outbox::Drain;
use super::shared::ApplierShared;

/// How often the log's ends are asked for, and the outbox is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often letters are looked for that another instance left unpublished.
const LETTERS_LOOK: Duration = Duration::from_secs(15);
/// Letters sent at once.
const LETTERS_MAX: usize = 32;
/// How long the broker may take to have them for good.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
const REPORT_WAIT: Duration = Duration::from_millis(50);
/// All dead letters go to one partition: they are few.
const LETTER_PARTITION: u32 = 0;

#[derive(Debug, thiserror::Error)]
pub(super) enum ChoreError {
    #[error(transparent)]
    Sql(#[from] SqlError),
    #[error(transparent)]
    Log(#[from] BrokerError),
}

/// Runs until the applier stops.
pub(super) fn run(shared: &Arc<ApplierShared>) {
    let mut offsets = None;
    let mut sender = None;
    let mut drain = Drain::default();
    let mut letters_at = Instant::now();
    loop {
        if let Err(error) = ask_ends(shared, &mut offsets) {
            tracing::debug!(%error, "where the log ends is not known now");
        }
        if shared.letters_waiting.swap(false, Ordering::AcqRel) || letters_at <= Instant::now() {
            letters_at = Instant::now() + LETTERS_LOOK;
            if let Err(error) = publish(shared, &mut sender) {
                tracing::warn!(%error, "dead letters wait for their topic");
                letters_at = Instant::now() + LOOK;
                sender = None;
            }
        }
        if shared.place.source == LogKind::Ticdc
            && let Some(offsets) = &offsets
            && let Err(error) = drain.step(shared, offsets)
        {
            tracing::warn!(%error, "the outbox waits to be emptied");
        }
        if shared.signal.wait(LOOK) {
            return;
        }
    }
}

fn ask_ends(shared: &ApplierShared, offsets: &mut Option<Offsets>) -> Result<(), BrokerError> {
    let offsets = match offsets {
        Some(offsets) => offsets,
        None => offsets.insert(Offsets::open(&shared.kafka)?),
    };
    for (partition, end) in offsets.next(&shared.place.topic, &shared.partitions())? {
        shared.end_is(partition, end);
    }
    Ok(())
}

/// Sends what is unpublished and marks it when the broker has it; a crash between the two sends it
/// again. A letter that cannot be sent holds up no other.
fn publish(shared: &ApplierShared, sender: &mut Option<LogSender>) -> Result<(), ChoreError> {
    let mut after = 0;
    let mut failed = 0;
    loop {
        let letters = unpublished(&shared.database, after, LETTERS_MAX)?;
        let Some((last, _)) = letters.last() else { break };
        after = last.id;
        let sender = match sender {
            Some(sender) => sender,
            None => sender.insert(LogSender::open(&shared.kafka)?),
        };
        let sent = send(shared, sender, &letters)?;
        if !sent.is_empty() {
            mark_published(&shared.database, &sent)?;
            shared.counts.add(|counts| &counts.published, sent.len() as u64);
        }
        failed += letters.len() - sent.len();
        if shared.signal.is_stopped() {
            return Ok(());
        }
    }
    match failed {
        0 => Ok(()),
        failed => Err(BrokerError::Passing(format!("{failed} letters could not be sent")).into()),
    }
}

/// The ids of those that the broker has for good.
fn send(
    shared: &ApplierShared,
    sender: &LogSender,
    letters: &[(DeadLetter, Vec<u8>)],
) -> Result<Vec<u64>, BrokerError> {
    let mut waiting = 0;
    for (letter, value) in letters {
        let DeadLetter { topic, partition, position, topic_id, mark, .. } = letter;
        let key = format!("{topic}/{partition}/{position}/{:x}/{:x}", topic_id.0, mark.0);
        let topic = &shared.kafka.dead_letter_topic;
        if sender.send(topic, LETTER_PARTITION, Some(&key), value, letter.id)? {
            waiting += 1;
        }
    }
    let mut sent = Vec::new();
    let deadline = Instant::now() + SEND_TIMEOUT;
    while waiting > 0 && Instant::now() < deadline && !shared.signal.is_stopped() {
        for report in sender.reports(REPORT_WAIT) {
            waiting -= 1;
            match report.outcome {
                Ok(_) => sent.push(report.ticket),
                Err(error) => tracing::warn!(%error, "a dead letter was not sent"),
            }
        }
    }
    Ok(sent)
}
