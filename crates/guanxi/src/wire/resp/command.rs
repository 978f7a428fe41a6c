//! One command after the other from the bytes of a connection, however they come: arrays of bulk
//! strings, as clients send them, and lines, as people type them. Nothing is copied: a command's
//! arguments are places in the one buffer, which is used again and again. Whatever a stranger sends,
//! no more than `command_bytes_max` bytes and `ARGUMENTS_MAX` arguments of one command are kept, and
//! what is read once is not read again when the rest comes.

use std::ops::Range;

use guanxi_model::{Code, Error};

use super::inline;

/// Arguments of one command: four times as many as the longest call takes.
pub const ARGUMENTS_MAX: usize = 4_096;
/// A line that people type.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Digits of a length, with its sign; no length that is taken has more.
const LENGTH_DIGITS_MAX: usize = 10;
/// What is read at once, and what is kept of the buffer between commands.
const READ_BYTES: usize = 16 * 1024;
const ARGUMENTS_KEPT: usize = 512;

/// What ends a connection: nothing behind it could be told apart.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// The bytes are no commands. The text is what Redis says of it.
    Protocol(String),
    /// The command is longer than any may be.
    TooLong(Error),
    /// A web page, or a client of HTTP: it gets no answer.
    Http,
}

#[derive(Debug)]
pub struct CommandReader {
    bytes: Vec<u8>,
    /// Where the command begins that is being read.
    start: usize,
    /// Up to where it is read.
    at: usize,
    progress: Progress,
    arguments: Vec<Range<usize>>,
    command_bytes_max: usize,
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    Begin,
    /// A line without its end so far.
    Line,
    /// So many arguments are to come.
    Array {
        left: usize,
    },
    /// An argument of this length, and then so many.
    Argument {
        length: usize,
        left: usize,
    },
    Whole,
}

impl CommandReader {
    pub fn new(command_bytes_max: usize) -> CommandReader {
        CommandReader {
            bytes: Vec::new(),
            start: 0,
            at: 0,
            progress: Progress::Begin,
            arguments: Vec::new(),
            command_bytes_max,
        }
    }

