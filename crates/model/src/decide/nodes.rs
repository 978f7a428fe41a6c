//! Changes of a node's own numbers and settings.

use super::{Decided, Stamp, Stop, kind_of};
use crate::answer::Answer;
use crate::change::{Change, Count, request_hash};
use crate::error::{Code, Error};
use crate::idempotency::{IdempotencyRow, replay};
use crate::limits::COUNTER_ABS_MAX;
use crate::node::{NodeKey, NodeRow, NodeTypeId, TenantId};
use crate::record::Record;
use crate::tally::Which;
use crate::view::View;

pub(super) fn set<V: View>(
    node: &NodeKey,
    private: Option<bool>,
    view: &V,
) -> Result<Decided, Stop<V::Error>> {
    let old = refuse_erased(node.tenant, node.node_type, node.id, view)?;
    let new = NodeRow { private: private.unwrap_or(old.private), ..old };
    if new == old {
        return Ok(Decided::nothing(Answer::Node(old)));
    }
    let record = Record::Node { node: *node, row: new };
    Ok(Decided { records: vec![record], answer: Answer::Node(new) })
}

pub(super) fn count<V: View>(
    count: &Count,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Stop<V::Error>> {
    let kind = kind_of(view, count.tenant, count.kind)?;
    kind.require_counter()?;
    if kind.fixed.reconciled && count.key.is_none() {
        return Err(Stop::Refused(Error::invalid(format!(
            "key: counter {} is reconciled, each delta needs an idempotency key",
            kind.name
        ))));
    }
    let request = request_hash(&[Change::Count(count.clone())]);
    if let Some(key) = &count.key {
        let row = view.idempotency(count.tenant, key).map_err(Stop::Failed)?;
        if let Some(mut answers) = replay(row, key, request, stamp.now)? {
            let stored = answers.pop();
            let lost = || Error::new(Code::Internal, "the stored answer is empty");
            return Ok(Decided::nothing(stored.ok_or_else(lost)??));
        }
    }
    refuse_erased(count.tenant, kind.fixed.target_type, count.id, view)?;
    let node = NodeKey { tenant: count.tenant, node_type: kind.fixed.target_type, id: count.id };
    let old = view.tallies(&node).map_err(Stop::Failed)?.get(kind.id, Which::Value);
    let within = |value: &i64| (-COUNTER_ABS_MAX..=COUNTER_ABS_MAX).contains(value);
    let value = Some(count.delta).filter(within).and_then(|delta| old.checked_add(delta));
    let Some(value) = value.filter(within) else {
        return Err(Stop::Refused(Error::new(
            Code::LimitReached,
            format!(
                "counter {} of {} is {old}; adding {} leaves ±{COUNTER_ABS_MAX}",
                kind.name, count.id, count.delta
            ),
        )));
    };
    let answer = Answer::Counter { value };
    let mut records = Vec::with_capacity(2);
    if count.delta != 0 {
        let Count { tenant, kind, id, delta, .. } = *count;
        records.push(Record::Counter { tenant, kind, id, delta });
    }
    if let Some(key) = &count.key {
        let row = IdempotencyRow { request, at: stamp.now, answers: vec![Ok(answer.clone())] };
        records.push(Record::Idempotency { tenant: count.tenant, key: key.clone(), row });
    }
    Ok(Decided { records, answer })
}

pub(super) fn refuse_erased<V: View>(
    tenant: TenantId,
    node_type: NodeTypeId,
    id: u64,
    view: &V,
) -> Result<NodeRow, Stop<V::Error>> {
    let row = view.node(&NodeKey { tenant, node_type, id }).map_err(Stop::Failed)?;
    if row.erased_by.is_some() {
        return Err(Stop::Refused(Error::new(
            Code::Conflict,
            format!("node {id} is being erased; it can be used again when its job is done"),
        )));
    }
    Ok(row)
}
