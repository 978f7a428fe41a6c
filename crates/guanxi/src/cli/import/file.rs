//! The file that is imported: what it is, what names it, and its lines cut into parts while the
//! part before is on its way.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use guanxi_api::import::REJECTS_MAX;
use guanxi_api::line::{LineCutter, LineFormat};
use guanxi_model::hash::hash128;
use guanxi_model::import::{ImportId, LinesDigest};
use serde_json::Value;

use super::super::compression::{self, Compression};
use crate::failure::Failure;

/// Lines of a part: about a second's work, and no more than one answer can name if all are wrong.
const PART_LINES_MAX: usize = REJECTS_MAX;
/// Bytes of a part, where lines are long.
const PART_BYTES_MAX: usize = 8 << 20;
/// Parts that are read ahead.
const PARTS_AHEAD_MAX: usize = 1;
const READ_BYTES: usize = 256 * 1024;
/// How much of a file is hashed at once.
const IDENTITY_STEP_BYTES: u64 = 1 << 20;

/// What reading gives: a part, or none at the end of the file.
pub type Parted = Result<Option<ImportPart>, Failure>;

/// Lines that are sent together.
pub struct ImportPart {
    /// What is sent: the lines, and before them the header line of CSV.
    pub body: Vec<u8>,
    /// Where in the body each line begins, without the header.
    starts: Vec<usize>,
    /// Lines before it.
    pub after: u64,
    /// The number of its first line.
    first: u64,
    /// How far the progress goes with it: bytes of the file, as it is on disk, that were read for
    /// it, or the lines of a source that is no file.
    pub steps: u64,
    header: Vec<u8>,
    /// Where a source that is no file has each line, for a person.
    labels: Vec<String>,
    /// Numbers of lines with the place in such a source behind them, and how many rows up to there
    /// became no line, ascending; the first is that before its lines.
    pub places: Vec<(u64, Value, u64)>,
}

impl ImportPart {
    /// One line alone, such as one that was rejected.
    pub fn of_line(number: u64, header: &[u8], line: &[u8], label: Option<String>) -> ImportPart {
        let mut part = ImportPart::new(number - 1, number, header);
        part.add(line);
        part.labels.extend(label);
        part
    }

    fn new(after: u64, first: u64, header: &[u8]) -> ImportPart {
        let body = match header {
            [] => Vec::new(),
            header => [header, b"\n"].concat(),
        };
        let (starts, header) = (Vec::new(), header.to_vec());
        let (labels, places) = (Vec::new(), Vec::new());
        ImportPart { body, starts, after, first, steps: 0, header, labels, places }
    }

    /// For lines of a source that is no file, from this place on, up to which so many rows became
    /// none.
    pub fn of_lines(after: u64, place: Value, skipped: u64) -> ImportPart {
        ImportPart {
            places: vec![(after, place, skipped)],
            ..ImportPart::new(after, after + 1, &[])
        }
    }

    /// What follows it.
    pub fn next(&self) -> ImportPart {
        let (place, skipped) = self.end();
        ImportPart::of_lines(self.last(), place, skipped)
    }

    /// The last place in the source, and how many rows up to there became no line.
    pub fn end(&self) -> (Value, u64) {
        let (_, place, skipped) = self.places.last().cloned().unwrap_or_default();
        (place, skipped)
    }

    pub fn lines(&self) -> usize {
        self.starts.len()
    }

    /// The number of its last line.
    pub fn last(&self) -> u64 {
        self.first - 1 + self.starts.len() as u64
    }

    /// Its first line alone, with a header line that comes before it.
    pub fn first_line(&self) -> ImportPart {
        let mut first = ImportPart::new(self.after, self.first, &self.header);
        if let Some(line) = self.line(self.first) {
            first.add(line);
        }
        first
    }

    /// What of it lies behind so many lines.
    pub fn behind(self, done: u64) -> ImportPart {
        if done <= self.after {
            return self;
        }
        let mut rest = ImportPart::new(done, done + 1, &self.header);
        for number in done + 1..=self.last() {
            rest.add(self.line(number).unwrap_or_default());
        }
        rest
    }

    /// Takes its lines up to one into a digest.
    pub fn digest(&self, upto: u64, digest: &mut LinesDigest) {
        for number in self.after + 1..=upto {
            // The header line counts once, where the file has it.
            digest.take(self.line(number).unwrap_or(&self.header));
        }
    }

    fn add(&mut self, line: &[u8]) {
        self.starts.push(self.body.len());
        self.body.extend_from_slice(line);
        self.body.push(b'\n');
    }

