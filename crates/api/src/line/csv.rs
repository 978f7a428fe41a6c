//! Lines as rows of CSV: a header line names the columns, an empty cell says nothing (an empty
//! text in quotes is an empty text).

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, Write};

use guanxi_model::Error;
use guanxi_model::change::Field;
use memchr::memchr;

use super::{ExportLine, Line};
use crate::id::Id;
use crate::name::{Name, WireGroupName};
use crate::time::Time;

/// Every column there is, in the order of an export.
const NAMES: [&str; 15] = [
    "type",
    "kind",
    "source",
    "target",
    "state",
    "since",
    "group",
    "owner",
    "data",
    "expires_at",
    "version",
    "node_type",
    "id",
    "private",
    "value",
];
/// A file of rejected lines has one more, which is passed over.
pub(super) const ERROR: &str = "error";
/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// The columns of a file, as its header line has them.
#[derive(Debug)]
pub struct CsvColumns(Vec<&'static str>);

impl CsvColumns {
    pub fn read(header: &[u8]) -> Result<CsvColumns, Error> {
        let mut columns = Vec::new();
        for cell in cells(header)? {
            let name = cell.text.trim();
            let Some(known) = NAMES.into_iter().chain([ERROR]).find(|known| *known == name) else {
                let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
                return Err(Error::invalid(format!(
                    "the header line has a column '{shown}'; it may have {}",
                    NAMES.join(", ")
                )));
            };
            if columns.contains(&known) {
                let message = format!("the header line has the column {known} twice");
                return Err(Error::invalid(message));
            }
            columns.push(known);
        }
        Ok(CsvColumns(columns))
    }

    pub fn line<'a>(&self, row: &'a [u8]) -> Result<Line<'a>, Error> {
        let mut cells = Cells::of(row)?;
        let mut line = Line::default();
        // That the line has too few or too many cells says more than what one of them is.
        let mut wrong = Ok(());
        for (at, name) in self.0.iter().enumerate() {
            let Some(cell) = cells.next().transpose()? else { return Err(self.miscounted(at)) };
            if wrong.is_ok() && (!cell.text.is_empty() || cell.quoted) {
                wrong = set(&mut line, name, cell.text);
            }
        }
        match cells.count_left()? {
            0 => wrong.map(|()| line),
            more => Err(self.miscounted(self.0.len() + more)),
        }
    }

    fn miscounted(&self, cells: usize) -> Error {
        let header = self.0.len();
        Error::invalid(format!("the line has {cells} cells, the header line {header}"))
    }
}

fn set<'a>(line: &mut Line<'a>, name: &str, text: Cow<'a, str>) -> Result<(), Error> {
    let wrong = |what: &str| Error::invalid(format!("{name}: it is {what}"));
    match name {
        "type" => line.line_type = Some(Name::from(text)),
        "kind" => line.kind = Some(Name::from(text)),
        "source" => line.source = Some(Id::parse(&text, name)?),
        "target" => line.target = Some(Id::parse(&text, name)?),
        "state" => line.state = Some(Name::from(text)),
        "since" => line.since = Some(Time::parse(&text, name)?),
        "group" => {
            let group = guanxi_model::GroupName::new(&text);
            let group =
                group.map_err(|error| Error::invalid(format!("group: {}", error.message)))?;
            line.group = Field::Set(WireGroupName(group));
        }
        "owner" => line.owner = Field::Set(Id::parse(&text, name)?),
        "data" => line.data = Field::Set(text.into()),
        "expires_at" => line.expires_at = Field::Set(Time::parse(&text, name)?),
        ERROR => line.error = Some(serde::de::IgnoredAny),
        "version" => line.version = Some(serde::de::IgnoredAny),
        "node_type" => line.node_type = Some(Name::from(text)),
        "id" => line.id = Some(Id::parse(&text, name)?),
        "private" => {
            line.private = Some(text.parse().map_err(|_| wrong("true or false"))?);
        }
        "value" => line.value = Some(text.parse().map_err(|_| wrong("a whole number"))?),
        _ => {}
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct CsvCell<'a> {
    pub text: Cow<'a, str>,
    pub quoted: bool,
}

pub(super) fn cells(row: &[u8]) -> Result<Vec<CsvCell<'_>>, Error> {
    Cells::of(row)?.collect()
}

/// The cells of a row, of which there is at least one.
struct Cells<'a> {
    /// None behind the last one.
    rest: Option<&'a str>,
}

