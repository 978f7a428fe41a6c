//! GX.PUT, GX.DEL, GX.APPROVE, GX.DECLINE and GX.GET: single edges.

use guanxi_api::edges::{Changed, DeleteEdge, Edge, EdgeName, PutBody, PutEdge, Reverse};
use guanxi_api::name::WireGroupName;
use guanxi_api::{Id, Time};
use guanxi_model::change::Field;
use guanxi_model::limits::DATA_BYTES_MAX;
use guanxi_model::{Code, Error, GroupName};

use super::answer::AnswerWriter;
use super::arguments::{Arguments, Refused, Terms, is, refuse_twice};
use super::calls::{PreparedWrite, ReadCall, WriteCall};
use crate::service::edges;

/// `GX.PUT kind source target [GROUP name] [OWNER id] [DATA text] [APPROVAL true|false]
/// [EXPIRES time] [STRICT] [KEY key] [ATLEAST token]`; an empty value clears what stands.
pub async fn put(call: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    let mut arguments = call.arguments;
    let edge = edge(&mut arguments)?;
    let (mut fields, mut strict, mut terms) = (PutBody::default(), false, Terms::default());
    let mut approval = None;
    let known = "GROUP, OWNER, DATA, APPROVAL, EXPIRES, STRICT, KEY and ATLEAST";
    arguments.options(known, |word, values| {
        if is(word, "GROUP") {
            set("GROUP", &mut fields.group, group(values)?)?;
        } else if is(word, "OWNER") {
            set("OWNER", &mut fields.owner, owner(values)?)?;
        } else if is(word, "DATA") {
            set("DATA", &mut fields.data, data(values)?)?;
        } else if is(word, "EXPIRES") {
            set("EXPIRES", &mut fields.expires_at, expiry(values)?)?;
        } else if is(word, "APPROVAL") {
            refuse_twice("APPROVAL", approval.replace(values.truth("APPROVAL")?).is_some())?;
        } else if is(word, "STRICT") {
            strict = true;
        } else {
            return terms.of_write(word, values);
        }
        Ok(true)
    })?;
    fields.approval = approval.unwrap_or(false);
    let caller = call.caller(terms).await;
    let change = edges::put_change(&caller, PutEdge { edge, strict, fields }).await?;
    Ok(PreparedWrite { caller, change })
}

/// `GX.DEL kind source target [STRICT] [KEY key] [ATLEAST token]`
pub async fn delete(call: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    let mut arguments = call.arguments;
    let edge = edge(&mut arguments)?;
    let (mut strict, mut terms) = (false, Terms::default());
    arguments.options("STRICT, KEY and ATLEAST", |word, values| {
        strict |= is(word, "STRICT");
        Ok(is(word, "STRICT") || terms.of_write(word, values)?)
    })?;
    let caller = call.caller(terms).await;
    let change = edges::delete_change(&caller, DeleteEdge { edge, strict }).await?;
    Ok(PreparedWrite { caller, change })
}

/// `GX.APPROVE kind source target [KEY key] [ATLEAST token]`
pub async fn approve(call: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    let (edge, terms) = answered(call)?;
    let caller = call.caller(terms).await;
    let change = edges::approve_change(&caller, edge).await?;
    Ok(PreparedWrite { caller, change })
}

/// `GX.DECLINE kind source target [KEY key] [ATLEAST token]`
pub async fn decline(call: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    let (edge, terms) = answered(call)?;
    let caller = call.caller(terms).await;
    let change = edges::decline_change(&caller, edge).await?;
    Ok(PreparedWrite { caller, change })
}

fn answered<'a>(call: &WriteCall<'a>) -> Result<(EdgeName<'a>, Terms), Refused> {
    let (mut arguments, mut terms) = (call.arguments, Terms::default());
    let edge = edge(&mut arguments)?;
    arguments.options("KEY and ATLEAST", |word, values| terms.of_write(word, values))?;
    Ok((edge, terms))
}

/// `GX.GET kind source target [DEGRADED] [ATLEAST token]`
pub async fn get(call: ReadCall<'_>) -> Result<(), Refused> {
    let (mut arguments, mut terms) = (call.arguments, Terms::default());
    let edge = edge(&mut arguments)?;
    arguments.options("DEGRADED and ATLEAST", |word, values| terms.of_default(word, values))?;
    let or_default = terms.or_default;
    let found = edges::get(call.caller(terms).await, edge).await?;
    Terms::tell(or_default, found.degraded, call.out, |out| show(out, &found))
}

