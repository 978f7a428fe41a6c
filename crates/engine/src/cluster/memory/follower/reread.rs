//! Numbers of the target's side with the stamps of their rows, straight from the tables.

use std::time::{Duration, Instant};

use guanxi_model::{KindId, NodeKey, NodeTypeId, TenantId, Which};
use rustc_hash::FxHashMap;

use crate::cluster::memory::tallies::packed::Field;
use crate::cluster::rows::cell;
use crate::cluster::sql::text::{self, TUPLES_MAX};
use crate::cluster::sql::{Database, SqlError};

/// How long a statement may wait for a connection.
const SESSION_WAIT: Duration = Duration::from_secs(5);

/// What incoming edges count to, of these nodes and kinds; explicit zeros where there is no row. Rows
/// are never deleted, so their revisions only grow.
pub fn incoming(
    database: &Database,
    wanted: &[(NodeKey, KindId)],
) -> Result<FxHashMap<NodeKey, Vec<Field>>, SqlError> {
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
    let mut fields: FxHashMap<NodeKey, Vec<Field>> = FxHashMap::default();
    for (node, kind) in wanted {
        let (values, stamp) = found.get(&(*node, *kind)).copied().unwrap_or_default();
        let fields = fields.entry(*node).or_default();
        for (which, value) in [Which::Incoming, Which::PendingIncoming].into_iter().zip(values) {
            fields.push(Field { kind: *kind, which, stamp, value });
        }
    }
    Ok(fields)
}
