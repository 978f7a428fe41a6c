//! Leases on both databases.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::leases::{Share, TTL};
use guanxi_cluster::sql::Database;
use guanxi_services::{MariaDb, shared};

use crate::bench::{PATIENCE, database, leases, on_databases, until};

const NAMES: usize = 16;

fn names() -> Vec<String> {
    (0..NAMES).map(|name| name.to_string()).collect()
}

fn held(share: &Share) -> BTreeSet<usize> {
    share.held().iter().map(|lease| lease.index).collect()
}

/// Whether the shares hold everything between them, each its part.
fn shared_out(shares: &[&Share]) -> bool {
    let all: Vec<BTreeSet<usize>> = shares.iter().map(|share| held(share)).collect();
    let union: BTreeSet<usize> = all.iter().flatten().copied().collect();
    let fair = NAMES / shares.len()..=NAMES.div_ceil(shares.len());
    union.len() == NAMES && all.iter().all(|one| fair.contains(&one.len()))
}

fn run(database: &Arc<Database>, statement: &str) {
    database.session(Instant::now() + PATIENCE).unwrap().run(statement).unwrap();
}

fn count(database: &Arc<Database>, statement: &str) -> u64 {
    let rows = database.session(Instant::now() + PATIENCE).unwrap().rows(statement).unwrap();
    rows[0].get(0).unwrap()
}

#[test]
fn instances_that_come_and_go_share_fairly() {
    on_databases("leases", |database| {
        let (first, second, third) = (leases(&database), leases(&database), leases(&database));
        let a = first.share("part", names());
        until("one alone holds all", || shared_out(&[&a]));
        let before: Vec<u64> = a.held().iter().map(|lease| lease.fence).collect();
        let b = second.share("part", names());
        until("two share", || shared_out(&[&a, &b]));
        let c = third.share("part", names());
        until("three share", || shared_out(&[&a, &b, &c]));
        for lease in c.held() {
            assert!(lease.fence > before[lease.index], "a new holder has a higher fence");
        }
        // One leaves, one's whole process closes: neither need run out.
        let began = Instant::now();
        drop(b);
        third.close();
        assert_eq!(held(&c), BTreeSet::new(), "what is closed holds nothing");
        until("the last takes over", || shared_out(&[&a]));
        assert!(began.elapsed() < PATIENCE);
        // Another group is not concerned.
        let other = second.share("other", vec!["one".into()]);
        until("another group", || other.held().len() == 1);
        assert!(shared_out(&[&a]));
    });
}

#[test]
fn an_instance_that_steps_aside_holds_nothing_until_it_comes_back() {
    on_databases("leases aside", |database| {
        let (first, second) = (leases(&database), leases(&database));
        let (a, other) = (first.share("part", names()), first.share("other", names()));
        let b = second.share("part", names());
        until("two share", || shared_out(&[&a, &b]) && shared_out(&[&other]));
        first.step_aside(&["part", "not shared here"], true);
        assert_eq!(held(&a), BTreeSet::new(), "it works no more from here on");
        until("the other has all", || shared_out(&[&b]));
        assert!(shared_out(&[&other]), "another group is not concerned");
        // Whoever is alone and aside takes nothing, either.
        drop(b);
        let left = "SELECT COUNT(*) FROM leases WHERE until_ms>0 AND name LIKE 'part/%'";
        until("nobody has any", || count(&database, left) == 0);
        assert_eq!(held(&a), BTreeSet::new());
        first.step_aside(&["part"], false);
        until("it takes part again", || shared_out(&[&a]));
    });
}

#[test]
fn what_a_crashed_instance_held_is_taken_when_it_has_run_out() {
    on_databases("crashed leases", |database| {
        // As a process leaves it that is no more.
        let now = "CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS UNSIGNED)";
        let began = Instant::now();
        run(
            &database,
            &format!(
                "BEGIN; INSERT INTO leases (name,owner,until_ms,fence) VALUES \
                 ('instance/part/00000000deadbeef',3735928559,{now}+4000,1), \
                 ('part/0',3735928559,{now}+4000,41), ('part/1',3735928559,{now}+4000,7); COMMIT"
            ),
        );
        let mine = leases(&database);
        let share = mine.share("part", names());
        // Half at first; who looks late finds all.
        until("half is held", || held(&share).len() >= NAMES / 2);
        if began.elapsed() < Duration::from_secs(3) {
            assert!(share.lease(0).is_none() && share.lease(1).is_none());
        }
        until("all is held", || shared_out(&[&share]));
        assert!(began.elapsed() >= Duration::from_secs(3), "not before it ran out");
        assert!(share.lease(0).unwrap().fence > 41);
        assert!(share.lease(1).unwrap().fence > 7);
    });
}

#[test]
fn no_two_ever_hold_the_same() {
    on_databases("disjoint leases", |database| {
        let (first, second) = (leases(&database), leases(&database));
        let a = first.share("part", names());
        until("one alone holds all", || shared_out(&[&a]));
        let deadline = Instant::now() + Duration::from_secs(6);
        let mut b = None;
        let mut rounds = 0;
        while Instant::now() < deadline {
            if rounds % 40 == 0 {
                // Comes, and goes again.
                b = match b {
                    None => Some(second.share("part", names())),
                    Some(_) => None,
                };
            }
            rounds += 1;
            if let Some(b) = &b {
                let (before, others, after) = (held(&a), held(b), held(&a));
                let both: Vec<usize> = before.intersection(&after).copied().collect();
                let both: Vec<usize> =
                    both.into_iter().filter(|index| others.contains(index)).collect();
                assert!(both.is_empty(), "{both:?} held by two");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn a_holder_that_cannot_renew_stops_before_others_may_begin() {
    if shared::mariadb_or_skip("paused database").is_none() {
        return;
    }
    let server = MariaDb::start();
    let database = database(&server);
    let mine = leases(&database);
    let share = mine.share("part", names());
    until("all is held", || shared_out(&[&share]));
    server.pause();
    let paused = Instant::now();
    until("nothing is held", || share.held().is_empty());
    let stopped = paused.elapsed();
    server.resume();
    assert!(stopped < TTL, "{stopped:?}");
    until("all is held again", || shared_out(&[&share]));
}
