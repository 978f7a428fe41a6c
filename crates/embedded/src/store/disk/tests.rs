//! The store on disk: the suite that every backend passes, also after cuts of its journal, and what
//! only fjall can do wrong.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;

use super::packing::Gain;
use super::view::LONG_LOOKS_DEADLINE;
use super::*;
use crate::store::KeyedStore;
use crate::store::conformance::{self, Reopenable, Subject};

thread_local! {
    /// How often this thread has opened a store anew.
    pub(super) static OPENED_ANEW: Cell<u32> = const { Cell::new(0) };
}

/// Bytes behind the cut that an image keeps as zeros instead of losing them.
const ZEROED_BYTES: usize = 4_096;

/// Gives a new folder for each store.
struct Folders {
    base: tempfile::TempDir,
    made: Cell<usize>,
}

impl Folders {
    fn new() -> Folders {
        Folders { base: tempfile::tempdir().unwrap(), made: Cell::new(0) }
    }

    fn next(&self) -> PathBuf {
        self.made.set(self.made.get() + 1);
        self.base.path().join(self.made.get().to_string())
    }
}

fn settings() -> StoreSettings {
    StoreSettings { cache_bytes: 1 << 20, ..StoreSettings::default() }
}

/// The same with what is at hand in memory.
fn all_at_hand(backend: DiskBackend) -> conformance::Subject {
    conformance::Subject::Embedded(Box::new(conformance::with_all_at_hand(backend)))
}

fn boxed(backend: impl Backend) -> Subject {
    Subject::Embedded(Box::new(KeyedStore::open(backend).unwrap()))
}

#[test]
fn a_disk_store_conforms() {
    let folders = Folders::new();
    let make = || DiskBackend::create(&folders.next(), &settings()).unwrap();
    conformance::run(|| boxed(make())).unwrap();
}

#[test]
fn a_disk_store_that_flushes_all_the_time_conforms() {
    let folders = Folders::new();
    let settings = StoreSettings { memtable_bytes: 16 << 10, ..settings() };
    let make = || DiskBackend::create(&folders.next(), &settings).unwrap();
    conformance::run(|| all_at_hand(make())).unwrap();
}

/// While the worker flushes a large memtable, more batches come than its queue of messages
/// holds, each of them a reason for a new memtable.
#[test]
fn many_batches_beside_a_busy_worker_never_block_it() {
    let folders = Folders::new();
    let settings = StoreSettings { memtable_bytes: 64 << 10, ..settings() };
    let backend = DiskBackend::create(&folders.next(), &settings).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let entries = |batch: u32, count: u32| {
            let key = move |entry: u32| [batch.to_be_bytes(), entry.to_be_bytes()].concat();
            (0..count).map(|entry| (key(entry), Some(vec![7; 64]))).collect::<Vec<_>>()
        };
        backend.write(&entries(0, 600_000)).unwrap();
        for batch in 1..=5_000 {
            backend.write(&entries(batch, 8)).unwrap();
        }
        backend.settle().unwrap();
        let last = [5_000_u32.to_be_bytes(), 7_u32.to_be_bytes()].concat();
        done.send(backend.view().get(&last).unwrap().is_some()).unwrap();
    });
    let found = ended.recv_timeout(Duration::from_secs(120));
    assert_eq!(found, Ok(true), "the store stands still, or has lost a key");
}

/// Descriptors of this process on the tables of a store.
fn open_tables(directory: &Path) -> usize {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links
        .filter(|path| path.starts_with(directory) && path.iter().any(|part| part == "tables"))
        .count()
}

#[test]
fn no_more_tables_are_kept_open_than_descriptors_are_set_aside_for() {
    let folders = Folders::new();
    let folder = folders.next();
    let settings = StoreSettings { open_tables_max: 8, ..settings() };
    let backend = DiskBackend::create(&folder, &settings).unwrap();
    for table in 0..64 {
        backend.fill::<StoreError>(|put| put(&[table], &[table; 64])).unwrap();
    }
    let tables = backend.with(|opened| Ok(opened.rows.table_count())).unwrap();
    assert_eq!(tables, 64);
    for table in 0..64 {
        assert!(backend.view().get(&[table]).unwrap().is_some());
    }
    // The bound is shared out among parts of the cache, each of which rounds it up.
    assert!(open_tables(&folder) <= 32, "{} are open", open_tables(&folder));
}

