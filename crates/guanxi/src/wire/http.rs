//! HTTP with JSON: which call a method and path stand for, and the one place from which each call's
//! function is reached; in one file per noun, requests are read and answers written.

mod audit;
mod backup;
mod check;
mod counters;
mod dead_letters;
mod docs;
mod document;
mod edges;
mod export;
mod groups;
mod health;
mod hot;
mod hydrate;
mod import;
mod jobs;
mod kinds;
mod lists;
mod moving;
mod nodes;
pub mod problem;
mod query;
mod reply;
mod request;
mod standby;
mod stream;
mod tallies;
mod watch;

#[cfg(test)]
pub use self::document::document;

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};

use axum::body::Body;
use axum::extract;
use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::Response;
use guanxi_model::{Code, Error};
use http_body::Body as _;
use matchit::Router;
use percent_encoding::percent_decode_str;

use self::reply::HttpAnswered;
use self::request::HttpRequest;
use crate::service::table::{CALLS, Call, CallEntry, Verb};
use crate::service::{App, CallContext};

/// How much of a wrong path an error repeats.
const SHOWN_CHARS_MAX: usize = 100;
/// How the paths of our gRPC methods begin.
const GRPC_PATHS: &str = "/guanxi.v1.";

/// The calls of one route.
type Calls = Vec<(Verb, &'static CallEntry)>;

/// What a method and a path stand for.
#[derive(Debug)]
pub enum RouteMatch {
    Call(&'static CallEntry, Parameters),
    /// The path has other methods.
    OtherMethods(&'static Calls),
    Nothing,
}

/// The parts of a path that have a name, decoded; none where they are no UTF-8.
pub type Parameters = Option<Vec<(&'static str, String)>>;

impl RouteMatch {
    pub fn call(&self) -> Option<&'static CallEntry> {
        match self {
            RouteMatch::Call(call, _) => Some(*call),
            RouteMatch::OtherMethods(_) | RouteMatch::Nothing => None,
        }
    }
}

/// Every route of the table.
static ROUTES: LazyLock<Router<Calls>> = LazyLock::new(|| {
    let mut routes: Vec<(&str, Calls)> = Vec::new();
    for call in CALLS {
        let Some((verb, path)) = call.http else {
            continue;
        };
        match routes.iter_mut().find(|(known, _)| *known == path) {
            Some((_, calls)) => calls.push((verb, call)),
            None => routes.push((path, vec![(verb, call)])),
        }
    }
    let mut router = Router::new();
    for (path, calls) in routes {
        if let Err(error) = router.insert(path, calls) {
            // A test asks for every route.
            tracing::error!(%error, path, "a route of the table is never found");
        }
    }
    router
});

pub fn find(method: &Method, path: &str) -> RouteMatch {
    let Ok(route) = ROUTES.at(path) else {
        return RouteMatch::Nothing;
    };
    let calls = route.value;
    let verb = Verb::named(method.as_str());
    let Some((_, call)) = calls.iter().find(|(known, _)| Some(*known) == verb) else {
        return RouteMatch::OtherMethods(calls);
    };
    let parameters = route.params.iter().map(|(name, value)| {
        let decoded = percent_decode_str(value).decode_utf8().ok()?;
        Some((name, decoded.into_owned()))
    });
    RouteMatch::Call(call, parameters.collect())
}

/// The answer to a request of this call.
pub async fn answer(
    app: &Arc<App>,
    context: &Arc<CallContext>,
    found: RouteMatch,
    request: extract::Request,
    body_bytes_max: usize,
) -> Result<Response, Infallible> {
    let is_head = request.method() == Method::HEAD;
    let answered = match found {
        RouteMatch::Call(call, parameters) => {
            let (parts, mut body) = request.into_parts();
            let asked = HttpRequest::new(app, context, parts, parameters);
            match asked.and_then(HttpRequest::may_be_asked) {
                Ok(mut asked) => match asked.read_body(&mut body, body_bytes_max).await {
                    Ok(()) => handle(call.call, asked, body).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            }
        }
        RouteMatch::OtherMethods(calls) => return Ok(other_methods(calls, &request)),
        RouteMatch::Nothing => return Ok(problem::answer(nothing(request.uri()))),
    };
    let answered = if is_head { answered.map(without_body) } else { answered };
    Ok(answered.unwrap_or_else(problem::answer))
}

/// The function of each call. The futures of those that are asked less have boxes of their own:
/// every request's would be as large as the largest of them.
async fn handle(call: Call, request: HttpRequest, open_body: Body) -> HttpAnswered {
    match call {
        Call::PutEdge => edges::put(request).await,
        Call::DeleteEdge => edges::delete(request).await,
        Call::GetEdge => edges::get(request).await,
        Call::ListOutgoing => lists::outgoing(request).await,
        Call::ListIncoming => lists::incoming(request).await,
        Call::Check => check::check(request).await,
        Call::Tallies => tallies::tallies(request).await,
        Call::Hydrate => hydrate::hydrate(request).await,
        Call::Count => counters::count(request).await,
        Call::Healthz => health::healthz(request).await,
        Call::ApproveEdge => Box::pin(edges::approve(request)).await,
        Call::DeclineEdge => Box::pin(edges::decline(request)).await,
        Call::BatchEdges => Box::pin(edges::batch(request)).await,
        Call::ListMutual => Box::pin(lists::mutual(request)).await,
        Call::ListCommon => Box::pin(lists::common(request)).await,
        Call::ListKnown => Box::pin(lists::known(request)).await,
        Call::ScanOutgoing => Box::pin(lists::scan_outgoing(request)).await,
        Call::ScanIncoming => Box::pin(lists::scan_incoming(request)).await,
        Call::BatchCounters => Box::pin(counters::batch(request)).await,
        Call::ListGroups => Box::pin(groups::list(request)).await,
        Call::CreateGroup => Box::pin(groups::create(request)).await,
        Call::RenameGroup => Box::pin(groups::rename(request)).await,
        Call::DeleteGroup => Box::pin(groups::delete(request)).await,
        Call::AddMember => Box::pin(groups::add_member(request)).await,
        Call::DropMember => Box::pin(groups::drop_member(request)).await,
        Call::GetNode => Box::pin(nodes::get(request)).await,
        Call::PutNode => Box::pin(nodes::put(request)).await,
        Call::EraseNode => Box::pin(nodes::erase(request)).await,
        Call::Watch => Box::pin(watch::watch(request)).await,
        Call::GetJob => Box::pin(jobs::get(request)).await,
        Call::ListJobs => Box::pin(jobs::list(request)).await,
        Call::ListKinds => Box::pin(kinds::list(request)).await,
        Call::CreateKind => Box::pin(kinds::create(request)).await,
        Call::GetKind => Box::pin(kinds::get(request)).await,
        Call::ChangeKind => Box::pin(kinds::change(request)).await,
        Call::ShipLog => Box::pin(standby::ship(request)).await,
        Call::AcknowledgeLog => Box::pin(standby::acknowledge(request)).await,
        Call::GetStandby => Box::pin(standby::get(request)).await,
        Call::Promote => Box::pin(standby::promote(request)).await,
        Call::GetMove => Box::pin(moving::get(request)).await,
        Call::BeginMove => Box::pin(moving::begin(request)).await,
        Call::ConfirmMove => Box::pin(moving::confirm(request)).await,
        Call::LetGoOfMove => Box::pin(moving::let_go(request)).await,
        Call::PauseForMove => Box::pin(moving::pause(request)).await,
        Call::Backup => Box::pin(backup::backup(request)).await,
        Call::Import => Box::pin(import::import(request, open_body)).await,
        Call::GetImport => Box::pin(import::get(request)).await,
        Call::Export => Box::pin(export::export(request)).await,
        Call::RunAudit => Box::pin(audit::run(request)).await,
        Call::GetAudit => Box::pin(audit::get(request)).await,
        Call::ListDeadLetters => Box::pin(dead_letters::list(request)).await,
        Call::GetDeadLetter => Box::pin(dead_letters::get(request)).await,
        Call::DropDeadLetter => Box::pin(dead_letters::forget(request)).await,
        Call::RetryDeadLetter => Box::pin(dead_letters::retry(request)).await,
        Call::ListHot => Box::pin(hot::list(request)).await,
        Call::ListFilters => Box::pin(hot::filters(request)).await,
        Call::Readyz => Box::pin(health::readyz(request)).await,
        Call::Metrics => Box::pin(health::metrics(request)).await,
        Call::Openapi => Box::pin(docs::openapi(request)).await,
        Call::Docs => Box::pin(docs::docs(request)).await,
        // They have no route.
        Call::HealthCheck | Call::HealthWatch | Call::Reflection => Err(nothing(request.uri())),
    }
}

/// HEAD is told how long the answer is, and none of it.
fn without_body(answer: Response) -> Response {
    let length = answer.body().size_hint().exact();
    let mut answer = answer.map(|_| Body::empty());
    if let Some(length) = length {
        answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    answer
}

fn nothing(uri: &Uri) -> Error {
    let shown: String = uri.path().chars().take(SHOWN_CHARS_MAX).collect();
    if shown.starts_with(GRPC_PATHS) {
        return Error::new(
            Code::UnsupportedMediaType,
            format!("{shown} is a gRPC method, with content-type: application/grpc"),
        );
    }
    Error::new(Code::NotFound, format!("there is nothing at {shown}; /docs describes every call"))
}

fn other_methods(calls: &Calls, request: &extract::Request) -> Response {
    let shown: String = request.uri().path().chars().take(SHOWN_CHARS_MAX).collect();
    let mut answer = problem::answer(Error::new(
        Code::MethodNotAllowed,
        format!("{} is not possible on {shown}; the Allow header says what is", request.method()),
    ));
    let allowed: Vec<&str> = calls.iter().flat_map(|(verb, _)| verb.methods()).copied().collect();
    if let Ok(allowed) = HeaderValue::from_str(&allowed.join(",")) {
        answer.headers_mut().insert(header::ALLOW, allowed);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_of_the_table_is_found() {
        for entry in CALLS {
            let Some((verb, path)) = entry.http else {
                continue;
            };
            let filled = path.replace('{', "").replace('}', "%20x");
            for method in verb.methods() {
                let method = Method::from_bytes(method.as_bytes()).unwrap();
                let found = find(&method, &filled);
                assert_eq!(found.call().map(|call| call.name), Some(entry.name), "{filled}");
                let RouteMatch::Call(_, Some(parameters)) = found else {
                    panic!("{filled} has no parameters");
                };
                for (name, value) in parameters {
                    assert_eq!(value, format!("{name} x"));
                }
            }
        }
    }

    #[test]
    fn a_path_alone_is_no_call() {
        let path = "/v1/edges/follow/1/2";
        assert!(
            matches!(find(&Method::POST, path), RouteMatch::OtherMethods(calls) if calls.len() == 3)
        );
        assert!(matches!(find(&Method::OPTIONS, path), RouteMatch::OtherMethods(_)));
        for nowhere in
            ["/", "/v1/edges/follow/1/2/", "/v1/edges", "//healthz", "/guanxi.v1.Edges/Put"]
        {
            assert!(matches!(find(&Method::GET, nowhere), RouteMatch::Nothing), "{nowhere}");
        }
        assert!(matches!(find(&Method::GET, "/v1/edges/%ff/1/2"), RouteMatch::Call(_, None)));
    }
}
