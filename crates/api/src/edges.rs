//! Single edges and batches of changes.

use std::borrow::Cow;
use std::sync::Arc;

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::change::{Change, Field, Put};
use guanxi_model::{EdgeKey, Error};
use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::error::Problem;
use crate::field::{field, given, mapped};
use crate::id::{Id, IdText};
use crate::name::{Name, WireGroupName};
use crate::object::objects;
use crate::schema::{constant, nullable, object, one_of, reference};
use crate::state::WireState;
use crate::time::Time;

/// Which edge a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeName<'a> {
    pub kind: Name<'a>,
    pub source: Id,
    pub target: Id,
}

#[derive(Debug)]
pub struct PutEdge<'a> {
    pub edge: EdgeName<'a>,
    /// Refuses an edge that stands already.
    pub strict: bool,
    pub fields: PutBody,
}

#[derive(Debug)]
pub struct DeleteEdge<'a> {
    pub edge: EdgeName<'a>,
    /// Refuses an edge that does not stand.
    pub strict: bool,
}

/// What a put says beside the edge itself. An absent field keeps what stands, null clears it.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PutFields)]
pub struct PutBody {
    /// The name of a group of the source.
    #[serde(default, deserialize_with = "field")]
    #[schema(value_type = Option<WireGroupName>)]
    pub group: Field<WireGroupName>,
    /// Whose roll-up the edge counts for, such as a post's author.
    #[serde(default, deserialize_with = "field")]
    #[schema(value_type = Option<Id>)]
    pub owner: Field<Id>,
    /// The caller's own text; the kind says how many bytes it may have.
    #[serde(default, deserialize_with = "field")]
    #[schema(value_type = Option<String>)]
    pub data: Field<Box<str>>,
    /// When the edge ends by itself.
    #[serde(default, deserialize_with = "field")]
    #[schema(value_type = Option<Time>)]
    pub expires_at: Field<Time>,
    /// Asks that the target approve it first.
    #[serde(default)]
    pub approval: bool,
}

impl PutBody {
    pub fn into_put(self, edge: EdgeKey, strict: bool) -> Put {
        Put {
            edge,
            group: mapped(self.group, |name| name.0),
            owner: mapped(self.owner, |owner| owner.0),
            data: self.data,
            expires_at: mapped(self.expires_at, |time| time.0),
            approval: self.approval,
            strict,
        }
    }
}

/// What a write did.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// False when the edge already was as asked.
    pub changed: bool,
    #[schema(inline)]
    pub state: WireState,
    /// When the edge entered its state; null when none was there and none is.
    #[schema(required)]
    pub since: Option<Time>,
    #[schema(required)]
    pub version: Option<VersionText>,
    /// Present it to a read that must show this write.
    #[schema(value_type = String, min_length = 1)]
    pub token: Arc<str>,
}

impl Changed {
    pub fn new(answer: &EdgeAnswer, token: Arc<str>) -> Changed {
        Changed {
            changed: answer.changed,
            state: answer.state.into(),
            since: answer.since.map(Time),
            version: answer.version.map(|version| VersionText(version.0)),
            token,
        }
    }
}

/// A version, as text because a JSON reader may round a number.
#[derive(Debug, Clone, Copy)]
pub struct VersionText(pub u64);

impl Serialize for VersionText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for VersionText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<VersionText, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map(VersionText).map_err(serde::de::Error::custom)
    }
}

impl PartialSchema for VersionText {
    fn schema() -> RefOr<Schema> {
        let schema = crate::schema::text("^[0-9]{1,20}$", "Grows with every change of an edge.");
        RefOr::T(Schema::from(schema))
    }
}

impl ToSchema for VersionText {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("Version")
    }
}

/// One edge as it stands. Not related is an answer too.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Whether a live edge stands.
    pub related: bool,
    #[schema(required)]
    pub state: Option<WireState>,
    #[schema(required)]
    pub since: Option<Time>,
    #[schema(required, value_type = Option<String>)]
    pub group: Option<WireGroupName>,
    #[schema(required, value_type = Option<IdText>)]
    pub owner: Option<Id>,
    #[schema(required)]
    pub data: Option<Box<str>>,
    #[schema(required)]
    pub version: Option<VersionText>,
    #[schema(required)]
    pub expires_at: Option<Time>,
    /// Live both ways; null for kinds whose ends differ in type.
    #[schema(required)]
    pub mutual: Option<bool>,
    /// The same edge the other way round; null for kinds whose ends differ in type.
    #[schema(required)]
    pub reverse: Option<Reverse>,
    /// The database has too much to do: what is not known counts as not related. Absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub degraded: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Reverse {
    pub related: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub state: Option<WireState>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub since: Option<Time>,
}

/// Changes in order, each decided on its own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = EdgeBatch)]
pub struct BatchRequest<'a> {
    /// 1 to 1000 changes.
    #[serde(borrow, deserialize_with = "objects")]
    #[schema(min_items = 1, value_type = Vec<BatchChange>)]
    pub changes: Vec<BatchChange<'a>>,
}

/// One change of a batch: the operation, the edge, and for a put its fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchChange<'a> {
    pub op: Op,
    #[serde(borrow)]
    pub kind: Name<'a>,
    pub source: Id,
    pub target: Id,
    #[serde(default, deserialize_with = "given")]
    pub strict: Option<bool>,
    #[serde(default, deserialize_with = "field")]
    pub group: Field<WireGroupName>,
    #[serde(default, deserialize_with = "field")]
    pub owner: Field<Id>,
    #[serde(default, deserialize_with = "field")]
    pub data: Field<Box<str>>,
    #[serde(default, deserialize_with = "field")]
    pub expires_at: Field<Time>,
    #[serde(default, deserialize_with = "given")]
    pub approval: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    Put,
    Delete,
    Approve,
    Decline,
}

