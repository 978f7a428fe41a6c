//! The client's side of HTTP: requests to the server that the user named, and answers as values
//! or as streams. Whatever goes wrong becomes a `Failure` that says what to do next.

pub mod lenient;

use std::env;
use std::fmt::Display;
use std::io::{self, BufReader, Read};
use std::time::Duration;

use guanxi_api::Problem;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{HeaderMap, HeaderValue, Method, Uri, header, request};
use ureq::{Agent, AsSendBody, Body, SendBody};

use super::arguments::AtLeast;
use crate::failure::{Exit, Failure};

pub const DEFAULT_SERVER: &str = "http://127.0.0.1:7420";
const SERVER_VARIABLE: &str = "GUANXI_SERVER";
const KEY_VARIABLE: &str = "GUANXI_KEY";
const AT_LEAST_HEADER: &str = "guanxi-at-least";
/// A server that is there accepts at once; a wrong address should not keep anyone waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For a whole call; above the server's own deadline, so that its error arrives.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A stream may go on for hours, but not be silent for so long: heartbeats come more often.
const STREAM_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Connections kept for the next call of a command that makes several at once.
const IDLE_CONNECTIONS_MAX: usize = 16;
/// The largest answers are pages of 1,000 items with data; this only stops what is no answer.
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How much of a foreign answer an error repeats.
const SHOWN_CHARS_MAX: usize = 80;
/// What may stand in a path or a query as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The server's address: the flag, the environment, the default.
pub fn server_of(flag: Option<String>) -> Result<String, Failure> {
    let variable = match env::var(SERVER_VARIABLE) {
        Ok(text) if !text.is_empty() => Some(text),
        Ok(_) | Err(env::VarError::NotPresent) => None,
        Err(env::VarError::NotUnicode(_)) => {
            return Err(Failure::usage(format!("{SERVER_VARIABLE} is not text")));
        }
    };
    Ok(flag.or(variable).unwrap_or_else(|| DEFAULT_SERVER.to_owned()))
}

/// A path of these segments, each escaped.
pub fn path<const N: usize>(segments: [&dyn Display; N]) -> String {
    let escaped = segments.map(|segment| {
        let text = segment.to_string();
        format!("/{}", utf8_percent_encode(&text, PLAIN))
    });
    escaped.concat()
}

pub struct Client {
    agent: Agent,
    base: String,
    authorization: Option<HeaderValue>,
}

impl Client {
    /// Connects to nothing yet; refuses what can be no server.
    pub fn new(server: &str) -> Result<Client, Failure> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // The service is asked directly: a proxy for the web does not know it.
            .proxy(None)
            .max_idle_connections_per_host(IDLE_CONNECTIONS_MAX)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_per_read(Some(STREAM_SILENCE_MAX))
            .timeout_per_write(Some(STREAM_SILENCE_MAX))
            .user_agent(concat!("guanxi/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Client { agent: agent.into(), base: base_of(server)?, authorization: authorization()? })
    }

    /// The server's address, as it is shown to the user.
    pub fn server(&self) -> &str {
        &self.base
    }

    pub fn get(&self, path: &str) -> ClientRequest<'_> {
        self.request(Method::GET, path)
    }

    pub fn put(&self, path: &str) -> ClientRequest<'_> {
        self.request(Method::PUT, path)
    }

    pub fn post(&self, path: &str) -> ClientRequest<'_> {
        self.request(Method::POST, path)
    }

    pub fn patch(&self, path: &str) -> ClientRequest<'_> {
        self.request(Method::PATCH, path)
    }

    pub fn delete(&self, path: &str) -> ClientRequest<'_> {
        self.request(Method::DELETE, path)
    }

    /// What an answer means of which the caller had to see first what it is.
    pub fn means<T: DeserializeOwned>(&self, answer: Value) -> Result<Said<T>, Failure> {
        let text = answer.to_string();
        Said::of(answer).map_err(|_| foreign(&self.base, "the request", &text))
    }

    fn request(&self, method: Method, path: &str) -> ClientRequest<'_> {
        let query = String::new();
        ClientRequest { client: self, method, path: path.to_owned(), query, headers: Vec::new() }
    }
}

/// A request in the making; one of the `send` functions ends it.
pub struct ClientRequest<'a> {
    client: &'a Client,
    method: Method,
    path: String,
    query: String,
    headers: Vec<(&'static str, String)>,
}

