//! The parameters that calls share, each once.

use guanxi_api::Time;
use guanxi_api::dead_letters::LETTERS_MAX;
use guanxi_api::hot::HOT_KEYS_MAX;
use guanxi_api::id::id_text;
use guanxi_api::import::IMPORT_LINES_MAX;
use guanxi_api::name::{WireGroupName, name_text};
use guanxi_model::limits::PAGE_ITEMS_MAX;
use utoipa::openapi::path::{Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Required, Schema};
use utoipa::{IntoParams, PartialSchema};

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

/// Of every call that changes rows.
pub(super) fn reason() -> Parameter {
    parameter(
        "Guanxi-Reason",
        ParameterIn::Header,
        ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[!-~]([ -~]{0,62}[!-~])?$")),
        "Why, for the records of the change: printable ASCII. Watchers and the topic show it.",
    )
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
