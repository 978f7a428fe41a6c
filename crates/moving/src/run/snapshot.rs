//! A snapshot of the service: a full backup in a file, read to its end and found whole. Its kinds
//! stand behind its edges, so they are gathered on the way.

use std::fs::File;
use std::io::BufReader;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use guanxi_embedded::archive::{ArchiveBase, ArchiveHeader, ArchivePart, ArchiveReader, Trailer};
use guanxi_embedded::log::Lineage;
use guanxi_embedded::store::Applied;
use guanxi_embedded::store::carried::Carried;
use guanxi_model::Catalog;

use super::{MoveError, TellMoved};

/// How much of the file is read at once.
const READ_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    header: ArchiveHeader,
    trailer: Trailer,
    applied: Applied,
    catalog: Catalog,
    bytes: u64,
}

impl SnapshotFile {
    /// Reads all of the file; the progress is in bytes.
    pub fn open(path: &Path, progress: &mut TellMoved<'_>) -> Result<SnapshotFile, MoveError> {
        let mut reader = reader(path)?;
        let header = reader.header().clone();
        let ArchiveBase::Rows(applied) = header.base else {
            let text = "the snapshot holds no rows, only what came after some";
            return Err(MoveError::Unfit(text.into()));
        };
        let mut catalog = Catalog::default();
        loop {
            if progress(reader.bytes_read()).is_break() {
                return Err(MoveError::Stopped);
            }
            match reader.next_part()? {
                ArchivePart::Rows(rows) => {
                    for row in &rows {
                        match Carried::read(row)? {
                            Carried::Kind(tenant, kind) => catalog.set_kind(tenant, *kind),
                            Carried::NodeType(tenant, id, name) => {
                                catalog.set_type(tenant, id, name);
                            }
                            _ => {}
                        }
                    }
                }
                ArchivePart::Frames(_) => {}
                ArchivePart::End(trailer) => {
                    let (path, bytes) = (path.to_path_buf(), reader.bytes_read());
                    return Ok(SnapshotFile { path, header, trailer, applied, catalog, bytes });
                }
            }
        }
    }

    /// Whether the file is the snapshot that this move began with.
    pub fn is_of(&self, created_ms: u64, position: u64) -> bool {
        (self.header.created.0, self.applied.position.0) == (created_ms, position)
    }

    pub(super) fn header(&self) -> &ArchiveHeader {
        &self.header
    }

    /// The epochs of the service that it was taken of.
    pub fn lineage(&self) -> &Lineage {
        &self.trailer.lineage
    }

    pub(super) fn applied(&self) -> Applied {
        self.applied
    }

    pub(super) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// Rows in it, with those that tables do without.
    pub fn rows(&self) -> u64 {
        self.trailer.rows
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Every part of it but the end.
    pub(super) fn each_part(
        &self,
        mut take: impl FnMut(ArchivePart) -> Result<ControlFlow<()>, MoveError>,
    ) -> Result<(), MoveError> {
        let mut reader = reader(&self.path)?;
        loop {
            match reader.next_part()? {
                ArchivePart::End(_) => return Ok(()),
                part => {
                    if take(part)?.is_break() {
                        return Err(MoveError::Stopped);
                    }
                }
            }
        }
    }
}

fn reader(path: &Path) -> Result<ArchiveReader<BufReader<File>>, MoveError> {
    let cannot = |source| MoveError::File { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(cannot)?;
    Ok(ArchiveReader::open(BufReader::with_capacity(READ_BYTES, file))?)
}
