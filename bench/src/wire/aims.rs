//! What we aim at, held against what a run found.

use crate::wire::question::{FEEDS, Work};
use crate::wire::report::{Held, Whole};

/// Bounds on what a server takes of the processor over what Redis takes.
const CPU_OVER_REDIS: [(Work, &str, f64); 12] = [
    (Work::Hydrate, "guanxi-http", 0.75),
    (Work::Hydrate, "guanxi-resp", 0.55),
    (Work::Checks, "guanxi-http", 0.75),
    (Work::Check, "guanxi-http", 1.5),
    (Work::Check, "guanxi-resp", 1.0),
    (Work::Tallies, "guanxi-http", 1.0),
    (Work::Newest, "guanxi-http", 1.3),
    (Work::Newest, "guanxi-resp", 1.0),
    (Work::NewestCelebrity, "guanxi-http", 1.3),
    (Work::NewestCelebrity, "guanxi-resp", 1.0),
    (Work::Empty, "guanxi-http", 1.25),
    (Work::Empty, "guanxi-resp", 1.05),
];
/// Bounds on the rate of durable follows over that of Redis.
const RATE_OVER_REDIS: [(Work, &str, f64); 2] =
    [(Work::Follow256, "guanxi-http", 1.5), (Work::Follow256, "guanxi-resp", 2.0)];
const CELEBRITY: [(Work, Work); 2] =
    [(Work::Celebrity64, Work::Follow64), (Work::Celebrity256, Work::Follow256)];
const CELEBRITY_PAGE_MAX: f64 = 1.1;
const CELEBRITY_RATE_MIN: f64 = 0.95;
const FEED_OF_MANY_US_MAX: f64 = 2.9;
const P99_AT_HALF_MS_MAX: f64 = 2.0;
const STALL_MS_MAX: f64 = 250.0;
const MEMORY_MAX: f64 = 0.35;
const DISK_BYTES_MAX: f64 = 44.0;
const CLEAN_START_S_MAX: f64 = 1.5;
const IMPORTS: [(&str, f64); 3] = [
    ("into an empty directory", 400_000.0),
    ("into a running service", 100_000.0),
    ("as many again", 100_000.0),
];
const KILLED_START_S_MAX: f64 = 5.0;

pub struct Aim {
    pub what: String,
    pub at_least: bool,
    pub bound: f64,
    pub found: f64,
}

impl Aim {
    pub fn is_met(&self) -> bool {
        if self.at_least { self.found >= self.bound } else { self.found <= self.bound }
    }
}

/// Those of which the run found something.
pub fn of(whole: &Whole) -> Vec<Aim> {
    let mut aims = Vec::new();
    let mut add = |what: String, at_least: bool, bound: f64, found: Option<f64>| {
        aims.extend(found.map(|found| Aim { what, at_least, bound, found }));
    };
    for (work, server, bound) in CPU_OVER_REDIS {
        let row = whole.row(&work.name(), server);
        let found = row.and_then(|row| row.over("redis")).map(|over| over.cpu.median);
        add(format!("{}, {server}: processor time ÷ Redis", work.name()), false, bound, found);
    }
    for (work, server, bound) in RATE_OVER_REDIS {
        let row = whole.row(&work.name(), server);
        let found = row.and_then(|row| row.over("redis")).map(|over| over.rate.median);
        add(format!("{}, {server}: rate ÷ Redis", work.name()), true, bound, found);
    }
    for server in ["guanxi-http", "guanxi-resp"] {
        let row = |work: Work| whole.row(&work.name(), server);
        let many = row(Work::Hydrate64).map(|row| row.cpu_us.median / FEEDS as f64);
        let what = format!("hydrate64, {server}: processor time of one of the 64, µs");
        add(what, false, FEED_OF_MANY_US_MAX, many);
        let pages = row(Work::NewestCelebrity).zip(row(Work::Newest));
        let pages = pages.map(|(one, other)| one.cpu_us.median / other.cpu_us.median);
        let what = format!("newest, {server}: a celebrity ÷ somebody popular");
        add(what, false, CELEBRITY_PAGE_MAX, pages);
        for (one, other) in CELEBRITY {
            let rates = row(one).zip(row(other));
            let rates = rates.map(|(one, other)| one.rate.median / other.rate.median);
            let what = format!("{} ÷ {}, {server}: rate", one.name(), other.name());
            add(what, true, CELEBRITY_RATE_MIN, rates);
        }
        let stall = row(Work::Follow256).map(|row| row.longest_ms - whole.machine.fsync_ms.longest);
        let what = format!("follow256, {server}: longest wait beyond the disk's own, ms");
        add(what, false, STALL_MS_MAX, stall);
        let open = whole.open.iter().find(|row| row.server == server);
        let what = format!("hydrate at half of the peak, {server}: p99, ms");
        add(what, false, P99_AT_HALF_MS_MAX, open.map(|row| row.p99_ms.median));
    }
    let held = |server: &str| whole.held.iter().find(|held| held.server == server);
    let memory = held("guanxi").zip(held("redis"));
    let memory = memory.map(|(own, redis)| own.resident_each() / redis.resident_each());
    add("resident memory ÷ Redis".to_owned(), false, MEMORY_MAX, memory);
    let disk = held("guanxi").map(Held::disk_each);
    add("disk per edge, bytes".to_owned(), false, DISK_BYTES_MAX, disk);
    for (after_kill, what, bound) in [
        (false, "start after a stop, s", CLEAN_START_S_MAX),
        (true, "start after kill -9, s", KILLED_START_S_MAX),
    ] {
        let starts = &mut whole.starts.iter();
        let start = starts.find(|row| row.server == "guanxi" && row.after_kill == after_kill);
        add(what.to_owned(), false, bound, start.map(|row| row.seconds.median));
    }
    for (how, bound) in IMPORTS {
        let import = whole.imports.iter().find(|row| row.how == how);
        add(format!("import {how}, lines a second"), true, bound, import.map(|row| row.rate));
    }
    aims
}

pub fn print(whole: &Whole) {
    println!();
    for aim in of(whole) {
        let (sign, word) =
            (if aim.at_least { ">=" } else { "<=" }, if aim.is_met() { "met" } else { "MISSED" });
        println!("{:<70} {:>8.2}  {sign} {:<6} {word}", aim.what, aim.found, aim.bound);
    }
}
