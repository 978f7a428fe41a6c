//! kill -9 of the primary under load, then promotion, again and again. With a required standby
//! nothing that anyone was told, read or watched is missing; without, only the newest is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guanxi_tests::{
    Client, Next, Server, Watcher, assert_lists_and_tallies_agree, edge, edge_call, node_run,
    poll_until, primary_options, requiring_options, standby_options, standing,
    wait_until_caught_up, walk_ids,
};

const KILLS: u64 = 10;
const WRITERS: usize = 6;
const READERS: usize = 2;
/// Callers wait for the standby longer than any round takes.
const TIMEOUT_MS: u64 = 5_000;
/// For a busy machine.
const SOON: Duration = Duration::from_secs(30);
/// A kind whose lists have no limit.
const KIND: &str = "like";

type Edge = (u64, u64);

/// What the callers of one round were told.
#[derive(Default)]
struct Witnesses {
    /// Per writer, in order.
    acknowledged: Vec<Vec<Edge>>,
    read: BTreeSet<Edge>,
    /// In the order of the log.
    watched: Vec<Edge>,
}

/// How much the callers of one round were told so far.
#[derive(Default)]
struct Told {
    acknowledged: AtomicU64,
    read: AtomicU64,
    watched: AtomicU64,
}

/// Posts that nobody has liked yet.
static NEXT_POST: AtomicU64 = AtomicU64::new(50_000_000);

/// Likes one post after another until the connection breaks.
fn write(client: &Client, source: u64, told: &Told) -> Vec<Edge> {
    let mut acknowledged = Vec::new();
    loop {
        let post = NEXT_POST.fetch_add(1, Ordering::Relaxed);
        match client.request("PUT", &edge(KIND, source, post)).try_send() {
            Ok(answer) if answer.status == 200 => {
                acknowledged.push((source, post));
                told.acknowledged.fetch_add(1, Ordering::Relaxed);
            }
            // Not told that it was done; what it was told instead is for other tests.
            Ok(_) => {}
            Err(_) => return acknowledged,
        }
    }
}

