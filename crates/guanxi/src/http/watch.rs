//! Watching over HTTP: server-sent events of edge records.

use std::io::Write as _;

use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use guanxi_api::Problem;
use guanxi_api::watch::{Heartbeat, RecordView};
use guanxi_model::{Error, Secret};

use super::document::{WatchRefusals, Watched};
use super::extract::Call;
use super::problem::Refusal;
use super::query::Query;
use super::stream::{self, Purpose};
use crate::watch::{
    Event, Watch, WatchFrom, WatchQuery, WatchedRecord, op_named, place_after, place_named,
};

const CONTENT_TYPE: &str = "text/event-stream";
/// Where a reader that was cut off says that it was; browsers do so by themselves.
const LAST_EVENT_ID: &str = "last-event-id";
/// Most records are smaller; larger ones grow.
const RECORD_BYTES_TYPICAL: usize = 512;

/// Streams the records of edges as they are committed, exactly once and in order; in a cluster at
/// least once, in order for each target.
///
/// Server-sent events. `record` carries a Record; `heartbeat`, at the start and whenever nothing
/// was sent for a while, a Heartbeat; `error` a Problem, and then the stream ends. To read on
/// after an event, present its id.
#[utoipa::path(
    get, path = "/v1/watch", tag = "watch", operation_id = "watch",
    params(Watched),
    responses(
        (
            status = 200, description = "Events, until one side ends the stream.",
            content_type = "text/event-stream", body = String,
        ),
        WatchRefusals,
    ),
)]
pub async fn watch(call: Call) -> Result<Response, Refusal> {
    let query = call.query(&["from", "kinds", "ops"])?;
    call.no_body()?;
    let asked = asked(&call, &query).await?;
    let app = &call.app;
    let place = app.streams.place(Purpose::Callers)?;
    call.meet(&query).await?;
    let watch =
        Watch::begin(app.deployment.clone(), app.metrics.clone(), asked, app.heartbeat).await?;
    let request_id = call.context.request_id.clone();
    let last_item = move |error: &Error| Some(error_event(error, &request_id));
    let secret = app.deployment.secret().clone();
    let render = move |events: &[Event]| rendered(events, &secret);
    let items = app.streams.start(place, last_item, |sender| watch.run(sender, render));
    Ok(stream::reply(CONTENT_TYPE, HeaderMap::new(), items))
}

async fn asked(call: &Call, query: &Query<'_>) -> Result<WatchQuery, Error> {
    let mut kinds = Vec::new();
    for name in query.text("kinds").into_iter().flat_map(|names| names.split(',')) {
        let kind = call.caller(query)?.kind_named(name).await?;
        kind.require_edges()?;
        kinds.push(kind);
    }
    let mut ops = Vec::new();
    for name in query.text("ops").into_iter().flat_map(|names| names.split(',')) {
        ops.push(op_named(name)?);
    }
    Ok(WatchQuery { tenant: call.tenant(), from: from(call, query)?, kinds, ops })
}

/// The header wins: a browser that reconnects sends the address of its first call again.
fn from(call: &Call, query: &Query<'_>) -> Result<WatchFrom, Error> {
    let deployment = &call.app.deployment;
    let asked = place_named(deployment, query.text("from"), call.tenant())?;
    match call.header(LAST_EVENT_ID)? {
        Some(text) => place_after(deployment, LAST_EVENT_ID, text, call.tenant()),
        None => Ok(asked),
    }
}

/// These events, one after the other, as the bytes of the stream.
fn rendered(events: &[Event], secret: &Secret) -> Option<Bytes> {
    let mut out = Vec::with_capacity(stream::ITEM_BYTES_TYPICAL);
    for event in events {
        match event {
            Event::Record { id, time, kind, record } => {
                let write = |out: &mut Vec<u8>| {
                    let id = id.to_text(secret);
                    let view = RecordView::new(&id, *time, kind, record.edge());
                    write_event(out, "record", Some(&id), &view);
                };
                match record {
                    WatchedRecord::Log(record) => {
                        let sent_as = record.sent_as.get_or_init(|| {
                            let mut out = Vec::with_capacity(RECORD_BYTES_TYPICAL);
                            write(&mut out);
                            out.into_boxed_slice()
                        });
                        out.extend_from_slice(sent_as);
                    }
                    // Its id depends on what the watcher has read of other partitions.
                    WatchedRecord::Topic(_) => write(&mut out),
                }
            }
            Event::Heartbeat { id } => {
                let id = id.to_text(secret);
                write_event(&mut out, "heartbeat", Some(&id), &Heartbeat { id: &id });
            }
        }
    }
    Some(Bytes::from(out))
}

fn error_event(error: &Error, request_id: &str) -> Bytes {
    let mut out = Vec::new();
    write_event(&mut out, "error", None, &Problem::new(error, request_id));
    Bytes::from(out)
}

/// JSON has no line breaks of its own, so one line holds all of it.
fn write_event(out: &mut Vec<u8>, name: &str, id: Option<&str>, data: &impl serde::Serialize) {
    // Writing into memory cannot fail.
    let _ = writeln!(out, "event: {name}");
    if let Some(id) = id {
        let _ = writeln!(out, "id: {id}");
    }
    out.extend_from_slice(b"data: ");
    let _ = serde_json::to_writer(&mut *out, data);
    out.extend_from_slice(b"\n\n");
}
