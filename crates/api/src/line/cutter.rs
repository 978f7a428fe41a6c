//! Cuts bytes into lines as they come, however they were split on the way. In CSV a line break
//! within quotes is part of its cell.

use memchr::{memchr, memchr2};

use super::{LINE_BYTES_MAX, LineFormat};

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Where in a row of CSV the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CsvState {
    CellBegins,
    InCell,
    InQuotes,
    /// A quote within quotes: the end of the cell, or half of an escaped one.
    AfterQuote,
    /// The rest of a line that is too long.
    Skipped,
}

#[derive(Debug)]
pub struct LineCutter {
    format: LineFormat,
    /// The beginning of a line whose end has not come; never much longer than a line may be.
    rest: Vec<u8>,
    state: CsvState,
    first: bool,
}

impl LineCutter {
    pub fn new(format: LineFormat) -> LineCutter {
        LineCutter { format, rest: Vec::new(), state: CsvState::CellBegins, first: true }
    }

    /// Hands over every line that is whole, without its line break. A line that is longer than
    /// `LINE_BYTES_MAX` comes cut, and longer than that by one byte.
    pub fn feed(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        match self.format {
            LineFormat::Ndjson => self.feed_plain(bytes, each),
            LineFormat::Csv => self.feed_quoted(bytes, each),
        }
    }

    /// Whether everything that came so far is whole lines.
    pub fn is_between_lines(&self) -> bool {
        self.rest.is_empty()
    }

    /// The last line, where no line break follows it.
    pub fn finish(&mut self, each: &mut impl FnMut(&[u8])) {
        while !self.rest.is_empty() {
            if !self.unquote(each) {
                self.emit(each);
            }
        }
    }

    fn feed_plain(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        while let Some(at) = memchr(b'\n', bytes) {
            // Nearly every line lies whole in what came, and is not copied.
            if self.rest.is_empty() && !self.first && at <= LINE_BYTES_MAX {
                each(without_return(&bytes[..at]));
            } else {
                self.keep(&bytes[..at]);
                self.emit(each);
            }
            bytes = &bytes[at + 1..];
        }
        self.keep(bytes);
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (LINE_BYTES_MAX + 1).saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn feed_quoted(&mut self, mut bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        while !bytes.is_empty() {
            // Nearly every line lies whole in what came, has no quotes, and is not copied.
            if self.rest.is_empty() && !self.first && self.state == CsvState::CellBegins {
                match memchr2(b'\n', b'"', bytes) {
                    Some(at) if bytes[at] == b'\n' && at <= LINE_BYTES_MAX => {
                        each(without_return(&bytes[..at]));
                        bytes = &bytes[at + 1..];
                        continue;
                    }
                    _ => {}
                }
            }
            let line_end = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
            let (line, behind) = bytes.split_at(line_end);
            self.feed_bytes(line, each);
            bytes = behind;
        }
    }

    fn feed_bytes(&mut self, bytes: &[u8], each: &mut impl FnMut(&[u8])) {
        for &byte in bytes {
            let quoted = self.state == CsvState::InQuotes;
            if byte == b'\n' && !quoted {
                self.emit(each);
                continue;
            }
            if self.state == CsvState::Skipped {
                continue;
            }
            self.rest.push(byte);
            self.state = match (self.state, byte) {
                (CsvState::CellBegins, b'"') => CsvState::InQuotes,
                (CsvState::InQuotes, b'"') => CsvState::AfterQuote,
                (CsvState::InQuotes, _) | (CsvState::AfterQuote, b'"') => CsvState::InQuotes,
                (_, b',') => CsvState::CellBegins,
                _ => CsvState::InCell,
            };
            if self.rest.len() > LINE_BYTES_MAX && !self.unquote(each) {
                self.state = CsvState::Skipped;
            }
        }
    }

    /// A quote that is never closed must not swallow the lines behind it: its line ends at its
    /// first line break. False where there is none.
    fn unquote(&mut self, each: &mut impl FnMut(&[u8])) -> bool {
        if self.state != CsvState::InQuotes {
            return false;
        }
        let Some(at) = self.rest.iter().position(|byte| *byte == b'\n') else {
            return false;
        };
        let behind = self.rest.split_off(at + 1);
        self.rest.pop();
        self.emit(each);
        self.feed_quoted(&behind, each);
        true
    }

    fn emit(&mut self, each: &mut impl FnMut(&[u8])) {
        let mut line = without_return(&self.rest);
        if self.first {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        each(line);
        self.first = false;
        self.rest.clear();
        self.state = CsvState::CellBegins;
    }
}

fn without_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fed in pieces of every size, the lines are the same.
    fn check(format: LineFormat, text: &str, expected: &[&str]) {
        for size in 1..=text.len() {
            let mut cutter = LineCutter::new(format);
            let mut found = Vec::new();
            let mut each = |line: &[u8]| found.push(String::from_utf8(line.to_vec()).unwrap());
            for piece in text.as_bytes().chunks(size) {
                cutter.feed(piece, &mut each);
            }
            cutter.finish(&mut each);
            assert_eq!(found, expected, "{text:?} in pieces of {size}");
        }
    }

    #[test]
    fn lines_end_where_they_end() {
        let (ndjson, csv) = (LineFormat::Ndjson, LineFormat::Csv);
        for format in [ndjson, csv] {
            check(format, "a\nb\r\n\nc", &["a", "b", "", "c"]);
            check(format, "a\n", &["a"]);
            check(format, "\u{feff}a\n\u{feff}b\n", &["a", "\u{feff}b"]);
        }
        check(ndjson, "{\"a\n\"}\n", &["{\"a", "\"}"]);
        check(csv, "1,\"a\nb\",2\n3\n", &["1,\"a\nb\",2", "3"]);
        check(csv, "1,\"a\"\"\n\",2\n3\n", &["1,\"a\"\"\n\",2", "3"]);
        check(csv, "1,a\"b\n2\n", &["1,a\"b", "2"]);
        check(csv, "1,\"a\n2\n3", &["1,\"a", "2", "3"]);
    }

    #[test]
    fn what_is_too_long_is_cut_and_the_next_line_is_whole() {
        for (format, before) in [(LineFormat::Ndjson, ""), (LineFormat::Csv, "\"")] {
            let long = format!("{before}{}\nnext\n", "x".repeat(3 * LINE_BYTES_MAX));
            let mut lines = Vec::new();
            let mut cutter = LineCutter::new(format);
            for piece in long.as_bytes().chunks(1_000) {
                cutter.feed(piece, &mut |line| lines.push(line.len()));
            }
            assert_eq!(lines, [LINE_BYTES_MAX + 1, 4], "{format:?}");
        }
        let unclosed = format!("1,\"a\n{}", "2\n".repeat(LINE_BYTES_MAX));
        let mut count = 0;
        let mut cutter = LineCutter::new(LineFormat::Csv);
        cutter.feed(unclosed.as_bytes(), &mut |_| count += 1);
        assert_eq!(count, LINE_BYTES_MAX + 1);
    }
}
