//! The head of a request: read where it lies, and made into a request when its body is there too.

use std::mem::MaybeUninit;
use std::ops::Range;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use bytes::Bytes;

use crate::server::HEADER_FIELDS_MAX;

/// What the bytes so far are.
pub enum Parsed {
    Head(Head),
    Unfinished,
    /// Not of this sort, or wrong; another server knows more of that.
    Other,
}

/// A head that states its body's length, and asks for nothing that is not done here.
pub struct Head {
    pub method: Method,
    /// Of the head itself, and of the body behind it.
    pub bytes: usize,
    pub body_bytes: usize,
    /// The client sends nothing after it.
    pub closes: bool,
}

/// Reads heads, one at a time; where the parts of the last one lie is kept beside it.
pub struct HeadReader {
    bytes_max: usize,
    target: Range<usize>,
    fields: Vec<(Range<usize>, Range<usize>)>,
}

impl HeadReader {
    pub fn new(bytes_max: usize) -> HeadReader {
        HeadReader { bytes_max, target: 0..0, fields: Vec::new() }
    }

    pub fn read(&mut self, input: &[u8]) -> Parsed {
        if input.is_empty() {
            return Parsed::Unfinished;
        }
        let mut fields = [const { MaybeUninit::uninit() }; HEADER_FIELDS_MAX];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(input, &mut fields) {
            Ok(httparse::Status::Complete(bytes)) if bytes <= self.bytes_max => {
                self.understood(input, &request, bytes).map_or(Parsed::Other, Parsed::Head)
            }
            Ok(httparse::Status::Partial) if input.len() < self.bytes_max => Parsed::Unfinished,
            _ => Parsed::Other,
        }
    }

    fn understood(
        &mut self,
        input: &[u8],
        request: &httparse::Request<'_, '_>,
        bytes: usize,
    ) -> Option<Head> {
        // Only a path: a proxy's form of a target names a host, too.
        let target = request.path.filter(|target| target.starts_with('/'))?;
        let (Some(1), Some(method)) = (request.version, request.method) else {
            return None;
        };
        let method = match Method::from_bytes(method.as_bytes()).ok()? {
            Method::HEAD | Method::CONNECT | Method::OPTIONS => return None,
            method => method,
        };
        let place = |part: &[u8]| {
            let from = part.as_ptr().addr() - input.as_ptr().addr();
            from..from + part.len()
        };
        self.target = place(target.as_bytes());
        self.fields.clear();
        let mut head = Head { method, bytes, body_bytes: 0, closes: false };
        let mut length = None;
        for field in &*request.headers {
            match plain(field, &mut length) {
                Plain::Yes => {}
                Plain::Closes => head.closes = true,
                Plain::No => return None,
            }
            self.fields.push((place(field.name.as_bytes()), place(field.value)));
        }
        head.body_bytes = length.unwrap_or(0);
        Some(head)
    }

    /// The path that the head asks for, without its query.
    pub fn path<'a>(&self, input: &'a [u8]) -> &'a str {
        let target = input.get(self.target.clone()).unwrap_or_default();
        let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
        std::str::from_utf8(path).unwrap_or_default()
    }

    /// The last head and its body as a request; none where a part of it is none of HTTP's.
    pub fn request(&self, head: &Head, bytes: &Bytes, body: Body) -> Option<Request> {
        let mut fields = HeaderMap::with_capacity(self.fields.len());
        for (name, value) in &self.fields {
            let name = HeaderName::from_bytes(bytes.get(name.clone())?).ok()?;
            let value = HeaderValue::from_maybe_shared(bytes.slice(value.clone())).ok()?;
            fields.append(name, value);
        }
        let mut request = Request::new(body);
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = Uri::from_maybe_shared(bytes.slice(self.target.clone())).ok()?;
        *request.version_mut() = Version::HTTP_11;
        *request.headers_mut() = fields;
        Some(request)
    }
}

/// Whether a field leaves the request as plain as it is.
enum Plain {
    Yes,
    Closes,
    No,
}

