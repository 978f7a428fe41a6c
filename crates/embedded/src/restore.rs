//! Restore: makes a data directory from archives, after it has read and checked every byte of
//! them, and up to the end, a position or a time.
//!
//! The directory begins a new epoch where it was restored to: what the old service gave out beyond
//! that, tokens and event ids, means something else here or nothing, and is refused.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use guanxi_core::random::random;
use guanxi_model::{Epoch, Millis, Position};

use crate::archive::{
    ArchiveBase, ArchiveError, ArchiveHeader, ArchivePart, ArchiveReader, Trailer,
};
use crate::directory::{Directory, write_role};
use crate::disk::RealDisk;
use crate::engine::Settings;
use crate::log::{Frame, Lineage};
use crate::store::Applied;
use crate::transfer::{Landing, LandingError};

/// How much of a file is read at once.
const READ_BYTES: usize = 256 << 10;

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    End,
    /// The last batch that ends at or before it.
    Position(Position),
    /// The last batch that was committed at or before it.
    Time(Millis),
}

/// An archive that was read to its end and is whole.
#[derive(Debug, Clone)]
pub struct VerifiedArchive {
    pub path: PathBuf,
    pub header: ArchiveHeader,
    pub trailer: Trailer,
    pub bytes: u64,
}

/// What was restored.
#[derive(Debug, Clone)]
pub struct Restored {
    pub applied: Applied,
    /// The epoch that begins there.
    pub epoch: Epoch,
    pub rows: u64,
    /// Records of the log that were applied on top of the rows.
    pub records: u64,
}

