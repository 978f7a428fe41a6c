//! Repairs. What the committers and appliers do adds differences, so a number that is wrong stays
//! wrong by the same amount, and adding what it lacks is right whenever it is done. The target's
//! side is mended under its partition's locked `applied` row, where no applier works meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::{Duration, Instant};

use guanxi_core::audit::{AuditError, AuditWatch};
use guanxi_model::{
    Catalog, EdgeKey, EdgeRow, GroupId, GroupsKey, HeadVersion, Millis, TargetId, Which, places,
};

use super::AuditParts;
use super::look::Number;
use super::turn::{self, MendTurn};
use crate::applier::{Extra, Fence, settle};
use crate::rows::{self, HeadKey};
use crate::sql::commit_deadline::CommitBy;
use crate::sql::commit_in_doubt::{self, CommitFailure, Witness};
use crate::sql::{Session, text};

/// Mends of one transaction: its locks are held briefly.
const STEP_MENDS_MAX: usize = 128;
/// How often a step that met others is tried again.
const TRIES_MAX: u32 = 10;
const PAUSE_MAX_MS: u64 = 200;
const WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub(super) enum Mend {
    /// What a head lacks; `version` is the least it may have given out.
    Head {
        head: HeadKey,
        outgoing: i64,
        pending: i64,
        version: HeadVersion,
    },
    GroupSize {
        groups: GroupsKey,
        id: GroupId,
        delta: i64,
    },
    Expiry {
        edge: EdgeKey,
        at: Millis,
    },
    /// An entry of the expiry index has no cause.
    NoExpiry {
        shard: u8,
        edge: EdgeKey,
        at: Millis,
    },
    /// The incoming row becomes what the outgoing row says.
    Row(EdgeKey),
    Tally {
        number: Number,
        delta: i64,
    },
}

/// Does them all. One that cannot be done is left for the next look.
pub(super) fn mend(
    parts: &AuditParts,
    turn: MendTurn,
    catalog: &Catalog,
    watch: &AuditWatch,
    mends: Vec<Mend>,
) -> Result<(), AuditError> {
    let witness = Witness::drawn();
    let mut sources = Vec::new();
    let mut partitions: BTreeMap<u32, Vec<Mend>> = BTreeMap::new();
    for mend in mends {
        match partition_of(parts, &mend) {
            Some(partition) => partitions.entry(partition).or_default().push(mend),
            None => sources.push(mend),
        }
    }
    for mends in sources.chunks(STEP_MENDS_MAX) {
        step(parts, watch, |session, by| mend_sources(session, turn, (witness, by), mends))?;
    }
    for (partition, mends) in partitions {
        for mends in mends.chunks(STEP_MENDS_MAX) {
            step(parts, watch, |session, by| {
                mend_targets(session, turn, (witness, by), parts, catalog, partition, mends)
            })?;
        }
    }
    Ok(())
}

fn partition_of(parts: &AuditParts, mend: &Mend) -> Option<u32> {
    match mend {
        Mend::Row(edge) => Some(places::partition(places::edge_shard(edge), parts.partitions)),
        Mend::Tally { number: Number { node, kind, slot: 0, .. }, .. } => {
            let shard = places::target_shard(node.tenant, *kind, TargetId(node.id));
            Some(places::partition(shard, parts.partitions))
        }
        Mend::Tally { number, .. } => Some(u32::from(number.slot) - 1),
        _ => None,
    }
}

