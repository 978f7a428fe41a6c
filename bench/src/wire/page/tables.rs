//! The tables and plots of a whole run.

use std::fmt::Write as _;

use super::{Part, colour, picture, shown};
use crate::wire::aims;
use crate::wire::plot::{Group, Series, bars, figure};
use crate::wire::report::{Held, Machine, OpenRow, Spread, StartRow, Whole, WorkRow};

/// In the order of tables and plots.
const SERVERS: [&str; 5] = ["redis", "mariadb", "guanxi-http", "guanxi-grpc", "guanxi-resp"];
/// A work of 64 would make all other bars short.
const NOT_PLOTTED: &str = "hydrate64";
const WRITES: [&str; 4] = ["follow64", "follow256", "celebrity64", "celebrity256"];

pub fn part(whole: &Whole) -> Part {
    let mut part = Part::default();
    where_measured(whole, &mut part.text);
    processor_time(whole, &mut part);
    writes(whole, &mut part);
    at_half(whole, &mut part);
    held(whole, &mut part);
    starts(whole, &mut part.text);
    imports(whole, &mut part.text);
    if !whole.quick {
        aimed(whole, &mut part.text);
    }
    all_figures(whole, &mut part.text);
    part
}

pub fn machine(machine: &Machine) -> String {
    let Machine { processor, cores, memory_gib, kernel, versions, fsync_ms } = machine;
    let versions = versions.iter().map(|(name, version)| format!("| {name} | `{version}` |\n"));
    format!(
        "| | |\n|---|---|\n| processor | {processor}, {cores} cores |\n| memory | {memory_gib} GiB |\n\
         | system | {kernel} |\n| disk alone, 8 KiB and fdatasync | p50 {} ms, p99 {} ms, longest {} ms |\n{}\n",
        figure(fsync_ms.p50),
        figure(fsync_ms.p99),
        figure(fsync_ms.longest),
        versions.collect::<String>()
    )
}

fn where_measured(whole: &Whole, to: &mut String) {
    let Whole { date, edges, users, connections, rounds, seconds, .. } = whole;
    to.push_str("## Where\n\n");
    if whole.quick {
        to.push_str("**A short run of a small graph, to see that all of it works: its figures say little.**\n\n");
    }
    to.push_str(&machine(&whole.machine));
    let (edges, users) = (figure(*edges as f64), figure(f64::from(*users)));
    let _written = writeln!(
        to,
        "On {date}: {edges} edges of {users} users, {connections} connections, {rounds} round(s) \
         of {seconds} s for each work and server.\n"
    );
}

fn servers(whole: &Whole) -> Vec<&'static str> {
    let has = |server: &&str| whole.works.iter().any(|row| row.server == *server);
    SERVERS.into_iter().filter(has).collect()
}

fn works(whole: &Whole) -> Vec<&str> {
    let mut works: Vec<&str> = Vec::new();
    for row in &whole.works {
        if !works.contains(&row.work.as_str()) {
            works.push(&row.work);
        }
    }
    works
}

