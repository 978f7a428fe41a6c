//! What a message says beside its question: the token that it presents, which is looked at before
//! the message is, as the kinds that it stands for must be known when names are looked up, and its
//! idempotency key. Beside them, what the message takes, which is known of a packed one only when it
//! has been unpacked.

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
    /// Its token's text, whatever it is worth.
    fn take_token(&mut self) -> Option<String> {
        None
    }

    fn take_key(&mut self) -> Option<String> {
        None
    }

    /// Its length, not packed.
    fn bytes(&self) -> usize;
}

macro_rules! messages {
    ($($message:ty $(: $first:ident $(+ $second:ident)?)?),* $(,)?) => {
        $(impl Presented for $message {
            $(messages!(@ $first); $(messages!(@ $second);)?)?

            fn bytes(&self) -> usize {
                self.encoded_len()
            }
        })*
    };
    (@ token) => {
        fn take_token(&mut self) -> Option<String> {
            self.at_least.take()
        }
    };
    (@ key) => {
        fn take_key(&mut self) -> Option<String> {
            self.idempotency_key.take()
        }
    };
}

messages!(
    AddMemberRequest: token,
    ApproveEdgeRequest: token + key,
    BatchCountersRequest: token,
    BatchEdgesRequest: token + key,
    ChangeKindRequest: token,
    CheckPairsRequest: token,
    CheckRequest: token,
    CountRequest: token,
    CreateGroupRequest: token,
    CreateKindRequest: token,
    DeclineEdgeRequest: token + key,
    DeleteEdgeRequest: token + key,
    DeleteGroupRequest: token,
    DropDeadLetterRequest,
    DropMemberRequest: token,
    EraseNodeRequest: token,
    GetAuditRequest: token,
    GetDeadLetterRequest,
    GetEdgeRequest: token,
    GetImportRequest: token,
    GetJobRequest: token,
    GetKindRequest: token,
    GetNodeRequest: token,
    GetStandbyRequest,
    HealthCheckRequest,
    HydrateManyRequest: token,
    HydrateRequest: token,
    ListCommonRequest: token,
    ListDeadLettersRequest,
    ListFiltersRequest,
    ListGroupsRequest: token,
    ListHotRequest,
    ListIncomingRequest: token,
    ListJobsRequest: token,
    ListKindsRequest: token,
    ListKnownRequest: token,
    ListMutualRequest: token,
    ListOutgoingRequest: token,
    PromoteRequest,
    PutEdgeRequest: token + key,
    PutNodeRequest: token,
    RenameGroupRequest: token,
    RetryDeadLetterRequest,
    RunAuditRequest: token,
    ScanIncomingRequest: token,
    ScanOutgoingRequest: token,
    TalliesRequest: token,
);

/// The head of an import, which presents a token, is read by its handler, and so are its pieces.
impl Presented for Streaming<ImportRequest> {
    fn bytes(&self) -> usize {
        0
    }
}