/// One transaction, tried again when it left nothing for a reason that may pass. When it is not
/// known what it left, the audit ends there: the next look might come before it is committed, and
/// what it adds be added twice.
fn step(
    parts: &AuditParts,
    watch: &AuditWatch,
    work: impl Fn(&mut Session<'_>, CommitBy) -> Result<(), CommitFailure>,
) -> Result<(), AuditError> {
    for tried in 1..=TRIES_MAX {
        if watch.is_stopped() {
            return Err(AuditError::Stopped);
        }
        // What comes after its deadline is not done: the next look would not have seen it.
        let by = parts.database.commit_by()?;
        let mut session = parts.database.session(Instant::now() + WAIT)?;
        match work(&mut session, by) {
            Ok(()) => return Ok(()),
            Err(CommitFailure::Nothing(error)) if turn::was_over(&error) => {
                tracing::warn!("another audit has begun; this one mends no more");
                session.close();
                return Err(AuditError::Elsewhere);
            }
            Err(CommitFailure::Nothing(error)) if error.may_pass() && tried < TRIES_MAX => {
                tracing::debug!(%error, "a repair is tried again");
                session.close();
                watch.wait(Duration::from_millis(fastrand::u64(1..=PAUSE_MAX_MS)));
            }
            Err(CommitFailure::Nothing(error)) => {
                tracing::warn!(%error, "a repair was not done");
                session.close();
                return Ok(());
            }
            Err(CommitFailure::Unknown(error)) => {
                tracing::error!(%error, "nobody knows whether a repair was done");
                session.close();
                return Err(error.into());
            }
        }
    }
    Ok(())
}

fn mend_sources(
    session: &mut Session<'_>,
    turn: MendTurn,
    (witness, by): (Witness, CommitBy),
    mends: &[Mend],
) -> Result<(), CommitFailure> {
    let mut heads: Vec<HeadKey> = mends.iter().filter_map(expiring_head).collect();
    heads.sort_unstable();
    heads.dedup();
    let mut out = format!("BEGIN;{}", witness.raise().join(";"));
    if !heads.is_empty() {
        out.push_str(";SELECT 1 FROM head FORCE INDEX (PRIMARY) WHERE (tenant,kind,source) IN (");
        text::list(&mut out, &heads, rows::head_tuple);
        out.push_str(") FOR UPDATE");
    }
    // BEGIN and the raise come first.
    let raised = witness.raised(session.run(&out)?.get(2))?;
    let edges: Vec<EdgeKey> = mends.iter().filter_map(expiring_edge).collect();
    let mut standing: HashMap<EdgeKey, EdgeRow> = HashMap::new();
    if !edges.is_empty() {
        for row in session.rows(&rows::select_outgoing(&edges))? {
            let (edge, row) = rows::outgoing(&row)?;
            standing.insert(edge, row);
        }
    }
    let mut out = String::new();
    for mend in mends {
        match mend {
            Mend::Head { head, outgoing, pending, version } => {
                let (tenant, kind, source) = (head.tenant.0, head.kind.0, head.source.0);
                // One that was lost may have told of exclusions.
                let _ = write!(
                    out,
                    "INSERT INTO head (tenant,kind,source,version,outgoing,pending_outgoing,\
                     excluded) \
                     VALUES ({tenant},{kind},{source},{},{outgoing},{pending},1) \
                     ON DUPLICATE KEY UPDATE outgoing=outgoing+VALUES(outgoing),\
                     pending_outgoing=pending_outgoing+VALUES(pending_outgoing),\
                     version=GREATEST(version,VALUES(version));",
                    version.0
                );
            }
            Mend::GroupSize { groups, id, delta } => {
                let (tenant, kind, source) = (groups.tenant.0, groups.kind.0, groups.source.0);
                let _ = write!(
                    out,
                    "UPDATE `groups` SET size=size+{delta} WHERE tenant={tenant} AND \
                     kind={kind} AND source={source} AND id={};",
                    id.0
                );
            }
            Mend::Expiry { edge, at } => {
                let row = standing.get(edge).filter(|row| row.stands());
                if row.is_some_and(|row| row.expires_at == Some(*at)) {
                    insert_expiry(&mut out, edge, *at);
                }
            }
            Mend::NoExpiry { shard, edge, at } => {
                let row = standing.get(edge).filter(|row| row.stands());
                if row.is_none_or(|row| row.expires_at != Some(*at)) {
                    delete_expiry(&mut out, *shard, edge, *at);
                }
            }
            Mend::Row(_) | Mend::Tally { .. } => {}
        }
    }
    out.push_str(&turn.hold());
    out.push(';');
    commit_in_doubt::commit(session, out, raised, by, || false)
}

fn expiring_edge(mend: &Mend) -> Option<EdgeKey> {
    match mend {
        Mend::Expiry { edge, .. } | Mend::NoExpiry { edge, .. } => Some(*edge),
        _ => None,
    }
}

fn expiring_head(mend: &Mend) -> Option<HeadKey> {
    expiring_edge(mend).map(|edge| GroupsKey::of(&edge))
}

fn insert_expiry(out: &mut String, edge: &EdgeKey, at: Millis) {
    let EdgeKey { tenant, kind, source, target } = edge;
    let shard = places::source_shard(*tenant, *kind, *source);
    let _ = write!(
        out,
        "INSERT INTO expiry (shard,expires_at,tenant,kind,source,target) VALUES \
         ({shard},{},{},{},{},{}) ON DUPLICATE KEY UPDATE expires_at=VALUES(expires_at);",
        at.0, tenant.0, kind.0, source.0, target.0
    );
}

fn delete_expiry(out: &mut String, shard: u8, edge: &EdgeKey, at: Millis) {
    let EdgeKey { tenant, kind, source, target } = edge;
    let _ = write!(
        out,
        "DELETE FROM expiry WHERE shard={shard} AND expires_at={} AND tenant={} AND kind={} AND \
         source={} AND target={};",
        at.0, tenant.0, kind.0, source.0, target.0
    );
}

/// As an applier would: incoming rows become what the outgoing ones say now, and the tallies
/// follow, so that what they had too much or too little stays as it was and is taken off here.
fn mend_targets(
    session: &mut Session<'_>,
    turn: MendTurn,
    witness: (Witness, CommitBy),
    parts: &AuditParts,
    catalog: &Catalog,
    partition: u32,
    mends: &[Mend],
) -> Result<(), CommitFailure> {
    let edges =
        mends.iter().filter_map(|mend| if let Mend::Row(edge) = mend { Some(*edge) } else { None });
    let mut last: Vec<String> = mends
        .iter()
        .filter_map(|mend| match mend {
            Mend::Tally { number, delta } => Some(add_to_tally(number, *delta)),
            _ => None,
        })
        .collect();
    last.push(turn.hold());
    let fence = Fence::of(&parts.topic, [partition]);
    let extra = Extra { statements: &last, witness: Some(witness) };
    settle(session, &fence, None, parts.partitions, edges, catalog, extra)?;
    Ok(())
}

fn add_to_tally(number: &Number, delta: i64) -> String {
    let column = match number.which {
        Which::Incoming => "incoming",
        Which::PendingIncoming => "pending_incoming",
        _ => "owned",
    };
    let (node, kind, slot) = (number.node, number.kind.0, number.slot);
    format!(
        "INSERT INTO tally (tenant,node_type,node,kind,slot,{column}) VALUES \
         ({},{},{},{kind},{slot},{delta}) ON DUPLICATE KEY UPDATE \
         {column}={column}+VALUES({column}),revision=revision+1",
        node.tenant.0, node.node_type.0, node.id
    )
}
