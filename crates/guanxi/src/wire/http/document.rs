//! The OpenAPI document beyond what stands at the handlers: what it says of itself, the parameters
//! that calls share, and the errors that each sort of call can return.

use std::collections::BTreeMap;

use guanxi_api::dead_letters::LETTERS_MAX;
use guanxi_api::hot::HOT_KEYS_MAX;
use guanxi_api::id::id_text;
use guanxi_api::import::IMPORT_LINES_MAX;
use guanxi_api::name::{WireGroupName, name_text};
use guanxi_api::watch::{Heartbeat, RecordView, RowView};
use guanxi_api::{Problem, Time, status_of};
use guanxi_model::Code;
use guanxi_model::limits::PAGE_ITEMS_MAX;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn, PathItem};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{
    self, Content, InfoBuilder, LicenseBuilder, OpenApiBuilder, Ref, RefOr, Required,
    ResponseBuilder, Schema,
};
use utoipa::{IntoParams, IntoResponses, OpenApi, PartialSchema};

use super::{
    audit, backup, check, counters, dead_letters, docs, edges, export, groups, health, hot,
    hydrate, import, jobs, kinds, lists, moving, nodes, standby, tallies, watch,
};
use crate::service::table;

const PROBLEM_TYPE: &str = "application/problem+json";

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

fn parameter(
    name: &str,
    place: ParameterIn,
    schema: impl Into<RefOr<Schema>>,
    about: &str,
) -> Parameter {
    let required = match place {
        ParameterIn::Path => Required::True,
        _ => Required::False,
    };
    ParameterBuilder::new()
        .name(name)
        .parameter_in(place)
        .required(required)
        .schema(Some(schema))
        .description(Some(about))
        .build()
}

fn path(name: &str, schema: RefOr<Schema>, about: &str) -> Parameter {
    parameter(name, ParameterIn::Path, schema, about)
}

fn query(name: &str, schema: impl Into<RefOr<Schema>>, about: &str) -> Parameter {
    parameter(name, ParameterIn::Query, schema, about)
}

fn words(words: &[&str]) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.iter().copied()))
}

fn flag() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Boolean)
}

fn limit() -> Parameter {
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(PAGE_ITEMS_MAX as f64));
    query("limit", number, "Items of a page.")
}

fn letters_limit() -> Parameter {
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(LETTERS_MAX as f64));
    query("limit", number, "Letters of a page.")
}

fn hot_limit() -> Parameter {
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(HOT_KEYS_MAX as f64));
    query("limit", number, "How many keys.")
}

fn cursor() -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9_-]+$"));
    query("cursor", text, "The `next` of the page before.")
}

fn page() -> Parameter {
    let number = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(1))
        .maximum(Some(f64::from(u32::MAX)));
    let about = "The number of the page, for kinds with a limit; not with a cursor.";
    query("page", number, about)
}

fn order() -> Parameter {
    query("order", words(&["newest", "oldest"]), "Newest first unless said.")
}

fn range() -> [Parameter; 2] {
    [
        query("since", Time::schema(), "Only edges since this time."),
        query("until", Time::schema(), "Only edges before this time."),
    ]
}

fn group() -> Parameter {
    let text = ObjectBuilder::new().schema_type(Type::String);
    query("group", text, "Only edges in this group; empty: in none.")
}

fn state() -> Parameter {
    query("state", words(&["live", "pending"]), "Live edges unless said.")
}

/// The move that is given up.
fn let_go() -> Parameter {
    let id = ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9]{1,20}$"));
    let mut id = query("id", id, "The move that has begun.");
    id.required = Required::True;
    id
}

/// What a standby says when it asks for the log.
fn shipping() -> [Parameter; 4] {
    let number = || ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0));
    let end =
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9]{1,10}\\.[0-9]{1,20}$"));
    let mut asked = [
        query("after", end, "The end of the standby's log, `<epoch>.<position>`."),
        query("commit_ms", number(), "The commit time of its last frame."),
        query(
            "standby",
            id_text(),
            "The id of its data directory. It acknowledges nothing; those who have acknowledged \
             are sent the log beside all others.",
        ),
        query("wait_ms", number().maximum(Some(5_000)), "How long to wait for frames."),
    ];
    asked[0].required = Required::True;
    asked
}

fn mutual() -> Parameter {
    query("mutual", flag(), "Adds whether the other end relates back.")
}

fn event_id() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[A-Za-z0-9_-]+$"))
}

fn log_place() -> ObjectBuilder {
    let pattern = "^([A-Za-z0-9_-]+|[0-9]+:[0-9]+)$";
    ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern))
}

fn names() -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[a-z0-9_.]+(,[a-z0-9_.]+)*$"))
}