impl BatchChange<'_> {
    /// Fields that this operation has no use for are refused by name, whatever the edge.
    pub fn check(&self, index: usize) -> Result<(), Error> {
        let is_put = self.op == Op::Put;
        let given = [
            ("group", self.group != Field::Keep),
            ("owner", self.owner != Field::Keep),
            ("data", self.data != Field::Keep),
            ("expires_at", self.expires_at != Field::Keep),
            ("approval", self.approval.is_some()),
        ];
        let foreign = given.iter().find(|(_, given)| *given && !is_put);
        let strict_useless = self.strict.is_some() && !is_put && self.op != Op::Delete;
        match (foreign, strict_useless) {
            (Some((name, _)), _) => {
                Err(Error::invalid(format!("changes[{index}].{name}: only a put has this field")))
            }
            (None, true) => Err(Error::invalid(format!(
                "changes[{index}].strict: only a put and a delete have this field"
            ))),
            (None, false) => Ok(()),
        }
    }

    pub fn into_change(self, edge: EdgeKey) -> Change {
        let strict = self.strict.unwrap_or(false);
        match self.op {
            Op::Put => {
                let body = PutBody {
                    group: self.group,
                    owner: self.owner,
                    data: self.data,
                    expires_at: self.expires_at,
                    approval: self.approval.unwrap_or(false),
                };
                Change::Put(body.into_put(edge, strict))
            }
            Op::Delete => Change::Delete { edge, strict },
            Op::Approve => Change::Approve { edge },
            Op::Decline => Change::Decline { edge },
        }
    }
}

impl PartialSchema for BatchChange<'_> {
    fn schema() -> RefOr<Schema> {
        let text = || {
            let text = ObjectBuilder::new().schema_type(Type::String);
            RefOr::T(Schema::from(text))
        };
        let ends = || {
            [
                // A name that no kind has is an error of this change alone.
                ("kind", text()),
                ("source", Id::schema()),
                ("target", Id::schema()),
            ]
        };
        let required = &["op", "kind", "source", "target"];
        let boolean = || {
            let boolean = ObjectBuilder::new().schema_type(Type::Boolean);
            RefOr::T(Schema::from(boolean))
        };
        let [kind, source, target] = ends();
        let put = object(
            [
                ("op", constant("put")),
                kind,
                source,
                target,
                ("strict", boolean()),
                ("group", nullable(WireGroupName::schema())),
                ("owner", nullable(Id::schema())),
                ("data", nullable(text())),
                ("expires_at", nullable(Time::schema())),
                ("approval", boolean()),
            ],
            required,
        );
        let [kind, source, target] = ends();
        let delete = object(
            [("op", constant("delete")), kind, source, target, ("strict", boolean())],
            required,
        );
        let plain = |op| {
            let [kind, source, target] = ends();
            object([("op", constant(op)), kind, source, target], required)
        };
        one_of([put, delete, plain("approve"), plain("decline")].map(RefOr::T))
    }
}

impl ToSchema for BatchChange<'_> {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("BatchChange")
    }
}

/// One result per change, in order.
#[derive(Debug, Serialize, Deserialize)]
pub struct Results<T> {
    pub results: Vec<ChangeResult<T>>,
    /// What stands for all of them; each that was done has it, too.
    #[serde(skip)]
    pub token: Arc<str>,
}

/// A reader looks for the refusal first, so whoever wants only those may leave open what was done.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChangeResult<T> {
    Refused { error: Problem },
    Done(T),
}

/// The schema of `Results<Changed>`.
#[derive(Debug)]
pub struct BatchAnswer;

impl PartialSchema for BatchAnswer {
    fn schema() -> RefOr<Schema> {
        results_of(reference("Changed"))
    }
}

impl ToSchema for BatchAnswer {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("EdgeBatchAnswer")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("Changed".into(), Changed::schema()));
        schemas.push(("Problem".into(), Problem::schema()));
    }
}

/// A list of answers or errors.
pub(crate) fn results_of(done: RefOr<Schema>) -> RefOr<Schema> {
    let refused = object([("error", reference("Problem"))], &["error"]);
    let items = ArrayBuilder::new().items(one_of([done, RefOr::T(refused)]));
    let results = RefOr::T(Schema::from(items));
    RefOr::T(object([("results", results)], &["results"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_takes_only_the_fields_of_its_operation() {
        let change = |json: &str| -> Result<(), String> {
            let change: BatchChange = serde_json::from_str(json).map_err(|e| e.to_string())?;
            change.check(3).map_err(|error| error.message)
        };
        let ends = r#""kind":"follow","source":1,"target":"2""#;
        for (op, rest, problem) in [
            ("put", r#","group":"g","data":null,"strict":true"#, None),
            ("delete", r#","strict":true"#, None),
            ("delete", r#","group":null"#, Some("changes[3].group")),
            ("approve", "", None),
            ("approve", r#","strict":true"#, Some("changes[3].strict")),
            ("decline", r#","approval":true"#, Some("changes[3].approval")),
            ("move", "", Some("unknown variant `move`")),
            ("put", r#","colour":1"#, Some("unknown field `colour`")),
            ("put", r#","kind":"like""#, Some("duplicate field `kind`")),
        ] {
            let json = format!(r#"{{"op":"{op}",{ends}{rest}}}"#);
            match (change(&json), problem) {
                (Ok(()), None) => {}
                (Err(message), Some(part)) => assert!(message.contains(part), "{message}"),
                (result, _) => panic!("{json}: {result:?}"),
            }
        }
    }
}