/// Told how many bytes have been read so far, of all that will be; may stop the work.
pub type TellRestored<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("{} cannot be opened: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Archive { path: PathBuf, source: ArchiveError },
    /// The archives are whole, but not what was asked for can be made of them.
    #[error("{0}")]
    Unfit(String),
    #[error("the rows of {} are of {} ms, later than asked for", path.display(), begins.0)]
    TooEarly { path: PathBuf, begins: Millis },
    #[error("{} was ended at {} ms, earlier than asked for", path.display(), ends.0)]
    TooLate { path: PathBuf, ends: Millis },
    #[error("{0}")]
    Landing(#[from] LandingError),
    #[error("stopped before its end")]
    Stopped,
}

/// Reads an archive to its end and checks all of it.
pub fn verify(
    path: &Path,
    progress: &mut TellRestored<'_>,
) -> Result<VerifiedArchive, RestoreError> {
    let (mut reader, bytes) = open(path)?;
    loop {
        if progress(reader.bytes_read(), bytes).is_break() {
            return Err(RestoreError::Stopped);
        }
        if let ArchivePart::End(trailer) = reader.next_part().map_err(in_archive(path))? {
            let (path, header) = (path.to_path_buf(), reader.header().clone());
            return Ok(VerifiedArchive { path, header, trailer, bytes });
        }
    }
}

/// Whether these archives, in this order, are one unbroken backup that reaches the target.
pub fn check_chain(archives: &[VerifiedArchive], target: Target) -> Result<(), RestoreError> {
    let Some((full, later)) = archives.split_first() else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    let ArchiveBase::Rows(begin) = full.header.base else {
        return Err(RestoreError::Unfit(format!(
            "{} holds only what came after position {}: give the full backup that it continues \
             before it",
            full.path.display(),
            full.header.base.position().0
        )));
    };
    let mut last = full;
    for next in later {
        fits(last, next)?;
        last = next;
    }
    let end = &last.trailer.end;
    let refuse = |text: String| Err(RestoreError::Unfit(text));
    match target {
        Target::Position(position) if position < begin.position => refuse(format!(
            "{} begins at position {}, after position {}: restore from an older full backup",
            full.path.display(),
            begin.position.0,
            position.0
        )),
        Target::Position(position) if position > end.position => refuse(format!(
            "{} ends at position {}, before position {}: add the backup that continues it, or \
             restore to its end",
            last.path.display(),
            end.position.0,
            position.0
        )),
        Target::Time(time) if time < begin.commit => {
            Err(RestoreError::TooEarly { path: full.path.clone(), begins: begin.commit })
        }
        Target::Time(time) if time > last.trailer.ended.max(end.commit) => {
            let ends = last.trailer.ended.max(end.commit);
            Err(RestoreError::TooLate { path: last.path.clone(), ends })
        }
        _ => Ok(()),
    }
}

/// Whether `next` continues `last`, of the same service.
pub fn fits(last: &VerifiedArchive, next: &VerifiedArchive) -> Result<(), RestoreError> {
    let refuse = |what: String| Err(RestoreError::Unfit(what));
    let (name, end) = (next.path.display(), &last.trailer.end);
    let ArchiveBase::After(after) = next.header.base else {
        return refuse(format!(
            "{name} is a full backup: only the first archive may be one, so begin with it"
        ));
    };
    if after.position > end.position {
        return refuse(format!(
            "{name} continues from position {}, but {} ends at {}: a backup between the two is \
             missing, or they are not in the order in which they were made",
            after.position.0,
            last.path.display(),
            end.position.0
        ));
    }
    if next.trailer.end.position < end.position {
        return refuse(format!(
            "{name} ends at position {}, before {} at {}: give the archives in the order in which \
             they were made",
            next.trailer.end.position.0,
            last.path.display(),
            end.position.0
        ));
    }
    let same_moment = after.position != end.position
        || after.commit == Millis(0)
        || end.commit == Millis(0)
        || after.commit == end.commit;
    let (ours, theirs) = (&last.trailer.lineage, &next.trailer.lineage);
    if !same_moment || !theirs.agrees_with(ours, end.position) {
        return refuse(format!(
            "{name} does not continue {}: they are of different services, or of different \
             histories of one",
            last.path.display()
        ));
    }
    Ok(())
}

/// Makes the data directory that the settings name. Nothing is touched before every archive was
/// read and found whole; until the end nobody can open the directory.
pub fn restore(
    settings: &Settings,
    archives: &[PathBuf],
    target: Target,
    progress: &mut TellRestored<'_>,
) -> Result<Restored, RestoreError> {
    // Before hours are spent on reading.
    Directory::may_land(&RealDisk, &settings.data_dir).map_err(LandingError::from)?;
    let mut bytes_max = 0;
    for path in archives {
        bytes_max += open_file(path)?.1 * 2;
    }
    let mut verified: Vec<VerifiedArchive> = Vec::new();
    for path in archives {
        let before: u64 = verified.iter().map(|archive| archive.bytes).sum();
        verified.push(verify(path, &mut |read, _| progress(before + read, bytes_max))?);
    }
    check_chain(&verified, target)?;
    let landing = fill(settings, &verified, target, progress, bytes_max)?;
    let applied = landing.applied();
    let lineage = forked(&verified, applied.position)?;
    let Some(full) = verified.first() else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    landing.finish(&lineage, &full.header.secret)?;
    let begin = full.header.base.position();
    Ok(Restored {
        applied,
        epoch: lineage.current(),
        rows: full.trailer.rows,
        records: applied.position.0 - begin.0,
    })
}

/// Reads all archives a second time, into the directory.
fn fill(
    settings: &Settings,
    archives: &[VerifiedArchive],
    target: Target,
    progress: &mut TellRestored<'_>,
    bytes_max: u64,
) -> Result<Landing, RestoreError> {
    let Some((full, later)) = archives.split_first() else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    let mut before: u64 = archives.iter().map(|archive| archive.bytes).sum();
    let mut told = |read: u64| progress(before + read, bytes_max);
    let (reader, _) = open(&full.path)?;
    let mut source = RestoreSource { reader, path: &full.path, told: &mut told };
    let (landing, next) = source.land_rows(settings)?;
    let mut filled = source.apply(&landing, next, target).map(drop);
    before += full.bytes;
    for archive in later {
        filled = filled.and_then(|()| {
            let mut told = |read: u64| progress(before + read, bytes_max);
            let (mut reader, _) = open(&archive.path)?;
            let first = reader.next_part().map_err(in_archive(&archive.path))?;
            let mut source = RestoreSource { reader, path: &archive.path, told: &mut told };
            source.apply(&landing, first, target).map(drop)
        });
        before += archive.bytes;
    }
    match filled {
        Ok(()) => Ok(landing),
        Err(error) => {
            landing.abandon();
            Err(error)
        }
    }
}

/// Makes the data directory that the settings name from a full backup as it arrives, in the same
/// epoch and with the same positions: the first copy of a standby.
pub fn receive(settings: &Settings, input: impl Read) -> Result<Applied, RestoreError> {
    let path = Path::new("what was sent");
    let reader = ArchiveReader::open(input).map_err(in_archive(path))?;
    let mut source = RestoreSource { reader, path, told: &mut |_| ControlFlow::Continue(()) };
    let (landing, next) = source.land_rows(settings)?;
    match source.apply(&landing, next, Target::End) {
        Ok(trailer) => {
            // Before it can be opened: a copy that nobody promoted must not take writes.
            write_role(&RealDisk, &settings.data_dir, false).map_err(LandingError::from)?;
            Ok(landing.finish(&trailer.lineage, &source.reader.header().secret)?)
        }
        Err(error) => {
            landing.abandon();
            Err(error)
        }
    }
}

/// The archives' lineage up to the position, and a new epoch that forks off there.
fn forked(archives: &[VerifiedArchive], at: Position) -> Result<Lineage, RestoreError> {
    let Some(known) = archives.last().map(|archive| &archive.trailer.lineage) else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    // Above every epoch that is known, also of those that forked off later than this.
    let epoch = known.next_epoch(random());
    Ok(known.up_to(at).with(epoch, at).map_err(LandingError::from)?)
}

/// An archive on its way into a directory.
struct RestoreSource<'a, R> {
    reader: ArchiveReader<R>,
    path: &'a Path,
    told: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
}

