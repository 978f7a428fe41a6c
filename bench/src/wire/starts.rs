//! How long a server takes from its start to the first right answer: after a stop, and after
//! kill -9 in the middle of writing. The system may still have its files in memory.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;

use crate::wire::measuring::Measuring;
use crate::wire::peer::{Ending, Peer, compare_first};
use crate::wire::question::Work;
use crate::wire::report::Spread;
use crate::wire::stage::{Program, Who};
use crate::wire::truth::Truth;

/// How long the killed server was written to.
const WRITING_SECONDS: f64 = 3.0;

/// The seconds of both kinds of start: after a stop, after kill -9.
pub fn measure(
    program: Program,
    directory: &Path,
    truth: &Truth,
    servers: &[Who],
    rounds: usize,
) -> anyhow::Result<(Spread, Spread)> {
    let (mut stopped, mut killed) = (Vec::new(), Vec::new());
    start(program, directory, truth, servers)?.0.end(Ending::Stop)?;
    for _ in 0..rounds {
        let (peer, seconds) = start(program, directory, truth, servers)?;
        stopped.push(seconds);
        write(peer.as_ref(), truth)?;
        peer.end(Ending::Kill)?;
        let (peer, seconds) = start(program, directory, truth, servers)?;
        killed.push(seconds);
        peer.end(Ending::Stop)?;
    }
    Ok((Spread::of(&stopped), Spread::of(&killed)))
}

/// Starts it, and asks until the first right answer has come.
fn start(
    program: Program,
    directory: &Path,
    truth: &Truth,
    servers: &[Who],
) -> anyhow::Result<(Box<dyn Peer>, f64)> {
    let questions = Work::Hydrate.questions(&truth.graph, 1, 0.0, fastrand::u64(..));
    let question = questions.reads.first().context("a question")?;
    let begun = Instant::now();
    let (mut peers, _) = program.start(directory, &truth.graph, servers)?;
    let peer = peers.swap_remove(0);
    compare_first(peer.as_ref(), truth, question)?;
    Ok((peer, begun.elapsed().as_secs_f64()))
}

fn write(peer: &dyn Peer, truth: &Truth) -> anyhow::Result<()> {
    let writing =
        Measuring { connections: 64, seconds: WRITING_SECONDS, warm_seconds: 0.1, questions: 1 };
    let work = Work::Follow64;
    let asked = writing.questions(truth, work, 1);
    writing.measure(peer, truth, work, &asked, None)?;
    Ok(())
}
