//! HTTP/1.1 as far as a client of one server needs it: where an answer ends, and what it says.

use memchr::memmem;

/// An answer's head and body.
pub struct Parts<'a> {
    pub status: u16,
    pub body: &'a [u8],
    /// Bytes of both.
    pub length: usize,
}

/// The first answer of these bytes, if it is whole. Answers say their length; who sends chunks is
/// refused.
pub fn answer(bytes: &[u8]) -> anyhow::Result<Option<Parts<'_>>> {
    let Some(head_length) = memmem::find(bytes, b"\r\n\r\n") else { return Ok(None) };
    let (head, rest) = (&bytes[..head_length], &bytes[head_length + 4..]);
    let status = head
        .strip_prefix(b"HTTP/1.1 ")
        .and_then(|line| std::str::from_utf8(line.get(..3)?).ok()?.parse().ok())
        .ok_or_else(|| anyhow::anyhow!("no answer of HTTP/1.1: {}", shown(head)))?;
    let length = content_length(head)
        .ok_or_else(|| anyhow::anyhow!("an answer without a length: {}", shown(head)))?;
    let whole = rest.get(..length);
    Ok(whole.map(|body| Parts { status, body, length: head_length + 4 + length }))
}

fn content_length(head: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"content-length:";
    let lines = memchr::memchr_iter(b'\n', head).map(|end| &head[end + 1..]);
    let mut named = lines.filter(|line| {
        line.get(..NAME.len()).is_some_and(|start| start.eq_ignore_ascii_case(NAME))
    });
    let value = &named.next()?[NAME.len()..];
    let value = value.split(|byte| *byte == b'\r').next()?;
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

pub fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(400)]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_ends_where_its_length_says() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nx: y\r\n\r\nhelloHTTP/1.1";
        for cut in 0..bytes.len() - 8 {
            assert!(answer(&bytes[..cut]).expect("so far so good").is_none(), "{cut}");
        }
        let parts = answer(bytes).expect("an answer").expect("a whole one");
        assert_eq!((parts.status, parts.body, parts.length), (200, &b"hello"[..], bytes.len() - 8));
    }

    #[test]
    fn other_answers_are_refused() {
        assert!(answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(answer(b"SSH-2.0\r\n\r\n").is_err());
    }

    #[test]
    fn a_refusal_has_its_status() {
        let bytes = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        let parts = answer(bytes).expect("an answer").expect("a whole one");
        assert_eq!(parts.status, 503);
    }
}
