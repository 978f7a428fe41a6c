//! The harness of the black-box suites: it starts the real binary on a free port, speaks HTTP
//! to it and knows the shapes of the contract. It uses no code of the service itself.

mod agreement;
mod answer;
mod callers;
mod cli;
mod client;
mod cluster;
pub mod differences;
pub mod grpc;
mod load;
mod pair;
mod paths;
pub mod powerloss;
mod raw;
pub mod resp;
mod server;
mod waiting;
mod walk;
mod watcher;

pub use agreement::{assert_lists_and_tallies_agree, tally};
pub use answer::{
    Answer, CLOSED_LIST, assert_change, assert_keys, expect_problem, version_of, without_token,
};
pub use callers::{Callers, Trouble};
pub use cli::{Cli, Ran, freeze, freeze_when, interrupt, outlast_stops, thaw};
pub use client::{Client, Request};
pub use cluster::Cluster;
pub use load::{BATCH_CHANGES_MAX, put_all, put_followers};
pub use pair::{
    metric, primary_options, requiring_options, standby_options, standing, start_standby,
    wait_until_caught_up,
};
pub use paths::{edge, edge_call, node, node_run, nodes};
pub use raw::{RawAnswer, RawConnection, raise_open_files_limit};
pub use server::{Options, Server, Stopped, binary, run_to_exit, shared};
pub use waiting::{millis_now, parse_millis, poll_until, rfc3339};
pub use walk::{Page, ids_of, page_of, walk, walk_ids};
pub use watcher::{Next, WatchEvent, Watcher};
