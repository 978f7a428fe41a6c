//! A request as a handler sees it: path, query, headers and body, each read strictly and with a
//! message that names what is wrong.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, MatchedPath, RawPathParams, Request};
use axum::http::header;
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use guanxi_api::{Id, Object};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{
    AnyToken, Catalog, Change, Code, EdgeKey, Error, GroupName, GroupsKey, Kind, NodeKey, SourceId,
    TargetId, TenantId,
};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::problem::Refusal;
use super::query::{AT_LEAST, Query};
use super::{App, Context, foreign};
use crate::calls::{self, Caller, WriteAnswer, table};

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const AT_LEAST_HEADER: &str = "guanxi-at-least";

#[derive(Debug)]
pub struct Call {
    pub app: Arc<App>,
    pub context: Arc<Context>,
    parts: Parts,
    path: Option<RawPathParams>,
    body: Bytes,
}

/// A call whose body the handler reads as it comes.
#[derive(Debug)]
pub struct OpenCall {
    pub call: Call,
    pub body: Body,
}

impl FromRequest<Arc<App>> for Call {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Call, Refusal> {
        let OpenCall { mut call, body } = OpenCall::from_request(request, app).await?;
        call.body = read_body(app, &call.parts, body).await?;
        Ok(call)
    }
}

impl FromRequest<Arc<App>> for OpenCall {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<OpenCall, Refusal> {
        let (mut parts, body) = request.into_parts();
        let context = parts.extensions.remove::<Arc<Context>>();
        let context =
            context.ok_or_else(|| Error::new(Code::Internal, "the request has no context"))?;
        if let Some(route) = parts.extensions.get::<MatchedPath>() {
            if let Some(call) = table::of_http(&parts.method, route.as_str()) {
                context.note_call(call);
            }
            if context.may_write() {
                foreign::refuse_unasked(&parts)?;
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
        let call = Call { app: app.clone(), context, parts, path, body: Bytes::new() };
        call.learn_kinds().await;
        Ok(OpenCall { call, body })
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
    /// Kinds that a presented token stands for are known before any is looked up. What is wrong
    /// with the token is said when it is met.
    async fn learn_kinds(&self) {
        let (deployment, tenant) = (&self.app.deployment, self.tenant());
        deployment.learn_kinds(tenant, self.header(AT_LEAST_HEADER).ok().flatten()).await;
        let query = self.parts.uri.query().unwrap_or_default();
        let asked = query.split('&').find_map(|part| part.strip_prefix("at_least="));
        deployment.learn_kinds(tenant, asked).await;
    }

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
    pub async fn kind(&self) -> Result<Arc<Kind>, Error> {
        self.kind_in("kind").await
    }

    /// The kind that another segment of the path names.
    pub async fn kind_in(&self, segment: &str) -> Result<Arc<Kind>, Error> {
        let (deployment, name) = (&self.app.deployment, self.segment(segment));
        self.context.kind_named(deployment, self.tenant(), name).await
    }

    pub fn id(&self, name: &str) -> Result<u64, Error> {
        Id::parse(self.segment(name), name).map(|id| id.0)
    }

    /// A segment that is looked up, not parsed.
    pub fn name(&self, name: &str) -> &str {
        self.segment(name)
    }

    pub async fn edge(&self) -> Result<(Arc<Kind>, EdgeKey), Error> {
        let kind = self.kind().await?;
        let edge = EdgeKey {
            tenant: self.tenant(),
            kind: kind.id,
            source: SourceId(self.id("source")?),
            target: TargetId(self.id("target")?),
        };
        Ok((kind, edge))
    }

    pub async fn groups(&self) -> Result<(Arc<Kind>, GroupsKey), Error> {
        let kind = self.kind().await?;
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

    pub async fn node(&self) -> Result<NodeKey, Error> {
        let (tenant, name) = (self.tenant(), self.segment("type"));
        let find = |catalog: &Catalog| calls::node_type(catalog, tenant, name);
        let node_type = self.app.deployment.resolve(self.context.deadline, find).await?;
        Ok(NodeKey { tenant, node_type, id: self.id("id")? })
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
        let Err(placed) = serde_path_to_error::deserialize::<_, Object<T>>(&mut reader) else {
            return format!("the body: {error}");
        };
        // A part that broke off before it had a name is shown as a question mark.
        let path = placed.path().to_string();
        let path = path.trim_end_matches('?').trim_end_matches('.');
        match (placed.inner().is_syntax() || placed.inner().is_eof(), path) {
            (true, "") => format!("the body is not JSON: {error}"),
            (true, path) => format!("the body is not JSON, after {path}: {}", placed.inner()),
            (false, "") => format!("the body: {error}"),
            (false, path) => format!("the body, {path}: {}", placed.inner()),
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

    /// What the caller wants beside the request itself.
    pub fn caller<'a>(&'a self, query: &'a Query<'_>) -> Result<Caller<'a>, Error> {
        Ok(Caller {
            app: &self.app,
            context: &self.context,
            tenant: self.tenant(),
            at_least: [query.text(AT_LEAST), self.header(AT_LEAST_HEADER)?],
        })
    }

    /// Waits until what a presented token stands for can be read.
    pub async fn meet(&self, query: &Query<'_>) -> Result<Option<AnyToken>, Error> {
        self.caller(query)?.meet().await
    }

    /// Commits changes; under the caller's idempotency key if the call takes one.
    pub async fn write(
        &self,
        query: &Query<'_>,
        changes: Vec<Change>,
        key: Option<IdempotencyKey>,
    ) -> Result<WriteAnswer, Error> {
        if key.is_none() {
            self.no_key()?;
        }
        self.caller(query)?.write(changes, key).await
    }

    /// For calls that take no Idempotency-Key.
    pub fn no_key(&self) -> Result<(), Error> {
        match self.header(IDEMPOTENCY_KEY)? {
            None => Ok(()),
            Some(_) => Err(Error::invalid(
                "idempotency-key: this call takes no such header; a counter's key stands in the body",
            )),
        }
    }

    /// The caller's Idempotency-Key.
    pub fn key(&self) -> Result<Option<IdempotencyKey>, Error> {
        calls::key(IDEMPOTENCY_KEY, self.header(IDEMPOTENCY_KEY)?)
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
