//! Of a batch's rows, the edges: both directions, when they expire, and what they leave beside
//! themselves: word of exclusions, heads, and owners' numbers.

use std::collections::BTreeMap;

use guanxi_cluster::rows::edge_tuple;
use guanxi_cluster::sql::text;
use guanxi_embedded::overlay::EdgeCell;
use guanxi_model::places::{self, source_shard};
use guanxi_model::tally::{CountedTally, contribution};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupsKey, KindId, Millis, NodeKey, TenantId, Version, Which,
};
use rustc_hash::FxHashMap;

use super::{LoadScript, OwnedSlots, written};

impl LoadScript {
    pub fn edges(
        &mut self,
        edges: &FxHashMap<EdgeKey, EdgeCell>,
        catalog: &Catalog,
        last: Version,
    ) {
        self.exclusions(edges, catalog, last);
        self.untallied_heads(edges, catalog, last);
        self.owned_by_target(edges, catalog);
        // In the order of their keys, which is how a table takes them best.
        let mut sorted: Vec<(&EdgeKey, &EdgeCell)> = edges.iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| **key);
        let (mut outgoing, mut standing, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let (mut expiring, mut expiring_no_more) = (Vec::new(), Vec::new());
        for (key, cell) in sorted {
            let at = |row: &Option<EdgeRow>| row.as_ref().and_then(|row| row.expires_at);
            let (before, after) = (at(&cell.before), at(&cell.after));
            if before != after {
                expiring_no_more.extend(before.map(|at| expiry_tuple(key, at)));
                expiring.extend(after.map(|at| expiry_tuple(key, at)));
            }
            match &cell.after {
                Some(row) => {
                    outgoing.push(outgoing_tuple(key, row));
                    standing.push((key.reversed(), row));
                }
                None => gone.push(key),
            }
        }
        standing.sort_unstable_by_key(|(reversed, _)| *reversed);
        let incoming: Vec<String> = standing
            .iter()
            .map(|(reversed, row)| incoming_tuple(&reversed.reversed(), row))
            .collect();
        let insert = self.insert();
        self.each(
            &format!(
                "{insert} INTO outgoing (tenant,kind,source,target,version,state,since,group_id,\
                 owner,data,expires_at) VALUES "
            ),
            &outgoing,
            "",
        );
        self.each(
            &format!(
                "{insert} INTO incoming (tenant,kind,target,source,version,state,since,owner) \
                 VALUES "
            ),
            &incoming,
            "",
        );
        let keys: Vec<String> = gone.iter().map(|key| written(edge_tuple, *key)).collect();
        self.each_of("DELETE FROM outgoing WHERE (tenant,kind,source,target) IN (", &keys, ")");
        let turned = |key: &&EdgeKey| written(edge_tuple, &key.reversed());
        let keys: Vec<String> = gone.iter().map(turned).collect();
        self.each_of("DELETE FROM incoming WHERE (tenant,kind,target,source) IN (", &keys, ")");
        let columns = "(shard,expires_at,tenant,kind,source,target)";
        self.each_of(&format!("DELETE FROM expiry WHERE {columns} IN ("), &expiring_no_more, ")");
        self.each(&format!("REPLACE INTO expiry {columns} VALUES "), &expiring, "");
    }

    /// Where sources have no tally, nothing else leaves them a head, which a source with edges has.
    fn untallied_heads(
        &mut self,
        edges: &FxHashMap<EdgeKey, EdgeCell>,
        catalog: &Catalog,
        last: Version,
    ) {
        let untallied = |key: &EdgeKey| {
            let kind = catalog.kind(key.tenant, key.kind);
            kind.is_some_and(|kind| !kind.fixed.outgoing_tally)
        };
        let standing = edges.iter().filter(|(key, cell)| cell.after.is_some() && untallied(key));
        let mut heads: Vec<GroupsKey> = standing.map(|(key, _)| GroupsKey::of(key)).collect();
        heads.sort_unstable();
        heads.dedup();
        let version = last.head().0;
        let tuple = |head: &GroupsKey| {
            format!("({},{},{},{version})", head.tenant.0, head.kind.0, head.source.0)
        };
        let heads: Vec<String> = heads.iter().map(tuple).collect();
        let before = "INSERT INTO head (tenant,kind,source,version) VALUES ";
        let after = " ON DUPLICATE KEY UPDATE version=GREATEST(version,VALUES(version))";
        self.each(before, &heads, after);
    }

