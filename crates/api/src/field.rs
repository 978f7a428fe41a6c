//! Fields that may be absent, null or a value, which are three different wishes.

use guanxi_model::change::Field;
use serde::de::{Deserialize, Deserializer};

/// For `#[serde(default, deserialize_with = "field")]`: a field that is there is null or a value,
/// one that is absent stays `Keep`.
pub fn field<'de, D, T>(deserializer: D) -> Result<Field<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(match Option::deserialize(deserializer)? {
        None => Field::Clear,
        Some(value) => Field::Set(value),
    })
}

/// For `#[serde(default, deserialize_with = "given")]`: a field that may be absent, not null.
pub fn given<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}

/// The same wish about another type.
pub fn mapped<T, U>(field: Field<T>, map: impl FnOnce(T) -> U) -> Field<U> {
    match field {
        Field::Keep => Field::Keep,
        Field::Clear => Field::Clear,
        Field::Set(value) => Field::Set(map(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[serde(default, deserialize_with = "field")]
        owner: Field<u64>,
    }

    #[test]
    fn absent_null_and_value_differ() {
        let cases = [
            ("{}", Some(Field::Keep)),
            (r#"{"owner":null}"#, Some(Field::Clear)),
            (r#"{"owner":7}"#, Some(Field::Set(7))),
            (r#"{"owner":"x"}"#, None),
            (r#"{"owner":7,"owner":8}"#, None),
            (r#"{"Owner":7}"#, None),
        ];
        for (json, expected) in cases {
            let read = serde_json::from_str::<Body>(json).ok();
            assert_eq!(read.map(|body| body.owner), expected, "{json}");
        }
    }
}
