//! Tests of the recorder of the power-loss test, and of the images made of its traces, on small
//! programs with known sequences of file calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use guanxi_tests::powerloss::image::{self, Cut, Files, read_files};
use guanxi_tests::powerloss::recorder::{self, Recording};
use guanxi_tests::powerloss::replay::State;
use guanxi_tests::powerloss::trace::{Record, Trace};
use tempfile::TempDir;

const WRITER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/powerloss/writer.c");
const SEEDS: u64 = 60;
/// Set only in the process that [`standard_library_calls_are_recorded`] starts.
const RUST_WRITER_ROOT: &str = "GUANXI_RUST_WRITER_ROOT";

#[test]
fn a_correct_replace_is_never_seen_half_done() {
    let run = Run::recorded("replace");
    let old_is_durable = run.nth_sync_end(2);
    let mut seen = BTreeSet::new();
    for cut in old_is_durable..=run.trace.length() {
        for files in run.images(cut) {
            let content = files.get(Path::new("a")).expect("a stands");
            assert!(is_all(content, b'o') || is_all(content, b'n'), "cut {cut}: {content:?}");
            seen.insert(content[0]);
        }
    }
    assert_eq!(seen, BTreeSet::from([b'o', b'n']));
    for files in run.images(run.trace.length()) {
        assert_eq!(files.len(), 1);
        assert!(is_all(&files[Path::new("a")], b'n'));
    }
}

#[test]
fn a_missing_file_sync_is_caught() {
    let run = Run::recorded("replace-without-file-sync");
    let images = run.images(run.trace.length());
    let contents: Vec<&Vec<u8>> = images.iter().map(|files| &files[Path::new("a")]).collect();
    assert!(contents.iter().any(|content| content.is_empty()), "no image lost the bytes");
    assert!(contents.iter().any(|content| is_all(content, b'n')), "no image kept the bytes");
    let torn = |content: &&Vec<u8>| content.contains(&b'n') && !is_all(content, b'n');
    assert!(contents.iter().any(torn), "no image tore the write");
    let zeros = |content: &&Vec<u8>| content.len() == 1500 && content.iter().all(|byte| *byte == 0);
    assert!(contents.iter().any(zeros), "no image kept the length alone");
}

#[test]
fn a_missing_directory_sync_is_caught() {
    let run = Run::recorded("replace-without-directory-sync");
    let lost = run.image(run.trace.length(), Cut::LoseAll);
    assert!(is_all(&lost[Path::new("a")], b'o'));
    let images = run.images(run.trace.length());
    assert!(images.iter().any(|files| is_all(&files[Path::new("a")], b'o')));
    assert!(images.iter().any(|files| is_all(&files[Path::new("a")], b'n')));
    assert!(
        images.iter().any(|files| files.contains_key(Path::new("a.new"))),
        "no image cut before the rename"
    );
}

#[test]
fn a_directory_whose_own_name_is_not_synced_may_vanish() {
    let run = Run::recorded("nested-without-root-sync");
    let images = run.images(run.trace.length());
    assert!(images.iter().any(|files| files.is_empty()));
    assert!(images.iter().any(|files| files.contains_key(Path::new("d/f"))));
    let run = Run::recorded("nested");
    for files in run.images(run.trace.length()) {
        assert!(is_all(&files[Path::new("d/f")], b'n'));
    }
}

#[test]
fn every_cut_of_every_call_gives_an_image() {
    let run = Run::recorded("all-calls");
    for cut in run.trace.settled()..=run.trace.length() {
        run.images(cut);
    }
}

#[test]
fn a_trace_is_whole() {
    let run = Run::recorded("all-calls");
    let state = State::after(&run.trace, run.trace.length()).expect("the trace replays");
    image::check_whole(&state, &run.root()).expect("the trace holds every call");
    std::fs::write(run.root().join("one"), "behind the recorder's back")
        .expect("one can be written");
    image::check_whole(&state, &run.root()).expect_err("an unrecorded write is found");
}

#[test]
fn a_recording_begins_with_what_stands() {
    let run = Run::recorded("all-calls");
    let trace = run.directory.path().join("second");
    Recording::start(&run.library, &run.root(), &trace).expect("the recording starts");
    let trace = Trace::read(&trace).expect("the trace is read");
    let state = State::after(&trace, trace.length()).expect("the trace replays");
    image::check_whole(&state, &run.root()).expect("the trace holds the tree");
    let copy = run.directory.path().join("copy");
    image::write(&state, Cut::LoseAll, &copy).expect("the image is written");
    let [copied, original] = [copy, run.root()].map(|path| read_files(&path).expect("it is read"));
    assert_eq!(copied, original);
}

