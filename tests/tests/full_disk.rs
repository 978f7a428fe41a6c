//! A disk of 100 MB that somebody else fills to the brim, under writes, and empties again. Reads
//! and removals go on, a start works, and writes come back by themselves. Needs the right to mount.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use guanxi_tests::{Answer, Cli, Client, Server, edge, edge_call, poll_until};
use parking_lot::Mutex;
use serde_json::json;

const DISK_MIB: u32 = 100;
/// So small that the store flushes and merges all the time, and meets the full disk while it does.
const TINY_DISK_MIB: u32 = 48;
/// Batches that are taken before such a disk is filled: a memtable or two, so that the store
/// flushes, and yet they leave most of the disk free.
const BATCHES_BEFORE_FULL: u64 = 60;
/// How often the disk is filled at most until the store has met it.
const FULL_ROUNDS_MAX: u64 = 20;
/// How long a disk is full, and then is not, when it is filled more quickly than anybody looks.
const PULSE: Duration = Duration::from_millis(30);
/// What the service says when the store has met a full disk.
const MENDED: &str = "it is opened anew";
/// Edges that are put and removed again, far more than a small disk could keep the journal of.
const CHURN_ROUNDS: u64 = 160;
const CHURN_EDGES: u64 = 1_000;
/// How often a service is killed once more on a disk of which somebody takes every byte.
const KILLS: u32 = 5;
/// Batches that take a third of a small disk, so that merging all rows takes another.
const CROWD_BATCHES: u64 = 350;
const CROWD_EDGES: u64 = 1_000;
/// Batches that make the log of a tiny disk longer than it is kept there, while few rows stand.
const LONG_LOG_BATCHES: u64 = 250;
/// How often removals are refused before the disk counts as full for them, too.
const REFUSALS: u32 = 6;
/// What comes by itself comes within this, also on a crowded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A small file system of its own, gone at the end.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    fn mount(size_mib: u32) -> SmallDisk {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size_mib}m"), "tmpfs"])
            .arg(folder.path())
            .status()
            .expect("mount can be started");
        assert!(mounted.success(), "a small disk must be mounted: run this test as root");
        SmallDisk { folder }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn filler(&self) -> PathBuf {
        self.folder.path().join("somebody-elses")
    }

    /// To the last byte, and what is given up meanwhile too.
    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.filler()).unwrap();
        for bytes in [1 << 20, 4_096] {
            let block = vec![1; bytes];
            while file.write_all(&block).is_ok() {}
        }
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// Keeps what somebody else does with the disk going while `work` runs.
    fn beside<T>(&self, other: impl Fn(&SmallDisk) + Sync, work: impl FnOnce() -> T) -> T {
        /// Ends the other when the work ends, also by a panic.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    other(self);
                }
            });
            let _end = End(&ended);
            work()
        })
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
    }
}

/// Callers who put without a pause, and what of it was acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    known: Arc<Mutex<BTreeSet<(u64, u64)>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn begin(server: &Server, sources: std::ops::Range<u64>) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let known: Arc<Mutex<BTreeSet<(u64, u64)>>> = Arc::default();
        let begin = |source: u64| {
            let (client, stop, known) = (server.client(), stop.clone(), known.clone());
            thread::spawn(move || put_on(&client, source, &stop, &known))
        };
        let threads = sources.map(begin).collect();
        Load { stop, known, threads }
    }

    fn acknowledged(&self) -> usize {
        self.known.lock().len()
    }

    fn end(self) -> BTreeSet<(u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("no caller fails");
        }
        Arc::try_unwrap(self.known).unwrap().into_inner()
    }
}