    /// One more line of a source that is no file.
    pub fn push(&mut self, line: &[u8], label: String) {
        self.add(line);
        self.labels.push(label);
        self.steps += 1;
    }

    /// All lines of a source that is no file, each with where it has them.
    pub fn labelled_lines(&self) -> Vec<(String, String)> {
        let numbered = (self.first..).zip(&self.labels);
        let lines = numbered.map(|(number, label)| {
            let line = self.line(number).unwrap_or_default();
            (label.clone(), String::from_utf8_lossy(line).into_owned())
        });
        lines.collect()
    }

    /// The place in the source behind the last line, up to which so many rows became none.
    pub fn mark(&mut self, place: Value, skipped: u64) {
        let last = self.last();
        if self.places.last().is_some_and(|(lines, ..)| *lines == last) {
            self.places.pop();
        }
        self.places.push((last, place, skipped));
    }

    /// Where the source has a line, if it is no file.
    pub fn label(&self, number: u64) -> Option<&str> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.labels.get(at).map(String::as_str)
    }

    /// A line by its number, as it came.
    pub fn line(&self, number: u64) -> Option<&[u8]> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let begin = *self.starts.get(at)?;
        let end = self.starts.get(at + 1).copied().unwrap_or(self.body.len());
        self.body.get(begin..end - 1)
    }

    /// The header line of CSV; empty where there is none.
    pub fn header(&self) -> &[u8] {
        &self.header
    }
}

pub struct ImportFile {
    content: Box<dyn Read + Send>,
    shown: String,
    format: LineFormat,
    id: Option<ImportId>,
    bytes: Option<u64>,
    read: Arc<AtomicU64>,
}

impl ImportFile {
    /// With what names its content, for which all of it is read once.
    pub fn open(path: &Path, format: Option<LineFormat>) -> Result<ImportFile, Failure> {
        ImportFile::open_as(path, format, |file, bytes| identity(file, bytes).map(Some))
    }

    /// The same where nobody asks for a name.
    pub fn open_unnamed(path: &Path, format: Option<LineFormat>) -> Result<ImportFile, Failure> {
        ImportFile::open_as(path, format, |_, _| Ok(None))
    }

    fn open_as(
        path: &Path,
        format: Option<LineFormat>,
        name: impl FnOnce(&mut File, u64) -> io::Result<Option<ImportId>>,
    ) -> Result<ImportFile, Failure> {
        let read = Arc::new(AtomicU64::new(0));
        if path == Path::new("-") {
            let shown = "standard input".to_owned();
            let raw = CountedReader { raw: io::stdin(), count: read.clone() };
            let content = compression::reader(raw, Compression::None, &shown)?;
            let format = format.unwrap_or(LineFormat::Ndjson);
            return Ok(ImportFile { content, shown, format, id: None, bytes: None, read });
        }
        let shown = path.display().to_string();
        let unreadable = |error: io::Error| {
            Failure::file(format!("cannot read {shown}: {error}"))
                .next("give a file that is there and may be read, or - for standard input")
        };
        let mut file = File::open(path).map_err(unreadable)?;
        let about = file.metadata().map_err(unreadable)?;
        if about.is_dir() {
            return Err(unreadable(io::ErrorKind::IsADirectory.into()));
        }
        // A pipe has neither a length nor a beginning to go back to.
        let (id, bytes) = match about.is_file() {
            true => (name(&mut file, about.len()).map_err(unreadable)?, Some(about.len())),
            false => (None, None),
        };
        let named = Compression::of_name(path);
        let raw = CountedReader { raw: file, count: read.clone() };
        let content = compression::reader(raw, named, &shown)?;
        let format = format.unwrap_or_else(|| format_of_name(path));
        Ok(ImportFile { content, shown, format, id, bytes, read })
    }

    pub fn format(&self) -> LineFormat {
        self.format
    }

    /// What names the file's content.
    pub fn id(&self) -> Option<ImportId> {
        self.id.clone()
    }

    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Its size on disk.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// What is in it, and how much of the file was read for that so far.
    pub fn into_content(self) -> (Box<dyn Read + Send>, Arc<AtomicU64>) {
        (self.content, self.read)
    }

    /// Reads the lines in a thread of its own.
    pub fn read(self) -> Result<Receiver<Parted>, Failure> {
        let (parts, receiver) = sync_channel(PARTS_AHEAD_MAX);
        let cutting = FileCutting {
            format: self.format,
            line: 0,
            header: Vec::new(),
            part: None,
            read: self.read,
            counted: 0,
            parts,
            stopped: false,
        };
        let thread = std::thread::Builder::new().name("guanxi-read".into());
        let (content, shown) = (self.content, self.shown);
        thread
            .spawn(move || cutting.run(content, &shown))
            .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        Ok(receiver)
    }
}

