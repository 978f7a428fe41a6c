//! The part about how Guanxi grows.

use std::fmt::Write as _;

use super::tables::machine;
use super::{Part, picture};
use crate::wire::plot::{Group, Series, bars, figure};
use crate::wire::report::{Growth, SizeRow, Spread};

const COLOURS: [&str; 4] = ["#7fb0d8", "#2f7fb8", "#12436d", "#0b2540"];

pub fn part(growth: &Growth) -> Part {
    let Growth { date, rounds, seconds, sizes, .. } = growth;
    let names: Vec<String> =
        sizes.iter().map(|size| format!("{} edges", figure(size.held.edges as f64))).collect();
    let mut text = format!(
        "## As it grows\n\nGuanxi over HTTP at several sizes, all running at once and measured in \
         turns: microseconds of its processor time for a request, in brackets over the smallest \
         size in the same round. On {date}, {rounds} round(s) of {seconds} s.\n\n"
    );
    text.push_str(&machine(&growth.machine));
    let _written = writeln!(text, "| | {} |", names.join(" | "));
    let _written = writeln!(text, "|---|{}", "---|".repeat(names.len()));
    let works = sizes.first().map_or(&[][..], |size| &size.cpu_us);
    for (place, (work, _)) in works.iter().enumerate() {
        let cells = sizes.iter().map(|size| {
            let median = figure(size.cpu_us[place].1.median);
            format!("{median} ({})", size.over_smallest[place].1)
        });
        line(&format!("{work}, µs"), cells, &mut text);
    }
    let one = |name: &str, of: &dyn Fn(&SizeRow) -> String, to: &mut String| {
        line(name, sizes.iter().map(of), to);
    };
    one("disk bytes an edge", &|size| figure(size.held.disk_each()), &mut text);
    one("resident bytes an edge", &|size| figure(size.held.resident_each()), &mut text);
    one("loaded a second", &|size| figure(size.held.load_rate), &mut text);
    one("start after a stop, s", &|size| size.clean_start_s.to_string(), &mut text);
    one("start after kill -9, s", &|size| size.killed_start_s.to_string(), &mut text);
    let title = "Processor time of a request at several sizes, µs";
    let _written = write!(text, "\n{}", picture("growth.svg", title));
    let series = names.into_iter().zip(COLOURS).map(|(name, colour)| Series { name, colour });
    let groups = works.iter().enumerate().map(|(place, (work, _))| Group {
        label: work.clone(),
        bars: sizes.iter().map(|size| Some(size.cpu_us[place].1)).collect::<Vec<Option<Spread>>>(),
    });
    let plot = bars(title, &series.collect::<Vec<_>>(), &groups.collect::<Vec<_>>());
    Part { text, plots: vec![("growth.svg", plot)] }
}

fn line(name: &str, cells: impl Iterator<Item = String>, to: &mut String) {
    let cells: Vec<String> = cells.collect();
    let _written = writeln!(to, "| {name} | {} |", cells.join(" | "));
}
