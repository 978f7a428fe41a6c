//! What becomes of requests whose rows cannot be read, at whichever row that happens.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use guanxi_model::change::{CounterDelta, Put};
use guanxi_model::decide::built_in_kinds;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::{Answer, Change, EdgeKey, NodeKey, SourceId, TargetId, TenantId};

use super::*;
use crate::store::KeyedStore;
use crate::store::keyed::{Backend, KeyView, KeyWrite, VisitKey};
use crate::store::memory::{MemoryBackend, MemoryView};

const TENANT: TenantId = TenantId::DEFAULT;
const NOW: Millis = Millis(1_700_000_000_000);

/// Keys in memory of which the n-th look from now fails once.
#[derive(Default)]
struct Failing {
    memory: MemoryBackend,
    looks_left: Arc<AtomicI64>,
}

struct FailingView {
    view: MemoryView,
    looks_left: Arc<AtomicI64>,
}

impl FailingView {
    fn look(&self) -> Result<(), StoreError> {
        match self.looks_left.fetch_sub(1, Ordering::Relaxed) {
            1 => Err(StoreError::Io("a bad sector".into())),
            _ => Ok(()),
        }
    }
}

impl Backend for Failing {
    type View = FailingView;

    fn view(&self) -> FailingView {
        FailingView { view: self.memory.view(), looks_left: self.looks_left.clone() }
    }

    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError> {
        self.memory.write(entries)
    }

    fn persist(&self) -> Result<(), StoreError> {
        self.memory.persist()
    }

    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
}

