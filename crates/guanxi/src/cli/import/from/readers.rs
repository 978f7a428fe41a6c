//! The sources that can be read.

mod mysql;
mod redis;

use self::mysql::MySql;
use self::redis::RedisSets;
use super::SourceReader;
use super::flags::{ImportOrder, Mapping};
use crate::config::LogPassword;
use crate::failure::Failure;

pub fn open(asked: &ImportOrder) -> Result<Box<dyn SourceReader>, Failure> {
    let password = asked.password.as_ref().map(LogPassword::as_str);
    Ok(match &asked.mapping {
        Mapping::MySql(mapping) => Box::new(MySql::open(asked, password, mapping)?),
        Mapping::Redis(mapping) => Box::new(RedisSets::open(asked, password, mapping)?),
    })
}
