//! What a simulated file or folder holds: as seen by the process, as it is durable, and the
//! changes between the two that a power cut puts in doubt.

use std::collections::BTreeMap;

/// What the device writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// How a power cut treats what was not synced. The pure moods are there because independent
/// chances over many changes hardly ever all fall on the same side.
#[derive(Clone, Copy)]
pub(super) enum Mood {
    LoseAll,
    KeepAll,
    Mixed,
}

impl Mood {
    pub(super) fn any(random: &mut fastrand::Rng) -> Self {
        match random.u8(0..6) {
            0 => Mood::LoseAll,
            1 => Mood::KeepAll,
            _ => Mood::Mixed,
        }
    }

    fn keeps(self, random: &mut fastrand::Rng) -> bool {
        match self {
            Mood::LoseAll => false,
            Mood::KeepAll => true,
            Mood::Mixed => random.bool(),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct FileContent {
    seen: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<ContentChange>,
}

#[derive(Clone)]
enum ContentChange {
    Write { offset: usize, bytes: Vec<u8> },
    Grow { size: usize },
}

impl FileContent {
    pub(super) fn seen(&self) -> &[u8] {
        &self.seen
    }

    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        overwrite(&mut self.seen, offset, bytes);
        self.pending.push(ContentChange::Write { offset, bytes: bytes.to_vec() });
    }

    pub(super) fn grow(&mut self, size: usize) {
        grow(&mut self.seen, size);
        self.pending.push(ContentChange::Grow { size });
    }

    /// A sync that worked: all that is pending becomes durable, and no more than that (what an
    /// earlier failed sync lost stays lost).
    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            match change {
                ContentChange::Write { offset, bytes } => {
                    overwrite(&mut self.durable, offset, &bytes);
                }
                ContentChange::Grow { size } => grow(&mut self.durable, size),
            }
        }
    }

    /// Decides the fate of all that is pending; what is seen does not change.
    pub(super) fn settle(&mut self, mood: Mood, random: &mut fastrand::Rng) {
        for change in self.pending.drain(..) {
            match change {
                ContentChange::Write { offset, bytes } => {
                    settle_write(&mut self.durable, offset, &bytes, mood, random);
                }
                ContentChange::Grow { size } => {
                    if mood.keeps(random) {
                        grow(&mut self.durable, size);
                    }
                }
            }
        }
    }

    /// The power goes: only what is durable comes back.
    pub(super) fn cut(&mut self, mood: Mood, random: &mut fastrand::Rng) {
        self.settle(mood, random);
        self.seen.clone_from(&self.durable);
    }
}

/// A write that was not synced is lost, kept, kept up to some byte, or kept in some sectors.
fn settle_write(
    durable: &mut Vec<u8>,
    offset: usize,
    bytes: &[u8],
    mood: Mood,
    random: &mut fastrand::Rng,
) {
    let fate = match mood {
        Mood::LoseAll => 0,
        Mood::KeepAll => 1,
        Mood::Mixed => random.u8(0..4),
    };
    match fate {
        0 => {}
        1 => overwrite(durable, offset, bytes),
        2 => overwrite(durable, offset, &bytes[..random.usize(0..=bytes.len())]),
        _ => {
            let mut start = 0;
            while start < bytes.len() {
                let to_boundary = SECTOR_BYTES - (offset + start) % SECTOR_BYTES;
                let end = bytes.len().min(start + to_boundary);
                if random.bool() {
                    overwrite(durable, offset + start, &bytes[start..end]);
                }
                start = end;
            }
        }
    }
}

fn overwrite(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    grow(content, offset + bytes.len());
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn grow(content: &mut Vec<u8>, size: usize) {
    if content.len() < size {
        content.resize(size, 0);
    }
}

type Names = BTreeMap<String, usize>;

#[derive(Clone, Default)]
pub(super) struct FolderContent {
    seen: Names,
    durable: Names,
    pending: Vec<NameChange>,
}

/// Each of these happens whole or not at all.
#[derive(Clone)]
pub(super) enum NameChange {
    Add { name: String, inode: usize },
    Remove { name: String },
    Rename { from: String, to: String, inode: usize },
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        match self {
            NameChange::Add { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            NameChange::Remove { name } => {
                names.remove(name);
            }
            NameChange::Rename { from, to, inode } => {
                names.remove(from);
                names.insert(to.clone(), *inode);
            }
        }
    }
}

impl FolderContent {
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.seen.get(name).copied()
    }

    pub(super) fn list(&self) -> Vec<String> {
        self.seen.keys().cloned().collect()
    }

    pub(super) fn change(&mut self, change: NameChange) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// The power goes: each change that was not synced happened or not.
    pub(super) fn cut(&mut self, mood: Mood, random: &mut fastrand::Rng) {
        for change in self.pending.drain(..) {
            if mood.keeps(random) {
                change.apply(&mut self.durable);
            }
        }
        self.seen.clone_from(&self.durable);
    }
}
