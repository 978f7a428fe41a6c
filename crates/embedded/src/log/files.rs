//! The log in segment files: appending, reading beside it, trimming, closing. How it is opened and
//! mended stands in `recovery.rs`, what is inside a file in `segment.rs` and `frame.rs`.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use guanxi_model::Position;
use parking_lot::{Mutex, MutexGuard, RwLock};

use super::floor::Floor;
use super::frame::{self, ChecksumSeed};
use super::recovery::{self, LogFolder};
use super::segment::{self, FRAMES_OFFSET, Segment, SegmentHeader, Unplaced};
use super::{Epoch, Frame, Lineage, Log, LogError, LogTip, marks};
use crate::disk::{Disk, DiskFile, is_full};

/// The size of a segment where there is no room for a whole one: so the last of a disk's room
/// still takes what is small, such as deletions.
const SMALL_SEGMENT_BYTES: u64 = 1 << 20;

/// How far ahead of the frames zeros are written over the space that is only reserved. The first
/// write to reserved space makes the file system commit its journal, which waits for whatever
/// else is in there; a write over written zeros does not (half the time of a sync on ext4).
const ZEROS_AHEAD_BYTES: u64 = 1 << 20;

/// How the log's files are made.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The size of a segment file. A frame that is larger gets a segment of its own size.
    pub segment_bytes: u64,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20 }
    }
}

/// What a log stands on when it is made: a position that it continues although it has no record
/// up to there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    pub lineage: Lineage,
    pub last: Position,
    /// The commit time at that position.
    pub commit_ms: u64,
}

impl Beginning {
    /// Of a log whose first record is the first ever.
    pub fn new() -> Self {
        let LogTip { last, commit_ms, .. } = LogTip::start();
        Self { lineage: Lineage::start(), last, commit_ms }
    }
}

impl Default for Beginning {
    fn default() -> Self {
        Self::new()
    }
}

/// What was found when the log was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogOpening {
    /// The last stop was an orderly one.
    pub clean_stop: bool,
    /// A torn frame stood at the end, which nobody was told to be durable, and was cut off.
    pub torn_tail: bool,
}

/// A log in a folder of segment files.
pub struct FileLog {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    seed: ChecksumSeed,
    options: LogOptions,
    opening: LogOpening,
    writer: Mutex<SegmentWriter>,
    /// What readers go by. It is held only for a moment, never across file access.
    view: RwLock<LogView>,
    /// Held while the log is trimmed: one trim at a time.
    floor: Mutex<Floor>,
    /// The next segment's file, written with zeros beforehand.
    spare: Mutex<Option<Unplaced>>,
}

struct SegmentWriter {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    /// Where the next frame goes.
    end: u64,
    /// Up to where the file is known to be written, if only with zeros.
    written: u64,
    /// The file's size.
    size: u64,
    /// False while an append is under way and for good when it failed.
    accepting: bool,
    buffer: Vec<u8>,
}

struct LogView {
    /// Oldest first; the last one is appended to. Never empty.
    segments: VecDeque<Arc<Segment>>,
    tip: LogTip,
    lineage: Lineage,
}

impl FileLog {
    /// Opens the log in this folder, or makes it when there is none. `directory_seed` is the data
    /// directory's random value; the same must be given each time.
    pub fn open(
        disk: Arc<dyn Disk>,
        folder: &Path,
        directory_seed: u64,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let seed = ChecksumSeed::new(directory_seed);
        let segment_bytes = options.segment_bytes.max(FRAMES_OFFSET);
        let recovered = recovery::open(LogFolder { disk: &*disk, folder, seed, segment_bytes })?;
        let segments: VecDeque<_> = recovered.segments.into_iter().map(Arc::new).collect();
        let (path, size) = match segments.back() {
            Some(active) => (active.path.clone(), active.bytes),
            None => (folder.to_path_buf(), 0),
        };
        Ok(Self {
            disk,
            folder: folder.to_path_buf(),
            seed,
            options,
            opening: recovered.opening,
            writer: Mutex::new(SegmentWriter {
                file: recovered.file,
                path,
                end: recovered.end,
                written: recovered.end,
                size,
                accepting: true,
                buffer: Vec::new(),
            }),
            view: RwLock::new(LogView { segments, tip: recovered.tip, lineage: recovered.lineage }),
            floor: Mutex::new(recovered.floor),
            spare: Mutex::default(),
        })
    }

