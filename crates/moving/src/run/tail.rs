//! The service's log from the snapshot on: frames become rows by the same rules as in the service,
//! many frames to a transaction. What they need to know of the rows that stand is read in one round
//! trip before.

use std::io::Read;

use guanxi_core::snapshot::{StoreError, Wanted};
use guanxi_embedded::archive::{ArchiveBase, ArchivePart, ArchiveReader};
use guanxi_embedded::engine::version_of;
use guanxi_embedded::log::Frame;
use guanxi_embedded::overlay::{Dirty, Layers, ReadRows as Rows};
use guanxi_embedded::store::{Applied, Store};
use guanxi_model::codec::decode_record;
use guanxi_model::record::EdgeRecord;
use guanxi_model::{Catalog, GroupsKey, Millis, NodeKey, Record, absorb};

use super::{ClusterMove, MoveError, TRIES_MAX, TellMoved, pause_before};
use crate::store::SqlStore;

/// Records that one transaction takes, and then on to the end of the frame.
const BATCH_RECORDS: usize = 4_000;

impl ClusterMove {
    /// Applies a backup that continues where the rows are; returns how many records it had. The
    /// progress is in positions.
    pub fn follow(
        &mut self,
        input: impl Read,
        progress: &mut TellMoved<'_>,
    ) -> Result<u64, MoveError> {
        let mut reader = ArchiveReader::open(input)?;
        let begin = self.applied().position;
        match reader.header().base {
            ArchiveBase::After(place) if place.position <= begin => {}
            _ => {
                let text = "what the service sent does not continue what was moved so far";
                return Err(MoveError::Unfit(text.into()));
            }
        }
        loop {
            match reader.next_part()? {
                ArchivePart::Rows(_) => {}
                ArchivePart::Frames(frames) => {
                    for batch in batches(&frames) {
                        self.apply(batch)?;
                        if progress(self.applied().position.0).is_break() {
                            return Err(MoveError::Stopped);
                        }
                    }
                }
                ArchivePart::End(_) => return Ok(self.applied().position.0 - begin.0),
            }
        }
    }

    /// Brings the rows past these frames; those that they have are passed over.
    pub(super) fn apply(&mut self, frames: &[Frame]) -> Result<(), MoveError> {
        let mut tries = 0;
        loop {
            let Some(store) = &self.store else {
                return Err(MoveError::Unfit("the snapshot is not loaded yet".into()));
            };
            match apply_frames(frames, store) {
                Err(StoreError::Io(_)) if tries < TRIES_MAX => {
                    std::thread::sleep(pause_before(tries));
                    tries += 1;
                    // It may have happened all the same: the tables say where they are.
                    self.open_store()?;
                }
                done => return Ok(done?),
            }
        }
    }
}

/// Frames that go together.
fn batches(frames: &[Frame]) -> impl Iterator<Item = &[Frame]> {
    let mut records = 0;
    frames.chunk_by(move |frame, _| {
        records += frame.records.len();
        let goes_on = records < BATCH_RECORDS;
        if !goes_on {
            records = 0;
        }
        goes_on
    })
}

fn apply_frames(frames: &[Frame], store: &SqlStore) -> Result<(), StoreError> {
    let standing = store.applied();
    let mut applied = standing;
    let mut records = Vec::new();
    for frame in frames.iter().filter(|frame| frame.last() > standing.position) {
        if frame.first.0 > applied.position.0 + 1 {
            return Err(StoreError::Damaged(format!(
                "a frame at position {} follows position {}",
                frame.first.0, applied.position.0
            )));
        }
        let known = applied.position.0 - (frame.first.0 - 1);
        for encoded in frame.records.iter().skip(known as usize) {
            records.push(decode_record(encoded)?);
        }
        let commit = Millis(frame.commit_ms);
        applied = Applied { epoch: frame.epoch, position: frame.last(), commit, ..applied };
    }
    if applied.position == standing.position {
        return Ok(());
    }
    let snapshot = store.snapshot();
    let catalog = store.catalog();
    snapshot.prefetch(&mut |wanted| {
        for record in &records {
            want(record, &catalog, wanted);
        }
        wanted.more = true;
    })?;
    let base = Rows::new(snapshot.as_ref());
    let mut layers = Layers::new(&[], &base);
    for record in records {
        applied.version = applied.version.max(version_of(&record));
        absorb(record, &mut layers)?;
    }
    let dirty = Dirty { last: applied.position, ..layers.current };
    store.write(&dirty, applied)
}

/// The rows that a record is about.
fn want(record: &Record, catalog: &Catalog, wanted: &mut Wanted) {
    match record {
        Record::Edge(record) => want_edge(record, catalog, wanted),
        Record::Group { groups, .. } => wanted.groups.push(*groups),
        Record::Node { node, .. } => wanted.nodes.push(*node),
        Record::Counter { tenant, kind, id, .. } => {
            let node_type = catalog.kind(*tenant, *kind).map(|kind| kind.fixed.target_type);
            let node = node_type.map(|node_type| NodeKey { tenant: *tenant, node_type, id: *id });
            wanted.nodes.extend(node);
        }
        _ => {}
    }
}

fn want_edge(record: &EdgeRecord, catalog: &Catalog, wanted: &mut Wanted) {
    let key = record.key;
    wanted.edges.push(key);
    // A kind of this very batch has no rows yet.
    let Some(kind) = catalog.kind(key.tenant, key.kind) else {
        return;
    };
    let node = |node_type, id| NodeKey { tenant: key.tenant, node_type, id };
    wanted.nodes.push(node(kind.fixed.source_type, key.source.0));
    wanted.nodes.push(node(kind.fixed.target_type, key.target.0));
    for row in record.old.iter().chain([&record.new]) {
        if let (Some(owner), Some(owner_type)) = (row.owner, kind.fixed.owner_type) {
            wanted.nodes.push(node(owner_type, owner));
        }
        if row.group.is_some() {
            wanted.groups.push(GroupsKey::of(&key));
        }
    }
}