/// Stops a store: no table can be made where their folder is missing. Returns the folder.
fn stop(backend: &DiskBackend) -> PathBuf {
    let tables = backend.with(|opened| Ok(opened.rows.path().join("tables"))).unwrap();
    fs::rename(&tables, backend.directory.join("away")).unwrap();
    backend.with(|opened| opened.rows.rotate_memtable().map_err(fjall_error)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while backend.with(OpenStore::check).is_ok() {
        assert!(Instant::now() < deadline, "a flush that fails stops the store");
        std::thread::sleep(SETTLE_PAUSE);
    }
    tables
}

#[test]
fn a_store_that_has_stopped_says_so_at_rest_and_at_its_end() {
    let folders = Folders::new();
    let backend = DiskBackend::create(&folders.next(), &settings()).unwrap();
    backend.write(&[(vec![1], Some(vec![1]))]).unwrap();
    stop(&backend);
    assert!(matches!(backend.tidy(true, &mut || {}), Err(StoreError::Stopped)));
    let begun = Instant::now();
    assert!(matches!(backend.settle(), Err(StoreError::Stopped)));
    assert!(begun.elapsed() < SETTLE_DEADLINE, "nobody waits for a worker that is gone");
}

/// What a failed sync left out can be read until the power is cut.
#[test]
fn a_store_that_was_opened_anew_is_durable_only_when_its_journal_is_gone() {
    let folders = Folders::new();
    let folder = folders.next();
    let backend = DiskBackend::create(&folder, &settings()).unwrap();
    let entry = |key: u8| vec![(vec![key], Some(vec![key]))];
    backend.write(&entry(1)).unwrap();
    backend.persist().unwrap();
    assert!(!backend.is_in_doubt());
    let tables = stop(&backend);
    fs::rename(folder.join("away"), &tables).unwrap();
    assert!(backend.reopen(&mut Ok).unwrap());
    assert!(backend.is_in_doubt());
    backend.write(&entry(2)).unwrap();
    backend.persist().unwrap();
    assert!(backend.is_in_doubt(), "a sync of the same journal proves nothing");
    let deadline = Instant::now() + Duration::from_secs(60);
    while backend.is_in_doubt() {
        assert!(Instant::now() < deadline, "it is never brought to a new place");
        backend.tidy(false, &mut || {}).unwrap();
        std::thread::sleep(SETTLE_PAUSE);
    }
    assert!(written(&journal(&folder)).is_empty());
    for key in [1, 2] {
        assert!(backend.view().get(&[key]).unwrap().is_some(), "{key}");
    }
}

#[test]
fn a_store_that_has_stopped_is_read_on_and_opened_anew() {
    let folders = Folders::new();
    let folder = folders.next();
    let backend = DiskBackend::create(&folder, &settings()).unwrap();
    let entry = |key: u8| vec![(vec![key], Some(vec![key]))];
    backend.write(&entry(1)).unwrap();
    let tables = stop(&backend);
    assert!(matches!(backend.write(&entry(2)), Err(StoreError::Stopped)));
    let view = backend.view();
    assert_eq!(view.get(&[1]).unwrap().as_deref(), Some(&[1][..]), "it is read on");
    fs::rename(folder.join("away"), &tables).unwrap();
    let mut replay = |fresh: DiskBackend| {
        assert!(fresh.view().get(&[1])?.is_some());
        fresh.write(&entry(3))?;
        Ok(fresh)
    };
    assert!(!backend.reopen(&mut replay).unwrap(), "not while somebody looks");
    assert!(backend.view().get(&[1]).unwrap().is_some(), "and nothing has happened");
    drop(view);
    let mut fails = |_: DiskBackend| Err(StoreError::Full);
    assert!(matches!(backend.reopen(&mut fails), Err(StoreError::Full)));
    assert!(matches!(backend.view().get(&[1]), Err(StoreError::Stopped)), "nothing half done");
    assert!(backend.reopen(&mut replay).unwrap());
    backend.write(&entry(4)).unwrap();
    for key in [1, 3, 4] {
        assert!(backend.view().get(&[key]).unwrap().is_some(), "{key}");
    }
}

#[test]
fn who_reads_for_long_is_sent_away_so_that_a_store_can_be_mended() {
    let folders = Folders::new();
    let folder = folders.next();
    let backend = DiskBackend::create(&folder, &settings()).unwrap();
    backend.write(&[(vec![1], Some(vec![1]))]).unwrap();
    let tables = stop(&backend);
    fs::rename(folder.join("away"), &tables).unwrap();
    let export = backend.view();
    let begun = Instant::now();
    while export.get(&[1]).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "nothing is written for hours");
        assert!(!backend.reopen(&mut Ok).unwrap());
    }
    assert!(begun.elapsed() >= LONG_LOOKS_DEADLINE);
    let later = backend.view();
    assert!(later.get(&[1]).unwrap().is_some(), "who comes later reads on");
    let visited = export.range((Bound::Unbounded, Bound::Unbounded), false, &mut |_, _| {
        Ok(std::ops::ControlFlow::Continue(()))
    });
    assert!(matches!(visited, Err(StoreError::Stopped)));
    drop(export);
    assert!(!backend.reopen(&mut Ok).unwrap());
    drop(later);
    assert!(backend.reopen(&mut Ok).unwrap());
    assert!(backend.view().get(&[1]).unwrap().is_some());
}

