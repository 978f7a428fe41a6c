use super::*;
use crate::kafka::{RecordMark, TopicId};

const TOPIC: TopicId = TopicId(7);

/// A place after the record of that offset less one.
fn place(next: u64) -> LogPosition {
    LogPosition { next, topic: TOPIC, before: RecordMark(next as u32 + 100) }
}

fn taken(partition: u32, from: u64, offset: u64) -> TakenRecord {
    let (from, after) = (place(from), place(offset + 1));
    TakenRecord { partition, offset, from, after, value: Vec::new() }
}

/// The offsets of each partition, or the partition at which they were refused.
fn offsets(
    own: &[(u32, LogPosition)],
    taken: Vec<TakenRecord>,
) -> Result<Vec<(u32, Vec<u64>)>, u32> {
    match following(&own.iter().copied().collect(), taken) {
        Ok(partitions) => Ok(partitions
            .into_iter()
            .map(|(part, (_, taken))| (part, taken.iter().map(|one| one.offset).collect()))
            .collect()),
        Err(TurnError::Elsewhere { partition, .. }) => Err(partition),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn records_that_do_not_follow_the_position_are_refused() {
    let own = [(0, place(5)), (1, place(9))];
    let both = vec![taken(0, 5, 5), taken(1, 9, 9), taken(0, 6, 6), taken(0, 7, 7)];
    assert_eq!(offsets(&own, both), Ok(vec![(0, vec![5, 6, 7]), (1, vec![9])]));
    // Offsets that hold no record are passed over by the log itself.
    assert_eq!(offsets(&own, vec![taken(0, 5, 8)]), Ok(vec![(0, vec![8])]));
    assert_eq!(offsets(&own, vec![taken(2, 4, 4)]), Ok(vec![]), "not ours");
    assert_eq!(offsets(&own, vec![taken(0, 5, 5), taken(1, 10, 10)]), Err(1), "9 is missing");
    assert_eq!(offsets(&own, vec![taken(0, 5, 5), taken(0, 7, 7)]), Err(0), "6 is missing");
    assert_eq!(offsets(&own, vec![taken(0, 4, 4)]), Err(0), "it was applied");
}

#[test]
fn records_of_another_log_are_refused() {
    let own = |position| [(0, position)];
    let one = vec![taken(0, 5, 5)];
    let unknown = LogPosition { topic: TopicId::UNKNOWN, ..place(5) };
    assert_eq!(offsets(&own(unknown), one.clone()), Ok(vec![(0, vec![5])]), "it is learned");
    let of_another = LogPosition { topic: TopicId(8), ..place(5) };
    assert_eq!(offsets(&own(of_another), one.clone()), Err(0));
    let after_another = LogPosition { before: RecordMark(1), ..place(5) };
    assert_eq!(offsets(&own(after_another), one), Err(0));
}
