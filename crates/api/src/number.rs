//! Whole numbers, however JSON spells them: `5`, `5.0` and `5e0` are one number.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;

use guanxi_model::Error;
use serde::de::{self, Deserializer, Error as _, Visitor};

/// A number in its range; `None` is one that could not be read.
pub fn in_range(
    what: &str,
    number: Option<u64>,
    range: &RangeInclusive<u64>,
) -> Result<u64, Error> {
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (first, last) = (range.start(), range.end());
        Error::invalid(format!("{what}: it is a whole number from {first} to {last}"))
    })
}

/// For `#[serde(deserialize_with = "whole")]`: a whole number that the type can hold.
pub fn whole<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    let number = deserializer.deserialize_any(WholeVisitor(PhantomData::<T>))?;
    T::try_from(number).map_err(|_| D::Error::custom(format_args!("{number} is out of range")))
}

/// The same for a field that may be absent, though not null.
pub fn given_whole<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<i128>,
{
    whole(deserializer).map(Some)
}

/// For a number with rules of its own: what does not fit becomes the nearest that does.
pub fn whole_saturated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    let number = deserializer.deserialize_any(WholeVisitor(PhantomData::<i64>))?;
    Ok(number.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64)
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T> Visitor<'_> for WholeVisitor<T> {
    type Value = i128;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<i128, E> {
        Ok(i128::from(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<i128, E> {
        Ok(i128::from(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<i128, E> {
        if number.fract() == 0.0 {
            return Ok(number as i128);
        }
        Err(E::custom(format_args!("{number} is no whole number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "whole")]
        bounded: u32,
        #[serde(deserialize_with = "whole_saturated")]
        saturated: i64,
    }

    #[test]
    fn every_spelling_of_a_whole_number_is_read() {
        let read = |bounded: &str, saturated: &str| {
            let json = format!(r#"{{"bounded":{bounded},"saturated":{saturated}}}"#);
            let numbers = serde_json::from_str::<Numbers>(&json).ok()?;
            Some((numbers.bounded, numbers.saturated))
        };
        assert_eq!(read("5", "-7"), Some((5, -7)));
        assert_eq!(read("5.0", "-7e1"), Some((5, -70)));
        assert_eq!(read("4294967295", "1e300"), Some((u32::MAX, i64::MAX)));
        assert_eq!(read("5", "-18446744073709551616"), Some((5, i64::MIN)));
        for wrong in ["4294967296", "-1", "1.5", "null", "\"5\"", "true"] {
            assert_eq!(read(wrong, "0"), None, "{wrong}");
        }
        assert_eq!(read("0", "0.5"), None);
    }
}