fn import_id() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some("^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"))
}

/// Shared lists of parameters, by the name that handlers use.
macro_rules! parameters {
    ($($name:ident: $list:expr;)*) => {$(
        #[derive(Debug)]
        pub struct $name;

        impl IntoParams for $name {
            fn into_params(_: impl Fn() -> Option<ParameterIn>) -> Vec<Parameter> {
                $list.into_iter().collect()
            }
        }
    )*};
}

parameters! {
    EdgePath: [
        path("kind", name_text(), "The kind."),
        path("source", id_text(), "Who relates."),
        path("target", id_text(), "Whom or what it relates to."),
    ];
    Strict: [query("strict", flag(), "Refuses what would change nothing.")];
    Keyed: [parameter(
        "Idempotency-Key",
        ParameterIn::Header,
        ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some("^[!-~]{1,64}$")),
        "Makes the request safe to send again: the same key gets the same answer for 24 hours.",
    )];
    ListPath: [
        path("kind", name_text(), "The kind."),
        path("id", id_text(), "Whose list."),
    ];
    OtherPath: [path("other", id_text(), "The other node.")];
    Listed: [limit(), cursor(), page(), order(), group(), state(), mutual()]
        .into_iter()
        .chain(range());
    ListedIncoming: [limit(), cursor(), order(), state(), mutual()].into_iter().chain(range());
    ListedMutual: [limit(), cursor(), order(), group()].into_iter().chain(range());
    Joined: [limit(), cursor()];
    Scanned: [limit(), cursor()];
    JobsListed: [limit(), cursor()];
    CounterPath: [
        path("kind", name_text(), "The counter."),
        path("id", id_text(), "The node that it counts for."),
    ];
    GroupsPath: [
        path("kind", name_text(), "The kind."),
        path("source", id_text(), "Whose groups."),
    ];
    GroupPath: [
        path("kind", name_text(), "The kind."),
        path("source", id_text(), "Whose group."),
        path("group", WireGroupName::schema(), "The group's name, percent-encoded."),
    ];
    MemberPath: [
        path("kind", name_text(), "The kind."),
        path("source", id_text(), "Whose group."),
        path("group", WireGroupName::schema(), "The group's name, percent-encoded."),
        path("target", id_text(), "The edge's other end."),
    ];
    NodePath: [
        path("type", name_text(), "The node's type, such as user."),
        path("id", id_text(), "The node's id."),
    ];
    JobPath: [path(
        "job",
        RefOr::T(Schema::from(
            ObjectBuilder::new()
                .schema_type(Type::String)
                .pattern(Some("^[0-9]{1,20}$")),
        )),
        "The job's id.",
    )];
    BackedUp: [
        query(
            "after",
            log_place(),
            "Only what came after this event's id, EPOCH:POSITION or position, where another backup \
             ended.",
        ),
        query(
            "standby",
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)),
            "A number of a standby that takes its first copy, which is not counted as a backup.",
        ),
        query(
            "move",
            ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)),
            "The run of a move that copies, or with `after` follows; it is not counted either.",
        ),
    ];
    Watched: [
        query("from", event_id(), "`now` unless said, `earliest`, or after this event."),
        parameter(
            "Last-Event-ID",
            ParameterIn::Header,
            event_id(),
            "After this event, whatever `from` says.",
        ),
        query("kinds", names(), "Only records of these kinds, divided by commas."),
        query("ops", names(), "Only records of these operations, divided by commas."),
    ];
    Imported: [
        query("id", import_id(), "Names the import, so that its place is kept."),
        query(
            "after",
            ObjectBuilder::new()
                .schema_type(Type::Integer)
                .minimum(Some(0))
                .maximum(Some(IMPORT_LINES_MAX as f64)),
            "Lines that are done before the first of the body; it must be the import's place.",
        ),
        query("format", words(&["ndjson", "csv"]), "What the body is, whatever its type says."),
        query("ignore_limits", flag(), "Lifts outgoing limits up to 10,000."),
    ];
    ImportPath: [path("import", RefOr::T(Schema::from(import_id())), "The import's id.")];
    ExportedAs: [
        query("kind", name_text(), "Only edges and groups, or the counter, of this kind."),
        query("format", words(&["ndjson", "csv"]), "NDJSON unless said."),
    ];
    DeadLettersListed: [letters_limit(), cursor()];
    HotListed: [hot_limit()];
    LetterPath: [path("letter", id_text(), "The dead letter's id.")];
    KindPath: [path("name", name_text(), "The kind.")];
    Shipping: shipping();
    StandbyPath: [path("standby", id_text(), "The id of the standby's data directory.")];
    LetGo: [let_go()];
}

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
