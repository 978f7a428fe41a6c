//! The end of a process that has lost a thread.

use std::process::{Command, Stdio};

use super::*;

/// Set in the process that is to end.
const ENDS: &str = "GUANXI_TEST_ENDS";

#[test]
fn a_lost_thread_ends_the_process_with_exit_code_4() {
    if std::env::var_os(ENDS).is_some() {
        let crew = Crew::default();
        end_when_lost(&crew);
        let _panics = crew.errand("guanxi-tested", || panic!("a test wanted this")).unwrap();
        // As a server that would go on for ever.
        loop {
            std::thread::park();
        }
    }
    let name = "serve::tests::a_lost_thread_ends_the_process_with_exit_code_4";
    let output = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(ENDS, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("the thread guanxi-tested panicked"), "{said}");
}

#[test]
fn a_thread_that_is_lost_in_a_stop_is_told_too() {
    let crew = Crew::default();
    assert!(none_lost(&crew).is_ok());
    crew.errand("guanxi-tested", || panic!("a test wanted this")).unwrap().join().unwrap();
    assert_eq!(none_lost(&crew).unwrap_err().exit, Exit::Lost);
}
