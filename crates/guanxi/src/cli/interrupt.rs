//! Ctrl-C. A plain command dies of it, as the shell expects; one that has something to finish
//! asks here and gets a moment for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::failure::Failure;

/// A command that was stopped has not done what it should.
pub const EXIT_INTERRUPTED: u8 = 3;

/// Whether the user has asked to stop.
#[derive(Debug, Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on the first Ctrl-C only sets the flag. If the command has not ended after
    /// `grace`, or at a second Ctrl-C, the process ends with `exit_code`.
    pub fn catch(grace: Duration, exit_code: u8) -> Result<Interrupt, Failure> {
        let interrupt = Interrupt(Arc::new(AtomicBool::new(false)));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::failed(format!("cannot wait for Ctrl-C: {error}")))?;
        let flag = interrupt.0.clone();
        // Within the runtime, so that the signal is caught before this function returns.
        let signal = {
            let _entered = runtime.enter();
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
        };
        let mut signal =
            signal.map_err(|error| Failure::failed(format!("cannot wait for Ctrl-C: {error}")))?;
        thread::spawn(move || {
            runtime.block_on(async {
                signal.recv().await;
                flag.store(true, Ordering::Relaxed);
                let _ = tokio::time::timeout(grace, signal.recv()).await;
            });
            std::process::exit(i32::from(exit_code));
        });
        Ok(interrupt)
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
