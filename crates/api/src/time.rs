//! Time on the wire: RFC 3339, sent in UTC with milliseconds, accepted with any offset.

use std::borrow::Cow;
use std::fmt;

use guanxi_model::limits::TIME_MAX;
use guanxi_model::{Error, Millis};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use utoipa::openapi::schema::{KnownFormat, ObjectBuilder, SchemaFormat, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

const DAY_MS: i64 = 86_400_000;
/// How much of a wrong time an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub Millis);

impl Time {
    /// Reads a time from a parameter or a string; `what` names it in the error. What lies before
    /// 1970 counts as its beginning, and what no row can hold as the moment after all rows.
    /// A bound of a range: finer than a millisecond, it is the next one, as rows have whole ones.
    pub fn parse_bound(text: &str, what: &str) -> Result<Time, Error> {
        let time = Time::parse(text, what)?;
        let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
        let digits = fraction.bytes().take_while(u8::is_ascii_digit);
        let finer = digits.skip(3).any(|digit| digit != b'0');
        Ok(Time(time.0.saturating_add(u64::from(finer))))
    }

    pub fn parse(text: &str, what: &str) -> Result<Time, Error> {
        let millis = read(text.as_bytes()).ok_or_else(|| {
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            Error::invalid(format!(
                "{what}: '{shown}' is no RFC 3339 time such as 2026-01-31T12:00:00.000Z"
            ))
        })?;
        Ok(Time::clamped(millis))
    }

    /// Takes seconds and nanoseconds since 1970, with the same rules as `parse`.
    pub fn from_parts(seconds: i64, nanos: u32) -> Time {
        let millis = seconds.saturating_mul(1_000);
        Time::clamped(millis.saturating_add(i64::from(nanos / 1_000_000)))
    }

    fn clamped(millis: i64) -> Time {
        let last = TIME_MAX.0 as i64 + 1;
        Time(Millis(millis.clamp(0, last) as u64))
    }

    /// `2026-01-31T12:00:00.000Z`, always 24 bytes up to the year 9999.
    pub fn to_bytes(self) -> [u8; 24] {
        let millis = self.0.0.min(TIME_MAX.0) as i64;
        let (year, month, day) = date_of(millis / DAY_MS);
        let in_day = millis % DAY_MS;
        let mut out = *b"0000-00-00T00:00:00.000Z";
        let mut number = |at: usize, digits: usize, mut value: i64| {
            for place in (at..at + digits).rev() {
                out[place] = b'0' + (value % 10) as u8;
                value /= 10;
            }
        };
        number(0, 4, year);
        number(5, 2, month);
        number(8, 2, day);
        number(11, 2, in_day / 3_600_000);
        number(14, 2, in_day / 60_000 % 60);
        number(17, 2, in_day / 1_000 % 60);
        number(20, 3, in_day % 1_000);
        out
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.to_bytes()).map_err(|_| fmt::Error)?)
    }
}

