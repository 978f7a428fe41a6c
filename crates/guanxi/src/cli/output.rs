//! What the user sees on stdout: tables and colour for people, JSON for programs. Nothing here
//! knows what is being shown. A closed pipe ends a command quietly (`Failure::output`).

use std::borrow::Cow;
use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use serde::Serialize;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::failure::Failure;

const COLUMN_GAP: &str = "  ";

/// So many of a thing, in words.
pub fn counted(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        _ => format!("{count} {thing}s"),
    }
}

/// Stdout, gathered into large writes; `flush` when someone waits for a line.
pub struct Output {
    json: bool,
    colour: bool,
    out: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output {
            json,
            colour: !json && colour_wanted(io::stdout().is_terminal()),
            out: BufWriter::new(io::stdout().lock()),
        }
    }

    /// Whether the caller asked for JSON instead of text.
    pub fn json(&self) -> bool {
        self.json
    }

    /// For content that is not shown but passed on.
    pub fn raw(&mut self) -> &mut dyn Write {
        &mut self.out
    }

    /// One JSON value on a line of its own.
    pub fn value(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_string(value)
            .map_err(|error| Failure::failed(format!("cannot write the answer: {error}")))?;
        self.line(&text)
    }

    /// The items of a list, each on a line of its own.
    pub fn items(&mut self, list: &Value) -> Result<(), Failure> {
        list.as_array().into_iter().flatten().try_for_each(|item| self.value(item))
    }

    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        writeln!(self.out, "{text}").map_err(|error| Failure::output(&error))
    }

    /// Text that somebody else has laid out.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|error| Failure::output(&error))
    }

    /// Names and what they have, aligned.
    pub fn fields(&mut self, fields: &[(&str, String)]) -> Result<(), Failure> {
        let width = fields.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
        for (name, value) in fields {
            let name = padded(name, width, Align::Left);
            let name = Style::Faint.paint(&name, self.colour);
            self.line(format!("{name}{COLUMN_GAP}{value}").trim_end())?;
        }
        Ok(())
    }

    pub fn paint<'a>(&self, style: Style, text: &'a str) -> Cow<'a, str> {
        style.paint(text, self.colour)
    }

    /// Makes everything so far visible.
    /// Tells people, beside the answer, that some of it is not known.
    pub fn note_degraded(&self, degraded: bool) {
        if degraded {
            eprintln!(
                "guanxi: the database has too much to do: what is not known is shown as not \
                 related or 0; try again in a moment"
            );
        }
    }

    pub fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| Failure::output(&error))
    }
}

/// Colour is for a person at a terminal who did not ask for none (https://no-color.org).
pub fn colour_wanted(terminal: bool) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let plain = std::env::var_os("TERM").is_some_and(|value| value == "dumb");
    terminal && !refused && !plain
}

/// What a piece of text means; how it looks follows from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Good,
    Warning,
    Bad,
    Faint,
}

impl Style {
    pub fn paint(self, text: &str, colour: bool) -> Cow<'_, str> {
        if !colour {
            return Cow::Borrowed(text);
        }
        let code = match self {
            Style::Good => 32,
            Style::Warning => 33,
            Style::Bad => 31,
            Style::Faint => 2,
        };
        Cow::Owned(format!("\x1b[{code}m{text}\x1b[0m"))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    Left,
    /// Numbers.
    Right,
}

/// Rows under a heading, aligned by what a terminal shows: a Chinese character takes two columns.
/// It may be printed page by page: the heading comes once, and columns only grow.
pub struct OutputTable {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
    headed: bool,
}

struct Column {
    name: &'static str,
    align: Align,
    width: usize,
}

impl OutputTable {
    pub fn new(columns: &[(&'static str, Align)]) -> OutputTable {
        let columns = columns.iter();
        let columns = columns.map(|&(name, align)| Column { name, align, width: name.width() });
        OutputTable { columns: columns.collect(), rows: Vec::new(), headed: false }
    }

    /// One cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell per column");
        for (column, cell) in self.columns.iter_mut().zip(&cells) {
            column.width = column.width.max(cell.width());
        }
        self.rows.push(cells);
    }

    /// Prints the rows so far and forgets them.
    pub fn print(&mut self, output: &mut Output) -> Result<(), Failure> {
        if !self.headed {
            self.headed = true;
            let names = self.columns.iter().map(|column| column.name);
            let heading = self.aligned(names);
            let heading = output.paint(Style::Faint, &heading).into_owned();
            output.line(&heading)?;
        }
        for row in std::mem::take(&mut self.rows) {
            output.line(&self.aligned(row.iter().map(String::as_str)))?;
        }
        Ok(())
    }

    fn aligned<'a>(&self, cells: impl Iterator<Item = &'a str>) -> String {
        let cells = self.columns.iter().zip(cells);
        let padded: Vec<String> =
            cells.map(|(column, cell)| padded(cell, column.width, column.align)).collect();
        padded.join(COLUMN_GAP).trim_end().to_owned()
    }
}

fn padded(text: &str, width: usize, align: Align) -> String {
    let missing = " ".repeat(width.saturating_sub(text.width()));
    match align {
        Align::Left => format!("{text}{missing}"),
        Align::Right => format!("{missing}{text}"),
    }
}

/// What a terminal would obey instead of show (a name may hold anything) is shown as its escape.
pub fn printable(text: &str) -> String {
    let shown = text.chars().map(|character| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    });
    shown.collect()
}

/// A field of an answer as a person reads it; nothing for null.
pub fn shown(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(text)) => printable(&text),
        Ok(Value::Null) | Err(_) => String::new(),
        Ok(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_what_a_terminal_shows() {
        let mut table = OutputTable::new(&[("name", Align::Left), ("size", Align::Right)]);
        table.row(vec!["朋友".into(), "3".into()]);
        table.row(vec!["close friends".into(), "12".into()]);
        let shown: Vec<String> =
            table.rows.iter().map(|row| table.aligned(row.iter().map(String::as_str))).collect();
        assert_eq!(shown, ["朋友              3", "close friends    12"]);
        assert!(shown.iter().all(|line| line.width() == 19));
    }

    #[test]
    fn control_characters_never_reach_the_terminal() {
        assert_eq!(printable("a\u{1b}[31m\nb 朋友"), "a\\u{1b}[31m\\nb 朋友");
    }

    #[test]
    fn paint_without_colour_changes_nothing() {
        assert_eq!(Style::Bad.paint("x", false), "x");
        assert_eq!(Style::Bad.paint("x", true), "\x1b[31mx\x1b[0m");
    }
}
