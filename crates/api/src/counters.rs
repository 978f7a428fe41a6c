//! Pure counters.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::edges::results_of;
use crate::error::Problem;
use crate::id::Id;
use crate::name::Name;
use crate::number::whole_saturated;
use crate::object::objects;
use crate::schema::reference;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountRequest<'a> {
    /// What to add, within ± (2^53 − 1).
    #[serde(deserialize_with = "whole_saturated")]
    #[schema(minimum = -9007199254740991_i64, maximum = 9007199254740991_i64)]
    pub delta: i64,
    /// The same key counts once; a reconciled counter needs one.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, pattern = "^[!-~]{1,64}$")]
    pub key: Option<Cow<'a, str>>,
}

/// A delta of one counter.
#[derive(Debug)]
pub struct Count<'a> {
    pub kind: Name<'a>,
    pub id: Id,
    pub request: CountRequest<'a>,
}

/// Deltas in order, each counted on its own.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CounterBatch)]
pub struct CountBatch<'a> {
    /// 1 to 1000 changes.
    #[serde(borrow, deserialize_with = "objects")]
    #[schema(min_items = 1, value_type = Vec<CountChange>)]
    pub changes: Vec<CountChange<'a>>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CountChange<'a> {
    /// A name that no kind has is an error of this change alone.
    #[serde(borrow)]
    #[schema(value_type = String)]
    pub kind: Name<'a>,
    pub id: Id,
    /// Too large a delta is an error of this change alone.
    #[serde(deserialize_with = "whole_saturated")]
    #[schema(schema_with = integer)]
    pub delta: i64,
    #[serde(borrow)]
    #[schema(value_type = Option<String>, pattern = "^[!-~]{1,64}$")]
    pub key: Option<Cow<'a, str>>,
}

fn integer() -> RefOr<Schema> {
    RefOr::T(Schema::from(ObjectBuilder::new().schema_type(Type::Integer)))
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    pub accepted: bool,
    /// The counter's value after it; null where that is not known at once.
    #[schema(required)]
    pub value: Option<i64>,
    #[schema(value_type = String, min_length = 1)]
    pub token: Arc<str>,
}

/// The schema of `Results<Counted>`.
#[derive(Debug)]
pub struct CountBatchAnswer;

impl PartialSchema for CountBatchAnswer {
    fn schema() -> RefOr<Schema> {
        results_of(reference("Counted"))
    }
}

impl ToSchema for CountBatchAnswer {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("CounterBatchAnswer")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("Counted".into(), Counted::schema()));
        schemas.push(("Problem".into(), Problem::schema()));
    }
}
