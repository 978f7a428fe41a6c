//! The directory as a power cut could leave it. Draws, from a seed, what survives of each pending
//! change, and writes the result to disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::content::{Bytes, Content};
use super::replay::{FileChange, FileState, NameChange, Names, Object, ObjectNumber, ROOT, State};

const SECTOR_BYTES: u64 = 512;

/// How a cut treats what is pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    LoseAll,
    KeepAll,
    /// Each file and directory has its own fate; now and then all have the same.
    Seeded(u64),
}

/// Writes what `cut` leaves of `state` into `destination`, which must not exist.
pub fn write(state: &State<'_>, cut: Cut, destination: &Path) -> io::Result<()> {
    let mut rng = Rng::with_seed(if let Cut::Seeded(seed) = cut { seed } else { 0 });
    let (names_fate, files_fate) = match cut {
        Cut::LoseAll => (Some(NamesFate::Lost), Some(FileFate::Lost)),
        Cut::KeepAll => (Some(NamesFate::Kept), Some(FileFate::Kept)),
        Cut::Seeded(_) => match rng.u8(..10) {
            0..=2 => (Some(NamesFate::Lost), Some(FileFate::Lost)),
            3 => (Some(NamesFate::Kept), Some(FileFate::Lost)),
            4 => (Some(NamesFate::Lost), Some(FileFate::Kept)),
            _ => (None, None),
        },
    };
    let names_fate = names_fate.unwrap_or_else(|| NamesFate::draw(&mut rng));
    let names = surviving_names(state, names_fate, &mut rng);
    let mut writer = ImageWriter { state, names: &names, files_fate, rng, written: HashMap::new() };
    writer.directory(ROOT, destination)
}

/// Compares what the trace says stands now with what does stand below `root`: a difference means
/// that the recorder missed a call.
pub fn check_whole(state: &State<'_>, root: &Path) -> io::Result<()> {
    check_directory(state, ROOT, root)
}

/// All files below a directory, by their paths from there.
pub type Files = BTreeMap<PathBuf, Vec<u8>>;

pub fn read_files(root: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if let Ok(name) = path.strip_prefix(root) {
                files.insert(name.to_owned(), std::fs::read(&path)?);
            }
        }
    }
    Ok(files)
}

#[derive(Clone, Copy)]
enum FileFate {
    Lost,
    Kept,
    /// The changes survive up to one, which may be torn.
    Prefix,
    /// Each change is lost, kept or torn on its own.
    Each,
}

#[derive(Clone, Copy)]
enum NamesFate {
    Lost,
    Kept,
    /// As a journal that all directories share leaves them.
    Prefix,
    DirectoryPrefix,
    /// Each on its own, but a change only with all earlier ones of its names.
    Each,
}

impl NamesFate {
    fn draw(rng: &mut Rng) -> NamesFate {
        match rng.u8(..5) {
            0 => NamesFate::Lost,
            1 => NamesFate::Kept,
            2 => NamesFate::Prefix,
            3 => NamesFate::DirectoryPrefix,
            _ => NamesFate::Each,
        }
    }
}

struct ImageWriter<'s, 't> {
    state: &'s State<'t>,
    names: &'s HashMap<ObjectNumber, Names>,
    /// None: drawn anew for each file.
    files_fate: Option<FileFate>,
    rng: Rng,
    /// Where each file has been written, for its other links.
    written: HashMap<ObjectNumber, PathBuf>,
}

impl ImageWriter<'_, '_> {
    fn directory(&mut self, number: ObjectNumber, path: &Path) -> io::Result<()> {
        std::fs::create_dir(path)?;
        let Some(names) = self.names.get(&number) else {
            return Ok(());
        };
        for (name, object) in names {
            let path = path.join(name);
            match &self.state.objects[*object] {
                Object::Directory(_) => self.directory(*object, &path)?,
                Object::File(file) => match self.written.get(object) {
                    Some(other) => std::fs::hard_link(other, &path)?,
                    None => {
                        let fate = self.files_fate.unwrap_or_else(|| match self.rng.u8(..4) {
                            0 => FileFate::Lost,
                            1 => FileFate::Kept,
                            2 => FileFate::Prefix,
                            _ => FileFate::Each,
                        });
                        surviving_content(file, fate, &mut self.rng).to_file(&path)?;
                        self.written.insert(*object, path);
                    }
                },
            }
        }
        Ok(())
    }
}

fn surviving_content(file: &FileState<'_>, fate: FileFate, rng: &mut Rng) -> Content {
    let mut content = file.durable.clone();
    let whole = match fate {
        FileFate::Lost => return content,
        FileFate::Kept => return file.visible(),
        FileFate::Prefix => rng.usize(..=file.pending.len()),
        FileFate::Each => 0,
    };
    for (index, (_, change)) in file.pending.iter().enumerate() {
        let (keep, tear) = match fate {
            FileFate::Each => (rng.bool(), rng.bool()),
            _ => (index < whole, index == whole),
        };
        match change {
            _ if keep => change.apply_to(&mut content),
            FileChange::Write { offset, bytes } if tear => {
                tear_write(&mut content, *offset, bytes, rng)
            }
            // What follows a cut of the file's length is about the file as cut.
            FileChange::Truncate { length } if *length < content.length() => break,
            _ => {}
        }
    }
    content
}

