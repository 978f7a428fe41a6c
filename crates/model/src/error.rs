//! The closed list of error codes and the one error type that carries them to a caller.

use std::convert::Infallible;
use std::fmt;

/// Everything that can be wrong, as callers see it. The list is closed: a new cause finds its
/// place in it. HTTP and gRPC map it by one table each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    InvalidArgument = 1,
    Unauthenticated = 2,
    Forbidden = 3,
    NotFound = 4,
    UnknownKind = 5,
    UnknownGroup = 6,
    MethodNotAllowed = 7,
    AlreadyRelated = 8,
    NotRelated = 9,
    NotPending = 10,
    Conflict = 11,
    KeyConflict = 12,
    PositionExpired = 13,
    TooLarge = 14,
    UnsupportedMediaType = 15,
    SelfRelation = 16,
    LimitReached = 17,
    Excluded = 18,
    TargetUnknown = 19,
    DepthExceeded = 20,
    Guarded = 21,
    QuotaExceeded = 22,
    Internal = 23,
    Overloaded = 24,
    Unavailable = 25,
    ReadOnly = 26,
    DeadlineExceeded = 27,
}

impl Code {
    pub const ALL: [Code; 27] = [
        Code::InvalidArgument,
        Code::Unauthenticated,
        Code::Forbidden,
        Code::NotFound,
        Code::UnknownKind,
        Code::UnknownGroup,
        Code::MethodNotAllowed,
        Code::AlreadyRelated,
        Code::NotRelated,
        Code::NotPending,
        Code::Conflict,
        Code::KeyConflict,
        Code::PositionExpired,
        Code::TooLarge,
        Code::UnsupportedMediaType,
        Code::SelfRelation,
        Code::LimitReached,
        Code::Excluded,
        Code::TargetUnknown,
        Code::DepthExceeded,
        Code::Guarded,
        Code::QuotaExceeded,
        Code::Internal,
        Code::Overloaded,
        Code::Unavailable,
        Code::ReadOnly,
        Code::DeadlineExceeded,
    ];

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Code::InvalidArgument => "invalid_argument",
            Code::Unauthenticated => "unauthenticated",
            Code::Forbidden => "forbidden",
            Code::NotFound => "not_found",
            Code::UnknownKind => "unknown_kind",
            Code::UnknownGroup => "unknown_group",
            Code::MethodNotAllowed => "method_not_allowed",
            Code::AlreadyRelated => "already_related",
            Code::NotRelated => "not_related",
            Code::NotPending => "not_pending",
            Code::Conflict => "conflict",
            Code::KeyConflict => "key_conflict",
            Code::PositionExpired => "position_expired",
            Code::TooLarge => "too_large",
            Code::UnsupportedMediaType => "unsupported_media_type",
            Code::SelfRelation => "self_relation",
            Code::LimitReached => "limit_reached",
            Code::Excluded => "excluded",
            Code::TargetUnknown => "target_unknown",
            Code::DepthExceeded => "depth_exceeded",
            Code::Guarded => "guarded",
            Code::QuotaExceeded => "quota_exceeded",
            Code::Internal => "internal",
            Code::Overloaded => "overloaded",
            Code::Unavailable => "unavailable",
            Code::ReadOnly => "read_only",
            Code::DeadlineExceeded => "deadline_exceeded",
        }
    }

    /// Whether the same request may succeed later without anyone changing anything, as a rule; an
    /// error may know better.
    pub fn retryable(self) -> bool {
        matches!(
            self,
            Code::Guarded
                | Code::QuotaExceeded
                | Code::Overloaded
                | Code::Unavailable
                | Code::DeadlineExceeded
        )
    }

    pub(crate) fn from_u8(value: u8) -> Option<Code> {
        Code::ALL.into_iter().find(|code| *code as u8 == value)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a failed request's effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was changed.
    None,
    /// It may or may not have been done: look, or send it again with its idempotency key.
    Unknown,
}

/// A refusal or a failure: the code for programs, the message for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: Code,
    pub message: String,
    pub outcome: Outcome,
    /// Whether the same request, to the same address, may succeed later.
    pub retryable: bool,
}

/// For what cannot fail, where something that might is asked for.
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        let (message, retryable) = (message.into(), code.retryable());
        Error { code, message, outcome: Outcome::None, retryable }
    }

    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(Code::InvalidArgument, message)
    }

    /// The same error, for a request that may have taken effect.
    pub fn outcome_unknown(mut self) -> Error {
        self.outcome = Outcome::Unknown;
        self
    }

    /// The same error, where what stands in the way goes by itself.
    pub fn passing(mut self) -> Error {
        self.retryable = true;
        self
    }

    /// The same error, where waiting does not help.
    pub fn lasting(mut self) -> Error {
        self.retryable = false;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}
