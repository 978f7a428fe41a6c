//! Rows of an embedded store as they lie in a copy of it, read as what they mean: for whoever
//! carries them into another sort of store. Index entries mean nothing there, as they follow from
//! the edges.

use guanxi_core::snapshot::StoreError;
use guanxi_model::codec::{Decoder, decode_job, decode_kind};
use guanxi_model::group::Group;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::ImportId;
use guanxi_model::job::Job;
use guanxi_model::{
    EdgeKey, EdgeRow, GroupId, GroupsKey, Kind, KindId, KindName, Node, NodeKey, NodeTypeId,
    SourceId, TenantId,
};

use super::inventory::InventoryPiece;
use super::{RawRow, layout};

/// What one row says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Carried {
    Edge(EdgeKey, EdgeRow),
    Node(NodeKey, Node),
    Group(GroupsKey, Group),
    /// The id that a source's next group takes.
    NextGroup(GroupsKey, GroupId),
    Kind(TenantId, Box<Kind>),
    NodeType(TenantId, NodeTypeId, KindName),
    /// A part of a row; the parts of one row follow each other.
    Part(InParts, Vec<u8>),
    Job(TenantId, Box<Job>),
    /// It follows from other rows, or is the copy's place in its log.
    Derived,
}

/// A row that is kept in parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InParts {
    Answer(TenantId, IdempotencyKey),
    Import(TenantId, ImportId),
}

impl Carried {
    pub fn read((key, value): &RawRow) -> Result<Carried, StoreError> {
        let Some((table, rest)) = key.split_first() else {
            return Err(damaged());
        };
        match *table {
            layout::EDGE | layout::NODE | layout::GROUP => match InventoryPiece::read(key, value) {
                InventoryPiece::Edge(edge, row) => Ok(Carried::Edge(edge, row)),
                InventoryPiece::Node(node, row) => Ok(Carried::Node(node, row)),
                InventoryPiece::Group(groups, group) => Ok(Carried::Group(groups, group)),
                InventoryPiece::Entry(_) => Ok(Carried::Derived),
                InventoryPiece::Unreadable(_) => Err(damaged()),
            },
            layout::APPLIED
            | layout::INCOMING
            | layout::OUTGOING
            | layout::EXPIRY
            | layout::IDEMPOTENCY_TIME => Ok(Carried::Derived),
            layout::NEXT_GROUP => next_group(rest, value),
            layout::KIND => {
                let (tenant, _) = layout::parse_catalog(key).ok_or_else(damaged)?;
                Ok(Carried::Kind(tenant, Box::new(decode_kind(value)?)))
            }
            layout::NODE_TYPE => {
                let (tenant, id) = layout::parse_catalog(key).ok_or_else(damaged)?;
                let name = std::str::from_utf8(value).ok();
                let name = name.and_then(|name| KindName::new(name).ok()).ok_or_else(damaged)?;
                Ok(Carried::NodeType(tenant, NodeTypeId(id), name))
            }
            layout::IDEMPOTENCY => {
                let (tenant, name) = name_of(rest)?;
                let key = IdempotencyKey::new(name).map_err(|_| damaged())?;
                Ok(Carried::Part(InParts::Answer(tenant, key), value.to_vec()))
            }
            layout::IMPORT => {
                let (tenant, name) = name_of(rest)?;
                let id = ImportId::new(name).map_err(|_| damaged())?;
                Ok(Carried::Part(InParts::Import(tenant, id), value.to_vec()))
            }
            layout::JOB => {
                let (tenant, _) = tenant_of(rest)?;
                Ok(Carried::Job(tenant, Box::new(decode_job(value)?)))
            }
            _ => Err(damaged()),
        }
    }
}

fn next_group(key: &[u8], value: &[u8]) -> Result<Carried, StoreError> {
    let (tenant, rest) = tenant_of(key)?;
    let (kind, source) = rest.split_first_chunk::<2>().ok_or_else(damaged)?;
    let source: [u8; 8] = source.try_into().map_err(|_| damaged())?;
    let kind = KindId(u16::from_be_bytes(*kind));
    let source = SourceId(u64::from_be_bytes(source));
    let mut input = Decoder::new(value);
    input.format()?;
    let next = GroupId(input.varint_u32()?);
    Ok(Carried::NextGroup(GroupsKey { tenant, kind, source }, next))
}

/// Whose part it is: the tenant's, of this name.
fn name_of(key: &[u8]) -> Result<(TenantId, &str), StoreError> {
    let (tenant, rest) = tenant_of(key)?;
    let (length, rest) = rest.split_first().ok_or_else(damaged)?;
    let name = rest.get(..usize::from(*length)).and_then(|name| std::str::from_utf8(name).ok());
    Ok((tenant, name.ok_or_else(damaged)?))
}

fn tenant_of(key: &[u8]) -> Result<(TenantId, &[u8]), StoreError> {
    let (tenant, rest) = key.split_first_chunk::<4>().ok_or_else(damaged)?;
    Ok((TenantId(u32::from_be_bytes(*tenant)), rest))
}

fn damaged() -> StoreError {
    StoreError::Damaged("a row of the copy cannot be read; a newer release may have made it".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_key_names_comes_back() {
        let groups = GroupsKey { tenant: TenantId(3), kind: KindId(0x0102), source: SourceId(9) };
        let mut value = guanxi_model::codec::Encoder::with_capacity(4);
        value.u8(guanxi_model::codec::FORMAT);
        value.varint(7);
        let row = (layout::next_group(&groups), value.into_bytes());
        assert_eq!(Carried::read(&row).unwrap(), Carried::NextGroup(groups, GroupId(7)));
        let (tenant, key) = (TenantId(3), IdempotencyKey::new("a key").unwrap());
        let row = (layout::part(&layout::idempotency_prefix(tenant, &key), 2), vec![1, 2]);
        let part = Carried::Part(InParts::Answer(tenant, key), vec![1, 2]);
        assert_eq!(Carried::read(&row).unwrap(), part);
        let id = ImportId::new("an-import").unwrap();
        let row = (layout::part(&layout::import_prefix(tenant, &id), 0), vec![3]);
        let part = Carried::Part(InParts::Import(tenant, id), vec![3]);
        assert_eq!(Carried::read(&row).unwrap(), part);
        assert!(Carried::read(&(vec![0xff], Vec::new())).is_err());
        assert!(Carried::read(&(Vec::new(), Vec::new())).is_err());
    }
}
