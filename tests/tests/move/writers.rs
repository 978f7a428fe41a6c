//! Callers that write all the while, and what they were told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guanxi_tests::{Answer, Client, edge, node_run, nodes};
use serde_json::{Value, json};

/// What one caller did and was told, until the service had moved.
#[derive(Default)]
pub struct Acknowledged {
    pub follows: BTreeMap<(u64, u64), bool>,
    pub likes: BTreeSet<(u64, u64)>,
    pub counted: u64,
    /// The longest time without an acknowledgement, up to the word that the service has moved.
    pub silence: Duration,
    pub writes: u64,
}

/// Writes until the service says that it has moved; a pause is waited out.
pub fn write_until_moved(client: &Client, ended: &AtomicBool) -> Acknowledged {
    let (sources, targets, posts) = (node_run(20), node_run(300), node_run(40));
    let [owner] = nodes();
    let mut done = Acknowledged::default();
    let mut last = Instant::now();
    for round in 0_usize.. {
        let (source, target) = (sources[round % 20], targets[round % 300]);
        let post = posts[round % 40];
        let removes = round % 7 == 3;
        let ask = || match round % 3 {
            0 if removes => client.delete(edge("follow", source, target)),
            0 => client.put(edge("follow", source, target)),
            1 => {
                let owned = json!({ "owner": owner.to_string() });
                client.put_json(edge("like", source, post), owned)
            }
            _ => {
                let body = json!({ "delta": 1, "key": format!("{}-{round}", posts[0]) });
                client.post_json(format!("/v1/counters/play_seconds/{}", posts[0]), body)
            }
        };
        let answer = loop {
            assert!(!ended.load(Ordering::Acquire), "the service never said that it has moved");
            let answer = ask();
            if !is_pause(&answer) {
                break answer;
            }
            thread::sleep(Duration::from_millis(2));
        };
        done.silence = done.silence.max(last.elapsed());
        if answer.status == 503 {
            let message = answer.expect_error(503, "read_only");
            assert!(message.contains("http://the-cluster"), "{message}");
            return done;
        }
        answer.ok();
        last = Instant::now();
        done.writes += 1;
        match round % 3 {
            0 => drop(done.follows.insert((source, target), !removes)),
            1 => drop(done.likes.insert((source, post))),
            _ => done.counted += 1,
        }
    }
    done
}

pub fn is_pause(answer: &Answer) -> bool {
    answer.body["code"] == "read_only" && answer.body["retryable"] == true
}

pub fn assert_kept(held: &BTreeSet<String>, done: &Acknowledged) {
    let edges: BTreeSet<(String, u64, u64)> = held
        .iter()
        .filter_map(|line| {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            let id = |end: &str| line[end].as_str()?.parse().ok();
            Some((line["kind"].as_str()?.to_owned(), id("source")?, id("target")?))
        })
        .collect();
    for ((source, target), stands) in &done.follows {
        let kept = edges.contains(&("follow".to_owned(), *source, *target));
        assert_eq!(kept, *stands, "follow {source} → {target}");
    }
    for (source, post) in &done.likes {
        assert!(edges.contains(&("like".to_owned(), *source, *post)), "like {source} → {post}");
    }
}
