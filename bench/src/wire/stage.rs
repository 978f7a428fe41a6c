//! The servers with the graph in them: started, filled, kept for the next run where that is asked,
//! stopped and started again.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use tempfile::TempDir;

use crate::wire::graph::Graph;
use crate::wire::peer::grpc::GrpcPeer;
use crate::wire::peer::guanxi::{self, Guanxi};
use crate::wire::peer::http::HttpPeer;
use crate::wire::peer::mariadb::MariaDbPeer;
use crate::wire::peer::redis::RedisPeer;
use crate::wire::peer::resp::RespPeer;
use crate::wire::peer::{Ending, Peer};

/// Written into a server's directory when all is in it: edges per second of the load.
const LOADED: &str = "loaded";

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Who {
    Redis,
    Mariadb,
    GuanxiHttp,
    GuanxiGrpc,
    GuanxiResp,
}

/// Where servers keep what they are given.
pub struct Place {
    base: PathBuf,
    _temporary: Option<TempDir>,
}

/// A program with its directory, whatever protocols it is asked in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    Redis,
    MariaDb,
    Guanxi,
}

pub struct Stage {
    pub peers: Vec<Box<dyn Peer>>,
    pub programs: Vec<Standing>,
}

/// A program that runs.
pub struct Standing {
    pub program: Program,
    pub directory: PathBuf,
    pub pid: u32,
    pub load_rate: f64,
}

impl Place {
    /// A temporary one, unless it is to be kept.
    pub fn of(keep: Option<&Path>) -> anyhow::Result<Place> {
        Ok(match keep {
            Some(base) => {
                std::fs::create_dir_all(base)?;
                // Servers are told of it, and run elsewhere.
                Place { base: base.canonicalize()?, _temporary: None }
            }
            None => {
                let temporary = TempDir::with_prefix("guanxi-bench-")?;
                Place { base: temporary.path().to_path_buf(), _temporary: Some(temporary) }
            }
        })
    }

    pub fn path(&self) -> &Path {
        &self.base
    }

    /// Empty, if it was not filled to the end.
    fn directory(&self, program: Program, graph: &Graph) -> anyhow::Result<PathBuf> {
        let name = format!("{}-{}-{}", program.name(), graph.edges(), graph.users());
        let path = self.base.join(name);
        if path.exists() && !path.join(LOADED).exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Who {
    fn program(self) -> Program {
        match self {
            Who::Redis => Program::Redis,
            Who::Mariadb => Program::MariaDb,
            Who::GuanxiHttp | Who::GuanxiGrpc | Who::GuanxiResp => Program::Guanxi,
        }
    }
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Redis => "redis",
            Program::MariaDb => "mariadb",
            Program::Guanxi => "guanxi",
        }
    }

    /// Starts it on its directory, and fills that if it is empty. The first of the peers is always
    /// there.
    pub fn start(
        self,
        directory: &Path,
        graph: &Graph,
        servers: &[Who],
    ) -> anyhow::Result<(Vec<Box<dyn Peer>>, f64)> {
        let rate;
        let mut peers: Vec<Box<dyn Peer>> = Vec::new();
        match self {
            Program::Redis => {
                let redis = RedisPeer::start(directory)?;
                rate = self.fill_once(directory, graph, || timed(|| redis.load(graph)))?;
                peers.push(Box::new(redis));
            }
            Program::MariaDb => {
                let mariadb = MariaDbPeer::start(directory)?;
                rate = self.fill_once(directory, graph, || timed(|| mariadb.load(graph)))?;
                peers.push(Box::new(mariadb));
            }
            Program::Guanxi => {
                rate = self.fill_once(directory, graph, || guanxi::fill(directory, graph))?;
                let guanxi = Rc::new(Guanxi::start(&directory.join(guanxi::DATA))?);
                if servers.contains(&Who::GuanxiHttp) {
                    peers.push(Box::new(HttpPeer(guanxi.clone())));
                }
                if servers.contains(&Who::GuanxiGrpc) {
                    peers.push(Box::new(GrpcPeer(guanxi.clone())));
                }
                if let Some(address) = guanxi.resp.filter(|_| servers.contains(&Who::GuanxiResp)) {
                    peers.push(Box::new(RespPeer { guanxi: guanxi.clone(), address }));
                }
            }
        }
        anyhow::ensure!(!peers.is_empty(), "{} speaks nothing that was asked for", self.name());
        Ok((peers, rate))
    }

    fn fill_once(
        self,
        directory: &Path,
        graph: &Graph,
        fill: impl FnOnce() -> anyhow::Result<Duration>,
    ) -> anyhow::Result<f64> {
        let loaded = directory.join(LOADED);
        if let Ok(rate) = std::fs::read_to_string(&loaded) {
            return Ok(rate.trim().parse()?);
        }
        let took = fill().with_context(|| format!("filling {}", self.name()))?;
        let seconds = took.as_secs_f64();
        let rate = graph.all_edges() as f64 / seconds;
        eprintln!("{}: {} edges in {seconds:.1} s, {rate:.0}/s", self.name(), graph.all_edges());
        std::fs::write(loaded, format!("{rate:.0}\n"))?;
        Ok(rate)
    }
}

fn timed(act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    act()?;
    Ok(begun.elapsed())
}

impl Stage {
    pub fn set(place: &Place, graph: &Graph, servers: &[Who]) -> anyhow::Result<Stage> {
        let mut stage = Stage { peers: Vec::new(), programs: Vec::new() };
        for program in [Program::Redis, Program::MariaDb, Program::Guanxi] {
            if servers.iter().any(|who| who.program() == program) {
                let directory = place.directory(program, graph)?;
                let (peers, load_rate) = program.start(&directory, graph, servers)?;
                let pid = peers.first().context("a peer of each program")?.pid();
                stage.peers.extend(peers);
                stage.programs.push(Standing { program, directory, pid, load_rate });
            }
        }
        Ok(stage)
    }

    /// Stops all as an operator would, so that what is kept is whole.
    pub fn end(self) -> anyhow::Result<()> {
        self.peers.into_iter().try_for_each(|peer| peer.end(Ending::Stop))
    }
}