/// Reads the newest likes of all in turn until the connection breaks.
fn read(client: &Client, sources: &[u64], told: &Told) -> BTreeSet<Edge> {
    let mut seen = BTreeSet::new();
    for source in sources.iter().cycle() {
        let path = edge_call(KIND, *source, "outgoing?limit=100");
        match client.request("GET", &path).try_send() {
            Ok(answer) if answer.status == 200 => {
                let items = answer.body["items"].as_array().expect("items").clone();
                let ids = items.iter().filter_map(|item| item["id"].as_str()?.parse().ok());
                seen.extend(ids.map(|post: u64| (*source, post)));
                told.read.fetch_add(items.len() as u64, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    seen
}

/// Watches until the connection breaks.
fn watch(mut watcher: Watcher, told: &Told) -> Vec<Edge> {
    let mut seen = Vec::new();
    let number = |value: &serde_json::Value| value.as_str()?.parse().ok();
    loop {
        match watcher.next(Duration::from_secs(60)) {
            Next::Event(event) if event.name == "record" => {
                let ends = number(&event.data["source"]).zip(number(&event.data["target"]));
                seen.push(ends.expect("an edge"));
                told.watched.fetch_add(1, Ordering::Relaxed);
            }
            Next::Event(_) => {}
            _ => return seen,
        }
    }
}

/// Runs the load, calls `kill` in the midst of it, and gathers what everyone was told.
fn load<T>(
    primary: Server,
    sources: &[u64],
    kill: impl FnOnce(Server, &Told) -> T,
) -> (T, Witnesses) {
    let (client, told) = (primary.client(), &Told::default());
    let watcher = Watcher::open(primary.address(), &format!("from=now&kinds={KIND}"));
    thread::scope(|scope| {
        let writers: Vec<_> = sources
            .iter()
            .map(|source| {
                let client = client.clone();
                scope.spawn(move || write(&client, *source, told))
            })
            .collect();
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                let client = client.clone();
                scope.spawn(move || read(&client, sources, told))
            })
            .collect();
        let watching = scope.spawn(move || watch(watcher, told));
        let killed = kill(primary, told);
        let mut witnesses = Witnesses::default();
        for writer in writers {
            witnesses.acknowledged.push(writer.join().expect("a writer"));
        }
        for reader in readers {
            witnesses.read.extend(reader.join().expect("a reader"));
        }
        witnesses.watched = watching.join().expect("a watcher");
        (killed, witnesses)
    })
}

/// The likes of these users on the server.
fn present(server: &Client, sources: &[u64]) -> BTreeSet<Edge> {
    let likes = |source: &u64| {
        let posts = walk_ids(server, &edge_call(KIND, *source, "outgoing"), 1_000);
        posts.into_iter().map(|post| (*source, post)).collect::<Vec<_>>()
    };
    sources.iter().flat_map(likes).collect()
}

/// A standby that requires one itself once it is promoted.
fn requiring_standby(primary: &Server) -> Server {
    let mut options = standby_options(&primary.url());
    options.environment = requiring_options(1, TIMEOUT_MS).environment;
    Server::start_with(options)
}

#[test]
fn a_required_standby_has_all_that_anyone_saw() {
    let mut primary = Server::start_with(requiring_options(1, TIMEOUT_MS));
    let mut standby = requiring_standby(&primary);
    let mut told: BTreeSet<Edge> = BTreeSet::new();
    let mut all_sources = Vec::new();
    for round in 0..KILLS {
        wait_until_ready(&primary);
        let sources = node_run(WRITERS);
        let (_killed, witnesses) = load(primary, &sources, |primary, told| {
            poll_until("writes are done, read and watched", SOON, || {
                let [acknowledged, read, watched] = [&told.acknowledged, &told.read, &told.watched]
                    .map(|count| count.load(Ordering::Relaxed));
                (acknowledged > WRITERS as u64 && read > 0 && watched > 0).then_some(())
            });
            // Each round is cut at another moment.
            thread::sleep(Duration::from_millis(60 * round));
            // A standby that confirms nothing for a while, so that much would be lost by whoever
            // did not wait for it.
            standby.pause();
            thread::sleep(Duration::from_millis(10 * round));
            let killed = primary.kill();
            standby.resume();
            killed
        });
        standby.post("/v1/admin/promote").ok();
        let acknowledged: BTreeSet<Edge> =
            witnesses.acknowledged.iter().flatten().copied().collect();
        println!(
            "round {round}: {} acknowledged, {} read, {} watched",
            acknowledged.len(),
            witnesses.read.len(),
            witnesses.watched.len()
        );
        // The next standby: what was promoted confirms nothing by itself.
        primary = standby;
        standby = requiring_standby(&primary);
        let found = present(&primary, &sources);
        assert_all_in(&found, acknowledged.iter(), "acknowledged", round);
        assert_all_in(&found, witnesses.read.iter(), "read", round);
        assert_all_in(&found, witnesses.watched.iter(), "watched", round);
        told.extend(acknowledged);
        all_sources.extend(sources);
    }
    // And over all promotions, in both directions.
    let found = present(&primary, &all_sources);
    assert_all_in(&found, told.iter(), "ever acknowledged", KILLS);
    let posts: Vec<u64> = found.iter().map(|(_, post)| *post).collect();
    let shown = assert_lists_and_tallies_agree(&primary, KIND, &all_sources, &posts);
    assert_eq!(shown, found);
}

#[track_caller]
fn assert_all_in<'a>(
    found: &BTreeSet<Edge>,
    expected: impl Iterator<Item = &'a Edge>,
    what: &str,
    round: u64,
) {
    let missing: Vec<_> = expected.filter(|edge| !found.contains(edge)).collect();
    assert!(missing.is_empty(), "round {round}: {what} and gone: {missing:?}");
}

#[track_caller]
fn wait_until_ready(server: &Client) {
    poll_until("the server is ready", SOON, || (server.get("/readyz").status == 200).then_some(()));
}

#[test]
fn without_a_requirement_only_the_newest_is_lost() {
    let mut primary = Server::start_with(primary_options());
    let mut standby = Server::start_with(standby_options(&primary.url()));
    let mut lost_in_all = 0;
    for round in 0..KILLS {
        let sources = node_run(WRITERS);
        let (_killed, witnesses) = load(primary, &sources, |primary, told| {
            poll_until("something is watched", SOON, || {
                (told.watched.load(Ordering::Relaxed) > 0).then_some(())
            });
            wait_until_caught_up(&primary, &standby);
            // A standby that cannot keep up, to make sure that there is something to lose.
            standby.pause();
            thread::sleep(Duration::from_millis(100 + 40 * round));
            poll_until("the primary shows that the standby lags", SOON, || {
                let lag = standing(&primary)["standbys"][0]["lag_positions"].as_u64();
                (lag > Some(0)).then_some(())
            });
            let killed = primary.kill();
            standby.resume();
            killed
        });
        let position = standby.post("/v1/admin/promote").ok()["position"].clone();
        assert_eq!(standing(&standby)["position"], position, "it shows all that it has");
        let found = present(&standby, &sources);
        let mut lost = 0;
        for acknowledged in &witnesses.acknowledged {
            let kept = acknowledged.iter().take_while(|edge| found.contains(edge)).count();
            let later = acknowledged[kept..].iter().filter(|edge| found.contains(edge)).count();
            assert_eq!(later, 0, "round {round}: a hole in what one writer did");
            lost += acknowledged.len() - kept;
        }
        // The watcher knows the order of all of them: what is there is a beginning of it.
        let kept = witnesses.watched.iter().take_while(|edge| found.contains(edge)).count();
        let later = witnesses.watched[kept..].iter().filter(|edge| found.contains(edge)).count();
        assert_eq!(later, 0, "round {round}: a hole in the log");
        assert!(kept > 0, "round {round}: something was shipped");
        let posts: Vec<u64> = found.iter().map(|(_, post)| *post).collect();
        let shown = assert_lists_and_tallies_agree(&standby, KIND, &sources, &posts);
        assert_eq!(shown, found, "round {round}");
        println!("round {round}: {kept} of {} watched kept, {lost} lost", witnesses.watched.len());
        lost_in_all += lost;
        primary = standby;
        standby = Server::start_with(standby_options(&primary.url()));
    }
    assert!(lost_in_all > 0, "the test would notice a loss");
}
