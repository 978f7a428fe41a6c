//! Stores with a planted bug each, over the memory backend: the suite must fail every one of them.
//! Without a bug the same wrapper passes, so it is the bug that is caught.

use std::cell::RefCell;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use guanxi_core::snapshot::StoreError;

use super::{Reopenable, Subject, run, run_reopened, with_all_at_hand};
use crate::resident::{ResidentBug, plant};
use crate::store::KeyedStore;
use crate::store::keyed::{Backend, KeyView, KeyWrite, VisitKey};
use crate::store::memory::{MemoryBackend, MemoryView};

type PlantedKey = Vec<u8>;

/// The first byte of the keys that a bug is about, as `layout` has them.
mod table {
    pub const APPLIED: u8 = 0x01;
    pub const INCOMING: u8 = 0x11;
    pub const OUTGOING: u8 = 0x12;
    pub const EXPIRY: u8 = 0x13;
    pub const NODE: u8 = 0x20;
    pub const NEXT_GROUP: u8 = 0x31;
    pub const KIND: u8 = 0x50;
    pub const IDEMPOTENCY: u8 = 0x60;
    pub const IMPORT: u8 = 0x68;
    pub const JOB: u8 = 0x70;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreBug {
    LosesIncomingRemoval,
    KeepsExpiredEntries,
    LosesOutgoingEntries,
    /// The position is a write of its own, after the rows.
    WritesPositionOutsideTheBatch,
    /// Tallies are a write of their own before the rows, so that a replay adds them once more.
    AddsTalliesOnReplay,
    BreaksTiesTheWrongWay,
    StopsBeforeTheLastOfATie,
    MovesItsSnapshots,
    WritesABatchByHalves,
    KeepsOnlyTheFirstPart,
    ForgetsGroupIds,
    ForgetsKinds,
    LosesSettings,
    ForgetsImports,
    ListsJobsOldestFirst,
    PersistsNothing,
}

const BUGS: [StoreBug; 16] = [
    StoreBug::LosesIncomingRemoval,
    StoreBug::KeepsExpiredEntries,
    StoreBug::LosesOutgoingEntries,
    StoreBug::WritesPositionOutsideTheBatch,
    StoreBug::AddsTalliesOnReplay,
    StoreBug::BreaksTiesTheWrongWay,
    StoreBug::StopsBeforeTheLastOfATie,
    StoreBug::MovesItsSnapshots,
    StoreBug::WritesABatchByHalves,
    StoreBug::KeepsOnlyTheFirstPart,
    StoreBug::ForgetsGroupIds,
    StoreBug::ForgetsKinds,
    StoreBug::LosesSettings,
    StoreBug::ForgetsImports,
    StoreBug::ListsJobsOldestFirst,
    StoreBug::PersistsNothing,
];

#[derive(Debug)]
struct PlantedBackend {
    memory: Arc<MemoryBackend>,
    bug: Option<StoreBug>,
}

impl PlantedBackend {
    fn new(memory: MemoryBackend, bug: Option<StoreBug>) -> PlantedBackend {
        PlantedBackend { memory: Arc::new(memory), bug }
    }

    /// Whether the bug swallows this entry.
    fn loses(&self, (key, value): &KeyWrite) -> bool {
        let (table, removal) = (key[0], value.is_none());
        match self.bug {
            Some(StoreBug::LosesIncomingRemoval) => table == table::INCOMING && removal,
            Some(StoreBug::KeepsExpiredEntries) => table == table::EXPIRY && removal,
            Some(StoreBug::LosesOutgoingEntries) => table == table::OUTGOING && !removal,
            Some(StoreBug::KeepsOnlyTheFirstPart) => {
                table == table::IDEMPOTENCY && !key.ends_with(&[0, 0])
            }
            Some(StoreBug::ForgetsGroupIds) => table == table::NEXT_GROUP,
            Some(StoreBug::ForgetsKinds) => table == table::KIND,
            Some(StoreBug::LosesSettings) => table == table::NODE,
            Some(StoreBug::ForgetsImports) => table == table::IMPORT,
            _ => false,
        }
    }
}

impl Backend for PlantedBackend {
    type View = PlantedView;

    fn view(&self) -> PlantedView {
        PlantedView { taken: self.memory.view(), memory: self.memory.clone(), bug: self.bug }
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        let mut entries = entries.to_vec();
        entries.retain(|entry| !self.loses(entry));
        let later = match self.bug {
            Some(StoreBug::WritesPositionOutsideTheBatch) => {
                apart(&mut entries, |table| table != table::APPLIED)
            }
            Some(StoreBug::AddsTalliesOnReplay) => {
                apart(&mut entries, |table| table == table::NODE)
            }
            Some(StoreBug::WritesABatchByHalves) => entries.split_off(entries.len() / 2),
            _ => return self.memory.write(&entries),
        };
        self.memory.write(&entries)?;
        std::thread::yield_now();
        self.memory.write(&later)
    }

