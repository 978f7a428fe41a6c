//! Imports: a body of any length is cut into lines, read and committed chunk by chunk while it
//! comes. With an id, the import's place is kept with its lines.

mod chunks;

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use guanxi_api::import::{IMPORT_LINES_MAX, ImportAnswer, ImportPlace};
use guanxi_api::line::{Columns, LINE_BYTES_MAX, Line, LineCutter, LineFormat};
use guanxi_api::{Object, Time};
use guanxi_model::import::ImportId;
use guanxi_model::{Catalog, Change, Code, Error, TenantId};
use http_body_util::BodyExt;

use self::chunks::Chunks;
use super::document::{AdminItemRefusals, ImportPath, ImportRefusals, Imported};
use super::extract::{Call, OpenCall};
use super::query::Query;
use super::reply::{Answered, Reply};

const NDJSON: &str = "application/x-ndjson";
const CSV: &str = "text/csv";
/// A sender that pauses for so long has what it sent committed meanwhile.
const LINGER: Duration = Duration::from_millis(50);

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
pub async fn import(open: OpenCall) -> Answered {
    let OpenCall { call, body } = open;
    let query = call.query(&["id", "after", "format", "ignore_limits"])?;
    let id = query.text("id").map(ImportId::new).transpose()?;
    let after = query.number("after", 0..=IMPORT_LINES_MAX)?.unwrap_or(0);
    let format = format(&call, &query)?;
    let ignore_limits = query.flag("ignore_limits")?;
    call.meet(&query).await?;
    let place = call.app.imports.clone().try_acquire_owned();
    let _place = place.map_err(|_| {
        Error::new(Code::Overloaded, "as many imports as the service takes are running; try later")
    })?;
    let catalog = call.app.deployment.catalog();
    let reading = Reading { tenant: call.tenant(), catalog: &catalog, ignore_limits };
    let mut chunks = Chunks::new(call.app.deployment.clone(), call.tenant(), id, after);
    let read = read(&call, body, format, reading, &mut chunks).await;
    // What was sent before a failure is as good as any: it is waited for, and counted.
    let settled = chunks.settle_all().await;
    if let Err(error) = read.and(settled) {
        return Err(chunks.stopped_at(error).into());
    }
    let token = chunks.token().await?;
    let done = chunks.done();
    let answer = ImportAnswer {
        id: chunks.id().map(ImportId::as_str),
        lines: done.lines,
        accepted: done.accepted,
        changed: done.changed,
        rejected: done.rejected,
        rejects_left_off: done.rejected - done.rejects.len() as u64,
        rejects: done.rejects,
        token: &token,
    };
    Ok(Reply::ok(&answer)?.with_token(&token))
}

/// Says where an import stands.
#[utoipa::path(
    get, path = "/v1/admin/import/{import}", tag = "admin", operation_id = "get_import",
    params(ImportPath),
    responses((status = 200, description = "Its place.", body = ImportPlace), AdminItemRefusals),
)]
pub async fn get(call: Call) -> Answered {
    let query = call.query(&[])?;
    call.no_body()?;
    let id = ImportId::new(call.name("import"))?;
    let (tenant, wanted) = (call.tenant(), id.clone());
    let read = call.caller(&query)?.read(move |reader| reader.import(tenant, &wanted)).await?;
    let row = read.ok_or_else(|| {
        Error::new(Code::NotFound, format!("there is no import '{}'", id.as_str()))
    })?;
    let (lines, rejected, at) = (row.lines, row.rejected, Time(row.at));
    Reply::ok(&ImportPlace { id: id.as_str(), lines, rejected, at })
}

/// What the parameter says, else what the body's type says.
fn format(call: &Call, query: &Query<'_>) -> Result<LineFormat, Error> {
    let formats = [("ndjson", LineFormat::Ndjson), ("csv", LineFormat::Csv)];
    if let Some(format) = query.word("format", &formats)? {
        return Ok(format);
    }
    let content_type = call.header("content-type")?.unwrap_or(NDJSON);
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

/// How lines become changes.
struct Reading<'a> {
    tenant: TenantId,
    catalog: &'a Catalog,
    ignore_limits: bool,
}

impl Reading<'_> {
    /// None for an empty line, which says nothing.
    fn change(&self, columns: Option<&Columns>, line: &[u8]) -> Result<Option<Change>, Error> {
        if line.len() > LINE_BYTES_MAX {
            let message = format!("the line has more than {LINE_BYTES_MAX} bytes");
            return Err(Error::new(Code::TooLarge, message));
        }
        if line.trim_ascii().is_empty() {
            return Ok(None);
        }
        let line = match columns {
            Some(columns) => columns.line(line)?,
            None => json(line)?,
        };
        line.into_change(self.tenant, self.catalog, self.ignore_limits).map(Some)
    }
}

fn json(line: &[u8]) -> Result<Line<'_>, Error> {
    serde_json::from_slice::<Object<Line<'_>>>(line).map(|line| line.0).map_err(|error| {
        // The number of the line in its file is told beside the error.
        Error::invalid(error.to_string().replace(" at line 1 column", " at column"))
    })
}

/// Reads the body to its end.
async fn read(
    call: &Call,
    mut body: Body,
    format: LineFormat,
    reading: Reading<'_>,
    chunks: &mut Chunks,
) -> Result<(), Error> {
    let mut cutter = LineCutter::new(format);
    let mut header = Header::of(format);
    while let Some(bytes) = next(call, &mut body, chunks).await? {
        cutter.feed(&bytes, &mut |line| header.take(line, &reading, chunks));
        header.check()?;
        chunks.submit_full().await?;
    }
    cutter.finish(&mut |line| header.take(line, &reading, chunks));
    header.check()?;
    chunks.submit_all().await
}

/// The next piece of the body; none at its end.
async fn next(call: &Call, body: &mut Body, chunks: &mut Chunks) -> Result<Option<Bytes>, Error> {
    loop {
        let frame = match tokio::time::timeout(LINGER, body.frame()).await {
            Ok(frame) => frame,
            Err(_) => {
                chunks.submit_all().await?;
                let stall = call.app.body_timeout;
                tokio::time::timeout(stall, body.frame()).await.map_err(|_| {
                    let message = format!("no more of the body came for {} ms", stall.as_millis());
                    Error::new(Code::DeadlineExceeded, message)
                })?
            }
        };
        if call.app.is_stopping() {
            return Err(Error::new(Code::Unavailable, "the service is stopping"));
        }
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Error::invalid("the body broke off")),
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// The first line of CSV, which names the columns.
enum Header {
    Needless,
    Missing,
    Wrong(Error),
    Read(Columns),
}

impl Header {
    fn of(format: LineFormat) -> Header {
        match format {
            LineFormat::Ndjson => Header::Needless,
            LineFormat::Csv => Header::Missing,
        }
    }

    fn take(&mut self, line: &[u8], reading: &Reading<'_>, chunks: &mut Chunks) {
        let columns = match self {
            Header::Needless => None,
            Header::Read(columns) => Some(&*columns),
            Header::Wrong(_) => return,
            Header::Missing => {
                *self = match Columns::read(line) {
                    Ok(columns) => Header::Read(columns),
                    Err(error) => Header::Wrong(error),
                };
                // Whoever goes on in the middle sends it again; it is counted once.
                chunks.skip_first_line();
                return;
            }
        };
        chunks.take(reading.change(columns, line));
    }

    /// Without knowing the columns there is no reading on.
    fn check(&self) -> Result<(), Error> {
        match self {
            Header::Wrong(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }
}
