//! Nodes, between messages and what JSON has for them.

use guanxi_model::Error;

use super::{
    EraseNodeAnswer, EraseNodeRequest, GetNodeRequest, NodeSettings, PutNodeAnswer, PutNodeRequest,
    owned,
};
use crate::id::Id;
use crate::name::Name;
use crate::nodes::{self, JobStarted, NodeChange, NodeChanged, NodeOf, PutNode};

fn node_of(node_type: String, id: u64) -> Result<NodeOf<'static>, Error> {
    Ok(NodeOf { node_type: Name::from(node_type), id: Id::from_number(id, "id")? })
}

impl TryFrom<GetNodeRequest> for NodeOf<'static> {
    type Error = Error;

    fn try_from(request: GetNodeRequest) -> Result<Self, Error> {
        node_of(request.r#type, request.id)
    }
}

impl TryFrom<EraseNodeRequest> for NodeOf<'static> {
    type Error = Error;

    fn try_from(request: EraseNodeRequest) -> Result<Self, Error> {
        node_of(request.r#type, request.id)
    }
}

impl TryFrom<PutNodeRequest> for PutNode<'static> {
    type Error = Error;

    fn try_from(request: PutNodeRequest) -> Result<Self, Error> {
        let change = NodeChange { private: request.private };
        Ok(PutNode { node: node_of(request.r#type, request.id)?, change })
    }
}

impl From<nodes::NodeSettings> for NodeSettings {
    fn from(settings: nodes::NodeSettings) -> NodeSettings {
        NodeSettings { private: settings.private }
    }
}

impl From<NodeChanged> for PutNodeAnswer {
    fn from(changed: NodeChanged) -> PutNodeAnswer {
        let settings = Some(changed.settings.into());
        PutNodeAnswer { settings, token: owned(changed.token) }
    }
}

impl From<JobStarted> for EraseNodeAnswer {
    fn from(started: JobStarted) -> EraseNodeAnswer {
        EraseNodeAnswer { job: started.job.0, token: owned(started.token) }
    }
}