    /// Makes a log in this folder, where there is none, that goes on after `beginning`. On return
    /// it is durable, and `open` finds it.
    pub fn create(
        disk: &dyn Disk,
        folder: &Path,
        directory_seed: u64,
        options: LogOptions,
        beginning: &Beginning,
    ) -> Result<(), LogError> {
        let seed = ChecksumSeed::new(directory_seed);
        let segment_bytes = options.segment_bytes.max(FRAMES_OFFSET);
        LogFolder { disk, folder, seed, segment_bytes }.make(beginning).map(drop)
    }

    /// How the log was found.
    pub fn opening(&self) -> LogOpening {
        self.opening
    }

    /// Ends appending and leaves the mark of an orderly stop, so that the next start need not
    /// write the end of the log anew. After a failed append there is no such stop: `Refusing`.
    pub fn close(&self) -> Result<(), LogError> {
        let mut writer = self.writer();
        if !writer.accepting {
            return Err(LogError::Refusing);
        }
        writer.accepting = false;
        marks::write_clean(&*self.disk, &self.folder, self.last())
    }

    /// Makes the segment that begins with the next frame, of at least this many bytes of frames,
    /// and lets the writer and the readers know it.
    fn begin_segment(&self, writer: &mut SegmentWriter, frame_bytes: u64) -> Result<(), LogError> {
        let header = {
            let view = self.view.read();
            SegmentHeader {
                epoch: view.tip.epoch,
                first: view.tip.next(),
                previous: view.segments.back().map_or(Position(0), |segment| segment.first),
                commit_ms: view.tip.commit_ms,
            }
        };
        let made = self.new_segment(&header, FRAMES_OFFSET + frame_bytes).and_then(|made| {
            let path = made.put_in_place(&*self.disk, &self.folder, header.first)?;
            Ok((made, path))
        });
        let action = "make a segment in";
        let failed = |source| LogError::unsynced(action, &self.folder, source);
        let (made, path) = made.map_err(failed)?;
        // From here on the name may stand or not, whatever the disk says.
        self.disk.sync_dir(&self.folder).map_err(|source| LogError::Io {
            action,
            path: self.folder.clone(),
            source,
        })?;
        let segment = Segment::new(header.first, path.clone(), made.size);
        self.view.write().segments.push_back(Arc::new(segment));
        writer.path = path;
        writer.end = FRAMES_OFFSET;
        writer.written = made.written;
        writer.size = made.size;
        writer.file = made.file;
        Ok(())
    }

    /// The file for a segment of at least this size: the spare one if that is large enough, else
    /// one of the usual size, or a small one where the disk is full.
    fn new_segment(&self, header: &SegmentHeader, size_min: u64) -> io::Result<Unplaced> {
        let usual = self.options.segment_bytes.max(size_min);
        if let Some(spare) = self.spare.lock().take().filter(|spare| spare.size >= usual) {
            spare.begin(header, self.seed)?;
            return Ok(spare);
        }
        let create = |size| segment::create(&*self.disk, &self.folder, header, self.seed, size);
        let small = SMALL_SEGMENT_BYTES.max(size_min);
        match create(usual) {
            Err(error) if is_full(&error) && small < usual => create(small),
            made => made,
        }
    }

    /// Sees that the active segment has room for a frame.
    fn find_room(&self, writer: &mut SegmentWriter, frame_bytes: u64) -> Result<(), LogError> {
        match writer.end {
            end if end + frame_bytes <= writer.size => Ok(()),
            FRAMES_OFFSET => self.grow_segment(writer, frame_bytes),
            _ => self.begin_segment(writer, frame_bytes),
        }
    }

