//! A program that was built without the drivers of databases reads none.

use super::Reader;
use super::flags::Asked;
use crate::failure::Failure;

pub fn open(_: &Asked) -> Result<Box<dyn Reader>, Failure> {
    Err(Failure::usage(crate::LACKS_CLUSTER))
}