/// A write of which a prefix, some sectors, or only the new length of the file has survived.
fn tear_write(content: &mut Content, offset: u64, bytes: &Bytes<'_>, rng: &mut Rng) {
    let end = offset + bytes.length();
    match rng.u8(..3) {
        0 => {
            let length = rng.u64(..=bytes.length());
            content.write(offset, &bytes.part(0, length));
        }
        1 => {
            let mut at = offset;
            while at < end {
                let next = ((at / SECTOR_BYTES + 1) * SECTOR_BYTES).min(end);
                if rng.bool() {
                    content.write(at, &bytes.part(at - offset, next - at));
                }
                at = next;
            }
            if rng.bool() {
                content.grow_to(end);
            }
        }
        _ => content.grow_to(end),
    }
}

/// The names that each directory has after the cut.
fn surviving_names(
    state: &State<'_>,
    fate: NamesFate,
    rng: &mut Rng,
) -> HashMap<ObjectNumber, Names> {
    let mut names = HashMap::new();
    let mut pending = Vec::new();
    let mut prefixes = HashMap::new();
    for (number, object) in state.objects.iter().enumerate() {
        if let Object::Directory(directory) = object {
            names.insert(number, directory.durable.clone());
            prefixes.insert(number, rng.usize(..=directory.pending.len()));
            for (index, (sequence, change)) in directory.pending.iter().enumerate() {
                // Of a move between directories the arrival is decided first.
                let departs = matches!(change, NameChange::MoveOut { .. });
                pending.push((*sequence, departs, number, index, change));
            }
        }
    }
    pending.sort_by_key(|(sequence, departs, ..)| (*sequence, *departs));
    let whole = rng.usize(..=pending.len());
    let last_kept = whole.checked_sub(1).map_or(0, |index| pending[index].0);

    let arrivals: HashSet<u64> =
        pending.iter().filter(|(_, _, _, _, change)| arrives(change)).map(|p| p.0).collect();
    let mut arrived = HashSet::new();
    let mut blocked: HashSet<(ObjectNumber, OsString)> = HashSet::new();
    for (sequence, _, directory, index, change) in pending {
        let drawn = match fate {
            NamesFate::Lost => false,
            NamesFate::Kept => true,
            NamesFate::Prefix => sequence <= last_kept,
            NamesFate::DirectoryPrefix => index < prefixes[&directory],
            NamesFate::Each => rng.bool(),
        };
        let is_blocked =
            |directory: ObjectNumber, name: &OsString| blocked.contains(&(directory, name.clone()));
        let free = !change.names().any(|name| is_blocked(directory, name));
        let keep = free
            && match change {
                NameChange::MoveIn { object, from, from_name, .. } => {
                    drawn && !(is_directory(state, *object) && is_blocked(*from, from_name))
                }
                NameChange::MoveOut { object, .. } => {
                    let has_arrived = !arrivals.contains(&sequence) || arrived.contains(&sequence);
                    has_arrived && (drawn || is_directory(state, *object))
                }
                _ => drawn,
            };
        if keep {
            change.apply_to(names.entry(directory).or_default());
            if arrives(change) {
                arrived.insert(sequence);
            }
        } else {
            blocked.extend(change.names().map(|name| (directory, name.clone())));
        }
    }
    names
}

fn arrives(change: &NameChange) -> bool {
    matches!(change, NameChange::MoveIn { .. })
}

fn is_directory(state: &State<'_>, object: ObjectNumber) -> bool {
    matches!(state.objects[object], Object::Directory(_))
}

fn check_directory(state: &State<'_>, number: ObjectNumber, path: &Path) -> io::Result<()> {
    let Object::Directory(directory) = &state.objects[number] else {
        return Err(io::Error::other(format!("{} is a file in the trace", path.display())));
    };
    let mut found = std::fs::read_dir(path)?
        .map(|entry| entry.map(|entry| entry.file_name()))
        .collect::<io::Result<Vec<OsString>>>()?;
    found.sort();
    if !found.iter().eq(directory.visible.keys()) {
        let known: Vec<_> = directory.visible.keys().collect();
        return Err(missed(path, format!("holds {found:?}, the trace knows {known:?}")));
    }
    for (name, object) in &directory.visible {
        let path = path.join(name);
        match &state.objects[*object] {
            Object::Directory(_) => check_directory(state, *object, &path)?,
            Object::File(file) => {
                if let Some(offset) = file.visible().difference(&path)? {
                    return Err(missed(&path, format!("differs from the trace at byte {offset}")));
                }
            }
        }
    }
    Ok(())
}

fn missed(path: &Path, what: String) -> io::Error {
    io::Error::other(format!(
        "{} {what}: the recorder missed a call; the binary must be built with --cfg rustix_use_libc",
        path.display()
    ))
}