    /// Where to put what comes, behind what is there and not yet done.
    pub fn room(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.bytes.drain(..self.start);
            self.at -= self.start;
            self.start = 0;
        }
        if self.bytes.is_empty() && self.bytes.capacity() > READ_BYTES {
            self.bytes = Vec::new();
        }
        // A long argument finds its room as it comes, whatever was announced.
        let more = self.bytes.len().max(READ_BYTES);
        let wanted = match self.progress {
            Progress::Argument { length, .. } => {
                (self.at + length + 2 - self.bytes.len()).min(more)
            }
            _ => 0,
        };
        self.bytes.reserve(wanted.max(READ_BYTES - self.bytes.len().min(READ_BYTES - 1)));
        &mut self.bytes
    }

    /// What is kept of what came.
    pub fn held_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Whether a part of a command is there.
    pub fn is_amid(&self) -> bool {
        self.start < self.bytes.len()
    }

    /// Whether there is a whole command; `consume` lets go of it. Lines and arrays of nothing are
    /// passed over.
    pub fn next(&mut self) -> Result<bool, Broken> {
        loop {
            match self.progress {
                Progress::Whole => return Ok(true),
                Progress::Begin => {
                    let Some(first) = self.bytes.get(self.at) else {
                        return Ok(false);
                    };
                    if *first != b'*' {
                        self.progress = Progress::Line;
                        continue;
                    }
                    let Some(count) = self.length("invalid multibulk length")? else {
                        return Ok(false);
                    };
                    match usize::try_from(count) {
                        Err(_) | Ok(0) => self.consume(),
                        Ok(count) if count <= ARGUMENTS_MAX => {
                            self.progress = Progress::Array { left: count };
                        }
                        Ok(_) => return Err(protocol("invalid multibulk length")),
                    }
                }
                Progress::Line => {
                    if !self.line()? {
                        return Ok(false);
                    }
                    match self.arguments.is_empty() {
                        true => self.consume(),
                        false => self.progress = Progress::Whole,
                    }
                }
                Progress::Array { left: 0 } => self.progress = Progress::Whole,
                Progress::Array { left } => {
                    let Some(kind) = self.bytes.get(self.at) else {
                        return Ok(false);
                    };
                    if *kind != b'$' {
                        let shown = char::from(*kind).escape_default();
                        return Err(protocol(&format!("expected '$', got '{shown}'")));
                    }
                    let Some(length) = self.length("invalid bulk length")? else {
                        return Ok(false);
                    };
                    let Ok(length) = usize::try_from(length) else {
                        return Err(protocol("invalid bulk length"));
                    };
                    self.refuse_long(length)?;
                    self.progress = Progress::Argument { length, left: left - 1 };
                }
                Progress::Argument { length, left } => {
                    let end = self.at + length;
                    let Some(behind) = self.bytes.get(end..end + 2) else {
                        return Ok(false);
                    };
                    if behind != b"\r\n" {
                        return Err(protocol("an argument is not as long as announced"));
                    }
                    self.arguments.push(self.at - self.start..end - self.start);
                    self.at = end + 2;
                    self.progress = Progress::Array { left };
                }
            }
        }
    }

    /// Lets go of the command, and goes on behind it.
    pub fn consume(&mut self) {
        self.start = self.at;
        self.progress = Progress::Begin;
        self.arguments.clear();
        self.arguments.shrink_to(ARGUMENTS_KEPT);
        if self.start == self.bytes.len() {
            self.bytes.clear();
            (self.start, self.at) = (0, 0);
        }
    }

    /// The whole command that there is.
    pub fn command(&self) -> Command<'_> {
        Command { bytes: &self.bytes[self.start..], arguments: &self.arguments }
    }

    /// Reads `*12\r\n` or `$12\r\n`; None as long as its end has not come.
    fn length(&mut self, wrong: &str) -> Result<Option<i64>, Broken> {
        let digits = &self.bytes[self.at + 1..];
        let (negative, digits) = match digits.first() {
            Some(b'-') => (true, &digits[1..]),
            _ => (false, digits),
        };
        let mut number: i64 = 0;
        for (count, byte) in digits.iter().enumerate() {
            match byte {
                b'0'..=b'9' if count < LENGTH_DIGITS_MAX => {
                    number = number * 10 + i64::from(byte - b'0');
                }
                b'\r' if count > 0 => {
                    let Some(newline) = digits.get(count + 1) else {
                        return Ok(None);
                    };
                    if *newline != b'\n' {
                        return Err(protocol(wrong));
                    }
                    self.at += 1 + usize::from(negative) + count + 2;
                    return Ok(Some(if negative { -number } else { number }));
                }
                _ => return Err(protocol(wrong)),
            }
        }
        Ok(None)
    }

    /// Reads a line into arguments; false as long as its end has not come.
    fn line(&mut self) -> Result<bool, Broken> {
        let came = &self.bytes[self.at..];
        let Some(end) = came.iter().position(|byte| *byte == b'\n') else {
            self.at = self.bytes.len();
            return match self.at - self.start > LINE_BYTES_MAX {
                true => Err(protocol("too big inline request")),
                false => Ok(false),
            };
        };
        self.at += end + 1;
        let line = &mut self.bytes[self.start..self.at - 1];
        if line.len() > LINE_BYTES_MAX {
            return Err(protocol("too big inline request"));
        }
        if inline::is_http(line) {
            return Err(Broken::Http);
        }
        match inline::split(line, &mut self.arguments) {
            true if self.arguments.len() <= ARGUMENTS_MAX => Ok(true),
            true => Err(protocol("too many arguments")),
            false => Err(protocol("unbalanced quotes in request")),
        }
    }

    fn refuse_long(&self, length: usize) -> Result<(), Broken> {
        let bytes = (self.at - self.start).saturating_add(length);
        if bytes <= self.command_bytes_max {
            return Ok(());
        }
        Err(Broken::TooLong(Error::new(
            Code::TooLarge,
            format!("a command has at most {} bytes; send less at once", self.command_bytes_max),
        )))
    }
}

fn protocol(what: &str) -> Broken {
    Broken::Protocol(format!("Protocol error: {what}"))
}

/// A command's arguments, its name first.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a> {
    bytes: &'a [u8],
    arguments: &'a [Range<usize>],
}

