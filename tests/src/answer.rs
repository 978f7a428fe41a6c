//! One answer of the service, with the shapes that the contract promises.

use std::collections::BTreeSet;

use serde_json::Value;
use ureq::http::HeaderMap;

/// Every error code with its status.
pub const CLOSED_LIST: [(u16, &str); 27] = [
    (400, "invalid_argument"),
    (401, "unauthenticated"),
    (403, "forbidden"),
    (404, "not_found"),
    (404, "unknown_kind"),
    (404, "unknown_group"),
    (405, "method_not_allowed"),
    (409, "already_related"),
    (409, "not_related"),
    (409, "not_pending"),
    (409, "conflict"),
    (409, "key_conflict"),
    (410, "position_expired"),
    (413, "too_large"),
    (415, "unsupported_media_type"),
    (422, "self_relation"),
    (422, "limit_reached"),
    (422, "excluded"),
    (422, "target_unknown"),
    (422, "depth_exceeded"),
    (429, "guarded"),
    (429, "quota_exceeded"),
    (500, "internal"),
    (503, "overloaded"),
    (503, "unavailable"),
    (503, "read_only"),
    (504, "deadline_exceeded"),
];

/// Codes after which the same request can never succeed by being sent again.
const NEVER_RETRYABLE: [&str; 6] = [
    "invalid_argument",
    "unknown_kind",
    "self_relation",
    "limit_reached",
    "too_large",
    "key_conflict",
];
const RETRYABLE: [&str; 2] = ["overloaded", "unavailable"];

#[derive(Debug, Clone)]
pub struct Answer {
    what: String,
    pub status: u16,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
    pub text: String,
    /// Null when the answer is no JSON.
    pub body: Value,
}

impl Answer {
    pub(crate) fn new(what: String, status: u16, headers: HeaderMap, bytes: Vec<u8>) -> Self {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Self { what, status, headers, bytes, text, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The body of an answer of this status.
    #[track_caller]
    pub fn expect_status(&self, status: u16) -> &Value {
        assert_eq!(self.status, status, "{} answered {}: {}", self.what, self.status, self.text);
        &self.body
    }

    /// The body of a 200.
    #[track_caller]
    pub fn ok(&self) -> &Value {
        self.expect_status(200)
    }

    /// Checks the whole shape of an error; returns its message.
    #[track_caller]
    pub fn expect_error(&self, status: u16, code: &str) -> &str {
        let Self { what, text, .. } = self;
        assert!(
            CLOSED_LIST.contains(&(status, code)),
            "the test asks for {status} {code}, which the closed list does not have"
        );
        assert_eq!(
            (self.status, self.body["code"].as_str()),
            (status, Some(code)),
            "{what} answered {}: {text}",
            self.status
        );
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json"),
            "{what}: an error's content type"
        );
        let request_id = self.body["request_id"].as_str();
        assert!(request_id.is_some_and(|id| !id.is_empty()), "{what}: a request id in {text}");
        assert_eq!(
            self.header("x-request-id"),
            request_id,
            "{what}: the request id of header and body"
        );
        assert_keys(&self.body, &["code", "message", "outcome", "request_id", "retryable"]);
        expect_problem(&self.body, status, code)
    }

    /// Checks the shape of a write's answer and returns it.
    #[track_caller]
    pub fn expect_change(&self, changed: bool, state: &str) -> &Value {
        let body = self.ok();
        assert_change(body, changed, state);
        assert_eq!(
            self.header("guanxi-token"),
            body["token"].as_str(),
            "{}: the token of header and body",
            self.what
        );
        body
    }

    #[track_caller]
    pub fn token(&self) -> String {
        self.header("guanxi-token")
            .unwrap_or_else(|| panic!("{}: no guanxi-token in {:?}", self.what, self.headers))
            .to_owned()
    }
}

/// The answer of one change, alone or in a batch.
#[track_caller]
pub fn assert_change(body: &Value, changed: bool, state: &str) {
    assert_keys(body, &["changed", "since", "state", "token", "version"]);
    assert_eq!(
        (body["changed"].as_bool(), body["state"].as_str()),
        (Some(changed), Some(state)),
        "changed and state of {body}"
    );
    let token = body["token"].as_str();
    assert!(token.is_some_and(|token| !token.is_empty()), "{body}");
    if !changed && state == "removed" {
        assert!(body["since"].is_null() && body["version"].is_null(), "{body}");
        return;
    }
    crate::waiting::parse_millis(&body["since"]);
    version_of(body);
}

/// What a replay must repeat: all but the token, since a later one only promises more.
pub fn without_token(body: &Value) -> Value {
    let mut body = body.clone();
    if let Some(fields) = body.as_object_mut() {
        fields.remove("token");
    }
    body
}

/// The error of one item of a batch, or the heart of an error answer.
#[track_caller]
pub fn expect_problem<'a>(problem: &'a Value, status: u16, code: &str) -> &'a str {
    assert_eq!(problem["code"].as_str(), Some(code), "{problem}");
    let message = problem["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "an error says what happened: {problem}");
    let retryable = problem["retryable"].as_bool();
    assert!(retryable.is_some(), "{problem}");
    if NEVER_RETRYABLE.contains(&code) {
        assert_eq!(retryable, Some(false), "{problem}");
    }
    if RETRYABLE.contains(&code) {
        assert_eq!(retryable, Some(true), "{problem}");
    }
    let outcome = problem["outcome"].as_str();
    assert!(matches!(outcome, Some("none" | "unknown")), "{problem}");
    if status < 500 {
        assert_eq!(outcome, Some("none"), "a refusal wrote nothing: {problem}");
    }
    message
}

/// Versions are numbers in strings, so that no JSON reader rounds them.
#[track_caller]
pub fn version_of(body: &Value) -> u64 {
    body["version"]
        .as_str()
        .and_then(|version| version.parse().ok())
        .unwrap_or_else(|| panic!("a version is a number in a string: {body}"))
}

#[track_caller]
pub fn assert_keys(body: &Value, expected: &[&str]) {
    let found: BTreeSet<&str> = body
        .as_object()
        .unwrap_or_else(|| panic!("an object was expected: {body}"))
        .keys()
        .map(String::as_str)
        .collect();
    let expected: BTreeSet<&str> = expected.iter().copied().collect();
    assert_eq!(found, expected, "the fields of {body}");
}
