//! The door: bounds the number of requests and their time, names each, finds its call, and turns
//! errors into answers.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use futures_util::FutureExt;
use guanxi_model::{Code, Error};
use tokio::sync::Semaphore;
use tower_service::Service;

use super::answers::{AnswerBudget, AnswerPlace};
use super::bodies::{self, BodyBudget, BodyShare, HeldBody};
use super::http::{RouteMatch, problem};
use super::origin_check::OwnNames;
use super::resp::RespFront;
use super::{grpc, http};
use crate::config::HttpSection;
use crate::service::table::{self, CallEntry, Class, Lasting};
use crate::service::{App, CallContext, Served};

/// A request id that a caller sends along is taken if it is no longer than this.
const REQUEST_ID_BYTES_MAX: usize = 64;
/// The engine answers a late write itself, with what it knows of its outcome; this is how much
/// longer we wait for that.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);
/// Asked by machines that must hear from us just when all places are taken: so many of them at
/// once, beside all others.
const OF_SERVICE_MAX: usize = 256;
/// What stands for "no deadline" where a time is needed. Nothing lasts for so long.
const UNHURRIED_MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);

#[derive(Debug)]
pub struct Front {
    app: Arc<App>,
    grpc: Router,
    body_bytes_max: usize,
    requests: Arc<Semaphore>,
    of_service: Arc<Semaphore>,
    request_timeout: Duration,
    request_ids: RequestIds,
    names: OwnNames,
    bodies: Arc<BodyBudget>,
    answers: AnswerBudget,
}

impl Front {
    pub fn new(settings: &HttpSection, served: Served) -> Front {
        let app = Arc::new(App::new(settings, served));
        Front {
            grpc: grpc::router(&app, settings.body_bytes_max),
            app,
            body_bytes_max: settings.body_bytes_max,
            requests: Arc::new(Semaphore::new(settings.requests_in_flight_max)),
            of_service: Arc::new(Semaphore::new(OF_SERVICE_MAX)),
            request_timeout: Duration::from_millis(settings.request_timeout_ms),
            request_ids: RequestIds::new(),
            names: OwnNames::of(settings),
            bodies: BodyBudget::new(settings),
            answers: AnswerBudget::new(settings),
        }
    }

    /// What the listener of RESP shares with this one.
    pub fn resp(&self, settings: &HttpSection) -> RespFront {
        let (app, requests) = (self.app.clone(), self.requests.clone());
        RespFront::new(settings, app, requests, self.bodies.clone(), self.answers.clone())
    }

    /// From here on `/readyz` says no, and streams end.
    pub fn stop(&self) {
        self.app.stop();
    }

    /// The answer, with the place that it holds until it has been read.
    pub async fn answer(&self, request: Request) -> (Response<Body>, AnswerPlace) {
        let asked = match grpc::is_grpc(request.headers()) {
            true => AskedCall::Grpc(table::of_grpc(request.uri().path())),
            false => AskedCall::Http(http::find(request.method(), request.uri().path())),
        };
        self.answer_asked(request, asked).await
    }

    /// What a method and a path stand for, unless a part of it lasts longer than a plain request.
    pub fn plain_call(&self, method: &Method, path: &str) -> Option<RouteMatch> {
        let found = http::find(method, path);
        let is_plain = found.call().is_none_or(|call| call.lasting == Lasting::Nothing);
        is_plain.then_some(found)
    }

    /// A share of what bodies may take, for one that is about to be read whole.
    pub fn hold_body(&self, bytes: usize) -> Result<Option<HeldBody>, Error> {
        self.bodies.hold(bytes)
    }

    /// The answer to a request of HTTP whose call is known.
    pub async fn answer_call(
        &self,
        request: Request,
        found: RouteMatch,
    ) -> (Response<Body>, AnswerPlace) {
        self.answer_asked(request, AskedCall::Http(found)).await
    }

