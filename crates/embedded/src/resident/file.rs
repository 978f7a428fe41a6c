//! The saved filter: one file, written whole beside the old one, synced bit by bit and renamed. It
//! says of which directory it is and up to which place in the log it has everything. Whoever reads
//! it must hold both against what is there; a file that is damaged in any way is none.

use std::io;
use std::path::Path;

use guanxi_model::{Epoch, Position};

use super::filter::{EdgeFilter, HASHING};
use crate::disk::{Disk, DiskFile, UNFINISHED, folder_of};

const MAGIC: [u8; 8] = *b"GXFILTER";
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 64;
const SUM_BYTES: usize = 4;
/// Written and synced at once: whoever syncs the log meanwhile waits for as much.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_WORDS: usize = CHUNK_BYTES / 8;

/// What a file says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilterOrigin {
    /// Of the directory.
    pub seed: u64,
    /// It has every edge that stood at this place, in this epoch.
    pub epoch: Epoch,
    pub position: Position,
}

/// What a file begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Header {
    origin: FilterOrigin,
    blocks: u64,
    added: u64,
    removed: u64,
}

impl Header {
    fn encoded(&self) -> [u8; HEADER_BYTES] {
        let Header { origin, blocks, added, removed } = self;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&[FORMAT, HASHING]);
        bytes[12..16].copy_from_slice(&origin.epoch.0.to_le_bytes());
        let numbers = [origin.seed, origin.position.0, *blocks, *added, *removed];
        for (number, place) in numbers.iter().zip(bytes[16..].chunks_exact_mut(8)) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// None of a file that another release wrote, or nobody of us.
    fn decoded(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        let origin = FilterOrigin {
            seed: number(16),
            epoch: Epoch((number(8) >> 32) as u32),
            position: Position(number(24)),
        };
        let (blocks, added, removed) = (number(32), number(40), number(48));
        let header = Header { origin, blocks, added, removed };
        (header.encoded() == *bytes).then_some(header)
    }
}

/// How large the file of a filter is.
pub(crate) fn file_bytes(filter: &EdgeFilter) -> u64 {
    filter.bytes() + (HEADER_BYTES + SUM_BYTES) as u64
}

/// Puts the filter in place of what stood there. `origin` is of a moment that was published before
/// this call.
pub(crate) fn save(
    disk: &dyn Disk,
    path: &Path,
    filter: &EdgeFilter,
    origin: FilterOrigin,
) -> io::Result<()> {
    let unfinished = path.with_added_extension(UNFINISHED);
    remove(disk, &unfinished)?;
    let written = disk.create(&unfinished).and_then(|file| write(&*file, filter, origin));
    if let Err(error) = written {
        // What cannot be removed now is at the next saving.
        let _left = remove(disk, &unfinished);
        return Err(error);
    }
    disk.rename(&unfinished, path)?;
    disk.sync_dir(folder_of(path))
}

fn write(file: &dyn DiskFile, filter: &EdgeFilter, origin: FilterOrigin) -> io::Result<()> {
    file.allocate(file_bytes(filter))?;
    // Before the words: the counts may be behind them, never the other way round.
    let (added, removed) = (filter.added(), filter.removed());
    let header = Header { origin, blocks: filter.blocks(), added, removed }.encoded();
    file.write_at(0, &header)?;
    let mut sum = crc32c::crc32c(&header);
    let mut words = vec![0; CHUNK_WORDS.min(filter.words())];
    let mut bytes = Vec::with_capacity(CHUNK_BYTES);
    let mut from = 0;
    while from < filter.words() {
        let count = words.len().min(filter.words() - from);
        filter.read_words(from, &mut words[..count]);
        bytes.clear();
        bytes.extend(words[..count].iter().flat_map(|word| word.to_le_bytes()));
        sum = crc32c::crc32c_append(sum, &bytes);
        file.write_at((HEADER_BYTES + 8 * from) as u64, &bytes)?;
        file.sync_data()?;
        from += count;
    }
    file.write_at((HEADER_BYTES + 8 * from) as u64, &sum.to_le_bytes())?;
    file.sync_all()
}

