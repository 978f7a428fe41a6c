//! Groups of one source, and their members.

use guanxi_api::groups::{
    GroupChanged, GroupOf, GroupView, Groups, GroupsName, Member, RenameGroup,
};
use guanxi_api::name::WireGroupName;
use guanxi_model::{Answer, Change, EdgeKey, Error};

use super::{Caller, unexpected};

/// A source's groups in the order of their creation.
pub async fn list(caller: Caller, of: GroupsName<'_>) -> Result<Groups, Error> {
    let (kind, key) = caller.groups(&of).await?;
    kind.require_edges()?;
    let row = caller.read(move |reader| reader.groups(&key)).await?;
    let groups = row.groups.into_iter();
    let groups =
        groups.map(|group| GroupView { name: WireGroupName(group.name), size: group.size });
    Ok(Groups { groups: groups.collect() })
}

pub async fn create(caller: Caller, request: GroupOf<'_>) -> Result<GroupChanged, Error> {
    let (_, groups) = caller.groups(&request.of).await?;
    changed(&caller, Change::CreateGroup { groups, name: request.group }).await
}

/// Its members stay in it.
pub async fn rename(caller: Caller, request: RenameGroup<'_>) -> Result<GroupChanged, Error> {
    let (_, groups) = caller.groups(&request.of).await?;
    let (name, to) = (request.group, request.name);
    changed(&caller, Change::RenameGroup { groups, name, to }).await
}

/// Its members stay related, ungrouped.
pub async fn delete(caller: Caller, request: GroupOf<'_>) -> Result<GroupChanged, Error> {
    let (_, groups) = caller.groups(&request.of).await?;
    changed(&caller, Change::DeleteGroup { groups, name: request.group }).await
}

/// Moves an edge into a group.
pub async fn add_member(caller: Caller, member: Member<'_>) -> Result<GroupChanged, Error> {
    let edge = edge_of(&caller, &member).await?;
    changed(&caller, Change::AddMember { edge, group: member.group }).await
}

/// Takes an edge out of a group; one that is not in it stays as it is.
pub async fn drop_member(caller: Caller, member: Member<'_>) -> Result<GroupChanged, Error> {
    let edge = edge_of(&caller, &member).await?;
    changed(&caller, Change::DropMember { edge, group: member.group }).await
}

async fn edge_of(caller: &Caller, member: &Member<'_>) -> Result<EdgeKey, Error> {
    let kind = caller.kind(&member.of.kind).await?;
    Ok(caller.edge_key(&kind, member.of.source.0, member.target.0))
}

async fn changed(caller: &Caller, change: Change) -> Result<GroupChanged, Error> {
    match caller.write_one(change).await? {
        (Answer::Group { name, size }, token) => {
            let group = GroupView { name: WireGroupName(name), size };
            Ok(GroupChanged { group, token })
        }
        (other, _) => Err(unexpected(&other)),
    }
}
