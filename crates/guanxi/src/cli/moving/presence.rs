//! Tells the service now and then that the move is alive, however long the database is at work, so
//! that no other move takes its place.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::service::Service;
use crate::cli::client::Client;
use crate::failure::Failure;

/// Several times within what the service takes for silence.
const INTERVAL: Duration = Duration::from_secs(10);

/// Ends with its drop.
pub struct Presence(#[expect(dead_code, reason = "its drop is the message")] Sender<()>);

impl Presence {
    pub fn start(server: &str, id: u64, run: u64) -> Result<Presence, Failure> {
        let client = Client::new(server)?;
        let (ends, ended) = channel::<()>();
        let thread = thread::Builder::new().name("guanxi-presence".into());
        let started = thread.spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                // Whoever follows the log next is told what is wrong.
                let _told_later = Service::new(&client, id, run).go_on();
            }
        });
        started.map_err(|error| Failure::failed(format!("cannot start a thread: {error}")))?;
        Ok(Presence(ends))
    }
}
