//! What is durable and what is pending after any prefix of a trace, for each file and directory.
//!
//! An object is one file or directory from its creation on: an inode that comes back is a new
//! object. Objects are never forgotten, because a removal that is lost brings its file back.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;

use super::content::{Bytes, Content};
use super::trace::{Identity, Record, Trace};

pub(super) type ObjectNumber = usize;
pub(super) type Names = BTreeMap<OsString, ObjectNumber>;

/// Grows record by record; an image can be made of it at any time.
#[derive(Default)]
pub struct State<'t> {
    pub(super) objects: Vec<Object<'t>>,
    numbers: HashMap<Identity, ObjectNumber>,
    syncs: HashMap<u64, Sync>,
    sequence: u64,
}

pub(super) enum Object<'t> {
    File(FileState<'t>),
    Directory(DirectoryState),
}

#[derive(Default)]
pub(super) struct FileState<'t> {
    pub durable: Content,
    pub pending: Vec<(u64, FileChange<'t>)>,
}

#[derive(Clone, Copy)]
pub(super) enum FileChange<'t> {
    Write { offset: u64, bytes: Bytes<'t> },
    Truncate { length: u64 },
    Allocate { end: u64 },
}

#[derive(Default)]
pub(super) struct DirectoryState {
    pub durable: Names,
    pub visible: Names,
    pub pending: Vec<(u64, NameChange)>,
}

/// A rename inside a directory is one change. One between directories is two with one sequence
/// number; the name never leaves the one without having entered the other.
pub(super) enum NameChange {
    Add { name: OsString, object: ObjectNumber },
    Remove { name: OsString },
    Rename { from: OsString, to: OsString, object: ObjectNumber },
    MoveIn { name: OsString, object: ObjectNumber, from: ObjectNumber, from_name: OsString },
    MoveOut { name: OsString, object: ObjectNumber, to: ObjectNumber },
}

/// A sync under way: it covers the changes of its object up to a sequence number.
struct Sync {
    object: ObjectNumber,
    covers: u64,
}

/// The root is the first object.
pub(super) const ROOT: ObjectNumber = 0;

