//! Threads that end as they were asked to, and others.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::*;

/// Longer than any machine takes.
const SOON: Duration = Duration::from_secs(30);

fn heard(crew: &Crew) -> Receiver<Lost> {
    let (tell, heard) = channel();
    crew.when_lost(move |lost| tell.send(lost.clone()).unwrap());
    heard
}

/// Until the other end is dropped.
fn wait_for(told: &Receiver<()>) {
    assert!(told.recv().is_err());
}

#[test]
fn a_thread_that_panics_is_lost() {
    let crew = Crew::default();
    let heard = heard(&crew);
    let workers = crew.workers();
    workers.spawn("careless", |_| panic!("a test wanted this")).unwrap();
    let lost = heard.recv_timeout(SOON).unwrap();
    assert_eq!(lost.to_string(), "the thread careless panicked");
    assert_eq!(crew.lost(), Some(&lost));
    assert!(!workers.finish(), "it says that one panicked");
}

#[test]
fn a_thread_that_ends_of_its_own_accord_is_lost() {
    let crew = Crew::default();
    let heard = heard(&crew);
    let workers = crew.workers();
    workers.spawn("hasty", |_| {}).unwrap();
    let lost = heard.recv_timeout(SOON).unwrap();
    assert_eq!(lost.to_string(), "the thread hasty ended, and nobody had asked it to");
}

#[test]
fn threads_that_were_asked_to_end_are_not_lost() {
    let crew = Crew::default();
    let rests = |signal: &Signal| assert!(signal.wait(SOON));
    assert!(crew.spawn("obedient", rests).unwrap().finish());
    crew.spawn("obedient", rests).unwrap().stop();
    crew.spawn("obedient", rests).unwrap().let_go();
    drop(crew.spawn("obedient", rests).unwrap());
    let errand = crew.errand("brief", || {}).unwrap();
    errand.join().unwrap();
    assert_eq!(crew.lost(), None);
}

#[test]
fn a_panic_at_the_end_is_a_loss_too() {
    let crew = Crew::default();
    let panics = |signal: &Signal| {
        signal.wait(SOON);
        panic!("a test wanted this");
    };
    assert!(!crew.spawn("clumsy", panics).unwrap().finish());
    assert_eq!(crew.lost().unwrap().worker, "clumsy");
}

#[test]
fn an_errand_that_panics_is_lost() {
    let crew = Crew::default();
    crew.errand("errand", || panic!("a test wanted this")).unwrap().join().unwrap();
    assert_eq!(crew.lost().unwrap().worker, "errand");
    let late = heard(&crew);
    assert_eq!(late.recv_timeout(SOON).unwrap().worker, "errand", "who asks later hears of it");
}

#[test]
fn a_task_that_panics_is_lost_and_one_that_ends_is_not() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let crew = Crew::default();
    let (end, ended) = tokio::sync::oneshot::channel();
    crew.task("brief", runtime.handle(), || false, async move { end.send(()).unwrap() });
    ended.blocking_recv().unwrap();
    crew.task("stopped", runtime.handle(), || true, std::future::pending()).abort();
    let heard = heard(&crew);
    crew.task("careless", runtime.handle(), || false, async { panic!("a test wanted this") });
    assert_eq!(heard.recv_timeout(SOON).unwrap().worker, "careless");
}

#[test]
fn a_task_that_ends_while_it_is_needed_is_lost() {
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    let crew = Crew::default();
    let heard = heard(&crew);
    crew.task("hasty", runtime.handle(), || true, async {});
    let lost = heard.recv_timeout(SOON).unwrap();
    assert_eq!((lost.worker.as_str(), lost.how), ("hasty", UNASKED));
}

#[test]
fn a_loss_is_told_where_no_thread_can_be_started() {
    let (tell_test, told) = channel();
    let lost = Lost { worker: "any".to_owned(), how: "panicked" };
    let listener = move |lost: &Lost| tell_test.send(lost.clone()).unwrap();
    tell(Box::new(listener), lost.clone(), |_| Err(io::Error::other("no more threads")));
    assert_eq!(told.try_recv(), Ok(lost));
}

#[test]
fn only_the_first_loss_is_told_of() {
    let crew = Crew::default();
    let heard = heard(&crew);
    crew.errand("first", || panic!("a test wanted this")).unwrap().join().unwrap();
    crew.errand("second", || panic!("a test wanted this")).unwrap().join().unwrap();
    assert_eq!(heard.recv_timeout(SOON).unwrap().worker, "first");
    assert!(heard.recv_timeout(SOON).is_err(), "the listener is gone, and was called once");
    assert_eq!(crew.lost().unwrap().worker, "first");
}

#[test]
fn a_stop_does_not_wait_for_a_thread_that_hangs() {
    let crew = Crew::default();
    let (release, held) = channel::<()>();
    let workers = crew.workers();
    workers.spawn("hung", move |_| wait_for(&held)).unwrap();
    workers.stop();
    drop(release);
    drop(workers);
    assert_eq!(crew.lost(), None, "it was asked to end, and did later");
}

