//! Reading for an offline import: one thread cuts the files into lines, the others read what the
//! lines say. In the end, rejected lines are looked up once more.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use guanxi_api::line::{CsvColumns, LineCutter, LineFormat};
use guanxi_embedded::ingest::{Ingest, IngestError, LINES_MAX, LinePlace, LineSink};
use guanxi_model::TenantId;
use parking_lot::Mutex;

use super::super::file::{ImportFile, ImportPart, looks_right};
use super::{UNFINISHED, failure};
use crate::cli::backup::stopped;
use crate::cli::interrupt::Interrupt;
use crate::cli::output::Output;
use crate::cli::progress::ProgressLine;
use crate::failure::Failure;
use crate::service::import::line_change;

/// Lines that are read together.
const BLOCK_BYTES: usize = 256 * 1024;
/// Blocks that are cut ahead, for each reader.
const BLOCKS_AHEAD: usize = 2;
const READ_BYTES: usize = 256 * 1024;
/// More readers than this wait for the one that cuts.
const READERS_MAX: usize = 16;

/// What is read, and where its lines go.
pub struct Reading<'a> {
    pub files: Vec<ImportFile>,
    pub ingest: &'a Ingest,
    pub ignore_limits: bool,
    pub interrupt: &'a Interrupt,
    /// Whether rejected lines are to be written by the header line of their files, which then must
    /// be one.
    pub collects: bool,
}

/// All lines, with the header line of each file of CSV.
pub struct FilesRead {
    pub sinks: Vec<LineSink>,
    pub lines: u64,
    pub headers: Vec<Vec<u8>>,
}

/// Lines of one file.
struct Block {
    file: usize,
    /// The number of its first line.
    first: u64,
    columns: Option<Arc<CsvColumns>>,
    bytes: Vec<u8>,
    /// Where each line ends.
    ends: Vec<u32>,
}

impl Reading<'_> {
    pub fn run(self, output: &Output) -> Result<FilesRead, Failure> {
        let total = self.files.iter().map(ImportFile::bytes).sum::<Option<u64>>();
        let progress = ProgressLine::new(output, "reading", total);
        let readers = thread::available_parallelism().map_or(1, usize::from).min(READERS_MAX);
        let (sender, blocks) = sync_channel(BLOCKS_AHEAD * readers);
        let blocks = Arc::new(Mutex::new(blocks));
        let (ingest, ignore_limits) = (self.ingest, self.ignore_limits);
        thread::scope(|scope| {
            let begin = |_| {
                let (blocks, sink) = (blocks.clone(), ingest.sink(readers));
                let reader = thread::Builder::new().name("guanxi-lines".into());
                reader.spawn_scoped(scope, move || read_all(&blocks, sink, ingest, ignore_limits))
            };
            let begun = (0..readers).map(begin).collect::<Result<Vec<_>, _>>();
            let begun = begun
                .map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
            // Only the readers hold it from here on: when they have ended, so does the cutting.
            drop(blocks);
            let cut = self.cut(sender, &progress);
            let mut sinks = Vec::with_capacity(readers);
            for reader in begun {
                let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                sinks.push(read.map_err(failure)?);
            }
            let (lines, headers) = cut?;
            Ok(FilesRead { sinks, lines, headers })
        })
    }

    /// Cuts all files, and tells how many lines there are.
    fn cut(
        self,
        blocks: SyncSender<Block>,
        progress: &ProgressLine,
    ) -> Result<(u64, Vec<Vec<u8>>), Failure> {
        let begun = Instant::now();
        let mut headers: Vec<Vec<u8>> = Vec::new();
        let mut all = 0;
        for (number, file) in self.files.into_iter().enumerate() {
            let (format, shown) = (file.format(), file.shown().to_owned());
            let (mut content, read) = file.into_content();
            let mut cutting = Cutting::new(number, format, shown, &blocks);
            let mut buffer = vec![0; READ_BYTES];
            let mut told = 0;
            loop {
                if self.interrupt.is_set() {
                    return Err(stopped("nothing was imported").next(UNFINISHED));
                }
                let count = match content.read(&mut buffer) {
                    Ok(count) => count,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(cutting.damaged(&error)),
                };
                if !cutting.feed(&buffer[..count])? {
                    // The readers have stopped, and say why.
                    return Ok((all, headers));
                }
                progress_of(&read, &mut told, progress);
                let lines = all + cutting.line;
                let rate = lines as f64 / begun.elapsed().as_secs_f64().max(0.001);
                progress.say(format!("reading line {lines}, {rate:.0} lines/s"));
                if count == 0 {
                    break;
                }
            }
            all += cutting.line;
            if self.collects && headers.first().is_some_and(|first| *first != cutting.header) {
                let message =
                    format!("{} has another header line than the first file", cutting.shown);
                return Err(Failure::usage(message)
                    .next("rejected lines go under one header line: import it alone, or without --rejects"));
            }
            headers.push(cutting.header);
        }
        Ok((all, headers))
    }
}

