//! Bars as SVG, by hand: groups of horizontal bars with their values, and a thin line from the
//! lowest to the highest of the rounds.

use std::fmt::Write as _;

use crate::wire::report::Spread;

const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 180.0;
const VALUE_WIDTH: f64 = 80.0;
const BAR_HEIGHT: f64 = 13.0;
const GROUP_GAP: f64 = 10.0;
const HEAD_HEIGHT: f64 = 62.0;
const LEGEND_WIDTH: f64 = 116.0;
const FONT: &str = "font-family=\"system-ui, sans-serif\"";

/// What bars of one colour stand for.
pub struct Series {
    pub name: String,
    pub colour: &'static str,
}

pub struct Group {
    pub label: String,
    /// By series; one that has none is left out.
    pub bars: Vec<Option<Spread>>,
}

pub fn bars(title: &str, series: &[Series], groups: &[Group]) -> String {
    let all = groups.iter().flat_map(|group| group.bars.iter().flatten());
    let greatest = all.map(|bar| bar.highest).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / greatest;
    let (mut drawn, mut top) = (String::new(), HEAD_HEIGHT);
    for group in groups {
        let height = BAR_HEIGHT * group.bars.iter().flatten().count() as f64;
        text(&mut drawn, LABEL_WIDTH - 8.0, top + height / 2.0 + 4.0, "end", &group.label);
        for (bar, series) in group.bars.iter().zip(series) {
            let Some(bar) = bar else { continue };
            one_bar(&mut drawn, top, bar, series.colour, scale);
            top += BAR_HEIGHT;
        }
        top += GROUP_GAP;
    }
    let mut legend = String::new();
    for (place, series) in series.iter().enumerate() {
        let left = 12.0 + LEGEND_WIDTH * place as f64;
        rectangle(&mut legend, left, 36.0, 10.0, 10.0, series.colour);
        text(&mut legend, left + 15.0, 45.0, "start", &series.name);
    }
    let title = escaped(title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {top}\" role=\"img\" \
         aria-label=\"{title}\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"12\" y=\"22\" {FONT} font-size=\"15\" font-weight=\"600\" \
         fill=\"#1f2328\">{title}</text>\n{legend}{drawn}</svg>\n"
    )
}

fn one_bar(to: &mut String, top: f64, bar: &Spread, colour: &str, scale: f64) {
    let width = bar.median * scale;
    rectangle(to, LABEL_WIDTH, top, width, BAR_HEIGHT - 2.0, colour);
    let middle = top + BAR_HEIGHT / 2.0 - 1.0;
    let (from, until) = (LABEL_WIDTH + bar.lowest * scale, LABEL_WIDTH + bar.highest * scale);
    let _written = writeln!(
        to,
        "<path d=\"M{from:.1} {middle:.1}H{until:.1}\" stroke=\"#1f2328\" stroke-width=\"1\"/>"
    );
    let end = LABEL_WIDTH + bar.highest.max(bar.median) * scale;
    text(to, end + 6.0, top + BAR_HEIGHT - 3.0, "start", &figure(bar.median));
}

fn rectangle(to: &mut String, left: f64, top: f64, width: f64, height: f64, colour: &str) {
    let _written = writeln!(
        to,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{colour}\"/>"
    );
}

fn text(to: &mut String, left: f64, bottom: f64, anchor: &str, text: &str) {
    let _written = writeln!(
        to,
        "<text x=\"{left:.1}\" y=\"{bottom:.1}\" {FONT} font-size=\"11\" \
         text-anchor=\"{anchor}\" fill=\"#1f2328\">{}</text>",
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// With as many digits as say something.
pub fn figure(value: f64) -> String {
    match value.abs() {
        large if large >= 999.5 => thousands(value.round() as i64),
        large if large >= 99.5 => format!("{value:.0}"),
        large if large >= 9.95 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut grouped = String::from(if value < 0 { "−" } else { "" });
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits_or_thousands() {
        let cases = [
            (0.123, "0.12"),
            (9.94, "9.94"),
            (9.96, "10.0"),
            (99.6, "100"),
            (999.4, "999"),
            (999.6, "1,000"),
            (1_234_567.0, "1,234,567"),
        ];
        for (value, text) in cases {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn the_longest_bar_fits() {
        let series = [Series { name: "a<b".to_owned(), colour: "#000" }];
        let bar = Spread { median: 10.0, lowest: 5.0, highest: 20.0 };
        let groups = [Group { label: "x".to_owned(), bars: vec![Some(bar)] }];
        let drawn = bars("t", &series, &groups);
        assert!(drawn.contains("width=\"250.0\" height=\"11.0\""), "{drawn}");
        assert!(drawn.contains("H680.0") && drawn.contains("a&lt;b"), "{drawn}");
    }
}
