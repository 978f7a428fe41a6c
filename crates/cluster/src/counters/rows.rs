//! The statements of a batch of counters.

use std::fmt::Write;

use guanxi_model::{KindId, NodeKey, TenantId};

use crate::rows::node_tuple;
use crate::sql::text;

/// A counter: a kind on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CounterKey {
    pub tenant: TenantId,
    pub kind: KindId,
    pub node: u64,
}

/// One slot of a counter.
pub type SlotKey = (CounterKey, u16);

fn counter_tuple(out: &mut String, key: &CounterKey) {
    let _ = write!(out, "({},{},{})", key.tenant.0, key.kind.0, key.node);
}

fn slot_tuple(out: &mut String, (key, slot): &SlotKey) {
    let _ = write!(out, "({},{},{},{slot})", key.tenant.0, key.kind.0, key.node);
}

/// Makes the slots that are not there, and locks them all.
pub fn lock_slots(out: &mut String, slots: &[SlotKey]) {
    out.push_str("INSERT INTO counter (tenant,kind,node,slot,value) VALUES ");
    text::list(out, slots, |out, (key, slot)| {
        let _ = write!(out, "({},{},{},{slot},0)", key.tenant.0, key.kind.0, key.node);
    });
    // A server may pass over the lock of a row that stays as it is, hence the second statement.
    out.push_str(
        " ON DUPLICATE KEY UPDATE value=value;\
         SELECT 1 FROM counter FORCE INDEX (PRIMARY) WHERE (tenant,kind,node,slot) IN (",
    );
    text::list(out, slots, slot_tuple);
    out.push_str(") FOR UPDATE;");
}

/// All slots of these counters.
pub fn select_slots(out: &mut String, counters: &[CounterKey]) {
    out.push_str(
        "SELECT tenant,kind,node,slot,value FROM counter FORCE INDEX (PRIMARY) \
         WHERE (tenant,kind,node) IN (",
    );
    text::list(out, counters, counter_tuple);
    out.push_str(");");
}

pub fn select_nodes(out: &mut String, nodes: &[NodeKey]) {
    out.push_str(
        "SELECT tenant,node_type,id,private,erased_by FROM nodes FORCE INDEX (PRIMARY) \
         WHERE (tenant,node_type,id) IN (",
    );
    text::list(out, nodes, node_tuple);
    out.push_str(");");
}

/// Adds to slots, which are locked.
pub fn add_to_slots(out: &mut String, deltas: &[(SlotKey, i64)]) {
    out.push_str("INSERT INTO counter (tenant,kind,node,slot,value) VALUES ");
    text::list(out, deltas, |out, ((key, slot), delta)| {
        let _ = write!(out, "({},{},{},{slot},{delta})", key.tenant.0, key.kind.0, key.node);
    });
    out.push_str(" ON DUPLICATE KEY UPDATE value=value+VALUES(value);");
}

/// Takes away slots that say nothing: a refused change leaves no trace.
pub fn drop_empty(out: &mut String, slots: &[SlotKey]) {
    out.push_str("DELETE FROM counter WHERE (tenant,kind,node,slot) IN (");
    text::keys(out, slots, slot_tuple);
    out.push_str(") AND value=0;");
}
