//! The two tables from error codes to HTTP and to gRPC, and the shape of an error on the wire.

use std::borrow::Cow;
use std::sync::Arc;

use guanxi_model::{Code, Error, Outcome};
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema::object;

/// The HTTP status of every code of the closed list.
pub fn status_of(code: Code) -> u16 {
    match code {
        Code::InvalidArgument => 400,
        Code::Unauthenticated => 401,
        Code::Forbidden => 403,
        Code::NotFound | Code::UnknownKind | Code::UnknownGroup => 404,
        Code::MethodNotAllowed => 405,
        Code::AlreadyRelated
        | Code::NotRelated
        | Code::NotPending
        | Code::Conflict
        | Code::KeyConflict => 409,
        Code::PositionExpired => 410,
        Code::TooLarge => 413,
        Code::UnsupportedMediaType => 415,
        Code::SelfRelation
        | Code::LimitReached
        | Code::Excluded
        | Code::TargetUnknown
        | Code::DepthExceeded => 422,
        Code::Guarded | Code::QuotaExceeded => 429,
        Code::Internal => 500,
        Code::Overloaded | Code::Unavailable | Code::ReadOnly => 503,
        Code::DeadlineExceeded => 504,
    }
}

/// The gRPC status code of an error. Clients retry `Unavailable` by habit, so only what may succeed
/// by itself has it.
pub fn grpc_status_of(error: &Error) -> tonic::Code {
    match grpc_code_of(error.code) {
        tonic::Code::Unavailable if !error.retryable => tonic::Code::FailedPrecondition,
        // Writes pause for a moment.
        _ if error.code == Code::ReadOnly && error.retryable => tonic::Code::Unavailable,
        status => status,
    }
}

/// The gRPC status code of every code of the closed list.
fn grpc_code_of(code: Code) -> tonic::Code {
    match code {
        Code::InvalidArgument | Code::UnsupportedMediaType | Code::SelfRelation => {
            tonic::Code::InvalidArgument
        }
        Code::Unauthenticated => tonic::Code::Unauthenticated,
        Code::Forbidden => tonic::Code::PermissionDenied,
        Code::NotFound | Code::UnknownKind | Code::UnknownGroup => tonic::Code::NotFound,
        Code::MethodNotAllowed => tonic::Code::Unimplemented,
        Code::AlreadyRelated => tonic::Code::AlreadyExists,
        Code::NotRelated
        | Code::NotPending
        | Code::Conflict
        | Code::KeyConflict
        | Code::LimitReached
        | Code::Excluded
        | Code::TargetUnknown
        | Code::ReadOnly => tonic::Code::FailedPrecondition,
        Code::PositionExpired | Code::DepthExceeded => tonic::Code::OutOfRange,
        Code::TooLarge | Code::Guarded | Code::QuotaExceeded => tonic::Code::ResourceExhausted,
        Code::Internal => tonic::Code::Internal,
        Code::Overloaded | Code::Unavailable => tonic::Code::Unavailable,
        Code::DeadlineExceeded => tonic::Code::DeadlineExceeded,
    }
}

/// What a caller gets of an error's message. Some repeat what was sent, which may be a whole body;
/// a thousand bytes are more than people read, and in any encoding less than a client takes as heads.
const MESSAGE_BYTES_MAX: usize = 1_000;
/// Stands for the rest of a longer one.
const LEFT_OFF: char = '…';

/// An error as a caller reads it: the code for programs, the message for people.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Problem {
    pub code: Cow<'static, str>,
    /// What happened, to what, and what the caller can do.
    pub message: String,
    /// Whether the same request may succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// Whether it may have been done in spite of the error.
    #[serde(default)]
    pub outcome: Cow<'static, str>,
    /// Also in the header x-request-id and in the logs.
    #[serde(default)]
    pub request_id: Arc<str>,
}

impl Problem {
    pub fn new(error: Error, request_id: Arc<str>) -> Problem {
        Problem {
            code: error.code.name().into(),
            message: bounded(error.message),
            retryable: error.retryable,
            outcome: match error.outcome {
                Outcome::None => "none".into(),
                Outcome::Unknown => "unknown".into(),
            },
            request_id,
        }
    }
}

/// A message, or as much of it as a caller gets.
fn bounded(mut message: String) -> String {
    if message.len() > MESSAGE_BYTES_MAX {
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX - LEFT_OFF.len_utf8());
        message.truncate(end);
        message.push(LEFT_OFF);
    }
    message
}

