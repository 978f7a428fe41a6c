//! One measurement: a work, a server, for so long.

use std::time::Duration;

use crate::wire::load::{Load, Outcome};
use crate::wire::load::{Requests, Supply};
use crate::wire::peer::{self, Peer};
use crate::wire::question::{Asked, Question, READS_TO_A_PUT, Work};
use crate::wire::truth::Truth;

#[derive(Clone, Copy, clap::Args)]
pub struct Measuring {
    /// Callers that wait at once, where the work does not say it.
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// Length of each measurement.
    #[arg(long, default_value_t = 4.0)]
    pub seconds: f64,
    /// Before anything is counted.
    #[arg(long, default_value_t = 0.4)]
    pub warm_seconds: f64,
    /// Questions of a measurement, asked again and again.
    #[arg(long, default_value_t = 60_000)]
    pub questions: usize,
}

impl Measuring {
    /// The questions of a work: the reads are the same for the same seed.
    pub fn questions(&self, truth: &Truth, work: Work, seed: u64) -> Asked {
        // Longer than it lasts, as the end is looked for between answers.
        let seconds = self.seconds + 2.0 * self.warm_seconds;
        work.questions(&truth.graph, self.questions, seconds, seed)
    }

    /// Asks some, and compares the answers with the graph.
    pub fn compare(&self, peer: &dyn Peer, truth: &Truth, work: Work) -> anyhow::Result<()> {
        let few = Measuring { questions: self.questions.min(1_000), seconds: 0.01, ..*self };
        peer::compare(peer, truth, &mut few.questions(truth, work, 1))
    }

    /// With a rate, the open loop; else the closed one.
    pub fn measure(
        &self,
        peer: &dyn Peer,
        truth: &Truth,
        work: Work,
        asked: &Asked,
        rate: Option<f64>,
    ) -> anyhow::Result<Outcome> {
        let made = |questions: &[Question]| {
            let mut requests = Requests::default();
            for question in questions {
                requests.add(peer.replies(question), |to| peer.write(&truth.graph, question, to));
            }
            requests
        };
        let (reads, puts) = (made(&asked.reads), made(&asked.puts));
        let load = Load {
            address: peer.address(),
            pid: peer.pid(),
            protocol: peer.protocol(),
            connections: work.connections().unwrap_or(self.connections),
            warm: Duration::from_secs_f64(self.warm_seconds),
            time: Duration::from_secs_f64(self.seconds),
            supply: Supply::new(&reads, &puts, READS_TO_A_PUT),
            rate,
        };
        load.run()
    }
}