    fn persist(&self) -> Result<(), StoreError> {
        match self.bug {
            Some(StoreBug::PersistsNothing) => Ok(()),
            _ => self.memory.persist(),
        }
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
}

/// Takes out of the entries those of other tables than the ones that go first.
fn apart(entries: &mut Vec<KeyWrite>, goes_first: impl Fn(u8) -> bool) -> Vec<KeyWrite> {
    entries.extract_if(.., |(key, _)| !goes_first(key[0])).collect()
}

#[derive(Debug)]
struct PlantedView {
    taken: MemoryView,
    memory: Arc<MemoryBackend>,
    bug: Option<StoreBug>,
}

impl PlantedView {
    fn all(
        &self,
        range: (Bound<PlantedKey>, Bound<PlantedKey>),
        reverse: bool,
    ) -> Result<Vec<(PlantedKey, Vec<u8>)>, StoreError> {
        let mut all = Vec::new();
        let mut gather = |key: &[u8], value: &[u8]| {
            all.push((key.to_vec(), value.to_vec()));
            Ok(ControlFlow::Continue(()))
        };
        match self.bug {
            Some(StoreBug::MovesItsSnapshots) => {
                self.memory.view().range(range, reverse, &mut gather)?;
            }
            _ => self.taken.range(range, reverse, &mut gather)?,
        }
        Ok(all)
    }
}

impl KeyView for PlantedView {
    type Bytes = Vec<u8>;

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.bug {
            Some(StoreBug::MovesItsSnapshots) => self.memory.view().get(key),
            _ => self.taken.get(key),
        }
    }

    fn range(
        &self,
        range: (Bound<PlantedKey>, Bound<PlantedKey>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError> {
        let mut all = self.all(range, reverse)?;
        let table = all.first().map(|(key, _)| key[0]);
        let is_list = matches!(table, Some(table::INCOMING | table::OUTGOING));
        // All of a list's key but the id, which breaks ties.
        let time = |key: &PlantedKey| key[..key.len().saturating_sub(8)].to_vec();
        match self.bug {
            Some(StoreBug::BreaksTiesTheWrongWay) if is_list => {
                all.chunk_by_mut(|(a, _), (b, _)| time(a) == time(b)).for_each(|tie| tie.reverse());
            }
            Some(StoreBug::StopsBeforeTheLastOfATie) if is_list => {
                let ties = all.len() > 2 && time(&all[0].0) == time(&all[1].0);
                all.truncate(all.len() - usize::from(ties));
            }
            Some(StoreBug::ListsJobsOldestFirst) if table == Some(table::JOB) => all.reverse(),
            _ => {}
        }
        for (key, value) in all {
            if visit(&key, &value)?.is_break() {
                break;
            }
        }
        Ok(())
    }
}

/// A store in memory whose every crash takes some of the writes since the last persist.
fn reopenable(bug: Option<StoreBug>) -> Reopenable {
    let planted = PlantedBackend::new(MemoryBackend::default(), bug);
    let memory = RefCell::new(planted.memory.clone());
    let random = RefCell::new(fastrand::Rng::with_seed(5));
    let reopen = move |store: Subject| {
        drop(store);
        let lost = random.borrow_mut().usize(..=memory.borrow().unpersisted());
        let planted = PlantedBackend::new(memory.borrow().crashed(lost), bug);
        memory.replace(planted.memory.clone());
        open(planted)
    };
    Reopenable { store: open(planted), reopen: Box::new(reopen) }
}

fn open(planted: PlantedBackend) -> Subject {
    Subject::Embedded(Box::new(KeyedStore::open(planted).unwrap()))
}

fn verdict(bug: Option<StoreBug>) -> Result<(), String> {
    run(|| open(PlantedBackend::new(MemoryBackend::default(), bug)))?;
    run_reopened(|| reopenable(bug))
}

#[test]
fn a_memory_store_that_crashes_conforms() {
    verdict(None).unwrap();
}

#[test]
fn every_planted_bug_is_caught() {
    for bug in BUGS {
        let verdict = std::panic::catch_unwind(|| verdict(Some(bug)));
        let caught = verdict.map_or(Some("a panic".to_owned()), Result::err);
        let why = caught.unwrap_or_else(|| panic!("{bug:?} was not caught"));
        println!("{bug:?}: {}", &why[..why.len().min(150)]);
    }
}

#[test]
fn a_mistake_in_what_is_at_hand_fails_the_suite() {
    let make = || Box::new(with_all_at_hand(MemoryBackend::default()));
    for bug in [
        ResidentBug::EntryNotUpdated,
        ResidentBug::BitsAfterPublication,
        ResidentBug::RemovalForgotten,
    ] {
        plant(Some(bug));
        let verdict = run(|| Subject::Embedded(make()));
        plant(None);
        let what = verdict.err().unwrap_or_else(|| panic!("{bug:?} passes the suite"));
        println!("{bug:?}: {what}");
    }
}
