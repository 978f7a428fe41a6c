//! One HTTP/2 connection that sends a gRPC request byte by byte: half messages, wrong content,
//! deadlines that a well-behaved client would keep itself.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::SendStream;
use h2::client::{ResponseFuture, SendRequest};
use http::{HeaderMap, Request};
use tokio::net::TcpStream;
use tonic::Status;

use crate::server::Server;

/// A service that hangs is found out by this.
const ANSWER_DEADLINE: Duration = Duration::from_secs(40);

pub struct RawGrpc {
    sender: SendRequest<Bytes>,
}

/// What came back, wherever it stood: in the head or in the trailers.
#[derive(Debug)]
pub struct RawStatus {
    pub http_status: u16,
    pub headers: HashMap<String, String>,
    pub status: Option<Status>,
    pub body: Bytes,
}

impl RawGrpc {
    pub async fn connect(server: &Server) -> RawGrpc {
        let stream = TcpStream::connect(server.address()).await.expect("the server accepts");
        let (sender, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        RawGrpc { sender }
    }

    /// Sends a whole request.
    pub async fn send(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> RawStatus {
        self.send_part(path, headers, body, true).await
    }

    /// Begins a request with these bytes of its body, and leaves it there until what is returned is
    /// dropped.
    pub async fn begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        self.open(path, headers, body, false).await
    }

    async fn open(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
        whole: bool,
    ) -> (ResponseFuture, SendStream<Bytes>) {
        let mut request = Request::post(format!("http://localhost{path}")).header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("the head can be sent");
        let mut sender = self.sender.clone().ready().await.expect("the connection lives");
        let (answer, mut stream) = sender.send_request(request, false).expect("it can be sent");
        // A service that has already refused may close the stream before the body is through.
        let _ = stream.send_data(body.into(), whole);
        (answer, stream)
    }

    /// Sends a request whose body goes on after these bytes unless `whole`.
    pub async fn send_part(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
        whole: bool,
    ) -> RawStatus {
        let (answer, stream) = self.open(path, headers, body, whole).await;
        let read = async {
            let (head, mut body) = answer.await.expect("an answer comes").into_parts();
            let mut gathered = BytesMut::new();
            while let Some(Ok(piece)) = body.data().await {
                let _ = body.flow_control().release_capacity(piece.len());
                gathered.put(piece);
            }
            let trailers = body.trailers().await.ok().flatten();
            (head, gathered.freeze(), trailers)
        };
        let read = tokio::time::timeout(ANSWER_DEADLINE, read).await;
        let (head, body, trailers) = read.expect("an answer within the deadline");
        // The stream is held until here, so that it is not reset while the service still reads.
        drop(stream);
        let status = trailers.as_ref().and_then(Status::from_header_map);
        RawStatus {
            http_status: head.status.as_u16(),
            status: status.or_else(|| Status::from_header_map(&head.headers)),
            headers: texts(&head.headers),
            body,
        }
    }
}

fn texts(headers: &HeaderMap) -> HashMap<String, String> {
    let text = |value: &http::HeaderValue| value.to_str().unwrap_or_default().to_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// A message in its frame: not compressed, with its length.
pub fn frame(message: &impl prost::Message) -> Bytes {
    let encoded = message.encode_to_vec();
    let mut out = BytesMut::with_capacity(encoded.len() + 5);
    out.put_u8(0);
    out.put_u32(u32::try_from(encoded.len()).expect("a message of a test is small"));
    out.put_slice(&encoded);
    out.freeze()
}
