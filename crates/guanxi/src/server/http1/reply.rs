//! Answers as bytes.

use std::cell::RefCell;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use axum::body::Body;
use axum::http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;

/// How old the date of an answer may be; it tells whole seconds.
const DATE_AGE_MAX: Duration = Duration::from_millis(500);

/// Writes an answer behind those that wait to be sent; the last one of a connection says so.
pub async fn write(answer: Response<Body>, is_last: bool, output: &mut Vec<u8>) {
    let (head, body) = answer.into_parts();
    // Nothing plain answers with a stream, so its body is there, if not always in one piece.
    let (length, body) = match body.size_hint().exact() {
        Some(length) => (length, body),
        None => match body.collect().await {
            Ok(whole) => {
                let whole = whole.to_bytes();
                (whole.len() as u64, Body::from(whole))
            }
            Err(error) => {
                tracing::error!(%error, "the body of an answer broke off");
                (0, Body::empty())
            }
        },
    };
    output.extend_from_slice(b"HTTP/1.1 ");
    output.extend_from_slice(head.status.as_str().as_bytes());
    output.push(b' ');
    output.extend_from_slice(head.status.canonical_reason().unwrap_or("").as_bytes());
    output.extend_from_slice(b"\r\n");
    for (name, value) in &head.headers {
        field(name.as_str(), value.as_bytes(), output);
    }
    if head.status != StatusCode::NO_CONTENT {
        output.extend_from_slice(b"content-length: ");
        // Into memory, where nothing fails.
        let _written = write!(output, "{length}\r\n");
    }
    if is_last {
        field("connection", b"close", output);
    }
    with_date(|date| field("date", date.as_bytes(), output));
    output.extend_from_slice(b"\r\n");
    let mut body = body;
    while let Some(Ok(frame)) = body.frame().await {
        if let Some(data) = frame.data_ref() {
            output.extend_from_slice(data);
        }
    }
}

fn field(name: &str, value: &[u8], output: &mut Vec<u8>) {
    for part in [name.as_bytes(), b": ", value, b"\r\n"] {
        output.extend_from_slice(part);
    }
}

/// The date, written once for all answers of half a second.
fn with_date(write: impl FnOnce(&str)) {
    thread_local! {
        static DATE: RefCell<Option<(Instant, String)>> = const { RefCell::new(None) };
    }
    DATE.with_borrow_mut(|date| {
        let now = Instant::now();
        let kept = date.take().filter(|(at, _)| now.duration_since(*at) < DATE_AGE_MAX);
        let (_, text) =
            date.insert(kept.unwrap_or_else(|| (now, httpdate::fmt_http_date(SystemTime::now()))));
        write(text);
    });
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn an_answer_is_written_whole() {
        let mut output = Vec::new();
        let mut answer = Response::new(Body::from("{}"));
        answer.headers_mut().insert("x-request-id", HeaderValue::from_static("r"));
        write(answer, false, &mut output).await;
        let pieces = ["ab", "c"].map(|piece| Ok::<_, axum::Error>(Bytes::from(piece)));
        let mut answer = Response::new(Body::from_stream(stream::iter(pieces)));
        *answer.status_mut() = StatusCode::NOT_FOUND;
        write(answer, true, &mut output).await;
        let text = String::from_utf8(output).unwrap();
        let lines: Vec<&str> =
            text.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
        let expected = [
            "HTTP/1.1 200 OK",
            "x-request-id: r",
            "content-length: 2",
            "",
            "{}HTTP/1.1 404 Not Found",
            "content-length: 3",
            "connection: close",
            "",
            "abc",
        ];
        assert_eq!(lines, expected);
        assert_eq!(text.matches("date: ").count(), 2);
    }
}
