//! Exports over HTTP: lines, and in a header the position that they are true at.

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use guanxi_api::line::LineFormat;

use super::document::{ExportRefusals, ExportedAs};
use super::reply::HttpAnswered;
use super::request::HttpRequest;
use super::stream;
use crate::service::export;
use crate::service::streams::{StreamPurpose, StreamSender};

/// Where watch goes on without a gap.
const POSITION: &str = "guanxi-position";

/// Streams everything, or one kind, as it stood at one position.
///
/// Lines as an import reads them: per kind its groups and edges, then nodes' settings and
/// counters. The header `guanxi-position` is an event id: watch from there has no gap. An export
/// that was cut short breaks off instead of ending.
#[utoipa::path(
    get, path = "/v1/admin/export", tag = "admin", operation_id = "export",
    params(ExportedAs),
    responses(
        (
            status = 200, description = "The lines.",
            content((String = "application/x-ndjson"), (String = "text/csv")),
            headers(("guanxi-position" = String, description = "Watch from here has no gap.")),
        ),
        ExportRefusals,
    ),
)]
pub async fn export(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&["kind", "format"])?;
    request.no_body()?;
    let formats = [("ndjson", LineFormat::Ndjson), ("csv", LineFormat::Csv)];
    let format = query.word("format", &formats)?.unwrap_or(LineFormat::Ndjson);
    let place = request.app.streams.place(StreamPurpose::Callers)?;
    let export = export::begin(&request.caller(&query).await?, query.text("kind"), format).await?;
    let mut headers = HeaderMap::new();
    if let Ok(value) = HeaderValue::from_str(&export.position) {
        headers.insert(POSITION, value);
    }
    let make = |sender: StreamSender<Bytes>| export.run(sender.paced(), |piece| piece);
    let items = request.app.streams.start(place, |_| None, make);
    let content_type = match format {
        LineFormat::Ndjson => "application/x-ndjson",
        LineFormat::Csv => "text/csv",
    };
    Ok(stream::reply(content_type, headers, items))
}
