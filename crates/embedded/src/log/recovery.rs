//! Opening a log: making a new one, checking the one that stands, and after an unclean stop
//! writing its end anew so that nobody sees a frame that is not on the disk.
//!
//! Only the last segment's frames are read. All older ones were synced before it was made; their
//! headers are checked here, their frames whenever they are read.

use std::io;
use std::path::{Path, PathBuf};

use guanxi_model::Position;

use super::files::{Beginning, LogOpening};
use super::floor::{Floor, FoundFloor};
use super::frame::{ChecksumSeed, FrameError};
use super::segment::{self, FRAMES_OFFSET, FrameCursor, Segment, SegmentHeader};
use super::{Lineage, LogError, LogTip, marks};
use crate::disk::{Disk, DiskFile, UNFINISHED, folder_of, is_full};

/// How much is copied at once when a segment is written anew.
const COPY_BYTES: usize = 1 << 20;

/// A log that may be read and appended to.
pub(super) struct Recovered {
    /// Oldest first; the last one is appended to.
    pub(super) segments: Vec<Segment>,
    pub(super) file: Box<dyn DiskFile>,
    /// Where the next frame goes in `file`.
    pub(super) end: u64,
    pub(super) tip: LogTip,
    pub(super) lineage: Lineage,
    pub(super) floor: Floor,
    pub(super) opening: LogOpening,
}

/// Where a log is and how its files are made.
#[derive(Clone, Copy)]
pub(super) struct LogFolder<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) folder: &'a Path,
    pub(super) seed: ChecksumSeed,
    pub(super) segment_bytes: u64,
}

/// Opens the log at this place, and makes it when there is none.
pub(super) fn open(place: LogFolder<'_>) -> Result<Recovered, LogError> {
    let lineage = match marks::read_lineage(place.disk, place.folder)? {
        Some(lineage) => lineage,
        None => place.make(&Beginning::new())?,
    };
    let floor = FoundFloor::read(place.disk, place.folder)?;
    let clean = marks::read_clean(place.disk, place.folder)?;
    let (older, last) = place.segments(floor.at)?;
    let scan = place.scan(&last, &lineage)?;
    let clean_stop = match clean {
        Some(position) if position > scan.tip.last => {
            let what = format!(
                "the log ends at position {}, but the last orderly stop left it at {}",
                scan.tip.last.0, position.0
            );
            return Err(LogError::Damaged { path: last.path, offset: scan.end, what });
        }
        // A marker that a power cut brought back is older than what was appended since.
        Some(position) => position == scan.tip.last && scan.rest == Rest::Empty,
        None => false,
    };
    if !clean_stop {
        place.refuse_what_follows(&last, &scan)?;
    }

    // From here on files change. First, what was relied upon becomes durable, names and the floor: a
    // process that was killed may not have come to it.
    place.sync_folder()?;
    let first = floor.at;
    let mut floor = floor.open(place.disk)?;
    match floor.settle() {
        Ok(()) => place.remove_leftovers(first)?,
        // Some file systems want room to write over what stands: segments wait for the next start.
        Err(error) if error.is_full() => place.remove_leftovers(Position(0))?,
        Err(error) => return Err(error),
    }
    marks::remove_clean(place.disk, place.folder)?;
    let (file, active) = if clean_stop {
        place.sync_folder()?;
        let active = Segment::new(last.header.first, last.path, last.bytes);
        (last.file, active)
    } else {
        place.write_anew(last, scan.end)?
    };
    for (first, offset) in scan.places {
        active.note(first, offset);
    }
    Ok(Recovered {
        segments: older.into_iter().chain([active]).collect(),
        file,
        end: scan.end,
        tip: scan.tip,
        lineage,
        floor,
        opening: LogOpening { clean_stop, torn_tail: scan.rest == Rest::Torn },
    })
}

/// The last segment, open.
struct Last {
    header: SegmentHeader,
    path: PathBuf,
    bytes: u64,
    file: Box<dyn DiskFile>,
}

/// What the frames of the last segment say.
struct Scan {
    tip: LogTip,
    end: u64,
    /// Where frames begin, for the segment to remember.
    places: Vec<(Position, u64)>,
    rest: Rest,
}

