//! Watching over HTTP: server-sent events of edge records.

use std::io::Write as _;
use std::sync::Arc;

use axum::http::HeaderMap;
use bytes::Bytes;
use guanxi_api::Problem;
use guanxi_api::watch::{Heartbeat, RecordView};
use guanxi_model::{Error, Secret};

use super::document::{WatchRefusals, Watched};
use super::reply::HttpAnswered;
use super::request::HttpRequest;
use super::stream;
use crate::service::streams::{self, StreamPurpose};
use crate::service::watch::{self, WatchRequest, WatchStream, WatchedEvent};

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
pub async fn watch(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["from", "kinds", "ops"])?;
    request.no_body()?;
    let caller = request.caller(&query).await?;
    let names = |parameter| query.text(parameter).into_iter().flat_map(|names| names.split(','));
    let asked = WatchRequest {
        from: query.text("from"),
        // The header wins: a browser that reconnects sends the address of its first call again.
        after: request.header(LAST_EVENT_ID)?.map(|id| (LAST_EVENT_ID, id)),
        kinds: names("kinds").collect(),
        ops: names("ops").collect(),
    };
    let asked = watch::ask(&caller, &asked).await?;
    let app = &request.app;
    let place = app.streams.place(StreamPurpose::Callers)?;
    let watch = WatchStream::begin(&caller, asked).await?;
    let request_id = request.context.request_id.clone();
    let last_item = move |error: &Error| Some(error_event(error, &request_id));
    let secret = app.deployment.secret().clone();
    let render = move |events: &[WatchedEvent]| rendered(events, &secret);
    let items = app.streams.start(place, last_item, |sender| watch.run(sender, render));
    Ok(stream::reply(CONTENT_TYPE, HeaderMap::new(), items))
}

/// These events, one after the other, as the bytes of the stream.
fn rendered(events: &[WatchedEvent], secret: &Secret) -> Option<Bytes> {
    let mut out = Vec::with_capacity(streams::ITEM_BYTES_TYPICAL);
    for event in events {
        match event {
            WatchedEvent::Record { id, time, kind, record } => {
                let write = |out: &mut Vec<u8>| {
                    let id = id.to_text(secret);
                    let view = RecordView::new(&id, *time, kind, record.edge());
                    write_event(out, "record", Some(&id), &view);
                };
                match record.sent_as() {
                    Some(sent_as) => {
                        let sent_as = sent_as.get_or_init(|| {
                            let mut out = Vec::with_capacity(RECORD_BYTES_TYPICAL);
                            write(&mut out);
                            out.into_boxed_slice()
                        });
                        out.extend_from_slice(sent_as);
                    }
                    None => write(&mut out),
                }
            }
            WatchedEvent::Heartbeat { id } => {
                let id = id.to_text(secret);
                write_event(&mut out, "heartbeat", Some(&id), &Heartbeat { id: &id });
            }
        }
    }
    Some(Bytes::from(out))
}

fn error_event(error: &Error, request_id: &Arc<str>) -> Bytes {
    let mut out = Vec::new();
    write_event(&mut out, "error", None, &Problem::new(error.clone(), request_id.clone()));
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