impl PartialSchema for Problem {
    fn schema() -> RefOr<Schema> {
        let text = || ObjectBuilder::new().schema_type(Type::String).min_length(Some(1));
        let word = |words: &[&'static str]| text().enum_values(Some(words.iter().copied()));
        let flag = ObjectBuilder::new().schema_type(Type::Boolean);
        let fields = [
            ("code", word(&Code::ALL.map(Code::name))),
            ("message", text().description(Some("For people."))),
            ("retryable", flag.description(Some("Whether the same request may succeed later."))),
            (
                "outcome",
                word(&["none", "unknown"])
                    .description(Some("Whether it may have been done in spite of the error.")),
            ),
            (
                "request_id",
                text()
                    .max_length(Some(64))
                    .description(Some("Also in the header x-request-id and in the logs.")),
            ),
        ];
        let fields = fields.map(|(name, field)| (name, RefOr::T(Schema::from(field))));
        let required = ["code", "message", "retryable", "outcome", "request_id"];
        RefOr::T(object(fields, &required))
    }
}

impl ToSchema for Problem {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Problem")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract's list, word for word.
    const CONTRACT: &str = "400 invalid_argument · 401 unauthenticated · 403 forbidden · \
        404 not_found, unknown_kind, unknown_group · 405 method_not_allowed · \
        409 already_related, not_related, not_pending, conflict, key_conflict · \
        410 position_expired · 413 too_large · 415 unsupported_media_type · \
        422 self_relation, limit_reached, excluded, target_unknown, depth_exceeded · \
        429 guarded, quota_exceeded · 500 internal · \
        503 overloaded, unavailable, read_only · 504 deadline_exceeded";

    #[test]
    fn every_code_has_the_status_of_the_contract() {
        let mut listed = Vec::new();
        for entry in CONTRACT.split(" · ") {
            let (status, codes) = entry.split_once(' ').unwrap();
            let status: u16 = status.parse().unwrap();
            listed.extend(codes.split(", ").map(|code| (code.to_owned(), status)));
        }
        let mut ours: Vec<_> =
            Code::ALL.map(|code| (code.name().to_owned(), status_of(code))).to_vec();
        listed.sort();
        ours.sort();
        assert_eq!(ours, listed);
    }

    #[test]
    fn only_what_may_succeed_by_itself_is_retried_by_habit() {
        for code in Code::ALL {
            let status = grpc_code_of(code);
            assert_ne!(status, tonic::Code::Ok, "{code}");
            if status == tonic::Code::Unavailable {
                assert!(code.retryable(), "{code}");
            }
        }
    }

    #[test]
    fn an_error_may_know_better_than_its_code() {
        let away = Error::new(Code::Unavailable, "not here").lasting();
        assert_eq!(grpc_status_of(&away), tonic::Code::FailedPrecondition);
        assert!(!Problem::new(away, "r-1".into()).retryable);
        let erased = Error::new(Code::Conflict, "not yet").passing();
        assert_eq!(grpc_status_of(&erased), tonic::Code::FailedPrecondition);
        assert!(Problem::new(erased, "r-1".into()).retryable);
    }

    #[test]
    fn a_message_is_told_as_far_as_people_read() {
        for (unit, units) in [("a", 1_000), ("é", 500), ("朋", 333), ("🙂", 250)] {
            let told = |text: String| Problem::new(Error::invalid(text), "r-1".into()).message;
            let whole = unit.repeat(units);
            assert_eq!(told(whole.clone()), whole);
            let cut = told(unit.repeat(1_000_000));
            let kept = cut.strip_suffix(LEFT_OFF).unwrap();
            assert!(cut.len() <= MESSAGE_BYTES_MAX && cut.len() > MESSAGE_BYTES_MAX - 5, "{unit}");
            assert!(whole.starts_with(kept), "{unit}");
        }
    }

    #[test]
    fn a_problem_has_the_contracts_fields() {
        let error = Error::new(Code::Unavailable, "not yet").outcome_unknown();
        let json = serde_json::to_value(Problem::new(error, "r-1".into())).unwrap();
        let expected = serde_json::json!({
            "code": "unavailable", "message": "not yet", "retryable": true,
            "outcome": "unknown", "request_id": "r-1",
        });
        assert_eq!(json, expected);
    }
}
