//! gRPC, on the port of HTTP and through the same `Front`: a request whose content type is
//! application/grpc finds its service here. Services only translate messages; the calls themselves
//! are those of `calls`, so rules, bounds and messages are the same as over HTTP.

mod admin;
mod counters;
mod dead_letters;
mod edges;
mod groups;
mod health;
mod hot;
mod lists;
mod nodes;
mod presented;
mod reads;
mod reflection;
mod status;
mod streams;
mod transfer;
mod upkeep;
mod watch;

pub use self::status::render;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use guanxi_api::{Id, proto};
use guanxi_model::{
    Catalog, Code, EdgeKey, Error, GroupName, GroupsKey, Kind, NodeKey, SourceId, TargetId,
    TenantId,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use self::presented::Presented;
use crate::calls::{self, Caller};
use crate::http::{App, BodyShare, Context};

/// Asked by machines that must hear from us just when all places are taken.
pub const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";

/// Methods whose callers send more than one message.
const OF_MANY_MESSAGES: [&str; 3] = [
    IMPORT,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

/// Takes as long as its caller lets it.
pub const IMPORT: &str = "/guanxi.v1.Admin/Import";

const CONTENT_TYPE: &str = "application/grpc";
/// Answers of fewer bytes are sent as they are: packing them would take time and save nothing.
const COMPRESSED_BYTES_MIN: usize = 1_024;
/// A timeout has at most so many digits, and then its unit.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// What a method returns.
type Answered<T> = Result<Response<T>, Status>;

pub fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(CONTENT_TYPE.as_bytes()))
}

/// Whether messages of the request may be packed, so that they take more than came of them.
pub fn is_packed(headers: &HeaderMap) -> bool {
    headers.get_all("grpc-encoding").iter().any(|encoding| encoding != "identity")
}

/// Whether a method takes one message from its caller.
pub fn takes_one(path: &str) -> bool {
    !OF_MANY_MESSAGES.contains(&path)
}

/// Refuses what is gRPC in name only; returns how long the call may take.
pub fn admit(headers: &HeaderMap, at_most: Duration) -> Result<Duration, Error> {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content_type.map(|value| value.split(';').next().unwrap_or("").trim());
    if !matches!(essence, Some(CONTENT_TYPE | "application/grpc+proto")) {
        return Err(Error::new(
            Code::UnsupportedMediaType,
            "messages must be protobuf, with content-type: application/grpc",
        ));
    }
    match headers.get("grpc-timeout") {
        None => Ok(at_most),
        Some(value) => match value.to_str().ok().and_then(read_timeout) {
            Some(timeout) => Ok(timeout.min(at_most)),
            None => Err(Error::invalid(
                "grpc-timeout: it is a number of 1 to 8 digits and a unit of H, M, S, m, u or n",
            )),
        },
    }
}

fn read_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    if !plain || digits.len() > TIMEOUT_DIGITS_MAX {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Lets a service read compressed messages. What its bounds count is what is unpacked.
macro_rules! unpacking {
    ($server:expr) => {
        $server
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Zstd)
    };
}
pub(crate) use unpacking;

/// Lets it send compressed ones too, to whoever reads them.
macro_rules! packing {
    ($server:expr) => {
        $server
            .send_compressed(tonic::codec::CompressionEncoding::Gzip)
            .send_compressed(tonic::codec::CompressionEncoding::Zstd)
    };
}

/// Every service, in one flat table.
pub fn router(app: &Arc<App>, message_bytes_max: usize) -> Router {
    let services = || Services { app: app.clone() };
    macro_rules! bounded {
        ($server:path) => {
            unpacking!(<$server>::new(services())).max_decoding_message_size(message_bytes_max)
        };
    }
    Routes::new(packing!(bounded!(proto::edges_server::EdgesServer::<_>)))
        .add_service(packing!(bounded!(proto::lists_server::ListsServer::<_>)))
        .add_service(packing!(bounded!(proto::reads_server::ReadsServer::<_>)))
        .add_service(packing!(bounded!(proto::counters_server::CountersServer::<_>)))
        .add_service(packing!(bounded!(proto::groups_server::GroupsServer::<_>)))
        .add_service(packing!(bounded!(proto::nodes_server::NodesServer::<_>)))
        .add_service(packing!(bounded!(proto::admin_server::AdminServer::<_>)))
        // Events are short, and each would be packed for itself.
        .add_service(bounded!(proto::watch_server::WatchServer::<_>))
        .add_service(bounded!(tonic_health::pb::health_server::HealthServer::<_>))
        .into_axum_router()
        .merge(reflection::router())
        .fallback(status::no_such_method)
}

/// All services of `guanxi.v1`; one file per service implements it.
#[derive(Debug, Clone)]
struct Services {
    app: Arc<App>,
}

impl Services {
    /// One call from its message to its answer.
    async fn answer<Message, Answer, Handling>(
        &self,
        request: Request<Message>,
        handle: impl FnOnce(Call, Message) -> Handling,
    ) -> Answered<Answer>
    where
        Message: Presented,
        Answer: prost::Message,
        Handling: Future<Output = Result<Answer, Error>>,
    {
        let call = Call::of(self, &request).map_err(status::refusal)?;
        if let Some(share) = request.extensions().get::<Arc<BodyShare>>() {
            share.unpacked(request.get_ref().bytes());
        }
        let learning = call.learn_kinds(request.get_ref().token());
        learning.await;
        let answer = handle(call, request.into_inner()).await.map_err(status::refusal)?;
        let is_short = answer.encoded_len() < COMPRESSED_BYTES_MIN;
        let mut answer = Response::new(answer);
        if is_short {
            answer.disable_compression();
        }
        Ok(answer)
    }
}

