//! One batch of counters in one transaction: raise the witness, take the keys and the slots, read
//! what the decisions depend on, decide, write, commit. Two round trips.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use guanxi_model::idempotency::{Answers, IdempotencyRow};
use guanxi_model::job::JobId;
use guanxi_model::{
    Catalog, Change, Error, KindId, Millis, NodeKey, NodeRow, NodeTypeId, Request, TenantId,
    decide_request,
};

use super::rows::{self, CounterKey, SlotKey};
use super::view::{CounterLedger, CounterView};
use super::{SLOT_ABS_MAX, SLOTS};
use crate::idempotency::{self, TenantKey};
use crate::rows::cell;
use crate::sql::commit_deadline::CommitBy;
use crate::sql::commit_in_doubt::{self, CommitFailure, Witness};
use crate::sql::{RowSet, Session, SqlError, text};

/// Why a batch is not done.
pub enum CounterRetry {
    /// Some counter outgrows this instance's slot: the next try takes all of its slots.
    Wider,
    Failed(CommitFailure),
}

impl From<SqlError> for CounterRetry {
    fn from(error: SqlError) -> CounterRetry {
        CounterRetry::Failed(error.into())
    }
}

/// Where the witness's version stands in the opening's answers: after BEGIN and its raise.
const WITNESS_SET: usize = 2;

pub struct CounterBatch<'a> {
    requests: &'a [&'a Request],
    instance: u64,
    witness: Witness,
    counters: Vec<CounterKey>,
    keys: Vec<TenantKey>,
    /// Counters whose every slot is taken.
    wide: BTreeSet<CounterKey>,
}

