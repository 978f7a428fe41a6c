//! Hydrate: everything that a feed needs about its objects in one call.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::field::given;
use crate::id::{Id, IdText, IdVisitor};
use crate::name::Name;
use crate::object::{entries, given_objects};
use crate::schema::{nullable, object, one_of};

#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub enum HydrateRequest<'a> {
    One(Hydrate<'a>),
    Many(HydrateMany<'a>),
}

/// One viewer and the objects on the viewer's screen: at most 256 objects, 16 kinds, tallies and
/// reverse kinds each.
#[derive(Debug, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hydrate<'a> {
    pub viewer: Id,
    pub objects: Vec<HydrateObject>,
    /// Kinds that may relate the viewer to the object or its author.
    #[serde(borrow)]
    #[schema(value_type = Vec<Name>)]
    pub kinds: Vec<Name<'a>>,
    /// Kinds whose incoming tally, or counters whose value, is wanted.
    #[serde(borrow, default)]
    #[schema(value_type = Vec<Name>)]
    pub tallies: Vec<Name<'a>>,
    /// Kinds that may relate the author (or the object, if a user) to the viewer.
    #[serde(borrow)]
    #[schema(value_type = Option<Vec<Name>>, required = false)]
    pub reverse: Option<Vec<Name<'a>>>,
    /// The objects' node type, `post` unless said.
    #[serde(borrow)]
    #[schema(value_type = Option<Name>, required = false)]
    pub object_type: Option<Name<'a>>,
    /// The authors' node type, `user` unless said.
    #[serde(borrow)]
    #[schema(value_type = Option<Name>, required = false)]
    pub author_type: Option<Name<'a>>,
}

/// At most 256 requests with 16,384 checks and tallies in all.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HydrateMany<'a> {
    #[schema(value_type = Vec<Hydrate>)]
    pub requests: Vec<Hydrate<'a>>,
}

/// Both forms at once: a serde enum without a tag would lose the place of an error.
#[derive(DeriveDeserialize)]
#[serde(deny_unknown_fields)]
struct FlatHydrate<'a> {
    #[serde(default, deserialize_with = "given")]
    viewer: Option<Id>,
    #[serde(default, deserialize_with = "given")]
    objects: Option<Vec<HydrateObject>>,
    #[serde(borrow, default, deserialize_with = "given")]
    kinds: Option<Vec<Name<'a>>>,
    #[serde(borrow, default, deserialize_with = "given")]
    tallies: Option<Vec<Name<'a>>>,
    #[serde(borrow)]
    reverse: Option<Vec<Name<'a>>>,
    #[serde(borrow)]
    object_type: Option<Name<'a>>,
    #[serde(borrow)]
    author_type: Option<Name<'a>>,
    #[serde(borrow, default, deserialize_with = "given_objects")]
    requests: Option<Vec<Hydrate<'a>>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for HydrateRequest<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HydrateRequest<'a>, D::Error> {
        use serde::de::Error;
        let flat = FlatHydrate::deserialize(deserializer)?;
        if let Some(requests) = flat.requests {
            let other = flat.viewer.is_some()
                || flat.objects.is_some()
                || flat.kinds.is_some()
                || flat.tallies.is_some()
                || flat.reverse.is_some()
                || flat.object_type.is_some()
                || flat.author_type.is_some();
            if other {
                return Err(D::Error::custom(
                    "requests stands alone: give either requests, or viewer, objects and kinds",
                ));
            }
            return Ok(HydrateRequest::Many(HydrateMany { requests }));
        }
        let missing = |name: &str| {
            D::Error::custom(format_args!(
                "missing field `{name}`: give either requests, or viewer, objects and kinds"
            ))
        };
        Ok(HydrateRequest::One(Hydrate {
            viewer: flat.viewer.ok_or_else(|| missing("viewer"))?,
            objects: flat.objects.ok_or_else(|| missing("objects"))?,
            kinds: flat.kinds.ok_or_else(|| missing("kinds"))?,
            tallies: flat.tallies.unwrap_or_default(),
            reverse: flat.reverse,
            object_type: flat.object_type,
            author_type: flat.author_type,
        }))
    }
}