impl KeyView for FailingView {
    type Bytes = Vec<u8>;

    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.look()?;
        self.view.get(key)
    }

    fn range(
        &self,
        range: (Bound<Vec<u8>>, Bound<Vec<u8>>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError> {
        self.look()?;
        self.view.range(range, reverse, visit)
    }
}

/// A store with the kinds that come ready, and a decider on it.
fn ready(looks_left: &Arc<AtomicI64>) -> (KeyedStore<Failing>, Decider) {
    looks_left.store(i64::MAX, Ordering::Relaxed);
    let backend = Failing { looks_left: looks_left.clone(), ..Failing::default() };
    let store = KeyedStore::open(backend).unwrap();
    let mut decider = Decider::new(Epoch(1), Applied::NOTHING, Region::default());
    let kinds = built_in_kinds().unwrap().into_iter();
    let create = |spec| Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
    let request = Request::new(TENANT, kinds.map(create).collect());
    let decision = decider.decide([&request].into_iter(), NOW, &store).unwrap();
    store.write(&decision.dirty, decision.applied).unwrap();
    (store, decider)
}

fn put(store: &dyn Store, source: u64, target: u64) -> Change {
    let kind = store.catalog().named(TENANT, "follow").unwrap().id;
    let (source, target) = (SourceId(source), TargetId(target));
    Change::Put(Put::plain(EdgeKey { tenant: TENANT, kind, source, target }))
}

#[test]
fn a_row_that_cannot_be_read_leaves_nothing_under_a_key() {
    let looks_left = Arc::new(AtomicI64::new(0));
    let (mut failed_first, mut failed_later) = (0, 0);
    for failing in 1..200 {
        let (store, mut decider) = ready(&looks_left);
        let view = store.catalog().named(TENANT, "view").unwrap().id;
        let count = CounterDelta { tenant: TENANT, kind: view, id: 9, delta: 1, key: None };
        let other = Request::one(TENANT, put(&store, 5, 6));
        let keyed = Request {
            key: Some(IdempotencyKey::new("once").unwrap()),
            ..Request::new(TENANT, vec![put(&store, 1, 2), Change::Count(count), put(&store, 1, 3)])
        };
        looks_left.store(failing, Ordering::Relaxed);
        let requests = [&other, &keyed];
        let first = decider.decide(requests.into_iter(), NOW, &store);
        let all_was_read = looks_left.load(Ordering::Relaxed) > 0;
        looks_left.store(i64::MAX, Ordering::Relaxed);
        let decided = match &first {
            Ok(decision) => {
                store.write(&decision.dirty, decision.applied).unwrap();
                decision.answers.len()
            }
            Err(_) => 0,
        };
        for answers in first.iter().flat_map(|decision| &decision.answers) {
            let answers = answers.as_ref().unwrap();
            assert!(answers.iter().all(Result::is_ok), "look {failing}: {answers:?}");
        }
        failed_first += usize::from(decided == 0);
        failed_later += usize::from(decided == 1);
        // Whoever was not decided comes again, and is done as if nothing had been.
        let again = decider.decide(requests[decided..].iter().copied(), NOW, &store);
        if let Ok(again) = again
            && let Some(answers) = again.answers.last()
        {
            let answers = answers.as_ref().unwrap();
            assert!(answers.iter().all(Result::is_ok), "look {failing}: {answers:?}");
            store.write(&again.dirty, again.applied).unwrap();
        }
        let replayed = decider.decide([&keyed].into_iter(), NOW, &store).unwrap();
        assert!(replayed.frame.is_none(), "look {failing}: it was done once before");
        let counted = store.snapshot().tallies(&guanxi_model::NodeKey {
            tenant: TENANT,
            node_type: store.catalog().named(TENANT, "view").unwrap().fixed.target_type,
            id: 9,
        });
        let value = counted.unwrap().get(view, guanxi_model::Which::Value);
        assert_eq!(value, 1, "look {failing}: counted once");
        if all_was_read {
            break;
        }
        assert!(failing < 199, "there is an end of what is looked at");
    }
    assert!(failed_first > 0 && failed_later > 2, "{failed_first} and {failed_later}");
}

#[test]
fn a_refusal_that_passes_is_not_kept_under_a_key() {
    let (store, mut decider) = ready(&Arc::new(AtomicI64::new(i64::MAX)));
    let mut answers = |request: &Request| {
        let decision = decider.decide([request].into_iter(), NOW, &store).unwrap();
        store.write(&decision.dirty, decision.applied).unwrap();
        decision.answers.into_iter().next().unwrap().unwrap()
    };
    let user = store.catalog().named(TENANT, "follow").unwrap().fixed.target_type;
    let node = NodeKey { tenant: TENANT, node_type: user, id: 3 };
    let begun = answers(&Request::one(TENANT, Change::BeginErase { node }));
    let Ok(Answer::Job(job)) = begun[0] else { panic!("an erasure is a job: {begun:?}") };
    let strict = |target| match put(&store, 1, target) {
        Change::Put(put) => Change::Put(Put { strict: true, ..put }),
        other => other,
    };
    let keyed = Request {
        key: Some(IdempotencyKey::new("once").unwrap()),
        ..Request::new(TENANT, vec![strict(3), strict(4)])
    };
    let first = answers(&keyed);
    assert!(matches!(&first[0], Err(error) if error.retryable), "{first:?}");
    assert!(first[1].is_ok(), "{first:?}");
    assert_eq!(answers(&keyed), first, "it still stands in the way");

    let finished = answers(&Request::one(TENANT, Change::FinishErase { tenant: TENANT, job }));
    assert!(finished[0].is_ok(), "{finished:?}");
    let second = answers(&keyed);
    assert!(second[0].is_ok(), "{second:?}");
    assert_eq!(second[1], first[1], "what was done is not done again");
    assert_eq!(answers(&keyed), second, "all of it is kept now");
}

/// The clock says that two days have passed, and nobody knows that they have.
#[test]
fn a_clock_in_doubt_makes_no_key_old_neither_a_requests_nor_a_counters() {
    let (store, mut decider) = ready(&Arc::new(AtomicI64::new(0)));
    let view = store.catalog().named(TENANT, "view").unwrap().id;
    let count = |key: &str| {
        let key = Some(IdempotencyKey::new(key).unwrap());
        Request::one(
            TENANT,
            Change::Count(CounterDelta { tenant: TENANT, kind: view, id: 9, delta: 1, key }),
        )
    };
    let keyed = |key: &str, target: u64| Request {
        key: Some(IdempotencyKey::new(key).unwrap()),
        ..Request::one(TENANT, put(&store, 1, target))
    };
    let mut write = |now: Millis, past: Millis, request: &Request| {
        decider.age_keys_by(past);
        let decision = decider.decide([request].into_iter(), now, &store).unwrap();
        store.write(&decision.dirty, decision.applied).unwrap();
        (decision.answers[0].clone().unwrap(), decision.frame.is_some())
    };
    let before = [count("counted"), keyed("put", 2)];
    let first = before.each_ref().map(|request| write(NOW, NOW, request));
    assert!(first.iter().all(|(_, wrote)| *wrote));
    let (later, past) = (Millis(NOW.0 + 2 * 24 * 3_600_000), Millis(NOW.0 + 15 * 60_000));
    for round in 0..20 {
        assert!(write(later, past, &count(&format!("c{round}"))).1);
        assert!(write(later, past, &keyed(&format!("k{round}"), 100 + round)).1);
    }
    for (request, (answers, _)) in before.iter().zip(&first) {
        let (again, wrote) = write(later, past, request);
        assert!(!wrote, "{request:?} was done once more");
        assert_eq!(again, *answers);
    }
}
