//! The HTTP API. A request goes listener → `Front` (bounds, request id, the one place where errors
//! become answers) → router → the handler of its noun → engine, and never back up. Handlers only
//! translate; every rule is the engine's. gRPC comes through the same door and has its own router.

mod answers;
mod audit;
mod backup;
mod bodies;
mod check;
mod counters;
mod dead_letters;
mod docs;
mod document;
mod edges;
mod export;
mod extract;
pub mod foreign;
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
mod router;
mod standby;
pub mod stream;
mod tallies;
mod watch;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use guanxi_engine::cluster::instance::no_callers;
use guanxi_model::{Catalog, Code, Error, Kind, TenantId};
use http_body::Body as _;
use tokio::sync::Semaphore;
use tower_service::Service;

use self::answers::AnswerBudget;
pub use self::answers::AnswerPlace;
use self::bodies::BodyBudget;
pub use self::bodies::BodyShare;
use self::foreign::OwnNames;
use self::stream::Streams;
use crate::calls::table::{self, CallEntry};
use crate::config::Http;
use crate::deployment::Deployment;
use crate::grpc;
use crate::telemetry::{KindLabel, Metrics};

/// A request id that a caller sends along is taken if it is no longer than this.
const REQUEST_ID_BYTES_MAX: usize = 64;
/// The engine answers a late write itself, with what it knows of its outcome; this is how much
/// longer we wait for that.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);
/// Asked by machines that must hear from us just when all places are taken.
const OF_SERVICE: [&str; 4] = ["/healthz", "/readyz", "/metrics", grpc::HEALTH_CHECK];
/// So many of them at once, when all other places are taken.
const OF_SERVICE_MAX: usize = 256;

/// Imports that run at once: each has some chunks of lines in memory.
const IMPORTS_MAX: usize = 8;
/// Exports that run at once: each walks the whole store and keeps what it replaces meanwhile.
const EXPORTS_MAX: usize = 4;
/// Pieces of copies that are read at once: enough for a disk, whatever callers read beside them.
const COPY_THREADS: usize = 2;
/// What standbys and moves make the service look up or write at once, none of which waits for
/// callers or copies: a write may wait for a standby's acknowledgement.
const STANDBY_THREADS: usize = 8;
/// The threads that operators' work may need beside callers'.
pub const OPERATOR_THREADS: usize = COPY_THREADS + STANDBY_THREADS;
/// Calls whose body may take as long as it likes, as long as it keeps coming.
const UNHURRIED: [&str; 2] = ["/v1/admin/import", grpc::IMPORT];
/// What stands for "no deadline" where a time is needed. Nothing lasts for so long.
const UNHURRIED_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// What every handler may use.
#[derive(Debug)]
pub struct App {
    pub deployment: Deployment,
    pub metrics: Arc<Metrics>,
    document: Bytes,
    body_bytes_max: usize,
    pub body_timeout: Duration,
    blocking: Arc<Semaphore>,
    copying: Arc<Semaphore>,
    standing_by: Arc<Semaphore>,
    pub streams: Streams,
    pub imports: Arc<Semaphore>,
    pub exports: Arc<Semaphore>,
    pub heartbeat: Duration,
    stopping: AtomicBool,
}

impl App {
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Why the service is not ready, if it is not.
    pub fn unready(&self) -> Option<Error> {
        if self.is_stopping() {
            return Some(Error::new(Code::Unavailable, "the service is stopping"));
        }
        self.deployment.unready()
    }

    /// Runs what blocks off the workers that serve everyone. Whoever finds no place before its
    /// deadline is told so.
    pub async fn apart<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.blocking, deadline, work).await
    }

    /// The same for a piece of a copy.
    pub async fn apart_for_copy<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.copying, deadline, work).await
    }

    /// The same for what a standby, or a move, asks.
    pub async fn apart_for_standby<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        among(&self.standing_by, deadline, work).await
    }
}

/// Runs what blocks when there is a place among these.
async fn among<T: Send + 'static>(
    places: &Arc<Semaphore>,
    deadline: Instant,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let closed = |_| Error::new(Code::Unavailable, "the service is stopping");
    let crowded = |_| {
        let message = "as many reads as the service does at once are under way; try again";
        Error::new(Code::DeadlineExceeded, message)
    };
    let place = tokio::time::timeout_at(deadline.into(), places.clone().acquire_owned());
    let place = place.await.map_err(crowded)?.map_err(closed)?;
    with_place(place, work).await
}

/// Runs what blocks off the workers. It keeps its place to its end, whether or not somebody waits
/// for it.
pub async fn with_place<T: Send + 'static>(
    place: impl Send + 'static,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let work = tokio::task::spawn_blocking(move || {
        let result = work();
        drop(place);
        result
    });
    work.await.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the read failed; it was logged")))
}

/// One request's own facts, shared by `Front` and the handler.
#[derive(Debug)]
pub struct Context {
    pub request_id: String,
    pub deadline: Instant,
    call: OnceLock<&'static CallEntry>,
    kind: OnceLock<KindLabel>,
}