impl<R: Read> RestoreSource<'_, R> {
    fn next(&mut self) -> Result<ArchivePart, RestoreError> {
        if (self.told)(self.reader.bytes_read()).is_break() {
            return Err(RestoreError::Stopped);
        }
        self.reader.next_part().map_err(in_archive(self.path))
    }

    /// Begins a directory with the archive's rows; also returns the part that follows them.
    fn land_rows(&mut self, settings: &Settings) -> Result<(Landing, ArchivePart), RestoreError> {
        let mut next = None;
        let landing = Landing::begin::<RestoreError>(settings, || {
            Ok(match self.next()? {
                ArchivePart::Rows(rows) => rows,
                other => {
                    next = Some(other);
                    Vec::new()
                }
            })
        })?;
        match next {
            Some(next) if ArchiveBase::Rows(landing.applied()) == self.reader.header().base => {
                Ok((landing, next))
            }
            _ => {
                landing.abandon();
                let text = "its rows are not of the position that its header names";
                Err(LandingError::Unfit(text.into()).into())
            }
        }
    }

    /// Applies the archive's frames, from this part on, as far as the target.
    fn apply(
        &mut self,
        landing: &Landing,
        first: ArchivePart,
        target: Target,
    ) -> Result<Trailer, RestoreError> {
        let mut part = first;
        loop {
            match part {
                ArchivePart::Rows(_) => {}
                ArchivePart::Frames(frames) => {
                    for frame in frames.iter().filter(|frame| target.includes(frame)) {
                        landing.apply(frame)?;
                    }
                }
                ArchivePart::End(trailer) => return Ok(trailer),
            }
            part = self.next()?;
        }
    }
}

impl Target {
    fn includes(self, frame: &Frame) -> bool {
        match self {
            Target::End => true,
            Target::Position(position) => frame.last() <= position,
            Target::Time(time) => Millis(frame.commit_ms) <= time,
        }
    }
}

fn open(path: &Path) -> Result<(ArchiveReader<BufReader<File>>, u64), RestoreError> {
    let (file, bytes) = open_file(path)?;
    let reader = ArchiveReader::open(BufReader::with_capacity(READ_BYTES, file));
    Ok((reader.map_err(in_archive(path))?, bytes))
}

fn open_file(path: &Path) -> Result<(File, u64), RestoreError> {
    let opened = File::open(path).and_then(|file| {
        let about = file.metadata()?;
        match about.is_dir() {
            true => Err(io::ErrorKind::IsADirectory.into()),
            false => Ok((file, about.len())),
        }
    });
    opened.map_err(|source| RestoreError::Open { path: path.to_path_buf(), source })
}

fn in_archive(path: &Path) -> impl FnOnce(ArchiveError) -> RestoreError {
    let path = path.to_path_buf();
    move |source| RestoreError::Archive { path, source }
}