/// Milliseconds since 1970 of an RFC 3339 text; digits past the milliseconds are dropped.
fn read(text: &[u8]) -> Option<i64> {
    let digits = |at: usize, count: usize| -> Option<i64> {
        let part = text.get(at..at + count)?;
        part.iter().try_fold(0_i64, |value, byte| {
            byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
        })
    };
    let is = |at: usize, expected: &[u8]| text.get(at).is_some_and(|byte| expected.contains(byte));
    let marks = is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":");
    let (year, month, day) = (digits(0, 4)?, digits(5, 2)?, digits(8, 2)?);
    let (hour, minute, second) = (digits(11, 2)?, digits(14, 2)?, digits(17, 2)?);
    // A leap second is taken as the second before it: our clock has none.
    let in_range = (1..=12).contains(&month)
        && (1..=days_in(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !marks || !in_range {
        return None;
    }
    let mut at = 19;
    let mut fraction = 0;
    if is(at, b".") {
        let begin = at + 1;
        let count = text[begin..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if count == 0 {
            return None;
        }
        let kept = count.min(3);
        fraction = digits(begin, kept)? * 10_i64.pow(3 - kept as u32);
        at = begin + count;
    }
    let offset_minutes = match text.get(at)? {
        b'Z' | b'z' if text.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if text.len() == at + 6 && is(at + 3, b":") => {
            let (hours, minutes) = (digits(at + 1, 2)?, digits(at + 4, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let ahead = hours * 60 + minutes;
            if *sign == b'+' { ahead } else { -ahead }
        }
        _ => return None,
    };
    let in_day = ((hour * 60 + minute - offset_minutes) * 60 + second.min(59)) * 1_000 + fraction;
    Some(days_to(year, month, day) * DAY_MS + in_day)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date. Years are counted from March, so that the leap day is the last.
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let from_march = (month + 9) % 12;
    let year = year - i64::from(month <= 2);
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // 306 days lie from March to the end of a year; 719,468 from 0000-03-01 to 1970-01-01.
    year * 365 + leap_days + (from_march * 306 + 5) / 10 + day - 1 - 719_468
}

/// The date that lies so many days after 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    // The mean year tells the year to within one; days_to corrects it.
    let mut year = 1970 + days * 400 / 146_097;
    if days_to(year, 1, 1) > days {
        year -= 1;
    } else if days_to(year + 1, 1, 1) <= days {
        year += 1;
    }
    let mut month = 1;
    let mut day = days - days_to(year, 1, 1) + 1;
    while day > days_in(year, month) {
        day -= days_in(year, month);
        month += 1;
    }
    (year, month, day)
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.to_bytes()) {
            Ok(text) => serializer.serialize_str(text),
            Err(error) => Err(serde::ser::Error::custom(error)),
        }
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        deserializer.deserialize_str(TimeVisitor)
    }
}

struct TimeVisitor;

impl Visitor<'_> for TimeVisitor {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an RFC 3339 time")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        Time::parse(text, "a time").map_err(|error| E::custom(error.message))
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new()
            .schema_type(Type::String)
            .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
            .description(Some("RFC 3339; sent in UTC with milliseconds."));
        RefOr::T(Schema::from(object))
    }
}

impl ToSchema for Time {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(text: &str) -> Option<u64> {
        Time::parse(text, "since").ok().map(|time| time.0.0)
    }

    #[test]
    fn a_bound_finer_than_a_millisecond_is_the_next_one() {
        for (text, ms) in [
            ("1970-01-01T00:00:00.119Z", 119),
            ("1970-01-01T00:00:00.119000Z", 119),
            ("1970-01-01T00:00:00.119001Z", 120),
            ("1970-01-01T00:00:00.9999+00:00", 1_000),
        ] {
            assert_eq!(Time::parse_bound(text, "since").unwrap().0, Millis(ms), "{text}");
        }
    }

    #[test]
    fn texts_and_milliseconds_agree() {
        let cases = [
            ("1970-01-01T00:00:00.000Z", 0),
            ("2000-02-29T23:59:59.999Z", 951_868_799_999),
            ("2026-01-01T00:00:00.000Z", 1_767_225_600_000),
            ("2100-03-01T00:00:00.001Z", 4_107_542_400_001),
        ];
        for (text, expected) in cases {
            assert_eq!(millis(text), Some(expected), "{text}");
            assert_eq!(Time(Millis(expected)).to_string(), text);
        }
    }

    #[test]
    fn every_day_survives_its_text() {
        let last = TIME_MAX.0 / DAY_MS as u64;
        for day in 0..=last {
            let time = Time(Millis(day * DAY_MS as u64));
            let text = time.to_string();
            assert_eq!(millis(&text), Some(time.0.0), "{text}");
        }
    }

    #[test]
    fn other_forms_of_the_same_time_are_taken() {
        let expected = millis("2026-01-01T00:00:00.000Z");
        for text in [
            "2026-01-01T00:00:00Z",
            "2026-01-01t00:00:00z",
            "2026-01-01T00:00:00.0Z",
            "2026-01-01T00:00:00.000999999Z",
            "2026-01-01T08:00:00+08:00",
            "2025-12-31T16:30:00-07:30",
        ] {
            assert_eq!(millis(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused_with_an_example() {
        for text in [
            "",
            "yesterday",
            "1",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:60:00Z",
            "2026-01-01T00:00:00+24:00",
            "2026-01-01T00:00:00Zz",
            "２026-01-01T00:00:00Z",
        ] {
            let error = Time::parse(text, "since").unwrap_err();
            assert!(error.message.starts_with("since: "), "{text}");
            assert!(error.message.contains("RFC 3339"), "{text}");
        }
        assert_eq!(millis("0001-12-31T23:59:59Z"), Some(0));
        assert_eq!(millis("9999-01-01T00:00:00Z"), Some(TIME_MAX.0 + 1));
    }
}
