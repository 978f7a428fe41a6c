//! The one table from error codes to HTTP, and the shape of an error on the wire.

use guanxi_model::{Code, Error, Outcome};
use serde::Serialize;
use utoipa::ToSchema;

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

/// An error as a caller reads it: the code for programs, the message for people.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Problem<'a> {
    #[schema(inline, value_type = ProblemCode)]
    pub code: &'static str,
    /// What happened, to what, and what the caller can do.
    #[schema(min_length = 1)]
    pub message: &'a str,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// Whether it may have been done in spite of the error.
    #[schema(inline, value_type = ProblemOutcome)]
    pub outcome: &'static str,
    /// Also in the header x-request-id and in the logs.
    #[schema(min_length = 1, max_length = 64)]
    pub request_id: &'a str,
}

impl<'a> Problem<'a> {
    pub fn new(error: &'a Error, request_id: &'a str) -> Problem<'a> {
        Problem {
            code: error.code.name(),
            message: &error.message,
            retryable: error.code.retryable(),
            outcome: match error.outcome {
                Outcome::None => "none",
                Outcome::Unknown => "unknown",
            },
            request_id,
        }
    }
}

/// The closed list, for the schema alone: texts come from `Code::name`.
#[derive(Debug)]
pub struct ProblemCode;

impl utoipa::PartialSchema for ProblemCode {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        names(Code::ALL.map(Code::name))
    }
}

impl ToSchema for ProblemCode {}

#[derive(Debug)]
pub struct ProblemOutcome;

impl utoipa::PartialSchema for ProblemOutcome {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
        names(["none", "unknown"])
    }
}

impl ToSchema for ProblemOutcome {}

fn names<const N: usize>(
    names: [&'static str; N],
) -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
    let object = utoipa::openapi::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::Type::String)
        .enum_values(Some(names));
    utoipa::openapi::RefOr::T(utoipa::openapi::Schema::from(object))
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
        let mut ours: Vec<_> = Code::ALL
            .map(|code| (code.name().to_owned(), status_of(code)))
            .to_vec();
        listed.sort();
        ours.sort();
        assert_eq!(ours, listed);
    }

    #[test]
    fn a_problem_has_the_contracts_fields() {
        let error = Error::new(Code::Unavailable, "not yet").outcome_unknown();
        let json = serde_json::to_value(Problem::new(&error, "r-1")).unwrap();
        let expected = serde_json::json!({
            "code": "unavailable", "message": "not yet", "retryable": true,
            "outcome": "unknown", "request_id": "r-1",
        });
        assert_eq!(json, expected);
    }
}