impl Context {
    /// Says which call this is.
    pub fn note_call(&self, call: &'static CallEntry) {
        let _ = self.call.set(call);
    }

    /// Whether it may change something; of a call that nobody knows, who could say no?
    pub fn may_write(&self) -> bool {
        self.call.get().is_none_or(|call| call.writes)
    }

    /// The one kind that the request is about, noted for the metrics.
    pub async fn kind_named(
        &self,
        deployment: &Deployment,
        tenant: TenantId,
        name: &str,
    ) -> Result<Arc<Kind>, Error> {
        let find = |catalog: &Catalog| catalog.named(tenant, name).cloned();
        let found = deployment.resolve(self.deadline, find).await;
        let label = found.as_ref().map_or(KindLabel::Other, |kind| KindLabel::of(kind));
        let _ = self.kind.set(label);
        found
    }
}

/// The door: bounds the number of requests and their time, names each, and turns errors into
/// answers.
#[derive(Debug)]
pub struct Front {
    app: Arc<App>,
    router: Router,
    grpc: Router,
    requests: Arc<Semaphore>,
    of_service: Arc<Semaphore>,
    request_timeout: Duration,
    request_ids: RequestIds,
    names: OwnNames,
    bodies: Arc<BodyBudget>,
    answers: AnswerBudget,
}

impl Front {
    pub fn new(settings: &Http, deployment: Deployment, metrics: Arc<Metrics>) -> Front {
        let (router, document) = router::router();
        let app = Arc::new(App {
            streams: Streams::new(settings, metrics.clone()),
            imports: Arc::new(Semaphore::new(IMPORTS_MAX)),
            exports: Arc::new(Semaphore::new(exports_max(&deployment))),
            heartbeat: Duration::from_millis(settings.watch_heartbeat_ms),
            metrics,
            document: Bytes::from(document::to_json(&document)),
            body_bytes_max: settings.body_bytes_max,
            body_timeout: Duration::from_millis(settings.body_timeout_ms),
            blocking: Arc::new(Semaphore::new(settings.blocking_reads_max)),
            copying: Arc::new(Semaphore::new(COPY_THREADS)),
            standing_by: Arc::new(Semaphore::new(STANDBY_THREADS)),
            stopping: AtomicBool::new(false),
            deployment,
        });
        Front {
            router: router.with_state(app.clone()),
            grpc: grpc::router(&app, settings.body_bytes_max),
            app,
            requests: Arc::new(Semaphore::new(settings.requests_in_flight_max)),
            of_service: Arc::new(Semaphore::new(OF_SERVICE_MAX)),
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            request_ids: RequestIds::new(),
            names: OwnNames::of(settings),
            bodies: BodyBudget::new(settings),
            answers: AnswerBudget::new(settings),
        }
    }

    /// From here on `/readyz` says no, and streams end.
    pub fn stop(&self) {
        self.app.stopping.store(true, Ordering::Relaxed);
        self.app.streams.stop();
    }

    /// The answer, with the place that it holds until it has been read.
    pub async fn answer(&self, mut request: Request) -> (Response<Body>, AnswerPlace) {
        let began = Instant::now();
        let is_grpc = grpc::is_grpc(request.headers());
        let at_most = match UNHURRIED.contains(&request.uri().path()) {
            true => UNHURRIED_MAX,
            false => self.request_timeout,
        };
        let timeout = self.names.admit(&request).and_then(|()| match is_grpc {
            true => grpc::admit(request.headers(), at_most),
            false => Ok(at_most),
        });
        let tells_long = table::tells_long(request.method(), request.uri().path(), is_grpc);
        let timeout = timeout.and_then(|timeout| match tells_long {
            true => self.answers.admit_long_write().map(|()| timeout),
            false => Ok(timeout),
        });
        let context = Arc::new(Context {
            request_id: self.request_ids.take(request.headers()),
            deadline: began + *timeout.as_ref().unwrap_or(&at_most),
            call: OnceLock::new(),
            kind: OnceLock::new(),
        });
        let is_of_service = OF_SERVICE.contains(&request.uri().path());
        let permit = self.requests.clone().try_acquire_owned().ok();
        let permit = permit.or_else(|| {
            let more = self.of_service.clone().try_acquire_owned();
            more.ok().filter(|_| is_of_service)
        });
        // HTTP's router tells routes apart, gRPC's paths are plain.
        if let Some(call) = table::of_grpc(request.uri().path()).filter(|_| is_grpc) {
            context.note_call(call);
        }
        if is_of_service && !is_grpc {
            // Nothing that it says is asked for, so none of it is kept.
            request = request.map(|_| Body::empty());
        }
        let mut answer = match timeout {
            Err(error) => problem::answer(error),
            Ok(_) if !self.app.deployment.takes_calls() && !is_of_service => {
                problem::answer(no_callers())
            }
            Ok(timeout) if permit.is_some() => {
                request.extensions_mut().insert(context.clone());
                let router = if is_grpc { &self.grpc } else { &self.router };
                // A write's own answer says what is known of it; a reader's time is the caller's.
                let reads = is_grpc && !context.may_write();
                let grace = if reads { Duration::ZERO } else { DEADLINE_GRACE };
                let handle =
                    |request| within(timeout, grace, router.clone().call(request), &context);
                self.within_budget(request, handle).await
            }
            Ok(_) => problem::answer(Error::new(
                Code::Overloaded,
                "as many requests as the service takes are under way; try again in a moment",
            )),
        };
        let render = |answer: &mut Response<Body>| match is_grpc {
            true => grpc::render(answer, &context.request_id),
            false => problem::render(answer, &context.request_id),
        };
        // Written before it is measured, an error as everything else.
        let mut code = render(&mut answer);
        let (mut answer, place) = self.answers.place(answer, permit, context.may_write());
        if problem::is_unwritten(&answer) {
            code = render(&mut answer);
        }
        if let Ok(value) = HeaderValue::from_str(&context.request_id) {
            answer.headers_mut().insert("x-request-id", value);
        }
        self.note(&context, code, began.elapsed());
        (answer, place)
    }

