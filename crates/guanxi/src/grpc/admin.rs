//! The service `Admin`: kinds and jobs here; dead letters, what moves and what keeps the service
//! well in files of their own.

use guanxi_api::kinds::{KindAmendment, KindCreation};
use guanxi_api::proto::admin_server::Admin;
use guanxi_api::proto::{
    AuditState, BackupAnswer, BackupRequest, ChangeKindRequest, CreateKindRequest, DeadLetter,
    DropDeadLetterRequest, DroppedDeadLetter, ExportAnswer, ExportRequest, GetAuditRequest,
    GetDeadLetterRequest, GetImportRequest, GetKindRequest, GetStandbyRequest, ImportAnswer,
    ImportPlace, ImportRequest, Job, Kind, KindAnswer, ListDeadLettersAnswer,
    ListDeadLettersRequest, ListFiltersAnswer, ListFiltersRequest, ListHotAnswer, ListHotRequest,
    ListJobsAnswer, ListJobsRequest, ListKindsAnswer, ListKindsRequest, PromoteRequest, Promotion,
    RetriedDeadLetter, RetryDeadLetterRequest, RunAuditAnswer, RunAuditRequest, Standby,
};
use guanxi_model::limits::PAGE_ITEMS_DEFAULT;
use guanxi_model::{Answer, Change, Error};
use tonic::{Request, Streaming};

use super::lists::limit;
use super::streams::Messages;
use super::{Answered, Call, Services, dead_letters, hot, status, transfer, upkeep};
use crate::calls::{jobs, unexpected};

#[tonic::async_trait]
impl Admin for Services {
    async fn list_kinds(&self, request: Request<ListKindsRequest>) -> Answered<ListKindsAnswer> {
        self.answer(request, list_kinds).await
    }

    async fn get_kind(&self, request: Request<GetKindRequest>) -> Answered<Kind> {
        self.answer(request, get_kind).await
    }

    async fn create_kind(&self, request: Request<CreateKindRequest>) -> Answered<KindAnswer> {
        self.answer(request, create_kind).await
    }

    async fn change_kind(&self, request: Request<ChangeKindRequest>) -> Answered<KindAnswer> {
        self.answer(request, change_kind).await
    }

    async fn list_dead_letters(
        &self,
        request: Request<ListDeadLettersRequest>,
    ) -> Answered<ListDeadLettersAnswer> {
        self.answer(request, dead_letters::list).await
    }

    async fn get_dead_letter(
        &self,
        request: Request<GetDeadLetterRequest>,
    ) -> Answered<DeadLetter> {
        self.answer(request, dead_letters::get).await
    }

    async fn retry_dead_letter(
        &self,
        request: Request<RetryDeadLetterRequest>,
    ) -> Answered<RetriedDeadLetter> {
        self.answer(request, dead_letters::retry).await
    }

    async fn drop_dead_letter(
        &self,
        request: Request<DropDeadLetterRequest>,
    ) -> Answered<DroppedDeadLetter> {
        self.answer(request, dead_letters::forget).await
    }

    async fn list_hot(&self, request: Request<ListHotRequest>) -> Answered<ListHotAnswer> {
        self.answer(request, hot::list).await
    }

    async fn list_filters(
        &self,
        request: Request<ListFiltersRequest>,
    ) -> Answered<ListFiltersAnswer> {
        self.answer(request, hot::filters).await
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> Answered<ListJobsAnswer> {
        self.answer(request, list_jobs).await
    }

    async fn import(&self, request: Request<Streaming<ImportRequest>>) -> Answered<ImportAnswer> {
        self.answer(request, transfer::import).await
    }

    async fn get_import(&self, request: Request<GetImportRequest>) -> Answered<ImportPlace> {
        self.answer(request, transfer::get_import).await
    }

    type ExportStream = Messages<ExportAnswer>;

    async fn export(&self, request: Request<ExportRequest>) -> Answered<Self::ExportStream> {
        let call = Call::of(self, &request).map_err(status::refusal)?;
        transfer::export(call, request.into_inner()).await
    }

    type BackupStream = Messages<BackupAnswer>;

    async fn backup(&self, request: Request<BackupRequest>) -> Answered<Self::BackupStream> {
        let call = Call::of(self, &request).map_err(status::refusal)?;
        transfer::backup(call, request.into_inner()).await
    }

    async fn run_audit(&self, request: Request<RunAuditRequest>) -> Answered<RunAuditAnswer> {
        self.answer(request, upkeep::run_audit).await
    }

    async fn get_audit(&self, request: Request<GetAuditRequest>) -> Answered<AuditState> {
        self.answer(request, upkeep::get_audit).await
    }

    async fn get_standby(&self, request: Request<GetStandbyRequest>) -> Answered<Standby> {
        self.answer(request, upkeep::get_standby).await
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> Answered<Promotion> {
        self.answer(request, upkeep::promote).await
    }
}

async fn list_kinds(call: Call, request: ListKindsRequest) -> Result<ListKindsAnswer, Error> {
    let caller = call.caller(&request.at_least);
    caller.meet().await?;
    let catalog = caller.catalog();
    let kinds = catalog.kinds(call.tenant());
    let kinds = kinds.map(|kind| Kind::new(kind, call.tenant(), &catalog));
    Ok(ListKindsAnswer { kinds: kinds.collect() })
}

async fn get_kind(call: Call, request: GetKindRequest) -> Result<Kind, Error> {
    call.caller(&request.at_least).meet().await?;
    let kind = call.kind(&request.name).await?;
    Ok(Kind::new(&kind, call.tenant(), &call.app.deployment.catalog()))
}

async fn create_kind(call: Call, mut request: CreateKindRequest) -> Result<KindAnswer, Error> {
    let at_least = request.at_least.take();
    let spec = Box::new(KindCreation::try_from(request)?.into_spec()?);
    let change = Change::CreateKind { tenant: call.tenant(), spec };
    changed(&call, change, &at_least).await
}

async fn change_kind(call: Call, mut request: ChangeKindRequest) -> Result<KindAnswer, Error> {
    let kind = call.kind(&request.name).await?.id;
    let at_least = request.at_least.take();
    let patch = Box::new(KindAmendment::try_from(request)?.into());
    let change = Change::SetKind { tenant: call.tenant(), kind, patch };
    changed(&call, change, &at_least).await
}

async fn changed(
    call: &Call,
    change: Change,
    at_least: &Option<String>,
) -> Result<KindAnswer, Error> {
    match call.caller(at_least).write_one(change, None).await? {
        (Answer::Kind(kind), token) => {
            let kind = Kind::new(&kind, call.tenant(), &call.app.deployment.catalog());
            Ok(KindAnswer { kind: Some(kind), token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}

async fn list_jobs(call: Call, request: ListJobsRequest) -> Result<ListJobsAnswer, Error> {
    let limit = limit(request.limit, PAGE_ITEMS_DEFAULT)?;
    let caller = call.caller(&request.at_least);
    let (page, catalog) = jobs::list(&caller, limit, request.cursor).await?;
    let remains = call.app.deployment.remains();
    let jobs = page.jobs.iter();
    let jobs = jobs.map(|job| Job::new(job, call.tenant(), &catalog, remains));
    Ok(ListJobsAnswer { jobs: jobs.collect(), next: page.next })
}
