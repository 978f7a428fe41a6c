//! The real binary on a data directory, loaded through its own command line.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use guanxi_services::Port;
use guanxi_tests::{Options, Server, rfc3339};

use crate::wire::graph::{Graph, KINDS, TALLIES};
use crate::wire::peer::Ending;

pub const HOST: &str = "127.0.0.1";
/// The data directory, below the program's own.
pub const DATA: &str = "data";

/// The service, whatever it is asked in.
pub struct Guanxi {
    pub server: Server,
    /// Where it speaks RESP, if it can.
    pub resp: Option<SocketAddr>,
}

impl Guanxi {
    pub fn start(directory: &Path) -> anyhow::Result<Guanxi> {
        static SPEAKS_RESP: OnceLock<bool> = OnceLock::new();
        let speaks = match SPEAKS_RESP.get() {
            Some(speaks) => *speaks,
            None => help(&["serve", "--help"])?.contains("--resp"),
        };
        let _known = SPEAKS_RESP.set(speaks);
        let mut options = Options::default();
        let mut resp = None;
        if speaks {
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

    /// Imports a file into the running service, through the command line as a newcomer would.
    pub fn import(&self, file: &Path) -> anyhow::Result<Duration> {
        let url = self.server.url();
        run_import(file, ["--server".as_ref(), url.as_ref()])
    }
}

/// Brings the graph into a data directory in the quickest way that the program has; how long the
/// edges took.
pub fn fill(directory: &Path, graph: &Graph) -> anyhow::Result<Duration> {
    let data = directory.join(DATA);
    let edges = directory.join("edges.csv");
    write_file(&edges, |to| {
        writeln!(to, "kind,source,target,since")?;
        each_edge(graph, |kind, source, target, since_ms| {
            writeln!(to, "{},{source},{target},{}", KINDS[kind], rfc3339(since_ms))
        })
    })?;
    let offline = imports_offline()?;
    let took = match offline {
        true => Some(run_import(&edges, ["--data-dir".as_ref(), data.as_os_str()])?),
        false => None,
    };
    let guanxi = Rc::new(Guanxi::start(&data)?);
    let took = match took {
        Some(took) => took,
        None => guanxi.import(&edges)?,
    };
    std::fs::remove_file(&edges)?;
    let counters = directory.join("counters.csv");
    write_file(&counters, |to| {
        writeln!(to, "type,kind,id,value")?;
        for post in 0..graph.counted_posts() {
            let id = graph.post_id(post);
            writeln!(to, "counter,{},{id},{}", TALLIES[2], graph.views(post))?;
            writeln!(to, "counter,{},{id},{}", TALLIES[3], graph.played(post))?;
        }
        Ok(())
    })?;
    guanxi.import(&counters)?;
    std::fs::remove_file(&counters)?;
    Guanxi::end(guanxi, Ending::Stop)?;
    Ok(took)
}

/// Whether the program can import into an empty directory.
pub fn imports_offline() -> anyhow::Result<bool> {
    Ok(help(&["import", "--help"])?.contains("--data-dir"))
}

pub fn run_import(file: &Path, to: [&OsStr; 2]) -> anyhow::Result<Duration> {
    let mut command = Command::new(guanxi_tests::binary());
    command.arg("import").arg(file).args(["--format", "csv"]).args(to);
    let begun = Instant::now();
    let ran = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&ran.stderr);
    anyhow::ensure!(ran.status.success(), "guanxi import: {}: {said}", ran.status);
    Ok(begun.elapsed())
}

pub fn write_file(
    file: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let mut to = BufWriter::with_capacity(1 << 20, File::create(file)?);
    write(&mut to)?;
    Ok(to.flush()?)
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
