//! One edge as a source has it, and the line that is imported for it. What a line may say is the
//! server's to decide: a value that is no id or no time is passed on as it is, and comes back as a
//! rejected line.

use guanxi_api::{Id, Time};
use guanxi_model::Millis;
use serde::Serialize;

/// Below it a number is a time in seconds, from it on one in milliseconds: the year 5138, and
/// March 1973.
const SECONDS_END: f64 = 1e11;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowState {
    Live,
    Pending,
}

impl RowState {
    pub fn name(self) -> &'static str {
        match self {
            RowState::Live => "live",
            RowState::Pending => "pending",
        }
    }
}

/// In what a number tells a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Unit {
    /// Seconds or milliseconds, whichever the number must be.
    Auto,
    /// Seconds.
    S,
    /// Milliseconds.
    Ms,
    /// The number is no time.
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRow {
    /// None where the source has NULL.
    pub source: Option<String>,
    pub target: Option<String>,
    /// An error carries a status that the mapping does not know.
    pub state: Result<RowState, String>,
    pub since: Option<String>,
    /// The outer None where the mapping names no such column.
    pub group: Option<Option<String>>,
    pub owner: Option<Option<String>>,
    pub data: Option<Option<String>>,
    /// Where the source has it, for a person.
    pub label: String,
}

impl SourceRow {
    /// An edge that is live and has nothing but its ends.
    pub fn plain(source: Option<String>, target: Option<String>, label: String) -> SourceRow {
        let state = Ok(RowState::Live);
        SourceRow {
            source,
            target,
            state,
            since: None,
            group: None,
            owner: None,
            data: None,
            label,
        }
    }

    /// The line as NDJSON, without a line break.
    pub fn line(&self, kind: &str) -> Vec<u8> {
        let state = match &self.state {
            Ok(state) => state.name(),
            Err(unknown) => unknown,
        };
        let SourceRow { source, target, since, group, owner, data, .. } = self;
        let [source, target, since] = [source, target, since].map(Option::as_deref);
        let line = SourceLine { kind, source, target, state, since, group, owner, data };
        // Text and nothing else can always be written.
        serde_json::to_vec(&line).unwrap_or_default()
    }

    /// Both ends, if they are ids.
    pub fn ends(&self) -> Option<(u64, u64)> {
        let end = |text: &Option<String>| Id::parse(text.as_deref()?, "").ok().map(|id| id.0);
        Some((end(&self.source)?, end(&self.target)?))
    }
}

#[derive(Serialize)]
struct SourceLine<'a> {
    kind: &'a str,
    source: Option<&'a str>,
    target: Option<&'a str>,
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: &'a Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: &'a Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: &'a Option<Option<String>>,
}

/// The time that a number tells; none for 0 and below, which stand for no time. What can be no
/// time is passed on as it is, to be rejected.
pub fn time_of(number: f64, unit: Unit) -> Option<String> {
    let millis = match unit {
        Unit::None => return None,
        Unit::Ms => number,
        Unit::S => number * 1_000.0,
        Unit::Auto if number < SECONDS_END => number * 1_000.0,
        Unit::Auto => number,
    };
    if !millis.is_finite() {
        return Some(number.to_string());
    }
    (millis > 0.0).then(|| Time(Millis(millis.round() as u64)).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn numbers_are_seconds_or_milliseconds() {
        let cases = [
            (1_700_000_000.0, Unit::Auto, Some("2023-11-14T22:13:20.000Z")),
            (1_700_000_000_123.0, Unit::Auto, Some("2023-11-14T22:13:20.123Z")),
            (1_700_000_000.5, Unit::S, Some("2023-11-14T22:13:20.500Z")),
            (1_000.0, Unit::Ms, Some("1970-01-01T00:00:01.000Z")),
            (0.0, Unit::Auto, None),
            (-5.0, Unit::Auto, None),
            (5.0, Unit::None, None),
            (f64::INFINITY, Unit::Auto, Some("inf")),
        ];
        for (number, unit, expected) in cases {
            assert_eq!(time_of(number, unit).as_deref(), expected, "{number} {unit:?}");
        }
    }

    #[test]
    fn a_line_says_what_the_row_has() {
        let row = SourceRow {
            state: Err("7".to_owned()),
            group: Some(Some("a\"b\n朋".to_owned())),
            data: Some(None),
            ..SourceRow::plain(Some("-1".to_owned()), None, String::new())
        };
        let line: Value = serde_json::from_slice(&row.line("follow")).unwrap();
        let expected = json!({
            "kind": "follow", "source": "-1", "target": null, "state": "7",
            "group": "a\"b\n朋", "data": null,
        });
        assert_eq!(line, expected);
        assert!(!row.line("follow").contains(&b'\n'));
        assert_eq!(row.ends(), None);
        let row = SourceRow::plain(Some("1".to_owned()), Some("2".to_owned()), String::new());
        assert_eq!(row.ends(), Some((1, 2)));
        for wrong in ["0", "-1", "18446744073709551616", "1.0", "x", ""] {
            let row = SourceRow { target: Some(wrong.to_owned()), ..row.clone() };
            assert_eq!(row.ends(), None, "{wrong}");
        }
    }
}