impl<'a> Cells<'a> {
    fn of(row: &'a [u8]) -> Result<Cells<'a>, Error> {
        let row = std::str::from_utf8(row).map_err(|_| Error::invalid("the line is not UTF-8"))?;
        Ok(Cells { rest: Some(row) })
    }

    fn count_left(self) -> Result<usize, Error> {
        self.map(|cell| cell.map(|_| 1)).sum()
    }

    fn cut(rest: &'a str) -> Result<(CsvCell<'a>, Option<&'a str>), Error> {
        let (cell, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_cell(quoted)?,
            None => {
                let end = memchr(b',', rest.as_bytes()).unwrap_or(rest.len());
                let (text, behind) = rest.split_at(end);
                (CsvCell { text: Cow::Borrowed(text), quoted: false }, behind)
            }
        };
        match behind.strip_prefix(',') {
            Some(next) => Ok((cell, Some(next))),
            None if behind.is_empty() => Ok((cell, None)),
            None => {
                let message = "a quoted cell goes on behind its quotes; write a quote in it twice";
                Err(Error::invalid(message))
            }
        }
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Result<CsvCell<'a>, Error>;

    fn next(&mut self) -> Option<Result<CsvCell<'a>, Error>> {
        let rest = self.rest.take()?;
        let cut = Cells::cut(rest).map(|(cell, behind)| {
            self.rest = behind;
            cell
        });
        Some(cut)
    }
}

/// A cell from behind its first quote, and what follows its last one.
fn quoted_cell(text: &str) -> Result<(CsvCell<'_>, &str), Error> {
    let mut from = 0;
    while let Some(found) = text[from..].find('"') {
        let at = from + found;
        if text[at + 1..].starts_with('"') {
            from = at + 2;
            continue;
        }
        let inside = &text[..at];
        let text_of = match inside.contains("\"\"") {
            true => Cow::Owned(inside.replace("\"\"", "\"")),
            false => Cow::Borrowed(inside),
        };
        return Ok((CsvCell { text: text_of, quoted: true }, &text[at + 1..]));
    }
    Err(Error::invalid("a quote is not closed"))
}

pub fn write_csv_header(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "{}", NAMES.join(","))
}

pub fn write_csv(line: &ExportLine<'_>, out: &mut impl Write) -> io::Result<()> {
    text(out, line.line_type, "")?;
    text(out, line.kind, ",")?;
    shown(out, line.source.map(|id| id.0))?;
    shown(out, line.target.map(|id| id.0))?;
    text(out, line.state, ",")?;
    shown(out, line.since)?;
    text(out, line.group, ",")?;
    shown(out, line.owner.map(|id| id.0))?;
    text(out, line.data, ",")?;
    shown(out, line.expires_at)?;
    shown(out, line.version.map(|version| version.0))?;
    text(out, line.node_type, ",")?;
    shown(out, line.id.map(|id| id.0))?;
    shown(out, line.private)?;
    shown(out, line.value)?;
    out.write_all(b"\n")
}

fn shown(out: &mut impl Write, value: Option<impl Display>) -> io::Result<()> {
    match value {
        Some(value) => write!(out, ",{value}"),
        None => out.write_all(b","),
    }
}

/// A cell of any text; in quotes where it would be read as something else otherwise.
fn text(out: &mut impl Write, value: Option<&str>, before: &str) -> io::Result<()> {
    out.write_all(before.as_bytes())?;
    let Some(value) = value else {
        return Ok(());
    };
    if !value.is_empty() && !value.contains([',', '"', '\n', '\r']) {
        return out.write_all(value.as_bytes());
    }
    write!(out, "\"{}\"", value.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_read_as_spreadsheets_write_them() {
        let read = |row: &str| {
            let cells = cells(row.as_bytes()).map_err(|error| error.message)?;
            Ok::<_, String>(
                cells.into_iter().map(|cell| cell.text.into_owned()).collect::<Vec<_>>(),
            )
        };
        let cases: [(&str, &[&str]); 6] = [
            ("a,b", &["a", "b"]),
            ("", &[""]),
            (",", &["", ""]),
            (r#""a,b","c ""d""""#, &["a,b", r#"c "d""#]),
            ("\"a\nb\",\"\"", &["a\nb", ""]),
            (r#"a"b,c"#, &[r#"a"b"#, "c"]),
        ];
        for (row, expected) in cases {
            assert_eq!(read(row).unwrap(), expected, "{row}");
        }
        assert!(read(r#""a"#).unwrap_err().contains("not closed"));
        assert!(read(r#""a"b,c"#).unwrap_err().contains("goes on"));
    }

    #[test]
    fn headers_name_known_columns_once() {
        let read =
            |header: &str| CsvColumns::read(header.as_bytes()).map_err(|error| error.message);
        assert!(read("kind,source,target").is_ok());
        assert!(read("kind,from,to").unwrap_err().contains("'from'"));
        assert!(read("kind,kind").unwrap_err().contains("kind twice"));
        assert!(read("").unwrap_err().contains("''"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let line = ExportLine {
            kind: Some("follow"),
            source: Some(Id(1)),
            target: Some(Id(2)),
            data: Some("a \"b\",\nc\r"),
            group: Some("密友"),
            ..ExportLine::default()
        };
        let mut out = Vec::new();
        write_csv(&line, &mut out).unwrap();
        let columns = CsvColumns(NAMES.to_vec());
        let read = columns.line(out.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(read.data, Field::Set(line.data.unwrap().into()));
        assert_eq!((read.source, read.since), (line.source, None));
        let empty = ExportLine { data: Some(""), ..ExportLine::default() };
        out.clear();
        write_csv(&empty, &mut out).unwrap();
        let read = columns.line(out.strip_suffix(b"\n").unwrap()).unwrap();
        assert_eq!(read.data, Field::Set("".into()));
    }
}
