//! What the doctor asks the server: is it there, which version, is it ready, how far is it.

use std::collections::HashMap;
use std::time::SystemTime;

use guanxi_api::health::{ClusterHealth, Readiness};
use guanxi_api::standby::{FollowingView, RoleName, StandbyView};
use serde_json::Value;

use super::CheckFinding;
use crate::cli::client::Client;
use crate::cli::output::{counted, printable};

/// The service's answers carry its time in whole seconds.
const CLOCKS_APART_SECONDS_MAX: u64 = 2;
/// The store follows the log within a batch or two; more means that it cannot keep up.
const APPLY_LAG_POSITIONS_MAX: f64 = 10_000.0;
const QUEUE_SHARE_MAX: f64 = 0.8;
/// A standby that is further behind would lose that much when it is promoted now.
const STANDBY_LAG_SECONDS_MAX: f64 = 5.0;
/// The relay is woken by every commit; records that wait longer are stuck.
const RELAY_LAG_SECONDS_MAX: f64 = 30.0;
/// What appliers catch up with within seconds.
const APPLIER_LAG_RECORDS_MAX: f64 = 100_000.0;

/// Whether there is a server; what it says is added to the findings.
pub fn check(client: &Client, findings: &mut Vec<CheckFinding>) -> bool {
    let health = match client.get("/healthz").answer() {
        Ok(health) => health,
        Err(failure) => {
            findings.push(CheckFinding::fail("server", failure.message(), failure.next_step()));
            return false;
        }
    };
    let date = health.header("date").and_then(|text| httpdate::parse_http_date(text).ok());
    if let Err(failure) = health.value() {
        findings.push(CheckFinding::fail("server", failure.message(), failure.next_step()));
        return false;
    }
    findings.push(CheckFinding::ok("server", format!("{} answers", client.server())));
    findings.push(version(client));
    findings.extend(date.map(|date| clock(date, SystemTime::now())));
    let ready = client.get("/readyz").ask::<Readiness>().map(|ready| ready.means);
    let has_moved = ready.as_ref().is_ok_and(|ready| ready.role == RoleName::Moved);
    findings.extend(ready.as_ref().ok().and_then(jumped));
    findings.push(match ready {
        Ok(ready) if has_moved => moved(&ready),
        Ok(ready) if ready.role == RoleName::Standby => {
            CheckFinding::ok("ready", "a standby: it takes reads, and writes when it is promoted")
        }
        // An instance of a cluster that has other roles than to serve callers.
        Ok(Readiness { cluster: Some(ClusterHealth { roles, .. }), .. })
            if !roles.iter().any(|role| role == "api") =>
        {
            let roles: Vec<String> = roles.iter().map(|role| printable(role)).collect();
            let roles = roles.join(", ");
            CheckFinding::ok("ready", format!("it does its part ({roles}) and serves no callers"))
        }
        Ok(_) => CheckFinding::ok("ready", "it takes reads and writes"),
        Err(failure) if failure.message().contains("disk full") => CheckFinding::fail(
            "ready",
            failure.message(),
            "make room on the disk of its data directory; it goes on by itself, without a restart",
        ),
        Err(failure) => CheckFinding::fail(
            "ready",
            failure.message(),
            "its log says why; an instance of a cluster goes on by itself when what it misses is \
             back, an embedded service after a restart",
        ),
    });
    if !has_moved {
        findings.extend(trouble(client));
    }
    match client.get("/metrics").answer().and_then(|mut answer| answer.text()) {
        Ok(text) => {
            let numbers = numbers(&samples(&text)).into_iter();
            // A primary that has moved may well be gone.
            findings.extend(numbers.filter(|finding| !has_moved || finding.check != "standby"));
        }
        Err(failure) => {
            findings.push(CheckFinding::fail("metrics", failure.message(), failure.next_step()));
        }
    }
    true
}

/// A clock that the service does not believe.
fn jumped(ready: &Readiness) -> Option<CheckFinding> {
    let seconds = ready.clock_held_back_ms? / 1_000;
    Some(CheckFinding::warn(
        "clock jump",
        format!("the server's clock jumped forward by {seconds} s; nothing expires by it"),
        "set it right; if the new time is right, restart the service, an embedded one with \
         clock_may_have_jumped = true",
    ))
}

