//! GX.LIST: pages of whom a node relates to, and of who relate to it.

use guanxi_api::Id;
use guanxi_api::lists::{Item, JoinedList, List, ListOf};
use guanxi_model::State;
use guanxi_model::limits::PAGE_ITEMS_MAX;
use guanxi_model::page::Order;

use super::answer::AnswerWriter;
use super::arguments::{Arguments, Refused, Terms, is, refuse_twice};
use super::calls::ReadCall;
use super::command::Command;
use super::edges::time;
use crate::service::lists;
use crate::service::table::Call;

const ORDERS: [(&str, Order); 2] = [("newest", Order::Newest), ("oldest", Order::Oldest)];
const STATES: [(&str, State); 2] = [("live", State::Live), ("pending", State::Pending)];

/// The lists that the one command shows, by the word in the place behind the node's id.
const WORDS: [(&str, Call); 5] = [
    ("OUTGOING", Call::ListOutgoing),
    ("INCOMING", Call::ListIncoming),
    ("MUTUAL", Call::ListMutual),
    ("COMMON", Call::ListCommon),
    ("KNOWN", Call::ListKnown),
];
const WORD_PLACE: usize = 3;

/// Which list a command asks for; None where it names none of them.
pub fn named(command: Command<'_>) -> Option<Call> {
    let word = command.get(WORD_PLACE)?;
    WORDS.iter().find(|(known, _)| is(word, known)).map(|(_, call)| *call)
}

/// `GX.LIST kind id OUTGOING|INCOMING|MUTUAL|COMMON other|KNOWN other [LIMIT n] [CURSOR cursor]
/// [PAGE n] [ORDER newest|oldest] [SINCE time] [UNTIL time] [GROUP name] [STATE live|pending]
/// [WITHMUTUAL] [ATLEAST token]`
pub async fn list(call: ReadCall<'_>) -> Result<(), Refused> {
    let mut arguments = call.arguments;
    let (kind, id) = (arguments.name("kind")?, arguments.id("id")?);
    let which = arguments.word("list", &WORDS)?;
    let joins = matches!(which, Call::ListCommon | Call::ListKnown);
    let other = if joins { Some(arguments.id("other")?) } else { None };
    let mut list = ListOf::new(kind, id);
    let terms = options(&mut arguments, &mut list)?;
    let caller = call.caller(terms).await;
    let joined = |list, other: Option<Id>| JoinedList { list, other: other.unwrap_or(id) };
    let page = match which {
        Call::ListIncoming => lists::incoming(caller, list).await,
        Call::ListMutual => lists::mutual(caller, list).await,
        Call::ListCommon => lists::common(caller, joined(list, other)).await,
        Call::ListKnown => lists::known(caller, joined(list, other)).await,
        _ => lists::outgoing(caller, list).await,
    };
    show(call.out, &page?);
    Ok(())
}

fn options(arguments: &mut Arguments<'_>, list: &mut ListOf<'_>) -> Result<Terms, Refused> {
    let mut terms = Terms::default();
    let (mut order, mut state) = (None, None);
    let known = "LIMIT, CURSOR, PAGE, ORDER, SINCE, UNTIL, GROUP, STATE, WITHMUTUAL and ATLEAST";
    arguments.options(known, |word, values| {
        if is(word, "LIMIT") {
            let limit = values.number("LIMIT", 1, PAGE_ITEMS_MAX as u64)?;
            refuse_twice("LIMIT", list.limit.replace(limit as usize).is_some())?;
        } else if is(word, "CURSOR") {
            let cursor = values.text("CURSOR")?.to_owned();
            refuse_twice("CURSOR", list.cursor.replace(cursor).is_some())?;
        } else if is(word, "PAGE") {
            let page = values.number("PAGE", 1, u64::from(u32::MAX))?;
            refuse_twice("PAGE", list.page.replace(page).is_some())?;
        } else if is(word, "ORDER") {
            refuse_twice("ORDER", order.replace(values.word("ORDER", &ORDERS)?).is_some())?;
        } else if is(word, "SINCE") {
            refuse_twice("SINCE", list.since.replace(values.time_bound("SINCE")?).is_some())?;
        } else if is(word, "UNTIL") {
            refuse_twice("UNTIL", list.until.replace(values.time_bound("UNTIL")?).is_some())?;
        } else if is(word, "GROUP") {
            let group = values.text("GROUP")?.to_owned();
            refuse_twice("GROUP", list.group.replace(group).is_some())?;
        } else if is(word, "STATE") {
            refuse_twice("STATE", state.replace(values.word("STATE", &STATES)?).is_some())?;
        } else if is(word, "WITHMUTUAL") {
            list.mutual = true;
        } else {
            return terms.of_read(word, values);
        }
        Ok(true)
    })?;
    list.order = order.unwrap_or_default();
    list.state = state.unwrap_or(State::Live);
    Ok(terms)
}

fn show(out: &mut AnswerWriter, page: &List) {
    out.map(3);
    out.text("items");
    out.array(page.items.len());
    for item in &page.items {
        show_item(out, item);
    }
    out.text("total");
    out.maybe(page.total, AnswerWriter::integer);
    out.text("next");
    out.maybe(page.next.as_deref(), AnswerWriter::text);
}

/// `[id, state, since]`; of outgoing edges also `group, owner, data, expires_at`; at last whether it
/// is mutual, where that was asked for.
fn show_item(out: &mut AnswerWriter, item: &Item) {
    let own_fields = if item.own.is_some() { 4 } else { 0 };
    out.array(3 + own_fields + usize::from(item.mutual.is_some()));
    out.id(item.id.0);
    out.text(item.state.name());
    time(out, item.since);
    if let Some(own) = &item.own {
        out.maybe(own.group.as_ref(), |out, group| out.text(group.0.as_str()));
        out.maybe(own.owner, |out, owner| out.id(owner.0));
        out.maybe(own.data.as_deref(), AnswerWriter::text);
        out.maybe(own.expires_at, time);
    }
    if let Some(mutual) = item.mutual {
        out.truth(mutual);
    }
}
