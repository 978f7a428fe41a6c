//! GX.COUNT: adds to a counter.

use std::borrow::Cow;

use guanxi_api::counters::{Count, CountRequest, Counted};
use guanxi_model::Error;

use super::answer::AnswerWriter;
use super::arguments::{Refused, Terms, is, refuse_twice, shown};
use super::calls::{PreparedWrite, WriteCall};
use crate::service::counters;

/// `GX.COUNT kind id delta [KEY key] [ATLEAST token]`
pub async fn count(call: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    let (mut arguments, mut terms) = (call.arguments, Terms::default());
    let (kind, id) = (arguments.name("kind")?, arguments.id("id")?);
    let delta = delta(arguments.bytes()?)?;
    let mut key = None;
    arguments.options("KEY and ATLEAST", |word, values| {
        if is(word, "KEY") {
            refuse_twice("KEY", key.replace(Cow::Borrowed(values.text("KEY")?)).is_some())?;
            return Ok(true);
        }
        terms.of_read(word, values)
    })?;
    let caller = call.caller(terms).await;
    let count = Count { kind, id, request: CountRequest { delta, key } };
    let change = counters::count_change(&caller, &count).await?;
    Ok(PreparedWrite { caller, change })
}

/// What is beyond 64 bits is beyond any counter, too, which the rule says.
fn delta(bytes: &[u8]) -> Result<i64, Refused> {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let message = format!("delta: '{}' is no whole number", shown(bytes));
        return Err(Error::invalid(message).into());
    }
    let end = if text.starts_with('-') { i64::MIN } else { i64::MAX };
    Ok(text.parse().unwrap_or(end))
}

/// What a counter has now.
pub fn show_counted(out: &mut AnswerWriter, counted: &Counted) {
    out.map(2);
    out.text("value");
    out.maybe(counted.value, AnswerWriter::integer);
    out.text("token");
    out.text(&counted.token);
}
