use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn read(value: u32) -> impl FnOnce() -> Result<u32, String> {
    move || Ok(value)
}

#[test]
fn one_of_many_reads_and_all_have_its_answer() {
    const ASKING: usize = 8;
    // Waiting is bounded, so a machine that stalls may have more than one read; mostly there is
    // one, and never one each.
    for _ in 0..20 {
        let flights = Flights::<u32, u32>::new(SHARDS);
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
    let flights = Flights::<u32, u32>::new(SHARDS);
    let begun = Instant::now();
    assert_eq!(flights.get(1, |_| true, read(1)), Ok(1));
    let again = flights.get(1, |_| true, read(2));
    assert!(again == Ok(1) || begun.elapsed() >= LIFE);
    std::thread::sleep(LIFE);
    assert_eq!(flights.get(1, |_| true, read(3)), Ok(3));
}

#[test]
fn what_failed_or_is_not_worth_keeping_is_not_kept() {
    let flights = Flights::<u32, u32>::new(SHARDS);
    assert_eq!(flights.get(1, |_| true, || Err("away")), Err("away"));
    assert_eq!(flights.get(1, |_| false, read(1)), Ok(1));
    assert_eq!(flights.get(1, |_| true, read(2)), Ok(2));
}

#[test]
fn a_full_cache_and_a_slow_reader_stop_nobody() {
    let flights = Flights::<u32, u32>::new(SHARDS);
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
    let flights = Flights::<u32, u32>::new(SHARDS);
    let Claimed::Mine(old) = flights.claim(1) else { panic!("nobody else reads") };
    std::thread::sleep(WAIT);
    assert_eq!(flights.get(1, |_| true, read(2)), Ok(2));
    old.land(1);
    assert_eq!(flights.get(1, |_| true, read(3)), Ok(2));
}
