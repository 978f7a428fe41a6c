//! Groups of one source.

use std::sync::Arc;

use guanxi_model::GroupName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::id::Id;
use crate::name::{Name, WireGroupName};

/// Whose groups of which kind.
#[derive(Debug)]
pub struct GroupsName<'a> {
    pub kind: Name<'a>,
    pub source: Id,
}

#[derive(Debug)]
pub struct RenameGroup<'a> {
    pub of: GroupsName<'a>,
    pub group: GroupName,
    pub name: GroupName,
}

/// A group, to be created or deleted.
#[derive(Debug)]
pub struct GroupOf<'a> {
    pub of: GroupsName<'a>,
    pub group: GroupName,
}

/// An edge to be moved into a group, or out of it.
#[derive(Debug)]
pub struct Member<'a> {
    pub of: GroupsName<'a>,
    pub group: GroupName,
    pub target: Id,
}

/// The name of a new group, or the new name of one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupNaming {
    #[schema(inline)]
    pub name: WireGroupName,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Group)]
pub struct GroupView {
    #[schema(inline)]
    pub name: WireGroupName,
    /// Live edges in it.
    pub size: i64,
}

/// A group after a change of it.
#[derive(Debug)]
pub struct GroupChanged {
    pub group: GroupView,
    pub token: Arc<str>,
}

/// In the order of their creation.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Groups {
    pub groups: Vec<GroupView>,
}
