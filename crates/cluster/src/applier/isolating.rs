//! Finds the record that the database refuses for what it says, so that only that one is given up.
//! A batch is halved until the culprit stands alone; everything else is applied as it came.

use super::super::sql::SqlError;
use super::batch::{ApplyItem, BatchOutcome, Slice};

/// What servers answer when a value does not fit its column or its table's rules. Anything else
/// (no space, read only, a missing table, a missing right) is not the record's fault: it is tried
/// again until someone has mended it, and never passed by.
const ROW_CODES: [u16; 10] = [1048, 1264, 1265, 1292, 1366, 1406, 1690, 3819, 4025, 8141];

/// Whether the database refuses a row for what it says.
pub(crate) fn blames_a_row(error: &SqlError) -> bool {
    matches!(error, SqlError::Refused(_))
        && error.code().is_some_and(|code| ROW_CODES.contains(&code))
}

/// Applies slices; records that the database refuses become dead letters.
pub(crate) fn apply_isolating(
    slices: Vec<Slice>,
    apply: &mut impl FnMut(&[Slice]) -> Result<BatchOutcome, SqlError>,
) -> Result<BatchOutcome, SqlError> {
    let refused = match apply(&slices) {
        Err(error) if blames_a_row(&error) => error,
        other => return other,
    };
    let count: usize = slices.iter().map(|slice| slice.items.len()).sum();
    if count <= 1 {
        return apply(&given_up(slices, &refused));
    }
    let (first, second) = halved(slices, count / 2);
    let mut applied = apply_isolating(first, apply)?;
    if !applied.lost.is_empty() {
        return Ok(applied);
    }
    // A partition that was found to be another's stays so.
    let second: Vec<Slice> =
        second.into_iter().filter(|slice| !applied.foreign.contains(&slice.partition)).collect();
    if !second.is_empty() {
        let rest = apply_isolating(second, apply)?;
        applied.foreign.extend(rest.foreign);
        applied.lost = rest.lost;
        applied.records += rest.records;
        applied.stale += rest.stale;
        applied.dead += rest.dead;
    }
    Ok(applied)
}

/// The only record of the slices, as one that can never be applied.
fn given_up(mut slices: Vec<Slice>, refused: &SqlError) -> Vec<Slice> {
    for placed in slices.iter_mut().flat_map(|slice| &mut slice.items) {
        let edge = placed.item.edge();
        placed.item =
            ApplyItem::Dead { edge, cause: format!("its row does not fit the table: {refused}") };
    }
    slices
}

/// The first `count` records, and the rest.
fn halved(slices: Vec<Slice>, count: usize) -> (Vec<Slice>, Vec<Slice>) {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let mut left = count;
    for mut slice in slices {
        if slice.items.len() <= left {
            left -= slice.items.len();
            first.push(slice);
        } else if left == 0 {
            second.push(slice);
        } else {
            let rest = slice.items.split_off(left);
            left = 0;
            let cut = slice.items.last().map_or(slice.expected, |placed| placed.after);
            let (partition, next) = (slice.partition, slice.next);
            second.push(Slice { partition, expected: cut, items: rest, next });
            slice.next = cut;
            first.push(slice);
        }
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::super::batch::Placed;
    use super::*;

    fn slice(partition: u32, positions: std::ops::Range<u64>) -> Slice {
        let items = positions.clone().map(|position| Placed {
            position,
            after: (position + 1).into(),
            item: ApplyItem::Nothing,
            value: Vec::new(),
        });
        let (expected, next) = (positions.start.into(), positions.end.into());
        Slice { partition, expected, items: items.collect(), next }
    }

    /// A database that refuses some positions and keeps the others' order.
    #[derive(Default)]
    struct Picky {
        poison: Vec<(u32, u64)>,
        next: std::collections::BTreeMap<u32, u64>,
        dead: Vec<(u32, u64)>,
        done: u64,
    }

    impl Picky {
        fn apply(&mut self, slices: &[Slice]) -> Result<BatchOutcome, SqlError> {
            for slice in slices {
                for placed in &slice.items {
                    let place = (slice.partition, placed.position);
                    if self.poison.contains(&place)
                        && !matches!(placed.item, ApplyItem::Dead { .. })
                    {
                        return Err(SqlError::Refused("ERROR 1264 (22003): out of range".into()));
                    }
                }
            }
            for slice in slices {
                let next = self.next.entry(slice.partition).or_insert(slice.expected.next);
                assert_eq!(*next, slice.expected.next, "a gap in partition {}", slice.partition);
                *next = slice.next.next;
                for placed in &slice.items {
                    self.done += 1;
                    if matches!(placed.item, ApplyItem::Dead { .. }) {
                        self.dead.push((slice.partition, placed.position));
                    }
                }
            }
            Ok(BatchOutcome::default())
        }
    }

    #[test]
    fn only_the_culprits_are_given_up() {
        for poison in [vec![], vec![(0, 10)], vec![(1, 9), (1, 5), (0, 12)], vec![(2, 7)]] {
            let mut picky = Picky { poison: poison.clone(), ..Picky::default() };
            let slices = vec![slice(0, 10..13), slice(1, 5..10), slice(2, 7..8)];
            apply_isolating(slices, &mut |slices| picky.apply(slices)).unwrap();
            let mut dead = picky.dead.clone();
            dead.sort_unstable();
            let mut expected = poison;
            expected.sort_unstable();
            assert_eq!(dead, expected);
            assert_eq!(picky.done, 9);
            assert_eq!(picky.next, [(0, 13), (1, 10), (2, 8)].into_iter().collect());
        }
    }

    #[test]
    fn an_error_of_the_database_gives_nothing_up() {
        for error in [
            SqlError::Refused("ERROR 1114 (HY000): The table is full".into()),
            SqlError::Refused("ERROR 1146 (42S02): Table doesn't exist".into()),
            SqlError::Refused("column 3 of a row is not what it should be".into()),
            SqlError::Busy("ERROR 1213 (40001): Deadlock".into()),
            SqlError::Lost("gone".into()),
        ] {
            let mut tries = 0;
            let given = error.clone();
            let result = apply_isolating(vec![slice(0, 0..4)], &mut |_| {
                tries += 1;
                Err(given.clone())
            });
            assert_eq!(result.unwrap_err().to_string(), error.to_string());
            assert_eq!(tries, 1);
        }
    }
}
