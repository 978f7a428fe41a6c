//! GX.CHECK: one source against many targets.

use guanxi_api::check::CheckTargets;

use super::arguments::{Refused, Terms, is};
use super::calls::ReadCall;
use crate::service::check;

/// `GX.CHECK kind source target [target …] [STATES] [DEGRADED] [ATLEAST token]`: for each target 1
/// or 0, or with STATES `live`, `pending` or null.
pub async fn check(call: ReadCall<'_>) -> Result<(), Refused> {
    let (mut arguments, mut terms, mut states) = (call.arguments, Terms::default(), false);
    let (kind, source) = (arguments.name("kind")?, arguments.id("source")?);
    let targets = arguments.ids("target")?;
    arguments.options("STATES, DEGRADED and ATLEAST", |word, values| {
        states |= is(word, "STATES");
        Ok(is(word, "STATES") || terms.of_default(word, values)?)
    })?;
    let or_default = terms.or_default;
    let asked = CheckTargets { source, targets, kinds: vec![kind], reverse: false };
    let checked = check::targets(call.caller(terms).await, asked).await?;
    Terms::tell(or_default, checked.degraded, call.out, |out| {
        out.array(checked.results.len());
        for target in &checked.results {
            let (live, pending) = (!target.related.is_empty(), !target.pending.is_empty());
            match (states, live, pending) {
                (false, live, _) => out.integer(i64::from(live)),
                (true, true, _) => out.text("live"),
                (true, false, true) => out.text("pending"),
                (true, false, false) => out.null(),
            }
        }
    })
}
