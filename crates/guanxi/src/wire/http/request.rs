//! A request as a handler sees it: path, query, headers and body, each read strictly and with a
//! message that names what is wrong.

use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Uri, header};
use bytes::{Bytes, BytesMut};
use guanxi_api::edges::EdgeName;
use guanxi_api::groups::GroupsName;
use guanxi_api::nodes::NodeOf;
use guanxi_api::{Id, Name, Object};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Code, Error, GroupName, TenantId};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde::Deserialize;

use super::Parameters;
use super::query::{AT_LEAST, Query};
use crate::service::table::Lasting;
use crate::service::{App, CallContext, Caller, REASON, key, origin};
use crate::wire::origin_check;

const IDEMPOTENCY_KEY: &str = "idempotency-key";
const AT_LEAST_HEADER: &str = "guanxi-at-least";

#[derive(Debug)]
pub struct HttpRequest {
    pub app: Arc<App>,
    pub context: Arc<CallContext>,
    parts: Parts,
    parameters: Vec<(&'static str, String)>,
    body: Bytes,
}

impl HttpRequest {
    /// The head of it; what the parts of its path are called is known already.
    pub fn new(
        app: &Arc<App>,
        context: &Arc<CallContext>,
        parts: Parts,
        parameters: Parameters,
    ) -> Result<HttpRequest, Error> {
        let parameters = parameters.ok_or_else(|| Error::invalid("the path is not UTF-8"))?;
        let (app, context) = (app.clone(), context.clone());
        Ok(HttpRequest { app, context, parts, parameters, body: Bytes::new() })
    }

    /// Itself, unless it would change something and a page could have sent it without asking.
    pub fn may_be_asked(self) -> Result<HttpRequest, Error> {
        if self.context.may_write() {
            origin_check::refuse_unasked(&self.parts)?;
        }
        Ok(self)
    }

    /// Takes the body, unless its call reads that as it comes.
    pub async fn read_body(&mut self, body: &mut Body, max: usize) -> Result<(), Error> {
        if self.context.call.is_some_and(|call| call.lasting == Lasting::Body) {
            return Ok(());
        }
        self.body = read_body(&self.app, &self.parts, body, max).await?;
        Ok(())
    }

    pub fn uri(&self) -> &Uri {
        &self.parts.uri
    }

    /// A part of the path that is looked up, not parsed.
    pub fn part(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(given, _)| *given == name);
        found.map_or("", |(_, value)| value)
    }

    /// The name of a kind or a node type in the path.
    pub fn name(&self, part: &str) -> Name<'_> {
        Name::from(self.part(part))
    }

    pub fn id(&self, part: &str) -> Result<Id, Error> {
        Id::parse(self.part(part), part)
    }

    pub fn edge(&self) -> Result<EdgeName<'_>, Error> {
        Ok(EdgeName {
            kind: self.name("kind"),
            source: self.id("source")?,
            target: self.id("target")?,
        })
    }

    pub fn groups(&self) -> Result<GroupsName<'_>, Error> {
        Ok(GroupsName { kind: self.name("kind"), source: self.id("source")? })
    }

    pub fn group_name(&self) -> Result<GroupName, Error> {
        GroupName::new(self.part("group"))
    }

    pub fn node(&self) -> Result<NodeOf<'_>, Error> {
        Ok(NodeOf { node_type: self.name("type"), id: self.id("id")? })
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

    /// Whoever calls; the kinds that a presented token stands for are known from here on.
    pub async fn caller(&self, query: &Query<'_>) -> Result<Caller, Error> {
        self.calling(query, None).await
    }

    /// The same for a write that takes the header Idempotency-Key.
    pub async fn keyed_caller(&self, query: &Query<'_>) -> Result<Caller, Error> {
        let key = key(IDEMPOTENCY_KEY, self.header(IDEMPOTENCY_KEY)?)?;
        self.calling(query, key).await
    }

    /// The same for a write that takes none, and would seem to be safe to send again with it.
    pub async fn unkeyed_caller(&self, query: &Query<'_>) -> Result<Caller, Error> {
        match self.header(IDEMPOTENCY_KEY)? {
            None => self.calling(query, None).await,
            Some(_) => Err(Error::invalid(
                "idempotency-key: this call takes no such header; a counter's key stands in the body",
            )),
        }
    }

    async fn calling(
        &self,
        query: &Query<'_>,
        key: Option<IdempotencyKey>,
    ) -> Result<Caller, Error> {
        let at_least = [query.text(AT_LEAST), self.header(AT_LEAST_HEADER)?];
        let caller = Caller {
            app: self.app.clone(),
            context: self.context.clone(),
            // Whoever shows no credential.
            tenant: TenantId::DEFAULT,
            at_least: at_least.map(|text| text.map(str::to_owned)),
            key,
            origin: origin(self.header(REASON)?)?,
        };
        caller.learn_kinds().await;
        Ok(caller)
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

/// The whole body, within its bounds of size and time.
async fn read_body(app: &App, parts: &Parts, body: &mut Body, max: usize) -> Result<Bytes, Error> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let too_large = || {
        Error::new(Code::TooLarge, format!("the body has more than {max} bytes; split the request"))
    };
    let announced = parts.headers.get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max) {
        return Err(too_large());
    }
    let reading = pin!(async {
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
    });
    match tokio::time::timeout(app.body_timeout, reading).await {
        Ok(read) => read,
        Err(_) => Err(Error::new(
            Code::DeadlineExceeded,
            format!("the body did not come within {} ms", app.body_timeout.as_millis()),
        )),
    }
}
