//! How far a long command is: a bar with rate and time left on stderr, for a person at a
//! terminal only.

use std::fmt;

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use super::output::Output;

/// Redraws per second: enough for the eye, nothing for the processor.
const DRAWS_PER_SECOND: u8 = 10;

#[derive(Debug)]
pub struct ProgressLine(ProgressBar);

impl ProgressLine {
    /// `total` when it is known how much there is to do. indicatif draws on a terminal only.
    pub fn new(output: &Output, what: &str, total: Option<u64>) -> ProgressLine {
        let target = match output.json() {
            true => ProgressDrawTarget::hidden(),
            false => ProgressDrawTarget::stderr_with_hz(DRAWS_PER_SECOND),
        };
        let template = match total {
            Some(_) => "{msg}  {wide_bar} {human_pos}/{human_len}  {rate}  {eta} left",
            None => "{msg}  {spinner} {human_pos}  {rate}  {elapsed}",
        };
        let bar = ProgressBar::with_draw_target(total, target).with_message(what.to_owned());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("rate", rate));
        }
        ProgressLine(bar)
    }

    /// Tells more beside the bar.
    pub fn say(&self, what: String) {
        self.0.set_message(what);
    }

    /// A line on stderr, above the bar where there is one.
    pub fn line(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }

    pub fn advance(&self, by: u64) {
        self.0.inc(by);
    }

    /// Takes the bar away; so does dropping it.
    pub fn finish(self) {
        drop(self);
    }
}

/// Whole items per second; nobody reads the fractions.
fn rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    // A bar that could not be written is only not seen.
    let _ = write!(out, "{}/s", HumanCount(state.per_sec() as u64));
}

impl Drop for ProgressLine {
    /// What is printed next, an error perhaps, must stand alone.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
