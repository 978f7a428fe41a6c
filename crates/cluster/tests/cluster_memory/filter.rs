//! The filter over a real database and a real Redis that is flushed, paused, killed and left behind:
//! an edge whose put was acknowledged is never "surely not", and the filter comes back by itself.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::memory::MemorySettings;
use guanxi_cluster::sql::commit_deadline::ENDED_AFTER;
use guanxi_core::deployment::FilterStage;
use guanxi_model::filter::Say;
use guanxi_model::{Change, EdgeKey};
use parking_lot::RwLock;
use redis::cmd;

use crate::stage::{Ending, Member, Stage};
use crate::world::{FOLLOW, LIKE, edge, eventually, number, put};

/// Targets that nobody relates to.
const STRANGERS: u64 = 1 << 40;

fn strangers(source: u64) -> Vec<EdgeKey> {
    (0..200).map(|target| edge(FOLLOW, source, STRANGERS + target)).collect()
}

/// How many of two hundred edges that never stood are known not to.
fn surely_not(stage: &Stage, member: &Member) -> usize {
    let says = stage.ask(member, &strangers(7));
    says.iter().filter(|say| **say == Say::SurelyNot).count()
}

/// Asks until all is known, as a busy machine may answer late; then it must be so at once.
#[track_caller]
fn until_known(stage: &Stage, member: &Member, edges: &[EdgeKey], holds: impl Fn(&[Say]) -> bool) {
    let mut says = Vec::new();
    eventually("an answer", || {
        says = stage.ask(member, edges);
        !says.contains(&Say::Unknown)
    });
    assert!(holds(&says), "{says:?}");
}

#[test]
fn what_stood_before_and_what_is_put_later_is_in_it() {
    Stage::each("filter filled", |stage| {
        let (one, two) = (stage.member(1), stage.member(2));
        let old: Vec<Change> = (1..=5_000).map(|id| put(FOLLOW, id % 97 + 1, id)).collect();
        one.instance.write_all(old);
        let gone = edge(FOLLOW, 7, STRANGERS);
        let deleted = Change::Delete { edge: gone, strict: false };
        one.instance.write(put(FOLLOW, 7, STRANGERS)).unwrap();
        one.instance.write(deleted).unwrap();
        assert!(stage.ask(&one, &strangers(7)).iter().all(|say| *say == Say::Unknown));
        let _keeper = stage.keeper(&one);
        eventually("both believe it", || one.serves() && two.serves());
        let stand: Vec<EdgeKey> = (1..=5_000).map(|id| edge(FOLLOW, id % 97 + 1, id)).collect();
        for member in [&one, &two] {
            for edges in stand.chunks(500) {
                until_known(stage, member, edges, |says| says.iter().all(|say| *say == Say::Maybe));
            }
            until_known(stage, member, &strangers(7), |says| {
                says.iter().filter(|say| **say == Say::SurelyNot).count() >= 195
            });
        }
        // At once, for everybody, in every kind.
        for target in 6_000..6_050 {
            two.instance.write(put(LIKE, 9, target)).unwrap();
            until_known(stage, &one, &[edge(LIKE, 9, target)], |says| says == [Say::Maybe]);
        }
        let figures = one.memory.figures();
        assert!(figures.filter.surely_not >= 195 && figures.filter.unknown >= 200, "{figures:?}");
        stage.flush();
        eventually("whoever asks says that it is gone", || {
            stage.ask(&one, &strangers(7));
            !one.serves()
        });
        eventually("and whoever asks nothing", || !two.serves());
        let phase = || two.memory.filter_status().unwrap().phase;
        eventually("another is on its way", || phase() == FilterStage::Warming);
        eventually("it is filled again", || one.serves() && two.serves());
        assert_eq!(phase(), FilterStage::Serving);
    });
}

#[test]
fn an_instance_that_cannot_tell_it_takes_it_from_everybody() {
    Stage::each("filter withdrawn", |stage| {
        let one = stage.member(1);
        let without = stage.member_with(2, None);
        let keeper = stage.keeper(&one);
        eventually("it is believed", || one.serves());
        let fresh = edge(FOLLOW, 7, STRANGERS + 500);
        until_known(stage, &one, &[fresh], |says| says == [Say::SurelyNot]);
        keeper.stop();
        without.instance.write(put(FOLLOW, 7, STRANGERS + 500)).unwrap();
        assert_eq!(stage.ask(&one, &[fresh]), [Say::Unknown], "it was taken back before the put");
    });
}