    /// Makes room for a frame that is larger than a whole segment, in one that has none yet.
    fn grow_segment(&self, writer: &mut SegmentWriter, frame_bytes: u64) -> Result<(), LogError> {
        let size = FRAMES_OFFSET + frame_bytes;
        let grown = writer.file.allocate(size);
        grown.map_err(|source| LogError::unsynced("grow", &writer.path, source))?;
        writer.size = size;
        if let Some(active) = self.view.write().segments.back_mut() {
            *active = Arc::new(Segment::new(active.first, active.path.clone(), size));
        }
        Ok(())
    }

    /// The segment that holds this position and the last durable position in it; `None` past the
    /// end of the log.
    fn locate(&self, position: Position) -> Result<Option<(Arc<Segment>, Position)>, LogError> {
        let view = self.view.read();
        if position < view.first() {
            return Err(LogError::Trimmed { from: position, first: view.first() });
        }
        if position > view.tip.last {
            return Ok(None);
        }
        let after = view.segments.partition_point(|segment| segment.first <= position);
        let last = match view.segments.get(after) {
            Some(next) => Position(next.first.0 - 1),
            None => view.tip.last,
        };
        let segment = after.checked_sub(1).and_then(|index| view.segments.get(index));
        Ok(segment.map(|segment| (Arc::clone(segment), last)))
    }

    fn writer(&self) -> MutexGuard<'_, SegmentWriter> {
        // A panic in an append leaves `accepting` false, so what it left is not built upon.
        self.writer.lock()
    }
}

impl SegmentWriter {
    /// Writes the buffer behind the last frame and makes it durable.
    fn write(&mut self) -> Result<(), LogError> {
        let action = "write to";
        let end = self.end + self.buffer.len() as u64;
        let written = self.file.write_at(self.end, &self.buffer);
        written.map_err(|source| LogError::unsynced(action, &self.path, source))?;
        if end > self.written {
            let ahead = ZEROS_AHEAD_BYTES.min(self.size - end);
            match self.file.write_at(end, &vec![0; ahead as usize]) {
                Ok(()) => self.written = end + ahead,
                // They would only have spared later appends some time.
                Err(error) if is_full(&error) => self.written = end,
                Err(source) => {
                    return Err(LogError::Io { action, path: self.path.clone(), source });
                }
            }
        }
        let path = &self.path;
        let synced = self.file.sync_data();
        synced.map_err(|source| LogError::Io { action, path: path.clone(), source })
    }
}

impl LogView {
    fn first(&self) -> Position {
        self.segments.front().map_or(self.tip.next(), |segment| segment.first)
    }
}

impl Log for FileLog {
    fn append(&self, frame: &Frame) -> Result<(), LogError> {
        let mut guard = self.writer();
        let writer = &mut *guard;
        if !writer.accepting {
            return Err(LogError::Refusing);
        }
        let tip = self.view.read().tip.after(frame)?;
        frame::encode(frame, self.seed, &mut writer.buffer);
        let bytes = writer.buffer.len() as u64;

        writer.accepting = false;
        let appended = self.find_room(writer, bytes).and_then(|()| writer.write());
        if let Err(error) = appended {
            // On a full disk the end is where it was: what is there of the frame was not synced,
            // and the next append is written over it.
            writer.accepting = matches!(error, LogError::Full { .. });
            return Err(error);
        }
        let offset = writer.end;
        writer.end += bytes;
        writer.accepting = true;

        let mut view = self.view.write();
        if let Some(active) = view.segments.back() {
            active.note(frame.first, offset);
        }
        view.tip = tip;
        Ok(())
    }

    fn last(&self) -> Position {
        self.view.read().tip.last
    }

    fn first(&self) -> Position {
        self.view.read().first()
    }

    fn epoch(&self) -> Epoch {
        self.view.read().tip.epoch
    }

    fn last_commit_ms(&self) -> u64 {
        self.view.read().tip.commit_ms
    }

