//! Ids on the wire: unsigned 64-bit numbers from 1, sent as strings (a JSON reader may round a
//! number) and accepted as strings or whole numbers.

use std::borrow::Cow;
use std::fmt;

use guanxi_model::Error;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema::{one_of, text};

/// Exactly the decimal texts of 1 to 2^64−1, so that a generated id is never out of range.
pub const ID_PATTERN: &str = "^([1-9][0-9]{0,18}|1[0-7][0-9]{18}|18[0-3][0-9]{17}|\
184[0-3][0-9]{16}|1844[0-5][0-9]{15}|18446[0-6][0-9]{14}|184467[0-3][0-9]{13}|\
1844674[0-3][0-9]{12}|184467440[0-6][0-9]{10}|1844674407[0-2][0-9]{9}|18446744073[0-6][0-9]{8}|\
1844674407370[0-8][0-9]{6}|18446744073709[0-4][0-9]{5}|184467440737095[0-4][0-9]{4}|\
18446744073709550[0-9]{3}|18446744073709551[0-5][0-9]{2}|1844674407370955160[0-9]|\
1844674407370955161[0-5])$";

const RANGE: &str = "an id is a whole number from 1 to 18446744073709551615 without leading zeros";
/// A number with a point or an exponent reaches us rounded. Below this, 2^50, whole ones stand so
/// far apart from each other that none is taken for its neighbour.
const FLOAT_EXACT_END: f64 = 1_125_899_906_842_624.0;
/// How much of a wrong id an error repeats.
const SHOWN_CHARS_MAX: usize = 40;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(pub u64);

impl Id {
    /// Reads an id from a path or a string; `what` names it in the error.
    pub fn parse(text: &str, what: &str) -> Result<Id, Error> {
        Id::of_digits(text.as_bytes()).ok_or_else(|| {
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            Error::invalid(format!("{what}: '{shown}' is no id; {RANGE}"))
        })
    }

    /// Reads an id; none where the bytes are not exactly its digits.
    pub fn of_digits(bytes: &[u8]) -> Option<Id> {
        let mut number: u64 = 0;
        for byte in bytes {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            number = number.checked_mul(10)?.checked_add(u64::from(digit))?;
        }
        let leads_with_zero = bytes.first().is_none_or(|first| *first == b'0');
        (!leads_with_zero).then_some(Id(number))
    }

    /// Takes a number as an id, which all but 0 are.
    pub fn from_number(number: u64, what: &str) -> Result<Id, Error> {
        match number {
            0 => Err(Error::invalid(format!("{what}: '0' is no id; {RANGE}"))),
            _ => Ok(Id(number)),
        }
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        deserializer.deserialize_any(IdVisitor)
    }
}

pub(crate) struct IdVisitor;

impl Visitor<'_> for IdVisitor {
    type Value = Id;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id: a string or a whole number from 1 to 18446744073709551615")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Id, E> {
        Id::parse(text, "an id").map_err(|error| E::custom(error.message))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Id, E> {
        match number {
            0 => Err(E::custom(format_args!("0 is no id; {RANGE}"))),
            _ => Ok(Id(number)),
        }
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Id, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::custom(format_args!("{number} is no id; {RANGE}"))),
        }
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Id, E> {
        if number.fract() == 0.0 && (1.0..FLOAT_EXACT_END).contains(&number) {
            return Ok(Id(number as u64));
        }
        if number >= FLOAT_EXACT_END {
            return Err(E::custom(format_args!(
                "{number:e} is no id: with a point or an exponent, or beyond 18446744073709551615, \
                 a number is rounded; write the id in digits, best as a string"
            )));
        }
        Err(E::custom(format_args!("{number} is no id; {RANGE}")))
    }
}

impl PartialSchema for Id {
    fn schema() -> RefOr<Schema> {
        let number = ObjectBuilder::new()
            .schema_type(Type::Integer)
            .minimum(Some(1_u64))
            .maximum(Some(u64::MAX));
        one_of([id_text(), RefOr::T(Schema::from(number))])
    }
}

impl ToSchema for Id {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Id")
    }
}

/// An id in an answer or a path: always text.
#[derive(Debug)]
pub struct IdText;

pub fn id_text() -> RefOr<Schema> {
    let schema = text(ID_PATTERN, "An id from 1 to 2^64−1.");
    RefOr::T(Schema::from(schema))
}

impl PartialSchema for IdText {
    fn schema() -> RefOr<Schema> {
        id_text()
    }
}

impl ToSchema for IdText {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("IdText")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_texts_or_whole_numbers_from_one() {
        let cases = [
            ("\"1\"", Some(1)),
            ("1", Some(1)),
            ("1.0", Some(1)),
            ("1e3", Some(1000)),
            ("18446744073709551615", Some(u64::MAX)),
            ("\"18446744073709551615\"", Some(u64::MAX)),
            ("\"9007199254740993\"", Some(9_007_199_254_740_993)),
            ("9007199254740993", Some(9_007_199_254_740_993)),
            ("0", None),
            ("\"0\"", None),
            ("-1", None),
            ("\"-1\"", None),
            ("\"+1\"", None),
            ("\"01\"", None),
            ("\" 1\"", None),
            ("\"\"", None),
            ("1.5", None),
            ("1125899906842623.0", Some((1 << 50) - 1)),
            ("1125899906842624.0", None),
            ("1e16", None),
            ("9007199254740992.0", None),
            ("9007199254740993.0", None),
            ("10000000000000000", Some(10_000_000_000_000_000)),
            ("18446744073709551616", None),
            ("\"18446744073709551616\"", None),
            ("1e300", None),
            ("null", None),
            ("true", None),
            ("[]", None),
            ("\"１\"", None),
        ];
        for (json, expected) in cases {
            let read = serde_json::from_str::<Id>(json).ok();
            assert_eq!(read, expected.map(Id), "{json}");
        }
        assert_eq!(serde_json::to_string(&Id(u64::MAX)).unwrap(), "\"18446744073709551615\"");
    }

    #[test]
    fn errors_name_the_id_and_its_range() {
        let error = Id::parse("0", "source").unwrap_err();
        assert_eq!(
            error.message,
            "source: '0' is no id; an id is a whole number from 1 to 18446744073709551615 without \
             leading zeros"
        );
        let error = serde_json::from_str::<Id>("1e16").unwrap_err().to_string();
        assert!(error.contains("1e16 is no id") && error.contains("as a string"), "{error}");
        let error = serde_json::from_str::<Id>("{}").unwrap_err();
        assert!(error.to_string().contains("a string or a whole number"));
    }
}
