//! GX.HYDRATE: everything that a feed needs about its objects, in one command.

use std::sync::Arc;

use guanxi_api::Name;
use guanxi_api::hydrate::{Hydrate, HydrateObject, HydratedObject};
use guanxi_model::Error;
use guanxi_model::limits::{HYDRATE_KINDS_MAX, HYDRATE_OBJECTS_MAX};

use super::answer::AnswerWriter;
use super::arguments::{Arguments, Refused, Terms, id_of, is, refuse_twice};
use super::calls::ReadCall;
use crate::service::hydrate;

/// `GX.HYDRATE viewer KINDS n kind … [TALLIES n kind …] [REVERSE n kind …] OBJECTS n id[:author] …
/// [TYPE type] [AUTHORTYPE type] [DEGRADED] [ATLEAST token]`: for each object the kinds that relate
/// the viewer to it, those that are pending, its tallies in the order of TALLIES, and with REVERSE
/// the kinds that relate it to the viewer.
pub async fn hydrate(call: ReadCall<'_>) -> Result<(), Refused> {
    let (mut arguments, mut terms) = (call.arguments, Terms::default());
    let viewer = arguments.id("viewer")?;
    let (mut kinds, mut tallies, mut reverse, mut objects) = (None, None, None, None);
    let (mut object_type, mut author_type) = (None, None);
    let known = "KINDS, TALLIES, REVERSE, OBJECTS, TYPE, AUTHORTYPE, DEGRADED and ATLEAST";
    arguments.options(known, |word, values| {
        if is(word, "KINDS") {
            refuse_twice("KINDS", kinds.replace(names("KINDS", values)?).is_some())?;
        } else if is(word, "TALLIES") {
            refuse_twice("TALLIES", tallies.replace(names("TALLIES", values)?).is_some())?;
        } else if is(word, "REVERSE") {
            refuse_twice("REVERSE", reverse.replace(names("REVERSE", values)?).is_some())?;
        } else if is(word, "OBJECTS") {
            refuse_twice("OBJECTS", objects.replace(objects_of(values)?).is_some())?;
        } else if is(word, "TYPE") {
            refuse_twice("TYPE", object_type.replace(values.name("TYPE")?).is_some())?;
        } else if is(word, "AUTHORTYPE") {
            refuse_twice("AUTHORTYPE", author_type.replace(values.name("AUTHORTYPE")?).is_some())?;
        } else {
            return terms.of_default(word, values);
        }
        Ok(true)
    })?;
    let missing = |what| Error::invalid(format!("{what}: it must be given, if with 0 behind it"));
    let asked = Hydrate {
        viewer,
        objects: objects.ok_or_else(|| missing("OBJECTS"))?,
        kinds: kinds.ok_or_else(|| missing("KINDS"))?,
        tallies: tallies.unwrap_or_default(),
        reverse,
        object_type,
        author_type,
    };
    let or_default = terms.or_default;
    let hydrated = hydrate::one(call.caller(terms).await, asked).await?;
    Terms::tell(or_default, hydrated.degraded, call.out, |out| {
        out.array(hydrated.objects.len());
        for object in &hydrated.objects {
            show(out, object);
        }
    })
}

fn names<'a>(what: &str, values: &mut Arguments<'a>) -> Result<Vec<Name<'a>>, Refused> {
    let count = values.number(what, 0, HYDRATE_KINDS_MAX as u64)?;
    (0..count).map(|_| values.name(what)).collect()
}

fn objects_of(values: &mut Arguments<'_>) -> Result<Vec<HydrateObject>, Refused> {
    let count = values.number("OBJECTS", 0, HYDRATE_OBJECTS_MAX as u64)?;
    (0..count).map(|_| object(values.bytes()?)).collect()
}

/// `id` or `id:author`.
fn object(bytes: &[u8]) -> Result<HydrateObject, Refused> {
    let mut parts = bytes.splitn(2, |byte| *byte == b':');
    let id = id_of(parts.next().unwrap_or_default(), "OBJECTS")?;
    let author = parts.next().map(|author| id_of(author, "OBJECTS")).transpose()?;
    Ok(HydrateObject { id, author })
}

fn show(out: &mut AnswerWriter, object: &HydratedObject) {
    out.array(3 + usize::from(object.reverse.is_some()));
    show_names(out, &object.related);
    show_names(out, &object.pending);
    out.array(object.tallies.values.len());
    for value in &object.tallies.values {
        out.integer(*value);
    }
    if let Some(reverse) = &object.reverse {
        show_names(out, reverse);
    }
}

fn show_names(out: &mut AnswerWriter, names: &[Arc<str>]) {
    out.array(names.len());
    for name in names {
        out.text(name);
    }
}
