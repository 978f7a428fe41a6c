//! Numbers of the target's side with the stamps of their rows, straight from the tables.

use std::time::{Duration, Instant};

use guanxi_model::{KindId, NodeKey, NodeTypeId, TenantId, Which};
use rustc_hash::FxHashMap;

use crate::memory::tallies::packed::TallyField;
use crate::rows::cell;
use crate::sql::text::{self, TUPLES_MAX};
use crate::sql::{Database, SqlError};

/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

/// Of each node what was read.
pub type RereadFields = FxHashMap<NodeKey, Vec<TallyField>>;

/// What incoming edges count to, of these nodes and kinds; explicit zeros where there is no row. Rows
/// are never deleted, so their revisions only grow.
pub fn incoming(
    database: &Database,
    wanted: &[(NodeKey, KindId)],
) -> Result<RereadFields, SqlError> {
    let mut found: FxHashMap<(NodeKey, KindId), ([i64; 2], u64)> = FxHashMap::default();
    for wanted in wanted.chunks(TUPLES_MAX) {
        let mut statement = String::from(
            "SELECT tenant,node_type,node,kind,incoming,pending_incoming,revision FROM tally \
             WHERE (tenant,node_type,node,kind,slot) IN (",
        );
        text::list(&mut statement, wanted, |out, (node, kind)| {
            let NodeKey { tenant, node_type, id } = node;
            let (tenant, node_type, kind) = (tenant.0, node_type.0, kind.0);
            text::number(out, format_args!("({tenant},{node_type},{id},{kind},0)"));
        });
        statement.push(')');
        for row in &database.session(Instant::now() + SESSION_WAIT)?.rows(&statement)? {
            let (tenant, node_type) = (TenantId(cell(row, 0)?), NodeTypeId(cell(row, 1)?));
            let node = NodeKey { tenant, node_type, id: cell(row, 2)? };
            let kind = KindId(cell(row, 3)?);
            found.insert((node, kind), ([cell(row, 4)?, cell(row, 5)?], cell(row, 6)?));
        }
    }
    let mut fields = RereadFields::default();
    for (node, kind) in wanted {
        let (values, stamp) = found.get(&(*node, *kind)).copied().unwrap_or_default();
        let fields = fields.entry(*node).or_default();
        for (which, value) in [Which::Incoming, Which::PendingIncoming].into_iter().zip(values) {
            fields.push(TallyField { kind: *kind, which, stamp, value });
        }
    }
    Ok(fields)
}

/// Adds the values of these counters, stamped with a moment before they were read.
pub fn counters(
    database: &Database,
    wanted: &[(NodeKey, KindId)],
    read_ms: u64,
    mut fields: RereadFields,
) -> Result<RereadFields, SqlError> {
    let mut values: FxHashMap<(TenantId, KindId, u64), i64> = FxHashMap::default();
    for wanted in wanted.chunks(TUPLES_MAX) {
        let mut statement = String::from(
            "SELECT tenant,kind,node,value FROM counter WHERE (tenant,kind,node) IN (",
        );
        text::list(&mut statement, wanted, |out, (node, kind)| {
            let (tenant, kind, id) = (node.tenant.0, kind.0, node.id);
            text::number(out, format_args!("({tenant},{kind},{id})"));
        });
        statement.push(')');
        for row in &database.session(Instant::now() + SESSION_WAIT)?.rows(&statement)? {
            let counter = (TenantId(cell(row, 0)?), KindId(cell(row, 1)?), cell(row, 2)?);
            *values.entry(counter).or_default() += cell::<i64>(row, 3)?;
        }
    }
    for (node, kind) in wanted {
        let value = values.get(&(node.tenant, *kind, node.id)).copied().unwrap_or_default();
        let field = TallyField { kind: *kind, which: Which::Value, stamp: read_ms, value };
        fields.entry(*node).or_default().push(field);
    }
    Ok(fields)
}
