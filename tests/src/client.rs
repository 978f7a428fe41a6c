//! A small HTTP client: every answer is an [`Answer`], whatever its status.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use ureq::Agent;
use ureq::http;

use crate::answer::Answer;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How long a call whose token is not met yet is tried again.
const TOKEN_PATIENCE: Duration = Duration::from_secs(30);
const AT_LEAST: &str = "guanxi-at-least";

#[derive(Clone)]
pub struct Client {
    agent: Agent,
    base: String,
    /// Of a cluster: the token of each thread's last write, which stands for those before it, too.
    tokens: Option<Arc<Mutex<HashMap<ThreadId, String>>>>,
}

impl Client {
    pub fn new(address: SocketAddr) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(REQUEST_TIMEOUT))
            .allow_non_standard_methods(true)
            .build()
            .into();
        Self { agent, base: format!("http://{address}"), tokens: None }
    }

    /// Presents the token of its last write with every call, as callers of a cluster do who want
    /// to read their own writes.
    pub(crate) fn reading_its_writes(mut self) -> Self {
        self.tokens = Some(Arc::default());
        self
    }

    fn known_token(&self) -> Option<String> {
        let tokens = self.tokens.as_ref()?.lock();
        tokens.get(&thread::current().id()).cloned()
    }

    fn keep_token(&self, answer: &Answer) {
        if let (Some(tokens), Some(token)) = (&self.tokens, answer.header("guanxi-token")) {
            let mut tokens = tokens.lock();
            tokens.insert(thread::current().id(), token.to_owned());
        }
    }

    /// Takes a token of a write that went another way for that of this thread's last write.
    pub fn present(&self, token: &str) {
        if let Some(tokens) = &self.tokens {
            let mut tokens = tokens.lock();
            tokens.insert(thread::current().id(), token.to_owned());
        }
    }

    pub fn request(&self, method: &str, path: &str) -> Request<'_> {
        Request {
            client: self,
            method: method.to_owned(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: None,
        }
    }

    #[track_caller]
    pub fn get(&self, path: impl AsRef<str>) -> Answer {
        self.request("GET", path.as_ref()).send()
    }

    /// A PUT without a body.
    #[track_caller]
    pub fn put(&self, path: impl AsRef<str>) -> Answer {
        self.request("PUT", path.as_ref()).send()
    }

    #[track_caller]
    pub fn put_json(&self, path: impl AsRef<str>, body: Value) -> Answer {
        self.request("PUT", path.as_ref()).json(&body).send()
    }

    /// A POST without a body.
    #[track_caller]
    pub fn post(&self, path: impl AsRef<str>) -> Answer {
        self.request("POST", path.as_ref()).send()
    }

    #[track_caller]
    pub fn post_json(&self, path: impl AsRef<str>, body: Value) -> Answer {
        self.request("POST", path.as_ref()).json(&body).send()
    }

    #[track_caller]
    pub fn patch_json(&self, path: impl AsRef<str>, body: Value) -> Answer {
        self.request("PATCH", path.as_ref()).json(&body).send()
    }

    #[track_caller]
    pub fn delete(&self, path: impl AsRef<str>) -> Answer {
        self.request("DELETE", path.as_ref()).send()
    }

    /// What must hold after any misuse: the service lives.
    #[track_caller]
    pub fn assert_healthy(&self) {
        self.get("/healthz").expect_status(200);
    }
}

pub struct Request<'a> {
    client: &'a Client,
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Request<'_> {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string())
    }

    pub fn bytes(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self.header("content-type", content_type)
    }

    /// A body that does not say what it is.
    pub fn untyped(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = Some(body.into());
        self
    }

    #[track_caller]
    pub fn send(self) -> Answer {
        let what = format!("{} {}", self.method, self.path);
        self.try_send().unwrap_or_else(|error| panic!("{what}: {error}"))
    }

    /// For callers that expect the connection to break.
    pub fn try_send(self) -> Result<Answer, ureq::Error> {
        let own = self.path.contains("at_least=")
            || self.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(AT_LEAST))
            || !self.path.starts_with("/v1/");
        let Some(token) = self.client.known_token().filter(|_| !own) else {
            let answer = self.try_once(None)?;
            self.client.keep_token(&answer);
            return Ok(answer);
        };
        let until = Instant::now() + TOKEN_PATIENCE;
        loop {
            let answer = self.try_once(Some(&token))?;
            let early = answer.status == 503 && answer.text.contains("token");
            if early && Instant::now() < until {
                continue;
            }
            self.client.keep_token(&answer);
            return Ok(answer);
        }
    }

    fn try_once(&self, token: Option<&str>) -> Result<Answer, ureq::Error> {
        let what = format!("{} {}", self.method, self.path);
        let mut builder = http::Request::builder()
            .method(self.method.as_str())
            .uri(format!("{}{}", self.client.base, self.path));
        for (name, value) in &self.headers {
            builder = builder.header(name, value);
        }
        if let Some(token) = token {
            builder = builder.header(AT_LEAST, token);
        }
        // A change by POST has a type even where it has no body.
        if self.method == "POST" && self.body.is_none() {
            builder = builder.header("content-type", "application/json");
        }
        let agent = &self.client.agent;
        let answer = match self.body.clone() {
            Some(body) => agent.run(builder.body(body)?)?,
            None => agent.run(builder.body(())?)?,
        };
        let (head, body) = answer.into_parts();
        let body = body.into_with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Answer::new(what, head.status.as_u16(), head.headers, body))
    }
}
