//! Of the service `Admin`: imports, exports and backups, which are streams of messages.

use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use guanxi_api::import::Reject;
use guanxi_api::line::LineFormat;
use guanxi_api::proto::{
    self, BackupAnswer, BackupEnd, BackupHead, BackupRequest, ExportAnswer, ExportHead,
    ExportRequest, GetImportRequest, ImportAnswer, ImportHead, ImportPlace, ImportRequest,
    backup_answer, export_answer, import_request, timestamp,
};
use guanxi_engine::archive::{Base, Header, Place};
use guanxi_model::{Code, Error, EventId, Millis, TenantId};
use tonic::{Status, Streaming};

use super::streams::{self, Messages};
use super::{Answered, Call, status};
use crate::calls::import::{self, ImportQuery, LastLine};
use crate::calls::{backup, export};
use crate::http::stream::Purpose;

/// What the rejected lines of an answer may take: clients take messages of 4 MiB unless they are
/// told otherwise.
const REJECTS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What a named line takes beside its words.
const REJECT_BYTES: usize = 32;

pub async fn import(
    call: Call,
    mut requests: Streaming<ImportRequest>,
) -> Result<ImportAnswer, Error> {
    let place = import::admit(&call.app)?;
    let head = first(&call, &mut requests).await?;
    call.learn_kinds(head.at_least.as_deref()).await;
    let query = ImportQuery {
        id: head.id.as_deref(),
        after: Some(head.after),
        format: format(head.format)?,
        ignore_limits: head.ignore_limits,
        last_line: LastLine::MustEnd,
    };
    let caller = call.caller(&head.at_least);
    let imported = import::run(&caller, place, query, requests.map(lines)).await?;
    let rejects = named(imported.rejects);
    Ok(ImportAnswer {
        id: imported.id.map(|id| id.as_str().to_owned()),
        lines: imported.lines,
        accepted: imported.accepted,
        changed: imported.changed,
        rejected: imported.rejected,
        rejects_left_off: imported.rejected - rejects.len() as u64,
        rejects,
        token: imported.token,
    })
}

/// The head, which comes first and in time.
async fn first(call: &Call, requests: &mut Streaming<ImportRequest>) -> Result<ImportHead, Error> {
    let until = call.context.deadline.min(Instant::now() + call.app.body_timeout);
    let first = tokio::time::timeout_at(until.into(), requests.next()).await;
    let first = first.map_err(|_| {
        Error::new(Code::DeadlineExceeded, "the head of the import did not come in time")
    })?;
    match first.transpose().map_err(status::error_of)? {
        Some(ImportRequest { part: Some(import_request::Part::Head(head)) }) => Ok(head),
        _ => Err(Error::invalid("head: an import's first message has it")),
    }
}

/// The piece that a message after the first one carries.
fn lines(request: Result<ImportRequest, Status>) -> Result<Bytes, Error> {
    match request.map_err(status::error_of)?.part {
        Some(import_request::Part::Lines(lines)) => Ok(lines),
        Some(import_request::Part::Head(_)) => Err(Error::invalid(
            "head: only an import's first message has it; the others have lines",
        )),
        None => Err(Error::invalid("lines: every message of an import after its head has them")),
    }
}

/// As many rejected lines as fit a message.
fn named(rejects: Vec<Reject>) -> Vec<proto::Reject> {
    let mut room = REJECTS_BYTES_MAX;
    let fits = rejects.into_iter().map_while(|reject| {
        room = room.checked_sub(REJECT_BYTES + reject.error.message.len())?;
        Some(proto::Reject::from(reject))
    });
    fits.collect()
}

pub async fn get_import(call: Call, request: GetImportRequest) -> Result<ImportPlace, Error> {
    let (id, row) = import::place(&call.caller(&request.at_least), &request.id).await?;
    let rejects = named(row.rejects.iter().cloned().map(Reject::from).collect());
    Ok(ImportPlace {
        id: id.as_str().to_owned(),
        lines: row.lines,
        rejected: row.rejected,
        at: Some(timestamp(row.at)),
        digest: row.digest.to_text(),
        accepted: row.accepted,
        changed: row.changed,
        rejects_left_off: row.rejected - rejects.len() as u64,
        rejects,
    })
}

pub async fn export(call: Call, request: ExportRequest) -> Answered<Messages<ExportAnswer>> {
    let place = streams::place(&call, Purpose::Callers)?;
    let begun = async {
        call.learn_kinds(request.at_least.as_deref()).await;
        let format = format(request.format)?;
        let caller = call.caller(&request.at_least);
        export::begin(&caller, request.kind.as_deref(), format).await
    };
    let export = begun.await.map_err(status::refusal)?;
    let message = |part| Ok(vec![ExportAnswer { part: Some(part) }]);
    streams::start(call, place, move |sender| async move {
        let head = ExportHead { position: export.position.clone() };
        sender.send(message(export_answer::Part::Head(head))).await?;
        export.run(sender.paced(), |lines| message(export_answer::Part::Lines(lines))).await
    })
}

pub async fn backup(call: Call, request: BackupRequest) -> Answered<Messages<BackupAnswer>> {
    let place = streams::place(&call, Purpose::Copies)?;
    let (app, tenant) = (call.app.clone(), call.tenant());
    let caller = call.caller(&request.at_least);
    let begun = backup::begin(&caller, &app, request.after.as_deref()).await;
    let backup = begun.map_err(status::refusal)?;
    let message = |part| Ok(vec![BackupAnswer { part: Some(part) }]);
    streams::start(call, place, move |sender| async move {
        let head = backup_head(backup.header(), tenant);
        sender.send(message(backup_answer::Part::Head(head))).await?;
        let mut sender = sender.paced();
        let piece = |archive| message(backup_answer::Part::Archive(archive));
        let sent = backup::send(&app, backup, &mut sender, piece)
            .await
            .inspect_err(|error| tracing::warn!(%error, "a backup was cut off"))?;
        app.metrics.backed_up(sent.bytes);
        let Place { epoch, position, commit } = sent.place;
        let end = BackupEnd {
            position: EventId { tenant, epoch, position }.to_text(app.deployment.secret()),
            committed_at: (commit > Millis(0)).then(|| timestamp(commit)),
        };
        sender.send(message(backup_answer::Part::End(end)), 0).await
    })
}

fn backup_head(header: &Header, tenant: TenantId) -> BackupHead {
    let (full, epoch, position) = match header.base {
        Base::Rows(applied) => (true, applied.epoch, applied.position),
        Base::After(place) => (false, place.epoch, place.position),
    };
    BackupHead {
        created_at: Some(timestamp(header.created)),
        full,
        position: EventId { tenant, epoch, position }.to_text(&header.secret),
    }
}

fn format(number: i32) -> Result<LineFormat, Error> {
    match proto::LineFormat::try_from(number) {
        Ok(proto::LineFormat::Unspecified | proto::LineFormat::Ndjson) => Ok(LineFormat::Ndjson),
        Ok(proto::LineFormat::Csv) => Ok(LineFormat::Csv),
        Err(_) => Err(Error::invalid("format: it is LINE_FORMAT_NDJSON or LINE_FORMAT_CSV")),
    }
}
