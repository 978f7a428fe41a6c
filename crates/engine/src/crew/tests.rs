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
    workers.spawn("careless", || panic!("a test wanted this")).unwrap();
    let lost = heard.recv_timeout(SOON).unwrap();
    assert_eq!(lost.to_string(), "the thread careless panicked");
    assert_eq!(crew.lost(), Some(&lost));
    assert!(!workers.finish(|| {}), "it says that one panicked");
}

#[test]
fn a_thread_that_ends_of_its_own_accord_is_lost() {
    let crew = Crew::default();
    let heard = heard(&crew);
    let workers = crew.workers();
    workers.spawn("hasty", || {}).unwrap();
    let lost = heard.recv_timeout(SOON).unwrap();
    assert_eq!(lost.to_string(), "the thread hasty ended, and nobody had asked it to");
}

#[test]
fn threads_that_were_asked_to_end_are_not_lost() {
    let crew = Crew::default();
    let (tell, told) = channel::<()>();
    let finished = crew.workers();
    finished.spawn("obedient", move || wait_for(&told)).unwrap();
    assert!(finished.finish(|| drop(tell)));
    let (tell, told) = channel::<()>();
    let stopped = crew.workers();
    stopped.spawn("obedient", move || wait_for(&told)).unwrap();
    stopped.stop(|| drop(tell));
    let errand = crew.errand("brief", || {}).unwrap();
    errand.join().unwrap();
    assert_eq!(crew.lost(), None);
}

#[test]
fn a_panic_at_the_end_is_a_loss_too() {
    let crew = Crew::default();
    let (tell, told) = channel::<()>();
    let workers = crew.workers();
    let panics = move || {
        wait_for(&told);
        panic!("a test wanted this");
    };
    workers.spawn("clumsy", panics).unwrap();
    assert!(!workers.finish(|| drop(tell)));
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
    workers.spawn("hung", move || wait_for(&held)).unwrap();
    workers.stop(|| {});
    drop(release);
    drop(workers);
    assert_eq!(crew.lost(), None, "it was asked to end, and did later");
}

/// Threads of commands, which end with them.
const COMMANDS: &str = "guanxi/src/cli/";

#[test]
fn threads_are_started_in_one_place() {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![crates.join("engine/src"), crates.join("guanxi/src")];
    let (mut read, mut found) = (0, Vec::new());
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
            let starts = ["thread::Builder", "thread::spawn", "{Builder, JoinHandle}"];
            if starts.iter().any(|start| code.contains(start)) {
                found.push(name);
            }
        }
    }
    assert!(read > 200, "only {read} files found: does the search still work?");
    assert_eq!(found, ["engine/src/crew.rs"], "start threads through the crew");
}
