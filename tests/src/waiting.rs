//! Time as the wire writes it, and waiting with a deadline instead of sleeping.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

pub fn millis_now() -> u64 {
    let since_epoch =
        SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock stands after 1970");
    u64::try_from(since_epoch.as_millis()).expect("milliseconds fit for 500 million years")
}

/// RFC 3339 UTC with milliseconds.
pub fn rfc3339(millis: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(millis)).to_string()
}

/// The milliseconds of a time on the wire, which must have the exact form
/// `2026-01-01T00:00:00.000Z`.
#[track_caller]
pub fn parse_millis(time: &Value) -> u64 {
    let text = time.as_str().unwrap_or_else(|| panic!("a time is a string: {time}"));
    let parsed = humantime::parse_rfc3339(text)
        .unwrap_or_else(|error| panic!("{text} is no RFC 3339 time: {error}"));
    let since_epoch = parsed.duration_since(UNIX_EPOCH).expect("times stand after 1970");
    let millis = u64::try_from(since_epoch.as_millis()).expect("milliseconds fit");
    assert_eq!(text, rfc3339(millis), "UTC with milliseconds");
    millis
}

/// Asks again until it gets an answer.
#[track_caller]
pub fn poll_until<T>(what: &str, deadline: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < deadline, "{what}: not within {deadline:?}");
        thread::sleep(Duration::from_millis(5));
    }
}
