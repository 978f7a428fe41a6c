//! The store on disk: the suite that every backend passes, also after cuts of its journal, and what
//! only fjall can do wrong.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

use super::*;
use crate::store::KeyedStore;
use crate::store::conformance::{self, Reopenable, Subject};

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
    conformance::run(|| boxed(make())).unwrap();
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
        backend.write(entries(0, 600_000)).unwrap();
        for batch in 1..=5_000 {
            backend.write(entries(batch, 8)).unwrap();
        }
        backend.settle().unwrap();
        let last = [5_000_u32.to_be_bytes(), 7_u32.to_be_bytes()].concat();
        done.send(backend.view().get(&last).unwrap().is_some()).unwrap();
    });
    let found = ended.recv_timeout(Duration::from_secs(120));
    assert_eq!(found, Ok(true), "the store stands still, or has lost a key");
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
        let backend = Watched::new(DiskBackend::create, folders.next());
        let standing = RefCell::new((backend.folder.clone(), backend.synced.clone()));
        let folders = folders.clone();
        let store = boxed(backend);
        let reopen = move |store: Subject| {
            let (folder, synced) = standing.borrow().clone();
            let image = folders.next();
            let synced = *synced.lock().unwrap();
            cut_copy(&folder, &image, synced, &mut random.borrow_mut());
            drop(store);
            let backend = Watched::new(DiskBackend::open, image);
            standing.replace((backend.folder.clone(), backend.synced.clone()));
            boxed(backend)
        };
        Reopenable { store, reopen: Box::new(reopen) }
    })
    .unwrap();
}

/// Notes how much of the journal a power cut cannot take.
struct Watched {
    backend: DiskBackend,
    folder: PathBuf,
    synced: Arc<Mutex<usize>>,
}

type Opening = fn(&Path, &StoreSettings) -> Result<DiskBackend, StoreError>;

impl Watched {
    fn new(opening: Opening, folder: PathBuf) -> Watched {
        let watched = Watched {
            backend: opening(&folder, &settings()).unwrap(),
            folder,
            synced: Arc::default(),
        };
        watched.persist().unwrap();
        watched
    }
}

impl Backend for Watched {
    type View = DiskView;

    fn view(&self) -> DiskView {
        self.backend.view()
    }

    fn write(&self, entries: Vec<Entry>) -> Result<(), StoreError> {
        self.backend.write(entries)
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.backend.persist()?;
        *self.synced.lock().unwrap() = written(&journal(&self.folder)).len();
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
