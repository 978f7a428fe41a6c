//! The calls, whoever speaks to them: in one file per noun, each call is a function from the request
//! of the API to its answer, top to bottom. `table` lists them all; `app` is what they share; `caller`
//! is what every call is told of its caller, and how it asks the deployment. Nothing here knows a
//! protocol: `wire` reads requests and writes answers.

mod app;
pub mod audit;
pub mod backup;
mod caller;
pub mod check;
mod context;
pub mod counters;
pub mod dead_letters;
pub mod edges;
pub mod export;
pub mod groups;
pub mod health;
pub mod hot;
pub mod hydrate;
pub mod import;
pub mod jobs;
pub mod kinds;
pub mod lists;
pub mod moving;
pub mod nodes;
pub mod standby;
pub mod streams;
pub mod table;
pub mod tallies;
pub mod watch;

pub use self::app::{App, OPERATOR_THREADS, Served};
pub use self::caller::Caller;
pub use self::context::CallContext;

use std::sync::Arc;

use guanxi_api::Name;
use guanxi_core::KindSet;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{
    Answer, Catalog, Code, Error, Kind, KindId, NodeTypeId, Origin, OriginText, TenantId,
};

/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

fn no_answer() -> Error {
    Error::new(Code::Internal, "the change has no answer").outcome_unknown()
}

/// The engine answered something that this change cannot have.
fn unexpected(answer: &Answer) -> Error {
    tracing::error!(?answer, "an answer of another change");
    Error::new(Code::Internal, "the write has another answer").outcome_unknown()
}

/// The kinds of a request by their names; one named twice counts once. More names than `max` are too
/// many, unless one of the first is unknown, which is what the caller should hear of.
fn kinds_in(
    catalog: &Catalog,
    tenant: TenantId,
    what: &str,
    names: &[Name<'_>],
    max: usize,
) -> Result<Vec<Arc<Kind>>, Error> {
    let mut kinds: Vec<Arc<Kind>> = Vec::with_capacity(names.len().min(max));
    for name in names.iter().take(max) {
        let kind = catalog.named(tenant, name.as_str())?;
        if !kinds.iter().any(|known| known.id == kind.id) {
            kinds.push(kind.clone());
        }
    }
    within(what, names.len(), max)?;
    Ok(kinds)
}

fn node_type(catalog: &Catalog, tenant: TenantId, name: &str) -> Result<NodeTypeId, Error> {
    catalog.type_named(tenant, name).ok_or_else(|| {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        let hint = "the list of kinds shows those there are";
        Error::new(Code::NotFound, format!("there is no node type '{shown}'; {hint}"))
    })
}

/// An idempotency key; `what` names it in the error.
pub fn key(what: &str, text: Option<&str>) -> Result<Option<IdempotencyKey>, Error> {
    let Some(text) = text else {
        return Ok(None);
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid(format!("{what}: it has 1 to 64 visible ASCII characters")));
    }
    let key = IdempotencyKey::new(text);
    key.map(Some).map_err(|error| Error::invalid(format!("{what}: {}", error.message)))
}

/// The name under which callers say why they write.
pub const REASON: &str = "guanxi-reason";

/// The origin of the writes of a caller who gives this reason, if any. It
/// is ASCII, as not every protocol carries more.
pub fn origin(reason: Option<&str>) -> Result<Origin, Error> {
    let read = |text: &str| match text.is_ascii() {
        true => OriginText::new(text),
        false => Err(Error::invalid("it is printable ASCII")),
    };
    let reason = reason.map(read).transpose();
    let reason = reason.map_err(|error| Error::invalid(format!("{REASON}: {}", error.message)))?;
    Ok(Origin { reason, ..Origin::default() })
}

/// Names of kinds that the request itself named.
fn names(some: &KindSet, kinds: &[Arc<Kind>]) -> Vec<Arc<str>> {
    some.places().map(|place| kinds[place].name.shared()).collect()
}

/// The name of a kind that may not be there any more.
fn kind_name(catalog: &Catalog, tenant: TenantId, kind: KindId) -> Option<Arc<str>> {
    catalog.kind(tenant, kind).map(|kind| kind.name.shared())
}

/// Refuses more than fit one request.
fn within(what: &str, count: usize, max: usize) -> Result<(), Error> {
    match count <= max {
        true => Ok(()),
        false => Err(Error::new(
            Code::TooLarge,
            format!("{what}: there are {count}, at most {max} fit one request"),
        )),
    }
}
