//! The real binary on a data directory, loaded through its own command line.

use std::io::{BufWriter, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context as _;
use guanxi_services::Port;
use guanxi_tests::{Options, Server, rfc3339};

use super::graph::{Graph, KINDS, TALLIES};
use super::peer::Ending;

pub const HOST: &str = "127.0.0.1";

/// The service, whatever it is asked in.
pub struct Guanxi {
    pub server: Server,
    /// Where it speaks RESP, if it can.
    pub resp: Option<SocketAddr>,
}

impl Guanxi {
    pub fn start(directory: &Path) -> anyhow::Result<Guanxi> {
        let mut options = Options::default();
        let mut resp = None;
        if help(&["serve", "--help"])?.contains("--resp") {
            let port = Port::free();
            let address = format!("{HOST}:{}", port.number());
            resp = Some(address.parse()?);
            options.arguments = vec!["--resp".to_owned(), address];
            options.port = Some(Arc::new(port));
        }
        let server =
            Server::try_start_in_with(directory, options).map_err(|said| anyhow::anyhow!(said))?;
        Ok(Guanxi { server, resp })
    }

    /// Ends it, if nobody else asks it.
    pub fn end(guanxi: Rc<Guanxi>, ending: Ending) -> anyhow::Result<()> {
        let Some(guanxi) = Rc::into_inner(guanxi) else { return Ok(()) };
        let stopped = match ending {
            Ending::Stop => guanxi.server.terminate(),
            Ending::Kill => guanxi.server.kill(),
        };
        let well = ending == Ending::Kill || stopped.status.success();
        anyhow::ensure!(well, "guanxi stopped with {}: {}", stopped.status, stopped.log);
        Ok(())
    }

    /// Sends the graph to the running service through the command line, as a newcomer would.
    pub fn load(&self, graph: &Graph) -> anyhow::Result<()> {
        self.import(|to| {
            writeln!(to, "kind,source,target,since")?;
            each_edge(graph, |kind, source, target, since_ms| {
                writeln!(to, "{},{source},{target},{}", KINDS[kind], rfc3339(since_ms))
            })
        })?;
        self.import(|to| {
            writeln!(to, "type,kind,id,value")?;
            for post in 0..graph.counted_posts() {
                let id = graph.post_id(post);
                writeln!(to, "counter,{},{id},{}", TALLIES[2], graph.views(post))?;
                writeln!(to, "counter,{},{id},{}", TALLIES[3], graph.played(post))?;
            }
            Ok(())
        })
    }

    fn import(
        &self,
        write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut command = Command::new(guanxi_tests::binary());
        let url = self.server.url();
        command.args(["import", "-", "--format", "csv", "--server", &url]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let to = child.stdin.take().context("its input is piped")?;
        let mut to = BufWriter::with_capacity(1 << 20, to);
        let written = write(&mut to).and_then(|()| to.flush());
        drop(to);
        let status = child.wait()?;
        anyhow::ensure!(status.success(), "guanxi import: {status}");
        Ok(written?)
    }
}

/// All edges, in the order in which nobody sorted them.
fn each_edge(
    graph: &Graph,
    mut write: impl FnMut(usize, u64, u64, u64) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for user in 0..graph.users() {
        for kind in 0..KINDS.len() {
            for edge in graph.outgoing(kind, user) {
                let target = graph.target_id(kind, edge.target);
                write(kind, graph.user_id(edge.source), target, edge.since_ms)?;
            }
        }
    }
    Ok(())
}

fn help(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(guanxi_tests::binary()).args(arguments).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
