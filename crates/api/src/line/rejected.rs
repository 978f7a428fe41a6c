//! Rejected rows of CSV: collected under the columns that they came with and one for the error, so
//! that every reader of CSV can read them, also those that were no CSV.

use std::borrow::Cow;
use std::io::{self, Write};

use guanxi_model::Error;

use super::csv::{CsvCell, ERROR, cells};

/// The columns of a file of rejected rows.
#[derive(Debug)]
pub struct RejectedColumns {
    names: Vec<String>,
    /// Which of them is the error's; a file of rejected rows that is imported again has it already.
    error: usize,
}

impl RejectedColumns {
    /// Those of the file that the rows come from.
    pub fn of(header: &[u8]) -> Result<RejectedColumns, Error> {
        let mut names: Vec<String> =
            cells(header)?.into_iter().map(|cell| cell.text.trim().to_owned()).collect();
        let error = names.iter().position(|name| name == ERROR).unwrap_or_else(|| {
            names.push(ERROR.to_owned());
            names.len() - 1
        });
        Ok(RejectedColumns { names, error })
    }

    pub fn write_header(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{}", self.names.join(","))
    }

    /// The error of a row that was written so.
    pub fn error_of(&self, row: &[u8]) -> Option<String> {
        let mut cells = cells(row).ok()?;
        (self.error < cells.len()).then(|| cells.swap_remove(self.error).text.into_owned())
    }

    /// Writes a row with its error. One that cannot be read, or has more or fewer cells than its
    /// header, stands behind its error in the same cell, as it came.
    pub fn write(&self, row: &[u8], error: &str, out: &mut impl Write) -> io::Result<()> {
        let mut row_cells = cells(row).unwrap_or_default();
        if row_cells.len() + 1 == self.names.len() && self.error == row_cells.len() {
            row_cells.push(CsvCell { text: Cow::Borrowed(""), quoted: false });
        }
        let fits = row_cells.len() == self.names.len();
        let error = match fits {
            true => Cow::Borrowed(error),
            false => Cow::Owned(format!("{error}: {}", String::from_utf8_lossy(row))),
        };
        for at in 0..self.names.len() {
            let comma = if at == 0 { "" } else { "," };
            let (text, quoted) = match row_cells.get(at) {
                _ if at == self.error => (&*error, true),
                Some(cell) if fits => (&*cell.text, cell.quoted),
                _ => ("", false),
            };
            match quoted || text.contains(['"', '\n', '\r']) {
                true => write!(out, "{comma}\"{}\"", text.replace('"', "\"\""))?,
                false => write!(out, "{comma}{text}")?,
            }
        }
        out.write_all(b"\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_the_cells_of_its_header() {
        let cases = [
            ("kind,source,target", "follow,1,1", "follow,1,1,\"why\""),
            ("kind,source,target", "follow,\"1\",\"\"", "follow,\"1\",\"\",\"why\""),
            ("kind,source,target", "fol\"low,1,1", "\"fol\"\"low\",1,1,\"why\""),
            ("kind,source,target", "follow,1", ",,,\"why: follow,1\""),
            ("kind,source,target", "follow,1,2,3,4", ",,,\"why: follow,1,2,3,4\""),
            ("kind,source,target", "follow,\"1,2", ",,,\"why: follow,\"\"1,2\""),
            ("kind,source,target", "\"a\"b,1,2", ",,,\"why: \"\"a\"\"b,1,2\""),
            ("kind,source,target,error", "follow,1,1,\"old\"", "follow,1,1,\"why\""),
            ("error,kind,source,target", "old,follow,1,1", "\"why\",follow,1,1"),
            ("kind, error ,source", "a,\"b\",c,d", ",\"why: a,\"\"b\"\",c,d\","),
        ];
        for (header, row, expected) in cases {
            let columns = RejectedColumns::of(header.as_bytes()).unwrap();
            let mut out = Vec::new();
            columns.write_header(&mut out).unwrap();
            columns.write(row.as_bytes(), "why", &mut out).unwrap();
            let out = String::from_utf8(out).unwrap();
            let (names, written) = out.trim_end().split_once('\n').unwrap();
            assert_eq!(written, expected, "{header}: {row}");
            let count = |row: &str| cells(row.as_bytes()).unwrap().len();
            assert_eq!(count(names), count(written), "{out}");
            let error = columns.error_of(written.as_bytes()).unwrap();
            assert!(error == "why" || error == format!("why: {row}"), "{error}");
        }
        let columns = RejectedColumns::of(b"kind").unwrap();
        let mut out = Vec::new();
        columns.write(b"\xff", "why", &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), ",\"why: \u{fffd}\"\n");
    }
}