/// A service whose history goes on in a cluster, or a standby of one.
fn moved(ready: &Readiness) -> CheckFinding {
    let now_at = ready.now_at.as_deref().unwrap_or("the cluster");
    CheckFinding::warn(
        "ready",
        "it has moved to a cluster: it takes reads, and no more writes",
        format!("let callers go to {now_at}, and stop it when nobody reads from it any more"),
    )
}

/// Why a standby does not follow at the moment.
fn trouble(client: &Client) -> Option<CheckFinding> {
    let standing = client.get("/v1/admin/standby").ask::<StandbyView>().ok()?.means;
    let FollowingView { primary, trouble, .. } = standing.following?;
    let why = trouble?;
    Some(CheckFinding::warn(
        "following",
        format!("it does not follow {primary}: {why}"),
        "start the primary, or mend what stands between the two; it asks again all the while. If \
         the primary is lost for good: `guanxi promote`",
    ))
}

fn version(client: &Client) -> CheckFinding {
    let ours = env!("CARGO_PKG_VERSION");
    let document = match client.get("/openapi.json").send() {
        Ok(document) => document,
        // It will not, however often it is asked.
        Err(failure) if failure.code.as_deref() == Some("unavailable") && !failure.retryable => {
            let message = "it is not told by an instance that serves no callers";
            return CheckFinding::ok("version", message);
        }
        Err(_) => Value::Null,
    };
    match document["info"]["version"].as_str() {
        Some(theirs) if theirs == ours => CheckFinding::ok("version", ours),
        Some(theirs) => CheckFinding::warn(
            "version",
            format!("the server is {theirs}, this command is {ours}"),
            "use the same version of both",
        ),
        None => CheckFinding::fail(
            "version",
            "the server does not say its version in /openapi.json",
            "check with --server or GUANXI_SERVER that this is a guanxi server",
        ),
    }
}

fn clock(theirs: SystemTime, ours: SystemTime) -> CheckFinding {
    let apart = match ours.duration_since(theirs) {
        Ok(apart) => apart,
        Err(error) => error.duration(),
    };
    match apart.as_secs() {
        0..=CLOCKS_APART_SECONDS_MAX => CheckFinding::ok("clock", "the server's agrees with ours"),
        seconds => CheckFinding::warn(
            "clock",
            format!("the server's is {seconds} s away from ours"),
            "let NTP set both; expiry and since follow the server's clock",
        ),
    }
}

/// What the service's own numbers mean; one that is not there is not judged.
fn numbers(samples: &HashMap<&str, f64>) -> Vec<CheckFinding> {
    let get = |name: &str| samples.get(name).copied();
    let both = |one: &str, other: &str| get(one).zip(get(other));
    let positions = both("guanxi_position_durable", "guanxi_position_applied");
    let queue = both("guanxi_queue_changes", "guanxi_queue_changes_max");
    let audited = both("guanxi_audit_drift", "guanxi_audit_position");
    let standby = get("guanxi_standby").filter(|standby| *standby == 1.0);
    let lag = both("guanxi_standby_lag_positions", "guanxi_standby_lag_seconds");
    let findings = [
        positions.map(|(durable, applied)| {
            let said = format!("log at {durable}, store at {applied}");
            let next = "the store cannot keep up: a faster disk or fewer writes help";
            within(durable - applied <= APPLY_LAG_POSITIONS_MAX, "positions", said, next)
        }),
        queue.map(|(waiting, queue_max)| {
            let said = format!("{waiting} of {queue_max} changes wait");
            let next = "writes will soon be refused as overloaded: send fewer at once";
            within(waiting <= queue_max * QUEUE_SHARE_MAX, "queue", said, next)
        }),
        // At position 0 nothing has been compared yet.
        audited.filter(|(_, position)| *position > 0.0).map(|(drift, position)| {
            let said = format!("drift {drift} as of position {position}");
            match drift > 0.0 {
                false => CheckFinding::ok("audit", said),
                true => CheckFinding::fail("audit", said, "`guanxi audit --repair` mends it"),
            }
        }),
        standby.and(lag).map(|(positions, seconds)| {
            let said = format!("{positions} positions and {seconds} s behind its primary");
            let next = "check the network to the primary and that it runs";
            within(seconds <= STANDBY_LAG_SECONDS_MAX, "standby", said, next)
        }),
    ];
    findings.into_iter().flatten().chain(of_cluster(samples)).collect()
}

