//! The budget alone: bounds that hold under many callers, the queue's order, and how it comes back.

use std::sync::atomic::AtomicBool;

use super::*;

/// Generous: a busy machine is no failure.
const LONG: Duration = Duration::from_secs(60);

fn budget(reads_max: usize, waiting_max: usize, wait: Duration) -> Arc<ReadBudget> {
    let lists_max = 2;
    let answer = LONG;
    let settings = ReadBudgetSettings { reads_max, lists_max, waiting_max, wait, answer };
    Arc::new(ReadBudget::new(settings))
}

fn later() -> Instant {
    Instant::now() + LONG
}

async fn await_waiting(budget: &ReadBudget, waiting: usize) {
    let deadline = later();
    while budget.figures().reads.waiting != waiting {
        assert!(Instant::now() < deadline, "{:?}", budget.figures());
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn never_more_than_the_budget_are_inside() {
    const READS_MAX: usize = 3;
    let budget = budget(READS_MAX, 1_000, LONG);
    let (inside, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut readers = Vec::new();
    for _ in 0..200 {
        let (budget, inside, peak) = (budget.clone(), inside.clone(), peak.clone());
        readers.push(tokio::spawn(async move {
            let place = budget.enter(ReadLane::Reads, later()).await.expect("a place");
            // As a read does it: on a thread that blocks, whoever waits for it.
            let read = tokio::task::spawn_blocking(move || {
                let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                peak.fetch_max(now, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(place);
            });
            read.await.expect("it reads");
        }));
    }
    for reader in readers {
        reader.await.expect("it ends");
    }
    assert_eq!(peak.load(Ordering::SeqCst), READS_MAX, "all places are used, and no more");
    let BudgetFigures { reads, overloaded, .. } = budget.figures();
    assert_eq!((reads.taken, reads.waiting, reads.turned_away), (0, 0, 0));
    assert!(!overloaded);
}

#[tokio::test]
async fn a_place_is_kept_for_as_long_as_the_database_works() {
    let budget = budget(1, 10, Duration::from_millis(5));
    let place = budget.enter(ReadLane::Reads, later()).await.expect("a place");
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let read = tokio::task::spawn_blocking(move || {
        let _ = ended.recv_timeout(LONG);
        drop(place);
    });
    // Nobody waits for it any more.
    drop(tokio::time::timeout(Duration::from_millis(1), read).await);
    assert!(budget.enter(ReadLane::Reads, later()).await.is_none());
    assert!(budget.figures().overloaded);
    drop(end);
    let deadline = later();
    while budget.figures().reads.taken > 0 {
        assert!(Instant::now() < deadline);
        tokio::task::yield_now().await;
    }
    assert!(budget.enter(ReadLane::Reads, later()).await.is_some(), "as before");
}

#[tokio::test]
async fn those_that_wait_are_few_and_in_order() {
    let budget = budget(1, 3, LONG);
    let first = budget.enter(ReadLane::Reads, later()).await.expect("a place");
    let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..3 {
        let (own, order) = (budget.clone(), order.clone());
        waiters.push(tokio::spawn(async move {
            let place = own.enter(ReadLane::Reads, later()).await;
            order.lock().push(number);
            drop(place.expect("a place"));
        }));
        await_waiting(&budget, number + 1).await;
    }
    let asked = Instant::now();
    assert!(budget.enter(ReadLane::Reads, later()).await.is_none(), "the queue is full");
    assert!(asked.elapsed() < LONG / 2, "who finds it full does not wait");
    assert_eq!(budget.figures().reads.turned_away, 1);
    assert!(budget.enter(ReadLane::Lists, later()).await.is_some(), "lists have their own places");
    drop(first);
    for waiter in waiters {
        waiter.await.expect("it ends");
    }
    assert_eq!(*order.lock(), [0, 1, 2]);
}

#[tokio::test]
async fn who_gives_up_waits_no_longer() {
    let budget = budget(1, 1, LONG);
    let place = budget.enter(ReadLane::Reads, later()).await.expect("a place");
    let reached = AtomicBool::new(false);
    let given_up = tokio::time::timeout(Duration::from_millis(20), async {
        budget.enter(ReadLane::Reads, later()).await;
        reached.store(true, Ordering::SeqCst);
    });
    assert!(given_up.await.is_err() && !reached.load(Ordering::SeqCst));
    assert_eq!(budget.figures().reads.waiting, 0, "its place in the queue is free again");
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(
        budget.enter(ReadLane::Reads, soon).await.is_none(),
        "no longer than the caller's time"
    );
    drop(place);
    assert!(budget.enter(ReadLane::Reads, later()).await.is_some());
}
