//! Why a command ends without having done what was asked: what to say, and the exit code. Every
//! command, the service too, ends through here.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use serde_json::json;

use crate::cli::output::{Style, colour_wanted};

/// What the exit code tells a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Whoever read our output has seen enough.
    OutputClosed = 0,
    /// A rule said no, or something wrong was found: to try again would not help.
    Refused = 1,
    Usage = 2,
    /// It failed, was stopped, or the server could not be reached.
    Failed = 3,
    /// The service lost one of its threads; it may be started again at once.
    Lost = 4,
}

#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    /// A code of the closed list, where the server gave one.
    pub code: Option<String>,
    /// The server says that the same request may succeed later.
    pub retryable: bool,
    /// The server may have done what was asked: the connection broke before its answer came.
    pub unanswered: bool,
    message: String,
    /// What the user can do about it.
    next: Option<String>,
}

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        let (message, next) = (message.into(), None);
        Failure { exit, code: None, retryable: false, unanswered: false, message, next }
    }

    /// The command line, the environment or a file of settings is wrong.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Usage, message)
    }

    pub fn failed(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Failed, message)
    }

    /// The command did its work and found something wrong: drift, rejected lines.
    pub fn found(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Refused, message)
    }

    /// A file that was given cannot be read, or is damaged.
    pub fn file(message: impl Into<String>) -> Failure {
        Failure::new(Exit::Refused, message)
    }

    /// The output could not be written; a closed pipe is no error worth a word.
    pub fn output(error: &io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::new(Exit::OutputClosed, "the reader of the output has gone");
        }
        Failure::failed(format!("cannot write the output: {error}"))
            .next("make room or choose another place to write to")
    }

    /// With what the server said for programs.
    pub fn code(mut self, code: impl Into<String>, retryable: bool) -> Failure {
        self.code = Some(code.into());
        self.retryable = retryable;
        self
    }

    pub fn unanswered(mut self) -> Failure {
        self.unanswered = true;
        self
    }

    /// The same with another message.
    pub fn saying(mut self, message: impl Into<String>) -> Failure {
        self.message = message.into();
        self
    }

    /// Adds what the user can do next.
    pub fn next(mut self, next: impl Into<String>) -> Failure {
        self.next = Some(next.into());
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    /// What the user can do; nothing when the message says it.
    pub fn next_step(&self) -> &str {
        self.next.as_deref().unwrap_or_default()
    }

    /// Tells the user, on stderr, and gives the exit code.
    pub fn report(&self, json: bool) -> ExitCode {
        if self.exit != Exit::OutputClosed {
            let text = if json { self.as_json() } else { self.as_text() };
            // Nobody is left to be told when stderr is closed as well.
            let _ = io::stderr().write_all(text.as_bytes());
        }
        ExitCode::from(self.exit as u8)
    }

    fn as_json(&self) -> String {
        let error = json!({ "code": self.code, "message": self.message, "next": self.next });
        format!("{}\n", json!({ "error": error }))
    }

    fn as_text(&self) -> String {
        let colour = colour_wanted(io::stderr().is_terminal());
        let name = Style::Bad.paint("guanxi:", colour);
        let code = self.code.as_deref().map(|code| format!(" ({code})")).unwrap_or_default();
        let next = self.next.as_deref().map(|next| format!("        {next}\n"));
        format!("{name} {}{code}\n{}", self.message, next.unwrap_or_default())
    }
}
