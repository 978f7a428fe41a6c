//! A file's bytes in memory, sparse, so that preallocated files of many MiB cost what is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const PAGE_BYTES: u64 = 4096;
type Page = [u8; PAGE_BYTES as usize];

/// The bytes of one write; the trace leaves out those that are all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bytes<'t> {
    Zeros(u64),
    Given(&'t [u8]),
}

impl Bytes<'_> {
    pub fn length(&self) -> u64 {
        match self {
            Bytes::Zeros(length) => *length,
            Bytes::Given(bytes) => bytes.len() as u64,
        }
    }

    /// The part from `start` on, `length` bytes of it.
    pub(super) fn part(&self, start: u64, length: u64) -> Bytes<'_> {
        match self {
            Bytes::Zeros(_) => Bytes::Zeros(length),
            Bytes::Given(bytes) => Bytes::Given(&bytes[start as usize..(start + length) as usize]),
        }
    }
}

/// Cheap to clone: pages are shared until they are written.
#[derive(Clone, Default)]
pub(super) struct Content {
    length: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

impl Content {
    pub fn write(&mut self, offset: u64, bytes: &Bytes<'_>) {
        self.grow_to(offset + bytes.length());
        let mut done = 0;
        while done < bytes.length() {
            let position = offset + done;
            let within = position % PAGE_BYTES;
            let count = (PAGE_BYTES - within).min(bytes.length() - done);
            let range = within as usize..(within + count) as usize;
            let number = position / PAGE_BYTES;
            match bytes.part(done, count) {
                Bytes::Given(part) => self.page(number)[range].copy_from_slice(part),
                Bytes::Zeros(_) if self.pages.contains_key(&number) => {
                    self.page(number)[range].fill(0)
                }
                Bytes::Zeros(_) => {}
            }
            done += count;
        }
    }

    pub fn grow_to(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    pub fn set_length(&mut self, length: u64) {
        if length < self.length {
            self.pages.split_off(&length.div_ceil(PAGE_BYTES));
            let within = (length % PAGE_BYTES) as usize;
            if within > 0 && self.pages.contains_key(&(length / PAGE_BYTES)) {
                self.page(length / PAGE_BYTES)[within..].fill(0);
            }
        }
        self.length = length;
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        let file = File::create_new(path)?;
        file.set_len(self.length)?;
        for (number, page) in &self.pages {
            let offset = number * PAGE_BYTES;
            let count = PAGE_BYTES.min(self.length - offset) as usize;
            file.write_all_at(&page[..count], offset)?;
        }
        Ok(())
    }

    /// The first offset where a file differs, or its length when that does.
    pub fn difference(&self, path: &Path) -> io::Result<Option<u64>> {
        let found = std::fs::read(path)?;
        let zeros = [0; PAGE_BYTES as usize];
        for (number, bytes) in found.chunks(PAGE_BYTES as usize).enumerate() {
            let page = self.pages.get(&(number as u64)).map_or(&zeros, |page| &**page);
            if let Some(at) = bytes.iter().zip(page).position(|(found, wanted)| found != wanted) {
                return Ok(Some(number as u64 * PAGE_BYTES + at as u64));
            }
        }
        Ok((found.len() as u64 != self.length).then_some(found.len() as u64))
    }

    fn page(&mut self, number: u64) -> &mut Page {
        Arc::make_mut(
            self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])),
        )
    }
}
