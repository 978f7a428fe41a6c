//! Batch checks: one source against many targets, or any pairs.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::field::given;
use crate::id::{Id, IdText};
use crate::name::Name;
use crate::object::given_objects;
use crate::schema::{object, one_of, reference};
use crate::state::WireState;

#[derive(Debug, ToSchema)]
#[serde(untagged)]
pub enum CheckRequest<'a> {
    #[schema(title = "One source against many targets")]
    Targets(CheckTargets<'a>),
    #[schema(title = "Any pairs")]
    Pairs(CheckPairs<'a>),
}

/// Targets × kinds, at most 1000 checks (a reverse check counts too).
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckTargets<'a> {
    pub source: Id,
    pub targets: Vec<Id>,
    #[schema(value_type = Vec<Name>)]
    pub kinds: Vec<Name<'a>>,
    /// Also asks which of the kinds relate the target to the source.
    #[serde(default)]
    pub reverse: bool,
}

/// At most 1000 pairs.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckPairs<'a> {
    #[schema(value_type = Vec<CheckPair>)]
    pub pairs: Vec<CheckPair<'a>>,
}

#[derive(Debug, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckPair<'a> {
    #[serde(borrow)]
    #[schema(value_type = Name)]
    pub kind: Name<'a>,
    pub source: Id,
    pub target: Id,
}

/// Both forms at once: a serde enum without a tag would lose the place of an error.
#[derive(DeriveDeserialize)]
#[serde(deny_unknown_fields)]
struct FlatCheck<'a> {
    #[serde(default, deserialize_with = "given")]
    source: Option<Id>,
    #[serde(default, deserialize_with = "given")]
    targets: Option<Vec<Id>>,
    #[serde(borrow, default, deserialize_with = "given")]
    kinds: Option<Vec<Name<'a>>>,
    #[serde(default, deserialize_with = "given")]
    reverse: Option<bool>,
    #[serde(borrow, default, deserialize_with = "given_objects")]
    pairs: Option<Vec<CheckPair<'a>>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for CheckRequest<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CheckRequest<'a>, D::Error> {
        let flat = FlatCheck::deserialize(deserializer)?;
        if let Some(pairs) = flat.pairs {
            let other = flat.source.is_some()
                || flat.targets.is_some()
                || flat.kinds.is_some()
                || flat.reverse.is_some();
            if other {
                return Err(D::Error::custom(
                    "pairs stands alone: give either pairs, or source, targets and kinds",
                ));
            }
            return Ok(CheckRequest::Pairs(CheckPairs { pairs }));
        }
        let missing = |name: &str| {
            D::Error::custom(format_args!(
                "missing field `{name}`: give either pairs, or source, targets and kinds"
            ))
        };
        Ok(CheckRequest::Targets(CheckTargets {
            source: flat.source.ok_or_else(|| missing("source"))?,
            targets: flat.targets.ok_or_else(|| missing("targets"))?,
            kinds: flat.kinds.ok_or_else(|| missing("kinds"))?,
            reverse: flat.reverse.unwrap_or(false),
        }))
    }
}

/// What stands between the source and one target.
#[derive(Debug, Serialize, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetChecked {
    #[schema(value_type = IdText, inline)]
    pub target: Id,
    /// Kinds with a live edge.
    #[schema(value_type = Vec<String>)]
    pub related: Vec<Arc<str>>,
    /// Kinds with a pending edge.
    #[schema(value_type = Vec<String>)]
    pub pending: Vec<Arc<str>>,
    /// Kinds with a live edge from the target to the source; only when asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<String>, required = false)]
    pub reverse: Option<Vec<Arc<str>>>,
}

#[derive(Debug, Clone, Copy, Serialize, DeriveDeserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PairChecked {
    pub related: bool,
    #[schema(required)]
    pub state: Option<WireState>,
}

/// Results in order.
#[derive(Debug, Serialize, DeriveDeserialize)]
pub struct Checks<T> {
    pub results: Vec<T>,
    /// The database has too much to do: what is not known counts as not related.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub degraded: bool,
}

/// The schema of `Checks`: results of the form that was asked for.
#[derive(Debug)]
pub struct CheckAnswer;

impl PartialSchema for CheckAnswer {
    fn schema() -> RefOr<Schema> {
        let item = one_of([reference("TargetChecked"), reference("PairChecked")]);
        let results = RefOr::T(Schema::from(ArrayBuilder::new().items(item)));
        let degraded = ObjectBuilder::new().schema_type(Type::Boolean).description(Some(
            "The database has too much to do: what is not known counts as not related. Absent \
             otherwise.",
        ));
        let degraded = RefOr::T(Schema::from(degraded));
        RefOr::T(object([("results", results), ("degraded", degraded)], &["results"]))
    }
}

impl ToSchema for CheckAnswer {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("CheckAnswer")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("TargetChecked".into(), TargetChecked::schema()));
        schemas.push(("PairChecked".into(), PairChecked::schema()));
        schemas.push(("State".into(), WireState::schema()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_of_one_form() {
        let cases = [
            (r#"{"pairs":[]}"#, None),
            (r#"{"source":1,"targets":["2"],"kinds":["follow"]}"#, None),
            (r#"{}"#, Some("missing field `source`")),
            (r#"{"source":1,"targets":[]}"#, Some("missing field `kinds`")),
            (r#"{"source":1,"pairs":[]}"#, Some("pairs stands alone")),
            (r#"{"pair":[]}"#, Some("unknown field `pair`")),
            (r#"{"pairs":[],"pairs":[]}"#, Some("duplicate field `pairs`")),
        ];
        for (json, problem) in cases {
            match (serde_json::from_str::<CheckRequest>(json), problem) {
                (Ok(_), None) => {}
                (Err(error), Some(part)) => {
                    assert!(error.to_string().contains(part), "{json}: {error}");
                }
                (result, _) => panic!("{json}: {result:?}"),
            }
        }
    }
}
