//! What a client says of itself, and asks about its connection: the commands that every client of
//! Redis sends before its first own one. None of them touches an edge.

use std::sync::Arc;

use super::about;
use super::answer::{AnswerWriter, Protocol};
use super::arguments::{Refused, is, shown, wrong_count};
use super::command::Command;
use super::front::RespFront;

/// Whose words and answers these are: clients choose what they send by the version.
pub const REDIS_VERSION: &str = "7.2.0";
/// A name, or what a library says of itself; it is shown to others, and kept as long as the client.
const NAME_BYTES_MAX: usize = 128;
/// The one user there is.
const DEFAULT_USER: &[u8] = b"default";
/// The arguments that an error repeats of an unknown command, as Redis does.
const SHOWN_ARGUMENTS_MAX: usize = 8;

/// A client, by what it said.
#[derive(Debug)]
pub struct Client {
    pub number: u64,
    /// Stands for its requests in logs.
    pub request_id: Arc<str>,
    pub name: String,
    pub library: String,
    pub library_version: String,
    /// It wants to end.
    pub quits: bool,
}

impl Client {
    pub fn new(number: u64) -> Client {
        Client {
            number,
            request_id: format!("resp-{number}").into(),
            name: String::new(),
            library: String::new(),
            library_version: String::new(),
            quits: false,
        }
    }
}

/// Commands that are no calls: they are about the connection, or about the service as a server of
/// this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnCommand {
    Ping,
    Echo,
    Hello,
    Auth,
    Client,
    Command,
    Info,
    Select,
    Reset,
    Quit,
}

/// With how many arguments each is called, its name among them: exactly so many, or when negative at
/// least so many.
pub const OWN_COMMANDS: [(&str, OwnCommand, i64); 10] = [
    ("ping", OwnCommand::Ping, -1),
    ("echo", OwnCommand::Echo, 2),
    ("hello", OwnCommand::Hello, -1),
    ("auth", OwnCommand::Auth, -2),
    ("client", OwnCommand::Client, -2),
    ("command", OwnCommand::Command, -1),
    ("info", OwnCommand::Info, -1),
    ("select", OwnCommand::Select, 2),
    ("reset", OwnCommand::Reset, 1),
    ("quit", OwnCommand::Quit, -1),
];

/// Whether a command has as many arguments as it takes.
pub fn has_arity(count: usize, arity: i64) -> bool {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    if arity < 0 { count >= -arity } else { count == arity }
}

pub fn answer(
    command: Command<'_>,
    client: &mut Client,
    front: &RespFront,
    out: &mut AnswerWriter,
) -> Result<(), Refused> {
    let name = command.name();
    let Some((_, own, arity)) = OWN_COMMANDS.iter().find(|(known, ..)| is(name, known)) else {
        return Err(unknown(command));
    };
    if !has_arity(command.len(), *arity) {
        return Err(wrong_count(name));
    }
    match own {
        OwnCommand::Ping => ping(command, out)?,
        OwnCommand::Echo => out.bulk(command.get(1).unwrap_or_default()),
        OwnCommand::Hello => hello(command, client, front, out)?,
        OwnCommand::Auth => {
            let arguments = (command.get(1), command.get(2), command.len());
            match arguments {
                (Some(password), None, _) => authenticate(None, password)?,
                (Some(user), Some(password), 3) => authenticate(Some(user), password)?,
                _ => return Err(syntax()),
            }
            out.simple("OK");
        }
        OwnCommand::Client => of_client(command, client, out)?,
        OwnCommand::Command => about::commands(command, out)?,
        OwnCommand::Info => about::info(front, out),
        OwnCommand::Select => select(command, out)?,
        OwnCommand::Reset => {
            client.name.clear();
            out.protocol = Protocol::Resp2;
            out.simple("RESET");
        }
        OwnCommand::Quit => {
            client.quits = true;
            out.simple("OK");
        }
    }
    Ok(())
}

fn ping(command: Command<'_>, out: &mut AnswerWriter) -> Result<(), Refused> {
    match (command.get(1), command.len()) {
        (None, _) => out.simple("PONG"),
        (Some(text), 2) => out.bulk(text),
        _ => return Err(wrong_count(command.name())),
    }
    Ok(())
}

/// Who somebody is. There are no keys yet: everybody is the default user, who has no password. What
/// Redis says then is said here, and what it says of others; a service with keys looks them up here.
fn authenticate(user: Option<&[u8]>, _password: &[u8]) -> Result<(), Refused> {
    match user {
        Some(DEFAULT_USER) => Ok(()),
        Some(_) => Err(redis("WRONGPASS invalid username-password pair or user is disabled.")),
        None => Err(redis(
            "ERR AUTH <password> called without any password configured for the default user. Are \
             you sure your configuration is correct?",
        )),
    }
}

