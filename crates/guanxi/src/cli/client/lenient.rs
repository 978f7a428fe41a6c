//! Answers as a client reads them: what a later server says beside what is known here is passed over,
//! although a server refuses such requests, and the types are the same.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};
use serde_json::{Error, Map, Value};

/// What a value means.
pub fn read<T: DeserializeOwned>(value: &Value) -> Result<T, Error> {
    T::deserialize(Lenient(value))
}

#[derive(Clone, Copy)]
struct Lenient<'a>(&'a Value);

impl<'a> Lenient<'a> {
    fn visit_fields<V: Visitor<'a>>(
        fields: &'a Map<String, Value>,
        knows: impl Fn(&str) -> bool,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let known = fields.iter().filter(|(name, _)| knows(name));
        let known = known.map(|(name, value)| (name.as_str(), Lenient(value)));
        visitor.visit_map(MapDeserializer::new(known))
    }
}

impl<'de> Deserializer<'de> for Lenient<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(Lenient)))
            }
            Value::Object(fields) => Lenient::visit_fields(fields, |_| true, visitor),
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => {
                Lenient::visit_fields(fields, |name| names.contains(&name), visitor)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Error> for Lenient<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use guanxi_api::groups::Groups;
    use guanxi_api::jobs::Jobs;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_later_server_says_beside_is_passed_over() {
        let value = json!({
            "groups": [{ "name": "friends", "size": 3, "colour": ["red"] }], "more": { "a": 1 },
        });
        let groups: Groups = read(&value).unwrap();
        assert_eq!((groups.groups[0].name.0.as_str(), groups.groups[0].size), ("friends", 3));
        assert!(read::<Groups>(&json!({ "groups": [{ "name": "friends" }] })).is_err());
    }

    #[test]
    fn what_may_be_null_may_be_absent() {
        let value = json!({ "jobs": [{
            "job": "7", "type": "erase", "state": "done", "edges_done": 1,
            "started_at": "2026-01-31T12:00:00.000Z", "node": { "type": "user", "id": "1" },
        }] });
        let jobs: Jobs = read(&value).unwrap();
        assert!(jobs.next.is_none() && jobs.jobs[0].receipt.is_none());
    }
}
