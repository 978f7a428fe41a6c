//! gRPC, on the port of HTTP and through the same `Front`: a request whose content type is
//! application/grpc finds its service here. A method names its function of `service`; what its
//! messages mean is the API's to say (`guanxi_api::proto`), so rules, bounds and words are the same
//! as over HTTP.

mod admin;
mod counters;
mod edges;
mod groups;
mod health;
mod lists;
mod nodes;
mod presented;
mod reads;
mod reflection;
mod status;
mod streams;
mod transfer;
mod watch;

pub use self::status::render;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, header};
use guanxi_api::proto;
use guanxi_model::{Code, Error, TenantId};
use tonic::metadata::MetadataMap;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use self::presented::Presented;
use super::bodies::BodyShare;
use crate::service::{self, App, CallContext, Caller};

const CONTENT_TYPE: &str = "application/grpc";
/// Answers of fewer bytes are sent as they are: packing them would take time and save nothing.
const COMPRESSED_BYTES_MIN: usize = 1_024;
/// A timeout has at most so many digits, and then its unit.
const TIMEOUT_DIGITS_MAX: usize = 8;

/// What a method returns.
type GrpcAnswered<T> = Result<Response<T>, Status>;

pub fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|value| value.starts_with(CONTENT_TYPE.as_bytes()))
}

/// Whether messages of the request may be packed, so that they take more than came of them.
pub fn is_packed(headers: &HeaderMap) -> bool {
    headers.get_all("grpc-encoding").iter().any(|encoding| encoding != "identity")
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
    /// One call, from its message to the answer of the service's function.
    async fn answer<Message, Asked, Told, Answer, Answering>(
        &self,
        mut request: Request<Message>,
        function: impl FnOnce(Caller, Asked) -> Answering,
    ) -> GrpcAnswered<Answer>
    where
        Message: Presented + TryInto<Asked>,
        Error: From<Message::Error>,
        Answering: Future<Output = Result<Told, Error>>,
        Answer: prost::Message + From<Told>,
    {
        if let Some(share) = request.extensions().get::<Arc<BodyShare>>() {
            share.unpacked(request.get_ref().bytes());
        }
        let (at_least, key) = (request.get_mut().take_token(), request.get_mut().take_key());
        let caller = self.caller(&request, at_least, key).await.map_err(status::refusal)?;
        let answering = async {
            let asked = request.into_inner().try_into()?;
            function(caller, asked).await
        };
        let told = answering.await.map_err(status::refusal)?;
        let answer = Answer::from(told);
        let is_short = answer.encoded_len() < COMPRESSED_BYTES_MIN;
        let mut answer = Response::new(answer);
        if is_short {
            answer.disable_compression();
        }
        Ok(answer)
    }

    /// Whoever calls; the kinds that a presented token stands for are known from here on.
    async fn caller<Message>(
        &self,
        request: &Request<Message>,
        at_least: Option<String>,
        key: Option<String>,
    ) -> Result<Caller, Error> {
        let context = request.extensions().get::<Arc<CallContext>>().cloned();
        let context =
            context.ok_or_else(|| Error::new(Code::Internal, "the request has no context"))?;
        if Instant::now() >= context.deadline {
            return Err(Error::new(
                Code::DeadlineExceeded,
                "the time that the caller gave was over before the call began; give it more",
            ));
        }
        let caller = Caller {
            app: self.app.clone(),
            context,
            // Whoever shows no credential.
            tenant: TenantId::DEFAULT,
            at_least: [at_least, None],
            key: service::key("idempotency_key", key.as_deref())?,
            origin: service::origin(reason(request.metadata())?)?,
        };
        caller.learn_kinds().await;
        Ok(caller)
    }
}

/// Why the caller writes, by its own words.
fn reason(metadata: &MetadataMap) -> Result<Option<&str>, Error> {
    let wrong = |what| Error::invalid(format!("{}: {what}", service::REASON));
    let mut given = metadata.get_all(service::REASON).iter();
    let Some(text) = given.next() else {
        return Ok(None);
    };
    if given.next().is_some() {
        return Err(wrong("this metadata is given more than once"));
    }
    text.to_str().map(Some).map_err(|_| wrong("it is printable ASCII"))
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