impl<'t> State<'t> {
    /// The state after the trace's first `records` records.
    pub fn after(trace: &'t Trace, records: usize) -> io::Result<State<'t>> {
        let mut state = State::default();
        state.advance(trace, 0, records)?;
        Ok(state)
    }

    /// Applies the records from `from` up to, not including, `to`.
    pub fn advance(&mut self, trace: &'t Trace, from: usize, to: usize) -> io::Result<()> {
        for index in from..to {
            let record = trace.record(index);
            self.apply(&record).map_err(|error| {
                io::Error::other(format!(
                    "record {index}, {record:.120?}: {error}; is a call missing from the trace? \
                     The binary must be built with --cfg rustix_use_libc"
                ))
            })?;
        }
        Ok(())
    }

    pub fn apply(&mut self, record: &Record<'t>) -> Result<(), String> {
        self.sequence += 1;
        match *record {
            Record::Root { directory } => {
                self.new_object(directory, Object::Directory(DirectoryState::default()));
            }
            Record::Create { directory, name, file } => {
                let object = self.new_object(file, Object::File(FileState::default()));
                self.add_name(directory, name, object)?;
            }
            Record::MakeDirectory { directory, name, made } => {
                let object = self.new_object(made, Object::Directory(DirectoryState::default()));
                self.add_name(directory, name, object)?;
            }
            Record::Link { directory, name, file } => {
                let object = self.number(file)?;
                self.add_name(directory, name, object)?;
            }
            Record::Remove { directory, name } | Record::RemoveDirectory { directory, name } => {
                let sequence = self.sequence;
                let (_, directory) = self.directory(directory)?;
                take_name(directory, name)?;
                directory.pending.push((sequence, NameChange::Remove { name: name.to_owned() }));
            }
            Record::Rename { from_directory, from, to_directory, to } => {
                self.rename(from_directory, from, to_directory, to)?;
            }
            Record::Write { file, offset, bytes } => {
                self.change_file(file, FileChange::Write { offset, bytes })?
            }
            Record::Truncate { file, length } => {
                self.change_file(file, FileChange::Truncate { length })?
            }
            Record::Allocate { file, offset, length } => {
                self.change_file(file, FileChange::Allocate { end: offset + length })?;
            }
            Record::SyncBegin { object, ticket, .. } => {
                let object = self.number(object)?;
                self.syncs.insert(ticket, Sync { object, covers: self.sequence });
            }
            Record::SyncEnd { ticket, succeeded } => {
                let sync = self.syncs.remove(&ticket).ok_or("a sync ended that never began")?;
                if succeeded {
                    self.make_durable(sync.object, sync.covers);
                }
            }
            Record::Mark { .. } => {}
            Record::Settled => {
                for object in 0..self.objects.len() {
                    self.make_durable(object, self.sequence);
                }
            }
        }
        Ok(())
    }

    fn new_object(&mut self, identity: Identity, object: Object<'t>) -> ObjectNumber {
        self.objects.push(object);
        self.numbers.insert(identity, self.objects.len() - 1);
        self.objects.len() - 1
    }

    fn number(&self, identity: Identity) -> Result<ObjectNumber, String> {
        self.numbers
            .get(&identity)
            .copied()
            .ok_or_else(|| format!("inode {} is unknown", identity.inode))
    }

    fn directory(
        &mut self,
        identity: Identity,
    ) -> Result<(ObjectNumber, &mut DirectoryState), String> {
        let number = self.number(identity)?;
        match &mut self.objects[number] {
            Object::Directory(directory) => Ok((number, directory)),
            Object::File(_) => Err(format!("inode {} is a file, not a directory", identity.inode)),
        }
    }

    fn change_file(&mut self, identity: Identity, change: FileChange<'t>) -> Result<(), String> {
        let number = self.number(identity)?;
        match &mut self.objects[number] {
            Object::File(file) => file.pending.push((self.sequence, change)),
            Object::Directory(_) => {
                return Err(format!("inode {} is a directory, not a file", identity.inode));
            }
        }
        Ok(())
    }

    fn add_name(
        &mut self,
        directory: Identity,
        name: &OsStr,
        object: ObjectNumber,
    ) -> Result<(), String> {
        let sequence = self.sequence;
        let (_, directory) = self.directory(directory)?;
        if directory.visible.insert(name.to_owned(), object).is_some() {
            return Err(format!("the name {name:?} stands already"));
        }
        directory.pending.push((sequence, NameChange::Add { name: name.to_owned(), object }));
        Ok(())
    }

    fn rename(
        &mut self,
        from_directory: Identity,
        from: &OsStr,
        to_directory: Identity,
        to: &OsStr,
    ) -> Result<(), String> {
        let sequence = self.sequence;
        let (target, directory) = self.directory(to_directory)?;
        let replaced = directory.visible.get(to).copied();
        let (source, directory) = self.directory(from_directory)?;
        if replaced.is_some() && replaced == directory.visible.get(from).copied() {
            return Ok(()); // two links to one file: POSIX leaves both
        }
        let object = take_name(directory, from)?;
        let (from, to) = (from.to_owned(), to.to_owned());
        if source == target {
            directory.visible.insert(to.clone(), object);
            directory.pending.push((sequence, NameChange::Rename { from, to, object }));
            return Ok(());
        }
        let out = NameChange::MoveOut { name: from.clone(), object, to: target };
        directory.pending.push((sequence, out));
        let (_, directory) = self.directory(to_directory)?;
        directory.visible.insert(to.clone(), object);
        let into = NameChange::MoveIn { name: to, object, from: source, from_name: from };
        directory.pending.push((sequence, into));
        Ok(())
    }

    fn make_durable(&mut self, object: ObjectNumber, covers: u64) {
        match &mut self.objects[object] {
            Object::File(file) => {
                let covered = file.pending.partition_point(|(sequence, _)| *sequence <= covers);
                for (_, change) in file.pending.drain(..covered) {
                    change.apply_to(&mut file.durable);
                }
            }
            Object::Directory(directory) => {
                let covered =
                    directory.pending.partition_point(|(sequence, _)| *sequence <= covers);
                let changes = directory.pending.drain(..covered).collect();
                self.make_names_durable(object, changes);
            }
        }
    }

    /// A name that has left for good has arrived, and a directory has one parent: the other half of
    /// a move between directories becomes durable too, with what its name had pending before it.
    fn make_names_durable(&mut self, directory: ObjectNumber, changes: Vec<(u64, NameChange)>) {
        for (sequence, change) in changes {
            let other = match &change {
                NameChange::MoveOut { to, .. } => Some(*to),
                NameChange::MoveIn { from, object, .. } => {
                    matches!(self.objects[*object], Object::Directory(_)).then_some(*from)
                }
                _ => None,
            };
            if let Object::Directory(state) = &mut self.objects[directory] {
                change.apply_to(&mut state.durable);
            }
            if let Some(other) = other
                && let Object::Directory(state) = &mut self.objects[other]
            {
                let related = take_history(&mut state.pending, sequence);
                self.make_names_durable(other, related);
            }
        }
    }
}

impl FileChange<'_> {
    pub fn apply_to(&self, content: &mut Content) {
        match self {
            FileChange::Write { offset, bytes } => content.write(*offset, bytes),
            FileChange::Truncate { length } => content.set_length(*length),
            FileChange::Allocate { end } => content.grow_to(*end),
        }
    }
}

impl FileState<'_> {
    pub fn visible(&self) -> Content {
        let mut content = self.durable.clone();
        for (_, change) in &self.pending {
            change.apply_to(&mut content);
        }
        content
    }
}

impl NameChange {
    pub fn apply_to(&self, names: &mut Names) {
        match self {
            NameChange::Add { name, object } | NameChange::MoveIn { name, object, .. } => {
                names.insert(name.clone(), *object);
            }
            NameChange::Remove { name } | NameChange::MoveOut { name, .. } => {
                names.remove(name);
            }
            NameChange::Rename { from, to, object } => {
                names.remove(from);
                names.insert(to.clone(), *object);
            }
        }
    }

    /// The names in the change's own directory that it touches.
    pub fn names(&self) -> impl Iterator<Item = &OsString> {
        let (one, other) = match self {
            NameChange::Rename { from, to, .. } => (from, Some(to)),
            NameChange::Add { name, .. }
            | NameChange::Remove { name }
            | NameChange::MoveIn { name, .. }
            | NameChange::MoveOut { name, .. } => (name, None),
        };
        [Some(one), other].into_iter().flatten()
    }
}

fn take_name(directory: &mut DirectoryState, name: &OsStr) -> Result<ObjectNumber, String> {
    directory.visible.remove(name).ok_or_else(|| format!("the name {name:?} is unknown"))
}

/// Takes the change with this sequence number and those before it on which its names depend.
fn take_history(pending: &mut Vec<(u64, NameChange)>, sequence: u64) -> Vec<(u64, NameChange)> {
    let mut names = HashSet::new();
    let mut history = Vec::new();
    for index in (0..pending.len()).rev() {
        let (at, change) = &pending[index];
        if *at == sequence || *at < sequence && change.names().any(|name| names.contains(name)) {
            names.extend(change.names().cloned());
            history.push(pending.remove(index));
        }
    }
    history.reverse();
    history
}