#[test]
fn a_store_that_could_not_be_opened_anew_has_only_stopped() {
    let folders = Folders::new();
    let folder = folders.next();
    let settings = StoreSettings { journal_bytes_max: 16 << 10, ..settings() };
    let backend = DiskBackend::create(&folder, &settings).unwrap();
    backend.write(&hundred(1)).unwrap();
    // No store is opened under it.
    fs::create_dir(folder.join(SETTLED)).unwrap();
    assert!(matches!(backend.tidy(false, &mut || {}), Err(StoreError::Stopped)));
    assert!(!backend.is_open());
    assert!(matches!(backend.reopen(&mut Ok), Err(StoreError::Io(_))));
    fs::remove_dir(folder.join(SETTLED)).unwrap();
    assert!(backend.reopen(&mut Ok).unwrap());
    assert!(has_hundreds(&backend, 1..2));
}

/// What a kill leaves is what the file has.
#[test]
fn what_was_taken_is_whole_in_the_journal() {
    let folders = Folders::new();
    let (folder, image) = (folders.next(), folders.next());
    let backend = DiskBackend::create(&folder, &settings()).unwrap();
    for key in 0..9_u8 {
        backend.write(&[(vec![key], Some(vec![key; 1_500]))]).unwrap();
        let bytes = written(&journal(&folder)).len();
        let size = fs::metadata(journal(&folder)).unwrap().len();
        assert_eq!(size, bytes as u64, "fjall would cut off the rest, and what is reserved");
        let image = image.join(key.to_string());
        cut_copy(&folder, &image, bytes, &mut fastrand::Rng::with_seed(1));
        let killed = DiskBackend::open(&image, &settings()).unwrap();
        assert!(killed.view().get(&[key]).unwrap().is_some(), "{key}");
    }
}

/// A batch of a hundred rows of a kilobyte.
fn hundred(batch: u32) -> Vec<KeyWrite> {
    let key = |entry: u32| [batch.to_be_bytes(), entry.to_be_bytes()].concat();
    (0..100).map(|entry| (key(entry), Some(vec![7; 1_024]))).collect()
}

/// Whether the last row of every such batch is there.
fn has_hundreds(backend: &DiskBackend, batches: std::ops::Range<u32>) -> bool {
    let view = backend.view();
    let key = |batch: u32| [batch.to_be_bytes(), 99_u32.to_be_bytes()].concat();
    batches.into_iter().all(|batch| view.get(&key(batch)).unwrap().is_some())
}

/// What the newest journal takes of the disk.
fn journal_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let journals = journals(folder).unwrap();
    fs::metadata(journals.last().unwrap()).unwrap().blocks() * 512
}

#[test]
fn a_store_that_gives_back_its_journal_all_the_time_conforms() {
    let folders = Folders::new();
    let settings = StoreSettings { journal_bytes_max: 16 << 10, ..settings() };
    let make = || DiskBackend::create(&folders.next(), &settings).unwrap();
    let before = OPENED_ANEW.get();
    conformance::run(|| all_at_hand(make())).unwrap();
    assert!(OPENED_ANEW.get() > before + 10, "only {} times", OPENED_ANEW.get() - before);
}

