//! Arguments that many commands read: ids, names and times, checked before the server is asked,
//! so that a slip of the hand is wrong usage and nothing else.

use guanxi_api::{Id, Time};
use guanxi_model::{Error, GroupName, KindName};

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