fn plain(field: &httparse::Header<'_>, length: &mut Option<usize>) -> Plain {
    let is = |name: &str| field.name.eq_ignore_ascii_case(name);
    let says = |word: &str| field.value.eq_ignore_ascii_case(word.as_bytes());
    match field.name.len() {
        6 if is("expect") => Plain::No,
        7 if is("upgrade") => Plain::No,
        10 if is("connection") && says("close") => Plain::Closes,
        10 if is("connection") && !says("keep-alive") => Plain::No,
        12 if is("content-type") && is_grpc(field.value) => Plain::No,
        14 if is("content-length") => match (number(field.value), &length) {
            (Some(bytes), None) => {
                *length = Some(bytes);
                Plain::Yes
            }
            _ => Plain::No,
        },
        17 if is("transfer-encoding") => Plain::No,
        _ => Plain::Yes,
    }
}

fn is_grpc(content_type: &[u8]) -> bool {
    let grpc = b"application/grpc";
    content_type.get(..grpc.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(grpc))
}

/// A whole number in digits alone, and not a longer one than any body's.
fn number(text: &[u8]) -> Option<usize> {
    let digits = !text.is_empty() && text.len() <= 9 && text.iter().all(u8::is_ascii_digit);
    digits.then(|| text.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (HeadReader, Parsed) {
        let mut heads = HeadReader::new(16 * 1024);
        let parsed = heads.read(text.as_bytes());
        (heads, parsed)
    }

    #[test]
    fn a_plain_request_is_read_however_it_is_cut() {
        let text = "POST /v1/hydrate?at_least=x%20y HTTP/1.1\r\nHost: localhost:7420\r\n\
                    Content-Length: 2\r\nX-Own:  a b \r\nconnection: Keep-Alive\r\n\r\n";
        for cut in 0..text.len() {
            assert!(matches!(read(&text[..cut]).1, Parsed::Unfinished), "cut at {cut}");
        }
        let (heads, parsed) = read(&format!("{text}{{}}GET"));
        let Parsed::Head(head) = parsed else { panic!("it is plain") };
        assert_eq!((head.bytes, head.body_bytes, head.closes), (text.len(), 2, false));
        assert_eq!(heads.path(text.as_bytes()), "/v1/hydrate");
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let request = heads.request(&head, &bytes, Body::empty()).unwrap();
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/v1/hydrate?at_least=x%20y");
        assert_eq!(request.headers()["x-own"], "a b");
        assert_eq!(request.headers()["host"], "localhost:7420");
        assert_eq!(request.headers().len(), 4);
    }

    #[test]
    fn what_is_not_plain_is_left_to_others() {
        let with = |fields: &str| format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{fields}\r\n");
        for other in [
            with("transfer-encoding: chunked\r\n"),
            with("content-length: 1\r\ncontent-length: 1\r\n"),
            with("content-length: +1\r\n"),
            with("content-length: 1, 1\r\n"),
            with("content-length: \r\n"),
            with("content-length: 99999999999999999999\r\n"),
            with("Expect: 100-continue\r\n"),
            with("upgrade: h2c\r\n"),
            with("connection: upgrade\r\n"),
            with("content-type: Application/gRPC+proto\r\n"),
            with("bad name: x\r\n"),
            with(" folded\r\n"),
            with(&"a: b\r\n".repeat(HEADER_FIELDS_MAX)),
            with(&format!("a: {}\r\n", "b".repeat(16 * 1024))),
            "GET /healthz HTTP/1.0\r\n\r\n".into(),
            "GET http://localhost/healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".into(),
            "HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n".into(),
            "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n".into(),
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
            "\x16\x03\x01\x02".into(),
        ] {
            assert!(matches!(read(&other).1, Parsed::Other), "{other:?}");
        }
        let (_, closing) = read(&with("connection: close\r\n"));
        assert!(matches!(closing, Parsed::Head(Head { closes: true, .. })));
    }
}