#[test]
fn standard_library_calls_are_recorded() {
    if let Some(root) = std::env::var_os(RUST_WRITER_ROOT) {
        return write_with_standard_library(Path::new(&root));
    }
    let run = Run::new();
    let recording = run.start_recording();
    let mut command = Command::new(std::env::current_exe().expect("a test knows its path"));
    command
        .args(["--exact", "standard_library_calls_are_recorded"])
        .env(RUST_WRITER_ROOT, run.root());
    recording.attach(&mut command);
    let output = command.output().expect("the test runs itself");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = Trace::read(recording.trace()).expect("the trace is read");
    assert!(trace.length() > 15);
    let state = State::after(&trace, trace.length()).expect("the trace replays");
    image::check_whole(&state, &run.root()).expect("the trace holds every call");
}

#[test]
fn calls_that_are_not_modelled_abort() {
    let calls = [
        ("sync_file_range", "sync_file_range"),
        ("mmap", "a shared writable mmap"),
        ("copy_file_range", "copy_file_range"),
        ("sendfile", "sendfile"),
        ("io_uring_setup", "io_uring_setup"),
        ("O_DSYNC", "open with O_SYNC or O_DSYNC"),
        ("O_TMPFILE", "open with O_TMPFILE"),
        ("symlink", "symlink"),
        ("fopen", "fopen for writing"),
        ("RENAME_EXCHANGE", "renameat2 with RENAME_EXCHANGE"),
    ];
    for (scenario, message) in calls {
        let run = Run::new();
        let recording = run.start_recording();
        let output = run.write(scenario, |command| recording.attach(command));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{scenario} went on");
        assert!(said.contains(&format!("guanxi recorder: {message}")), "{scenario} said {said}");
    }
}

#[test]
fn a_recorded_program_can_be_killed_between_calls() {
    let run = Run::new();
    let recording = run.start_recording();
    recording.kill_at_next_call().expect("the stop file is made");
    let output = run.write("all-calls", |command| recording.attach(command));
    assert!(output.status.code().is_none(), "the writer was not killed: {:?}", output.status);
    assert_eq!(read_files(&run.root()).expect("the root is read"), Files::new());
}

