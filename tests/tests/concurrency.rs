//! Rules under races: many threads change the same edges, limits, counters and groups at once.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use guanxi_tests::differences::settle;
use guanxi_tests::{
    assert_lists_and_tallies_agree, edge, node_run, nodes, shared, tally, without_token,
};
use serde_json::json;

/// Makes the call in `count` threads at the same moment; returns the results in order.
fn race<T: Send>(count: usize, call: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(count);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (barrier, call) = (&barrier, &call);
                scope.spawn(move || {
                    barrier.wait();
                    call(number)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a racing call panicked")).collect()
    })
}

#[test]
fn a_block_and_a_follow_never_both_stand() {
    let server = shared();
    let pairs: Vec<[u64; 2]> = (0..60).map(|_| nodes()).collect();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // An onlooker reads all three edges of each pair at once, again and again.
        let onlooker = scope.spawn(|| {
            let mut looks = 0;
            while !over.load(Ordering::Relaxed) {
                for [a, b] in &pairs {
                    let pair = |kind: &str, source: &u64, target: &u64| {
                        json!({"kind": kind, "source": source, "target": target})
                    };
                    let asked = json!({"pairs": [
                        pair("follow", a, b), pair("follow", b, a), pair("block", a, b), pair("block", b, a),
                    ]});
                    let answer = server.post_json("/v1/check", asked);
                    let stands = |index: usize| answer.ok()["results"][index]["related"] == true;
                    let (follow, block) = (stands(0) || stands(1), stands(2) || stands(3));
                    assert!(!(follow && block), "{a} and {b}: {}", answer.text);
                    looks += 1;
                }
            }
            looks
        });
        for (round, [a, b]) in pairs.iter().enumerate() {
            let unblock = round % 3 == 2;
            let answers = race(5, |number| match number {
                0 | 1 => server.put(edge("follow", *a, *b)),
                2 => server.put(edge("follow", *b, *a)),
                3 => server.put(edge("block", *a, *b)),
                _ if unblock => server.delete(edge("block", *a, *b)),
                _ => server.put(edge("block", *b, *a)),
            });
            for answer in answers {
                if answer.status != 200 {
                    answer.expect_error(422, "excluded");
                }
            }
            let related = |kind: &str, source: u64, target: u64| {
                server.get(edge(kind, source, target)).ok()["related"] == true
            };
            let follow = related("follow", *a, *b) || related("follow", *b, *a);
            let block = related("block", *a, *b) || related("block", *b, *a);
            assert!(!(follow && block), "round {round}");
            assert!(unblock || block, "round {round}: an acknowledged block is gone");
        }
        over.store(true, Ordering::Relaxed);
        assert!(onlooker.join().expect("the onlooker saw both") > 0);
    });
    settle(&server);
    let everyone: Vec<u64> = pairs.iter().flatten().copied().collect();
    for kind in ["follow", "block"] {
        assert_lists_and_tallies_agree(&server, kind, &everyone, &everyone);
    }
}

#[test]
fn a_limit_is_never_exceeded() {
    let server = shared();
    server
        .post_json(
            "/v1/admin/kinds",
            json!({"name": "five", "source_type": "user", "target_type": "user", "outgoing_max": 5, "approval": true}),
        )
        .expect_status(201);
    for round in 0..10 {
        let [source] = nodes();
        let targets = node_run(24);
        let answers = race(targets.len(), |number| {
            let asks = json!({"approval": number % 2 == 0});
            server.put_json(edge("five", source, targets[number]), asks)
        });
        let mut accepted = 0;
        for answer in answers {
            if answer.status == 200 {
                accepted += 1;
            } else {
                answer.expect_error(422, "limit_reached");
            }
        }
        assert_eq!(accepted, 5, "round {round}");
        let counted = tally(&server, "five", source);
        let sum = counted["outgoing"].as_u64().zip(counted["pending_outgoing"].as_u64());
        assert_eq!(sum.map(|(live, pending)| live + pending), Some(5));
    }
}

#[test]
fn deltas_sum_exactly_and_keys_count_once() {
    let server = shared();
    let [post] = nodes();
    let path = format!("/v1/counters/view/{post}");
    // Each keyed delta is sent by two threads, as impatient clients do.
    race(8, |number| {
        for step in 0..50 {
            server.post_json(&path, json!({"delta": number + 1})).ok();
            let key = format!("race-{post}-{}-{step}", number / 2);
            server.post_json(&path, json!({"delta": 1000, "key": key})).ok();
        }
    });
    let plain: i64 = (1..=8).map(|delta| delta * 50).sum();
    assert_eq!(tally(&server, "view", post)["value"], plain + 4 * 50 * 1000);
}

#[test]
fn one_of_many_strict_puts_wins() {
    let server = shared();
    for _ in 0..10 {
        let [source, target] = nodes();
        let path = format!("{}?strict=true", edge("follow", source, target));
        let answers = race(12, |_| server.put(&path));
        let won = answers.iter().filter(|answer| answer.status == 200).count();
        assert_eq!(won, 1);
        settle(&server);
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            answer.expect_error(409, "already_related");
        }
        assert_eq!(tally(&server, "follow", target)["incoming"], 1);
    }
}

#[test]
fn all_who_share_a_key_get_one_answer() {
    let server = shared();
    for _ in 0..10 {
        let [source, target] = nodes();
        let path = format!("{}?strict=true", edge("follow", source, target));
        let key = format!("shared-{source}");
        let answers =
            race(8, |_| server.request("PUT", &path).header("Idempotency-Key", &key).send());
        let distinct: BTreeSet<String> = answers
            .iter()
            .map(|answer| without_token(answer.expect_change(true, "live")).to_string())
            .collect();
        assert_eq!(distinct.len(), 1, "{distinct:?}");
    }
}

#[test]
fn approval_and_withdrawal_leave_one_of_their_outcomes() {
    let server = shared();
    for round in 0..20 {
        let [source, target] = nodes();
        let path = edge("follow", source, target);
        server.put_json(&path, json!({"approval": true})).expect_change(true, "pending");
        let answers = race(3, |number| match number {
            0 => server.post(format!("{path}/approve")),
            1 => server.post(format!("{path}/decline")),
            _ => server.delete(&path),
        });
        for answer in &answers[..2] {
            if answer.status != 200 {
                answer.expect_error(409, "not_pending");
            }
        }
        // The withdrawal removes whatever it meets, so nothing is left.
        answers[2].ok();
        settle(&server);
        assert_eq!(server.get(&path).ok()["state"], json!(null), "round {round}");
        for (id, which) in [(source, "outgoing"), (target, "incoming")] {
            let counted = tally(&server, "follow", id);
            assert_eq!(counted[which], 0);
            assert_eq!(counted[format!("pending_{which}")], 0);
        }
    }
}

#[test]
fn many_writers_on_one_celebrity_agree() {
    let server = shared();
    let [celebrity] = nodes();
    let fans = node_run(32);
    race(8, |number| {
        for step in 0..60 {
            let fan = fans[(number * 7 + step * 5) % fans.len()];
            let path = edge("follow", fan, celebrity);
            if (number + step).is_multiple_of(3) {
                server.delete(&path).ok();
            } else {
                server.put(&path).ok();
            }
        }
    });
    settle(&server);
    assert_lists_and_tallies_agree(&server, "follow", &fans, &[celebrity]);
}