    /// Handles a request whose body has its share of what bodies may take. An import's is read piece
    /// by piece, and its places bound it.
    async fn within_budget<Handling: Future<Output = Response<Body>>>(
        &self,
        mut request: Request,
        handle: impl FnOnce(Request) -> Handling,
    ) -> Response<Body> {
        if request.body().is_end_stream() || UNHURRIED.contains(&request.uri().path()) {
            return handle(request).await;
        }
        let is_packed = grpc::is_grpc(request.headers()) && grpc::is_packed(request.headers());
        let share = match self.bodies.share(request.body()) {
            Ok(share) => share,
            Err(error) => return problem::answer(error),
        };
        if is_packed {
            request.extensions_mut().insert(share.clone());
        }
        let one_message = grpc::is_grpc(request.headers()) && grpc::takes_one(request.uri().path());
        let answer = handle(request.map(|body| share.counting(body, one_message, is_packed))).await;
        share.refusal().map_or(answer, problem::answer)
    }

    fn note(&self, context: &Context, code: Option<Code>, took: Duration) {
        let call = context.call.get().map_or("none", |call| call.name);
        let kind = context.kind.get().cloned().unwrap_or(KindLabel::None);
        let name = code.map_or("ok", Code::name);
        if code == Some(Code::Internal) {
            tracing::error!(call, request_id = context.request_id, "a request failed");
        }
        tracing::debug!(
            call,
            code = name,
            request_id = context.request_id,
            took_us = took.as_micros() as u64,
            "answered"
        );
        self.app.metrics.answered(call, kind, name, took);
    }
}

/// Exports leave places to lists.
fn exports_max(deployment: &Deployment) -> usize {
    let places = deployment.budget().map(|budget| budget.figures().lists.places_max / 2);
    places.map_or(EXPORTS_MAX, |places| places.clamp(1, EXPORTS_MAX))
}

/// The OpenAPI document, for tests of what it says.
#[cfg(test)]
pub fn document() -> serde_json::Value {
    let (_, document) = router::router();
    serde_json::to_value(document).unwrap()
}

/// The router's answer, or what stands for it when it does not come in time.
async fn within(
    timeout: Duration,
    grace: Duration,
    handling: impl Future<Output = Result<Response<Body>, Infallible>>,
    context: &Context,
) -> Response<Body> {
    let unsure = |error: Error| match context.may_write() {
        true => error.outcome_unknown(),
        false => error,
    };
    let handled = AssertUnwindSafe(handling).catch_unwind();
    match tokio::time::timeout(timeout.saturating_add(grace), handled).await {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_panic)) => {
            let error = Error::new(
                Code::Internal,
                "the service made a mistake; its log has the request id",
            );
            problem::answer(unsure(error))
        }
        Err(_) => problem::answer(unsure(Error::new(
            Code::DeadlineExceeded,
            format!("no answer within {} ms; try again", timeout.as_millis()),
        ))),
    }
}

/// Ids that differ between requests and between starts of the process.
#[derive(Debug)]
struct RequestIds {
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> RequestIds {
        use std::hash::{BuildHasher, RandomState};
        let seed = RandomState::new().hash_one(std::process::id());
        RequestIds { next: AtomicU64::new(seed) }
    }

    /// The caller's own id if it is sane, else a new one.
    fn take(&self, headers: &HeaderMap) -> String {
        let given = headers.get("x-request-id").map(HeaderValue::as_bytes);
        let sane = given.filter(|id| {
            (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
        });
        match sane.and_then(|id| std::str::from_utf8(id).ok()) {
            Some(id) => id.to_owned(),
            None => format!("{:016x}", self.next.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_request_id_of_the_caller_is_kept() {
        let ids = RequestIds::new();
        let take = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", HeaderValue::from_bytes(value).unwrap());
            ids.take(&headers)
        };
        assert_eq!(take(b"abc-1"), "abc-1");
        for insane in [&b"a b"[..], b"", b"\xff", &[b'a'; 65]] {
            assert_eq!(take(insane).len(), 16);
        }
        assert_ne!(ids.take(&HeaderMap::new()), ids.take(&HeaderMap::new()));
    }
}