fn series(servers: &[&'static str]) -> Vec<Series> {
    let one =
        |server: &&'static str| Series { name: shown(server).to_owned(), colour: colour(server) };
    servers.iter().map(one).collect()
}

fn groups(
    whole: &Whole,
    works: &[&str],
    servers: &[&'static str],
    of: impl Fn(&WorkRow) -> Spread,
) -> Vec<Group> {
    let group = |work: &&str| Group {
        label: (*work).to_owned(),
        bars: servers.iter().map(|server| whole.row(work, server).map(&of)).collect(),
    };
    works.iter().map(group).collect()
}

fn header(first: &str, servers: &[&'static str], to: &mut String) {
    let names: Vec<&str> = servers.iter().map(|server| shown(server)).collect();
    let _written = writeln!(to, "| {first} | {} |", names.join(" | "));
    let _written = writeln!(to, "|---|{}", "---|".repeat(servers.len()));
}

fn processor_time(whole: &Whole, part: &mut Part) {
    let (servers, works) = (servers(whole), works(whole));
    let text = &mut part.text;
    text.push_str(
        "## Processor time of a request\n\nMicroseconds of the server's processor time for each \
         request; in brackets over that of Redis in the same round.\n\n",
    );
    header("work", &servers, text);
    for work in &works {
        let cells = servers.iter().map(|server| {
            let Some(row) = whole.row(work, server) else { return "–".to_owned() };
            let median = figure(row.cpu_us.median);
            match row.over("redis") {
                Some(over) => format!("{median} ({})", over.cpu),
                None => median,
            }
        });
        let _written = writeln!(text, "| {work} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text.push('\n');
    let plotted: Vec<&str> = works.into_iter().filter(|work| *work != NOT_PLOTTED).collect();
    let groups = groups(whole, &plotted, &servers, |row| row.cpu_us);
    let title = "Processor time of the server for a request, µs";
    text.push_str(&picture("processor-time.svg", title));
    part.plots.push(("processor-time.svg", bars(title, &series(&servers), &groups)));
}

fn writes(whole: &Whole, part: &mut Part) {
    let servers = servers(whole);
    let works: Vec<&str> = works(whole).into_iter().filter(|work| WRITES.contains(work)).collect();
    if works.is_empty() {
        return;
    }
    let text = &mut part.text;
    text.push_str("## Durable writes\n\nFollows a second, each on disk before it is answered; in brackets over Redis in the same round.\n\n");
    header("work", &servers, text);
    for work in &works {
        let cells = servers.iter().map(|server| {
            let Some(row) = whole.row(work, server) else { return "–".to_owned() };
            let median = figure(row.rate.median);
            match row.over("redis") {
                Some(over) => format!("{median} ({})", over.rate),
                None => median,
            }
        });
        let _written = writeln!(text, "| {work} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    text.push('\n');
    let title = "Durable follows a second";
    text.push_str(&picture("durable-writes.svg", title));
    let groups = groups(whole, &works, &servers, |row| row.rate);
    part.plots.push(("durable-writes.svg", bars(title, &series(&servers), &groups)));
}

fn at_half(whole: &Whole, part: &mut Part) {
    let text = &mut part.text;
    text.push_str(
        "## Latency at half of the peak\n\nHydrates at a steady rate, half of what the server \
         reached in the closed loop. A latency begins when the request was due, whether or not a \
         connection was free.\n\n| server | a second | p50 ms | p99 ms | p99.9 ms |\n|---|---|---|---|---|\n",
    );
    for row in &whole.open {
        let (server, rate) = (shown(&row.server), figure(row.rate));
        let _written = writeln!(
            text,
            "| {server} | {rate} | {} | {} | {} |",
            row.p50_ms, row.p99_ms, row.p999_ms
        );
    }
    text.push('\n');
    let title = "p99 of hydrate at half of the peak, ms";
    text.push_str(&picture("latency.svg", title));
    let series = [Series { name: "p99, ms".to_owned(), colour: colour("guanxi-http") }];
    let group = |row: &OpenRow| Group {
        label: shown(&row.server).to_owned(),
        bars: vec![Some(row.p99_ms)],
    };
    let groups: Vec<Group> = whole.open.iter().map(group).collect();
    part.plots.push(("latency.svg", bars(title, &series, &groups)));
}

fn held(whole: &Whole, part: &mut Part) {
    let text = &mut part.text;
    text.push_str(
        "## Memory and disk\n\nOf the whole graph, after loading it and some hydrates; everything \
         on disk counts, logs too; that of Redis was rewritten just before.\n\n| server | resident bytes an edge | disk bytes an edge | \
         loaded a second |\n|---|---|---|---|\n",
    );
    for held in &whole.held {
        let _written = writeln!(
            text,
            "| {} | {} | {} | {} |",
            shown(&held.server),
            figure(held.resident_each()),
            figure(held.disk_each()),
            figure(held.load_rate)
        );
    }
    text.push('\n');
    let title = "Bytes an edge";
    text.push_str(&picture("bytes.svg", title));
    let series = ["memory", "disk"].into_iter().zip([colour("guanxi-resp"), colour("guanxi-grpc")]);
    let series: Vec<Series> =
        series.map(|(name, colour)| Series { name: name.to_owned(), colour }).collect();
    let group = |held: &Held| Group {
        label: shown(&held.server).to_owned(),
        bars: [held.resident_each(), held.disk_each()].map(|it| Some(Spread::of(&[it]))).to_vec(),
    };
    let groups: Vec<Group> = whole.held.iter().map(group).collect();
    part.plots.push(("bytes.svg", bars(title, &series, &groups)));
}

fn starts(whole: &Whole, to: &mut String) {
    to.push_str(
        "## Start\n\nSeconds from the start of the process to the first right answer to a hydrate. \
         The files may still be in the system's memory. Before kill -9 there were follows under \
         way.\n\n| server | after a stop | after kill -9 |\n|---|---|---|\n",
    );
    for stopped in whole.starts.iter().filter(|row| !row.after_kill) {
        let is_same = |row: &&StartRow| row.after_kill && row.server == stopped.server;
        let killed = whole.starts.iter().find(is_same);
        let killed = killed.map_or_else(|| "–".to_owned(), |row| row.seconds.to_string());
        let _written =
            writeln!(to, "| {} | {} | {killed} |", shown(&stopped.server), stopped.seconds);
    }
    to.push('\n');
}

fn imports(whole: &Whole, to: &mut String) {
    to.push_str("## Import\n\nFiles of follows in CSV, read by `guanxi import`.\n\n| | lines | lines a second |\n|---|---|---|\n");
    for row in &whole.imports {
        let (lines, rate) = (figure(row.lines as f64), figure(row.rate));
        let _written = writeln!(to, "| {} | {lines} | {rate} |", row.how);
    }
    to.push('\n');
}

fn aimed(whole: &Whole, to: &mut String) {
    to.push_str("## What we aim at\n\n| aim | bound | found | |\n|---|---|---|---|\n");
    for aim in aims::of(whole) {
        let sign = if aim.at_least { "≥" } else { "≤" };
        let word = if aim.is_met() { "met" } else { "**missed**" };
        let found = figure(aim.found);
        let _written = writeln!(to, "| {} | {sign} {} | {found} | {word} |", aim.what, aim.bound);
    }
    to.push('\n');
}

fn all_figures(whole: &Whole, to: &mut String) {
    to.push_str(
        "## All works\n\n| work | server | a second | p50 ms | p99 ms | p99.9 ms | µs of processor | \
         ÷ Redis | ÷ MariaDB |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for row in &whole.works {
        let over =
            |peer: &str| row.over(peer).map_or_else(|| "–".to_owned(), |over| over.cpu.to_string());
        let _written = writeln!(
            to,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.work,
            shown(&row.server),
            figure(row.rate.median),
            figure(row.p50_ms),
            figure(row.p99_ms),
            figure(row.p999_ms),
            row.cpu_us,
            over("redis"),
            over("mariadb")
        );
    }
    to.push('\n');
}
