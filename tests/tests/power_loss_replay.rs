//! Tests of the replay of the power-loss test, on traces written by hand.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

use guanxi_tests::powerloss::image::{self, Cut, Files, read_files};
use guanxi_tests::powerloss::replay::State;
use guanxi_tests::powerloss::trace::{Bytes, Identity, Record, Trace, TraceWriter};
use tempfile::TempDir;

const SEEDS: u64 = 60;

#[test]
fn only_writes_before_the_begin_of_a_sync_are_durable_at_its_end() {
    let file = identity(2);
    let mut records = created(file);
    records.extend([
        write(file, 0, b"before"),
        Record::SyncBegin { object: file, ticket: 1, data_only: true },
        write(file, 6, b" between"),
    ]);
    assert_eq!(lose_all(&records)["f"], b"");
    records.push(Record::SyncEnd { ticket: 1, succeeded: true });
    assert_eq!(lose_all(&records)["f"], b"before");
}

#[test]
fn a_failed_sync_makes_nothing_durable() {
    let file = identity(2);
    let mut records = created(file);
    records.extend([
        write(file, 0, b"lost"),
        Record::SyncBegin { object: file, ticket: 1, data_only: false },
        Record::SyncEnd { ticket: 1, succeeded: false },
    ]);
    assert_eq!(lose_all(&records)["f"], b"");
}

#[test]
fn a_sync_covers_lengths() {
    let file = identity(2);
    for (change, length) in [
        (Record::Truncate { file, length: 3 }, 3),
        (Record::Truncate { file, length: 9000 }, 9000),
        (Record::Allocate { file, offset: 0, length: 5000 }, 5000),
        (Record::Write { file, offset: 4000, bytes: Bytes::Zeros(100) }, 4100),
    ] {
        let mut records = created(file);
        records.extend([write(file, 0, b"bytes")]);
        records.extend(synced(file, 1));
        records.push(change);
        assert_eq!(lose_all(&records)["f"], b"bytes");
        records.extend(synced(file, 2));
        assert_eq!(lose_all(&records)["f"].len(), length);
    }
}

#[test]
fn an_inode_that_comes_back_is_another_file() {
    let (directory, file) = (identity(1), identity(2));
    let mut records = created(file);
    records.push(write(file, 0, b"the first"));
    records.extend(synced(file, 1));
    records.push(Record::Remove { directory, name: OsStr::new("f") });
    records.push(Record::Create { directory, name: OsStr::new("g"), file });
    records.push(write(file, 0, b"the second"));
    records.extend(synced(file, 2));
    assert_eq!(lose_all(&records), BTreeMap::from([("f".to_owned(), b"the first".to_vec())]));
    records.extend(synced(directory, 3));
    assert_eq!(lose_all(&records), BTreeMap::from([("g".to_owned(), b"the second".to_vec())]));
}

#[test]
fn a_file_that_moves_between_directories_is_never_in_neither() {
    let (root, from, to, file) = (identity(1), identity(2), identity(3), identity(4));
    let records = [
        Record::Root { directory: root },
        Record::MakeDirectory { directory: root, name: OsStr::new("from"), made: from },
        Record::MakeDirectory { directory: root, name: OsStr::new("to"), made: to },
        Record::Create { directory: from, name: OsStr::new("f"), file },
        Record::Settled,
        Record::Rename {
            from_directory: from,
            from: OsStr::new("f"),
            to_directory: to,
            to: OsStr::new("g"),
        },
    ];
    let (before, after) = (Path::new("from/f"), Path::new("to/g"));
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let files = image_of(&records, Cut::Seeded(seed));
        seen.insert((files.contains_key(before), files.contains_key(after)));
    }
    assert_eq!(seen, BTreeSet::from([(true, false), (true, true), (false, true)]));
    for (synced_directory, both_possible) in [(from, false), (to, true)] {
        let mut records = records.to_vec();
        records.extend(synced(synced_directory, 1));
        let files = image_of(&records, Cut::LoseAll);
        assert!(files.contains_key(after));
        assert_eq!(files.contains_key(before), both_possible);
    }
}

#[test]
fn a_lost_record_is_an_error_not_a_wrong_image() {
    let missing_create = [Record::Root { directory: identity(1) }, write(identity(9), 0, b"x")];
    let missing_name = [
        Record::Root { directory: identity(1) },
        Record::Remove { directory: identity(1), name: OsStr::new("never made") },
    ];
    for records in [missing_create, missing_name] {
        let directory = TempDir::new().expect("a directory");
        let trace = trace_of(&records, directory.path());
        assert!(State::after(&trace, trace.length()).is_err());
    }
}

fn identity(inode: u64) -> Identity {
    Identity { device: 1, inode }
}

/// A root with the empty file `f`, all durable.
fn created(file: Identity) -> Vec<Record<'static>> {
    let directory = identity(1);
    vec![
        Record::Root { directory },
        Record::Create { directory, name: OsStr::new("f"), file },
        Record::Settled,
    ]
}

fn write(file: Identity, offset: u64, bytes: &'static [u8]) -> Record<'static> {
    Record::Write { file, offset, bytes: Bytes::Given(bytes) }
}

fn synced(object: Identity, ticket: u64) -> [Record<'static>; 2] {
    [
        Record::SyncBegin { object, ticket, data_only: false },
        Record::SyncEnd { ticket, succeeded: true },
    ]
}

/// Through a file, so that the layout is tested too.
fn trace_of(records: &[Record<'_>], directory: &Path) -> Trace {
    let path = directory.join("trace");
    let writer = TraceWriter::append_to(&path).expect("the trace is made");
    for record in records {
        writer.append(record).expect("a record is appended");
    }
    let trace = Trace::read(&path).expect("the trace is read");
    assert!(trace.records().eq(records.iter().copied()));
    trace
}

fn image_of(records: &[Record<'_>], cut: Cut) -> Files {
    let directory = TempDir::new().expect("a directory");
    let trace = trace_of(records, directory.path());
    let state = State::after(&trace, trace.length()).expect("the trace replays");
    let path = directory.path().join("image");
    image::write(&state, cut, &path).expect("the image is written");
    read_files(&path).expect("the image is read")
}

fn lose_all(records: &[Record<'_>]) -> BTreeMap<String, Vec<u8>> {
    let files = image_of(records, Cut::LoseAll);
    files.into_iter().map(|(path, content)| (path.display().to_string(), content)).collect()
}
