//! The token that a message presents. It is looked at before the message is: the kinds that it
//! stands for must be known when the message's names are looked up.

use guanxi_api::proto::{
    AddMemberRequest, ApproveEdgeRequest, BatchCountersRequest, BatchEdgesRequest,
    ChangeKindRequest, CheckPairsRequest, CheckRequest, CountRequest, CreateGroupRequest,
    CreateKindRequest, DeclineEdgeRequest, DeleteEdgeRequest, DeleteGroupRequest,
    DropDeadLetterRequest, DropMemberRequest, EraseNodeRequest, GetAuditRequest,
    GetDeadLetterRequest, GetEdgeRequest, GetImportRequest, GetJobRequest, GetKindRequest,
    GetNodeRequest, GetStandbyRequest, HydrateManyRequest, HydrateRequest, ImportRequest,
    ListCommonRequest, ListDeadLettersRequest, ListFiltersRequest, ListGroupsRequest,
    ListHotRequest, ListIncomingRequest, ListJobsRequest, ListKindsRequest, ListKnownRequest,
    ListMutualRequest, ListOutgoingRequest, PromoteRequest, PutEdgeRequest, PutNodeRequest,
    RenameGroupRequest, RetryDeadLetterRequest, RunAuditRequest, ScanIncomingRequest,
    ScanOutgoingRequest, TalliesRequest,
};
use tonic::Streaming;
use tonic_health::pb::HealthCheckRequest;

pub trait Presented {
    /// Its text, whatever it is worth.
    fn token(&self) -> Option<&str>;
}

macro_rules! presented {
    ($($message:ty),* $(,)?) => {
        $(impl Presented for $message {
            fn token(&self) -> Option<&str> {
                self.at_least.as_deref()
            }
        })*
    };
}

macro_rules! not_presented {
    ($($message:ty),* $(,)?) => {
        $(impl Presented for $message {
            fn token(&self) -> Option<&str> {
                None
            }
        })*
    };
}

presented!(
    AddMemberRequest,
    ApproveEdgeRequest,
    BatchCountersRequest,
    BatchEdgesRequest,
    ChangeKindRequest,
    CheckPairsRequest,
    CheckRequest,
    CountRequest,
    CreateGroupRequest,
    CreateKindRequest,
    DeclineEdgeRequest,
    DeleteEdgeRequest,
    DeleteGroupRequest,
    DropMemberRequest,
    EraseNodeRequest,
    GetAuditRequest,
    GetEdgeRequest,
    GetImportRequest,
    GetJobRequest,
    GetKindRequest,
    GetNodeRequest,
    HydrateManyRequest,
    HydrateRequest,
    ListCommonRequest,
    ListGroupsRequest,
    ListIncomingRequest,
    ListJobsRequest,
    ListKindsRequest,
    ListKnownRequest,
    ListMutualRequest,
    ListOutgoingRequest,
    PutEdgeRequest,
    PutNodeRequest,
    RenameGroupRequest,
    RunAuditRequest,
    ScanIncomingRequest,
    ScanOutgoingRequest,
    TalliesRequest,
);

not_presented!(
    DropDeadLetterRequest,
    GetDeadLetterRequest,
    GetStandbyRequest,
    HealthCheckRequest,
    ListDeadLettersRequest,
    ListFiltersRequest,
    ListHotRequest,
    PromoteRequest,
    RetryDeadLetterRequest,
    // The head of an import, which presents one, is read by its handler.
    Streaming<ImportRequest>,
);
