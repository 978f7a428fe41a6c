//! The token that a message presents. It is looked at before the message is: the kinds that it
//! stands for must be known when the message's names are looked up. Beside it, what the message
//! takes, which is known of a packed one only when it has been unpacked.

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
use prost::Message;
use tonic::Streaming;
use tonic_health::pb::HealthCheckRequest;

pub trait Presented {
    /// Its text, whatever it is worth.
    fn token(&self) -> Option<&str>;

    /// Its length, not packed.
    fn bytes(&self) -> usize;
}

macro_rules! presented {
    ($($message:ty),* $(,)?) => {
        $(impl Presented for $message {
            fn token(&self) -> Option<&str> {
                self.at_least.as_deref()
            }

            fn bytes(&self) -> usize {
                self.encoded_len()
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

            fn bytes(&self) -> usize {
                self.encoded_len()
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
);

/// The head of an import, which presents a token, is read by its handler, and so are its pieces.
impl Presented for Streaming<ImportRequest> {
    fn token(&self) -> Option<&str> {
        None
    }

    fn bytes(&self) -> usize {
        0
    }
}
