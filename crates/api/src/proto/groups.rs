//! Groups, between messages and what JSON has for them.

use guanxi_model::Error;

use super::{
    AddMemberRequest, CreateGroupRequest, DeleteGroupRequest, DropMemberRequest, Group,
    GroupAnswer, ListGroupsAnswer, ListGroupsRequest, RenameGroupRequest, group_name, owned,
};
use crate::groups::{self, GroupChanged, GroupOf, GroupView, Groups, GroupsName, Member};
use crate::id::Id;
use crate::name::{Name, WireGroupName};

fn groups_name(kind: String, source: u64) -> Result<GroupsName<'static>, Error> {
    Ok(GroupsName { kind: Name::from(kind), source: Id::from_number(source, "source")? })
}

impl TryFrom<ListGroupsRequest> for GroupsName<'static> {
    type Error = Error;

    fn try_from(request: ListGroupsRequest) -> Result<Self, Error> {
        groups_name(request.kind, request.source)
    }
}

impl TryFrom<CreateGroupRequest> for GroupOf<'static> {
    type Error = Error;

    fn try_from(request: CreateGroupRequest) -> Result<Self, Error> {
        let of = groups_name(request.kind, request.source)?;
        Ok(GroupOf { of, group: group_name(&request.name, "name")? })
    }
}

impl TryFrom<DeleteGroupRequest> for GroupOf<'static> {
    type Error = Error;

    fn try_from(request: DeleteGroupRequest) -> Result<Self, Error> {
        let of = groups_name(request.kind, request.source)?;
        Ok(GroupOf { of, group: group_name(&request.group, "group")? })
    }
}

impl TryFrom<RenameGroupRequest> for groups::RenameGroup<'static> {
    type Error = Error;

    fn try_from(request: RenameGroupRequest) -> Result<Self, Error> {
        Ok(groups::RenameGroup {
            of: groups_name(request.kind, request.source)?,
            group: group_name(&request.group, "group")?,
            name: group_name(&request.name, "name")?,
        })
    }
}

/// Messages that name an edge and a group.
macro_rules! member {
    ($($message:ident),*) => {$(
        impl TryFrom<$message> for Member<'static> {
            type Error = Error;

            fn try_from(request: $message) -> Result<Self, Error> {
                Ok(Member {
                    of: groups_name(request.kind, request.source)?,
                    target: Id::from_number(request.target, "target")?,
                    group: group_name(&request.group, "group")?,
                })
            }
        }
    )*};
}

member!(AddMemberRequest, DropMemberRequest);

impl From<GroupView> for Group {
    fn from(view: GroupView) -> Group {
        let WireGroupName(name) = view.name;
        Group { name: name.as_str().to_owned(), size: view.size }
    }
}

impl From<Groups> for ListGroupsAnswer {
    fn from(groups: Groups) -> ListGroupsAnswer {
        ListGroupsAnswer { groups: groups.groups.into_iter().map(Group::from).collect() }
    }
}

impl From<GroupChanged> for GroupAnswer {
    fn from(changed: GroupChanged) -> GroupAnswer {
        GroupAnswer { group: Some(changed.group.into()), token: owned(changed.token) }
    }
}
