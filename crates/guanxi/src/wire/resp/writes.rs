//! The writes of one connection. Those that come one behind the other are put into the commit queue
//! before any of them is awaited, so that they are committed together; they are decided in the order
//! in which they came, and answered in it. What comes behind them and is no write waits for them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use guanxi_core::deployment::WriteOrder;
use guanxi_model::idempotency::Answers;
use guanxi_model::limits::REQUEST_CHANGES_MAX;
use guanxi_model::{Answer, Change, Code, Error};

use super::answer::AnswerWriter;
use super::arguments::Refused;
use super::calls::PreparedWrite;
use super::{RespFront, counters, edges};
use crate::service::table::Call;
use crate::service::{self, CallContext, Caller};

/// Writes of one connection that may be under way.
const WRITES_MAX: usize = REQUEST_CHANGES_MAX;
/// The engine answers a late write itself, with what it knows of its outcome; this is how much
/// longer we wait for that.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// The answers of a request, and the token that stands for it.
type Written = Result<(Answers, Arc<str>), Error>;
type Answering = Pin<Box<dyn Future<Output = Written> + Send>>;

#[derive(Debug, Default)]
pub struct Writes {
    /// To be put into the queue together.
    gathered: Vec<AskedWrite>,
    changes: Vec<Change>,
    /// Who asked first of those.
    caller: Option<Caller>,
    under_way: VecDeque<WritesUnderWay>,
    count: usize,
    /// Nothing may be given beside what is under way.
    alone: bool,
}

/// One command that waits for its answer.
#[derive(Debug)]
struct AskedWrite {
    context: Arc<CallContext>,
    began: Instant,
    /// Why it is not in the queue.
    refused: Option<Refused>,
}

/// One request in the queue, with the commands that it stands for.
struct WritesUnderWay {
    asked: Vec<AskedWrite>,
    caller: Option<Caller>,
    answering: Option<Answering>,
    answered: Option<Written>,
    until: Instant,
}

impl std::fmt::Debug for WritesUnderWay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WritesUnderWay").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Writes {
    /// Whether any waits for its answer.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether another may be taken now.
    pub fn has_room(&self) -> bool {
        self.count < WRITES_MAX && !self.alone
    }

    /// How a write may stand beside those that are not answered yet.
    pub fn order(prepared: &PreparedWrite) -> WriteOrder {
        let PreparedWrite { caller, change } = prepared;
        match &caller.at_least {
            // It waits for its token before it is in the queue.
            [Some(_), _] => WriteOrder::Alone,
            _ if caller.key.is_some() => match caller.app.deployment.write_order(change) {
                WriteOrder::Together => WriteOrder::Apart,
                order => order,
            },
            _ => caller.app.deployment.write_order(change),
        }
    }

    /// Takes a write, or what is to be told instead of doing it.
    pub async fn take(
        &mut self,
        context: Arc<CallContext>,
        began: Instant,
        prepared: Result<(PreparedWrite, WriteOrder), Refused>,
    ) {
        self.count += 1;
        let (prepared, order) = match prepared {
            Ok(prepared) => prepared,
            Err(refused) => {
                let refused = Some(refused);
                self.gathered.push(AskedWrite { context, began, refused });
                return;
            }
        };
        if order != WriteOrder::Together {
            self.submit().await;
        }
        self.gathered.push(AskedWrite { context, began, refused: None });
        self.changes.push(prepared.change);
        self.caller.get_or_insert(prepared.caller);
        if order != WriteOrder::Together {
            self.submit().await;
        }
        self.alone |= order == WriteOrder::Alone;
    }

    /// Puts what was gathered into the queue.
    pub async fn submit(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let asked = mem::take(&mut self.gathered);
        let changes = mem::take(&mut self.changes);
        let caller = self.caller.take();
        let until = asked.last().map_or_else(Instant::now, |last| last.context.deadline);
        let mut answering = caller.clone().map(|caller| {
            let writing = async move { caller.write_all(changes).await };
            let guarded = AssertUnwindSafe(writing).catch_unwind();
            Box::pin(guarded.map(|written| written.unwrap_or_else(|_panic| Err(mistake()))))
                as Answering
        });
        let mut answered = None;
        if let Some(writing) = &mut answering {
            // It is in the queue once it was polled.
            answered = polled(writing).await;
        }
        let under_way = WritesUnderWay { asked, caller, answering, answered, until };
        self.under_way.push_back(under_way);
    }

    /// Waits until the first is done, and answers it and all behind it that are done too. May be
    /// given up at any time.
    pub async fn answer(&mut self, front: &RespFront, out: &mut AnswerWriter) {
        let Some(first) = self.under_way.front_mut() else {
            return;
        };
        first.wait().await;
        while let Some(next) = self.under_way.front_mut() {
            if !next.is_done().await {
                break;
            }
            let Some(done) = self.under_way.pop_front() else {
                break;
            };
            self.count -= done.asked.len();
            done.tell(front, out);
        }
        self.alone &= !self.under_way.is_empty();
    }
}

