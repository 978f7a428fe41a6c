//! A primary and a standby of it: two real processes, and what the tests of both ask.

use std::sync::Arc;
use std::time::Duration;

use guanxi_services::Port;
use serde_json::Value;

use crate::client::Client;
use crate::server::{Options, Server};
use crate::waiting::poll_until;

/// A standby on a busy machine has caught up within this.
const CAUGHT_UP_DEADLINE: Duration = Duration::from_secs(30);

/// Settings of a server that keeps its address over restarts, so that it can be followed.
pub fn primary_options() -> Options {
    let port = Port::free();
    let listen = Some(format!("127.0.0.1:{}", port.number()));
    Options { listen, port: Some(Arc::new(port)), ..Options::default() }
}

/// As `primary_options`, of a primary whose writes so many standbys must confirm.
pub fn requiring_options(required: usize, timeout_ms: u64) -> Options {
    let setting = |name: &str, value: String| (name.to_owned(), value);
    Options {
        environment: vec![
            setting("GUANXI_STANDBY_REQUIRED", required.to_string()),
            setting("GUANXI_STANDBY_TIMEOUT_MS", timeout_ms.to_string()),
        ],
        ..primary_options()
    }
}

/// Settings of a server that follows this address and can itself be followed.
pub fn standby_options(primary: &str) -> Options {
    let arguments = vec!["--follow".to_owned(), primary.to_owned()];
    Options { arguments, ..primary_options() }
}

/// Starts a standby of this server.
pub fn start_standby(primary: &Server) -> Server {
    Server::start_with(standby_options(&primary.url()))
}

/// What the server says of its part in a pair.
#[track_caller]
pub fn standing(client: &Client) -> Value {
    client.get("/v1/admin/standby").ok().clone()
}

/// Waits until the standby shows all that the primary shows now.
#[track_caller]
pub fn wait_until_caught_up(primary: &Client, standby: &Client) {
    let position = standing(primary)["position"].as_u64().expect("a position");
    poll_until("the standby catches up", CAUGHT_UP_DEADLINE, || {
        let here = standing(standby)["position"].as_u64().expect("a position");
        (here >= position).then_some(())
    });
}

/// The number of a metric that has no labels.
#[track_caller]
pub fn metric(client: &Client, name: &str) -> f64 {
    let text = client.get("/metrics").text;
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
        .unwrap_or_else(|| panic!("no metric {name} in {text}"))
}
