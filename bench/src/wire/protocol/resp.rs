//! RESP as far as a client needs it: commands, where replies end, and what they say.

use anyhow::{Context as _, bail};
use memchr::memmem;

use crate::wire::protocol::http::shown;

/// Replies nest no deeper in what is asked here.
const DEPTH_MAX: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Text(Vec<u8>),
    Number(i64),
    Nothing,
    Error(String),
    Many(Vec<Reply>),
}

/// Writes a command of these words.
pub fn command<W: AsRef<[u8]>>(words: impl AsRef<[W]>, to: &mut Vec<u8>) {
    let words = words.as_ref();
    to.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        let word = word.as_ref();
        to.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        to.extend_from_slice(word);
        to.extend_from_slice(b"\r\n");
    }
}

/// Bytes of so many replies, if all of them are there. An error as one of them is an error here.
pub fn length(bytes: &[u8], replies: usize) -> anyhow::Result<Option<usize>> {
    let (mut place, mut left) = (0, replies);
    while left > 0 {
        let Some((kind, line, after)) = line(bytes, place)? else { return Ok(None) };
        left -= 1;
        place = after;
        match kind {
            b'+' | b':' | b'_' | b',' | b'#' => {}
            b'-' => bail!("an error: {}", shown(line)),
            b'$' | b'=' => {
                let length = number(line)?;
                if length >= 0 {
                    place += length as usize + 2;
                }
            }
            b'*' | b'~' | b'>' => left += number(line)?.max(0) as usize,
            b'%' => left += 2 * number(line)?.max(0) as usize,
            _ => bail!("no reply: {}", shown(&bytes[..bytes.len().min(100)])),
        }
        if place > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(place))
}

/// Reads so many replies, which are all there.
pub fn replies(bytes: &[u8], count: usize) -> anyhow::Result<Vec<Reply>> {
    let mut place = 0;
    (0..count).map(|_| reply(bytes, &mut place, 0)).collect()
}

fn reply(bytes: &[u8], place: &mut usize, depth: usize) -> anyhow::Result<Reply> {
    anyhow::ensure!(depth < DEPTH_MAX, "replies nest deeper than {DEPTH_MAX}");
    let (kind, line, after) = line(bytes, *place)?.context("a reply is cut off")?;
    *place = after;
    let many = |count: i64, place: &mut usize| -> anyhow::Result<Reply> {
        let items: anyhow::Result<Vec<Reply>> =
            (0..count).map(|_| reply(bytes, place, depth + 1)).collect();
        Ok(Reply::Many(items?))
    };
    Ok(match kind {
        b'+' | b',' => Reply::Text(line.to_vec()),
        b':' => Reply::Number(number(line)?),
        b'#' => Reply::Number(i64::from(line == b"t")),
        b'_' => Reply::Nothing,
        b'-' => Reply::Error(shown(line)),
        b'$' | b'=' => match usize::try_from(number(line)?) {
            Err(_) => Reply::Nothing,
            Ok(length) => {
                let text = bytes.get(*place..*place + length).context("a reply is cut off")?;
                *place += length + 2;
                Reply::Text(text.to_vec())
            }
        },
        b'*' if number(line)? < 0 => Reply::Nothing,
        b'*' | b'~' | b'>' => many(number(line)?, place)?,
        b'%' => many(2 * number(line)?, place)?,
        _ => bail!("no reply: {}", shown(line)),
    })
}

/// The kind of what begins there, the rest of its line, and the place after it.
type Begun<'a> = (u8, &'a [u8], usize);

fn line(bytes: &[u8], place: usize) -> anyhow::Result<Option<Begun<'_>>> {
    let Some(rest) = bytes.get(place..) else { return Ok(None) };
    let Some(length) = memmem::find(rest, b"\r\n") else { return Ok(None) };
    let (kind, line) = rest[..length].split_first().context("an empty line instead of a reply")?;
    Ok(Some((*kind, line, place + length + 2)))
}

fn number(line: &[u8]) -> anyhow::Result<i64> {
    std::str::from_utf8(line)
        .ok()
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("no number: {}", shown(line)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: &[u8] = b"*3\r\n$2\r\n\r\n\r\n$-1\r\n*1\r\n:7\r\n+PONG\r\n$0\r\n\r\n";

    #[test]
    fn replies_end_where_they_do() {
        for cut in 0..REPLIES.len() {
            assert_eq!(length(&REPLIES[..cut], 3).expect("so far so good"), None, "{cut}");
        }
        assert_eq!(length(REPLIES, 3).expect("replies"), Some(REPLIES.len()));
        assert_eq!(length(REPLIES, 2).expect("replies"), Some(REPLIES.len() - 6));
        assert!(length(b"-ERR no\r\n", 1).is_err());
        assert!(length(b"*2\r\n:1\r\n-ERR no\r\n", 1).is_err());
        assert!(length(b"HTTP/1.1\r\n", 1).is_err());
    }

    #[test]
    fn replies_say_what_they_say() {
        let Ok(read) = replies(REPLIES, 3) else { panic!("replies") };
        let nested = Reply::Many(vec![Reply::Number(7)]);
        let first = vec![Reply::Text(b"\r\n".to_vec()), Reply::Nothing, nested];
        let texts = [Reply::Text(b"PONG".to_vec()), Reply::Text(Vec::new())];
        let [second, third] = texts;
        assert_eq!(read, [Reply::Many(first), second, third]);
        assert!(replies(&REPLIES[..9], 1).is_err());
    }

    #[test]
    fn a_command_has_its_words() {
        let mut bytes = Vec::new();
        command(["GET", "a"], &mut bytes);
        assert_eq!(bytes, b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
    }
}
