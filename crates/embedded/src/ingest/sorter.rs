//! Sorting more than memory holds: what was pushed comes back in the order of its bytes. Beyond a
//! bound, sorted pieces (runs) are kept in files of the spill folder until they are merged. It knows
//! nothing of what the bytes say.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as AtomicOrdering};

/// Runs that are merged at once: each has a file open and a buffer.
const MERGED_RUNS_MAX: usize = 64;
/// How much of a run is read or written at once.
const RUN_BUFFER_BYTES: usize = 128 << 10;
/// The least a sorter works with, whatever it was allowed.
const BYTES_MIN: usize = 64 << 10;
/// The most: places are kept in 32 bits.
const BYTES_MAX: usize = 2 << 30;

/// The folder where runs are kept. Whoever owns the directory around it removes it.
#[derive(Debug, Clone)]
pub(super) struct SpillFolder(Arc<SpillFolderInner>);

#[derive(Debug)]
struct SpillFolderInner {
    path: PathBuf,
    files: AtomicU64,
    bytes: AtomicU64,
}

impl SpillFolder {
    pub fn create(path: &Path) -> io::Result<SpillFolder> {
        fs::create_dir_all(path)?;
        let (path, files, bytes) = (path.to_path_buf(), AtomicU64::new(0), AtomicU64::new(0));
        Ok(SpillFolder(Arc::new(SpillFolderInner { path, files, bytes })))
    }

    /// What was ever written into it.
    pub fn bytes_written(&self) -> u64 {
        self.0.bytes.load(AtomicOrdering::Relaxed)
    }

    fn new_file(&self) -> PathBuf {
        let number = self.0.files.fetch_add(1, AtomicOrdering::Relaxed);
        self.0.path.join(format!("{number}.run"))
    }
}

/// One record in memory: its first bytes, by which nearly all comparisons end, and where it lies.
#[derive(Debug, Clone, Copy)]
struct Item {
    prefix: Prefix,
    at: u32,
    bytes: u32,
}

/// The first sixteen bytes as two numbers.
type Prefix = (u64, u64);

const ITEM_BYTES: usize = size_of::<Item>();

fn prefix_of(record: &[u8]) -> Prefix {
    let number = |bytes: &[u8]| {
        let mut padded = [0; 8];
        let count = bytes.len().min(8);
        padded[..count].copy_from_slice(&bytes[..count]);
        u64::from_be_bytes(padded)
    };
    let middle = record.len().min(8);
    (number(&record[..middle]), number(&record[middle..]))
}

/// Takes records in any order.
#[derive(Debug)]
pub(super) struct Sorter {
    folder: SpillFolder,
    bytes_max: usize,
    arena: Vec<u8>,
    items: Vec<Item>,
    runs: Vec<Run>,
    records: u64,
}

impl Sorter {
    pub fn new(folder: &SpillFolder, bytes_max: usize) -> Sorter {
        let bytes_max = bytes_max.clamp(BYTES_MIN, BYTES_MAX);
        let (arena, items, runs) = (Vec::new(), Vec::new(), Vec::new());
        Sorter { folder: folder.clone(), bytes_max, arena, items, runs, records: 0 }
    }

    /// Records that were pushed.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Takes a record whose bytes `write` appends.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        if self.arena.len() + ITEM_BYTES * self.items.len() >= self.bytes_max {
            self.spill()?;
        }
        let at = self.arena.len();
        write(&mut self.arena);
        let record = &self.arena[at..];
        let (prefix, bytes) = (prefix_of(record), record.len() as u32);
        self.items.push(Item { prefix, at: at as u32, bytes });
        self.records += 1;
        Ok(())
    }

    pub fn push(&mut self, record: &[u8]) -> io::Result<()> {
        self.push_with(|bytes| bytes.extend_from_slice(record))
    }

    fn spill(&mut self) -> io::Result<()> {
        sort(&self.arena, &mut self.items);
        let mut writer = RunWriter::create(&self.folder)?;
        for item in &self.items {
            writer.write(record_of(&self.arena, item))?;
        }
        self.runs.push(Run::File(writer.finish()?));
        self.arena.clear();
        self.items.clear();
        Ok(())
    }

    /// What was taken, as sorted runs; what is still in memory stays there.
    pub fn into_runs(mut self) -> Vec<Run> {
        sort(&self.arena, &mut self.items);
        if !self.items.is_empty() {
            self.runs.push(Run::Memory(MemoryRun { arena: self.arena, items: self.items }));
        }
        self.runs
    }

    pub fn into_merge(self) -> io::Result<Merge> {
        let folder = self.folder.clone();
        Merge::of(&folder, self.into_runs())
    }
}

