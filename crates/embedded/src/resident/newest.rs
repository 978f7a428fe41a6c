//! The newest places of incoming lists that are asked for again and again, so that a celebrity's
//! first pages cost what anybody's cost. Kept right as rows are (`rows`): batches put places in and
//! take them out before their moment is published, and a list is taken only by readers whose moment
//! is not before its last change.

use std::sync::Arc;

use guanxi_core::snapshot::IncomingList;
use guanxi_model::Position;
use guanxi_model::page::PagePlace;
use parking_lot::RwLock;

use super::clock::{ClockKey, ClockTable, HEAP_BYTES, Weighed};
use super::planted::{ResidentBug, planted};
use super::{Figures, mixed};

const SHARDS: usize = 64;
/// Places of a list: ten pages of the usual length.
pub const PLACES_MAX: usize = 200;
/// Of those: a list that goes on behind fewer is read anew, and so many more come before the oldest
/// go, so that not each that comes drives one out.
const MARGIN_SHARE: usize = 4;

/// The beginning of a list, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewestPlaces {
    pub places: Vec<PagePlace>,
    /// Nothing comes behind them.
    pub is_whole: bool,
}

impl NewestPlaces {
    /// Whether this place would stand among them.
    fn reaches(&self, place: PagePlace) -> bool {
        self.is_whole || self.places.last().is_some_and(|floor| place >= *floor)
    }

    fn put(&mut self, place: PagePlace, places_max: usize) {
        let Err(at) = self.places.binary_search_by(|other| place.cmp(other)) else { return };
        self.places.insert(at, place);
        if self.places.len() > places_max + places_max / MARGIN_SHARE {
            self.places.truncate(places_max);
            self.is_whole = false;
        }
    }

    fn take_out(&mut self, place: PagePlace) {
        if let Ok(at) = self.places.binary_search_by(|other| place.cmp(other)) {
            self.places.remove(at);
        }
    }

    fn is_too_short(&self, places_max: usize) -> bool {
        !self.is_whole && self.places.len() < places_max / MARGIN_SHARE
    }
}

#[derive(Debug)]
enum KeptList {
    /// It was asked for once.
    Asked,
    /// The list, and the batch after which it is so.
    Known(Position, Arc<NewestPlaces>),
}

impl Weighed for KeptList {
    fn heap_bytes(&self) -> usize {
        match self {
            KeptList::Asked => 0,
            KeptList::Known(_, list) => {
                list.places.capacity() * size_of::<PagePlace>()
                    + size_of::<NewestPlaces>()
                    + 2 * HEAP_BYTES
            }
        }
    }
}

impl ClockKey for IncomingList {
    fn hash(&self) -> u64 {
        let of = u64::from(self.tenant.0) << 16 | u64::from(self.kind.0);
        mixed(mixed(of) ^ self.target.0)
    }
}

#[derive(Debug, Default)]
struct Shard {
    /// The last batch that touched any list of the shard.
    last: Position,
    lists: ClockTable<IncomingList, KeptList>,
}

#[derive(Debug)]
pub(crate) struct NewestLists {
    shards: Box<[RwLock<Shard>]>,
    shard_bytes_max: usize,
    places_max: usize,
}

/// What is known of a list.
pub(crate) enum Looked {
    Known(Arc<NewestPlaces>),
    /// It is worth reading its first places, to keep them.
    Wanted,
    Unknown,
}

