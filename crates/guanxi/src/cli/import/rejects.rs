//! Rejected lines: the first of them are shown, all of them are collected in a file, as they came
//! and with the error in a field or column that an import passes over. A run that goes on writes the
//! file anew, from what the server has kept of the runs before and what they had collected.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use guanxi_api::import::Reject;
use guanxi_api::line::{LineFormat, RejectedColumns};
use serde_json::{Map, Value, json};

use super::super::output::printable;
use super::super::unfinished::{FilePurpose, UnfinishedFile};
use super::file::ImportPart;
use super::standing::ImportStanding;
use crate::failure::Failure;

/// Rejected lines that are shown; a file has room for the rest.
const SHOWN_MAX: u64 = 10;
const PURPOSE: FilePurpose =
    FilePurpose { name: "import", nothing: "rejected lines are not collected" };

pub struct Rejects {
    file: Option<(PathBuf, BufWriter<File>)>,
    /// Set until the file has the rejected lines of earlier runs; only then it replaces theirs.
    beside: Option<UnfinishedFile>,
    /// What earlier runs have collected.
    collected: Collected,
    /// Whether the file has its header line, or needs none.
    headed: bool,
    shown: u64,
    named: u64,
}

/// The records of a file of rejected lines.
#[derive(Debug, Default)]
struct Collected {
    /// The header line of CSV.
    header: Vec<u8>,
    /// By the numbers of the lines, each with its line break.
    records: BTreeMap<u64, Vec<u8>>,
}

impl Rejects {
    pub fn open(
        path: Option<&Path>,
        source: Option<&Path>,
        format: LineFormat,
        standing: &ImportStanding,
    ) -> Result<Rejects, Failure> {
        let mut rejects = Rejects::none(format);
        let Some(path) = path else {
            return Ok(rejects);
        };
        source.map_or(Ok(()), |source| refuse_source(path, source))?;
        let about = fs::metadata(path).ok();
        let goes_on = standing.lines > 0;
        if !goes_on {
            refuse_used(path, about.as_ref())?;
        }
        let unwritable =
            |error| Failure::usage(format!("cannot write {}: {error}", path.display()));
        let file = match goes_on && about.as_ref().is_none_or(Metadata::is_file) {
            true => {
                if is_used(about.as_ref()) {
                    rejects.collected = Collected::read(path, format, standing)?;
                }
                // Where it is a link, what it leads to is replaced.
                let to = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
                let beside = rejects.beside.insert(UnfinishedFile::begin(&to, PURPOSE)?);
                beside.file().try_clone()
            }
            false => OpenOptions::new().create(true).append(true).open(path),
        };
        rejects.file = Some((path.to_owned(), BufWriter::new(file.map_err(unwritable)?)));
        Ok(rejects)
    }

    /// For a file that is there only when all of it is, at `passed_over`.
    pub fn open_whole(
        path: Option<&Path>,
        sources: &[PathBuf],
        format: LineFormat,
    ) -> Result<Rejects, Failure> {
        let mut rejects = Rejects::none(format);
        let Some(path) = path else { return Ok(rejects) };
        sources.iter().try_for_each(|source| refuse_source(path, source))?;
        refuse_used(path, fs::metadata(path).ok().as_ref())?;
        let beside = rejects.beside.insert(UnfinishedFile::begin(path, PURPOSE)?);
        let file = beside.file().try_clone().map_err(|error| beside.cannot_write(&error))?;
        rejects.file = Some((path.to_owned(), BufWriter::new(file)));
        Ok(rejects)
    }

    fn none(format: LineFormat) -> Rejects {
        Rejects {
            file: None,
            beside: None,
            collected: Collected::default(),
            headed: format == LineFormat::Ndjson,
            shown: 0,
            named: 0,
        }
    }

    /// Whether they are collected.
    pub fn is_collecting(&self) -> bool {
        self.file.is_some()
    }

    /// One of the rejected lines that an answer or an import's place names.
    pub fn take(
        &mut self,
        reject: &Reject,
        part: &ImportPart,
        format: LineFormat,
    ) -> Result<(), Failure> {
        let number = reject.line;
        let at = part.label(number).map(|label| format!(" ({label})")).unwrap_or_default();
        let error = format!("line {number}{at}: {}: {}", reject.error.code, reject.error.message);
        self.named += 1;
        if self.shown < SHOWN_MAX {
            eprintln!("{}", printable(&error));
            self.shown += 1;
            if self.shown == SHOWN_MAX {
                eprintln!("further rejected lines are not shown");
            }
        }
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let full = |error| full(path, error);
        if let Some(record) = self.collected.records.remove(&number) {
            if !self.headed {
                self.headed = true;
                file.write_all(&self.collected.header).map_err(full)?;
            }
            return file.write_all(&record).map_err(full);
        }
        let line = part.line(number).unwrap_or_default();
        match format {
            LineFormat::Ndjson => write_json(file, line, &error).map_err(full),
            LineFormat::Csv => {
                let columns = RejectedColumns::of(part.header())
                    .map_err(|error| Failure::file(format!("its header line: {error}")))?;
                if !self.headed {
                    self.headed = true;
                    columns.write_header(file).map_err(full)?;
                }
                columns.write(line, &error, file).map_err(full)
            }
        }
    }

