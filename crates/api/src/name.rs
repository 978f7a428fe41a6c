//! Names of kinds, node types and groups as requests give them.

use std::borrow::Cow;
use std::fmt;

use guanxi_model::GroupName;
use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::schema::text;

pub const NAME_PATTERN: &str = "^[a-z][a-z0-9_.]{0,31}$";
/// No slash, and neither '.' nor '..', since names stand in paths; no control characters, since
/// they stand in lines.
pub const GROUP_NAME_PATTERN: &str = concat!(
    r"^([^/.\u0000-\u001f\u007f-\u009f][^/\u0000-\u001f\u007f-\u009f]{0,63}",
    r"|\.[^/.\u0000-\u001f\u007f-\u009f][^/\u0000-\u001f\u007f-\u009f]{0,62}",
    r"|\.\.[^/\u0000-\u001f\u007f-\u009f][^/\u0000-\u001f\u007f-\u009f]{0,61})$",
);

/// A name of a kind or a node type, borrowed from the request where it can be. Whether there is
/// such a thing is for the catalog to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name<'a>(Cow<'a, str>);

impl Name<'_> {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'a> From<Cow<'a, str>> for Name<'a> {
    fn from(name: Cow<'a, str>) -> Name<'a> {
        Name(name)
    }
}

impl AsRef<str> for Name<'_> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Name<'a> {
    fn from(name: &'a str) -> Name<'a> {
        Name(Cow::Borrowed(name))
    }
}

impl From<String> for Name<'_> {
    fn from(name: String) -> Self {
        Name(Cow::Owned(name))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name<'a>, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

pub fn name_text() -> RefOr<Schema> {
    let schema = text(NAME_PATTERN, "A name of a kind or a node type.");
    RefOr::T(Schema::from(schema))
}

impl PartialSchema for Name<'_> {
    fn schema() -> RefOr<Schema> {
        name_text()
    }
}

impl ToSchema for Name<'_> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Name")
    }
}

/// For `#[serde(deserialize_with = "group_name")]`.
pub fn group_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<GroupName, D::Error> {
    let name = Cow::<str>::deserialize(deserializer)?;
    GroupName::new(&name).map_err(|error| de::Error::custom(error.message))
}

/// A group's name inside a field that may be null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGroupName(pub GroupName);

impl Serialize for WireGroupName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for WireGroupName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WireGroupName, D::Error> {
        group_name(deserializer).map(WireGroupName)
    }
}

impl PartialSchema for WireGroupName {
    fn schema() -> RefOr<Schema> {
        let object = ObjectBuilder::new()
            .schema_type(Type::String)
            .pattern(Some(GROUP_NAME_PATTERN))
            .min_length(Some(1))
            .max_length(Some(64))
            .description(Some(
                "A group's name: 1 to 64 characters, no '/', no control characters, neither '.' \
                 nor '..'.",
            ));
        RefOr::T(Schema::from(object))
    }
}

impl ToSchema for WireGroupName {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("GroupName")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_borrowed_unless_escaped() {
        let plain: Name = serde_json::from_str("\"follow\"").unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("follow")));
        let escaped: Name = serde_json::from_str("\"f\\u006fllow\"").unwrap();
        assert_eq!(escaped.as_str(), "follow");
        assert!(serde_json::from_str::<Name>("7").is_err());
    }

    #[test]
    fn group_names_are_checked_while_they_are_read() {
        for (json, good) in [
            ("\"friends\"", true),
            ("\"..a\"", true),
            ("\"\"", false),
            ("\"a/b\"", false),
            ("\"a\\nb\"", false),
            ("\"a\\u007f\"", false),
            ("\"..\"", false),
            ("7", false),
            ("null", false),
        ] {
            assert_eq!(serde_json::from_str::<WireGroupName>(json).is_ok(), good, "{json}");
        }
    }
}