#[test]
fn a_work_is_done_turn_by_turn_at_its_pace_until_it_is_stopped() {
    let crew = Crew::default();
    let (tell, told) = channel();
    let mut turns = 0;
    let work = move |_: &Signal| {
        turns += 1;
        tell.send(turns).unwrap();
        match turns {
            1 => Ok(Next::Now),
            2 => Err("a test wanted this"),
            3 => Ok(Next::After(Duration::from_millis(1))),
            4 => Ok(Next::Woken),
            5 => Ok(Next::Within(Duration::from_millis(1))),
            _ => Ok(Next::After(SOON)),
        }
    };
    let backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(1));
    let workers = crew.repeat("diligent", "it failed", backoff, work).unwrap();
    let turn = || told.recv_timeout(SOON);
    for expected in 1..=4 {
        assert_eq!(turn(), Ok(expected));
    }
    assert!(told.recv_timeout(Duration::from_millis(20)).is_err(), "it waits to be woken");
    workers.signal().wake();
    assert_eq!([turn(), turn()], [Ok(5), Ok(6)]);
    let begun = Instant::now();
    assert!(workers.finish());
    assert!(begun.elapsed() < SOON / 2, "its rest was cut short");
    assert_eq!(crew.lost(), None);
}

#[test]
fn a_work_that_has_no_next_turn_is_lost_where_it_should_last() {
    let crew = Crew::default();
    let heard = heard(&crew);
    let over = |_: &Signal| Ok::<_, String>(Next::Never);
    let _workers = crew.repeat("hasty", "it failed", Backoff::default(), over).unwrap();
    assert_eq!(heard.recv_timeout(SOON).unwrap().worker, "hasty");
}

#[test]
fn a_planted_panic_comes_at_the_next_turn_of_a_thread_that_waits_to_be_woken() {
    let crew = Crew::default();
    let heard = heard(&crew);
    let rests = |_: &Signal| Ok::<_, String>(Next::Woken);
    let _workers = crew.repeat("idle", "it failed", Backoff::default(), rests).unwrap();
    assert_eq!(crew.lasting(), ["idle"]);
    crew.plant_panic("idle");
    assert_eq!(heard.recv_timeout(SOON).unwrap().worker, "idle");
}

/// It is told whatever the lost thread holds, and whoever hears of it and waits for that.
#[test]
fn a_loss_is_told_to_all_though_the_thread_holds_what_some_wait_for() {
    let crew = Crew::default();
    let held = Arc::new(Mutex::new(()));
    let waited_for = held.clone();
    crew.when_lost(move |_| drop(waited_for.lock()));
    let heard = heard(&crew);
    crew.spawn("greedy", move |_| {
        std::mem::forget(held.lock());
        panic!("a test wanted this");
    })
    .unwrap();
    assert_eq!(heard.recv_timeout(SOON).unwrap().worker, "greedy");
}

/// Threads and tasks of commands, which end with them.
const COMMANDS: &str = "guanxi/src/cli/";

/// Where tasks are started that have an end of their own and nobody relies on, and how many. A task
/// that lasts is the crew's.
const SHORT_TASKS: [(&str, usize); 6] = [
    // A connection, on one thread or another, and what is left of a request's body.
    ("guanxi/src/server/serving_threads.rs", 2),
    ("guanxi/src/server/unread.rs", 1),
    // The callers of one batch are told.
    ("core/src/queue.rs", 1),
    // A stream, whose reader sees it break.
    ("guanxi/src/service/streams.rs", 1),
    // A mark of a write, which otherwise goes by its age.
    ("cluster/src/memory/lists.rs", 1),
    ("cluster/src/memory/tier.rs", 1),
];

#[test]
fn threads_and_tasks_that_last_are_started_in_one_place() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = ["core", "embedded", "cluster", "moving", "guanxi"];
    let mut folders = sources.map(|name| crates.join(name).join("src")).to_vec();
    let (mut read, mut found, mut tasks) = (0, Vec::new(), Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(&crates).unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if !name.ends_with(".rs") || name.ends_with("tests.rs") || name.starts_with(COMMANDS) {
                continue;
            }
            read += 1;
            let source = std::fs::read_to_string(&path).unwrap();
            let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap();
            let starts = ["thread::Builder", "thread::spawn", "thread::{Builder"];
            if starts.iter().any(|start| code.contains(start)) {
                found.push(name.clone());
            }
            // Whatever it is called on, but for a definition, workers, and threads that are joined.
            let other = ["fn ", "workers.", "crew.", "scope."];
            let starts = code.match_indices("spawn(").map(|(at, _)| &code[..at]);
            let started =
                starts.filter(|code| !other.iter().any(|end| code.ends_with(end))).count();
            if started > 0 && name != "core/src/crew.rs" {
                tasks.push((name, started));
            }
        }
    }
    assert!(read > 200, "only {read} files found: does the search still work?");
    assert_eq!(found, ["core/src/crew.rs"], "start threads through the crew");
    tasks.sort_unstable();
    let mut known = SHORT_TASKS.map(|(name, count)| (name.to_owned(), count));
    known.sort_unstable();
    assert_eq!(tasks, known, "start tasks that last through the crew");
}