/// strace sees what the kernel sees: the recorder must have neither more nor less.
#[test]
fn the_recorder_counts_as_strace_does() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!(
            "SKIPPED: strace is not installed, the recorder's counts are not compared with it"
        );
        return;
    }
    let run = Run::recorded("all-calls");
    let mut recorded = BTreeMap::new();
    for record in run.trace.records() {
        if let Some(name) = count_name(&record) {
            *recorded.entry(name).or_insert(0) += 1;
        }
    }

    let plain = Run::new();
    let log = plain.directory.path().join("strace");
    let output = Command::new("strace")
        .args(["-f", "-y", "-o"])
        .arg(&log)
        .arg(&plain.writer)
        .arg(plain.root())
        .arg("all-calls")
        .output()
        .expect("strace starts");
    if !output.status.success() {
        eprintln!("SKIPPED: strace cannot trace here: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let log = std::fs::read_to_string(log).expect("strace has written its log");
    let root = plain.root().display().to_string();
    let mut traced = BTreeMap::new();
    for line in log.lines().filter(|line| line.contains(&root) && !line.contains(" = -1 ")) {
        if let Some(name) = strace_name(line) {
            *traced.entry(name).or_insert(0) += 1;
        }
    }
    assert_eq!(recorded, traced, "{log}");
}

/// A directory with the recorder, the writer and a root, and the trace of one run.
struct Run<T = Trace> {
    directory: TempDir,
    library: PathBuf,
    writer: PathBuf,
    trace: T,
}

impl Run<()> {
    fn new() -> Run<()> {
        let directory = TempDir::new().expect("a directory");
        let library = recorder::build(directory.path()).expect("the recorder compiles");
        let writer = directory.path().join("writer");
        let compiled = Command::new("cc").args(["-w", "-o"]).arg(&writer).arg(WRITER).status();
        assert!(compiled.expect("cc starts").success());
        std::fs::create_dir(directory.path().join("root")).expect("the root is made");
        Run { directory, library, writer, trace: () }
    }
}

impl Run {
    fn recorded(scenario: &str) -> Run {
        let run = Run::new();
        let recording = run.start_recording();
        let output = run.write(scenario, |command| recording.attach(command));
        assert!(output.status.success(), "{scenario}: {}", String::from_utf8_lossy(&output.stderr));
        let trace = Trace::read(recording.trace()).expect("the trace is read");
        Run { directory: run.directory, library: run.library, writer: run.writer, trace }
    }

    fn image(&self, cut: usize, fate: Cut) -> Files {
        let state = State::after(&self.trace, cut).expect("the trace replays");
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().join("image");
        image::write(&state, fate, &path).expect("the image is written");
        read_files(&path).expect("the image is read")
    }

    fn images(&self, cut: usize) -> Vec<Files> {
        (0..SEEDS).map(|seed| self.image(cut, Cut::Seeded(seed))).collect()
    }

    /// The number of records up to the n-th end of a sync.
    fn nth_sync_end(&self, n: usize) -> usize {
        let is_end = |record: &Record<'_>| matches!(record, Record::SyncEnd { .. });
        let mut ends = self.trace.records().enumerate().filter(|(_, record)| is_end(record));
        ends.nth(n - 1).expect("so many syncs").0 + 1
    }
}

impl<T> Run<T> {
    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn start_recording(&self) -> Recording {
        let trace = self.directory.path().join("trace");
        Recording::start(&self.library, &self.root(), &trace).expect("the recording starts")
    }

    fn write(&self, scenario: &str, prepare: impl FnOnce(&mut Command)) -> Output {
        let mut command = Command::new(&self.writer);
        command.arg(self.root()).arg(scenario);
        prepare(&mut command);
        command.output().expect("the writer starts")
    }
}

fn is_all(content: &[u8], letter: u8) -> bool {
    content.len() == 1500 && content.iter().all(|byte| *byte == letter)
}

fn write_with_standard_library(root: &Path) {
    let written = || -> std::io::Result<()> {
        std::fs::create_dir_all(root.join("a/b"))?;
        let mut file = std::fs::File::create_new(root.join("a/b/f"))?;
        file.write_all(b"first")?;
        file.set_len(9000)?;
        file.sync_data()?;
        let mut clone = file.try_clone()?;
        let parts = [IoSlice::new(b"clo"), IoSlice::new(b"ned")];
        assert_eq!(clone.write_vectored(&parts)?, 6);
        std::os::unix::fs::FileExt::write_all_at(&file, b"at", 7000)?;
        std::fs::rename(root.join("a/b/f"), root.join("a/g"))?;
        std::fs::write(root.join("a/h"), b"short")?;
        std::fs::write(root.join("a/h"), b"shorter")?;
        std::fs::hard_link(root.join("a/h"), root.join("a/i"))?;
        std::fs::create_dir_all(root.join("x/y"))?;
        std::fs::write(root.join("x/y/z"), vec![0; 10_000])?;
        std::fs::write(root.join("kept"), vec![7; 10_000])?;
        std::fs::remove_file(root.join("a/h"))?;
        std::fs::File::open(root)?.sync_all()?;
        std::fs::remove_dir_all(root.join("x"))
    };
    written().expect("the calls succeed");
}

fn count_name(record: &Record<'_>) -> Option<&'static str> {
    Some(match record {
        Record::Create { .. } => "create",
        Record::MakeDirectory { .. } => "mkdir",
        Record::Link { .. } => "link",
        Record::Remove { .. } => "unlink",
        Record::RemoveDirectory { .. } => "rmdir",
        Record::Rename { .. } => "rename",
        Record::Write { .. } => "write",
        Record::Truncate { .. } => "truncate",
        Record::Allocate { .. } => "fallocate",
        Record::SyncBegin { data_only: false, .. } => "fsync",
        Record::SyncBegin { data_only: true, .. } => "fdatasync",
        Record::Root { .. } | Record::SyncEnd { .. } | Record::Mark { .. } | Record::Settled => {
            return None;
        }
    })
}

/// The kind of record that a line of strace corresponds to.
fn strace_name(line: &str) -> Option<&'static str> {
    let call = line.split_once(' ')?.1.trim_start();
    let (name, arguments) = call.split_once('(')?;
    Some(match name {
        "creat" => "create",
        "open" | "openat" if arguments.contains("O_CREAT") => "create",
        "open" | "openat" if arguments.contains("O_TRUNC") => "truncate",
        "mkdir" | "mkdirat" => "mkdir",
        "link" | "linkat" => "link",
        "unlinkat" if arguments.contains("AT_REMOVEDIR") => "rmdir",
        "unlink" | "unlinkat" => "unlink",
        "rmdir" => "rmdir",
        "rename" | "renameat" | "renameat2" => "rename",
        "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" => "write",
        "truncate" | "ftruncate" => "truncate",
        "fallocate" if !arguments.contains("KEEP_SIZE") => "fallocate",
        "fsync" => "fsync",
        "fdatasync" => "fdatasync",
        _ => return None,
    })
}
