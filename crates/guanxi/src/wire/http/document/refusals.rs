//! The errors that each sort of call can return.

use std::collections::BTreeMap;

use guanxi_api::status_of;
use guanxi_model::Code;
use utoipa::IntoResponses;
use utoipa::openapi::{Content, Ref, RefOr, ResponseBuilder, Schema};

const PROBLEM_TYPE: &str = "application/problem+json";

/// The errors that a sort of call can return: a response for each status, naming its codes.
macro_rules! refusals {
    ($($name:ident: $($code:ident)*;)*) => {$(
        #[derive(Debug)]
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> Responses {
                problems(&[$(Code::$code),*])
            }
        }
    )*};
}

type Responses = BTreeMap<String, RefOr<utoipa::openapi::Response>>;

/// What any call can return: the caller may not come in, or the service is full, stopping, late or
/// wrong.
const ALWAYS: [Code; 5] =
    [Code::Forbidden, Code::Internal, Code::Overloaded, Code::Unavailable, Code::DeadlineExceeded];

fn problems(codes: &[Code]) -> Responses {
    let mut by_status: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for code in codes.iter().chain(&ALWAYS) {
        let names = by_status.entry(status_of(*code)).or_default();
        names.push(code.name());
    }
    let problem = Content::new(Some(RefOr::<Schema>::Ref(Ref::from_schema_name("Problem"))));
    let response = |names: &[&str]| {
        ResponseBuilder::new()
            .description(format!("`{}`", names.join("`, `")))
            .content(PROBLEM_TYPE, problem.clone())
            .build()
    };
    by_status.iter().map(|(status, names)| (status.to_string(), response(names).into())).collect()
}

refusals! {
    EdgeWriteRefusals:
        InvalidArgument UnknownKind UnknownGroup AlreadyRelated NotRelated NotPending Conflict
        KeyConflict PositionExpired TooLarge UnsupportedMediaType SelfRelation LimitReached
        Excluded ReadOnly;
    EdgeReadRefusals: InvalidArgument UnknownKind PositionExpired TooLarge UnsupportedMediaType;
    BatchRefusals:
        InvalidArgument UnknownKind KeyConflict PositionExpired TooLarge UnsupportedMediaType
        ReadOnly;
    CountBatchRefusals:
        InvalidArgument KeyConflict PositionExpired TooLarge UnsupportedMediaType ReadOnly;
    ListRefusals:
        InvalidArgument UnknownKind UnknownGroup PositionExpired TooLarge UnsupportedMediaType
        DepthExceeded;
    ReadRefusals:
        InvalidArgument UnknownKind NotFound PositionExpired TooLarge UnsupportedMediaType;
    CountRefusals:
        InvalidArgument UnknownKind Conflict KeyConflict PositionExpired TooLarge
        UnsupportedMediaType LimitReached ReadOnly;
    GroupRefusals:
        InvalidArgument UnknownKind UnknownGroup NotRelated Conflict PositionExpired TooLarge
        UnsupportedMediaType LimitReached ReadOnly;
    WatchRefusals: InvalidArgument UnknownKind PositionExpired TooLarge UnsupportedMediaType;
    NodeReadRefusals: InvalidArgument NotFound PositionExpired TooLarge UnsupportedMediaType;
    NodeWriteRefusals:
        InvalidArgument NotFound Conflict PositionExpired TooLarge UnsupportedMediaType ReadOnly;
    ImportRefusals: InvalidArgument Conflict PositionExpired UnsupportedMediaType ReadOnly;
    ExportRefusals: InvalidArgument UnknownKind PositionExpired TooLarge UnsupportedMediaType;
    AdminItemRefusals: InvalidArgument NotFound PositionExpired TooLarge UnsupportedMediaType;
    AdminReadRefusals: InvalidArgument PositionExpired TooLarge UnsupportedMediaType;
    LetterChangeRefusals:
        InvalidArgument NotFound Conflict PositionExpired TooLarge UnsupportedMediaType;
    KindCreateRefusals:
        InvalidArgument UnknownKind Conflict PositionExpired TooLarge UnsupportedMediaType
        LimitReached ReadOnly;
    KindPatchRefusals:
        InvalidArgument UnknownKind PositionExpired TooLarge UnsupportedMediaType ReadOnly;
    ShipRefusals:
        InvalidArgument Conflict PositionExpired TooLarge UnsupportedMediaType;
    MoveRefusals: InvalidArgument Conflict TooLarge UnsupportedMediaType ReadOnly;
    PromoteRefusals: InvalidArgument Conflict TooLarge UnsupportedMediaType;
    AuditRefusals:
        InvalidArgument UnknownKind Conflict PositionExpired TooLarge UnsupportedMediaType ReadOnly;
    HealthRefusals: InvalidArgument TooLarge;
    ReadyRefusals: InvalidArgument TooLarge;
}