fn edge<'a>(arguments: &mut Arguments<'a>) -> Result<EdgeName<'a>, Refused> {
    let (kind, source) = (arguments.name("kind")?, arguments.id("source")?);
    Ok(EdgeName { kind, source, target: arguments.id("target")? })
}

fn set<T: PartialEq>(option: &str, field: &mut Field<T>, value: Field<T>) -> Result<(), Refused> {
    refuse_twice(option, *field != Field::Keep)?;
    *field = value;
    Ok(())
}

/// The value, or the wish for none.
fn value<'a>(what: &str, values: &mut Arguments<'a>) -> Result<Option<&'a str>, Refused> {
    Ok(Some(values.text(what)?).filter(|text| !text.is_empty()))
}

fn cleared_or<T>(value: Option<T>) -> Field<T> {
    value.map_or(Field::Clear, Field::Set)
}

fn group(values: &mut Arguments<'_>) -> Result<Field<WireGroupName>, Refused> {
    let name = value("GROUP", values)?.map(GroupName::new).transpose();
    let name = name.map_err(|error| Error::invalid(format!("GROUP: {}", error.message)))?;
    Ok(cleared_or(name.map(WireGroupName)))
}

fn owner(values: &mut Arguments<'_>) -> Result<Field<Id>, Refused> {
    let owner = value("OWNER", values)?.map(|text| Id::parse(text, "OWNER")).transpose();
    Ok(cleared_or(owner?))
}

/// Longer than any kind takes is refused here: many writes of a connection may wait together.
fn data(values: &mut Arguments<'_>) -> Result<Field<Box<str>>, Refused> {
    let data = value("DATA", values)?;
    if let Some(long) = data.filter(|data| data.len() > DATA_BYTES_MAX) {
        let message = format!("DATA: it has {} bytes, at most {DATA_BYTES_MAX} fit", long.len());
        return Err(Error::new(Code::TooLarge, message).into());
    }
    Ok(cleared_or(data.map(Box::from)))
}

fn expiry(values: &mut Arguments<'_>) -> Result<Field<Time>, Refused> {
    let time = value("EXPIRES", values)?.map(|text| Time::parse(text, "EXPIRES")).transpose();
    Ok(cleared_or(time?))
}

/// What a write did.
pub fn show_changed(out: &mut AnswerWriter, changed: &Changed) {
    out.map(5);
    out.text("changed");
    out.truth(changed.changed);
    out.text("state");
    out.text(changed.state.name());
    out.text("since");
    out.maybe(changed.since, time);
    out.text("version");
    out.maybe(changed.version, |out, version| out.id(version.0));
    out.text("token");
    out.text(&changed.token);
}

fn show(out: &mut AnswerWriter, edge: &Edge) {
    out.map(10);
    out.text("related");
    out.truth(edge.related);
    out.text("state");
    out.maybe(edge.state, |out, state| out.text(state.name()));
    out.text("since");
    out.maybe(edge.since, time);
    out.text("group");
    out.maybe(edge.group.as_ref(), |out, group| out.text(group.0.as_str()));
    out.text("owner");
    out.maybe(edge.owner, |out, owner| out.id(owner.0));
    out.text("data");
    out.maybe(edge.data.as_deref(), AnswerWriter::text);
    out.text("version");
    out.maybe(edge.version, |out, version| out.id(version.0));
    out.text("expires_at");
    out.maybe(edge.expires_at, time);
    out.text("mutual");
    out.maybe(edge.mutual, AnswerWriter::truth);
    out.text("reverse");
    out.maybe(edge.reverse, reverse);
}

fn reverse(out: &mut AnswerWriter, reverse: Reverse) {
    out.map(3);
    out.text("related");
    out.truth(reverse.related);
    out.text("state");
    out.maybe(reverse.state, |out, state| out.text(state.name()));
    out.text("since");
    out.maybe(reverse.since, time);
}

pub fn time(out: &mut AnswerWriter, time: Time) {
    out.bulk(&time.to_bytes());
}
