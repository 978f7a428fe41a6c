//! Answers in bytes, in the protocol that the client has chosen: RESP2, which has texts, whole
//! numbers and arrays, or RESP3, which has maps, truth values and a null of its own. They stand one
//! behind the other in one buffer, which is used again and again.

use std::sync::Arc;

use guanxi_api::Problem;
use guanxi_model::{Code, Error};

use super::arguments::Refused;

/// What of the buffer is kept once it was sent.
const KEPT_BYTES: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Resp2,
    Resp3,
}

#[derive(Debug)]
pub struct AnswerWriter {
    bytes: Vec<u8>,
    pub protocol: Protocol,
}

impl AnswerWriter {
    pub fn new() -> AnswerWriter {
        AnswerWriter { bytes: Vec::new(), protocol: Protocol::Resp2 }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// All of it was sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES);
    }

    /// Takes back what was written behind this length.
    pub fn cut(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// A short text of ours, without an end of line.
    pub fn simple(&mut self, text: &str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// An error: its first word is for programs, the rest for people.
    pub fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        self.line_of(text);
        self.end_line();
    }

    /// Why a command is not done.
    pub fn refused(&mut self, refused: Refused, request_id: &Arc<str>) {
        match refused {
            Refused::Rule(error) => self.refusal(error, request_id),
            Refused::Redis(text) => self.error(&text),
        }
    }

    /// An error of the closed list.
    pub fn refusal(&mut self, error: Error, request_id: &Arc<str>) {
        let of_service = error.code == Code::Internal;
        let problem = Problem::new(error, request_id.clone());
        self.bytes.push(b'-');
        self.bytes.extend(problem.code.bytes().map(|byte| byte.to_ascii_uppercase()));
        self.bytes.push(b' ');
        self.line_of(&problem.message);
        if problem.outcome == "unknown" {
            self.bytes.extend_from_slice(b" [outcome=unknown]");
        }
        if of_service {
            self.line_of(" [request_id=");
            self.line_of(&problem.request_id);
            self.bytes.push(b']');
        }
        self.end_line();
    }

    pub fn integer(&mut self, number: i64) {
        self.bytes.push(b':');
        self.digits(number);
        self.end_line();
    }

    /// A number that need not fit what RESP calls an integer.
    pub fn id(&mut self, number: u64) {
        let mut digits = itoa::Buffer::new();
        self.text(digits.format(number));
    }

    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.bytes.push(b'$');
        self.digits(bytes.len());
        self.end_line();
        self.bytes.extend_from_slice(bytes);
        self.end_line();
    }

    pub fn truth(&mut self, is: bool) {
        match (self.protocol, is) {
            (Protocol::Resp2, is) => self.integer(i64::from(is)),
            (Protocol::Resp3, true) => self.bytes.extend_from_slice(b"#t\r\n"),
            (Protocol::Resp3, false) => self.bytes.extend_from_slice(b"#f\r\n"),
        }
    }

    pub fn null(&mut self) {
        match self.protocol {
            Protocol::Resp2 => self.bytes.extend_from_slice(b"$-1\r\n"),
            Protocol::Resp3 => self.bytes.extend_from_slice(b"_\r\n"),
        }
    }

    /// What may be there; where it is not it is null.
    pub fn maybe<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut AnswerWriter, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.null(),
        }
    }

    /// So many answers follow, which are its items.
    pub fn array(&mut self, items: usize) {
        self.bytes.push(b'*');
        self.digits(items);
        self.end_line();
    }

    /// So many names follow, each with its value. In RESP2 it is an array of both in turn.
    pub fn map(&mut self, entries: usize) {
        match self.protocol {
            Protocol::Resp2 => self.array(2 * entries),
            Protocol::Resp3 => {
                self.bytes.push(b'%');
                self.digits(entries);
                self.end_line();
            }
        }
    }

    fn digits(&mut self, number: impl itoa::Integer) {
        let mut digits = itoa::Buffer::new();
        self.bytes.extend_from_slice(digits.format(number).as_bytes());
    }

    /// No text of a caller ends a line.
    fn line_of(&mut self, text: &str) {
        let plain = |byte: u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte };
        self.bytes.extend(text.bytes().map(plain));
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(protocol: Protocol, write: impl FnOnce(&mut AnswerWriter)) -> String {
        let mut out = AnswerWriter::new();
        out.protocol = protocol;
        write(&mut out);
        String::from_utf8(out.bytes).unwrap()
    }

    #[test]
    fn values_have_the_forms_of_their_protocol() {
        let both = |write: fn(&mut AnswerWriter), second: &str, third: &str| {
            assert_eq!(written(Protocol::Resp2, write), second);
            assert_eq!(written(Protocol::Resp3, write), third);
        };
        both(|out| out.simple("OK"), "+OK\r\n", "+OK\r\n");
        both(|out| out.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n");
        both(
            |out| out.id(u64::MAX),
            "$20\r\n18446744073709551615\r\n",
            "$20\r\n18446744073709551615\r\n",
        );
        both(|out| out.text("朋\r\n"), "$5\r\n朋\r\n\r\n", "$5\r\n朋\r\n\r\n");
        both(|out| out.truth(true), ":1\r\n", "#t\r\n");
        both(|out| out.truth(false), ":0\r\n", "#f\r\n");
        both(|out| out.null(), "$-1\r\n", "_\r\n");
        both(|out| out.array(2), "*2\r\n", "*2\r\n");
        both(|out| out.map(2), "*4\r\n", "%2\r\n");
    }

    #[test]
    fn an_error_is_one_line_with_its_code_first() {
        let id = "resp-1".into();
        let told = |error| written(Protocol::Resp2, |out| out.refusal(error, &id));
        let limit = Error::new(Code::LimitReached, "source 1 has\r\n-OK too many");
        assert_eq!(told(limit), "-LIMIT_REACHED source 1 has  -OK too many\r\n");
        let late = Error::new(Code::DeadlineExceeded, "late").outcome_unknown();
        assert_eq!(told(late), "-DEADLINE_EXCEEDED late [outcome=unknown]\r\n");
        let ours = Error::new(Code::Internal, "oh");
        assert_eq!(told(ours), "-INTERNAL oh [request_id=resp-1]\r\n");
    }
}
