//! GX.TALLY: the numbers that a kind keeps of many ids.

use guanxi_api::tallies::{KindTallies, TalliesRequest};

use super::answer::AnswerWriter;
use super::arguments::{Refused, Terms};
use super::calls::ReadCall;
use crate::service::tallies;

/// `GX.TALLY kind id [id …] [DEGRADED] [ATLEAST token]`: for each id its numbers by their names.
pub async fn tallies(call: ReadCall<'_>) -> Result<(), Refused> {
    let (mut arguments, mut terms) = (call.arguments, Terms::default());
    let kind = arguments.name("kind")?;
    let ids = arguments.ids("id")?;
    arguments.options("DEGRADED and ATLEAST", |word, values| terms.of_default(word, values))?;
    let or_default = terms.or_default;
    let asked = TalliesRequest { ids, kinds: vec![kind] };
    let found = tallies::tallies(call.caller(terms).await, asked).await?;
    Terms::tell(or_default, found.degraded, call.out, |out| {
        out.array(found.results.len());
        for of_id in &found.results {
            for (_, numbers) in &of_id.tallies.0 {
                show(out, numbers);
            }
        }
    })
}

fn show(out: &mut AnswerWriter, numbers: &KindTallies) {
    let named = [
        ("outgoing", numbers.outgoing),
        ("incoming", numbers.incoming),
        ("pending_outgoing", numbers.pending_outgoing),
        ("pending_incoming", numbers.pending_incoming),
        ("owned", numbers.owned),
        ("value", numbers.value),
    ];
    let kept = || named.iter().filter_map(|(name, number)| number.map(|number| (name, number)));
    out.map(kept().count());
    for (name, number) in kept() {
        out.text(name);
        out.integer(number);
    }
}