/// What an instance of a cluster says; an embedded service has none of these numbers.
fn of_cluster(samples: &HashMap<&str, f64>) -> Vec<CheckFinding> {
    let get = |name: &str| samples.get(name).copied();
    let reachable = |check: &'static str, what: &str, reachable: f64| match reachable > 0.0 {
        true => CheckFinding::ok(check, format!("{what} answers")),
        false => {
            let next = "check the address in the settings, the network, and that it runs";
            CheckFinding::fail(check, format!("{what} cannot be reached"), next)
        }
    };
    let has_redis = get("guanxi_redis_reachable").is_some_and(|set| set >= 0.0);
    let findings = [
        get("guanxi_database_reachable").map(|at| reachable("database", "the database", at)),
        get("guanxi_log_reachable").map(|at| reachable("log", "the log", at)),
        get("guanxi_redis_reachable").filter(|set| *set >= 0.0).map(|at| {
            let next = "checks ask the database without it; check cache.redis and that it runs";
            let said = if at > 0.0 { "Redis answers" } else { "Redis cannot be reached" };
            within(at > 0.0, "redis", said.to_owned(), next)
        }),
        get("guanxi_redis_reachable").filter(|set| *set < 0.0).map(|_| {
            let said = "this instance has no Redis; where others have one, it takes their filter";
            CheckFinding::ok("redis", said.to_owned())
        }),
        get("guanxi_filter_serves").filter(|_| has_redis).map(|serves| {
            let said = match serves > 0.0 {
                true => "negative checks end in the filter",
                false => "the filter is not used: checks ask the database",
            };
            let next = "it is filled within minutes; else see that every instance has the same \
                        cache.redis and reaches it, and that Redis has room";
            within(serves > 0.0, "filter", said.to_owned(), next)
        }),
        get("guanxi_tallies_followed").filter(|followed| *followed >= 0.0).map(|followed| {
            let said = match followed > 0.0 {
                true => "tallies come from Redis",
                false => "nobody keeps the tallies in Redis right: they come from the database",
            };
            let next = "check that an instance has the role upkeep, and reaches the log and the \
                        Redis of cache.tally_redis or cache.redis";
            within(followed > 0.0, "tallies", said.to_owned(), next)
        }),
        get("guanxi_database_overloaded").map(|overloaded| {
            let said = match overloaded > 0.0 {
                false => "all reads find their place at the database",
                true => "reads found no place, or no answer, at the database in the last seconds",
            };
            let next = "they are refused or degraded, as their kinds say; see how the database \
                        does, then raise store.reads_max if it can take more";
            within(overloaded == 0.0, "reads", said.to_owned(), next)
        }),
        get("guanxi_relay_lag_seconds").map(|seconds| {
            let said = format!("the oldest record has waited for the log for {seconds} s");
            let next = "check that an instance has the role relay and reaches the log";
            within(seconds <= RELAY_LAG_SECONDS_MAX, "relay", said, next)
        }),
        get("guanxi_applier_lag_records").map(|records| {
            let said = match records {
                1.0 => "1 record of the log is not applied".to_owned(),
                0.0.. => format!("{records} records of the log are not applied"),
                _ => "how many records are not applied is not known here".to_owned(),
            };
            let next = "check that an instance has the role applier and reaches the log";
            within((0.0..=APPLIER_LAG_RECORDS_MAX).contains(&records), "applier", said, next)
        }),
        get("guanxi_dead_letters").map(|letters| {
            let said = counted(letters as u64, "dead letter");
            within(letters == 0.0, "dead letters", said, "`guanxi dead-letters list` shows them")
        }),
    ];
    findings.into_iter().flatten().collect()
}

