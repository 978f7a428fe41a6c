//! One connection's talk: its commands in order, each answered in its place. What is no write is done
//! at once, when the writes before it are answered; so a read sees them. Whoever has the socket gives
//! it bytes, asks it to go on, and sends what it has written.

use std::future::poll_fn;
use std::io;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use guanxi_core::deployment::WriteOrder;
use guanxi_model::{Code, Error};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::AnswerWriter;
use super::arguments::{Arguments, Refused};
use super::calls::{self, ReadCall, WriteCall};
use super::client::Client;
use super::command::{Broken, CommandReader};
use super::writes::Writes;
use super::{RespFront, client};
use crate::service::CallContext;
use crate::service::table::CallEntry;
use crate::wire::answers::AnswerShare;
use crate::wire::bodies::BodyShare;

/// Answers that are gathered before they are sent.
const ANSWERS_BYTES_MAX: usize = 64 * 1024;
/// Commands that are done before others have their turn.
const COMMANDS_AT_ONCE: usize = 256;
/// A read's own deadline is met by what it waits for; this is how much longer we wait for that.
const DEADLINE_GRACE: Duration = Duration::from_millis(500);

/// Why a connection does not go on by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pause {
    /// The next command has not come.
    Starved,
    /// Writes must be answered first.
    Waits,
    /// Others have their turn, and what is written is sent.
    Turn,
    /// It ends when what is written is sent.
    Over,
    /// It ends at once.
    Cut,
}

/// What was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Came {
    Bytes,
    Answers,
    /// The client sends no more.
    End,
}

#[derive(Debug)]
pub struct RespConversation {
    front: Arc<RespFront>,
    client: Client,
    input: CommandReader,
    input_share: Arc<BodyShare>,
    writes: Writes,
    out: AnswerWriter,
    out_share: AnswerShare,
    /// Held from the first call until its answer was sent.
    place: Option<OwnedSemaphorePermit>,
    broken: Option<Broken>,
    over: bool,
}

impl RespConversation {
    pub fn new(front: Arc<RespFront>) -> RespConversation {
        RespConversation {
            client: Client::new(front.next_client()),
            input: CommandReader::new(front.command_bytes_max()),
            input_share: front.commands_share(),
            writes: Writes::default(),
            out: AnswerWriter::new(),
            out_share: front.answers_share(),
            place: None,
            broken: None,
            over: false,
            front,
        }
    }

    /// Waits for more from the client, when `reads`, and for the answers of writes that are under way.
    /// May be given up at any time.
    pub async fn wait(
        &mut self,
        socket: &mut (impl AsyncRead + Unpin),
        reads: bool,
    ) -> io::Result<Came> {
        let waits = self.is_waiting();
        let RespConversation { front, input, writes, out, .. } = self;
        let came = tokio::select! {
            biased;
            () = writes.answer(front, out), if waits => Came::Answers,
            count = socket.read_buf(input.room()), if reads => match count? {
                0 => Came::End,
                _ => Came::Bytes,
            },
        };
        match came {
            // What a write has done is told, whatever room there is.
            Came::Answers => {
                let _held = self.out_share.hold(self.out.len(), true);
            }
            Came::Bytes if !self.input_share.holds(self.input.held_bytes()) => {
                self.broken = self.input_share.refusal().map(Broken::TooLong);
            }
            Came::Bytes | Came::End => {}
        }
        Ok(came)
    }

    /// Whether there is anything to go on with.
    pub fn has_work(&mut self) -> bool {
        if self.over || self.broken.is_some() {
            return true;
        }
        match self.input.next() {
            Ok(whole) => whole,
            Err(broken) => {
                self.broken = Some(broken);
                true
            }
        }
    }

    /// Whether writes are under way.
    pub fn is_waiting(&self) -> bool {
        !self.writes.is_empty()
    }

    /// Whether a part of a command is there.
    pub fn is_amid(&self) -> bool {
        self.input.is_amid()
    }

    /// What is to be sent.
    pub fn out(&self) -> &[u8] {
        self.out.bytes()
    }

    /// All of it was sent.
    pub fn sent(&mut self) {
        self.out.clear();
        self.out_share.release();
        if self.writes.is_empty() {
            self.place = None;
        }
    }

    /// Does what can be done.
    pub async fn go_on(&mut self) -> Pause {
        let mut pause = Pause::Turn;
        for _ in 0..COMMANDS_AT_ONCE {
            if let Some(stop) = self.next().await {
                pause = stop;
                break;
            }
            if self.out.len() >= ANSWERS_BYTES_MAX {
                break;
            }
        }
        self.writes.submit().await;
        self.input_share.shrink(self.input.held_bytes());
        pause
    }

