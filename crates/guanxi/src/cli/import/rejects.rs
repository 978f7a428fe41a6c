//! Rejected lines: the first of them are shown, all of them are collected in a file, as they came
//! and with the error in a field or column that an import passes over.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use guanxi_api::line::{LineFormat, RejectedColumns};
use serde_json::{Value, json};

use super::super::output::printable;
use super::file::Part;
use crate::failure::Failure;

/// Rejected lines that are shown; a file has room for the rest.
const SHOWN_MAX: u64 = 10;

pub struct Rejects {
    file: Option<(PathBuf, BufWriter<File>)>,
    /// Whether the file has its header line, or needs none.
    headed: bool,
    shown: u64,
}

impl Rejects {
    /// A run that goes on appends to what an earlier one has collected.
    pub fn open(
        path: Option<&Path>,
        source: Option<&Path>,
        goes_on: bool,
    ) -> Result<Rejects, Failure> {
        let Some(path) = path else {
            return Ok(Rejects { file: None, headed: false, shown: 0 });
        };
        let shown = path.display();
        if source.is_some_and(|source| same_file(path, source)) {
            return Err(Failure::usage(format!("{shown} is the file to import"))
                .next("collect rejected lines in another file"));
        }
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file =
            file.map_err(|error| Failure::usage(format!("cannot write {shown}: {error}")))?;
        let used = file.metadata().is_ok_and(|about| about.len() > 0);
        if used && !goes_on {
            return Err(Failure::usage(format!("{shown} is there already and not empty"))
                .next("move it away, or collect rejected lines in another file"));
        }
        let file = Some((path.to_owned(), BufWriter::new(file)));
        Ok(Rejects { file, headed: used, shown: 0 })
    }

    /// One of an answer's rejected lines.
    pub fn take(&mut self, reject: &Value, part: &Part, format: LineFormat) -> Result<(), Failure> {
        let number = reject["line"].as_u64().unwrap_or(0);
        let text = |name: &str| reject["error"][name].as_str().unwrap_or_default();
        let at = part.label(number).map(|label| format!(" ({label})")).unwrap_or_default();
        let error = format!("line {number}{at}: {}: {}", text("code"), text("message"));
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
        let line = part.line(number).unwrap_or_default();
        let full = |error| full(path, error);
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

    pub fn finish(&mut self) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) => file.flush().map_err(|error| full(path, error)),
            None => Ok(()),
        }
    }
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

fn same_file(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}