/// The lease of the filling is first held by an instance that asks for Redis where nobody answers.
#[test]
fn who_does_not_reach_redis_leaves_the_filling_to_others() {
    Stage::each("filter lease", |stage| {
        let runtime = stage.runtime.handle().clone();
        let nowhere = MemorySettings {
            filter_url: Some("redis://127.0.0.1:9".into()),
            list_url: None,
            tally_url: None,
            runtime,
        };
        let cut_off = stage.member_with(1, Some(&nowhere));
        let _holds = stage.keeper(&cut_off);
        let held = "SELECT COUNT(*) FROM leases WHERE name='memory/filter' AND until_ms>0";
        eventually("it holds the lease", || number(&cut_off.instance.database, held) == 1);
        let well = stage.member(2);
        let _fills = stage.keeper(&well);
        eventually("the other has filled it", || well.serves());
        assert!(!cut_off.serves(), "it cannot ask");
    });
}

/// Redis goes through bad days while two instances write and two others ask.
#[test]
fn whatever_happens_to_redis_nothing_acknowledged_is_denied() {
    Stage::each("filter bad days", |stage| {
        let (one, two) = (stage.member(1), stage.member(2));
        let _keepers = [stage.keeper(&one), stage.keeper(&two)];
        eventually("it is believed", || one.serves() && two.serves());
        let (ends, asked) = (AtomicBool::new(false), AtomicU64::new(0));
        let acknowledged: RwLock<Vec<EdgeKey>> = RwLock::default();
        std::thread::scope(|scope| {
            // Ends the others whatever becomes of this one.
            let _ends = Ending(&ends);
            for (index, member) in [&one, &two].into_iter().enumerate() {
                let (ends, acknowledged) = (&ends, &acknowledged);
                scope.spawn(move || {
                    for number in 1.. {
                        if ends.load(Ordering::Relaxed) {
                            return;
                        }
                        let target = number * 2 + index as u64;
                        let fresh = edge(FOLLOW, target % 500 + 1, target);
                        member.instance.write(put(FOLLOW, target % 500 + 1, target)).unwrap();
                        acknowledged.write().push(fresh);
                    }
                });
            }
            for member in [&one, &two] {
                let (ends, acknowledged, asked) = (&ends, &acknowledged, &asked);
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        let edges = {
                            let all = acknowledged.read();
                            let newest = all.len().saturating_sub(40);
                            let mut edges = all[newest..].to_vec();
                            edges.extend((0..40).filter_map(|_| fastrand::choice(&*all).copied()));
                            edges
                        };
                        let says = stage.ask(member, &edges);
                        let denied =
                            edges.iter().zip(&says).find(|(_, say)| **say == Say::SurelyNot);
                        if denied.is_some() {
                            ends.store(true, Ordering::Relaxed);
                        }
                        assert_eq!(denied, None, "an acknowledged edge is denied");
                        let believed = says.iter().filter(|say| **say == Say::Maybe).count();
                        asked.fetch_add(believed as u64, Ordering::Relaxed);
                    }
                });
            }
            let again = |what: &str| {
                let before = asked.load(Ordering::Relaxed);
                eventually(what, || {
                    ends.load(Ordering::Relaxed) || asked.load(Ordering::Relaxed) > before + 200
                });
            };
            stage.flush();
            again("believed after a FLUSHALL");
            stage.redis.pause();
            std::thread::sleep(Duration::from_secs(3));
            stage.redis.resume();
            again("believed after a pause");
            stage.redis.kill();
            std::thread::sleep(Duration::from_millis(500));
            stage.redis.start_again();
            again("believed after a kill");
        });
        assert!(!acknowledged.read().is_empty());
        eventually("edges that never stood are known again", || surely_not(stage, &one) >= 190);
    });
}

/// A replica that stopped to follow takes the master's place: the same strings, the same seal,
/// fewer bits.
#[test]
fn a_failover_to_an_older_replica_denies_nothing() {
    Stage::each("filter failover", |stage| {
        let one = stage.member(1);
        let _keeper = stage.keeper(&one);
        eventually("it is believed", || one.serves());
        one.instance.write(put(FOLLOW, 1, 2)).unwrap();
        // The replica's snapshot is taken to the master's port, as a failover behind one address.
        let client = redis::Client::open(stage.redis.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        cmd("SAVE").exec(&mut connection).unwrap();
        one.instance.write(put(FOLLOW, 1, 3)).unwrap();
        until_known(stage, &one, &[edge(FOLLOW, 1, 3)], |says| says == [Say::Maybe]);
        stage.redis.kill();
        stage.redis.start_again();
        let mut connection = client.get_connection().unwrap();
        let kept: u64 = cmd("DBSIZE").query(&mut connection).unwrap();
        assert!(kept > 0, "the snapshot was loaded");
        let begun = Instant::now();
        eventually("it is believed again", || {
            let says = stage.ask(&one, &[edge(FOLLOW, 1, 3), edge(FOLLOW, 1, 2)]);
            assert!(says.iter().all(|say| *say != Say::SurelyNot), "denied: {says:?}");
            one.serves() && says == [Say::Maybe; 2]
        });
        assert!(begun.elapsed() >= ENDED_AFTER, "not before it was filled anew");
    });
}