fn record_of<'a>(arena: &'a [u8], item: &Item) -> &'a [u8] {
    let at = item.at as usize;
    &arena[at..at + item.bytes as usize]
}

fn sort(arena: &[u8], items: &mut [Item]) {
    items.sort_unstable_by(|one, other| {
        let by_prefix = one.prefix.cmp(&other.prefix);
        by_prefix.then_with(|| record_of(arena, one).cmp(record_of(arena, other)))
    });
}

/// Sorted records.
#[derive(Debug)]
pub(super) enum Run {
    Memory(MemoryRun),
    File(RunFile),
}

/// Records in memory, in order.
#[derive(Debug)]
pub(super) struct MemoryRun {
    arena: Vec<u8>,
    items: Vec<Item>,
}

/// A run in a file, which goes with it.
#[derive(Debug)]
pub(super) struct RunFile {
    path: PathBuf,
}

impl Drop for RunFile {
    fn drop(&mut self) {
        // What stays behind goes with its folder.
        let _gone = fs::remove_file(&self.path);
    }
}

/// Writes records in the order in which they are given.
#[derive(Debug)]
pub(super) struct RunWriter {
    folder: SpillFolder,
    file: RunFile,
    out: File,
    buffer: Vec<u8>,
    records: u64,
}

impl RunWriter {
    pub fn create(folder: &SpillFolder) -> io::Result<RunWriter> {
        let path = folder.new_file();
        let out = File::create(&path)?;
        let (file, buffer) = (RunFile { path }, Vec::with_capacity(RUN_BUFFER_BYTES));
        Ok(RunWriter { folder: folder.clone(), file, out, buffer, records: 0 })
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    pub fn write(&mut self, record: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
        self.buffer.extend_from_slice(record);
        self.records += 1;
        match self.buffer.len() >= RUN_BUFFER_BYTES {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buffer)?;
        let bytes = self.buffer.len() as u64;
        self.folder.0.bytes.fetch_add(bytes, AtomicOrdering::Relaxed);
        self.buffer.clear();
        Ok(())
    }

    pub fn finish(mut self) -> io::Result<RunFile> {
        self.flush()?;
        Ok(self.file)
    }
}

/// Reads a run from a file, record by record.
#[derive(Debug)]
pub(super) struct RunReader {
    file: File,
    buffer: Vec<u8>,
    begin: usize,
    /// Goes when the last record was read.
    _run: RunFile,
}

impl RunReader {
    pub fn open(run: RunFile) -> io::Result<RunReader> {
        let file = File::open(&run.path)?;
        Ok(RunReader { file, buffer: Vec::new(), begin: 0, _run: run })
    }

    /// The length of the next record, once all of it is in the buffer behind `begin`.
    fn fill(&mut self) -> io::Result<Option<usize>> {
        const HEAD_BYTES: usize = size_of::<u32>();
        loop {
            let ahead = &self.buffer[self.begin..];
            if let Some((head, behind)) = ahead.split_first_chunk::<HEAD_BYTES>() {
                let bytes = u32::from_le_bytes(*head) as usize;
                if behind.len() >= bytes {
                    self.begin += HEAD_BYTES;
                    return Ok(Some(bytes));
                }
            }
            self.buffer.drain(..self.begin);
            self.begin = 0;
            let wanted = RUN_BUFFER_BYTES as u64;
            if (&self.file).take(wanted).read_to_end(&mut self.buffer)? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }

    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let Some(bytes) = self.fill()? else { return Ok(None) };
        let record = self.begin..self.begin + bytes;
        self.begin = record.end;
        Ok(Some(&self.buffer[record]))
    }
}

/// One run on its way through a merge: its present record.
#[derive(Debug)]
struct Cursor {
    prefix: Prefix,
    source: CursorSource,
}

#[derive(Debug)]
enum CursorSource {
    Memory { run: MemoryRun, next: usize },
    File { reader: RunReader, record: std::ops::Range<usize> },
}

impl Cursor {
    /// At the run's first record; none where there is none.
    fn open(run: Run) -> io::Result<Option<Cursor>> {
        let source = match run {
            Run::Memory(run) => CursorSource::Memory { run, next: 0 },
            Run::File(file) => CursorSource::File { reader: RunReader::open(file)?, record: 0..0 },
        };
        let mut cursor = Cursor { prefix: (0, 0), source };
        Ok(cursor.advance()?.then_some(cursor))
    }

    fn record(&self) -> &[u8] {
        match &self.source {
            CursorSource::Memory { run, next } => record_of(&run.arena, &run.items[next - 1]),
            CursorSource::File { reader, record } => &reader.buffer[record.clone()],
        }
    }

