//! What survives under load: kill -9 again and again, and a stop that drains. What a restart
//! keeps, and which directories are refused, stands in restarts.rs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use guanxi_tests::{
    Client, RawConnection, Server, assert_lists_and_tallies_agree, edge, node_run, nodes,
    poll_until, tally,
};
use serde_json::{Value, json};

const KILLS: usize = 10;
const WRITERS: usize = 8;
/// For a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A caller that writes without pause and remembers what was acknowledged.
struct Writer {
    sources: Vec<u64>,
    targets: Vec<u64>,
    counter: u64,
    random: u64,
    sent: u64,
    /// Which edges stand, by what was acknowledged.
    standing: BTreeMap<(u64, u64), bool>,
    counted: i64,
    /// Writes of all callers.
    acknowledged: Arc<AtomicU64>,
    /// The request whose answer never came: it happened, or it did not.
    unanswered: Option<Write>,
}

#[derive(Clone)]
struct Write {
    key: String,
    act: Act,
}

#[derive(Clone)]
enum Act {
    Put(u64, u64),
    Delete(u64, u64),
    Count(i64),
    Batch(u64, Vec<u64>),
}

impl Writer {
    fn new(number: usize, targets: &[u64], acknowledged: &Arc<AtomicU64>) -> Self {
        let [counter] = nodes();
        Self {
            sources: node_run(4),
            targets: targets.to_vec(),
            counter,
            random: 0x9E37_79B9_7F4A_7C15 ^ number as u64,
            sent: 0,
            standing: BTreeMap::new(),
            counted: 0,
            acknowledged: acknowledged.clone(),
            unanswered: None,
        }
    }

    /// Writes until the connection breaks.
    fn write_until_cut(&mut self, client: &Client) {
        loop {
            let write = self.next_write();
            if !self.perform(client, &write) {
                self.unanswered = Some(write);
                return;
            }
        }
    }

    /// Sends the unanswered request again under its key, as a careful client does.
    fn settle(&mut self, client: &Client) {
        if let Some(write) = self.unanswered.take() {
            assert!(self.perform(client, &write), "the restarted server answers");
        }
    }

    fn next_write(&mut self) -> Write {
        self.sent += 1;
        let (source, target) = (self.below(self.sources.len()), self.below(self.targets.len()));
        let (source, target) = (self.sources[source], self.targets[target]);
        let act = match self.below(8) {
            0..=3 => Act::Put(source, target),
            4 | 5 => Act::Delete(source, target),
            6 => Act::Count(1 + self.below(9) as i64),
            _ => Act::Batch(source, self.targets.iter().step_by(3).copied().collect()),
        };
        let key = format!("{}-{}", self.counter, self.sent);
        Write { key, act }
    }

    /// True when it was acknowledged; what was acknowledged is remembered.
    fn perform(&mut self, client: &Client, write: &Write) -> bool {
        let request = match &write.act {
            Act::Put(source, target) => client
                .request("PUT", &edge("follow", *source, *target))
                .header("Idempotency-Key", &write.key),
            Act::Delete(source, target) => client
                .request("DELETE", &edge("follow", *source, *target))
                .header("Idempotency-Key", &write.key),
            Act::Count(delta) => client
                .request("POST", &format!("/v1/counters/view/{}", self.counter))
                .json(&json!({"delta": delta, "key": write.key})),
            Act::Batch(source, targets) => {
                let changes: Vec<Value> = targets
                    .iter()
                    .map(|target| json!({"op": "put", "kind": "follow", "source": source, "target": target}))
                    .collect();
                client
                    .request("POST", "/v1/edges/batch")
                    .header("Idempotency-Key", &write.key)
                    .json(&json!({"changes": changes}))
            }
        };
        let Ok(answer) = request.try_send() else {
            return false;
        };
        // A stopping server may say so; then the outcome is told, and the write is tried later.
        if answer.status == 503 {
            return false;
        }
        answer.ok();
        match &write.act {
            Act::Put(source, target) => {
                self.standing.insert((*source, *target), true);
            }
            Act::Delete(source, target) => {
                self.standing.insert((*source, *target), false);
            }
            Act::Count(delta) => self.counted += delta,
            Act::Batch(source, targets) => {
                for target in targets {
                    self.standing.insert((*source, *target), true);
                }
            }
        }
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % bound as u64) as usize
    }
}