/// The filter that was saved; none where there is no file, or it is not whole, not of this
/// release or larger than a filter may be.
pub(crate) fn load(
    disk: &dyn Disk,
    path: &Path,
    bytes_max: u64,
) -> io::Result<Option<(EdgeFilter, FilterOrigin)>> {
    // Of a saving that was cut.
    remove(disk, &path.with_added_extension(UNFINISHED))?;
    if !disk.exists(path)? {
        return Ok(None);
    }
    let file = disk.open(path)?;
    let mut header = [0; HEADER_BYTES];
    if file.read_at(0, &mut header)? < HEADER_BYTES {
        return Ok(None);
    }
    let Some(found) = Header::decoded(&header) else { return Ok(None) };
    let Header { origin, blocks, added, removed } = found;
    let body_bytes = file.size()?.saturating_sub((HEADER_BYTES + SUM_BYTES) as u64);
    if blocks == 0 || body_bytes > bytes_max || blocks.checked_mul(64) != Some(body_bytes) {
        return Ok(None);
    }
    let filter = EdgeFilter::of_blocks(blocks);
    let mut sum = crc32c::crc32c(&header);
    let mut bytes = vec![0; CHUNK_BYTES.min(8 * filter.words())];
    let mut from = 0;
    while from < filter.words() {
        let count = CHUNK_WORDS.min(filter.words() - from);
        let chunk = &mut bytes[..8 * count];
        if file.read_at((HEADER_BYTES + 8 * from) as u64, chunk)? < chunk.len() {
            return Ok(None);
        }
        sum = crc32c::crc32c_append(sum, chunk);
        let words = chunk.chunks_exact(8).map(|bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        });
        filter.join_words(from, &words.collect::<Vec<u64>>());
        from += count;
    }
    let mut said = [0; SUM_BYTES];
    let read = file.read_at((HEADER_BYTES + 8 * from) as u64, &mut said)?;
    if read < SUM_BYTES || u32::from_le_bytes(said) != sum {
        return Ok(None);
    }
    filter.count_as(added, removed);
    Ok(Some((filter, origin)))
}

/// Removes a file that must not be found again.
pub(crate) fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use guanxi_model::{EdgeKey, KindId, SourceId, TargetId, TenantId};

    use super::*;
    use crate::disk::{Fault, SimDisk};

    const PATH: &str = "/data/FILTER";
    const ORIGIN: FilterOrigin =
        FilterOrigin { seed: 7, epoch: Epoch(u32::MAX), position: Position(99) };

    fn edge(id: u64) -> EdgeKey {
        EdgeKey {
            tenant: TenantId::DEFAULT,
            kind: KindId(1),
            source: SourceId(id),
            target: TargetId(id),
        }
    }

    fn disk() -> SimDisk {
        let disk = SimDisk::new(3);
        disk.create_dir_all(Path::new("/data")).unwrap();
        disk.sync_dir(Path::new("/")).unwrap();
        disk
    }

    fn filter(edges: u64) -> EdgeFilter {
        let filter = EdgeFilter::for_edges(edges, u64::MAX);
        (0..edges).for_each(|id| filter.add(&edge(id)));
        filter.note_removal();
        filter
    }

    fn loaded(disk: &SimDisk) -> Option<(EdgeFilter, FilterOrigin)> {
        load(disk, Path::new(PATH), u64::MAX).unwrap()
    }

    #[test]
    fn it_comes_back_as_it_was() {
        let disk = disk();
        assert!(loaded(&disk).is_none());
        // Of less than a chunk, and of several.
        for edges in [1, 2_000_000] {
            let saved = filter(edges);
            save(&disk, Path::new(PATH), &saved, ORIGIN).unwrap();
            let (found, origin) = loaded(&disk).unwrap();
            assert_eq!(origin, ORIGIN);
            assert_eq!((found.added(), found.removed()), (saved.added(), 1));
            assert!((0..edges).all(|id| found.may_hold(&edge(id))));
            assert_eq!(disk.open(Path::new(PATH)).unwrap().size().unwrap(), file_bytes(&saved));
            assert!(load(&disk, Path::new(PATH), saved.bytes() - 1).unwrap().is_none());
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let disk = disk();
        save(&disk, Path::new(PATH), &filter(40), ORIGIN).unwrap();
        let whole = disk.read(Path::new(PATH)).unwrap();
        let put = |bytes: &[u8]| disk.write_atomic(Path::new(PATH), bytes).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            put(&flipped);
            assert!(loaded(&disk).is_none(), "bit {bit}");
        }
        for kept in 0..whole.len() {
            put(&whole[..kept]);
            assert!(loaded(&disk).is_none(), "{kept} bytes");
        }
        put(&whole);
        assert!(loaded(&disk).is_some());
    }

    #[test]
    fn a_fault_leaves_the_old_one_or_the_new_one() {
        for fault in [Fault::WriteError, Fault::NoSpace, Fault::SyncError, Fault::PowerCut] {
            for after in 0..40 {
                let disk = disk();
                save(&disk, Path::new(PATH), &filter(40), ORIGIN).unwrap();
                let next = FilterOrigin { position: Position(100), ..ORIGIN };
                disk.fail_at(after, fault);
                let saved = save(&disk, Path::new(PATH), &filter(400), next);
                disk.calm();
                let disk = disk.crash(&mut fastrand::Rng::with_seed(after));
                let (found, origin) = loaded(&disk).unwrap();
                let edges = if origin == next { 400 } else { 40 };
                assert!((0..edges).all(|id| found.may_hold(&edge(id))));
                assert!(saved.is_err() || origin == next, "{fault:?} after {after}");
            }
        }
    }
}
