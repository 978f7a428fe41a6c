//! The gRPC messages and services as `proto/guanxi/v1` has them, and the forms that differ from
//! those of JSON: numbers for ids, timestamps, enums. What a message means is for the services.

mod audit;
pub mod codec;
mod edges;
mod jobs;
mod kinds;
mod standbys;
mod transfer;
mod watch;

#[allow(clippy::all, clippy::pedantic, reason = "generated code")]
mod generated {
    tonic::include_proto!("guanxi.v1");
}

pub use generated::*;

use guanxi_model::{Error, Millis};
use prost_types::Timestamp;

use crate::tallies;
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

impl From<crate::Problem<'_>> for Problem {
    fn from(problem: crate::Problem<'_>) -> Problem {
        Problem {
            code: problem.code.to_owned(),
            message: problem.message.into_owned(),
            retryable: problem.retryable,
            outcome: problem.outcome.to_owned(),
            request_id: problem.request_id.to_owned(),
        }
    }
}

impl From<tallies::KindTallies> for KindTallies {
    fn from(tallies: tallies::KindTallies) -> KindTallies {
        KindTallies {
            outgoing: tallies.outgoing,
            incoming: tallies.incoming,
            pending_outgoing: tallies.pending_outgoing,
            pending_incoming: tallies.pending_incoming,
            owned: tallies.owned,
            value: tallies.value,
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