    /// All that the server has kept of earlier runs was taken: what only they had collected follows,
    /// and the file takes the place of theirs.
    pub fn passed_over(&mut self) -> Result<(), Failure> {
        let (Some((path, file)), Some(beside)) = (&mut self.file, self.beside.take()) else {
            return Ok(());
        };
        for record in std::mem::take(&mut self.collected.records).values() {
            file.write_all(record).map_err(|error| full(path, error))?;
            self.named += 1;
        }
        file.flush().map_err(|error| full(path, error))?;
        beside.finish()
    }

    /// How many were taken, with those that earlier runs have collected.
    pub fn named(&self) -> u64 {
        self.named
    }

    /// Makes durable what was taken.
    pub fn sync(&mut self) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) if !file.buffer().is_empty() => {
                let synced = file.flush().and_then(|()| file.get_ref().sync_data());
                synced.map_err(|error| full(path, error))
            }
            _ => Ok(()),
        }
    }

    pub fn finish(&mut self) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) => file.flush().map_err(|error| full(path, error)),
            None => Ok(()),
        }
    }
}

impl Collected {
    /// Reads what earlier runs of the same import have collected. What belongs to something else is
    /// not written over.
    fn read(
        path: &Path,
        format: LineFormat,
        standing: &ImportStanding,
    ) -> Result<Collected, Failure> {
        let shown = path.display();
        let bytes = fs::read(path)
            .map_err(|error| Failure::file(format!("cannot read {shown}: {error}")))?;
        Collected::of(&bytes, format, standing).ok_or_else(|| {
            Failure::usage(format!("{shown} has something else than this import's rejected lines"))
                .next("move it away, or collect rejected lines in another file")
        })
    }

    fn of(bytes: &[u8], format: LineFormat, standing: &ImportStanding) -> Option<Collected> {
        let mut collected = Collected::default();
        let mut records = records(bytes, format).into_iter();
        let columns = match format {
            LineFormat::Ndjson => None,
            LineFormat::Csv => match records.next() {
                Some(header) => {
                    collected.header = header.to_vec();
                    Some(RejectedColumns::of(header.trim_ascii_end()).ok()?)
                }
                None => return Some(collected),
            },
        };
        for record in records {
            let error = match &columns {
                Some(columns) => columns.error_of(record.trim_ascii_end())?,
                None => error_of(record)?,
            };
            let (line, number) = number_of(&error)?;
            if !standing.may_have_rejected(number, &error[line.len()..]) {
                return None;
            }
            collected.records.insert(number, record.to_vec());
        }
        Some(collected)
    }
}

/// Whole records, each with its line break. Of the last one a run that was killed may have left a
/// part.
fn records(bytes: &[u8], format: LineFormat) -> Vec<&[u8]> {
    let (mut records, mut begin, mut quoted) = (Vec::new(), 0, false);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' if format == LineFormat::Csv => quoted = !quoted,
            b'\n' if !quoted => {
                records.push(&bytes[begin..=at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    records
}

fn error_of(record: &[u8]) -> Option<String> {
    let fields = serde_json::from_slice::<Map<String, Value>>(record).ok()?;
    fields.get("error")?.as_str().map(str::to_owned)
}

/// The beginning of an error that names its line, and the number.
fn number_of(error: &str) -> Option<(&str, u64)> {
    let number = error.strip_prefix("line ")?;
    let end = number.find(|char: char| !char.is_ascii_digit()).unwrap_or(number.len());
    Some((&error[.."line ".len() + end], number[..end].parse().ok()?))
}

/// The line with one more field, or, where it is no object, within one.
fn write_json(file: &mut impl Write, line: &[u8], error: &str) -> std::io::Result<()> {
    let error = json!(error);
    let object = serde_json::from_slice::<serde_json::Map<String, Value>>(line);
    match (object, line.trim_ascii_end().strip_suffix(b"}")) {
        (Ok(mut fields), _) if fields.contains_key("error") => {
            fields.insert("error".to_owned(), error);
            writeln!(file, "{}", Value::Object(fields))
        }
        (Ok(fields), Some(open)) => {
            let comma = if fields.is_empty() { "" } else { "," };
            file.write_all(open)?;
            writeln!(file, "{comma}\"error\":{error}}}")
        }
        _ => {
            let input = json!(String::from_utf8_lossy(line));
            writeln!(file, "{{\"input\":{input},\"error\":{error}}}")
        }
    }
}

fn full(path: &Path, error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
        .next("make room for the rejected lines, then run the same command again")
}

fn refuse_source(path: &Path, source: &Path) -> Result<(), Failure> {
    if same_file(path, source) {
        return Err(Failure::usage(format!("{} is the file to import", path.display()))
            .next("collect rejected lines in another file"));
    }
    Ok(())
}

fn is_used(about: Option<&Metadata>) -> bool {
    about.is_some_and(|about| about.is_file() && about.len() > 0)
}

fn refuse_used(path: &Path, about: Option<&Metadata>) -> Result<(), Failure> {
    if is_used(about) {
        return Err(Failure::usage(format!("{} is there already and not empty", path.display()))
            .next("move it away, or collect rejected lines in another file"));
    }
    Ok(())
}

fn same_file(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
