//! Ctrl-C. A plain command dies of it, as the shell expects; one that has something to finish
//! asks here and gets a moment for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// A command that was stopped has not done what it should.
pub const EXIT_INTERRUPTED: u8 = 3;

/// Whether the user has asked to stop.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C only sets the flag. If the command has not ended after
    /// `grace`, or at a second Ctrl-C, the process ends with `exit_code` and `last_words`, as it
    /// must not leave its user without any; a command that has lost nothing by it has none.
    pub fn catch(
        grace: Duration,
        exit_code: u8,
        last_words: &'static str,
    ) -> Result<Interrupt, Failure> {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
        let flag = interrupt.0.clone();
        let (runtime, mut signal) = listen()?;
        thread::spawn(move || {
            runtime.block_on(async {
                signal.recv().await;
                flag.store(true, Ordering::Relaxed);
                let _ = tokio::time::timeout(grace, signal.recv()).await;
            });
            if !last_words.is_empty() {
                eprintln!("guanxi: stopped by Ctrl-C: {last_words}");
            }
            std::process::exit(i32::from(exit_code));
        });
        Ok(interrupt)
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// From now on Ctrl-C ends the process with this failure: for a command that only waits, and has
/// to say what goes on without it.
pub fn end_with(failure: Failure, json: bool) -> Result<(), Failure> {
    let (runtime, mut signal) = listen()?;
    thread::spawn(move || {
        runtime.block_on(signal.recv());
        let _exit_code = failure.report(json);
        std::process::exit(i32::from(failure.exit as u8));
    });
    Ok(())
}

/// The signal is caught when this returns.
fn listen() -> Result<(Runtime, Signal), Failure> {
    let failed = |error| Failure::failed(format!("cannot wait for Ctrl-C: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let signal = {
        let _entered = runtime.enter();
        signal(SignalKind::interrupt())
    };
    Ok((runtime, signal.map_err(failed)?))
}