    async fn answer_asked(
        &self,
        request: Request,
        asked: AskedCall,
    ) -> (Response<Body>, AnswerPlace) {
        let began = Instant::now();
        let is_grpc = matches!(asked, AskedCall::Grpc(_));
        let call = asked.call();
        let at_most = match is_unhurried(call) {
            true => UNHURRIED_MAX,
            false => self.request_timeout,
        };
        let timeout = self.names.admit(&request).and_then(|()| match is_grpc {
            true => grpc::admit(request.headers(), at_most),
            false => Ok(at_most),
        });
        let timeout = timeout.and_then(|timeout| match call.is_some_and(|call| call.tells_long) {
            true => self.answers.admit_long_write().map(|()| timeout),
            false => Ok(timeout),
        });
        let context = Arc::new(CallContext::new(
            self.request_ids.take(request.headers()),
            began + *timeout.as_ref().unwrap_or(&at_most),
            call,
        ));
        let is_of_service = call.is_some_and(|call| call.class == Class::Health);
        let permit = self.requests.clone().try_acquire_owned().ok();
        let permit = permit.or_else(|| {
            let more = self.of_service.clone().try_acquire_owned();
            more.ok().filter(|_| is_of_service)
        });
        let timeout = timeout.and_then(|timeout| match is_of_service {
            true => Ok(timeout),
            false => self.app.deployment.takes_calls().map(|()| timeout),
        });
        let mut answer = match timeout {
            Err(error) => problem::answer(error),
            Ok(timeout) if permit.is_some() => {
                self.answer_in_time(request, asked, &context, timeout).await
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
        self.app.answered(&context, code, began.elapsed());
        (answer, place)
    }

    async fn answer_in_time(
        &self,
        mut request: Request,
        asked: AskedCall,
        context: &Arc<CallContext>,
        timeout: Duration,
    ) -> Response<Body> {
        let share = match self.count_body(&mut request, asked.call()) {
            Ok(share) => share,
            Err(error) => return problem::answer(error),
        };
        // Futures of this size are pinned where they are made, as each move would copy kilobytes.
        let answer = match asked {
            AskedCall::Http(found) => {
                let answering =
                    pin!(http::answer(&self.app, context, found, request, self.body_bytes_max));
                within(timeout, DEADLINE_GRACE, answering, context).await
            }
            AskedCall::Grpc(call) => {
                request.extensions_mut().insert(context.clone());
                // A write's own answer says what is known of it; a reader's time is the caller's.
                let may_write = call.is_none_or(|call| call.writes);
                let grace = if may_write { DEADLINE_GRACE } else { Duration::ZERO };
                let answering = pin!(self.grpc.clone().call(request));
                within(timeout, grace, answering, context).await
            }
        };
        share.and_then(|share| share.refusal()).map_or(answer, problem::answer)
    }

    /// Sees to it that a body's bytes are counted against what bodies may take. Short ones are not;
    /// an import's is read piece by piece, and its places bound it.
    fn count_body(
        &self,
        request: &mut Request,
        call: Option<&CallEntry>,
    ) -> Result<Option<Arc<BodyShare>>, Error> {
        let is_grpc = grpc::is_grpc(request.headers());
        if !is_grpc && call.is_some_and(|call| call.class == Class::Health) {
            // Nothing that it says is asked for, so none of it is kept.
            *request.body_mut() = Body::empty();
        }
        let is_packed = is_grpc && grpc::is_packed(request.headers());
        let was_counted = request.extensions().get::<HeldBody>().is_some();
        let is_short = bodies::is_short(request.body()) && !is_packed;
        if was_counted || is_short || is_unhurried(call) {
            return Ok(None);
        }
        let share = self.bodies.share(request.body())?;
        if is_packed {
            request.extensions_mut().insert(share.clone());
        }
        let one_message = is_grpc && call.is_none_or(|call| call.lasting != Lasting::Talk);
        let body = std::mem::take(request.body_mut());
        *request.body_mut() = share.counting(body, one_message, is_packed);
        Ok(Some(share))
    }
}

/// The call of a request, as its protocol found it.
enum AskedCall {
    Http(RouteMatch),
    Grpc(Option<&'static CallEntry>),
}

impl AskedCall {
    fn call(&self) -> Option<&'static CallEntry> {
        match self {
            AskedCall::Http(found) => found.call(),
            AskedCall::Grpc(call) => *call,
        }
    }
}

fn is_unhurried(call: Option<&CallEntry>) -> bool {
    call.is_some_and(|call| call.lasting == Lasting::Body)
}

/// The router's answer, or what stands for it when it does not come in time.
async fn within(
    timeout: Duration,
    grace: Duration,
    handling: Pin<&mut impl Future<Output = Result<Response<Body>, Infallible>>>,
    context: &CallContext,
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
    fn take(&self, headers: &HeaderMap) -> Arc<str> {
        let given = headers.get("x-request-id").map(HeaderValue::as_bytes);
        let sane = given.filter(|id| {
            (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
        });
        match sane.and_then(|id| std::str::from_utf8(id).ok()) {
            Some(id) => id.into(),
            None => format!("{:016x}", self.next.fetch_add(1, Ordering::Relaxed)).into(),
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
        assert_eq!(&*take(b"abc-1"), "abc-1");
        for insane in [&b"a b"[..], b"", b"\xff", &[b'a'; 65]] {
            assert_eq!(take(insane).len(), 16);
        }
        assert_ne!(ids.take(&HeaderMap::new()), ids.take(&HeaderMap::new()));
    }
}
