//! Of the service `Admin`: imports, exports and backups, which are streams of messages.

use std::time::Instant;

use bytes::Bytes;
use futures_util::StreamExt;
use guanxi_api::import;
use guanxi_api::line::LineFormat;
use guanxi_api::proto::{
    self, BackupAnswer, BackupEnd, BackupHead, BackupRequest, ExportAnswer, ExportHead,
    ExportRequest, ImportHead, ImportRequest, backup_answer, export_answer, import_request,
    timestamp,
};
use guanxi_embedded::archive::{ArchiveBase, ArchiveHeader, LogPlace};
use guanxi_model::{Code, Error, EventId, Millis, TenantId};
use tonic::{Request, Status, Streaming};

use super::streams::{self, Messages};
use super::{GrpcAnswered, Services, status};
use crate::service::import::{ImportQuery, LastLine, admit, run};
use crate::service::streams::StreamPurpose;
use crate::service::{Caller, backup, export};

/// The head says what the others do in the message of a call: whose writes must be seen.
pub async fn import(
    mut caller: Caller,
    mut requests: Streaming<ImportRequest>,
) -> Result<import::ImportAnswer, Error> {
    let place = admit(&caller.app)?;
    let head = first(&caller, &mut requests).await?;
    caller.at_least = [head.at_least, None];
    caller.learn_kinds().await;
    let query = ImportQuery {
        id: head.id.as_deref(),
        after: head.after,
        format: format(head.format)?,
        ignore_limits: head.ignore_limits,
        last_line: LastLine::MustEnd,
    };
    run(&caller, place, query, requests.map(lines)).await
}

/// The head, which comes first and in time.
async fn first(
    caller: &Caller,
    requests: &mut Streaming<ImportRequest>,
) -> Result<ImportHead, Error> {
    let until = caller.context.deadline.min(Instant::now() + caller.app.body_timeout);
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

pub async fn export(
    services: &Services,
    mut request: Request<ExportRequest>,
) -> GrpcAnswered<Messages<ExportAnswer>> {
    let place = streams::place(services, StreamPurpose::Callers)?;
    let at_least = request.get_mut().at_least.take();
    let begun = async {
        let caller = services.caller(&request, at_least, None).await?;
        let ExportRequest { kind, format: wanted, .. } = request.into_inner();
        let export = export::begin(&caller, kind.as_deref(), format(wanted)?).await?;
        Ok((caller, export))
    };
    let (caller, export) = begun.await.map_err(status::refusal)?;
    let message = |part| Ok(vec![ExportAnswer { part: Some(part) }]);
    streams::start(&caller, place, move |sender| async move {
        let head = ExportHead { position: export.position.clone() };
        sender.send(message(export_answer::Part::Head(head))).await?;
        export.run(sender.paced(), |lines| message(export_answer::Part::Lines(lines))).await
    })
}

pub async fn backup(
    services: &Services,
    mut request: Request<BackupRequest>,
) -> GrpcAnswered<Messages<BackupAnswer>> {
    let place = streams::place(services, StreamPurpose::Copies)?;
    let at_least = request.get_mut().at_least.take();
    let begun = async {
        let caller = services.caller(&request, at_least, None).await?;
        let backup = backup::begin(&caller, request.get_ref().after.as_deref()).await?;
        Ok((caller, backup))
    };
    let (caller, backup) = begun.await.map_err(status::refusal)?;
    let (app, tenant) = (caller.app.clone(), caller.tenant);
    let message = |part| Ok(vec![BackupAnswer { part: Some(part) }]);
    streams::start(&caller, place, move |sender| async move {
        let head = backup_head(backup.header(), tenant);
        sender.send(message(backup_answer::Part::Head(head))).await?;
        let mut sender = sender.paced();
        let piece = |archive| message(backup_answer::Part::Archive(archive));
        let sent = backup::send(&app, backup, &mut sender, piece)
            .await
            .inspect_err(|error| tracing::warn!(%error, "a backup was cut off"))?;
        app.metrics.backed_up(sent.bytes);
        let LogPlace { epoch, position, commit } = sent.place;
        let end = BackupEnd {
            position: EventId { tenant, epoch, position }.to_text(app.deployment.secret()),
            committed_at: (commit > Millis(0)).then(|| timestamp(commit)),
        };
        sender.send(message(backup_answer::Part::End(end)), 0).await
    })
}

fn backup_head(header: &ArchiveHeader, tenant: TenantId) -> BackupHead {
    let (full, epoch, position) = match header.base {
        ArchiveBase::Rows(applied) => (true, applied.epoch, applied.position),
        ArchiveBase::After(place) => (false, place.epoch, place.position),
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
