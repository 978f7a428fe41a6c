//! Changes of a node's own numbers and settings.

use super::{Decided, Stamp, Undecided, kind_of};
use crate::answer::Answer;
use crate::change::{Change, CounterDelta, request_hash};
use crate::error::{Code, Error};
use crate::idempotency::{IdempotencyRow, replay};
use crate::kind::Kind;
use crate::limits::COUNTER_ABS_MAX;
use crate::node::{NodeKey, NodeRow, NodeTypeId, TenantId};
use crate::record::Record;
use crate::tally::Which;
use crate::view::View;

pub(super) fn set<V: View>(
    node: &NodeKey,
    private: Option<bool>,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let old = refuse_erased(node.tenant, node.node_type, node.id, view)?;
    let new = NodeRow { private: private.unwrap_or(old.private), ..old };
    if new == old {
        return Ok(Decided::nothing(Answer::Node(old)));
    }
    let record = Record::Node { node: *node, row: new };
    Ok(Decided { records: vec![record], answer: Answer::Node(new) })
}

pub(super) fn count<V: View>(
    count: &CounterDelta,
    view: &V,
    stamp: &mut Stamp<'_>,
) -> Result<Decided, Undecided<V::Error>> {
    let kind = kind_of(view, count.tenant, count.kind)?;
    kind.require_counter()?;
    if kind.fixed.reconciled && count.key.is_none() {
        return Err(Undecided::Refused(Error::invalid(format!(
            "key: counter {} is reconciled, each delta needs an idempotency key",
            kind.name
        ))));
    }
    let request = request_hash(&[Change::Count(count.clone())]);
    if let Some(key) = &count.key {
        let row = view.idempotency(count.tenant, key).map_err(Undecided::Failed)?;
        if let Some(mut answers) = replay(row, key, request, stamp.keys_age_by)? {
            let stored = answers.pop();
            let lost = || Error::new(Code::Internal, "the stored answer is empty");
            return Ok(Decided::nothing(stored.ok_or_else(lost)??));
        }
    }
    refuse_erased(count.tenant, kind.fixed.target_type, count.id, view)?;
    let mut decided = add(&kind, count.tenant, count.id, CounterStep::By(count.delta), view)?;
    if let Some(key) = &count.key {
        let row = IdempotencyRow {
            request,
            at: stamp.keys_age_by,
            answers: vec![Ok(decided.answer.clone())],
        };
        decided.records.push(Record::Idempotency { tenant: count.tenant, key: key.clone(), row });
    }
    Ok(decided)
}

/// What happens to a counter.
#[derive(Debug, Clone, Copy)]
pub(super) enum CounterStep {
    By(i64),
    To(i64),
}

/// Moves a counter within its bounds.
pub(super) fn add<V: View>(
    kind: &Kind,
    tenant: TenantId,
    id: u64,
    step: CounterStep,
    view: &V,
) -> Result<Decided, Undecided<V::Error>> {
    let node = NodeKey { tenant, node_type: kind.fixed.target_type, id };
    let old = view.tallies(&node).map_err(Undecided::Failed)?.get(kind.id, Which::Value);
    let within = |value: &i64| (-COUNTER_ABS_MAX..=COUNTER_ABS_MAX).contains(value);
    let value = match step {
        CounterStep::By(delta) => {
            Some(delta).filter(within).and_then(|delta| old.checked_add(delta))
        }
        CounterStep::To(value) => Some(value),
    };
    let Some(value) = value.filter(within) else {
        let wanted = match step {
            CounterStep::By(delta) => format!("adding {delta}"),
            CounterStep::To(value) => format!("setting it to {value}"),
        };
        return Err(Undecided::Refused(Error::new(
            Code::LimitReached,
            format!("counter {} of {id} is {old}; {wanted} leaves ±{COUNTER_ABS_MAX}", kind.name),
        )));
    };
    let mut records = Vec::with_capacity(2);
    if value != old {
        records.push(Record::Counter { tenant, kind: kind.id, id, delta: value - old });
    }
    Ok(Decided { records, answer: Answer::Counter { value } })
}

pub(super) fn refuse_erased<V: View>(
    tenant: TenantId,
    node_type: NodeTypeId,
    id: u64,
    view: &V,
) -> Result<NodeRow, Undecided<V::Error>> {
    let row = view.node(&NodeKey { tenant, node_type, id }).map_err(Undecided::Failed)?;
    if row.erased_by.is_some() {
        let message = format!("node {id} is being erased; try again when its job is done");
        return Err(Undecided::Refused(Error::new(Code::Conflict, message).passing()));
    }
    Ok(row)
}