/// One call as its handler sees it.
#[derive(Debug)]
struct Call {
    app: Arc<App>,
    context: Arc<Context>,
}

impl Call {
    fn of<T>(services: &Services, request: &Request<T>) -> Result<Call, Error> {
        let context = request.extensions().get::<Arc<Context>>().cloned();
        let context =
            context.ok_or_else(|| Error::new(Code::Internal, "the request has no context"))?;
        if Instant::now() >= context.deadline {
            return Err(Error::new(
                Code::DeadlineExceeded,
                "the time that the caller gave was over before the call began; give it more",
            ));
        }
        Ok(Call { app: services.app.clone(), context })
    }

    /// Kinds that a presented token stands for are known before any is looked up. What is wrong
    /// with the token is said when it is met.
    fn learn_kinds(&self, token: Option<&str>) -> impl Future<Output = ()> + Send + use<> {
        self.app.deployment.learn_kinds(self.tenant(), token)
    }

    /// Whoever shows no credential.
    fn tenant(&self) -> TenantId {
        TenantId::DEFAULT
    }

    fn caller<'a>(&'a self, at_least: &'a Option<String>) -> Caller<'a> {
        Caller {
            app: &self.app,
            context: &self.context,
            tenant: self.tenant(),
            at_least: [at_least.as_deref(), None],
        }
    }

    async fn kind(&self, name: &str) -> Result<Arc<Kind>, Error> {
        self.context.kind_named(&self.app.deployment, self.tenant(), name).await
    }

    async fn edge(
        &self,
        kind: &str,
        source: u64,
        target: u64,
    ) -> Result<(Arc<Kind>, EdgeKey), Error> {
        let kind = self.kind(kind).await?;
        let edge = EdgeKey {
            tenant: self.tenant(),
            kind: kind.id,
            source: SourceId(Id::from_number(source, "source")?.0),
            target: TargetId(Id::from_number(target, "target")?.0),
        };
        Ok((kind, edge))
    }

    async fn groups(&self, kind: &str, source: u64) -> Result<(Arc<Kind>, GroupsKey), Error> {
        let kind = self.kind(kind).await?;
        let source = SourceId(Id::from_number(source, "source")?.0);
        let groups = GroupsKey { tenant: self.tenant(), kind: kind.id, source };
        Ok((kind, groups))
    }

    async fn node(&self, type_name: &str, id: u64) -> Result<NodeKey, Error> {
        let tenant = self.tenant();
        let find = |catalog: &Catalog| calls::node_type(catalog, tenant, type_name);
        let node_type = self.app.deployment.resolve(self.context.deadline, find).await?;
        Ok(NodeKey { tenant, node_type, id: Id::from_number(id, "id")?.0 })
    }

    /// An error of one change of a batch.
    fn problem(&self, error: &Error) -> proto::Problem {
        guanxi_api::Problem::new(error, &self.context.request_id).into()
    }
}

fn group_name(name: &str, what: &str) -> Result<GroupName, Error> {
    GroupName::new(name).map_err(|error| Error::invalid(format!("{what}: {}", error.message)))
}

fn ids(numbers: &[u64], what: &str) -> Result<Vec<Id>, Error> {
    let id = |(index, number): (usize, &u64)| match number {
        0 => Id::from_number(0, &format!("{what}[{index}]")),
        _ => Ok(Id(*number)),
    };
    numbers.iter().enumerate().map(id).collect()
}

fn owned(names: Vec<&str>) -> Vec<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(content_type: &str, timeout: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, content_type.parse().unwrap());
        if let Some(timeout) = timeout {
            headers.insert("grpc-timeout", timeout.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_timeout_can_only_shorten() {
        let at_most = Duration::from_secs(10);
        let admit = |timeout| admit(&head("application/grpc", timeout), at_most);
        for (text, timeout) in [
            ("5S", Duration::from_secs(5)),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("1n", Duration::from_nanos(1)),
            ("99999999H", at_most),
            ("1M", at_most),
        ] {
            assert_eq!(admit(Some(text)), Ok(timeout), "{text}");
        }
        assert_eq!(admit(None), Ok(at_most));
        for wrong in ["", "S", "5", "5s", "-5S", "5.0S", "123456789S", "5 S"] {
            let error = admit(Some(wrong)).unwrap_err();
            assert!(error.message.starts_with("grpc-timeout: "), "{wrong}");
        }
    }

    #[test]
    fn only_protobuf_is_taken() {
        for (content_type, ours, good) in [
            ("application/grpc", true, true),
            ("application/grpc+proto; charset=x", true, true),
            ("application/grpc-web", true, false),
            ("application/grpc+json", true, false),
            ("application/json", false, false),
        ] {
            let headers = head(content_type, None);
            assert_eq!(is_grpc(&headers), ours, "{content_type}");
            assert_eq!(admit(&headers, Duration::MAX).is_ok(), good, "{content_type}");
        }
    }
}