/// Well when within its bound, a warning beyond it.
fn within(well: bool, check: &'static str, said: String, next: &str) -> CheckFinding {
    match well {
        true => CheckFinding::ok(check, said),
        false => CheckFinding::warn(check, said, next),
    }
}

/// The plain samples of a Prometheus text: those without labels.
fn samples(text: &str) -> HashMap<&str, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let samples = lines.filter_map(|line| {
        let (name, value) = line.split_once(' ')?;
        Some((name, value.parse().ok()?))
    });
    samples.collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::CheckVerdict;
    use super::*;

    #[test]
    fn numbers_that_mean_trouble_are_said() {
        let cases = [
            ("guanxi_position_durable 5\nguanxi_position_applied 5\n", Some(CheckVerdict::Ok)),
            (
                "guanxi_position_durable 50000\nguanxi_position_applied 5\n",
                Some(CheckVerdict::Warn),
            ),
            ("guanxi_queue_changes 99\nguanxi_queue_changes_max 100\n", Some(CheckVerdict::Warn)),
            ("guanxi_audit_drift 0\nguanxi_audit_position 9\n", Some(CheckVerdict::Ok)),
            ("guanxi_audit_drift 2\nguanxi_audit_position 9\n", Some(CheckVerdict::Fail)),
            ("guanxi_audit_drift 0\nguanxi_audit_position 0\n", None),
            (
                "guanxi_standby 1\nguanxi_standby_lag_positions 7\nguanxi_standby_lag_seconds 60.0\n",
                Some(CheckVerdict::Warn),
            ),
            (
                "guanxi_standby 1\nguanxi_standby_lag_positions 7\nguanxi_standby_lag_seconds 0.006\n",
                Some(CheckVerdict::Ok),
            ),
            (
                "guanxi_standby 0\nguanxi_standby_lag_positions 7\nguanxi_standby_lag_seconds 0.0\n",
                None,
            ),
            ("guanxi_database_reachable 1\n", Some(CheckVerdict::Ok)),
            ("guanxi_log_reachable 0\n", Some(CheckVerdict::Fail)),
            ("guanxi_database_overloaded 0\n", Some(CheckVerdict::Ok)),
            ("guanxi_database_overloaded 1\n", Some(CheckVerdict::Warn)),
            ("guanxi_relay_lag_seconds 0.02\n", Some(CheckVerdict::Ok)),
            ("guanxi_relay_lag_seconds 600.0\n", Some(CheckVerdict::Warn)),
            ("guanxi_applier_lag_records 0\n", Some(CheckVerdict::Ok)),
            ("guanxi_redis_reachable 0\n", Some(CheckVerdict::Warn)),
            ("guanxi_redis_reachable -1\nguanxi_filter_serves 0\n", Some(CheckVerdict::Ok)),
            ("guanxi_filter_serves 0\n", None),
            ("guanxi_tallies_followed 0\n", Some(CheckVerdict::Warn)),
            ("guanxi_tallies_followed 1\n", Some(CheckVerdict::Ok)),
            ("guanxi_tallies_followed -1\n", None),
            ("guanxi_applier_lag_records -1\n", Some(CheckVerdict::Warn)),
            ("guanxi_dead_letters 2\n", Some(CheckVerdict::Warn)),
            ("# HELP guanxi_queue_changes x\n# EOF\n", None),
        ];
        for (text, expected) in cases {
            let findings = numbers(&samples(text));
            let found = findings.iter().map(|finding| finding.verdict);
            assert_eq!(found.collect::<Vec<_>>(), Vec::from_iter(expected), "{text}");
        }
    }

    #[test]
    fn clocks_may_differ_by_what_a_second_hides() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let verdict = |theirs| clock(theirs, now).verdict;
        assert_eq!(verdict(now - Duration::from_secs(2)), CheckVerdict::Ok);
        assert_eq!(verdict(now - Duration::from_secs(9)), CheckVerdict::Warn);
        assert_eq!(verdict(now + Duration::from_secs(9)), CheckVerdict::Warn);
    }
}