impl ClientRequest<'_> {
    pub fn query(mut self, name: &str, value: impl Display) -> Self {
        let separator = if self.query.is_empty() { '?' } else { '&' };
        let value = value.to_string();
        let value = utf8_percent_encode(&value, PLAIN);
        self.query.push_str(&format!("{separator}{name}={value}"));
        self
    }

    /// A parameter that is left out when there is no value.
    pub fn query_if(self, name: &str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    /// The answer has at least what this token stands for.
    pub fn at_least(self, token: &AtLeast) -> Self {
        match &token.at_least {
            Some(token) => self.header(AT_LEAST_HEADER, token.as_str()),
            None => self,
        }
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Without a body; the answer is one of these.
    pub fn ask<T: DeserializeOwned>(self) -> Result<Said<T>, Failure> {
        self.answer()?.said()
    }

    /// The same with a JSON body.
    pub fn ask_json<T: DeserializeOwned>(self, body: &impl Serialize) -> Result<Said<T>, Failure> {
        self.answer_json(body)?.said()
    }

    /// Without a body; the answer is JSON.
    pub fn send(self) -> Result<Value, Failure> {
        self.answer()?.value()
    }

    /// With a JSON body; the answer is JSON.
    pub fn send_json(self, body: &impl Serialize) -> Result<Value, Failure> {
        self.answer_json(body)?.value()
    }

    fn answer_json(self, body: &impl Serialize) -> Result<ClientAnswer, Failure> {
        let bytes = serde_json::to_vec(body)
            .map_err(|error| Failure::failed(format!("cannot write the request: {error}")))?;
        let request = self.header("content-type", "application/json");
        request.run(bytes, Some(CALL_TIMEOUT))
    }

    /// Without a body; the answer is whatever it is.
    pub fn answer(self) -> Result<ClientAnswer, Failure> {
        // A POST that changes something must say what no web page may say unasked.
        let request = match self.method == Method::POST {
            true => self.header("content-type", "application/json"),
            false => self,
        };
        request.run((), Some(CALL_TIMEOUT))
    }

    /// Without a body; the answer is a stream, which may take as long as it likes.
    pub fn send_for_stream(self) -> Result<ClientAnswer, Failure> {
        self.run((), None)
    }

    /// With a body of any length; the answer comes when all of it was sent, or when the server
    /// has had enough of it.
    pub fn send_stream(
        self,
        content_type: &str,
        body: &mut dyn Read,
    ) -> Result<ClientAnswer, Failure> {
        self.header("content-type", content_type).run(SendBody::from_reader(body), None)
    }

    fn run(
        self,
        body: impl AsSendBody,
        timeout: Option<Duration>,
    ) -> Result<ClientAnswer, Failure> {
        let ClientRequest { client, method, path, query, headers } = self;
        let what = format!("{method} {path}");
        let mut request = request::Builder::new()
            .method(method.clone())
            .uri(format!("{}{path}{query}", client.base));
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &client.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        let request = request
            .body(body)
            .map_err(|error| Failure::usage(format!("{what} cannot be asked: {error}")))?;
        let configured = client.agent.configure_request(request);
        let request = configured.timeout_global(timeout).build();
        let reads_only = method == Method::GET;
        let answer = client
            .agent
            .run(request)
            .map_err(|error| unreachable_server(&error, &what, &client.base, reads_only))?;
        let (head, body) = answer.into_parts();
        let answer = ClientAnswer {
            what,
            reads_only,
            server: client.base.clone(),
            headers: head.headers,
            body,
        };
        match head.status.as_u16() {
            200..=299 => Ok(answer),
            status => Err(answer.refusal(status)),
        }
    }
}

/// An answer as it came, for programs, and what it means, for people.
#[derive(Debug)]
pub struct Said<T> {
    pub raw: Value,
    pub means: T,
}

impl<T: DeserializeOwned> Said<T> {
    pub fn of(raw: Value) -> Result<Said<T>, serde_json::Error> {
        Ok(Said { means: lenient::read(&raw)?, raw })
    }
}

/// The answer to a request that was not refused.
#[derive(Debug)]
pub struct ClientAnswer {
    what: String,
    reads_only: bool,
    server: String,
    headers: HeaderMap,
    body: Body,
}

impl ClientAnswer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The whole body as JSON.
    pub fn value(mut self) -> Result<Value, Failure> {
        let text = self.text()?;
        serde_json::from_str(&text).map_err(|_| self.foreign(&text))
    }

    /// One of these.
    pub fn said<T: DeserializeOwned>(mut self) -> Result<Said<T>, Failure> {
        let text = self.text()?;
        let said = serde_json::from_str(&text).and_then(Said::of);
        said.map_err(|_| match self.reads_only {
            true => self.foreign(&text),
            false => self.foreign(&text).next(
                "it may have been done all the same: look, with a guanxi as new as the server; if that is \
                 none of guanxi's, check --server or GUANXI_SERVER",
            ),
        })
    }

    pub fn text(&mut self) -> Result<String, Failure> {
        let body = self.body.with_config().limit(ANSWER_BYTES_MAX).lossy_utf8(true);
        body.read_to_string().map_err(|error| {
            Failure::failed(format!(
                "{} broke off while {} answered: {error}",
                self.what, self.server
            ))
            .next("`guanxi doctor` shows how the server does")
            .unanswered()
        })
    }

    /// The body as it comes. Reading fails when the server is silent for too long.
    pub fn into_reader(self) -> BufReader<impl Read> {
        BufReader::new(self.body.into_with_config().limit(u64::MAX).reader())
    }

    fn refusal(mut self, status: u16) -> Failure {
        let text = match self.text() {
            Ok(text) => text,
            Err(failure) => return failure,
        };
        failure_of(&text).unwrap_or_else(|| self.foreign(&format!("status {status}: {text}")))
    }

    fn foreign(&self, text: &str) -> Failure {
        foreign(&self.server, &self.what, text)
    }
}

