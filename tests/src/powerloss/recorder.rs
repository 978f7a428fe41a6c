//! Compiles the recorder and puts programs under it. A [`Recording`] is one root and one trace, over
//! as many runs of a program as the test wants.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::trace::{Bytes, Identity, Record, TraceWriter};

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/powerloss/recorder.c");
const CHUNK_BYTES: usize = 1 << 20;

/// Compiles the recorder into `directory` and returns the library's path.
pub fn build(directory: &Path) -> io::Result<PathBuf> {
    let library = directory.join("recorder.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-o"])
        .arg(&library)
        .args([SOURCE, "-ldl", "-pthread"])
        .output()?;
    if output.status.success() {
        Ok(library)
    } else {
        Err(io::Error::other(format!("cc {SOURCE}: {}", String::from_utf8_lossy(&output.stderr))))
    }
}

pub struct Recording {
    library: PathBuf,
    root: PathBuf,
    trace: PathBuf,
    stop: PathBuf,
    writer: TraceWriter,
}

impl Recording {
    /// Begins a trace with what stands in `root` already, taken as durable. Nothing may change below
    /// `root` before the first recorded program starts. The trace must lie outside of `root`.
    pub fn start(library: &Path, root: &Path, trace: &Path) -> io::Result<Recording> {
        let root = root.canonicalize()?;
        if trace.exists() {
            return Err(io::Error::other(format!("{} exists already", trace.display())));
        }
        let writer = TraceWriter::append_to(trace)?;
        let directory = identity(&root)?;
        writer.append(&Record::Root { directory })?;
        append_tree(&writer, &root, directory, &mut HashSet::new())?;
        writer.append(&Record::Settled)?;
        Ok(Recording {
            library: library.to_owned(),
            root,
            trace: trace.to_owned(),
            stop: trace.with_extension("stop"),
            writer,
        })
    }

    /// Puts the program that `command` starts under the recorder.
    pub fn attach(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("GUANXI_RECORD_ROOT", &self.root)
            .env("GUANXI_RECORD_TRACE", &self.trace)
            .env("GUANXI_RECORD_STOP", &self.stop);
    }

    /// The recorded program kills itself with SIGKILL before its next recorded call. A plain kill
    /// could fall between a call and its record.
    pub fn kill_at_next_call(&self) -> io::Result<()> {
        File::create(&self.stop).map(drop)
    }

    /// Lets the next program live.
    pub fn forget_kill(&self) -> io::Result<()> {
        std::fs::remove_file(&self.stop)
    }

    /// Appends a mark; what the program has recorded so far stands before it.
    pub fn mark(&self, text: &str) -> io::Result<()> {
        self.writer.mark(text)
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn trace(&self) -> &Path {
        &self.trace
    }
}

fn append_tree(
    writer: &TraceWriter,
    path: &Path,
    directory: Identity,
    linked: &mut HashSet<Identity>,
) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let kind = entry.file_type()?;
        let object = identity(&path)?;
        if kind.is_dir() {
            writer.append(&Record::MakeDirectory { directory, name: &name, made: object })?;
            append_tree(writer, &path, object, linked)?;
        } else if !kind.is_file() {
            return Err(io::Error::other(format!(
                "{} is neither file nor directory",
                path.display()
            )));
        } else if linked.insert(object) {
            writer.append(&Record::Create { directory, name: &name, file: object })?;
            append_bytes(writer, &path, object)?;
        } else {
            writer.append(&Record::Link { directory, name: &name, file: object })?;
        }
    }
    Ok(())
}

fn append_bytes(writer: &TraceWriter, path: &Path, file: Identity) -> io::Result<()> {
    let mut reader = File::open(path)?;
    let mut offset = 0;
    loop {
        let mut chunk = Vec::new();
        reader.by_ref().take(CHUNK_BYTES as u64).read_to_end(&mut chunk)?;
        if chunk.is_empty() {
            return Ok(());
        }
        let length = chunk.len() as u64;
        let zeros = chunk.iter().all(|byte| *byte == 0);
        let bytes = if zeros { Bytes::Zeros(length) } else { Bytes::Given(&chunk) };
        writer.append(&Record::Write { file, offset, bytes })?;
        offset += length;
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = path.symlink_metadata()?;
    Ok(Identity { device: metadata.dev(), inode: metadata.ino() })
}
