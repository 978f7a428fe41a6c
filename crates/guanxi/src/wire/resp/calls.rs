//! From a command to its call: the table has the command's name, and with it all else that is known
//! of the call; here is the one place from which each call's reader is reached.

use std::sync::Arc;
use std::time::Instant;

use guanxi_model::{Change, Code, Error, TenantId};

use super::answer::AnswerWriter;
use super::arguments::{Arguments, Refused, Terms};
use super::command::Command;
use super::{RespFront, check, counters, edges, hydrate, lists, tallies};
use crate::service::table::{self, Call, CallEntry};
use crate::service::{CallContext, Caller};

/// A read that is under way.
pub struct ReadCall<'a> {
    pub front: &'a RespFront,
    pub context: &'a Arc<CallContext>,
    pub arguments: Arguments<'a>,
    pub out: &'a mut AnswerWriter,
}

/// A write whose change is about to be known.
pub struct WriteCall<'a> {
    pub front: &'a RespFront,
    pub context: &'a Arc<CallContext>,
    pub arguments: Arguments<'a>,
}

/// What a write wants done, and for whom.
#[derive(Debug)]
pub struct PreparedWrite {
    pub caller: Caller,
    pub change: Change,
}

impl ReadCall<'_> {
    pub async fn caller(&self, terms: Terms) -> Caller {
        caller(self.front, self.context, terms).await
    }
}

impl WriteCall<'_> {
    pub async fn caller(&self, terms: Terms) -> Caller {
        caller(self.front, self.context, terms).await
    }
}

/// Whoever calls; the kinds that a presented token stands for are known from here on.
async fn caller(front: &RespFront, context: &Arc<CallContext>, terms: Terms) -> Caller {
    let caller = Caller {
        app: front.app().clone(),
        context: context.clone(),
        // Whoever shows no credential.
        tenant: TenantId::DEFAULT,
        at_least: [terms.at_least, None],
        key: terms.key,
        origin: Default::default(),
    };
    caller.learn_kinds().await;
    caller
}

/// The call of a command. One command has several: its arguments say which is meant, and where they
/// do not the first of them says what is wrong.
pub fn find(command: Command<'_>) -> Option<&'static CallEntry> {
    let entry = table::of_resp(command.name())?;
    match entry.call {
        Call::ListOutgoing => lists::named(command).map_or(Some(entry), table::of_resp_call),
        _ => Some(entry),
    }
}

/// The facts of one command's request.
pub fn context(
    front: &RespFront,
    request_id: &Arc<str>,
    entry: &'static CallEntry,
    began: Instant,
) -> Arc<CallContext> {
    let deadline = began + front.request_timeout();
    Arc::new(CallContext::new(request_id.clone(), deadline, Some(entry)))
}

/// Answers a read.
pub async fn read(call: Call, reading: ReadCall<'_>) -> Result<(), Refused> {
    match call {
        Call::GetEdge => edges::get(reading).await,
        Call::Check => check::check(reading).await,
        Call::Tallies => tallies::tallies(reading).await,
        Call::Hydrate => hydrate::hydrate(reading).await,
        Call::ListOutgoing
        | Call::ListIncoming
        | Call::ListMutual
        | Call::ListCommon
        | Call::ListKnown => lists::list(reading).await,
        _ => Err(unserved()),
    }
}

/// Reads what a write wants.
pub async fn prepare(call: Call, writing: &WriteCall<'_>) -> Result<PreparedWrite, Refused> {
    match call {
        Call::PutEdge => edges::put(writing).await,
        Call::DeleteEdge => edges::delete(writing).await,
        Call::ApproveEdge => edges::approve(writing).await,
        Call::DeclineEdge => edges::decline(writing).await,
        Call::Count => counters::count(writing).await,
        _ => Err(unserved()),
    }
}

/// A command of the table that is not read here; a test asks for each.
fn unserved() -> Refused {
    Error::new(Code::Internal, "the command has a call, and nobody who reads it").into()
}
