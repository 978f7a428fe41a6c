//! The OpenAPI document beyond what stands at the handlers: what it says of itself, and of every
//! answer. The parameters that calls share and the errors that they return have files of their own.

mod parameters;
mod refusals;

pub use self::parameters::*;
pub use self::refusals::*;

use guanxi_api::Problem;
use guanxi_api::watch::{Heartbeat, RecordView, RowView};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{self, InfoBuilder, LicenseBuilder, OpenApiBuilder, RefOr, Required};
use utoipa::{OpenApi, PartialSchema};

use super::{
    audit, backup, check, counters, dead_letters, docs, edges, export, groups, health, hot,
    hydrate, import, jobs, kinds, lists, moving, nodes, standby, tallies, watch,
};
use crate::service::table::{self, CallEntry};

const ABOUT: &str = "\
A relation service: it remembers who follows, likes, saves and blocks whom or what.

Ids are unsigned 64-bit numbers from 1, sent as strings and accepted as strings or whole numbers. \
Times are RFC 3339, sent in UTC with milliseconds. Unknown fields and query parameters are refused.

**Tokens.** Every write returns a token, in its answer and in the header `guanxi-token`. Any call \
takes it as the query parameter `at_least` or the header `guanxi-at-least`: a read then shows at \
least that write, a write returns a token that stands for both. A token that cannot be met yet is \
`unavailable`, one of another lineage `position_expired`.

**Cursors** are opaque and belong to the list and the parameters that returned them: send `next` \
of a page as the query parameter `cursor` of the same list. A page may be short; only a null \
`next` is the end.

**Web pages** of other origins are `forbidden`, and so is a request that calls the service by a \
name that is not its own. A POST that changes something has, even without a body, a content type \
such as `application/json`, which no page may send unasked.

**Errors** are `application/problem+json` with a code of a closed list, a message for people, \
whether a retry may help, and whether the request may have taken effect all the same. Every answer \
has the header `x-request-id`; one that the caller sends is kept.

**Bounds.** A batch of changes has 1 to 1000, a check at most 1000 checks, tallies at most 1000 \
ids × kinds, a hydrate at most 256 objects with 16 kinds, 16 tallies and 16 reverse kinds; many \
hydrates at most 256 requests and 16,384 checks and tallies. More is `too_large`.";

/// Every call, as its handler describes it.
#[derive(OpenApi)]
#[openapi(paths(
    edges::put,
    edges::delete,
    edges::get,
    edges::approve,
    edges::decline,
    edges::batch,
    lists::outgoing,
    lists::incoming,
    lists::mutual,
    lists::common,
    lists::known,
    lists::scan_outgoing,
    lists::scan_incoming,
    check::check,
    tallies::tallies,
    hydrate::hydrate,
    counters::count,
    counters::batch,
    groups::list,
    groups::create,
    groups::rename,
    groups::delete,
    groups::add_member,
    groups::drop_member,
    nodes::get,
    nodes::put,
    nodes::erase,
    watch::watch,
    jobs::get,
    jobs::list,
    kinds::list,
    kinds::create,
    kinds::get,
    kinds::change,
    standby::ship,
    standby::acknowledge,
    standby::get,
    standby::promote,
    moving::get,
    moving::begin,
    moving::confirm,
    moving::let_go,
    moving::pause,
    backup::backup,
    import::import,
    import::get,
    export::export,
    audit::run,
    audit::get,
    dead_letters::list,
    dead_letters::get,
    dead_letters::forget,
    dead_letters::retry,
    hot::list,
    hot::filters,
    health::healthz,
    health::readyz,
    health::metrics,
    docs::openapi,
    docs::docs,
))]
struct Described;

/// The document of all calls.
fn all() -> openapi::OpenApi {
    let mut document = base();
    document.merge(Described::openapi());
    finished(document)
}

/// The document as it is served and kept.
pub fn to_json() -> String {
    all().to_pretty_json().unwrap_or_default()
}

/// The document, for tests of what it says.
#[cfg(test)]
pub fn document() -> serde_json::Value {
    serde_json::to_value(all()).unwrap()
}

/// What the document says before any call is added.
fn base() -> openapi::OpenApi {
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0")).build();
    let info = InfoBuilder::new()
        .title("Guanxi")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(ABOUT))
        .license(Some(license))
        .build();
    let tags = [
        ("edges", "One relation, or a batch of changes"),
        ("lists", "Whom a node relates to, and who relates to it"),
        ("reads", "Many checks and tallies in one call"),
        ("counters", "Pure counters"),
        ("groups", "Named folders of a source's edges"),
        ("nodes", "A node's settings and its erasure"),
        ("watch", "Every change, as it is committed"),
        ("jobs", "Work that takes a while"),
        ("admin", "Operating the service"),
        ("service", "The service itself"),
    ];
    let tags =
        tags.map(|(name, text)| TagBuilder::new().name(name).description(Some(text)).build());
    OpenApiBuilder::new().info(info).tags(Some(tags)).build()
}

/// Adds what holds for every answer.
fn finished(mut document: openapi::OpenApi) -> openapi::OpenApi {
    let components = document.components.get_or_insert_default();
    let problem = ("Problem".to_owned(), Problem::schema());
    // No answer's body is one of these: they are the events of a stream.
    let record = ("Record".to_owned(), RecordView::schema());
    let row = ("Row".to_owned(), RowView::schema());
    let heartbeat = ("Heartbeat".to_owned(), Heartbeat::schema());
    components.schemas.extend([problem, record, row, heartbeat]);
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            let id = operation.operation_id.as_deref().unwrap_or_default();
            // These change no rows, so that no read could wait for them.
            let tokenless = ["run_audit", "retry_dead_letter", "drop_dead_letter"];
            let gives_token = table::named(id).is_some_and(|call| call.writes);
            let gives_token = gives_token && !tokenless.contains(&id);
            // A put says something more only if it wants to.
            if let (Some(RefOr::T(body)), "put_edge" | "run_audit") =
                (&mut operation.request_body, id)
            {
                body.required = Some(Required::False);
            }
            if table::named(id).is_some_and(CallEntry::changes_rows) {
                operation.parameters.get_or_insert_default().push(reason().into());
            }
            add_headers(operation, gives_token);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
    all.into_iter().flatten()
}

fn add_headers(operation: &mut Operation, gives_token: bool) {
    let text = || ObjectBuilder::new().schema_type(Type::String);
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else {
            continue;
        };
        let id = HeaderBuilder::new()
            .schema(Some(text().min_length(Some(1)).max_length(Some(64))))
            .description(Some("The request's id, also in the logs."));
        response.headers.insert("x-request-id".into(), id.build().into());
        if gives_token && status.starts_with('2') {
            let token = HeaderBuilder::new()
                .schema(Some(text().min_length(Some(1))))
                .description(Some("The token of this write."));
            response.headers.insert("guanxi-token".into(), token.build().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set to write the snapshot anew after a meant change.
    const UPDATE: &str = "UPDATE_OPENAPI";

    #[test]
    fn the_document_is_the_one_that_is_kept() {
        let kept_at = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");
        let now = format!("{}\n", to_json());
        if std::env::var_os(UPDATE).is_some() {
            std::fs::write(kept_at, &now).unwrap();
        }
        let kept = std::fs::read_to_string(kept_at).unwrap_or_default();
        assert!(
            kept == now,
            "the document has changed; look at the difference after {UPDATE}=1 cargo test"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let text = to_json();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let schemas = json["components"]["schemas"].as_object().unwrap();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert_eq!(json["openapi"], "3.1.0");
    }
}
