//! A client of RESP that knows both protocols, and servers that speak it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::server::{Options, Server};

/// A busy machine answers within this.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Simple(String),
    Error(String),
    Integer(i64),
    Text(String),
    Null,
    Truth(bool),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

impl Value {
    pub fn text(text: impl ToString) -> Value {
        Value::Text(text.to_string())
    }

    pub fn ok() -> Value {
        Value::Simple("OK".to_owned())
    }

    #[track_caller]
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) => items,
            other => panic!("an array was expected: {other:?}"),
        }
    }

    /// The value of a name, in a map or in an array of names and values.
    #[track_caller]
    pub fn field(&self, name: &str) -> &Value {
        let found = match self {
            Value::Map(entries) => entries.iter().find(|(key, _)| *key == Value::text(name)),
            Value::Array(items) => {
                let place = items.iter().step_by(2).position(|key| *key == Value::text(name));
                return place
                    .and_then(|place| items.get(2 * place + 1))
                    .unwrap_or_else(|| panic!("there is no {name} in {self:?}"));
            }
            other => panic!("a map was expected: {other:?}"),
        };
        &found.unwrap_or_else(|| panic!("there is no {name} in {self:?}")).1
    }

    #[track_caller]
    pub fn as_text(&self) -> &str {
        match self {
            Value::Text(text) | Value::Simple(text) => text,
            other => panic!("a text was expected: {other:?}"),
        }
    }

    /// The token of a write's answer.
    #[track_caller]
    pub fn token(&self) -> String {
        self.field("token").as_text().to_owned()
    }

    #[track_caller]
    pub fn expect_error(&self, begin: &str) -> &str {
        match self {
            Value::Error(text) if text.starts_with(begin) => text,
            other => panic!("an error {begin} was expected: {other:?}"),
        }
    }
}

pub struct RespClient {
    reader: BufReader<TcpStream>,
}

/// A command as clients send it.
pub fn command<Argument: AsRef<[u8]>>(arguments: &[Argument]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The same of a text's words.
pub fn words(text: &str) -> Vec<u8> {
    command(&text.split(' ').collect::<Vec<_>>())
}

impl RespClient {
    pub fn open(address: SocketAddr) -> RespClient {
        RespClient::try_open(address).expect("the server accepts connections")
    }

    pub fn try_open(address: SocketAddr) -> std::io::Result<RespClient> {
        let stream = TcpStream::connect_timeout(&address, ANSWER_DEADLINE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE))?;
        stream.set_write_timeout(Some(ANSWER_DEADLINE))?;
        Ok(RespClient { reader: BufReader::new(stream) })
    }

    /// With RESP3.
    pub fn open_third(address: SocketAddr) -> RespClient {
        let mut client = RespClient::open(address);
        client.ask("HELLO 3");
        client
    }

    /// Sends a command of these words and reads its answer.
    #[track_caller]
    pub fn ask(&mut self, text: &str) -> Value {
        self.send(words(text));
        self.read()
    }

    #[track_caller]
    pub fn ask_with(&mut self, arguments: &[&str]) -> Value {
        self.send(command(arguments));
        self.read()
    }

    /// False when the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.reader.get_mut().write_all(bytes.as_ref()).is_ok()
    }

    pub fn finish_sending(&self) {
        let _ = self.reader.get_ref().shutdown(Shutdown::Write);
    }

    #[track_caller]
    pub fn read(&mut self) -> Value {
        self.try_read().unwrap_or_else(|| panic!("the connection ended where an answer was due"))
    }

    /// None when the connection has ended.
    pub fn try_read(&mut self) -> Option<Value> {
        let line = self.line()?;
        let (kind, rest) = line.split_at(1);
        let count = || rest.parse::<i64>().expect("a number");
        Some(match kind {
            "+" => Value::Simple(rest.to_owned()),
            "-" => Value::Error(rest.to_owned()),
            ":" => Value::Integer(count()),
            "#" => Value::Truth(rest == "t"),
            "_" => Value::Null,
            "$" if count() < 0 => Value::Null,
            "$" => {
                let mut bytes = vec![0; count() as usize + 2];
                self.reader.read_exact(&mut bytes).ok()?;
                assert_eq!(bytes.split_off(bytes.len() - 2), b"\r\n");
                Value::Text(String::from_utf8(bytes).expect("answers are UTF-8"))
            }
            "*" => Value::Array((0..count()).map(|_| self.try_read()).collect::<Option<_>>()?),
            "%" => {
                let entries = (0..count()).map(|_| Some((self.try_read()?, self.try_read()?)));
                Value::Map(entries.collect::<Option<_>>()?)
            }
            _ => panic!("no answer begins with {line}"),
        })
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) => None,
            Ok(_) => Some(line.strip_suffix("\r\n").expect("a line has an end").to_owned()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("no answer within {ANSWER_DEADLINE:?}")
            }
            Err(_) => None,
        }
    }

    /// Everything up to the end of the connection, which must come.
    #[track_caller]
    pub fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.reader.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the connection does not end: {}", String::from_utf8_lossy(&bytes))
            }
            Err(_reset) => {}
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// How a server is told to speak RESP, on any free port.
pub fn options() -> Options {
    let arguments = vec!["--resp".to_owned(), "127.0.0.1:0".to_owned()];
    Options { arguments, ..Options::default() }
}

/// A server that speaks RESP, with these settings as environment variables beside.
pub fn start_with(environment: &[(&str, &str)]) -> Server {
    let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
    Server::start_with(Options { environment: environment.collect(), ..options() })
}
