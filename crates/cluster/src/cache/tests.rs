use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use guanxi_core::hot::HOT_PER_SECOND;

use super::*;

impl Noted for u32 {
    fn hot_key(&self) -> ReadKey {
        let tenant = TenantId::DEFAULT;
        ReadKey { tenant, what: What::Incoming(KindId(1)), id: u64::from(*self) }
    }
}

fn flights() -> Flights<u32, u32> {
    Flights::new(SHARDS, Arc::default(), Signal::default())
}

/// With these keys pinned.
fn flights_with_pins(keys: &[u32]) -> Flights<u32, u32> {
    let flights = flights();
    let told = keys.iter().map(|key| (key.hot_key(), HOT_PER_SECOND));
    flights.hot.hear(vec![told.collect()]);
    flights.hot.turn();
    flights
}

/// Puts an answer that was read so long ago.
fn put_old(flights: &Flights<u32, u32>, key: u32, value: u32, age: Duration) {
    let at = Instant::now().checked_sub(age).unwrap();
    flights.shard(&key).cells.lock().insert(key, CacheCell::Known { value, at, asked: false });
}

fn read(value: u32) -> impl FnOnce() -> Result<u32, String> {
    move || Ok(value)
}

#[test]
fn one_of_many_reads_and_all_have_its_answer() {
    const ASKING: usize = 8;
    // Waiting is bounded, so a machine that stalls may have more than one read; mostly there is
    // one, and never one each.
    for _ in 0..20 {
        let flights = flights();
        let (reads, begin) = (AtomicUsize::new(0), Barrier::new(ASKING));
        std::thread::scope(|scope| {
            for _ in 0..ASKING {
                scope.spawn(|| {
                    begin.wait();
                    let value = flights.get(
                        7,
                        |_| true,
                        || {
                            reads.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            Ok::<u32, String>(42)
                        },
                    );
                    assert_eq!(value, Ok(42));
                });
            }
        });
        if reads.load(Ordering::SeqCst) == 1 {
            return;
        }
    }
    panic!("there were never fewer reads than askers");
}

#[test]
fn an_answer_is_kept_for_its_life_only() {
    let flights = flights();
    let begun = Instant::now();
    assert_eq!(flights.get(1, |_| true, read(1)), Ok(1));
    let again = flights.get(1, |_| true, read(2));
    assert!(again == Ok(1) || begun.elapsed() >= LIFE);
    std::thread::sleep(LIFE);
    assert_eq!(flights.get(1, |_| true, read(3)), Ok(3));
}

#[test]
fn what_failed_or_is_not_worth_keeping_is_not_kept() {
    let flights = flights();
    assert_eq!(flights.get(1, |_| true, || Err("away")), Err("away"));
    assert_eq!(flights.get(1, |_| false, read(1)), Ok(1));
    assert_eq!(flights.get(1, |_| true, read(2)), Ok(2));
}

#[test]
fn a_full_cache_and_a_slow_reader_stop_nobody() {
    let flights = flights();
    let slow: Vec<_> = (0..1_000).map(|key| flights.claim(key)).collect();
    assert!(slow.iter().any(|claim| matches!(claim, Claimed::Alone)), "there is room for all");
    for key in [0, 999, 5_000] {
        assert_eq!(flights.get(key, |_| true, read(key)), Ok(key));
    }
    drop(slow);
    assert_eq!(flights.get(1, |_| true, read(8)), Ok(8));
}

/// A read that began before another ended is not put in its place.
#[test]
fn an_older_answer_never_replaces_a_newer() {
    let flights = flights();
    let Claimed::Mine(old) = flights.claim(1) else { panic!("nobody else reads") };
    std::thread::sleep(WAIT);
    assert_eq!(flights.get(1, |_| true, read(2)), Ok(2));
    old.land(1);
    assert_eq!(flights.get(1, |_| true, read(3)), Ok(2));
}

#[test]
fn what_is_pinned_is_read_again_behind_its_readers() {
    let flights = flights_with_pins(&[1]);
    put_old(&flights, 1, 10, LIFE);
    put_old(&flights, 2, 20, LIFE);
    let begun = Instant::now();
    for _ in 0..5 {
        assert_eq!(flights.known(&1), Some(10));
        assert_eq!(flights.get(1, |_| true, read(99)), Ok(10));
    }
    assert_eq!(flights.known(&2), None, "it is not pinned");
    assert_eq!(flights.take_stale(), [1], "one of them asks");
    // A read that failed is asked for again.
    flights.renew(&1, None, begun);
    assert_eq!(flights.known(&1), Some(10));
    assert_eq!(flights.take_stale(), [1]);
    // What was read before what stands does not take its place.
    let before = begun.checked_sub(PINNED_AGE_MAX).unwrap();
    flights.renew(&1, Some(9), before);
    assert_eq!(flights.known(&1), Some(10));
    flights.renew(&1, Some(11), Instant::now());
    assert_eq!(flights.known(&1), Some(11));
}

#[test]
fn what_is_pinned_is_never_older_than_its_bound() {
    let flights = flights_with_pins(&[1]);
    put_old(&flights, 1, 10, PINNED_AGE_MAX);
    assert_eq!(flights.known(&1), None);
    assert_eq!(flights.get(1, |_| true, read(11)), Ok(11), "a reader reads for itself");
    assert_eq!(flights.known(&1), Some(11));
}

#[test]
fn what_is_pinned_has_room_in_a_full_cache_and_stays() {
    let flights = flights_with_pins(&[1]);
    let slow: Vec<_> = (1_000..2_000).map(|key| flights.claim(key)).collect();
    assert_eq!(flights.get(1, |_| true, read(1)), Ok(1));
    assert_eq!(flights.known(&1), Some(1));
    drop(slow);
    put_old(&flights, 1, 1, LIFE);
    for key in 2_000..3_000 {
        assert_eq!(flights.get(key, |_| true, read(key)), Ok(key));
    }
    assert_eq!(flights.known(&1), Some(1), "others took its place");
}
