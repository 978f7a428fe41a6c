//! A request as a handler sees it: path, query, headers and body, each read strictly and with a
//! message that names what is wrong.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{Method, header};
use bytes::{Bytes, BytesMut};
use guanxi_api::{Id, Object};
use guanxi_engine::{Reader, Request as WriteRequest};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::{
    Answer, Change, Code, EdgeKey, Error, GroupName, GroupsKey, Kind, NodeKey, SourceId, TargetId,
    TenantId, Token,
};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::problem::Refusal;
use super::query::{AT_LEAST, Query};
use super::{App, Context};
use crate::telemetry::KindLabel;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const AT_LEAST_HEADER: &str = "guanxi-at-least";
/// How much of a wrong name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug)]
pub struct Call {
    pub app: Arc<App>,
    pub context: Arc<Context>,
    parts: Parts,
    path: Option<RawPathParams>,
    body: Bytes,
}

/// The answers of a write, and the token that stands for it.
#[derive(Debug)]
pub struct WriteAnswer {
    pub answers: Answers,
    pub token: String,
}

impl FromRequest<Arc<App>> for Call {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Call, Refusal> {
        let (mut parts, body) = request.into_parts();
        let context = parts.extensions.remove::<Arc<Context>>();
        let context =
            context.ok_or_else(|| Error::new(Code::Internal, "the request has no context"))?;
        if let Some(route) = parts.extensions.get::<MatchedPath>() {
            let method = match &parts.method {
                &Method::HEAD => &Method::GET,
                method => method,
            };
            if let Some(call) = app.calls.get(method, route.as_str()) {
                let _ = context.call.set(call);
            }
        }
        // Paths without parameters have none to extract.
        let path = match RawPathParams::from_request_parts(&mut parts, app).await {
            Ok(path) => Some(path),
            Err(axum::extract::rejection::RawPathParamsRejection::InvalidUtf8InPathParam(_)) => {
                return Err(Refusal(Error::invalid("the path is not UTF-8")));
            }
            Err(_) => None,
        };
        let body = read_body(app, &parts, body).await?;
        Ok(Call { app: app.clone(), context, parts, path, body })
    }
}

/// The whole body, within its bounds of size and time.
async fn read_body(app: &App, parts: &Parts, mut body: Body) -> Result<Bytes, Error> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let max = app.body_bytes_max;
    let too_large = || {
        Error::new(Code::TooLarge, format!("the body has more than {max} bytes; split the request"))
    };
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let reading = async {
        // Nearly every body comes in one piece, which needs no copy.
        let mut first = Bytes::new();
        let mut gathered = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let broken = |_| Error::invalid("the body broke off");
            let Ok(piece) = frame.map_err(broken)?.into_data() else {
                continue;
            };
            if first.is_empty() && gathered.is_empty() {
                first = piece;
            } else {
                if gathered.is_empty() {
                    gathered.extend_from_slice(&first);
                    first = Bytes::new();
                }
                gathered.extend_from_slice(&piece);
            }
            if first.len() + gathered.len() > max {
                return Err(too_large());
            }
        }
        Ok(if first.is_empty() { gathered.freeze() } else { first })
    };
    match tokio::time::timeout(app.body_timeout, reading).await {
        Ok(read) => read,
        Err(_) => Err(Error::new(
            Code::DeadlineExceeded,
            format!("the body did not come within {} ms", app.body_timeout.as_millis()),
        )),
    }
}

impl Call {
    /// Whoever shows no credential.
    pub fn tenant(&self) -> TenantId {
        TenantId::DEFAULT
    }

    fn segment(&self, name: &str) -> &str {
        let mut segments = self.path.iter().flat_map(RawPathParams::iter);
        let found = segments.find(|(given, _)| *given == name);
        found.map_or("", |(_, value)| value)
    }

    /// The kind that the path names. Looked up before anything else is read, so that a wrong kind
    /// is what the caller hears of.
    pub fn kind(&self) -> Result<Arc<Kind>, Error> {
        self.kind_in("kind")
    }