/// `HELLO [2|3 [AUTH user password] [SETNAME name]]`. Nothing of it holds unless all of it does.
fn hello(
    command: Command<'_>,
    client: &mut Client,
    front: &RespFront,
    out: &mut AnswerWriter,
) -> Result<(), Refused> {
    let protocol = match command.get(1) {
        None => out.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(other) if other.iter().all(u8::is_ascii_digit) => {
            return Err(redis("NOPROTO unsupported protocol version"));
        }
        Some(_) => {
            return Err(redis("ERR Protocol version is not an integer or out of range"));
        }
    };
    let (mut at, mut name) = (2, None);
    while let Some(option) = command.get(at) {
        match (command.get(at + 1), command.get(at + 2)) {
            (Some(user), Some(password)) if is(option, "AUTH") => {
                authenticate(Some(user), password)?;
                at += 3;
            }
            (Some(given), _) if is(option, "SETNAME") => {
                name = Some(plain(given).ok_or_else(wrong_name)?);
                at += 2;
            }
            _ => {
                let option = shown(option);
                return Err(redis(&format!("ERR Syntax error in HELLO option '{option}'")));
            }
        }
    }
    client.name = name.unwrap_or_else(|| std::mem::take(&mut client.name));
    out.protocol = protocol;
    about::hello(client, front, out);
    Ok(())
}

fn of_client(
    command: Command<'_>,
    client: &mut Client,
    out: &mut AnswerWriter,
) -> Result<(), Refused> {
    let what = command.get(1).unwrap_or_default();
    let value = command.get(2).unwrap_or_default();
    let with = |count: usize| match command.len() == count {
        true => Ok(()),
        false => {
            let what = shown(what).to_lowercase();
            Err(wrong_count(format!("client|{what}").as_bytes()))
        }
    };
    if is(what, "SETNAME") {
        with(3)?;
        client.name = plain(value).ok_or_else(wrong_name)?;
        out.simple("OK");
    } else if is(what, "GETNAME") {
        with(2)?;
        match client.name.is_empty() {
            true => out.null(),
            false => out.text(&client.name),
        }
    } else if is(what, "SETINFO") {
        with(4)?;
        let said = plain(command.get(3).unwrap_or_default());
        let said = said.ok_or_else(|| {
            let field = shown(value).to_lowercase();
            redis(&format!("ERR {field} cannot contain spaces, newlines or special characters."))
        })?;
        match () {
            () if is(value, "LIB-NAME") => client.library = said,
            () if is(value, "LIB-VER") => client.library_version = said,
            () => return Err(redis(&format!("ERR Unrecognized option '{}'", shown(value)))),
        }
        out.simple("OK");
    } else if is(what, "ID") {
        with(2)?;
        out.integer(i64::try_from(client.number).unwrap_or(i64::MAX));
    } else if is(what, "INFO") || is(what, "LIST") {
        // Of others a client learns nothing.
        out.text(&about::client_line(client, out.protocol));
    } else if is_as_it_is(what, value) {
        out.simple("OK");
    } else {
        let what = shown(what);
        return Err(redis(&format!("ERR unknown subcommand '{what}'. Try CLIENT HELP.")));
    }
    Ok(())
}

/// What a client may ask for and has already.
fn is_as_it_is(what: &[u8], value: &[u8]) -> bool {
    let always = ["NO-EVICT", "NO-TOUCH", "CAPA"].iter().any(|word| is(what, word));
    always || (is(what, "REPLY") && is(value, "ON")) || (is(what, "TRACKING") && is(value, "OFF"))
}

fn select(command: Command<'_>, out: &mut AnswerWriter) -> Result<(), Refused> {
    match command.get(1) {
        Some(b"0") => out.simple("OK"),
        Some(number) if number.iter().all(u8::is_ascii_digit) && !number.is_empty() => {
            return Err(redis("ERR DB index is out of range"));
        }
        _ => return Err(redis("ERR value is not an integer or out of range")),
    }
    Ok(())
}

/// A text that may stand in a line of many.
fn plain(bytes: &[u8]) -> Option<String> {
    let fits = bytes.len() <= NAME_BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic);
    fits.then(|| String::from_utf8_lossy(bytes).into_owned())
}

fn wrong_name() -> Refused {
    redis("ERR Client names cannot contain spaces, newlines or special characters.")
}

fn syntax() -> Refused {
    redis("ERR syntax error")
}

fn redis(text: &str) -> Refused {
    Refused::Redis(text.to_owned())
}

/// In the words of Redis, by which clients know that they may do without it.
fn unknown(command: Command<'_>) -> Refused {
    let begin = command.iter().skip(1).take(SHOWN_ARGUMENTS_MAX);
    let begin: String = begin.map(|argument| format!("'{}' ", shown(argument))).collect();
    let name = shown(command.name());
    Refused::Redis(format!("ERR unknown command '{name}', with args beginning with: {begin}"))
}
