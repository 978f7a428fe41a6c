//! Rejected lines of an import as messages.

use super::Reject;
use crate::import;

impl From<import::Reject> for Reject {
    fn from(reject: import::Reject) -> Reject {
        Reject {
            line: reject.line,
            code: reject.error.code.name().to_owned(),
            message: reject.error.message,
        }
    }
}
