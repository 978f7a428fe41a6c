//! Restore: makes a data directory from archives, after it has read and checked every byte of
//! them, and up to the end, a position or a time.
//!
//! The directory begins a new epoch where it was restored to: what the old service gave out beyond
//! that, tokens and event ids, means something else here or nothing, and is refused.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use guanxi_model::{Epoch, Millis, Position};

use crate::archive::{ArchiveError, ArchiveReader, Base, Header, Part, Trailer};
use crate::clock::{Clock, SystemClock};
use crate::directory::{Directory, write_role};
use crate::disk::RealDisk;
use crate::engine::Settings;
use crate::log::Lineage;
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
pub struct Verified {
    pub path: PathBuf,
    pub header: Header,
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
pub type Progress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

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
pub fn verify(path: &Path, progress: &mut Progress<'_>) -> Result<Verified, RestoreError> {
    let (mut reader, bytes) = open(path)?;
    loop {
        if progress(reader.bytes_read(), bytes).is_break() {
            return Err(RestoreError::Stopped);
        }
        if let Part::End(trailer) = reader.next_part().map_err(in_archive(path))? {
            let (path, header) = (path.to_path_buf(), reader.header().clone());
            return Ok(Verified { path, header, trailer, bytes });
        }
    }
}

/// Whether these archives, in this order, are one unbroken backup that reaches the target.
pub fn check_chain(archives: &[Verified], target: Target) -> Result<(), RestoreError> {
    let Some((full, later)) = archives.split_first() else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    let Base::Rows(begin) = full.header.base else {
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
pub fn fits(last: &Verified, next: &Verified) -> Result<(), RestoreError> {
    let refuse = |what: String| Err(RestoreError::Unfit(what));
    let (name, end) = (next.path.display(), &last.trailer.end);
    let Base::After(after) = next.header.base else {
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
    progress: &mut Progress<'_>,
) -> Result<Restored, RestoreError> {
    // Before hours are spent on reading.
    Directory::may_land(&RealDisk, &settings.data_dir).map_err(LandingError::from)?;
    let mut bytes_max = 0;
    for path in archives {
        bytes_max += open_file(path)?.1 * 2;
    }
    let mut read_before = 0;
    let mut verified = Vec::new();
    for path in archives {
        let archive = verify(path, &mut |read, _| progress(read_before + read, bytes_max))?;
        read_before += archive.bytes;
        verified.push(archive);
    }
    check_chain(&verified, target)?;
    let mut walk = Walk { archives: &verified, target, read_before, bytes_max, progress };
    let (landing, restored) = walk.fill(settings)?;
    let lineage = forked(&verified, restored.applied.position)?;
    let epoch = lineage.current();
    let applied = landing.finish(&lineage)?;
    Ok(Restored { applied, epoch, ..restored })
}

/// Makes the data directory that the settings name from a full backup as it arrives, in the same
/// epoch and with the same positions: the first copy of a standby.
pub fn receive(settings: &Settings, input: impl Read) -> Result<Applied, RestoreError> {
    let received = |source| RestoreError::Archive { path: PathBuf::from("what was sent"), source };
    let mut reader = ArchiveReader::open(input).map_err(received)?;
    let mut after_rows = None;
    let landing = Landing::begin::<RestoreError>(settings, || {
        Ok(match reader.next_part().map_err(received)? {
            Part::Rows(rows) => rows,
            other => {
                after_rows = Some(other);
                Vec::new()
            }
        })
    })?;
    let mut follow = || loop {
        let part = match after_rows.take() {
            Some(part) => part,
            None => reader.next_part().map_err(received)?,
        };
        match part {
            Part::Rows(_) => {}
            Part::Frames(frames) => {
                for frame in frames {
                    landing.apply(&frame)?;
                }
            }
            Part::End(trailer) => return Ok::<_, RestoreError>(trailer),
        }
    };
    match follow() {
        Ok(trailer) => {
            // Before it can be opened: a copy that nobody promoted must not take writes.
            write_role(&RealDisk, &settings.data_dir, false).map_err(LandingError::from)?;
            Ok(landing.finish(&trailer.lineage)?)
        }
        Err(error) => {
            landing.abandon();
            Err(error)
        }
    }
}

/// The archives' lineage up to the position, and a new epoch that forks off there.
fn forked(archives: &[Verified], at: Position) -> Result<Lineage, RestoreError> {
    let Some(known) = archives.last().map(|archive| &archive.trailer.lineage) else {
        return Err(RestoreError::Unfit("no archive is given".into()));
    };
    // Above every epoch that is known, also of those that forked off later than this.
    let epoch = known.next_epoch(SystemClock.now_ms());
    Ok(known.up_to(at).with(epoch, at).map_err(LandingError::from)?)
}

/// Reads all archives a second time, into a directory.
struct Walk<'a, 'p> {
    archives: &'a [Verified],
    target: Target,
    read_before: u64,
    bytes_max: u64,
    progress: &'a mut Progress<'p>,
}

impl Walk<'_, '_> {
    fn fill(&mut self, settings: &Settings) -> Result<(Landing, Restored), RestoreError> {
        let Some((full, later)) = self.archives.split_first() else {
            return Err(RestoreError::Unfit("no archive is given".into()));
        };
        let (mut reader, _) = open(&full.path)?;
        let (mut rows, mut after_rows) = (0, None);
        let landing = Landing::begin::<RestoreError>(settings, || {
            self.told(reader.bytes_read())?;
            match reader.next_part().map_err(in_archive(&full.path))? {
                Part::Rows(part) => {
                    rows += part.len() as u64;
                    Ok(part)
                }
                other => {
                    after_rows = Some(other);
                    Ok(Vec::new())
                }
            }
        })?;
        let mut restored =
            Restored { applied: landing.applied(), epoch: Epoch(0), rows, records: 0 };
        let mut filled = || {
            if Base::Rows(restored.applied) != full.header.base {
                let text = "its rows are not of the position that its header names";
                return Err(LandingError::Unfit(text.into()).into());
            }
            self.apply(&landing, &mut reader, after_rows.take(), full, &mut restored)?;
            for archive in later {
                let (mut reader, _) = open(&archive.path)?;
                self.apply(&landing, &mut reader, None, archive, &mut restored)?;
            }
            Ok(())
        };
        match filled() {
            Ok(()) => {
                restored.applied = landing.applied();
                Ok((landing, restored))
            }
            Err(error) => {
                landing.abandon();
                Err(error)
            }
        }
    }

    /// Applies an archive's frames as far as the target.
    fn apply(
        &mut self,
        landing: &Landing,
        reader: &mut ArchiveReader<BufReader<File>>,
        first: Option<Part>,
        archive: &Verified,
        restored: &mut Restored,
    ) -> Result<(), RestoreError> {
        let mut first = first;
        loop {
            self.told(reader.bytes_read())?;
            let part = match first.take() {
                Some(part) => part,
                None => reader.next_part().map_err(in_archive(&archive.path))?,
            };
            let frames = match part {
                Part::Frames(frames) => frames,
                Part::Rows(_) => Vec::new(),
                Part::End(_) => break,
            };
            for frame in frames {
                let standing = landing.applied().position;
                let beyond = match self.target {
                    Target::End => false,
                    Target::Position(position) => frame.last() > position,
                    Target::Time(time) => Millis(frame.commit_ms) > time,
                };
                if beyond {
                    break;
                }
                landing.apply(&frame)?;
                restored.records += landing.applied().position.0 - standing.0;
            }
        }
        self.read_before += archive.bytes;
        Ok(())
    }

    fn told(&mut self, read: u64) -> Result<(), RestoreError> {
        match (self.progress)(self.read_before + read, self.bytes_max) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(RestoreError::Stopped),
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