/// An object, with its author where one is known: `{"id":"11","author":"77"}` or just `"11"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HydrateObject {
    pub id: Id,
    pub author: Option<Id>,
}

impl<'de> Deserialize<'de> for HydrateObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HydrateObject, D::Error> {
        deserializer.deserialize_any(HydrateObjectVisitor)
    }
}

struct HydrateObjectVisitor;

impl<'de> Visitor<'de> for HydrateObjectVisitor {
    type Value = HydrateObject;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object: {\"id\":…,\"author\":…} or an id")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HydrateObject, A::Error> {
        #[derive(DeriveDeserialize)]
        #[serde(deny_unknown_fields)]
        struct HydrateObjectFields {
            id: Id,
            author: Option<Id>,
        }
        let fields = HydrateObjectFields::deserialize(de::value::MapAccessDeserializer::new(map))?;
        Ok(HydrateObject { id: fields.id, author: fields.author })
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HydrateObject, E> {
        IdVisitor.visit_str(text).map(bare)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<HydrateObject, E> {
        IdVisitor.visit_u64(number).map(bare)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<HydrateObject, E> {
        IdVisitor.visit_i64(number).map(bare)
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<HydrateObject, E> {
        IdVisitor.visit_f64(number).map(bare)
    }
}

fn bare(id: Id) -> HydrateObject {
    HydrateObject { id, author: None }
}

impl PartialSchema for HydrateObject {
    fn schema() -> RefOr<Schema> {
        let full = object([("id", Id::schema()), ("author", nullable(Id::schema()))], &["id"]);
        one_of([RefOr::T(full), Id::schema()])
    }
}

impl ToSchema for HydrateObject {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("HydrateObject")
    }
}

/// One entry per object, in order.
#[derive(Debug, Serialize, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = HydrateAnswer)]
pub struct HydratedObjects {
    pub objects: Vec<HydratedObject>,
    /// The database has too much to do: what is not known counts as not related
    /// and 0. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub degraded: bool,
}

#[derive(Debug, Serialize, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HydratedObject {
    #[schema(value_type = IdText, inline)]
    pub id: Id,
    /// Kinds with a live edge from the viewer.
    #[schema(value_type = Vec<String>)]
    pub related: Vec<Arc<str>>,
    /// Kinds with a pending edge from the viewer.
    #[schema(value_type = Vec<String>)]
    pub pending: Vec<Arc<str>>,
    /// Kinds with a live edge to the viewer; only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<String>, required = false)]
    pub reverse: Option<Vec<Arc<str>>>,
    /// By kind: the incoming tally, or the counter's value.
    #[schema(value_type = std::collections::HashMap<String, i64>)]
    pub tallies: TallyValues,
}

/// Names and values side by side, written as an object.
#[derive(Debug, Clone)]
pub struct TallyValues {
    /// Those of all objects.
    pub names: Arc<[Arc<str>]>,
    pub values: Vec<i64>,
}

impl Serialize for TallyValues {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.names.len()))?;
        for (name, value) in self.names.iter().zip(&self.values) {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for TallyValues {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TallyValues, D::Error> {
        let entries: Vec<(Arc<str>, i64)> = entries(deserializer)?;
        let (names, values): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        Ok(TallyValues { names: names.into(), values })
    }
}

/// The answer to many requests, in order.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HydratedMany {
    pub results: Vec<HydratedObjects>,
    /// As for a single request; it stands here alone, for all results.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub degraded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_bare_ids_or_have_an_author() {
        let cases = [
            (r#""12""#, Some((12, None))),
            ("12", Some((12, None))),
            (r#"{"id":"11","author":77}"#, Some((11, Some(77)))),
            (r#"{"id":"11","author":null}"#, Some((11, None))),
            (r#"{"id":"11"}"#, Some((11, None))),
            (r#"{"author":77}"#, None),
            (r#"{"id":"11","writer":77}"#, None),
            (r#"{"id":"11","id":"12"}"#, None),
            ("0", None),
            ("-4", None),
            ("[]", None),
            ("null", None),
        ];
        for (json, expected) in cases {
            let read = serde_json::from_str::<HydrateObject>(json).ok();
            let read = read.map(|object| (object.id.0, object.author.map(|id| id.0)));
            assert_eq!(read, expected, "{json}");
        }
    }
}