/// What is said of an answer that is none of guanxi's.
pub fn foreign(server: &str, what: &str, text: &str) -> Failure {
    let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    let shown = super::output::printable(&shown);
    Failure::failed(format!("{server} answered {what} in a way that guanxi never does: {shown}"))
        .next("check with --server or GUANXI_SERVER that this is a guanxi server")
}

/// The failure that a text describes, if it is an error as the server writes it.
pub fn failure_of(problem: &str) -> Option<Failure> {
    let problem = serde_json::from_str::<Value>(problem).ok()?;
    lenient::read(&problem).ok().map(failure)
}

/// What somebody at the command line makes of an error.
fn failure(problem: Problem) -> Failure {
    let Problem { code, message, retryable, outcome, request_id } = problem;
    let exit = match &*code {
        "invalid_argument" => Exit::Usage,
        "internal" | "overloaded" | "unavailable" | "read_only" | "deadline_exceeded" => {
            Exit::Failed
        }
        _ => Exit::Refused,
    };
    let next = match &*outcome {
        "unknown" => Some("it may have been done all the same: look before you repeat it"),
        _ if code == "unavailable" && !retryable => {
            Some("name another server with --server or GUANXI_SERVER")
        }
        _ => next_step(&code),
    };
    let failure = Failure::new(exit, message);
    let failure = match (next, &*code) {
        (_, "internal") => failure.next(format!(
            "the server's log says more about request {request_id}; `guanxi doctor` checks it"
        )),
        (Some(next), _) => failure.next(next),
        (None, _) => failure,
    };
    failure.code(code.into_owned(), retryable)
}

/// What a user of the command line can do about a code, where its message does not say.
fn next_step(code: &str) -> Option<&'static str> {
    Some(match code {
        "unauthenticated" => "set GUANXI_KEY to a key that may do this",
        "unknown_kind" => "`guanxi kinds list` shows the kinds, `guanxi kinds create` makes one",
        "unknown_group" => {
            "`guanxi groups list` shows the groups, `guanxi groups create` makes one"
        }
        "already_related" | "not_related" => "`guanxi get` shows how the edge stands",
        "limit_reached" => "remove something first, or raise the limit with `guanxi kinds set`",
        "excluded" => "a block stands between the two: `guanxi delete block` lifts it",
        "position_expired" => "begin again with --from earliest or --from now",
        "read_only" => "go by what it says; --server or GUANXI_SERVER names another server",
        "overloaded" | "unavailable" | "deadline_exceeded" => {
            "try again in a moment; `guanxi doctor` shows how the server does"
        }
        _ => return None,
    })
}