    fn read(&self, from: Position, bytes_max: usize) -> Result<Vec<Frame>, LogError> {
        let mut frames: Vec<Frame> = Vec::new();
        let mut bytes_left = bytes_max;
        let mut next = from;
        while bytes_left > 0 || frames.is_empty() {
            let (segment, last) = match self.locate(next) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                // Trimmed meanwhile: what was read before is still good.
                Err(LogError::Trimmed { .. }) if !frames.is_empty() => break,
                Err(error) => return Err(error),
            };
            let file = match self.disk.open(&segment.path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound && next < self.first() => {
                    continue;
                }
                Err(source) => {
                    let path = segment.path.clone();
                    return Err(LogError::Io { action: "open", path, source });
                }
            };
            bytes_left = segment.read(&*file, self.seed, (next, last), bytes_left, &mut frames)?;
            next = Position(last.0 + 1);
        }
        Ok(frames)
    }

    fn trim(&self, keep_from: Position) -> Result<(), LogError> {
        let mut floor = self.floor.lock();
        let (trimmed, first) = {
            let view = self.view.read();
            // A segment goes when the next one begins at or before what is to be kept.
            let kept = view.segments.partition_point(|segment| segment.first <= keep_from);
            let kept = kept.saturating_sub(1);
            let trimmed: Vec<_> = view.segments.iter().take(kept).map(Arc::clone).collect();
            (trimmed, view.segments.get(kept).map(|segment| segment.first))
        };
        let (Some(first), false) = (first, trimmed.is_empty()) else {
            return Ok(());
        };
        // Once the floor is durable, older segments are leftovers, in whatever order they go.
        floor.raise(first)?;
        self.view.write().segments.drain(..trimmed.len());
        for segment in trimmed {
            self.disk.remove(&segment.path).map_err(|source| LogError::Io {
                action: "remove",
                path: segment.path.clone(),
                source,
            })?;
        }
        Ok(())
    }

    fn prepare(&self) -> Result<(), LogError> {
        // Beside an append there is no hurry: the next call comes soon.
        let half_full = self
            .writer
            .try_lock()
            .is_some_and(|writer| writer.accepting && writer.end > writer.size / 2);
        if !half_full || self.spare.lock().is_some() {
            return Ok(());
        }
        let made = Unplaced::zeros(&*self.disk, &self.folder, self.options.segment_bytes);
        let failed = |source| LogError::unsynced("prepare a segment in", &self.folder, source);
        let made = made.map_err(failed)?;
        *self.spare.lock() = Some(made);
        Ok(())
    }

    fn seal(&self, begun_before_ms: u64) -> Result<(), LogError> {
        let mut writer = self.writer();
        if !writer.accepting || writer.end == FRAMES_OFFSET {
            return Ok(());
        }
        let Some(active) = self.view.read().segments.back().cloned() else {
            return Ok(());
        };
        let begun_before = |frame: &Frame| frame.commit_ms < begun_before_ms;
        if !self.read(active.first, 1)?.first().is_some_and(begun_before) {
            return Ok(());
        }
        writer.accepting = false;
        let sealed = self.begin_segment(&mut writer, 0);
        writer.accepting = matches!(sealed, Ok(()) | Err(LogError::Full { .. }));
        sealed
    }

    fn bytes(&self) -> u64 {
        self.view.read().segments.iter().map(|segment| segment.bytes).sum()
    }

    fn lineage(&self) -> Lineage {
        self.view.read().lineage.clone()
    }

    fn begin_epoch(&self, epoch: Epoch) -> Result<(), LogError> {
        let mut writer = self.writer();
        if !writer.accepting {
            return Err(LogError::Refusing);
        }
        let lineage = self.lineage().with(epoch, self.last())?;
        writer.accepting = false;
        if let Err(error) = marks::write_lineage(&*self.disk, &self.folder, &lineage) {
            let LogError::Io { action, path, source } = error else {
                return Err(error);
            };
            // Where the disk was full and the old lineage stands, nothing has happened.
            let standing = marks::read_lineage(&*self.disk, &self.folder)?;
            writer.accepting = is_full(&source) && standing == Some(self.lineage());
            return Err(match writer.accepting {
                true => LogError::Full { action, path },
                false => LogError::Io { action, path, source },
            });
        }
        writer.accepting = true;
        let mut view = self.view.write();
        view.tip.epoch = epoch;
        view.lineage = lineage;
        Ok(())
    }
}