#[test]
fn a_journal_takes_no_more_than_it_may() {
    let folders = Folders::new();
    let (folder, image) = (folders.next(), folders.next());
    let settings = StoreSettings { journal_bytes_max: 1 << 20, ..settings() };
    let backend = DiskBackend::create(&folder, &settings).unwrap();
    // What is reserved ahead, and a batch.
    let most = settings.journal_bytes_max + (5 << 20);
    let write = |batch| {
        backend.tidy(false, &mut || {}).unwrap();
        backend.write(&hundred(batch)).unwrap();
    };
    for batch in 0..200 {
        write(batch);
        let taken = journal_bytes(&folder);
        assert!(taken <= most, "{taken} after {batch}");
    }
    assert!(has_hundreds(&backend, 0..200));
    // While somebody looks it must wait, and says nothing that a power cut would make untrue.
    let view = backend.view();
    for batch in 200..230 {
        write(batch);
    }
    backend.persist().unwrap();
    let synced = written(&journal(&folder)).len();
    assert!(synced > 2 << 20, "it has grown");
    cut_copy(&folder, &image, synced, &mut fastrand::Rng::with_seed(1));
    let cut = DiskBackend::open(&image, &settings).unwrap();
    assert!(has_hundreds(&cut, 0..230));
    drop(view);
    for batch in 230..260 {
        write(batch);
    }
    assert!(journal_bytes(&folder) <= most);
    assert!(has_hundreds(&backend, 0..260));
    backend.settle().unwrap();
    drop(backend);
    assert!(has_hundreds(&DiskBackend::open(&folder, &settings).unwrap(), 0..260));
}

#[test]
fn room_for_the_journal_is_reserved_before_it_is_written() {
    let folders = Folders::new();
    let folder = folders.next();
    let allocated = || journal_bytes(&folder);
    let ahead = 2 << 20;
    let backend = DiskBackend::create(&folder, &settings()).unwrap();
    let mut written = 0;
    for batch in 0..40_u32 {
        backend.write(&hundred(batch)).unwrap();
        written += 100 * 1_024;
        assert!(allocated() > written + ahead, "{} for {written}", allocated());
    }
    drop(backend);
    let backend = DiskBackend::open(&folder, &settings()).unwrap();
    backend.write(&[(vec![1], Some(vec![1]))]).unwrap();
    assert!(allocated() > written + ahead, "also when it goes on");
}

#[test]
fn a_disk_store_conforms_after_a_clean_stop() {
    let folders = Folders::new();
    conformance::run_reopened(|| {
        let folder = folders.next();
        let store = boxed(DiskBackend::create(&folder, &settings()).unwrap());
        let reopen = move |store| {
            drop(store);
            boxed(DiskBackend::open(&folder, &settings()).unwrap())
        };
        Reopenable { store, reopen: Box::new(reopen) }
    })
    .unwrap();
}

#[test]
fn a_disk_store_conforms_after_its_journal_was_cut() {
    let folders = std::rc::Rc::new(Folders::new());
    let seed = Cell::new(0);
    conformance::run_reopened(|| {
        seed.set(seed.get() + 1);
        let random = RefCell::new(fastrand::Rng::with_seed(seed.get()));
        let backend = WatchedBackend::new(DiskBackend::create, folders.next());
        let standing = RefCell::new((backend.folder.clone(), backend.synced.clone()));
        let folders = folders.clone();
        let store = boxed(backend);
        let reopen = move |store: Subject| {
            let (folder, synced) = standing.borrow().clone();
            let image = folders.next();
            let synced = *synced.lock();
            cut_copy(&folder, &image, synced, &mut random.borrow_mut());
            drop(store);
            let backend = WatchedBackend::new(DiskBackend::open, image);
            standing.replace((backend.folder.clone(), backend.synced.clone()));
            boxed(backend)
        };
        Reopenable { store, reopen: Box::new(reopen) }
    })
    .unwrap();
}

/// Notes how much of the journal a power cut cannot take.
struct WatchedBackend {
    backend: DiskBackend,
    folder: PathBuf,
    synced: Arc<Mutex<usize>>,
}

type OpenDisk = fn(&Path, &StoreSettings) -> Result<DiskBackend, StoreError>;

impl WatchedBackend {
    fn new(opening: OpenDisk, folder: PathBuf) -> WatchedBackend {
        let watched = WatchedBackend {
            backend: opening(&folder, &settings()).unwrap(),
            folder,
            synced: Arc::default(),
        };
        watched.persist().unwrap();
        watched
    }
}

impl Backend for WatchedBackend {
    type View = DiskView;

    fn view(&self) -> DiskView {
        self.backend.view()
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        self.backend.write(entries)
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.backend.persist()?;
        *self.synced.lock() = written(&journal(&self.folder)).len();
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.backend.bytes()
    }
}