    /// What the edges add to their owners and take from them, each in the slot of its target.
    fn owned_by_target(&mut self, edges: &FxHashMap<EdgeKey, EdgeCell>, catalog: &Catalog) {
        let OwnedSlots::ByTarget { partitions } = self.owned else {
            return;
        };
        let mut deltas: BTreeMap<(NodeKey, KindId, u32), i64> = BTreeMap::new();
        for (key, cell) in edges {
            let Some(kind) = catalog.kind(key.tenant, key.kind) else {
                continue;
            };
            let slot = places::partition(places::edge_shard(key), partitions) + 1;
            for (row, sign) in [(&cell.before, -1), (&cell.after, 1)] {
                for counted in contribution(kind, key, row.as_ref()) {
                    if let CountedTally::Node { node, kind, which: Which::Owned } = counted {
                        *deltas.entry((node, kind, slot)).or_default() += sign;
                    }
                }
            }
        }
        let tuple = |((node, kind, slot), delta): ((NodeKey, KindId, u32), i64)| {
            let (tenant, node_type, id) = (node.tenant.0, node.node_type.0, node.id);
            format!("({tenant},{node_type},{id},{},{slot},{delta})", kind.0)
        };
        let deltas = deltas.into_iter().filter(|(_, delta)| *delta != 0);
        let deltas: Vec<String> = deltas.map(tuple).collect();
        self.each(
            "INSERT INTO tally (tenant,node_type,node,kind,slot,owned) VALUES ",
            &deltas,
            " ON DUPLICATE KEY UPDATE owned=owned+VALUES(owned)",
        );
    }

    /// Leaves word of excluding edges in the heads of what they exclude, both ways.
    fn exclusions(
        &mut self,
        edges: &FxHashMap<EdgeKey, EdgeCell>,
        catalog: &Catalog,
        last: Version,
    ) {
        let mut heads = Vec::new();
        for (key, cell) in edges {
            let excluding = catalog.kind(key.tenant, key.kind);
            let excluded = excluding.map_or(&[][..], |kind| &kind.rules.excludes);
            if excluded.is_empty() || cell.after.as_ref().is_none_or(|row| !row.is_live()) {
                continue;
            }
            for kind in excluded {
                let there = key.of_kind(*kind);
                heads.extend([GroupsKey::of(&there), GroupsKey::of(&there.reversed())]);
            }
        }
        heads.sort_unstable();
        heads.dedup();
        let version = last.head().0;
        let tuple = |head: &GroupsKey| {
            format!("({},{},{},{version},1)", head.tenant.0, head.kind.0, head.source.0)
        };
        let heads: Vec<String> = heads.iter().map(tuple).collect();
        self.each(
            "INSERT INTO head (tenant,kind,source,version,excluded) VALUES ",
            &heads,
            " ON DUPLICATE KEY UPDATE excluded=1",
        );
    }
}

fn outgoing_tuple(key: &EdgeKey, row: &EdgeRow) -> String {
    let mut out = edge_start(key.tenant, key, [key.source.0, key.target.0], row);
    text::optional(&mut out, row.group.map(|group| group.0), text::number);
    out.push(',');
    text::optional(&mut out, row.owner, text::number);
    out.push(',');
    text::optional(&mut out, row.data.as_deref(), |out, data| text::bytes(out, data.as_bytes()));
    out.push(',');
    text::optional(&mut out, row.expires_at, |out, at| text::number(out, at.0));
    out.push(')');
    out
}

fn incoming_tuple(key: &EdgeKey, row: &EdgeRow) -> String {
    let mut out = edge_start(key.tenant, key, [key.target.0, key.source.0], row);
    text::optional(&mut out, row.owner, text::number);
    out.push(')');
    out
}

/// What both directions of a row begin with.
fn edge_start(tenant: TenantId, key: &EdgeKey, ends: [u64; 2], row: &EdgeRow) -> String {
    format!(
        "({},{},{},{},{},{},{},",
        tenant.0, key.kind.0, ends[0], ends[1], row.version.0, row.state as u8, row.since.0
    )
}

fn expiry_tuple(key: &EdgeKey, at: Millis) -> String {
    let EdgeKey { tenant, kind, source, target } = key;
    let shard = source_shard(*tenant, *kind, *source);
    format!("({shard},{},{},{},{},{})", at.0, tenant.0, kind.0, source.0, target.0)
}
