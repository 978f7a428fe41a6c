//! Groups: named folders of one source's outgoing edges of one kind.

use crate::edge::{EdgeKey, SourceId};
use crate::error::Error;
use crate::kind::KindId;
use crate::limits::GROUP_NAME_CHARS_MAX;
use crate::node::TenantId;
use crate::version::Region;

/// Never reused per source and kind, so that a deleted group's id in a row reads as ungrouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The first that a region gives to a source and kind.
    pub fn first(region: Region) -> GroupId {
        GroupId(region.first_group())
    }

    fn after(self) -> GroupId {
        GroupId(self.0 + 1)
    }
}

/// A name as the caller wrote it; names are compared byte by byte.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupName(Box<str>);

impl GroupName {
    pub fn new(name: &str) -> Result<GroupName, Error> {
        let chars = name.chars().count();
        if chars == 0 || chars > GROUP_NAME_CHARS_MAX {
            return Err(Error::invalid(format!(
                "a group name has 1 to {GROUP_NAME_CHARS_MAX} characters, this one has {chars}"
            )));
        }
        if name.contains('/') || name == "." || name == ".." {
            return Err(Error::invalid(
                "a group name has no '/' and is neither '.' nor '..', as it stands in paths",
            ));
        }
        if name.contains(char::is_control) {
            return Err(Error::invalid(
                "a group name has no control characters such as tabs and line breaks",
            ));
        }
        Ok(GroupName(name.into()))
    }

    /// A name that was taken before, by whatever rules held then.
    pub(crate) fn stored(name: &str) -> GroupName {
        GroupName(name.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whose groups: all of one source and kind, which are read and decided together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupsKey {
    pub tenant: TenantId,
    pub kind: KindId,
    pub source: SourceId,
}

impl GroupsKey {
    pub fn of(edge: &EdgeKey) -> GroupsKey {
        GroupsKey { tenant: edge.tenant, kind: edge.kind, source: edge.source }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    pub name: GroupName,
    /// Live edges in it.
    pub size: i64,
}

/// A source's groups in the order of their creation, and the id that the next one gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSet {
    pub next: GroupId,
    pub groups: Vec<Group>,
}

impl Default for GroupSet {
    fn default() -> GroupSet {
        GroupSet { next: GroupId::first(Region::default()), groups: Vec::new() }
    }
}

impl GroupSet {
    pub fn by_id(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|group| group.id == id)
    }

    pub fn by_name(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|group| group.name.as_str() == name)
    }

    /// The name that an edge's group reads as: none for a group that is gone.
    pub fn name_of(&self, id: Option<GroupId>) -> Option<&GroupName> {
        id.and_then(|id| self.by_id(id)).map(|group| &group.name)
    }

    /// Sets, renames or (with no name) removes a group; what an already gone id says is ignored.
    pub fn set(&mut self, id: GroupId, name: Option<GroupName>) {
        let gone = id < self.next;
        self.next = self.next.max(id.after());
        let at = self.groups.iter().position(|group| group.id == id);
        match (at, name) {
            (Some(at), Some(name)) => self.groups[at].name = name,
            (Some(at), None) => {
                self.groups.remove(at);
            }
            (None, Some(name)) if !gone => self.groups.push(Group { id, name, size: 0 }),
            (None, _) => {}
        }
    }

    /// Changes a group's size; a group that is gone has none.
    pub fn resize(&mut self, id: GroupId, delta: i64) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.id == id) {
            group.size += delta;
        }
    }

    /// Sets a group's size; a group that is gone has none.
    pub fn set_size(&mut self, id: GroupId, size: i64) {
        if let Some(group) = self.groups.iter_mut().find(|group| group.id == id) {
            group.size = size;
        }
    }
}