fn progress_of(read: &AtomicU64, told: &mut u64, progress: &ProgressLine) {
    let bytes = read.load(Ordering::Relaxed);
    progress.advance(bytes - *told);
    *told = bytes;
}

/// Cuts one file into blocks.
struct Cutting<'a> {
    file: usize,
    format: LineFormat,
    shown: String,
    cutter: Option<LineCutter>,
    line: u64,
    header: Vec<u8>,
    columns: Option<Arc<CsvColumns>>,
    block: Option<Block>,
    blocks: &'a SyncSender<Block>,
}

impl<'a> Cutting<'a> {
    fn new(
        file: usize,
        format: LineFormat,
        shown: String,
        blocks: &'a SyncSender<Block>,
    ) -> Cutting<'a> {
        let cutter = Some(LineCutter::new(format));
        let (header, columns, block) = (Vec::new(), None, None);
        Cutting { file, format, shown, cutter, line: 0, header, columns, block, blocks }
    }

    /// Takes what was read, which is nothing at the end. False when nobody takes blocks.
    fn feed(&mut self, bytes: &[u8]) -> Result<bool, Failure> {
        let Some(mut cutter) = self.cutter.take() else { return Ok(true) };
        let mut taken = Ok(());
        let mut each = |line: &[u8]| {
            if taken.is_ok() {
                taken = self.take(line);
            }
        };
        match bytes {
            [] => cutter.finish(&mut each),
            bytes => cutter.feed(bytes, &mut each),
        }
        taken?;
        if bytes.is_empty() {
            return Ok(self.send());
        }
        self.cutter = Some(cutter);
        match self.block.as_ref().is_some_and(|block| block.bytes.len() >= BLOCK_BYTES) {
            true => Ok(self.send()),
            false => Ok(true),
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        self.line += 1;
        if self.line == 1 {
            looks_right(line, self.format, &self.shown)?;
            if self.format == LineFormat::Csv {
                let columns = CsvColumns::read(line).map_err(|error| {
                    Failure::file(format!("{}: {}", self.shown, error.message))
                        .next(format!("mend its first line; {UNFINISHED}"))
                })?;
                self.header = line.to_vec();
                self.columns = Some(Arc::new(columns));
                return Ok(());
            }
        }
        if self.line > LINES_MAX {
            return Err(Failure::file(format!("{} has more than {LINES_MAX} lines", self.shown)));
        }
        let Cutting { file, line: first, columns, .. } = self;
        let block = self.block.get_or_insert_with(|| Block {
            file: *file,
            first: *first,
            columns: columns.clone(),
            bytes: Vec::with_capacity(2 * BLOCK_BYTES),
            ends: Vec::new(),
        });
        block.bytes.extend_from_slice(line);
        block.ends.push(block.bytes.len() as u32);
        Ok(())
    }

    fn send(&mut self) -> bool {
        self.block.take().is_none_or(|block| self.blocks.send(block).is_ok())
    }

    fn damaged(&self, error: &std::io::Error) -> Failure {
        let (shown, line) = (&self.shown, self.line);
        Failure::file(format!("{shown} is damaged or cut off behind line {line}: {error}"))
            .next(format!("get a whole copy of it; {UNFINISHED}"))
    }
}

