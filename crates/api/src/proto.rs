//! The gRPC messages and services as `proto/guanxi/v1` has them, and the forms that differ from
//! those of JSON: numbers for ids, timestamps, enums. What a message means is for the services.

mod admin;
mod audit;
pub mod codec;
mod counters;
mod edges;
mod groups;
mod jobs;
mod kinds;
mod lists;
mod nodes;
mod reads;
mod standbys;
mod transfer;
mod watch;

#[allow(clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    tonic::include_proto!("guanxi.v1");
}

pub use generated::*;

use std::sync::Arc;

use guanxi_model::{Error, GroupName, Millis};
use prost_types::Timestamp;

use crate::id::Id;
use crate::state::WireState;
use crate::time::Time;

/// The files in compiled form, with their comments, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guanxi.v1.descriptors"));

const NANOS_PER_MILLI: u32 = 1_000_000;

pub fn timestamp(at: Millis) -> Timestamp {
    let nanos = (at.0 % 1_000) as i32 * NANOS_PER_MILLI as i32;
    Timestamp { seconds: (at.0 / 1_000) as i64, nanos }
}

/// Reads a time; `what` names it in the error. What is finer than a millisecond is cut off.
pub fn read_time(timestamp: &Timestamp, what: &str) -> Result<Time, Error> {
    nanos_of(timestamp, what).map(|nanos| Time::from_parts(timestamp.seconds, nanos))
}

/// Reads a bound of a range: finer than a millisecond, it is the next one, as rows have whole ones.
pub fn read_bound(timestamp: &Timestamp, what: &str) -> Result<Millis, Error> {
    let nanos = nanos_of(timestamp, what)?;
    let Time(millis) = Time::from_parts(timestamp.seconds, nanos);
    Ok(millis.saturating_add(u64::from(nanos % NANOS_PER_MILLI != 0)))
}

fn nanos_of(timestamp: &Timestamp, what: &str) -> Result<u32, Error> {
    let nanos = u32::try_from(timestamp.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    nanos.ok_or_else(|| Error::invalid(format!("{what}: nanos is from 0 to 999999999")))
}

impl From<guanxi_model::State> for State {
    fn from(state: guanxi_model::State) -> State {
        match state {
            guanxi_model::State::Live => State::Live,
            guanxi_model::State::Pending => State::Pending,
            guanxi_model::State::Removed => State::Removed,
        }
    }
}

impl From<WireState> for State {
    fn from(state: WireState) -> State {
        match state {
            WireState::Live => State::Live,
            WireState::Pending => State::Pending,
            WireState::Removed => State::Removed,
        }
    }
}

fn owned(text: Arc<str>) -> String {
    text.as_ref().to_owned()
}

fn all_owned(texts: Vec<Arc<str>>) -> Vec<String> {
    texts.into_iter().map(owned).collect()
}

fn group_name(name: &str, what: &str) -> Result<GroupName, Error> {
    GroupName::new(name).map_err(|error| Error::invalid(format!("{what}: {}", error.message)))
}

fn ids(numbers: &[u64], what: &str) -> Result<Vec<Id>, Error> {
    let id = |(index, number): (usize, &u64)| match number {
        0 => Id::from_number(0, &format!("{what}[{index}]")),
        _ => Ok(Id(*number)),
    };
    numbers.iter().enumerate().map(id).collect()
}

impl From<crate::Problem> for Problem {
    fn from(problem: crate::Problem) -> Problem {
        Problem {
            code: problem.code.into_owned(),
            message: problem.message,
            retryable: problem.retryable,
            outcome: problem.outcome.into_owned(),
            request_id: problem.request_id.as_ref().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_and_finer_ones_are_cut_or_rounded_up() {
        let at = Millis(1_769_860_800_123);
        assert_eq!(read_time(&timestamp(at), "t"), Ok(Time(at)));
        assert_eq!(read_bound(&timestamp(at), "t"), Ok(at));
        let finer = Timestamp { nanos: timestamp(at).nanos + 1, ..timestamp(at) };
        assert_eq!(read_time(&finer, "t"), Ok(Time(at)));
        assert_eq!(read_bound(&finer, "t"), Ok(Millis(at.0 + 1)));
    }

    #[test]
    fn times_out_of_range_are_clamped_and_wrong_ones_named() {
        let of = |seconds, nanos| read_time(&Timestamp { seconds, nanos }, "since");
        assert_eq!(of(-5, 0), Ok(Time(Millis(0))));
        assert_eq!(of(i64::MAX, 0), of(i64::MAX / 2, 999_999_999));
        for nanos in [-1, 1_000_000_000] {
            assert!(of(0, nanos).unwrap_err().message.starts_with("since: nanos"));
        }
    }
}