    async fn next(&mut self) -> Option<Pause> {
        if self.over {
            return Some(Pause::Over);
        }
        if !self.writes.has_room() {
            return Some(Pause::Waits);
        }
        if !self.has_work() {
            return Some(Pause::Starved);
        }
        if self.broken.is_none() {
            return self.one().await;
        }
        if self.is_waiting() {
            return Some(Pause::Waits);
        }
        match self.broken.take() {
            Some(Broken::Protocol(what)) => self.out.error(&format!("ERR {what}")),
            Some(Broken::TooLong(error)) => self.out.refusal(error, &self.client.request_id),
            Some(Broken::Http) => {
                tracing::debug!("a client of HTTP speaks to the RESP listener; it is closed");
                return Some(Pause::Cut);
            }
            None => {}
        }
        self.over = true;
        Some(Pause::Over)
    }

    /// Does the command that has come; or leaves it until the writes before it are answered.
    async fn one(&mut self) -> Option<Pause> {
        let command = self.input.command();
        let done = match calls::find(command) {
            Some(entry) if entry.writes => self.write(entry).await,
            _ if self.is_waiting() => false,
            Some(entry) => {
                self.read(entry).await;
                true
            }
            None => {
                self.own();
                true
            }
        };
        if !done {
            return Some(Pause::Waits);
        }
        self.input.consume();
        None
    }

    /// Takes a write; false when it must wait for those before it.
    async fn write(&mut self, entry: &'static CallEntry) -> bool {
        let began = Instant::now();
        let RespConversation { front, client, input, writes, place, .. } = self;
        let context = calls::context(front, &client.request_id, entry, began);
        let placed = held(place, front);
        let prepared = match placed {
            Err(error) => Err(Refused::Rule(error)),
            Ok(()) => {
                let arguments = Arguments::of(input.command());
                let writing = WriteCall { front, context: &context, arguments };
                in_time(&context, pin!(calls::prepare(entry.call, &writing))).await
            }
        };
        let prepared = prepared.map(|prepared| {
            let order = Writes::order(&prepared);
            (prepared, order)
        });
        if matches!(prepared, Ok((_, WriteOrder::Alone))) && !writes.is_empty() {
            return false;
        }
        writes.take(context, began, prepared).await;
        true
    }

    async fn read(&mut self, entry: &'static CallEntry) {
        let began = Instant::now();
        let RespConversation { front, client, input, out, out_share, place, .. } = self;
        let context = calls::context(front, &client.request_id, entry, began);
        let begin = out.len();
        let mut told = match held(place, front) {
            Err(error) => Err(Refused::Rule(error)),
            Ok(()) => {
                let arguments = Arguments::of(input.command());
                let reading = ReadCall { front, context: &context, arguments, out };
                in_time(&context, pin!(calls::read(entry.call, reading))).await
            }
        };
        if told.is_ok() {
            told = out_share.hold(out.len(), false).map_err(Refused::Rule);
        }
        if told.is_err() {
            out.cut(begin);
        }
        front.tell(&context, told.err(), began.elapsed(), out);
    }

    fn own(&mut self) {
        let RespConversation { front, client, input, out, over, .. } = self;
        let command = input.command();
        let begin = out.len();
        if let Err(refused) = client::answer(command, client, front, out) {
            out.cut(begin);
            out.refused(refused, &client.request_id);
        }
        *over |= client.quits;
    }
}

/// A place among the requests under way, taken once until all is sent.
fn held(place: &mut Option<OwnedSemaphorePermit>, front: &RespFront) -> Result<(), Error> {
    if place.is_none() {
        *place = Some(front.place()?);
    }
    Ok(())
}

/// What is asked, or what is told when it does not come in time, or fails. Most of it is there at
/// once, and then no timer is set.
async fn in_time<T>(
    context: &CallContext,
    handling: Pin<&mut impl Future<Output = Result<T, Refused>>>,
) -> Result<T, Refused> {
    let mut handled = AssertUnwindSafe(handling).catch_unwind();
    let at_once = poll_fn(|task| match Pin::new(&mut handled).poll(task) {
        Poll::Ready(answered) => Poll::Ready(Some(answered)),
        Poll::Pending => Poll::Ready(None),
    });
    let until = context.deadline + DEADLINE_GRACE;
    let answered = match at_once.await {
        Some(answered) => Ok(answered),
        None => tokio::time::timeout_at(until.into(), handled).await,
    };
    match answered {
        Ok(Ok(answered)) => answered,
        Ok(Err(_panic)) => {
            let message = "the service made a mistake; its log has the request id";
            Err(Error::new(Code::Internal, message).into())
        }
        Err(_elapsed) => {
            let message = "there is no answer in time; try again";
            Err(Error::new(Code::DeadlineExceeded, message).into())
        }
    }
}