#[track_caller]
fn assert_nothing_lost(server: &Server, writers: &[Writer], targets: &[u64]) {
    let sources: Vec<u64> = writers.iter().flat_map(|writer| writer.sources.clone()).collect();
    let found = assert_lists_and_tallies_agree(server, "follow", &sources, targets);
    let expected = writers
        .iter()
        .flat_map(|writer| &writer.standing)
        .filter_map(|(edge, stands)| stands.then_some(*edge))
        .collect();
    assert_eq!(found, expected, "exactly what was acknowledged stands");
    for writer in writers {
        assert_eq!(tally(server, "view", writer.counter)["value"], writer.counted);
    }
}

#[test]
fn nothing_acknowledged_is_lost_when_killed_under_load() {
    let targets = node_run(12);
    let acknowledged = Arc::<AtomicU64>::default();
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new(number, &targets, &acknowledged)).collect();
    let mut server = Server::start();
    for round in 0..KILLS {
        let enough = acknowledged.load(Ordering::Relaxed) + 2 * WRITERS as u64;
        let client = server.client();
        let stopped = thread::scope(|scope| {
            for writer in &mut writers {
                let client = client.clone();
                scope.spawn(move || writer.write_until_cut(&client));
            }
            poll_until("writes go on", PATIENCE, || {
                (acknowledged.load(Ordering::Relaxed) >= enough).then_some(())
            });
            // Each round is cut at another moment.
            thread::sleep(Duration::from_millis(150 + 70 * round as u64));
            server.kill()
        });
        server = stopped.restart();
        for writer in &mut writers {
            writer.settle(&server);
        }
        assert_nothing_lost(&server, &writers, &targets);
    }
    let acknowledged = acknowledged.load(Ordering::Relaxed);
    println!("{acknowledged} writes were acknowledged over {KILLS} kills");
    assert_nothing_lost(&server.terminate().restart(), &writers, &targets);
}

#[test]
fn a_stop_under_load_loses_nothing_and_ends_well() {
    let targets = node_run(12);
    let acknowledged = Arc::<AtomicU64>::default();
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new(number, &targets, &acknowledged)).collect();
    let server = Server::start();
    let client = server.client();
    let stopped = thread::scope(|scope| {
        for writer in &mut writers {
            let client = client.clone();
            scope.spawn(move || writer.write_until_cut(&client));
        }
        thread::sleep(Duration::from_millis(500));
        server.terminate()
    });
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.log);
    let server = stopped.restart();
    for writer in &mut writers {
        writer.settle(&server);
    }
    assert_nothing_lost(&server, &writers, &targets);
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    let server = Server::start();
    let [source, target] = nodes();
    let path = edge("follow", source, target);
    let body = r#"{"data":"in flight"}"#;
    let mut connection = RawConnection::open(server.address());
    connection.send(format!(
        "PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nExpect: 100-continue\r\n\r\n",
        body.len()
    ));
    // The interim answer shows that the request is in work; its body is still to come.
    let interim = "HTTP/1.1 100 Continue\r\n\r\n";
    assert_eq!(connection.read_exactly(interim.len()), interim.as_bytes());
    let address = server.address();
    server.send_terminate();
    poll_until("no new connections", Duration::from_secs(10), || {
        let refused = Client::new(address).request("GET", "/healthz").try_send();
        refused.map_or(true, |answer| answer.status == 503).then_some(())
    });
    connection.send(body);
    let answer = connection.read_answer(Duration::from_secs(10));
    assert_eq!(answer.status(), Some(200), "{answer:?}");
    let stopped = server.terminate();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.log);
    let server = stopped.restart();
    assert_eq!(server.get(&path).ok()["data"], "in flight");
}

#[test]
fn a_stop_does_not_wait_for_idle_clients() {
    let server = Server::start();
    let _idle: Vec<_> = (0..50).map(|_| RawConnection::open(server.address())).collect();
    let client = server.client();
    client.assert_healthy();
    let begun = Instant::now();
    let stopped = server.terminate();
    assert_eq!(stopped.status.code(), Some(0), "{}", stopped.log);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