    /// The kind that another segment of the path names.
    pub fn kind_in(&self, segment: &str) -> Result<Arc<Kind>, Error> {
        let catalog = self.app.engine.catalog();
        match catalog.named(self.tenant(), self.segment(segment)) {
            Ok(kind) => {
                let _ = self.context.kind.set(KindLabel::of(kind));
                Ok(kind.clone())
            }
            Err(error) => {
                let _ = self.context.kind.set(KindLabel::Other);
                Err(error)
            }
        }
    }

    pub fn id(&self, name: &str) -> Result<u64, Error> {
        Id::parse(self.segment(name), name).map(|id| id.0)
    }

    /// A segment that is looked up, not parsed.
    pub fn name(&self, name: &str) -> &str {
        self.segment(name)
    }

    pub fn edge(&self) -> Result<(Arc<Kind>, EdgeKey), Error> {
        let kind = self.kind()?;
        let edge = EdgeKey {
            tenant: self.tenant(),
            kind: kind.id,
            source: SourceId(self.id("source")?),
            target: TargetId(self.id("target")?),
        };
        Ok((kind, edge))
    }

    pub fn groups(&self) -> Result<(Arc<Kind>, GroupsKey), Error> {
        let kind = self.kind()?;
        let groups = GroupsKey {
            tenant: self.tenant(),
            kind: kind.id,
            source: SourceId(self.id("source")?),
        };
        Ok((kind, groups))
    }

    pub fn group_name(&self) -> Result<GroupName, Error> {
        GroupName::new(self.segment("group"))
    }

    pub fn node(&self) -> Result<NodeKey, Error> {
        let name = self.segment("type");
        let catalog = self.app.engine.catalog();
        let node_type =
            catalog.type_named(self.tenant(), name).ok_or_else(|| unknown_type(name))?;
        Ok(NodeKey { tenant: self.tenant(), node_type, id: self.id("id")? })
    }

    /// The query string, which may have these parameters and `at_least`.
    pub fn query(&self, known: &[&'static str]) -> Result<Query<'_>, Error> {
        Query::parse(self.parts.uri.query(), known)
    }

    /// A body that must be there.
    pub fn json<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        if self.body.is_empty() {
            return Err(Error::invalid("the body is empty; this call takes JSON"));
        }
        let content_type = self.parts.headers.get(header::CONTENT_TYPE);
        let essence = content_type
            .and_then(|value| value.to_str().ok())
            .map(|value| value.split(';').next().unwrap_or("").trim());
        if !essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json")) {
            return Err(Error::new(
                Code::UnsupportedMediaType,
                "the body must be JSON, with content-type: application/json",
            ));
        }
        match serde_json::from_slice::<Object<T>>(&self.body) {
            Ok(Object(value)) => Ok(value),
            Err(error) => Err(Error::invalid(self.place_of::<T>(&error))),
        }
    }

    /// Reads a body that is known to be wrong once more, to say which field is.
    fn place_of<'a, T: Deserialize<'a>>(&'a self, error: &serde_json::Error) -> String {
        let mut reader = serde_json::Deserializer::from_slice(&self.body);
        match serde_path_to_error::deserialize::<_, Object<T>>(&mut reader) {
            Err(placed) if placed.path().iter().len() > 0 => {
                format!("the body, {}: {}", placed.path(), placed.inner())
            }
            _ => format!("the body: {error}"),
        }
    }

    /// A body that may be left out.
    pub fn optional_json<'a, T: Deserialize<'a> + Default>(&'a self) -> Result<T, Error> {
        if self.body.is_empty() {
            return Ok(T::default());
        }
        self.json()
    }

    /// For calls that take no body; an object without fields says as little.
    pub fn no_body(&self) -> Result<(), Error> {
        #[derive(Default, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let Nothing {} = self.optional_json()?;
        Ok(())
    }

