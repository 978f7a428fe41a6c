//! Small builders for the schemas that the derive cannot express: alternatives and exact texts.

use utoipa::openapi::schema::{AdditionalProperties, ObjectBuilder, Type};
use utoipa::openapi::{OneOfBuilder, Ref, RefOr, Schema};

/// A string of one exact form.
pub(crate) fn text(pattern: &str, description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(pattern))
        .description(Some(description))
}

/// An object that takes these fields and no other.
pub(crate) fn object<const N: usize>(
    fields: [(&str, RefOr<Schema>); N],
    required: &[&str],
) -> Schema {
    let closed = AdditionalProperties::FreeForm(false);
    let object = ObjectBuilder::new().additional_properties(Some(closed));
    let object =
        fields.into_iter().fold(object, |object, (name, schema)| object.property(name, schema));
    let object = required.iter().fold(object, |object, name| object.required(*name));
    Schema::from(object)
}

/// Exactly one of these.
pub(crate) fn one_of<const N: usize>(schemas: [RefOr<Schema>; N]) -> RefOr<Schema> {
    let one_of = schemas.into_iter().fold(OneOfBuilder::new(), OneOfBuilder::item);
    RefOr::T(Schema::from(one_of))
}

/// This, or null.
pub(crate) fn nullable(schema: RefOr<Schema>) -> RefOr<Schema> {
    let null = ObjectBuilder::new().schema_type(Type::Null);
    one_of([RefOr::T(Schema::from(null)), schema])
}

pub(crate) fn reference(name: &str) -> RefOr<Schema> {
    RefOr::Ref(Ref::from_schema_name(name))
}

/// The one text that this field holds in this alternative.
pub(crate) fn constant(value: &str) -> RefOr<Schema> {
    let object = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([value]));
    RefOr::T(Schema::from(object))
}
