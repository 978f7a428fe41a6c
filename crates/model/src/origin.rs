//! Whose doing a change was, as far as it is known. It goes with every record, so that the log, the
//! topic and watchers can tell.

use std::sync::Arc;

use crate::change::Change;
use crate::error::Error;
use crate::job::JobId;
use crate::limits::ORIGIN_TEXT_BYTES_MAX;

/// What a caller says of itself or of its reason: short and printable, so that it can stand in a log
/// or on a screen as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginText(Arc<str>);

impl OriginText {
    pub fn new(text: &str) -> Result<OriginText, Error> {
        if text.trim().is_empty() || text.len() > ORIGIN_TEXT_BYTES_MAX {
            return Err(Error::invalid(format!(
                "it has 1 to {ORIGIN_TEXT_BYTES_MAX} bytes and is not blank, this one has {} bytes",
                text.len()
            )));
        }
        if text.contains(char::is_control) {
            return Err(Error::invalid(
                "it has no control characters such as tabs and line breaks",
            ));
        }
        Ok(OriginText(text.into()))
    }

    /// One that was taken before, by whatever rules held then.
    pub fn stored(text: &str) -> OriginText {
        OriginText(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The id of the key that the caller showed.
    pub by: Option<OriginText>,
    /// For whom the caller acted.
    pub subject: Option<OriginText>,
    /// The rule that made the change.
    pub rule: Option<OriginText>,
    /// The job that made it.
    pub job: Option<JobId>,
    /// Why, in the caller's words.
    pub reason: Option<OriginText>,
}

impl Origin {
    /// The origin of a change of a request that has this one.
    pub(crate) fn of(&self, change: &Change) -> Origin {
        let job = match change {
            Change::EraseStep { job, .. }
            | Change::FinishErase { job, .. }
            | Change::BuildIndexStep { job, .. }
            | Change::FinishBuildIndex { job, .. } => Some(*job),
            _ => self.job,
        };
        Origin { job, ..self.clone() }
    }
}
