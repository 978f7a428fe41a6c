//! Which shard, partition and lane something belongs to. These values are stored and compared
//! across instances and releases, so they never change; the vectors below hold them to it.

use crate::hash::hash64;
use crate::{EdgeKey, KindId, SourceId, TargetId, TenantId};

/// Shards of the outbox; a topic's partitions divide it.
pub const SHARDS: u8 = 64;

/// The shard of a target's records: all records of one target share a shard, so they keep their
/// order on the way.
pub fn target_shard(tenant: TenantId, kind: KindId, target: TargetId) -> u8 {
    shard(tenant, kind, target.0)
}

/// The shard of a source's entries in the expiry index.
pub fn source_shard(tenant: TenantId, kind: KindId, source: SourceId) -> u8 {
    shard(tenant, kind, source.0)
}

pub fn edge_shard(edge: &EdgeKey) -> u8 {
    target_shard(edge.tenant, edge.kind, edge.target)
}

/// The partition of a shard; `partitions` divides `SHARDS`.
pub fn partition(shard: u8, partitions: u32) -> u32 {
    u32::from(shard) % partitions
}

/// The lane in which a source's changes are committed: the same for all of its kinds.
pub fn lane(tenant: TenantId, source: SourceId, lanes: usize) -> usize {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&tenant.0.to_be_bytes());
    key[4..].copy_from_slice(&source.0.to_be_bytes());
    (hash64(&key) % lanes as u64) as usize
}

fn shard(tenant: TenantId, kind: KindId, id: u64) -> u8 {
    let mut key = [0; 14];
    key[..4].copy_from_slice(&tenant.0.to_be_bytes());
    key[4..6].copy_from_slice(&kind.0.to_be_bytes());
    key[6..].copy_from_slice(&id.to_be_bytes());
    (hash64(&key) % u64::from(SHARDS)) as u8
}
