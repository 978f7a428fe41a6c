//! `guanxi watch`: prints the records of edges as they are committed. When the connection breaks
//! it goes on after the last event that it has seen, so that nothing is missed or shown twice.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_api::state::WireState;
use guanxi_api::watch::{RecordView, RowView};

use super::client::{ClientAnswer, failure_of, lenient};
use super::interrupt::Interrupt;
use super::output::{Style, shown};
use super::{CommandContext, arguments};
use crate::failure::{Exit, Failure};

const ADDRESS: &str = "/v1/watch";
/// A line of an event is a record with its data; this only stops what is no event.
const LINE_BYTES_MAX: u64 = 1024 * 1024;
/// Pauses between tries to connect again double from the first to the last of these.
const PAUSE_MIN: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A server that stays away for longer is not being restarted: better to say so and end.
const AWAY_MAX: Duration = Duration::from_secs(600);
/// A wait for the next event cannot be interrupted; after so long the process simply ends.
const INTERRUPT_GRACE: Duration = Duration::from_millis(200);

const EXAMPLES: &str = "\
Examples:
  guanxi watch
  guanxi watch --from earliest --kinds follow,block
  guanxi watch --ops put,delete --json | jq -r .target
  guanxi watch --from EVENT      # goes on after the event of this id";

/// Prints changes of edges as they happen, until Ctrl-C.
///
/// Each change once and in order, in a cluster at least once, where versions tell which is newer;
/// a broken connection is taken up where it broke.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WatchCommand {
    /// now, earliest (as far back as the log goes), or the id of an event to go on after.
    #[arg(long, value_name = "now|earliest|EVENT", default_value = "now")]
    from: String,
    /// Only these kinds.
    #[arg(long, value_delimiter = ',', value_name = "KIND,…", value_parser = arguments::name)]
    kinds: Vec<String>,
    /// Only these causes: put, delete, approve, decline, move, expire, cut, erase, import, repair.
    #[arg(long, value_delimiter = ',', value_name = "OP,…")]
    ops: Vec<String>,
}

impl WatchCommand {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        let interrupt = Interrupt::catch(INTERRUPT_GRACE, 0, "")?;
        let mut last_id = None;
        let answer = self.connect(context, None)?;
        let mut broken = follow(context, answer, &mut last_id, &interrupt)?;
        while !interrupt.is_set() {
            context.output.flush()?;
            // A closed stderr is no reason to stop.
            let _ = writeln!(io::stderr(), "guanxi: {broken}; connecting again");
            let answer = self.reconnect(context, last_id.as_deref(), &interrupt)?;
            broken = follow(context, answer, &mut last_id, &interrupt)?;
        }
        Ok(())
    }

    fn connect(
        &self,
        context: &CommandContext,
        last_id: Option<&str>,
    ) -> Result<ClientAnswer, Failure> {
        let listed = |names: &[String]| (!names.is_empty()).then(|| names.join(","));
        let request = context.client.get(ADDRESS).query("from", &self.from);
        let request = request.query_if("kinds", listed(&self.kinds));
        let request = request.query_if("ops", listed(&self.ops));
        let request = match last_id {
            Some(id) => request.header("last-event-id", id),
            None => request,
        };
        request.header("accept", "text/event-stream").send_for_stream()
    }

    fn reconnect(
        &self,
        context: &CommandContext,
        last_id: Option<&str>,
        interrupt: &Interrupt,
    ) -> Result<ClientAnswer, Failure> {
        let begun = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            thread::sleep(pause);
            match self.connect(context, last_id) {
                Err(failure)
                    if may_pass(&failure) && begun.elapsed() < AWAY_MAX && !interrupt.is_set() =>
                {
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                Err(failure) => return Err(resumable(failure, last_id)),
                Ok(answer) => return Ok(answer),
            }
        }
    }
}

/// Whether it is worth to try again: the server is away, or says so itself.
fn may_pass(failure: &Failure) -> bool {
    failure.retryable || (failure.code.is_none() && failure.exit == Exit::Failed)
}

/// Nobody should have to begin again because a connection broke.
fn resumable(failure: Failure, last_id: Option<&str>) -> Failure {
    match last_id {
        Some(id) if may_pass(&failure) => failure.next(format!("go on with --from {id}")),
        _ => failure,
    }
}