impl<'a> Command<'a> {
    pub fn name(self) -> &'a [u8] {
        self.get(0).unwrap_or_default()
    }

    pub fn len(self) -> usize {
        self.arguments.len()
    }

    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        self.arguments.get(index).map(|place| &self.bytes[place.clone()])
    }

    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        self.arguments.iter().map(move |place| &self.bytes[place.clone()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES_MAX: usize = 1_000;

    /// What is read of these bytes when they come in these pieces.
    fn read<'a>(
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> (Vec<Vec<Vec<u8>>>, Result<bool, Broken>) {
        let mut reader = CommandReader::new(BYTES_MAX);
        let mut commands = Vec::new();
        for piece in pieces {
            reader.room().extend_from_slice(piece);
            loop {
                match reader.next() {
                    Ok(true) => {
                        commands.push(reader.command().iter().map(<[u8]>::to_vec).collect());
                        reader.consume();
                    }
                    Ok(false) => break,
                    broken => return (commands, broken),
                }
            }
        }
        (commands, Ok(reader.is_amid()))
    }

    fn words(command: &str) -> Vec<Vec<u8>> {
        command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn commands_are_read_wherever_they_are_cut() {
        let sent: &[u8] = b"*1\r\n$4\r\nPING\r\n\r\n*0\r\n*-1\r\nGX.GET  follow 1 2\n\
            *3\r\n$4\r\nECHO\r\n$0\r\n\r\n$6\r\na\r\nb c\r\nSET \"a b\" 'c'\r\n*2\r\n$1\r\nx\r\n$2\r\nyz\r\n";
        let meant = vec![
            words("PING"),
            words("GX.GET follow 1 2"),
            vec![b"ECHO".to_vec(), Vec::new(), b"a\r\nb c".to_vec()],
            vec![b"SET".to_vec(), b"a b".to_vec(), b"c".to_vec()],
            words("x yz"),
        ];
        for first in 0..=sent.len() {
            for second in first..=sent.len() {
                let pieces = [&sent[..first], &sent[first..second], &sent[second..]];
                let (commands, ended) = read(pieces.into_iter());
                assert_eq!(commands, meant, "cut at {first} and {second}");
                assert_eq!(ended, Ok(false));
            }
        }
        for step in 1..8 {
            assert_eq!(read(sent.chunks(step)).0, meant, "in pieces of {step}");
        }
    }

    #[test]
    fn what_is_no_command_ends_the_connection() {
        let protocol = |text: &str| Err(Broken::Protocol(format!("Protocol error: {text}")));
        let many = format!("*{}\r\n", ARGUMENTS_MAX + 1);
        let long_line = "a".repeat(LINE_BYTES_MAX + 1);
        for (sent, ended) in [
            ("*x\r\n", protocol("invalid multibulk length")),
            ("*1a\r\n", protocol("invalid multibulk length")),
            ("*\r\n", protocol("invalid multibulk length")),
            ("*1\rx", protocol("invalid multibulk length")),
            ("*99999999999", protocol("invalid multibulk length")),
            (&many, protocol("invalid multibulk length")),
            ("*1\r\n+PING\r\n", protocol("expected '$', got '+'")),
            ("*1\r\n\0", protocol("expected '$', got '\\u{0}'")),
            ("*1\r\n$-1\r\n", protocol("invalid bulk length")),
            ("*1\r\n$4\r\nPINGS\r\n", protocol("an argument is not as long as announced")),
            ("PING \"a\r\n", protocol("unbalanced quotes in request")),
            (&long_line, protocol("too big inline request")),
            ("POST / HTTP/1.1\r\n", Err(Broken::Http)),
            ("GET /GX.PUT HTTP/1.0\r\n", Err(Broken::Http)),
            ("Host: localhost\r\n", Err(Broken::Http)),
        ] {
            for step in [1, 7, sent.len()] {
                let (commands, broken) = read(sent.as_bytes().chunks(step));
                assert!(commands.is_empty(), "{sent}");
                assert_eq!(broken, ended, "{sent} in pieces of {step}");
            }
        }
        let (_, broken) = read([&b"*2\r\n$4\r\nECHO\r\n$1000\r\n"[..]].into_iter());
        assert!(matches!(broken, Err(Broken::TooLong(error)) if error.code == Code::TooLarge));
    }

    #[test]
    fn a_buffer_is_used_again_and_a_long_one_given_back() {
        let mut reader = CommandReader::new(1 << 20);
        let long = vec![b'x'; 100_000];
        reader.room().extend_from_slice(b"*2\r\n$4\r\nECHO\r\n$100000\r\n");
        assert_eq!(reader.next(), Ok(false));
        assert!(reader.room().capacity() < 100_000, "what was announced has not come");
        for piece in long.chunks(READ_BYTES) {
            let room = reader.room();
            assert!(room.capacity() - room.len() >= piece.len());
            room.extend_from_slice(piece);
        }
        assert_eq!(reader.next(), Ok(false));
        reader.room().extend_from_slice(b"\r\n");
        assert_eq!(reader.next(), Ok(true));
        assert_eq!(reader.command().get(1), Some(&long[..]));
        reader.consume();
        assert!(!reader.is_amid());
        assert!(reader.room().capacity() <= 2 * READ_BYTES);
    }
}