impl<'a> CounterBatch<'a> {
    pub fn new(requests: &'a [&'a Request], instance: u64, witness: Witness) -> CounterBatch<'a> {
        let mut counters = BTreeSet::new();
        let mut keys = BTreeSet::new();
        for request in requests {
            keys.extend(request.key.iter().map(|key| (request.tenant, key.clone())));
            for change in &request.changes {
                match change {
                    Change::Count(count) => {
                        let (tenant, kind) = (count.tenant, count.kind);
                        counters.insert(CounterKey { tenant, kind, node: count.id });
                        keys.extend(count.key.iter().map(|key| (tenant, key.clone())));
                    }
                    Change::ImportCounter { tenant, kind, id, .. } => {
                        counters.insert(CounterKey { tenant: *tenant, kind: *kind, node: *id });
                    }
                    _ => {}
                }
            }
        }
        let (counters, keys) = (counters.into_iter().collect(), keys.into_iter().collect());
        CounterBatch { requests, instance, witness, counters, keys, wide: BTreeSet::new() }
    }

    pub fn run(
        &mut self,
        session: &mut Session<'_>,
        catalog: Arc<Catalog>,
        by: CommitBy,
        now: Millis,
    ) -> Result<Vec<Result<Answers, Error>>, CounterRetry> {
        let mark = fastrand::u64(1..);
        let mut view = CounterView::new(catalog);
        // What is no counter is refused without a row.
        let known = |key: &&CounterKey| {
            let kind = view.catalog.kind(key.tenant, key.kind);
            kind.is_some_and(|kind| kind.fixed.counter)
        };
        let counters: Vec<CounterKey> = self.counters.iter().filter(known).copied().collect();
        let locked: Vec<SlotKey> = counters.iter().flat_map(|key| self.slots_of(key)).collect();
        let statements = self.opening(&counters, &locked, &view, mark, now);
        let sets = session.run(&statements)?;
        let raised = self.witness.raised(sets.get(WITNESS_SET))?;
        let slots = take_rows(&mut view, &sets, mark)?;
        let mut ledger = CounterLedger { view, now };
        let answers = self.requests.iter();
        let answers =
            answers.map(|request| decide_request(&mut ledger, request).unwrap_or_else(Err));
        let answers = answers.collect();
        let view = ledger.view;
        if view.deltas.is_empty() && view.used.is_empty() {
            session.run("ROLLBACK")?;
            return Ok(answers);
        }
        let statements = self.closing(&view, &slots, &locked, mark)?;
        commit_in_doubt::commit(session, statements, raised, by, || false)
            .map_err(CounterRetry::Failed)?;
        Ok(answers)
    }

    /// The slots of a counter that this batch may write to.
    fn slots_of(&self, key: &CounterKey) -> impl Iterator<Item = SlotKey> + use<> {
        let own = (self.instance % u64::from(SLOTS)) as u16;
        let slots = if self.wide.contains(key) { 0..SLOTS } else { own..own + 1 };
        let key = *key;
        slots.map(move |slot| (key, slot))
    }

    fn opening(
        &self,
        counters: &[CounterKey],
        locked: &[SlotKey],
        view: &CounterView,
        mark: u64,
        now: Millis,
    ) -> String {
        let mut out = String::from("BEGIN;");
        for statement in self.witness.raise() {
            out.push_str(&statement);
            out.push(';');
        }
        for keys in self.keys.chunks(text::TUPLES_MAX) {
            out.push_str(&idempotency::take_keys(keys, mark, now));
            out.push(';');
            out.push_str(&idempotency::select_keys(keys));
            out.push(';');
        }
        for slots in locked.chunks(text::TUPLES_MAX) {
            rows::lock_slots(&mut out, slots);
        }
        for counters in counters.chunks(text::TUPLES_MAX) {
            rows::select_slots(&mut out, counters);
        }
        let mut nodes: Vec<NodeKey> =
            counters.iter().filter_map(|counter| view.node_of(counter)).collect();
        nodes.sort_unstable();
        nodes.dedup();
        for nodes in nodes.chunks(text::TUPLES_MAX) {
            rows::select_nodes(&mut out, nodes);
        }
        out.pop();
        out
    }

    fn closing(
        &mut self,
        view: &CounterView,
        slots: &HashMap<SlotKey, i64>,
        locked: &[SlotKey],
        mark: u64,
    ) -> Result<String, CounterRetry> {
        let mut out = String::new();
        let mut deltas: Vec<(SlotKey, i64)> = Vec::with_capacity(view.deltas.len());
        for (key, delta) in &view.deltas {
            match spread(self.slots_of(key), slots, *delta) {
                Some(parts) => deltas.extend(parts),
                None => {
                    self.wide.insert(*key);
                    return Err(CounterRetry::Wider);
                }
            }
        }
        deltas.sort_unstable();
        for deltas in deltas.chunks(text::TUPLES_MAX) {
            rows::add_to_slots(&mut out, deltas);
        }
        let unused: Vec<SlotKey> = locked
            .iter()
            .filter(|(key, _)| view.deltas.get(key).is_none_or(|delta| *delta == 0))
            .copied()
            .collect();
        for slots in unused.chunks(text::TUPLES_MAX) {
            rows::drop_empty(&mut out, slots);
        }
        let mut used: Vec<(&TenantKey, &IdempotencyRow)> =
            view.used.iter().filter_map(|key| Some((key, view.keys.get(key)?))).collect();
        used.sort_unstable_by_key(|(key, _)| *key);
        for rows in used.chunks(text::TUPLES_MAX) {
            out.push_str(&idempotency::keep_answers(rows, mark));
            out.push(';');
        }
        // Keys that were free and have no answer now: their requests were refused.
        let idle: Vec<&TenantKey> =
            self.keys.iter().filter(|key| !view.keys.contains_key(*key)).collect();
        for keys in idle.chunks(text::TUPLES_MAX) {
            out.push_str(&idempotency::give_back(keys, mark));
            out.push(';');
        }
        Ok(out)
    }
}

