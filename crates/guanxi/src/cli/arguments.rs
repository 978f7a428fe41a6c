//! Arguments that many commands read: ids, names and times, checked before the server is asked,
//! so that a slip of the hand is wrong usage and nothing else.

use clap::Args;
use guanxi_api::{Id, Time};
use guanxi_model::{Error, GroupName, KindName};

/// What a read may ask for beside what it reads.
#[derive(Debug, Args)]
pub struct AtLeast {
    /// Shows at least the write that answered with this token, on whatever instance or standby.
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    pub at_least: Option<String>,
}

/// Whether it is a token is the server's to say; this is what fits into a header.
fn token(text: &str) -> Result<String, String> {
    match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text.to_owned()),
        false => Err("a token is what a write answered as \"token\" (see --json)".to_owned()),
    }
}

pub fn id(text: &str) -> Result<Id, String> {
    Id::parse(text, "the id").map_err(message)
}

/// The name of a kind or of a node type.
pub fn name(text: &str) -> Result<String, String> {
    KindName::new(text).map(|name| name.as_str().to_owned()).map_err(message)
}

pub fn group(text: &str) -> Result<String, String> {
    GroupName::new(text).map(|name| name.as_str().to_owned()).map_err(message)
}

pub fn time(text: &str) -> Result<Time, String> {
    Time::parse(text, "the time").map_err(message)
}

fn message(error: Error) -> String {
    error.message
}