/// Puts until it is told to stop; refusals must say that the disk is full.
fn put_on(client: &Client, source: u64, stop: &AtomicBool, known: &Mutex<BTreeSet<(u64, u64)>>) {
    for target in 1_000_000.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(answer) = client.request("PUT", &edge("favorite", source, target)).try_send() else {
            // It was killed.
            return;
        };
        match answer.status {
            200 => drop(known.lock().insert((source, target))),
            // It was taken when the disk was found to be full, and waited until its deadline.
            504 => {}
            _ => {
                let problem = answer.expect_error(503, "unavailable");
                assert!(problem.contains("disk full"), "{problem}");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// Everything acknowledged is there.
#[track_caller]
fn assert_known(server: &Server, known: &BTreeSet<(u64, u64)>) {
    for (source, target) in known {
        let answer = server.get(edge("favorite", *source, *target));
        assert_eq!(answer.ok()["state"], "live", "{source} → {target}");
    }
}

fn says_disk_full(server: &Server) -> Option<()> {
    let answer = server.get("/readyz");
    let full =
        answer.status == 503 && answer.expect_error(503, "unavailable").contains("disk full");
    full.then_some(())
}

fn is_ready(server: &Server) -> Option<()> {
    (server.get("/readyz").status == 200).then_some(())
}

/// What holds as long as the disk is full.
fn check_full(server: &Server, disk: &SmallDisk, known: &mut BTreeSet<(u64, u64)>) {
    poll_until("the service says that the disk is full", PATIENCE, || says_disk_full(server));
    let refused = server.put(edge("favorite", 1, 1));
    let problem = refused.expect_error(503, "unavailable");
    assert!(problem.contains("disk full"), "{problem}");
    assert_known(server, known);
    let gone: Vec<_> = known.iter().copied().take(20).collect();
    for (source, target) in gone {
        let answer = server.delete(edge("favorite", source, target));
        assert_eq!(answer.ok()["changed"], true, "a removal finds its place");
        known.remove(&(source, target));
        assert_eq!(server.get(edge("favorite", source, target)).ok()["related"], false);
    }
    let list = server.get(edge_call("favorite", 12, "outgoing?limit=5"));
    assert_eq!(list.ok()["items"].as_array().map(Vec::len), Some(5));
    let data = disk.data();
    let ran = Cli::of(server).run(&["doctor", "--data-dir", &data.display().to_string()]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains("disk full") && ran.stdout.contains("make room"), "{ran:?}");
}

#[test]
fn a_full_disk_is_left_again() {
    let disk = SmallDisk::mount(DISK_MIB);
    let server = Server::try_start_in(&disk.data()).unwrap();
    let mut known = BTreeSet::new();
    for round in 0..3 {
        let first = 10 + 4 * round;
        let load = Load::begin(&server, first..first + 4);
        poll_until("some puts", PATIENCE, || (load.acknowledged() > 300).then_some(()));
        disk.fill();
        thread::sleep(Duration::from_millis(700));
        // Also what was given up on the way.
        disk.fill();
        poll_until("it says so", PATIENCE, || says_disk_full(&server));
        known.extend(load.end());
        check_full(&server, &disk, &mut known);
        disk.empty();
        poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
        server.put(edge("favorite", 2, 100 + round)).ok();
        assert_known(&server, &known);
    }
    assert!(server.terminate().status.success());
}

#[test]
fn a_store_that_meets_the_full_disk_goes_on() {
    let disk = SmallDisk::mount(TINY_DISK_MIB);
    let mut server = Server::try_start_in(&disk.data()).unwrap();
    let mut known = Vec::new();
    for round in 0..FULL_ROUNDS_MAX {
        if server.log().contains(MENDED) {
            break;
        }
        let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let writers = (0..4).map(|writer| {
                let (client, stop, taken) = (server.client(), &stop, &taken);
                scope.spawn(move || put_batches(&client, 100 * round + writer, stop, taken))
            });
            let writers: Vec<_> = writers.collect();
            // By number, not by time: a quick machine would fill so small a disk by itself.
            let enough = || (taken.load(Ordering::Relaxed) >= BATCHES_BEFORE_FULL).then_some(());
            poll_until("some batches", PATIENCE, enough);
            disk.fill();
            poll_until("it says so", PATIENCE, || says_disk_full(&server));
            stop.store(true, Ordering::Relaxed);
            for writer in writers {
                known.extend(writer.join().expect("no caller fails"));
            }
        });
        let (source, target) = known[known.len() - 1];
        // A store that is opened anew is away for a moment.
        let newest = edge("favorite", source, target);
        poll_until("it is read", PATIENCE, || (server.get(&newest).status == 200).then_some(()));
        disk.empty();
        poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
        let newest = edge("favorite", 1, 1 + round);
        poll_until("a put", PATIENCE, || (server.put(&newest).status == 200).then_some(()));
    }
    assert!(server.log().contains(MENDED), "the store never met the full disk");
    assert!(!server.log().contains("until a restart"), "{}", server.log());
    assert_known(&server, &known.iter().copied().collect());
    server = server.kill().restart();
    assert_known(&server, &known.iter().copied().collect());
}

#[test]
fn a_disk_that_is_full_for_moments_only_stops_nobody() {
    let disk = SmallDisk::mount(TINY_DISK_MIB);
    let mut server = Server::try_start_in(&disk.data()).unwrap();
    let pulse = |disk: &SmallDisk| {
        disk.fill();
        disk.empty();
        thread::sleep(PULSE);
    };
    let mut known = Vec::new();
    for round in 0..FULL_ROUNDS_MAX {
        if server.log().contains(MENDED) {
            break;
        }
        let (stop, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        let batches = disk.beside(pulse, || {
            thread::scope(|scope| {
                let writer = scope.spawn(|| put_batches(&server.client(), round, &stop, &taken));
                let enough =
                    || (taken.load(Ordering::Relaxed) >= BATCHES_BEFORE_FULL).then_some(());
                poll_until("some batches", PATIENCE, enough);
                stop.store(true, Ordering::Relaxed);
                writer.join().expect("no caller fails")
            })
        });
        known.extend(batches);
    }
    assert!(server.log().contains(MENDED), "the store never met the full disk");
    poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
    server.put(edge("favorite", 1, 1)).ok();
    assert!(!server.log().contains("until a restart"), "{}", server.log());
    let known = known.into_iter().collect();
    assert_known(&server, &known);
    server = server.kill().restart();
    assert_known(&server, &known);
}

/// Puts in batches until it is told to stop; the first of each that was acknowledged.
fn put_batches(
    client: &Client,
    source: u64,
    stop: &AtomicBool,
    taken: &AtomicU64,
) -> Vec<(u64, u64)> {
    let mut known = Vec::new();
    for first in (1_000_000..).step_by(100) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let answer = change_all(client, "put", 1_000 + source, first..first + 100);
        match answer.status {
            200 => {
                known.push((1_000 + source, first));
                taken.fetch_add(1, Ordering::Relaxed);
            }
            // It was taken when the disk was found to be full, and waits until its deadline.
            504 => {}
            _ => {
                let problem = answer.expect_error(503, "unavailable");
                assert!(problem.contains("disk full"), "{problem}");
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
    known
}

fn change_all(client: &Client, op: &str, source: u64, targets: std::ops::Range<u64>) -> Answer {
    let change = |target: u64| {
        json!({"op": op, "kind": "favorite",
            "source": source.to_string(), "target": target.to_string()})
    };
    let changes: Vec<_> = targets.map(change).collect();
    client.post_json("/v1/edges/batch", json!({"changes": changes}))
}

#[test]
fn what_is_removed_again_fills_no_disk() {
    let disk = SmallDisk::mount(DISK_MIB);
    let server = Server::try_start_in(&disk.data()).unwrap();
    let client = server.client();
    for round in 0..CHURN_ROUNDS {
        let first = 1_000_000 * (1 + round);
        for op in ["put", "delete"] {
            change_all(&client, op, 1_000, first..first + CHURN_EDGES).ok();
        }
        change_all(&client, "put", 1_001, first..first + 1).ok();
    }
    assert!(is_ready(&server).is_some());
    let known = (0..CHURN_ROUNDS).map(|round| (1_001, 1_000_000 * (1 + round))).collect();
    assert_known(&server, &known);
    let server = server.kill().restart();
    assert_known(&server, &known);
}

/// The journal that removals leave on a full disk, and tables of removed rows, are given back
/// although there is no room to flush and merge them as usual.
#[test]
fn a_disk_that_was_filled_with_rows_and_removals_is_left_again() {
    let disk = SmallDisk::mount(DISK_MIB);
    let mut server = Server::try_start_in(&disk.data()).unwrap();
    let batch = |number: u64| {
        let first = 1_000_000 + number * CROWD_EDGES;
        first..first + CROWD_EDGES
    };
    for number in 0..CROWD_BATCHES {
        change_all(&server, "put", 1_000, batch(number)).ok();
    }
    disk.fill();
    poll_until("it says so", PATIENCE, || says_disk_full(&server));
    let (mut removed, mut refused) = (0, 0);
    while removed < CROWD_BATCHES / 2 && refused < REFUSALS {
        let answer = change_all(&server, "delete", 1_000, batch(removed));
        match answer.status {
            200 => removed += 1,
            _ => {
                refused += 1;
                thread::sleep(Duration::from_millis(250));
            }
        }
    }
    assert!(removed > 0, "a removal finds its place");
    server = server.kill().restart();
    disk.empty();
    // The log is trimmed now and then only.
    poll_until("writes come back by themselves", 2 * PATIENCE, || is_ready(&server));
    // The first of them may fill it again, until what they need is given back, too.
    poll_until("a batch of puts", 2 * PATIENCE, || {
        (change_all(&server, "put", 1_001, batch(0)).status == 200).then_some(())
    });
    let is_live = |source: u64, target: u64| {
        server.get(edge("favorite", source, target)).ok()["related"] == true
    };
    assert!(is_live(1_001, 1_000_000) && !is_live(1_000, 1_000_000));
    let last = batch(CROWD_BATCHES - 1).end - 1;
    assert!(is_live(1_000, last), "what was not removed is there");
}

#[test]
fn a_service_starts_on_a_full_disk() {
    let disk = SmallDisk::mount(DISK_MIB);
    let mut server = Server::try_start_in(&disk.data()).unwrap();
    let load = Load::begin(&server, 10..14);
    poll_until("some puts", PATIENCE, || (load.acknowledged() > 300).then_some(()));
    disk.fill();
    poll_until("it says so", PATIENCE, || says_disk_full(&server));
    let killed = server.kill();
    let mut known = load.end();
    disk.fill();
    // Killed on the full disk, and then stopped in good order on it.
    server = killed.restart();
    check_full(&server, &disk, &mut known);
    server = server.terminate().restart();
    check_full(&server, &disk, &mut known);
    let leftovers: Vec<_> = unfinished(&disk.data());
    assert!(leftovers.is_empty(), "{leftovers:?}");
    disk.empty();
    poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
    server.put(edge("favorite", 2, 3)).ok();
    assert_known(&server, &known);
    server = server.terminate().restart();
    assert_known(&server, &known);
    assert!(is_ready(&server).is_some());
}

#[test]
fn a_service_starts_while_somebody_takes_every_byte() {
    let disk = SmallDisk::mount(DISK_MIB);
    let mut server = Server::try_start_in(&disk.data()).unwrap();
    let load = Load::begin(&server, 10..14);
    poll_until("some puts", PATIENCE, || (load.acknowledged() > 300).then_some(()));
    let (server, known) = disk.beside(SmallDisk::fill, || {
        poll_until("it says so", PATIENCE, || says_disk_full(&server));
        let killed = server.kill();
        let mut known = load.end();
        server = killed.restart();
        check_full(&server, &disk, &mut known);
        // The reserve is gone, so a start may need none: what was removed is all in the store.
        for _ in 0..KILLS {
            server = server.kill().restart();
            assert_known(&server, &known);
        }
        (server, known)
    });
    disk.empty();
    poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
    server.put(edge("favorite", 2, 3)).ok();
    assert_known(&server, &known);
}

/// The log gives its oldest segments back though there is no room for anything new, and what was
/// reserved is used up.
#[test]
fn the_log_is_trimmed_while_somebody_takes_every_byte() {
    let disk = SmallDisk::mount(TINY_DISK_MIB);
    let server = Server::try_start_in(&disk.data()).unwrap();
    for number in 0..LONG_LOG_BATCHES {
        let first = 1_000_000 + number % 10 * CROWD_EDGES;
        let op = if number / 10 % 2 == 0 { "put" } else { "delete" };
        change_all(&server, op, 1_000, first..first + CROWD_EDGES).ok();
    }
    let log = disk.data().join("log");
    let first = first_segment(&log);
    disk.beside(SmallDisk::fill, || {
        fs::remove_file(disk.data().join("RESERVE")).unwrap();
        let trimmed = || (first_segment(&log) != first).then_some(());
        poll_until("the log is trimmed", PATIENCE, trimmed);
    });
    assert_eq!(server.get(edge("favorite", 1_000, 1)).ok()["related"], false);
    let server = server.kill().restart();
    disk.empty();
    poll_until("writes come back by themselves", PATIENCE, || is_ready(&server));
}

/// The name of the log's oldest file.
fn first_segment(log: &Path) -> Option<String> {
    let names = fs::read_dir(log).unwrap().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.ends_with(".seg")).min()
}

/// Files that were never finished, anywhere below.
fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(unfinished(&path));
        } else if path.extension().is_some_and(|ending| ending == "new") {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_standby_on_a_full_disk_serves_and_catches_up() {
    let disk = SmallDisk::mount(DISK_MIB);
    let primary = Server::start();
    primary.put(edge("favorite", 10, 1)).ok();
    let standby = Server::try_start_following(&disk.data(), &primary.url()).unwrap();
    poll_until("it follows", PATIENCE, || is_ready(&standby));
    disk.fill();
    poll_until("it says so", PATIENCE, || says_disk_full(&standby));
    for target in 2..200 {
        primary.put(edge("favorite", 10, target)).ok();
    }
    assert_eq!(standby.get(edge("favorite", 10, 1)).ok()["state"], "live", "it serves on");
    disk.empty();
    poll_until("it follows again", PATIENCE, || is_ready(&standby));
    poll_until("it has caught up", PATIENCE, || {
        let answer = standby.get(edge("favorite", 10, 199));
        (answer.ok()["state"] == "live").then_some(())
    });
}
