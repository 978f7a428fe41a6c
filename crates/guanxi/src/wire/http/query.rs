//! Query parameters: each is known, given at most once, and exactly of its form.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use guanxi_api::Time;
use guanxi_api::number::in_range;
use guanxi_model::{Error, Millis};
use percent_encoding::percent_decode_str;

/// The parameter that every call takes: the token of a write that must be seen.
pub const AT_LEAST: &str = "at_least";
/// How much of an unknown name an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug)]
pub struct Query<'a> {
    pairs: Vec<(&'static str, Cow<'a, str>)>,
}

impl<'a> Query<'a> {
    /// Reads a query string that may have these parameters and `at_least`.
    pub fn parse(text: Option<&'a str>, known: &[&'static str]) -> Result<Query<'a>, Error> {
        let mut pairs: Vec<(&'static str, Cow<'a, str>)> = Vec::new();
        for pair in text.unwrap_or("").split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decoded(name)?;
            let mut names = known.iter().copied().chain([AT_LEAST]);
            let Some(known_name) = names.find(|known| *known == name) else {
                return Err(unknown(&name, known));
            };
            if pairs.iter().any(|(given, _)| *given == known_name) {
                return Err(Error::invalid(format!(
                    "{known_name}: this query parameter is given more than once"
                )));
            }
            pairs.push((known_name, decoded(value)?));
        }
        Ok(Query { pairs })
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        let found = self.pairs.iter().find(|(given, _)| *given == name);
        found.map(|(_, value)| value.as_ref())
    }

    /// `true` or `false`; absent is false.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.text(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Error::invalid(format!("{name}: it is true or false"))),
        }
    }

    pub fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Error> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten();
        in_range(name, number, &range).map(Some)
    }

    pub fn time(&self, name: &str) -> Result<Option<Millis>, Error> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        Time::parse_bound(text, name).map(|time| Some(time.0))
    }

    /// One of a few words.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<Option<T>, Error> {
        let Some(text) = self.text(name) else {
            return Ok(None);
        };
        match words.iter().find(|(word, _)| *word == text) {
            Some((_, meaning)) => Ok(Some(*meaning)),
            None => {
                let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
                Err(Error::invalid(format!("{name}: it is {}", words.join(" or "))))
            }
        }
    }
}

fn unknown(name: &str, known: &[&'static str]) -> Error {
    let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
    let mut names: Vec<&str> = known.to_vec();
    names.push(AT_LEAST);
    Error::invalid(format!(
        "{shown}: unknown query parameter; this call takes {}",
        names.join(", ")
    ))
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Error> {
    let wrong = |_| Error::invalid("the query string is not UTF-8");
    if !text.contains('+') {
        return percent_decode_str(text).decode_utf8().map_err(wrong);
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().map_err(wrong)?;
    Ok(Cow::Owned(decoded.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_known_single_and_decoded() {
        let query = Query::parse(Some("group=a%20b+c&limit=5&&at_least=x"), &["group", "limit"]);
        let query = query.unwrap();
        assert_eq!(query.text("group"), Some("a b c"));
        assert_eq!(query.text(AT_LEAST), Some("x"));
        assert_eq!(query.number("limit", 1..=10), Ok(Some(5)));
        let refused = |text| Query::parse(Some(text), &["limit"]).unwrap_err().message;
        assert_eq!(
            refused("limits=5"),
            "limits: unknown query parameter; this call takes limit, at_least"
        );
        assert!(refused("limit=1&limit=2").starts_with("limit: "));
        assert!(refused("limit=%ff").contains("UTF-8"));
    }

    #[test]
    fn values_are_exact() {
        let query = |text| Query::parse(Some(text), &["n", "f", "t", "w"]).unwrap();
        for bad in ["n=0", "n=11", "n=", "n=+1", "n=-1", "n=x", "n=1.0"] {
            let message = query(bad).number("n", 1..=10).unwrap_err().message;
            assert_eq!(message, "n: it is a whole number from 1 to 10");
        }
        assert_eq!(query("f=true").flag("f"), Ok(true));
        assert!(query("f=1").flag("f").is_err());
        assert!(query("t=yesterday").time("t").is_err());
        let words = [("a", 1), ("b", 2)];
        assert_eq!(query("w=b").word("w", &words), Ok(Some(2)));
        let message = query("w=c").word("w", &words).unwrap_err().message;
        assert_eq!(message, "w: it is a or b");
    }
}
