//! A program that was built without the drivers of databases reads none.

use super::SourceReader;
use super::flags::ImportOrder;
use crate::failure::Failure;

pub fn open(_: &ImportOrder) -> Result<Box<dyn SourceReader>, Failure> {
    Err(Failure::usage(crate::LACKS_CLUSTER))
}