    /// Waits until what a presented token stands for can be read.
    pub async fn meet(&self, query: &Query<'_>) -> Result<Option<Token>, Error> {
        let mut met: Option<Token> = None;
        let header = self.header(AT_LEAST_HEADER)?;
        for text in [query.text(AT_LEAST), header].into_iter().flatten() {
            let token = Token::parse(text, self.tenant())
                .map_err(|error| Error::invalid(format!("{AT_LEAST}: {}", error.message)))?;
            self.app.engine.at_least(&token).await?;
            if met.is_none_or(|other| other.position < token.position) {
                met = Some(token);
            }
        }
        Ok(met)
    }

    /// A consistent snapshot that shows at least what the caller asks for.
    pub async fn reader(&self, query: &Query<'_>) -> Result<Reader, Error> {
        self.meet(query).await?;
        self.app.engine.reader()
    }

    /// Commits changes; under the caller's idempotency key if the call takes one.
    pub async fn write(
        &self,
        query: &Query<'_>,
        changes: Vec<Change>,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteAnswer, Error> {
        if key.is_none() && self.header(IDEMPOTENCY_KEY)?.is_some() {
            return Err(Error::invalid(
                "idempotency-key: this call takes no such header; a counter's key stands in the body",
            ));
        }
        let met = self.meet(query).await?;
        let request = WriteRequest { tenant: self.tenant(), changes, key };
        let deadline = self.context.deadline;
        let written = self.app.engine.write(request, deadline).await?;
        // A replayed answer may be older than the token that the caller already holds.
        let token = match met {
            Some(met)
                if met.epoch == written.token.epoch && met.position > written.token.position =>
            {
                met
            }
            _ => written.token,
        };
        Ok(WriteAnswer { answers: written.answers, token: token.to_text() })
    }

    /// Commits what of a batch can be committed; the rest keeps its error and its place among the
    /// answers.
    pub async fn write_each(
        &self,
        query: &Query<'_>,
        wanted: Vec<Result<Change, Error>>,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteAnswer, Error> {
        let mut changes = Vec::with_capacity(wanted.len());
        let mut refused = Vec::with_capacity(wanted.len());
        for change in wanted {
            match change {
                Ok(change) => {
                    changes.push(change);
                    refused.push(None);
                }
                Err(error) => refused.push(Some(error)),
            }
        }
        let written = self.write(query, changes, key).await?;
        let mut answered = written.answers.into_iter();
        let mut answers = Vec::with_capacity(refused.len());
        for refusal in refused {
            answers.push(match refusal {
                Some(error) => Err(error),
                None => answered.next().unwrap_or_else(|| Err(no_answer())),
            });
        }
        Ok(WriteAnswer { answers, token: written.token })
    }

    /// The caller's Idempotency-Key.
    pub fn key(&self) -> Result<Option<IdempotencyKey>, Error> {
        let Some(text) = self.header(IDEMPOTENCY_KEY)? else {
            return Ok(None);
        };
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Error::invalid("idempotency-key: it has 1 to 64 visible ASCII characters"));
        }
        IdempotencyKey::new(text).map(Some)
    }

    pub fn header(&self, name: &str) -> Result<Option<&str>, Error> {
        let mut values = self.parts.headers.get_all(name).iter();
        let Some(value) = values.next() else {
            return Ok(None);
        };
        if values.next().is_some() {
            return Err(Error::invalid(format!("{name}: this header is given more than once")));
        }
        let text = value
            .to_str()
            .map_err(|_| Error::invalid(format!("{name}: this header is not ASCII text")))?;
        Ok(Some(text))
    }
}

impl WriteAnswer {
    /// The one answer of a request with one change.
    pub fn only(&mut self) -> Result<Answer, Error> {
        self.answers.pop().ok_or_else(no_answer)?
    }
}

fn no_answer() -> Error {
    Error::new(Code::Internal, "the change has no answer").outcome_unknown()
}

/// The engine answered something that this change cannot have.
pub fn unexpected(answer: &Answer) -> Error {
    tracing::error!(?answer, "an answer of another change");
    Error::new(Code::Internal, "the write has another answer").outcome_unknown()
}

pub fn unknown_type(name: &str) -> Error {
    let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
    Error::new(
        Code::NotFound,
        format!("there is no node type '{shown}'; GET /v1/admin/kinds shows those there are"),
    )
}
