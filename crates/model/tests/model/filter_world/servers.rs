//! Redis as the filter sees it: strings with a seal, ledgers beside them, and servers that fail
//! over, restart and forget. An edge's bits are one bit here, so that nothing hides behind a false
//! positive.

use guanxi_model::filter::{FilterLineage, Generation, Seal};

/// Edges of the world, a bit each.
pub type Edges = u8;
pub const EDGES: u8 = 6;
pub const SHARDS: usize = 2;

pub fn shard_of(edge: u8) -> usize {
    usize::from(edge) % SHARDS
}

/// A shard's string: its header says the generation (by its key) and the seal.
#[derive(Debug, Clone, Copy)]
pub struct Shard {
    pub seal: Seal,
    pub edges: Edges,
}

#[derive(Debug, Clone, Copy)]
pub struct Strings {
    pub generation: Generation,
    pub shards: [Option<Shard>; SHARDS],
    pub ledger: Option<usize>,
}

/// What a server holds, and what a replica or a snapshot of it held some time ago.
pub type Keys = Vec<Strings>;

pub fn strings(keys: &mut Keys, generation: Generation) -> &mut Strings {
    let at = keys.iter().position(|strings| strings.generation == generation);
    let at = at.unwrap_or_else(|| {
        keys.push(Strings { generation, shards: [None; SHARDS], ledger: None });
        keys.len() - 1
    });
    &mut keys[at]
}

pub fn found(keys: &Keys, generation: Generation) -> Option<&Strings> {
    keys.iter().find(|strings| strings.generation == generation)
}

#[derive(Debug)]
pub struct Server {
    pub lineage: FilterLineage,
    /// A server that is down ends every connection to it.
    pub up: bool,
    pub keys: Keys,
}

impl Server {
    /// The command **set**: false is its 0.
    pub fn set(&mut self, generation: Generation, seal: Seal, edge: u8) -> bool {
        let strings = self.keys.iter_mut().find(|strings| strings.generation == generation);
        match strings.and_then(|strings| strings.shards[shard_of(edge)].as_mut()) {
            Some(shard) if shard.seal == seal => {
                shard.edges |= 1 << edge;
                true
            }
            _ => false,
        }
    }

    /// What **set** would do if it made strings.
    pub fn set_or_make(&mut self, generation: Generation, seal: Seal, edge: u8) {
        let shard = &mut strings(&mut self.keys, generation).shards[shard_of(edge)];
        shard.get_or_insert(Shard { seal, edges: 0 }).edges |= 1 << edge;
    }

    /// Whether every shard bears the seal.
    pub fn whole(&self, generation: Generation, seal: Seal) -> bool {
        found(&self.keys, generation).is_some_and(|strings| {
            strings.shards.iter().all(|shard| shard.is_some_and(|shard| shard.seal == seal))
        })
    }
}
