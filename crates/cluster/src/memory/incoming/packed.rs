//! The newest incoming edges of a target as one string: a token, the time of the reading, what it
//! is, then entries of fixed size, newest first. Pure.

use guanxi_core::snapshot::TimeRange;
use guanxi_model::Millis;
use guanxi_model::page::{Order, PagePlace};

use crate::memory::tallies::packed::{StringToken, TOKEN_BYTES};

/// Edges of a list up to which it is kept whole, and the longest page that is served of any list:
/// ten pages of the default size, in 3 KiB.
pub const ENTRIES_MAX: usize = 200;

/// Since and source.
const ENTRY_BYTES: usize = 16;
/// What a string is: only claimed, a list that goes on, a complete one.
const CLAIMED: u8 = 0;
const GOES_ON: u8 = 1;
const COMPLETE: u8 = 2;

/// What a string says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedIncoming {
    pub token: StringToken,
    /// When the database was asked, in milliseconds of the readers' clocks.
    pub read_ms: u64,
    /// None while it is only claimed.
    pub newest: Option<Newest>,
}

/// The newest live edges of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Newest {
    /// Newest first, without a gap; the id is the source's.
    pub entries: Vec<PagePlace>,
    /// Whether these are all.
    pub complete: bool,
}

impl PackedIncoming {
    pub fn encode(&self) -> Vec<u8> {
        let entries = self.newest.as_ref().map_or(&[][..], |newest| &newest.entries);
        let mut out = Vec::with_capacity(TOKEN_BYTES + 9 + entries.len() * ENTRY_BYTES);
        out.extend(self.token.0);
        out.extend(self.read_ms.to_be_bytes());
        out.push(match &self.newest {
            None => CLAIMED,
            Some(newest) if newest.complete => COMPLETE,
            Some(_) => GOES_ON,
        });
        for PagePlace { since, id } in entries {
            out.extend(since.0.to_be_bytes());
            out.extend(id.to_be_bytes());
        }
        out
    }

    /// None when it is not one of ours.
    pub fn decode(bytes: &[u8]) -> Option<PackedIncoming> {
        let (token, rest) = bytes.split_first_chunk::<TOKEN_BYTES>()?;
        let (read_ms, rest) = rest.split_first_chunk::<8>()?;
        let (what, rest) = rest.split_first()?;
        let (entries, rest) = rest.as_chunks::<ENTRY_BYTES>();
        let entries: Vec<PagePlace> = entries.iter().map(entry).collect::<Option<_>>()?;
        let newest = match *what {
            CLAIMED if entries.is_empty() => None,
            // A list without an edge is complete, or it is cut off.
            GOES_ON if !entries.is_empty() => Some(Newest { entries, complete: false }),
            COMPLETE => Some(Newest { entries, complete: true }),
            _ => return None,
        };
        let (token, read_ms) = (StringToken(*token), u64::from_be_bytes(*read_ms));
        rest.is_empty().then_some(PackedIncoming { token, read_ms, newest })
    }
}

fn entry(bytes: &[u8; ENTRY_BYTES]) -> Option<PagePlace> {
    let (since, id) = bytes.split_first_chunk::<8>()?;
    let id: &[u8; 8] = id.try_into().ok()?;
    Some(PagePlace { since: Millis(u64::from_be_bytes(*since)), id: u64::from_be_bytes(*id) })
}

/// Places of a part of a list, in the order that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestPart {
    pub places: Vec<PagePlace>,
    /// Whether there are no others behind them in that part.
    pub whole: bool,
}

impl Newest {
    /// A list without edges.
    pub fn none() -> Newest {
        Newest { entries: Vec::new(), complete: true }
    }