impl NewestLists {
    /// With 0 bytes nothing is kept.
    pub fn new(bytes_max: u64, places_max: usize) -> NewestLists {
        let shards = std::iter::repeat_with(RwLock::<Shard>::default).take(SHARDS).collect();
        let shard_bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX) / SHARDS;
        NewestLists { shards, shard_bytes_max, places_max }
    }

    /// How many places a list is filled with.
    pub fn places_max(&self) -> usize {
        self.places_max
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    pub fn look(&self, list: &IncomingList, at: Position) -> Looked {
        let hash = list.hash();
        let shard = self.shard(hash).read();
        match shard.lists.get(list, hash) {
            Some(KeptList::Known(since, places)) if *since <= at => Looked::Known(places.clone()),
            // A batch has just changed it, and its moment comes at once.
            Some(KeptList::Known(..)) => Looked::Unknown,
            Some(KeptList::Asked) if shard.last <= at => Looked::Wanted,
            Some(KeptList::Asked) => Looked::Unknown,
            None => {
                drop(shard);
                self.note(list, hash);
                Looked::Unknown
            }
        }
    }

    /// Remembers that it was asked for.
    fn note(&self, list: &IncomingList, hash: u64) {
        let mut shard = self.shard(hash).write();
        if !shard.lists.contains(list, hash) {
            shard.lists.insert(*list, hash, KeptList::Asked, self.shard_bytes_max);
        }
    }

    /// Keeps what was read at this moment, if no batch has touched it since.
    pub fn fill(&self, list: &IncomingList, at: Position, places: Arc<NewestPlaces>) {
        let hash = list.hash();
        let mut shard = self.shard(hash).write();
        if shard.last > at && !planted(ResidentBug::StaleFill) {
            return;
        }
        let known = KeptList::Known(shard.last, places);
        shard.lists.remove(list, hash);
        shard.lists.insert(*list, hash, known, self.shard_bytes_max);
    }

    /// What a batch does to a list. Called for each place of a live list, kept or not.
    pub fn change(&self, list: &IncomingList, by: Position, place: PagePlace, comes: bool) {
        let hash = list.hash();
        let mut shard = self.shard(hash).write();
        shard.last = shard.last.max(by);
        let mut is_too_short = false;
        shard.lists.change(list, hash, |kept| {
            let KeptList::Known(since, places) = kept else { return };
            if !places.reaches(place) {
                return;
            }
            // Copied where a reader has it in hand.
            let places = Arc::make_mut(places);
            match comes {
                true => places.put(place, self.places_max),
                false if planted(ResidentBug::RemovalForgotten) => {}
                false => places.take_out(place),
            }
            is_too_short = places.is_too_short(self.places_max);
            *since = by;
        });
        if is_too_short {
            shard.lists.change(list, hash, |kept| *kept = KeptList::Asked);
        }
    }

    /// Forgets everything; what is put here from now on is of this position or later.
    pub fn clear(&self, last: Position) {
        for shard in &self.shards {
            *shard.write() = Shard { last, lists: ClockTable::default() };
        }
    }

    pub fn figures(&self) -> Figures {
        let mut figures = Figures::default();
        for shard in &self.shards {
            let shard = shard.read();
            figures.entries += shard.lists.len() as u64;
            figures.bytes += shard.lists.bytes() as u64;
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::{KindId, Millis, TargetId, TenantId};

    use super::*;

    const LIST: IncomingList =
        IncomingList { tenant: TenantId::DEFAULT, kind: KindId(1), target: TargetId(7) };

    fn place(since: u64, id: u64) -> PagePlace {
        PagePlace { since: Millis(since), id }
    }

    fn places(lists: &NewestLists, at: u64) -> Option<Arc<NewestPlaces>> {
        match lists.look(&LIST, Position(at)) {
            Looked::Known(places) => Some(places),
            _ => None,
        }
    }

    /// A list of so many places, of which the newest are kept.
    fn filled(count: u64) -> NewestLists {
        let lists = NewestLists::new(1 << 20, PLACES_MAX);
        assert!(matches!(lists.look(&LIST, Position(1)), Looked::Unknown));
        assert!(matches!(lists.look(&LIST, Position(1)), Looked::Wanted));
        let newest = (0..count).rev().take(PLACES_MAX).map(|n| place(n, n)).collect();
        let is_whole = count <= PLACES_MAX as u64;
        lists.fill(&LIST, Position(1), Arc::new(NewestPlaces { places: newest, is_whole }));
        lists
    }

    #[test]
    fn it_stays_the_beginning_of_the_list() {
        for count in [0, 3, 199, 200, 201, 1_000] {
            let lists = filled(count);
            let mut truth: std::collections::BTreeSet<PagePlace> =
                (0..count).map(|n| place(n, n)).collect();
            let mut random = fastrand::Rng::with_seed(count);
            let (mut known, mut dropped) = (0, 0);
            for position in 2..6_000 {
                let at = place(random.u64(..1_100), random.u64(..3));
                // Now and then most of what comes is removed.
                let comes = random.u8(..4) > if position % 2_000 < 1_000 { 0 } else { 2 };
                let changed = if comes { truth.insert(at) } else { truth.remove(&at) };
                if changed {
                    lists.change(&LIST, Position(position), at, comes);
                }
                let newest: Vec<PagePlace> = truth.iter().rev().copied().collect();
                match places(&lists, position) {
                    Some(found) => {
                        known += 1;
                        assert_eq!(found.places, newest[..found.places.len()]);
                        assert!(!found.is_whole || found.places.len() == newest.len());
                    }
                    None => {
                        dropped += 1;
                        let is_whole = newest.len() <= PLACES_MAX;
                        let places = newest.into_iter().take(PLACES_MAX).collect();
                        let places = NewestPlaces { places, is_whole };
                        lists.fill(&LIST, Position(position), Arc::new(places));
                    }
                }
            }
            assert!(known > 5_000, "{count}: {known} known, {dropped} dropped");
        }
    }

    #[test]
    fn a_reader_takes_nothing_newer_than_its_moment() {
        let lists = filled(10);
        let held = places(&lists, 1).unwrap();
        lists.change(&LIST, Position(5), place(50, 50), true);
        assert!(places(&lists, 4).is_none());
        assert_eq!(places(&lists, 5).unwrap().places.len(), 11);
        assert_eq!(held.places.len(), 10, "what a reader holds stays as it is");
        lists.clear(Position(9));
        lists.look(&LIST, Position(8));
        let none = NewestPlaces { places: Vec::new(), is_whole: true };
        lists.fill(&LIST, Position(8), Arc::new(none));
        assert!(places(&lists, 9).is_none(), "of before");
    }
}
