//! Imports as messages.

use super::{ImportAnswer, ImportPlace, Reject, owned, timestamp};
use crate::import;
use crate::time::Time;

/// What the rejected lines of an answer may take: clients take messages of 4 MiB unless they are
/// told otherwise.
const REJECTS_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What a named line takes beside its words.
const REJECT_BYTES: usize = 32;

/// As many rejected lines as fit a message.
fn named(rejects: Vec<import::Reject>) -> Vec<Reject> {
    let mut room = REJECTS_BYTES_MAX;
    let fits = rejects.into_iter().map_while(|reject| {
        room = room.checked_sub(REJECT_BYTES + reject.error.message.len())?;
        Some(Reject::from(reject))
    });
    fits.collect()
}

impl From<import::Reject> for Reject {
    fn from(reject: import::Reject) -> Reject {
        Reject {
            line: reject.line,
            code: reject.error.code.clone().into_owned(),
            message: reject.error.message,
        }
    }
}

impl From<import::ImportAnswer> for ImportAnswer {
    fn from(answer: import::ImportAnswer) -> ImportAnswer {
        let rejects = named(answer.rejects);
        ImportAnswer {
            id: answer.id,
            lines: answer.lines,
            accepted: answer.accepted,
            changed: answer.changed,
            rejected: answer.rejected,
            rejects_left_off: answer.rejected - rejects.len() as u64,
            rejects,
            token: owned(answer.token),
        }
    }
}

impl From<import::ImportPlace> for ImportPlace {
    fn from(place: import::ImportPlace) -> ImportPlace {
        let Time(at) = place.at;
        let rejects = named(place.rejects);
        ImportPlace {
            id: place.id,
            lines: place.lines,
            accepted: place.accepted,
            changed: place.changed,
            rejected: place.rejected,
            rejects_left_off: place.rejected - rejects.len() as u64,
            rejects,
            at: Some(timestamp(at)),
            digest: place.digest,
        }
    }
}