    /// The places of this part of the list, if there are so many of them, or all.
    pub fn part(&self, range: &TimeRange, places_min: usize) -> Option<NewestPart> {
        let wanted = |place: &PagePlace| {
            range.since.is_none_or(|since| place.since >= since)
                && range.until.is_none_or(|until| place.since < until)
                && range.after.is_none_or(|after| place.is_after(after, range.order))
        };
        let mut places: Vec<PagePlace> = self.entries.iter().copied().filter(wanted).collect();
        // All that is not here is older than the last that is.
        let floor = self.entries.last();
        let above_floor = |since: Millis| floor.is_some_and(|floor| floor.since < since);
        let whole = self.complete || range.since.is_some_and(above_floor);
        match range.order {
            Order::Newest if whole || places.len() >= places_min => {}
            Order::Oldest if whole => places.reverse(),
            Order::Newest | Order::Oldest => return None,
        }
        Some(NewestPart { places, whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(since: u64, id: u64) -> PagePlace {
        PagePlace { since: Millis(since), id }
    }

    #[test]
    fn a_string_is_read_as_it_was_written() {
        let entries = vec![place(1 << 47, u64::MAX), place(9, 2), place(9, 1)];
        for newest in [
            None,
            Some(Newest { entries: entries.clone(), complete: true }),
            Some(Newest { entries, complete: false }),
            Some(Newest { entries: Vec::new(), complete: true }),
        ] {
            let packed = PackedIncoming { token: StringToken([7; 8]), read_ms: 1 << 41, newest };
            let bytes = packed.encode();
            assert_eq!(PackedIncoming::decode(&bytes), Some(packed));
            assert_eq!(PackedIncoming::decode(&bytes[..bytes.len() - 1]), None);
            assert_eq!(PackedIncoming::decode(&[&bytes[..], &[0]].concat()), None);
        }
        let odd = |what: u8, entries: usize| {
            let mut bytes = vec![0; 16];
            bytes.push(what);
            bytes.extend(vec![0; entries * ENTRY_BYTES]);
            PackedIncoming::decode(&bytes)
        };
        assert_eq!(odd(CLAIMED, 1), None);
        assert_eq!(odd(GOES_ON, 0), None);
        assert_eq!(odd(3, 1), None);
    }

    /// The parts of a list that are asked for: between all times, behind all places.
    fn ranges(all: &[PagePlace]) -> Vec<TimeRange> {
        let times = || [None].into_iter().chain((0..11).map(|time| Some(Millis(time))));
        let cursors = || {
            let beside = [None, Some(place(5, 5))];
            beside.into_iter().chain(all.iter().copied().map(Some))
        };
        let mut ranges = Vec::new();
        for order in [Order::Newest, Order::Oldest] {
            for since in times() {
                for until in times() {
                    for after in cursors() {
                        ranges.push(TimeRange { since, until, after, order });
                    }
                }
            }
        }
        ranges
    }

    /// Every part of every prefix of a list, against the list itself: what is served is what a walk
    /// of the whole list shows, and a prefix that ends too early serves nothing.
    #[test]
    fn a_part_is_what_the_whole_list_shows_or_none() {
        // Newest first, with ties.
        let all = [(9, 4), (7, 9), (7, 5), (7, 2), (4, 8), (4, 1), (2, 6)];
        let all: Vec<PagePlace> = all.into_iter().map(|(since, id)| place(since, id)).collect();
        let (mut served, mut refused) = (0, 0);
        for range in ranges(&all) {
            let within = |place: &&PagePlace| {
                range.since.is_none_or(|since| place.since >= since)
                    && range.until.is_none_or(|until| place.since < until)
                    && range.after.is_none_or(|after| place.is_after(after, range.order))
            };
            let mut right: Vec<PagePlace> = all.iter().filter(within).copied().collect();
            if range.order == Order::Oldest {
                right.reverse();
            }
            for (kept, places) in (0..=all.len()).flat_map(|kept| (1..4).map(move |n| (kept, n))) {
                let complete = kept == all.len();
                let newest = Newest { entries: all[..kept].to_vec(), complete };
                let Some(part) = newest.part(&range, places) else {
                    assert!(!complete, "{range:?}");
                    refused += 1;
                    continue;
                };
                served += 1;
                let shown = if part.whole { right.len() } else { part.places.len() };
                assert!(part.whole || shown >= places, "{range:?}");
                assert_eq!(part.places, right[..shown], "{kept} {range:?}");
            }
        }
        assert!(served > 1_000 && refused > 1_000, "{served} {refused}");
    }
}
