//! The end of a process that has lost a thread.

use std::process::{Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

use super::*;

/// Set in the process that is to end.
const ENDS: &str = "GUANXI_TEST_ENDS";

#[test]
fn a_lost_thread_ends_the_process_with_exit_code_4() {
    let (code, said) = end_of("a_lost_thread_ends_the_process_with_exit_code_4", |crew| {
        end_when_lost(crew);
        crew.errand("guanxi-tested", || panic!("a test wanted this")).unwrap();
    });
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("the thread guanxi-tested panicked"), "{said}");
}

#[test]
fn a_thread_that_is_lost_with_what_others_wait_for_ends_the_process_as_soon() {
    let begun = Instant::now();
    let test = "a_thread_that_is_lost_with_what_others_wait_for_ends_the_process_as_soon";
    let (code, said) = end_of(test, |crew| {
        let held = Arc::new(Mutex::new(()));
        // As what gives back what the instance holds, which is told before.
        let waits = held.clone();
        crew.when_lost(move |_| drop(waits.lock()));
        end_when_lost(crew);
        let waits = held.clone();
        let panics = move || {
            std::mem::forget(held.lock());
            panic!("a test wanted this");
        };
        crew.errand("guanxi-tested", panics).unwrap().join().unwrap();
        drop(waits.lock());
    });
    assert_eq!(code, Some(4), "{said}");
    // A process takes its time to start on a busy machine, too.
    assert!(begun.elapsed() < 5 * (LOST_GRACE + LAST_WORDS), "{:?}", begun.elapsed());
}

#[test]
fn an_end_that_hangs_is_cut_short() {
    let test = "an_end_that_hangs_is_cut_short";
    let (code, _) = end_of(test, |crew| {
        end_when_lost(crew);
        crew.errand("guanxi-tested", || panic!("a test wanted this")).unwrap().join().unwrap();
        // What is said last is written there.
        std::mem::forget(std::io::stderr().lock());
    });
    assert_eq!(code, None, "it was aborted");
}

/// The exit code of a process that does this and then goes on for ever, as a server would; and what
/// it said.
fn end_of(test: &str, work: impl FnOnce(&Crew)) -> (Option<i32>, String) {
    if std::env::var_os(ENDS).is_some() {
        work(&Crew::default());
        loop {
            std::thread::park();
        }
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([&format!("serve::tests::{test}"), "--exact", "--nocapture"])
        .env(ENDS, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_thread_that_is_lost_in_a_stop_is_told_too() {
    let crew = Crew::default();
    assert!(none_lost(&crew).is_ok());
    crew.errand("guanxi-tested", || panic!("a test wanted this")).unwrap().join().unwrap();
    assert_eq!(none_lost(&crew).unwrap_err().exit, Exit::Lost);
}
