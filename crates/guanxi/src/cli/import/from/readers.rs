//! The sources that can be read.

mod mysql;
mod redis;

use self::mysql::MySql;
use self::redis::RedisSets;
use super::Reader;
use super::flags::{Asked, Mapping};
use crate::config::Secret;
use crate::failure::Failure;

pub fn open(asked: &Asked) -> Result<Box<dyn Reader>, Failure> {
    let password = asked.password.as_ref().map(Secret::as_str);
    Ok(match &asked.mapping {
        Mapping::MySql(mapping) => Box::new(MySql::open(asked, password, mapping)?),
        Mapping::Redis(mapping) => Box::new(RedisSets::open(asked, password, mapping)?),
    })
}