/// How a delta is laid into slots, none when they cannot take it. A slot never leaves its bounds,
/// whatever other instances do to theirs, so the sum keeps its own.
fn spread(
    open: impl Iterator<Item = SlotKey>,
    slots: &HashMap<SlotKey, i64>,
    mut delta: i64,
) -> Option<Vec<(SlotKey, i64)>> {
    let mut parts = Vec::with_capacity(1);
    for slot in open {
        let value = slots.get(&slot).copied().unwrap_or_default();
        let after = (value + delta).clamp(-SLOT_ABS_MAX, SLOT_ABS_MAX);
        if after != value {
            parts.push((slot, after - value));
            delta -= after - value;
        }
    }
    (delta == 0).then_some(parts)
}

/// Puts what the opening read into the view; the slots are returned. Each set of rows is known by
/// its number of columns.
fn take_rows(
    view: &mut CounterView,
    sets: &[RowSet],
    mark: u64,
) -> Result<HashMap<SlotKey, i64>, SqlError> {
    let mut slots = HashMap::new();
    for row in sets.iter().flat_map(|set| &set.rows) {
        match (row.len(), row.columns_ref().last().map(|column| column.name_str())) {
            (4, _) => {
                let (key, taken) = idempotency::key_row(row, mark)?;
                if let Some(used) = taken.row {
                    view.keys.insert(key, used);
                }
            }
            (5, Some(name)) if name == "value" => {
                let (tenant, kind) = (TenantId(cell(row, 0)?), KindId(cell(row, 1)?));
                let key = CounterKey { tenant, kind, node: cell(row, 2)? };
                let value: i64 = cell(row, 4)?;
                slots.insert((key, cell(row, 3)?), value);
                view.add(key, value);
            }
            (5, _) => {
                let (tenant, node_type) = (TenantId(cell(row, 0)?), NodeTypeId(cell(row, 1)?));
                let erased_by = cell::<Option<u64>>(row, 4)?.map(JobId);
                let private = cell::<u8>(row, 3)? != 0;
                let node = NodeKey { tenant, node_type, id: cell(row, 2)? };
                view.nodes.insert(node, NodeRow { private, erased_by });
            }
            _ => {}
        }
    }
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: CounterKey = CounterKey { tenant: TenantId(1), kind: KindId(5), node: 7 };

    fn open(slots: std::ops::Range<u16>) -> impl Iterator<Item = SlotKey> {
        slots.map(|slot| (KEY, slot))
    }

    #[test]
    fn a_delta_goes_into_one_slot_until_it_is_full() {
        let slots = HashMap::from([((KEY, 3), SLOT_ABS_MAX - 1)]);
        assert_eq!(spread(open(3..4), &slots, 1), Some(vec![((KEY, 3), 1)]));
        assert_eq!(spread(open(3..4), &slots, 2), None);
        assert_eq!(
            spread(open(3..5), &slots, 2),
            Some(vec![((KEY, 3), 1), ((KEY, 4), 1)]),
            "the rest goes into the next"
        );
        assert_eq!(spread(open(3..4), &slots, -5), Some(vec![((KEY, 3), -5)]));
    }

    #[test]
    fn all_slots_take_whatever_a_counter_may_be() {
        let most = guanxi_model::limits::COUNTER_ABS_MAX;
        for delta in [most, -most] {
            let parts = spread(open(0..SLOTS), &HashMap::new(), delta).unwrap();
            assert_eq!(parts.iter().map(|(_, part)| part).sum::<i64>(), delta);
            assert!(parts.iter().all(|(_, part)| part.abs() <= SLOT_ABS_MAX));
        }
        let full: HashMap<SlotKey, i64> = open(0..SLOTS).map(|slot| (slot, SLOT_ABS_MAX)).collect();
        let parts = spread(open(0..SLOTS), &full, -2 * most).unwrap();
        assert_eq!(parts.iter().map(|(_, part)| part).sum::<i64>(), -2 * most);
    }
}