/// Prints the events of one connection; returns why it ended if another one may go on.
fn follow(
    context: &mut CommandContext,
    answer: ClientAnswer,
    last_id: &mut Option<String>,
    interrupt: &Interrupt,
) -> Result<String, Failure> {
    let mut events = Events { lines: answer.into_reader() };
    loop {
        let event = match events.next() {
            Ok(Some(event)) => event,
            Ok(None) => return Ok("the server ended the stream".to_owned()),
            Err(error) => return Ok(format!("the connection broke: {error}")),
        };
        match event.name.as_str() {
            "record" => print(context, &event.data)?,
            "error" => {
                let failure = failure_of(&event.data)
                    .unwrap_or_else(|| Failure::failed("the server ended the stream"));
                return match may_pass(&failure) {
                    true => Ok(failure.message().to_owned()),
                    false => Err(failure),
                };
            }
            // Heartbeats only move the id on.
            _ => {}
        }
        *last_id = event.id.or(last_id.take());
        // Whoever reads along should see an event now; a long past is printed in large pieces.
        if events.lines.buffer().is_empty() {
            context.output.flush()?;
        }
        if interrupt.is_set() {
            return Ok("interrupted".to_owned());
        }
    }
}

fn print(context: &mut CommandContext, record: &str) -> Result<(), Failure> {
    let output = &mut context.output;
    if output.json() {
        return output.line(record);
    }
    let record =
        serde_json::from_str(record).and_then(|record| lenient::read::<RecordView>(&record));
    let RecordView { time, op, kind, source, target, new, .. } = record.map_err(|error| {
        Failure::failed(format!("the server sent an event that is no record: {error}"))
    })?;
    let mut line = format!(
        "{}  {:<7}  {} {} → {}",
        output.paint(Style::Faint, &shown(&time)),
        shown(&op),
        shown(&kind),
        shown(&source),
        shown(&target),
    );
    let RowView { state, group, owner, data, expires_at, .. } = new;
    let style = match state {
        WireState::Live => Style::Good,
        WireState::Pending => Style::Warning,
        WireState::Removed => Style::Bad,
    };
    line.push_str(&format!("  {}", output.paint(style, state.name())));
    let further = [
        ("group", group.map(|group| shown(&group))),
        ("owner", owner.map(|owner| shown(&owner))),
        ("data", data.map(|data| shown(&data))),
        ("expires_at", expires_at.map(|time| shown(&time))),
    ];
    for (name, value) in further {
        if let Some(value) = value {
            line.push_str(&format!("  {name} {value}"));
        }
    }
    output.line(&line)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct SentEvent {
    name: String,
    id: Option<String>,
    data: String,
}

/// Server-sent events as they come off the wire.
struct Events<R> {
    lines: BufReader<R>,
}

impl<R: Read> Events<R> {
    /// The next whole event; none at the end. What is cut off in the middle is no event.
    fn next(&mut self) -> io::Result<Option<SentEvent>> {
        let mut event = SentEvent::default();
        loop {
            let mut line = Vec::new();
            self.lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
            let Some(line) = line.strip_suffix(b"\n") else {
                return match line.len() as u64 {
                    LINE_BYTES_MAX => Err(io::Error::other("an event is too long")),
                    _ => Ok(None),
                };
            };
            let line = String::from_utf8_lossy(line);
            let line = line.trim_end_matches('\r');
            if line.is_empty() {
                if event == SentEvent::default() {
                    continue;
                }
                return Ok(Some(event));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "event" => event.name = value.to_owned(),
                "id" => event.id = Some(value.to_owned()),
                "data" if event.data.is_empty() => event.data = value.to_owned(),
                "data" => event.data = format!("{}\n{value}", event.data),
                // A comment, or a field that is none of ours.
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Vec<SentEvent> {
        let mut events = Events { lines: BufReader::with_capacity(3, text.as_bytes()) };
        std::iter::from_fn(|| events.next().unwrap()).collect()
    }

    #[test]
    fn events_are_read_as_the_standard_says() {
        let event = |name: &str, id: Option<&str>, data: &str| SentEvent {
            name: name.into(),
            id: id.map(str::to_owned),
            data: data.into(),
        };
        let read = events(
            ": hello\n\nevent: record\nid: 1-2\ndata: {\"a\":1}\n\nid:7\r\ndata:x\r\ndata: y\r\n\r\n",
        );
        assert_eq!(read, [event("record", Some("1-2"), "{\"a\":1}"), event("", Some("7"), "x\ny")]);
        assert_eq!(events("event: record\nid: 3\ndata: cut o"), [], "no half event");
        assert_eq!(events(""), []);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let endless = vec![b'x'; LINE_BYTES_MAX as usize + 10];
        let mut events = Events { lines: BufReader::new(&endless[..]) };
        assert!(events.next().is_err());
    }
}
