//! An address that may be none, which in a file is an empty text.

use std::net::SocketAddr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;

#[expect(clippy::ref_option, reason = "serde gives a reference to the field")]
pub fn serialize<S: Serializer>(
    address: &Option<SocketAddr>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match address {
        Some(address) => serializer.collect_str(address),
        None => serializer.serialize_str(""),
    }
}

pub fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SocketAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.is_empty() {
        return Ok(None);
    }
    let wrong = |_| D::Error::custom("listen is an address such as 127.0.0.1:7421, or empty");
    text.parse().map(Some).map_err(wrong)
}