fn unreachable_server(error: &ureq::Error, what: &str, server: &str, reads_only: bool) -> Failure {
    let check =
        "check the address given with --server or GUANXI_SERVER, and that `guanxi serve` runs";
    match error {
        ureq::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => Failure::failed(
            format!("nothing answers at {server}: connection refused"),
        )
        .next("start it with `guanxi serve`, or name another one with --server or GUANXI_SERVER"),
        ureq::Error::HostNotFound => {
            Failure::failed(format!("the host of {server} is not known")).next(check)
        }
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            Failure::failed(format!("cannot reach {server} within {CONNECT_TIMEOUT:?}")).next(check)
        }
        // From here on the server may have had the request.
        _ => {
            let failure = match error {
                ureq::Error::Timeout(_) => {
                    Failure::failed(format!("{server} did not answer {what} in time"))
                }
                _ => Failure::failed(format!("{what} to {server} failed: {error}")),
            };
            failure.unanswered().next(match reads_only {
                true => check,
                false => "it may have been done all the same: look before you repeat it",
            })
        }
    }
}

/// The address without a slash at its end, and with a scheme.
fn base_of(server: &str) -> Result<String, Failure> {
    if server.contains('@') {
        // It is not repeated: what stands before may be a password.
        return Err(Failure::usage("the address of the server has an @ in it").next(format!(
            "an address looks like {DEFAULT_SERVER}, without a user or a password"
        )));
    }
    let wrong = |what: &str| {
        Failure::usage(format!("'{server}' is no server: {what}"))
            .next(format!("an address looks like {DEFAULT_SERVER}"))
    };
    let full = match server.contains("://") {
        true => server.to_owned(),
        false => format!("http://{server}"),
    };
    let uri: Uri = full.parse().map_err(|_| wrong("it is not an address"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(wrong("guanxi speaks no TLS; put a TLS tunnel between the two if needed"));
        }
        _ => return Err(wrong("it must begin with http://")),
    }
    if uri.host().is_none_or(str::is_empty) {
        return Err(wrong("it names no host"));
    }
    if uri.query().is_some() || !matches!(uri.path(), "" | "/") {
        return Err(wrong("it has more than a host and a port"));
    }
    Ok(full.trim_end_matches('/').to_owned())
}

/// The access key, if the environment has one.
fn authorization() -> Result<Option<HeaderValue>, Failure> {
    let Some(key) = env::var_os(KEY_VARIABLE).filter(|key| !key.is_empty()) else {
        return Ok(None);
    };
    let value = key.to_str().and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok());
    let mut value = value.ok_or_else(|| {
        Failure::usage(format!("{KEY_VARIABLE} holds characters that no key has"))
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_host_and_a_port() {
        let good = [
            ("http://127.0.0.1:7420", "http://127.0.0.1:7420"),
            ("http://localhost:7420/", "http://localhost:7420"),
            ("localhost:7420", "http://localhost:7420"),
            ("http://[::1]:7420", "http://[::1]:7420"),
        ];
        for (given, base) in good {
            assert_eq!(base_of(given).unwrap(), base);
        }
        for bad in ["", "https://a", "ftp://a", "http://", "http://a/b", "http://a?b=c", "a b"] {
            assert_eq!(base_of(bad).unwrap_err().exit, Exit::Usage, "{bad}");
        }
    }

    #[test]
    fn a_password_in_a_servers_address_is_refused_and_not_repeated() {
        for address in ["http://u:hush@host:1", "u:hush@host", "http://u:hu sh@", "http://a/hush@b"]
        {
            let failure = base_of(address).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
            assert!(!format!("{failure:?}").contains("hu"), "{failure:?}");
        }
    }

    #[test]
    fn segments_are_escaped() {
        assert_eq!(
            path([&"v1", &"groups", &"close friends/朋"]),
            "/v1/groups/close%20friends%2F%E6%9C%8B"
        );
    }

    #[test]
    fn every_code_has_an_exit_code_that_scripts_can_rely_on() {
        let exit = |code: &str| {
            let text = format!(r#"{{"code":"{code}","message":"m"}}"#);
            failure_of(&text).unwrap().exit
        };
        for code in guanxi_model::Code::ALL {
            let expected = match guanxi_api::status_of(code) {
                400 => Exit::Usage,
                500.. => Exit::Failed,
                _ => Exit::Refused,
            };
            assert_eq!(exit(code.name()), expected, "{code}");
        }
    }
}