/// Reads what lines say, block by block, until there are no more.
fn read_all(
    blocks: &Mutex<Receiver<Block>>,
    mut sink: LineSink,
    ingest: &Ingest,
    ignore_limits: bool,
) -> Result<LineSink, IngestError> {
    loop {
        let block = blocks.lock().recv();
        let Ok(block) = block else { return Ok(sink) };
        let mut begin = 0;
        for (number, end) in (block.first..).zip(&block.ends) {
            let end = *end as usize;
            let line = &block.bytes[begin..end];
            begin = end;
            let place = LinePlace { file: block.file, line: number };
            let columns = block.columns.as_deref();
            match line_change(line, columns, TenantId::DEFAULT, ingest.catalog(), ignore_limits) {
                Ok(Some(change)) => sink.take(place, &change)?,
                Ok(None) => {}
                Err(error) => sink.reject(place, &error)?,
            }
        }
    }
}

/// Rejected lines as they stand in their files, in order.
pub struct RejectedLines<'a> {
    files: &'a [PathBuf],
    format: Option<LineFormat>,
    headers: Vec<Vec<u8>>,
    collects: bool,
    open: Option<OpenFile>,
}

struct OpenFile {
    number: usize,
    format: LineFormat,
    shown: String,
    content: Box<dyn Read + Send>,
    cutter: LineCutter,
    /// Lines that were cut and not passed, the first of them with this number.
    lines: Vec<Vec<u8>>,
    first: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<'a> RejectedLines<'a> {
    pub fn new(
        files: &'a [PathBuf],
        format: Option<LineFormat>,
        headers: Vec<Vec<u8>>,
        collects: bool,
    ) -> RejectedLines<'a> {
        RejectedLines { files, format, headers, collects, open: None }
    }

    /// The line alone, empty where lines are not collected.
    pub fn find(&mut self, place: LinePlace) -> Result<(ImportPart, LineFormat), Failure> {
        let header = self.headers.get(place.file).cloned().unwrap_or_default();
        let several = self.files.len() > 1;
        let label = self.files.get(place.file).filter(|_| several);
        let label = label.map(|file| file.display().to_string());
        if !self.collects {
            let part = ImportPart::of_line(place.line, &header, b"", label);
            return Ok((part, LineFormat::Ndjson));
        }
        let mut open = match self.open.take() {
            Some(open) if open.number == place.file => open,
            _ => OpenFile::open(place.file, &self.files[place.file], self.format)?,
        };
        let line = open.line(place.line)?;
        let part = ImportPart::of_line(place.line, &header, &line, label);
        let format = open.format;
        self.open = Some(open);
        Ok((part, format))
    }
}

impl OpenFile {
    fn open(
        number: usize,
        path: &std::path::Path,
        format: Option<LineFormat>,
    ) -> Result<OpenFile, Failure> {
        let file = ImportFile::open_unnamed(path, format)?;
        let (format, shown) = (file.format(), file.shown().to_owned());
        let (content, _) = file.into_content();
        Ok(OpenFile {
            number,
            format,
            shown,
            content,
            cutter: LineCutter::new(format),
            lines: Vec::new(),
            first: 1,
            buffer: vec![0; READ_BYTES],
            ended: false,
        })
    }

    fn line(&mut self, number: u64) -> Result<Vec<u8>, Failure> {
        while number >= self.first + self.lines.len() as u64 {
            let changed = || {
                Failure::file(format!("{} has changed while it was imported", self.shown))
                    .next(UNFINISHED)
            };
            if self.ended {
                return Err(changed());
            }
            let count = self.content.read(&mut self.buffer).map_err(|_| changed())?;
            self.first += self.lines.len() as u64;
            self.lines.clear();
            let lines = &mut self.lines;
            let mut each = |line: &[u8]| lines.push(line.to_vec());
            match count {
                0 => self.cutter.finish(&mut each),
                count => self.cutter.feed(&self.buffer[..count], &mut each),
            }
            self.ended = count == 0;
        }
        let at = (number - self.first) as usize;
        Ok(self.lines.get(at).cloned().unwrap_or_default())
    }
}
