//! The service `Admin`; its streams are in `transfer`.

use guanxi_api::proto::admin_server::Admin;
use guanxi_api::proto::{
    AuditState, BackupAnswer, BackupRequest, ChangeKindRequest, CreateKindRequest, DeadLetter,
    DropDeadLetterRequest, DroppedDeadLetter, ExportAnswer, ExportRequest, GetAuditRequest,
    GetDeadLetterRequest, GetImportRequest, GetKindRequest, GetStandbyRequest, ImportAnswer,
    ImportPlace, ImportRequest, Kind, KindAnswer, ListDeadLettersAnswer, ListDeadLettersRequest,
    ListFiltersAnswer, ListFiltersRequest, ListHotAnswer, ListHotRequest, ListJobsAnswer,
    ListJobsRequest, ListKindsAnswer, ListKindsRequest, PromoteRequest, Promotion,
    RetriedDeadLetter, RetryDeadLetterRequest, RunAuditAnswer, RunAuditRequest, Standby,
};
use guanxi_api::{Id, Name};
use tonic::{Request, Streaming};

use super::streams::Messages;
use super::{GrpcAnswered, Services, transfer};
use crate::service::{audit, dead_letters, hot, import, jobs, kinds, standby};

#[tonic::async_trait]
impl Admin for Services {
    async fn list_kinds(
        &self,
        request: Request<ListKindsRequest>,
    ) -> GrpcAnswered<ListKindsAnswer> {
        self.answer(request, |caller, _: ListKindsRequest| kinds::list(caller)).await
    }

    async fn get_kind(&self, request: Request<GetKindRequest>) -> GrpcAnswered<Kind> {
        self.answer(request, |caller, GetKindRequest { name, .. }| {
            kinds::get(caller, Name::from(name))
        })
        .await
    }

    async fn create_kind(&self, request: Request<CreateKindRequest>) -> GrpcAnswered<KindAnswer> {
        self.answer(request, kinds::create).await
    }

    async fn change_kind(&self, request: Request<ChangeKindRequest>) -> GrpcAnswered<KindAnswer> {
        self.answer(request, kinds::change).await
    }

    async fn list_dead_letters(
        &self,
        request: Request<ListDeadLettersRequest>,
    ) -> GrpcAnswered<ListDeadLettersAnswer> {
        self.answer(request, dead_letters::list).await
    }

    async fn get_dead_letter(
        &self,
        request: Request<GetDeadLetterRequest>,
    ) -> GrpcAnswered<DeadLetter> {
        self.answer(request, |caller, GetDeadLetterRequest { id }| {
            dead_letters::get(caller, Id(id))
        })
        .await
    }

    async fn retry_dead_letter(
        &self,
        request: Request<RetryDeadLetterRequest>,
    ) -> GrpcAnswered<RetriedDeadLetter> {
        self.answer(request, |caller, RetryDeadLetterRequest { id }| {
            dead_letters::retry(caller, Id(id))
        })
        .await
    }

    async fn drop_dead_letter(
        &self,
        request: Request<DropDeadLetterRequest>,
    ) -> GrpcAnswered<DroppedDeadLetter> {
        self.answer(request, |caller, DropDeadLetterRequest { id }| {
            dead_letters::forget(caller, Id(id))
        })
        .await
    }

    async fn list_hot(&self, request: Request<ListHotRequest>) -> GrpcAnswered<ListHotAnswer> {
        self.answer(request, hot::list).await
    }

    async fn list_filters(
        &self,
        request: Request<ListFiltersRequest>,
    ) -> GrpcAnswered<ListFiltersAnswer> {
        self.answer(request, |caller, _: ListFiltersRequest| hot::filters(caller)).await
    }

    async fn list_jobs(&self, request: Request<ListJobsRequest>) -> GrpcAnswered<ListJobsAnswer> {
        self.answer(request, jobs::list).await
    }

    async fn import(
        &self,
        request: Request<Streaming<ImportRequest>>,
    ) -> GrpcAnswered<ImportAnswer> {
        self.answer(request, transfer::import).await
    }

    async fn get_import(&self, request: Request<GetImportRequest>) -> GrpcAnswered<ImportPlace> {
        self.answer(request, |caller, GetImportRequest { id, .. }| import::place(caller, id)).await
    }

    type ExportStream = Messages<ExportAnswer>;

    async fn export(&self, request: Request<ExportRequest>) -> GrpcAnswered<Self::ExportStream> {
        transfer::export(self, request).await
    }

    type BackupStream = Messages<BackupAnswer>;

    async fn backup(&self, request: Request<BackupRequest>) -> GrpcAnswered<Self::BackupStream> {
        transfer::backup(self, request).await
    }

    async fn run_audit(&self, request: Request<RunAuditRequest>) -> GrpcAnswered<RunAuditAnswer> {
        self.answer(request, audit::run).await
    }

    async fn get_audit(&self, request: Request<GetAuditRequest>) -> GrpcAnswered<AuditState> {
        self.answer(request, |caller, _: GetAuditRequest| audit::get(caller)).await
    }

    async fn get_standby(&self, request: Request<GetStandbyRequest>) -> GrpcAnswered<Standby> {
        self.answer(request, |caller, _: GetStandbyRequest| standby::get(caller)).await
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> GrpcAnswered<Promotion> {
        self.answer(request, |caller, _: PromoteRequest| standby::promote(caller)).await
    }
}
