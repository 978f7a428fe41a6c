//! The arguments of a call, read one after the other and strictly: first those that have a place,
//! then options, each a word and mostly a value behind it.

use guanxi_api::{Id, Name};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Code, Error, Millis};

use super::answer::AnswerWriter;
use super::command::Command;
use crate::service;

/// How much of what is wrong an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

/// Why a command is not done.
#[derive(Debug)]
pub enum Refused {
    /// A rule, in the words of every protocol.
    Rule(Error),
    /// In the words of Redis, for what Redis refuses too.
    Redis(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::Rule(error)
    }
}

pub fn wrong_count(name: &[u8]) -> Refused {
    let name = shown(name).to_lowercase();
    Refused::Redis(format!("ERR wrong number of arguments for '{name}' command"))
}

/// Bytes as an error repeats them.
pub fn shown(bytes: &[u8]) -> String {
    let printable = |c: char| if c.is_control() { '.' } else { c };
    String::from_utf8_lossy(bytes).chars().take(SHOWN_CHARS_MAX).map(printable).collect()
}

#[derive(Debug, Clone, Copy)]
pub struct Arguments<'a> {
    command: Command<'a>,
    at: usize,
}

impl<'a> Arguments<'a> {
    /// Those behind the command's name.
    pub fn of(command: Command<'a>) -> Arguments<'a> {
        Arguments { command, at: 1 }
    }

    fn left(&self) -> usize {
        self.command.len().saturating_sub(self.at)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Refused> {
        self.next().ok_or_else(|| wrong_count(self.command.name()))
    }

    pub fn text(&mut self, what: &str) -> Result<&'a str, Refused> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes);
        text.map_err(|_| Error::invalid(format!("{what}: it is not UTF-8")).into())
    }

    pub fn name(&mut self, what: &str) -> Result<Name<'a>, Refused> {
        self.text(what).map(Name::from)
    }

    pub fn id(&mut self, what: &str) -> Result<Id, Refused> {
        id_of(self.bytes()?, what)
    }

    /// At least one id, up to the first argument that does not begin as one does.
    pub fn ids(&mut self, what: &str) -> Result<Vec<Id>, Refused> {
        let mut ids = Vec::with_capacity(self.left());
        ids.push(self.id(what)?);
        while self.peek().is_some_and(|next| next.first().is_some_and(u8::is_ascii_digit)) {
            ids.push(self.id(what)?);
        }
        Ok(ids)
    }

    pub fn number(&mut self, what: &str, min: u64, max: u64) -> Result<u64, Refused> {
        let text = self.text(what)?;
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u64>().ok()).flatten();
        let number = number.filter(|number| (min..=max).contains(number));
        number.ok_or_else(|| {
            let message = format!("{what}: it is a whole number from {min} to {max}");
            Error::invalid(message).into()
        })
    }

    pub fn truth(&mut self, what: &str) -> Result<bool, Refused> {
        match self.bytes()? {
            b"1" => Ok(true),
            b"0" => Ok(false),
            word if word.eq_ignore_ascii_case(b"true") => Ok(true),
            word if word.eq_ignore_ascii_case(b"false") => Ok(false),
            _ => Err(Error::invalid(format!("{what}: it is true or false")).into()),
        }
    }

    /// A bound of a range of times.
    pub fn time_bound(&mut self, what: &str) -> Result<Millis, Refused> {
        Ok(guanxi_api::Time::parse_bound(self.text(what)?, what)?.0)
    }

    /// One of a few words.
    pub fn word<T: Copy>(&mut self, what: &str, words: &[(&str, T)]) -> Result<T, Refused> {
        let given = self.bytes()?;
        let found = words.iter().find(|(word, _)| is(given, word));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            let message = format!("{what}: '{}' is none of {}", shown(given), words.join(", "));
            Error::invalid(message).into()
        })
    }

    fn peek(&self) -> Option<&'a [u8]> {
        self.command.get(self.at)
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let next = self.peek()?;
        self.at += 1;
        Some(next)
    }

    /// Reads all that is left as options: `take` reads the value of one that it knows, and says
    /// whether it does. `known` are named to whoever gives another.
    pub fn options(
        &mut self,
        known: &str,
        mut take: impl FnMut(&'a [u8], &mut Arguments<'a>) -> Result<bool, Refused>,
    ) -> Result<(), Refused> {
        while let Some(option) = self.next() {
            if !take(option, self)? {
                return Err(Error::invalid(format!(
                    "'{}' is no option of {}, which takes {known}",
                    shown(option),
                    shown(self.command.name())
                ))
                .into());
            }
        }
        Ok(())
    }
}

/// An id in digits.
pub fn id_of(bytes: &[u8], what: &str) -> Result<Id, Refused> {
    match Id::of_digits(bytes) {
        Some(id) => Ok(id),
        None => Ok(Id::parse(&String::from_utf8_lossy(bytes), what)?),
    }
}

/// Whether an argument is this word, in capitals or not.
pub fn is(argument: &[u8], word: &str) -> bool {
    argument.eq_ignore_ascii_case(word.as_bytes())
}

/// Options that many calls have.
#[derive(Debug, Default)]
pub struct Terms {
    /// The token of a write that must be seen.
    pub at_least: Option<String>,
    /// Makes a write safe to send again.
    pub key: Option<IdempotencyKey>,
    /// Takes a default for what cannot be read now, and is told of it.
    pub or_default: bool,
}

impl Terms {
    /// The options of a read that has no default.
    pub fn of_read(&mut self, word: &[u8], values: &mut Arguments<'_>) -> Result<bool, Refused> {
        if !is(word, "ATLEAST") {
            return Ok(false);
        }
        let token = values.text("ATLEAST")?.to_owned();
        refuse_twice("ATLEAST", self.at_least.replace(token).is_some())?;
        Ok(true)
    }

    /// Those of a read that may have one.
    pub fn of_default(&mut self, word: &[u8], values: &mut Arguments<'_>) -> Result<bool, Refused> {
        if !is(word, "DEGRADED") {
            return self.of_read(word, values);
        }
        refuse_twice("DEGRADED", std::mem::replace(&mut self.or_default, true))?;
        Ok(true)
    }

    /// Writes what was read. Whoever takes defaults gets the answer and whether it has any; nobody else
    /// takes a default for the truth.
    pub fn tell(
        or_default: bool,
        degraded: bool,
        out: &mut AnswerWriter,
        write: impl FnOnce(&mut AnswerWriter),
    ) -> Result<(), Refused> {
        if degraded && !or_default {
            let message = "the database has too much to do; try again in a moment, or take what is \
                           known with DEGRADED";
            return Err(Error::new(Code::Overloaded, message).into());
        }
        if or_default {
            out.array(2);
        }
        write(out);
        if or_default {
            out.truth(degraded);
        }
        Ok(())
    }

    /// Those of a write of edges.
    pub fn of_write(&mut self, word: &[u8], values: &mut Arguments<'_>) -> Result<bool, Refused> {
        if !is(word, "KEY") {
            return self.of_read(word, values);
        }
        let key = service::key("KEY", Some(values.text("KEY")?))?;
        refuse_twice("KEY", self.key.is_some())?;
        self.key = key;
        Ok(true)
    }
}

/// An option is given once, as two would contradict each other.
pub fn refuse_twice(option: &str, given: bool) -> Result<(), Refused> {
    match given {
        true => Err(Error::invalid(format!("{option}: it is given more than once")).into()),
        false => Ok(()),
    }
}