impl WritesUnderWay {
    async fn wait(&mut self) {
        if self.answered.is_some() {
            return;
        }
        let Some(answering) = &mut self.answering else {
            return;
        };
        let until = tokio::time::Instant::from_std(self.until + DEADLINE_GRACE);
        let written = tokio::time::timeout_at(until, answering).await;
        self.answered = Some(written.unwrap_or_else(|_elapsed| Err(late())));
    }

    async fn is_done(&mut self) -> bool {
        if self.answered.is_some() {
            return true;
        }
        let Some(answering) = &mut self.answering else {
            return true;
        };
        self.answered = polled(answering).await;
        self.answered.is_some()
    }

    /// Each command has its own answer, or the one error that all of them have.
    fn tell(self, front: &RespFront, out: &mut AnswerWriter) {
        let written = self.answered.unwrap_or_else(|| Err(mistake()));
        let (mut answers, token, failed) = match written {
            Ok((answers, token)) => (answers.into_iter(), token, None),
            Err(error) => (Vec::new().into_iter(), Arc::from(""), Some(error)),
        };
        for AskedWrite { context, began, refused } in self.asked {
            let told = match (refused, &failed, &self.caller) {
                (Some(refused), _, _) => Err(refused),
                (None, Some(error), _) => Err(Refused::Rule(error.clone())),
                (None, None, Some(caller)) => {
                    let answer = answers.next().unwrap_or_else(|| Err(mistake()));
                    let shown = answer
                        .and_then(|answer| show(&context, caller, answer, token.clone(), out));
                    shown.map_err(Refused::Rule)
                }
                (None, None, None) => Err(Refused::Rule(mistake())),
            };
            front.tell(&context, told.err(), began.elapsed(), out);
        }
    }
}

/// What it answers now, if it does; else whoever polls is told when it goes on.
async fn polled(answering: &mut Answering) -> Option<Written> {
    poll_fn(|task| match answering.as_mut().poll(task) {
        Poll::Ready(written) => Poll::Ready(Some(written)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn show(
    context: &CallContext,
    caller: &Caller,
    answer: Answer,
    token: Arc<str>,
    out: &mut AnswerWriter,
) -> Result<(), Error> {
    match context.call.map(|entry| entry.call) {
        Some(Call::Count) => {
            counters::show_counted(out, &service::counters::shown(caller, &answer, token)?);
        }
        _ => edges::show_changed(out, &service::edges::shown(answer, token)?),
    }
    Ok(())
}

fn mistake() -> Error {
    let message = "the service made a mistake; its log has the request id";
    Error::new(Code::Internal, message).outcome_unknown()
}

fn late() -> Error {
    let message = "the write has no answer in time; look whether it was done";
    Error::new(Code::DeadlineExceeded, message).outcome_unknown()
}