/// Copies a store in use as it could stand after a power cut: behind what was synced, the
/// journal ends anywhere, or goes on in zeros.
fn cut_copy(from: &Path, to: &Path, synced: usize, random: &mut fastrand::Rng) {
    fs::create_dir_all(to.join(DATABASE)).unwrap();
    for folder in folders_below(&from.join(DATABASE)).unwrap() {
        fs::create_dir_all(to.join(folder.strip_prefix(from).unwrap())).unwrap();
    }
    let journal = journal(from);
    let folders = folders_below(from).unwrap();
    for folder in folders.iter().map(PathBuf::as_path).chain([from]) {
        for file in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.is_file() && file != journal {
                fs::copy(&file, to.join(file.strip_prefix(from).unwrap())).unwrap();
            }
        }
    }
    let mut bytes = written(&journal);
    assert!(bytes.len() >= synced, "what was synced stays");
    bytes.truncate(random.usize(synced..=bytes.len()));
    if random.bool() {
        bytes.resize(bytes.len() + ZEROED_BYTES, 0);
    }
    fs::write(to.join(journal.strip_prefix(from).unwrap()), bytes).unwrap();
}

/// The one journal of a store that is too small to need a second.
fn journal(folder: &Path) -> PathBuf {
    let files = fs::read_dir(folder.join(DATABASE)).unwrap();
    let mut journals = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"));
    let journal = journals.next().unwrap();
    assert!(journals.next().is_none(), "there are several journals");
    journal
}

/// A file up to the zeros that it was made with.
fn written(file: &Path) -> Vec<u8> {
    const PAGE: [u8; 4_096] = [0; 4_096];
    let mut bytes = fs::read(file).unwrap();
    let last_page = bytes.chunks(PAGE.len()).rposition(|page| *page != PAGE[..page.len()]);
    bytes.truncate(last_page.map_or(0, |page| (page + 1) * PAGE.len()));
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// What a full disk leaves behind: a large journal, and tables with what was removed since.
#[test]
fn what_is_packed_by_hand_is_all_there_and_takes_less() {
    let folders = Folders::new();
    let settings = StoreSettings { journal_bytes_max: 1 << 20, ..settings() };
    let folder = folders.next();
    let backend = DiskBackend::create(&folder, &settings).unwrap();
    let key = |number: u32| [&[9][..], &number.to_be_bytes()].concat();
    let put = |from: u32, value: Option<Vec<u8>>| {
        let entries = (from..from + 1_000).map(|number| (key(number), value.clone()));
        backend.write(&entries.collect::<Vec<_>>()).unwrap();
    };
    let random: Vec<u8> = (0..200).map(|place: u32| (place.pow(3) >> 4) as u8).collect();
    let journal_bytes = || {
        let journals = journals(&folder).unwrap();
        journals.iter().map(|path| fs::metadata(path).unwrap().len()).sum::<u64>()
    };
    let tables_bytes = || backend.with(|opened| Ok(opened.rows.disk_space())).unwrap();
    for from in (0..20_000).step_by(1_000) {
        put(from, Some(random.clone()));
    }
    let before = journal_bytes();
    assert!(before > 2 << 20, "{before}");
    let view = backend.view();
    backend.pack(Gain::Journal, &mut || {}).unwrap();
    assert!(view.get(&key(0)).unwrap().is_some(), "whoever looks is not disturbed");
    assert_eq!(journal_bytes(), before, "nor is anything done meanwhile");
    drop(view);
    backend.pack(Gain::Journal, &mut || {}).unwrap();
    assert!(journal_bytes() < before / 4, "{}", journal_bytes());
    for from in (1_000..20_000).step_by(1_000) {
        put(from, None);
    }
    backend.pack(Gain::Journal, &mut || {}).unwrap();
    let before = tables_bytes();
    backend.pack(Gain::Tables, &mut || {}).unwrap();
    assert!(tables_bytes() < before / 2, "{} of {before}", tables_bytes());
    let gain = || backend.with(|opened| Ok(backend.packing.lock().gain(opened, u64::MAX))).unwrap();
    assert_eq!(gain(), None, "there is nothing more to gain");
    put(1_000, Some(random));
    assert_eq!(gain(), None, "nor for so little");
    drop(backend);
    let backend = DiskBackend::open(&folder, &settings).unwrap();
    let view = backend.view();
    let found = (0..20_000).filter(|number| view.get(&key(*number)).unwrap().is_some());
    assert_eq!(found.collect::<Vec<_>>(), (0..2_000).collect::<Vec<_>>());
}