fn format_of_name(path: &Path) -> LineFormat {
    let plain = match Compression::of_name(path) {
        Compression::None => path.to_owned(),
        _ => path.with_extension(""),
    };
    match plain.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => LineFormat::Csv,
        _ => LineFormat::Ndjson,
    }
}

/// The same for the same content, wherever it lies and whatever it is called.
fn identity(file: &mut File, size: u64) -> io::Result<ImportId> {
    let mut hash = 0;
    loop {
        // Each step's hash is the beginning of the next, so every byte counts.
        let mut step = u128::to_be_bytes(hash).to_vec();
        if file.by_ref().take(IDENTITY_STEP_BYTES).read_to_end(&mut step)? == 0 {
            break;
        }
        hash = hash128(&step);
    }
    file.seek(SeekFrom::Start(0))?;
    let id = ImportId::new(&format!("file-{size:x}-{hash:032x}"));
    id.map_err(|error| io::Error::other(error.message))
}

/// Counts what is read of a file.
struct CountedReader<R> {
    raw: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.raw.read(buffer)?;
        self.count.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Cuts content into parts.
struct FileCutting {
    format: LineFormat,
    line: u64,
    header: Vec<u8>,
    part: Option<ImportPart>,
    read: Arc<AtomicU64>,
    /// Bytes of the file that earlier parts have counted.
    counted: u64,
    parts: SyncSender<Parted>,
    /// Nobody wants more, or there can be none.
    stopped: bool,
}

impl FileCutting {
    fn run(mut self, mut content: impl Read, shown: &str) {
        let mut cutter = LineCutter::new(self.format);
        let mut buffer = vec![0; READ_BYTES];
        while !self.stopped {
            match content.read(&mut buffer) {
                Ok(0) => {
                    cutter.finish(&mut |line| self.take(line, shown));
                    self.send_part();
                    if !self.stopped {
                        let _gone = self.parts.send(Ok(None));
                    }
                    return;
                }
                Ok(count) => cutter.feed(&buffer[..count], &mut |line| self.take(line, shown)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // What was read before is whole lines, and as good as any.
                    self.send_part();
                    let line = self.line;
                    let failure = Failure::file(format!(
                        "{shown} is damaged or cut off behind line {line}: {error}"
                    ));
                    self.stop(failure);
                }
            }
        }
    }

    fn take(&mut self, line: &[u8], shown: &str) {
        if self.stopped {
            return;
        }
        self.line += 1;
        if self.line == 1 {
            if let Err(failure) = looks_right(line, self.format, shown) {
                return self.stop(failure);
            }
            if self.format == LineFormat::Csv {
                self.header = line.to_vec();
                // Even a file of nothing but a header is sent, so that it is checked.
                self.part = Some(ImportPart::new(0, 2, &self.header));
                return;
            }
        }
        let (before, header) = (self.line - 1, &self.header);
        let part = self.part.get_or_insert_with(|| ImportPart::new(before, before + 1, header));
        part.add(line);
        if part.starts.len() >= PART_LINES_MAX || part.body.len() >= PART_BYTES_MAX {
            self.send_part();
        }
    }

    fn send_part(&mut self) {
        let read = self.read.load(Ordering::Relaxed);
        if let Some(mut part) = self.part.take() {
            part.steps = read - self.counted;
            self.counted = read;
            self.stopped |= self.parts.send(Ok(Some(part))).is_err();
        }
    }

    fn stop(&mut self, failure: Failure) {
        self.stopped = true;
        // Whoever no longer listens has a failure of its own.
        let _gone = self.parts.send(Err(failure));
    }
}

/// The file is not the one whose lines are done.
pub fn other_lines(shown: &str, done: u64) -> Failure {
    Failure::file(format!(
        "{shown} does not begin with the {done} lines that this import has done: its id was used \
         for other lines"
    ))
    .next(
        "give this file another --id; one id is for one file, which may only grow at its end. \
         Nothing was sent",
    )
}

/// A file that is not what its name or the flag says would have every line rejected.
pub fn looks_right(first: &[u8], format: LineFormat, shown: &str) -> Result<(), Failure> {
    let object = first.trim_ascii_start().starts_with(b"{");
    let (right, name, other) = match format {
        LineFormat::Ndjson => (object || first.trim_ascii().is_empty(), "NDJSON", "csv"),
        LineFormat::Csv => (!object, "CSV", "ndjson"),
    };
    if right {
        return Ok(());
    }
    Err(Failure::usage(format!("{shown} does not look like {name}"))
        .next(format!("say what it is with --format {other}, or give another file")))
}
