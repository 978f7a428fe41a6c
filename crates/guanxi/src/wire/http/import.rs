//! Imports over HTTP: a body of any length, and where an import stands.

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::StreamExt;
use guanxi_api::import::{IMPORT_LINES_MAX, ImportAnswer, ImportPlace};
use guanxi_api::line::LineFormat;
use guanxi_model::{Code, Error};

use super::document::{AdminItemRefusals, ImportPath, ImportRefusals, Imported};
use super::query::Query;
use super::reply::{self, HttpAnswered};
use super::request::HttpRequest;
use crate::service::import::{self, ImportQuery, LastLine};

const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";

/// Imports lines, as they come.
///
/// The body is NDJSON or CSV of any length; a line is an edge, or by `type` a group, a node or a
/// counter. Each line is decided on its own, and what is rejected is named in the answer. With
/// `id`, the place is committed with the lines: a call that does not begin `after` it is a
/// `conflict`, so no line is ever taken twice. Without an end of the body, what was committed
/// stays.
#[utoipa::path(
    post, path = "/v1/admin/import", tag = "admin", operation_id = "import",
    params(Imported),
    request_body(
        description = "Lines such as \
            `{\"kind\":\"follow\",\"source\":\"1\",\"target\":\"2\"}`, or CSV under a header line.",
        content((String = "application/x-ndjson"), (String = "text/csv")),
    ),
    responses((status = 200, description = "What was done.", body = ImportAnswer), ImportRefusals),
)]
pub async fn import(request: HttpRequest, body: Body) -> HttpAnswered {
    let query = request.query(&["id", "after", "format", "ignore_limits"])?;
    let wanted = ImportQuery {
        id: query.text("id"),
        after: query.number("after", 0..=IMPORT_LINES_MAX)?.unwrap_or(0),
        format: format(&request, &query)?,
        ignore_limits: query.flag("ignore_limits")?,
        last_line: LastLine::MayBeOpen,
    };
    let broken = |_| Error::invalid("the body broke off");
    let pieces = body.into_data_stream().map(|piece| piece.map_err(broken));
    let place = import::admit(&request.app)?;
    let caller = request.caller(&query).await?;
    let answer = import::run(&caller, place, wanted, pieces).await?;
    reply::written(StatusCode::OK, &answer, &answer.token)
}

/// Says where an import stands, and what came of the lines before, of all calls together.
#[utoipa::path(
    get, path = "/v1/admin/import/{import}", tag = "admin", operation_id = "get_import",
    params(ImportPath),
    responses((status = 200, description = "Its place.", body = ImportPlace), AdminItemRefusals),
)]
pub async fn get(request: HttpRequest) -> HttpAnswered {
    let query = request.query(&[])?;
    request.no_body()?;
    let id = request.part("import").to_owned();
    reply::ok(&import::place(request.caller(&query).await?, id).await?)
}

/// What the parameter says, else what the body's type says.
fn format(request: &HttpRequest, query: &Query<'_>) -> Result<LineFormat, Error> {
    let formats = [("ndjson", LineFormat::Ndjson), ("csv", LineFormat::Csv)];
    if let Some(format) = query.word("format", &formats)? {
        return Ok(format);
    }
    let content_type = request.header("content-type")?.unwrap_or(NDJSON);
    let essence = content_type.split(';').next().unwrap_or("").trim();
    let types = [(NDJSON, LineFormat::Ndjson), (CSV, LineFormat::Csv)];
    let known = types.iter().find(|(known, _)| known.eq_ignore_ascii_case(essence));
    known.map(|(_, format)| *format).ok_or_else(|| {
        Error::new(
            Code::UnsupportedMediaType,
            format!("the body is {NDJSON} or {CSV}: say so in content-type or format"),
        )
    })
}
