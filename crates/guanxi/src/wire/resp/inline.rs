//! Commands as people type them: words of one line, quoted where they hold spaces. And what a web
//! page sends when it speaks to a port that is not HTTP's: its first line tells it.

use std::ops::Range;

/// Whether the line is the beginning of a request of HTTP, or one of its fields.
pub fn is_http(line: &[u8]) -> bool {
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let Some(first) = words.next() else {
        return false;
    };
    let last = words.next_back().unwrap_or(first);
    first.ends_with(b":")
        || first.eq_ignore_ascii_case(b"POST")
        || last.get(..5).is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"HTTP/"))
}

/// Cuts the line into words and unquotes them in their place; false when a quote does not end where a
/// word does. In double quotes a backslash stands before what is meant: `\n`, `\r`, `\t`, `\b`, `\a`,
/// two hexadecimal digits behind `\x`, or the character itself.
pub fn split(line: &mut [u8], words: &mut Vec<Range<usize>>) -> bool {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        if at >= line.len() {
            return true;
        }
        let begin = at;
        let mut end = begin;
        match line[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                loop {
                    let Some(byte) = line.get(at).copied() else {
                        return false;
                    };
                    at += 1;
                    let meant = match byte {
                        b'\\' if quote == b'"' => escaped(line, &mut at),
                        b'\\' if line.get(at) == Some(&b'\'') => {
                            at += 1;
                            Some(b'\'')
                        }
                        end_quote if end_quote == quote => break,
                        plain => Some(plain),
                    };
                    let Some(meant) = meant else {
                        return false;
                    };
                    line[end] = meant;
                    end += 1;
                }
                if line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                    return false;
                }
            }
            _ => {
                while line.get(at).is_some_and(|byte| !byte.is_ascii_whitespace()) {
                    at += 1;
                }
                end = at;
            }
        }
        words.push(begin..end);
    }
}

/// What the characters behind a backslash stand for.
fn escaped(line: &[u8], at: &mut usize) -> Option<u8> {
    let byte = *line.get(*at)?;
    *at += 1;
    Some(match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        b'x' => {
            let digit = |at: usize| char::from(*line.get(at)?).to_digit(16);
            match (digit(*at), digit(*at + 1)) {
                (Some(high), Some(low)) => {
                    *at += 2;
                    (high * 16 + low) as u8
                }
                _ => b'x',
            }
        }
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Option<Vec<String>> {
        let mut bytes = line.as_bytes().to_vec();
        let mut places = Vec::new();
        let balanced = split(&mut bytes, &mut places);
        let text =
            |place: &Range<usize>| String::from_utf8_lossy(&bytes[place.clone()]).into_owned();
        balanced.then(|| places.iter().map(text).collect())
    }

    #[test]
    fn words_are_told_apart_and_unquoted() {
        for (line, meant) in [
            ("", Some(&[][..])),
            ("  \t ", Some(&[])),
            ("PING", Some(&["PING"])),
            ("  a\tb  c ", Some(&["a", "b", "c"])),
            (r#"a "b c" d"#, Some(&["a", "b c", "d"])),
            (r#""" ''"#, Some(&["", ""])),
            (r#""\x41\n\"\\\q" '\'\n'"#, Some(&["A\n\"\\q", "'\\n"])),
            (r#""\x4""#, Some(&["x4"])),
            (r#"a"b c"#, Some(&["a\"b", "c"])),
            (r#""a"#, None),
            (r#""a\"#, None),
            (r#""a"b"#, None),
            ("'a", None),
            ("\"朋友\" é", Some(&["朋友", "é"])),
        ] {
            let meant = meant.map(|words| words.iter().map(|w| (*w).to_owned()).collect());
            assert_eq!(words(line), meant, "{line}");
        }
    }

    #[test]
    fn a_web_page_is_known_by_its_first_line() {
        for line in [
            "POST / HTTP/1.1\r",
            "post /x",
            "GET / HTTP/1.1\r",
            "PUT /GX.PUT http/1.0",
            "PRI * HTTP/2.0\r",
            "Host: 127.0.0.1:7421\r",
            "content-type: text/plain",
        ] {
            assert!(is_http(line.as_bytes()), "{line}");
        }
        for line in ["", "PING", "GX.GET follow 1 2\r", "ECHO http"] {
            assert!(!is_http(line.as_bytes()), "{line}");
        }
    }
}