    /// False at the end.
    fn advance(&mut self) -> io::Result<bool> {
        match &mut self.source {
            CursorSource::Memory { run, next } => {
                let Some(item) = run.items.get(*next) else { return Ok(false) };
                *next += 1;
                self.prefix = item.prefix;
            }
            CursorSource::File { reader, record } => {
                let Some(bytes) = reader.fill()? else { return Ok(false) };
                *record = reader.begin..reader.begin + bytes;
                reader.begin = record.end;
                self.prefix = prefix_of(&reader.buffer[record.clone()]);
            }
        }
        Ok(true)
    }

    fn cmp(&self, other: &Cursor) -> Ordering {
        self.prefix.cmp(&other.prefix).then_with(|| self.record().cmp(other.record()))
    }
}

/// All records of several runs in order.
#[derive(Debug)]
pub(super) struct Merge {
    /// A heap: the least record first.
    cursors: Vec<Cursor>,
    /// The first record was given out, and the next call goes on behind it.
    given: bool,
}

impl Merge {
    pub fn of(folder: &SpillFolder, mut runs: Vec<Run>) -> io::Result<Merge> {
        while runs.len() > MERGED_RUNS_MAX {
            // The first ones are the smallest, as those that were merged go to the end.
            let some: Vec<Run> = runs.drain(..MERGED_RUNS_MAX).collect();
            let mut merge = Merge::of(folder, some)?;
            let mut writer = RunWriter::create(folder)?;
            while let Some(record) = merge.next()? {
                writer.write(record)?;
            }
            runs.push(Run::File(writer.finish()?));
        }
        let mut cursors = Vec::with_capacity(runs.len());
        for run in runs {
            cursors.extend(Cursor::open(run)?);
        }
        cursors.sort_by(Cursor::cmp);
        Ok(Merge { cursors, given: false })
    }

    /// The next record; none at the end.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if std::mem::replace(&mut self.given, true) {
            self.advance()?;
        }
        Ok(self.cursors.first().map(Cursor::record))
    }

    fn advance(&mut self) -> io::Result<()> {
        let Some(first) = self.cursors.first_mut() else { return Ok(()) };
        if !first.advance()? {
            self.cursors.swap_remove(0);
        }
        // What lies below the first is a heap still.
        let mut at = 0;
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let mut least = at;
            for child in [left, right] {
                let below = self.cursors.get(child);
                if below.is_some_and(|cursor| cursor.cmp(&self.cursors[least]).is_lt()) {
                    least = child;
                }
            }
            if least == at {
                return Ok(());
            }
            self.cursors.swap(at, least);
            at = least;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(bytes_max: usize, records: &[Vec<u8>]) -> (Vec<Vec<u8>>, u64) {
        let folder = tempfile::tempdir().unwrap();
        let spill = SpillFolder::create(&folder.path().join("spill")).unwrap();
        let mut runs = Vec::new();
        for some in records.chunks(records.len() / 2 + 1) {
            let mut sorter = Sorter::new(&spill, BYTES_MIN);
            sorter.bytes_max = bytes_max;
            some.iter().for_each(|record| sorter.push(record).unwrap());
            runs.extend(sorter.into_runs());
        }
        let mut merge = Merge::of(&spill, runs).unwrap();
        let mut found = Vec::new();
        while let Some(record) = merge.next().unwrap() {
            found.push(record.to_vec());
        }
        assert!(merge.next().unwrap().is_none());
        drop(merge);
        assert_eq!(fs::read_dir(folder.path().join("spill")).unwrap().count(), 0, "all are gone");
        (found, spill.bytes_written())
    }

    #[test]
    fn records_come_back_in_order_however_little_memory_there_is() {
        let mut random = fastrand::Rng::with_seed(7);
        let records: Vec<Vec<u8>> = (0..5_000)
            .map(|_| {
                let bytes = random.usize(0..40);
                // Few different bytes: many records share their beginning, or are equal.
                (0..bytes).map(|_| random.u8(0..3)).collect()
            })
            .collect();
        let mut expected = records.clone();
        expected.sort();
        for (bytes_max, spills) in [(1 << 30, false), (20_000, true), (500, true)] {
            let (found, spilled) = sorted(bytes_max, &records);
            assert_eq!(found, expected, "{bytes_max}");
            assert_eq!(spilled > 0, spills, "{bytes_max}");
        }
        assert_eq!(sorted(500, &[]).0, Vec::<Vec<u8>>::new());
        let long = vec![vec![1; 3 * RUN_BUFFER_BYTES], vec![0; RUN_BUFFER_BYTES]];
        assert_eq!(sorted(1, &long).0, [long[1].clone(), long[0].clone()]);
    }
}