/// What comes after the last good frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Empty,
    Torn,
}

impl LogFolder<'_> {
    /// Makes a new log: its first segment, then the lineage, which says that it is complete. What
    /// an earlier attempt left is made again.
    pub(super) fn make(&self, beginning: &Beginning) -> Result<Lineage, LogError> {
        let made = self.disk.create_dir_all(self.folder);
        self.io("create", self.folder, made)?;
        let parent = folder_of(self.folder);
        self.io("sync", parent, self.disk.sync_dir(parent))?;

        let start = SegmentHeader {
            epoch: beginning.lineage.current(),
            first: Position(beginning.last.0 + 1),
            previous: Position(0),
            commit_ms: beginning.commit_ms,
        };
        for first in self.positions()? {
            let path = self.folder.join(segment::file_name(first));
            let file = self.io("open", &path, self.disk.open(&path))?;
            let frame = FrameCursor::new(&*file, self.seed, FRAMES_OFFSET).header();
            if first != start.first || !matches!(frame, Err(FrameError::Absent)) {
                let what = "the file LINEAGE beside it is missing".to_owned();
                return Err(LogError::Damaged { path, offset: 0, what });
            }
            self.io("remove", &path, self.disk.remove(&path))?;
        }
        self.remove_leftovers(Position(0))?;
        let made = segment::create(self.disk, self.folder, &start, self.seed, self.segment_bytes)
            .and_then(|made| made.put_in_place(self.disk, self.folder, start.first));
        self.io("make a segment in", self.folder, made)?;
        self.sync_folder()?;
        Floor::create(self.disk, self.folder, start.first)?;
        marks::write_lineage(self.disk, self.folder, &beginning.lineage)?;
        Ok(beginning.lineage.clone())
    }

    /// The segments from the floor on, checked to follow one another without a hole.
    fn segments(&self, floor: Position) -> Result<(Vec<Segment>, Last), LogError> {
        let mut older: Vec<Segment> = Vec::new();
        let mut last: Option<Last> = None;
        for first in self.positions()?.into_iter().filter(|first| *first >= floor) {
            let path = self.folder.join(segment::file_name(first));
            let file = self.io("open", &path, self.disk.open(&path))?;
            let header = SegmentHeader::read(&*file, &path, first, self.seed)?;
            let bytes = self.io("look at", &path, file.size())?;
            let gap = match &last {
                Some(before) => header.previous != before.header.first,
                None => first != floor,
            };
            if gap {
                let what = "the segment before this one is missing".to_owned();
                return Err(LogError::Damaged { path, offset: 0, what });
            }
            if let Some(before) = last.replace(Last { header, path, bytes, file }) {
                older.push(Segment::new(before.header.first, before.path, before.bytes));
            }
        }
        last.map(|last| (older, last)).ok_or_else(|| LogError::Damaged {
            path: self.folder.join(segment::file_name(floor)),
            offset: 0,
            what: "the segment is missing".to_owned(),
        })
    }

    /// Checks the frames of the last segment, up to the first place without a good one.
    fn scan(&self, last: &Last, lineage: &Lineage) -> Result<Scan, LogError> {
        let mut tip = LogTip {
            epoch: lineage.current(),
            last: Position(last.header.first.0 - 1),
            commit_ms: last.header.commit_ms,
        };
        let mut places = Vec::new();
        let mut cursor = FrameCursor::new(&*last.file, self.seed, FRAMES_OFFSET);
        let stop = loop {
            let offset = cursor.offset;
            let checked = cursor.header().and_then(|header| {
                cursor.check(&header)?;
                Ok(header)
            });
            let header = match checked {
                Ok(header) => header,
                Err(stop) => break stop,
            };
            if header.first != tip.next()
                || header.commit_ms < tip.commit_ms
                || header.epoch != lineage.epoch_at(header.first)
            {
                let what = format!(
                    "a frame of epoch {} at position {} and {} ms cannot follow position {} at {} ms",
                    header.epoch.0, header.first.0, header.commit_ms, tip.last.0, tip.commit_ms
                );
                return Err(LogError::Damaged { path: last.path.clone(), offset, what });
            }
            places.push((header.first, offset));
            tip.last = header.last();
            tip.commit_ms = header.commit_ms;
            cursor.pass(&header);
        };
        let end = cursor.offset;
        let rest = match stop {
            FrameError::Absent => Rest::Empty,
            FrameError::Bad(_) => Rest::Torn,
            error => return Err(error.at(&last.path, end)),
        };
        Ok(Scan { tip, end, places, rest })
    }

    /// The tail may be cut only when it is the torn work of one append. A frame is written after
    /// the one before it was synced, so the header of a later one proves that what is bad here
    /// had been acknowledged.
    fn refuse_what_follows(&self, last: &Last, scan: &Scan) -> Result<(), LogError> {
        let found = FrameCursor::new(&*last.file, self.seed, scan.end)
            .find_header(scan.end + 1)
            .map_err(|error| error.at(&last.path, scan.end))?;
        match found {
            Some((offset, header)) if header.first > scan.tip.last => {
                let what = format!(
                    "the frame after position {} cannot be read, but a good one with position {} \
                     follows at byte {offset}",
                    scan.tip.last.0, header.first.0
                );
                Err(LogError::Damaged { path: last.path.clone(), offset: scan.end, what })
            }
            _ => Ok(()),
        }
    }

    /// Writes the good frames of the last segment into a new file that takes its place: after a
    /// failed sync, what can be read need not be on the disk.
    fn write_anew(&self, last: Last, end: u64) -> Result<(Box<dyn DiskFile>, Segment), LogError> {
        let size = self.segment_bytes.max(end);
        let first = last.header.first;
        let made = segment::create(self.disk, self.folder, &last.header, self.seed, size);
        let placed = made.and_then(|made| {
            made.or_gone(self.disk, copy(&*last.file, &*made.file, FRAMES_OFFSET, end))?;
            let path = made.put_in_place(self.disk, self.folder, first)?;
            Ok((made.file, Segment::new(first, path, size)))
        });
        match placed {
            Err(error) if is_full(&error) => self.write_over(last, end),
            placed => {
                let placed = self.io("replace", &last.path, placed)?;
                self.sync_folder()?;
                Ok(placed)
            }
        }
    }

    /// The same where the disk has no room for a second file: each byte over itself, which makes
    /// the disk take what a failed sync may have left out, and needs no new room.
    fn write_over(&self, last: Last, end: u64) -> Result<(Box<dyn DiskFile>, Segment), LogError> {
        let written = copy(&*last.file, &*last.file, 0, end).and_then(|()| last.file.sync_all());
        self.io("write over", &last.path, written)?;
        Ok((last.file, Segment::new(last.header.first, last.path, last.bytes)))
    }

    /// Removes files that were never finished, and segments that trimming had given up.
    fn remove_leftovers(&self, floor: Position) -> Result<(), LogError> {
        let unfinished = format!(".{UNFINISHED}");
        for name in self.io("list", self.folder, self.disk.list(self.folder))? {
            let trimmed = segment::position_in(&name).is_some_and(|first| first < floor);
            if trimmed || name.ends_with(&unfinished) {
                let path = self.folder.join(name);
                self.io("remove", &path, self.disk.remove(&path))?;
            }
        }
        Ok(())
    }

    /// The first positions of all segment files, in order.
    fn positions(&self) -> Result<Vec<Position>, LogError> {
        let names = self.io("list", self.folder, self.disk.list(self.folder))?;
        // The digits have a fixed width, so the order of names is that of positions.
        Ok(names.iter().filter_map(|name| segment::position_in(name)).collect())
    }

    fn sync_folder(&self) -> Result<(), LogError> {
        self.io("sync", self.folder, self.disk.sync_dir(self.folder))
    }

    fn io<T>(&self, action: &'static str, path: &Path, done: io::Result<T>) -> Result<T, LogError> {
        done.map_err(|source| LogError::Io { action, path: path.to_path_buf(), source })
    }
}

fn copy(from: &dyn DiskFile, to: &dyn DiskFile, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES.min((end - start) as usize)];
    let mut offset = start;
    while offset < end {
        let length = buffer.len().min((end - offset) as usize);
        let read = from.read_at(offset, &mut buffer[..length])?;
        if read < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        to.write_at(offset, &buffer[..length])?;
        offset += length as u64;
    }
    Ok(())
}
