//! The servers with the graph in them, started and filled, and kept for the next run where that is
//! asked.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use anyhow::Context as _;
use tempfile::TempDir;

use super::Who;
use super::graph::Graph;
use super::grpc_peer::GrpcPeer;
use super::guanxi::Guanxi;
use super::http_peer::HttpPeer;
use super::mariadb_peer::MariaDbPeer;
use super::peer::Peer;
use super::redis_peer::RedisPeer;
use super::resp_peer::RespPeer;

/// Written into a server's directory when all is in it.
const LOADED: &str = "loaded";

pub struct Stage {
    peers: Vec<Box<dyn Peer>>,
    guanxi: Option<Rc<Guanxi>>,
    _temporary: Option<TempDir>,
}

impl Stage {
    pub fn set(graph: &Graph, keep: Option<&Path>, servers: &[Who]) -> anyhow::Result<Stage> {
        let (base, temporary) = match keep {
            Some(base) => (base.to_path_buf(), None),
            None => {
                let temporary = TempDir::with_prefix("guanxi-bench-")?;
                (temporary.path().to_path_buf(), Some(temporary))
            }
        };
        let mut stage = Stage { peers: Vec::new(), guanxi: None, _temporary: temporary };
        if servers.contains(&Who::Redis) {
            let directory = Directory::of(&base, "redis", graph)?;
            let redis = RedisPeer::start(&directory.path)?;
            directory.fill_once(graph, || redis.load(graph))?;
            stage.peers.push(Box::new(redis));
        }
        if servers.contains(&Who::Mariadb) {
            let directory = Directory::of(&base, "mariadb", graph)?;
            let mariadb = MariaDbPeer::start(&directory.path)?;
            directory.fill_once(graph, || mariadb.load(graph))?;
            stage.peers.push(Box::new(mariadb));
        }
        let guanxi = [Who::GuanxiHttp, Who::GuanxiGrpc, Who::GuanxiResp];
        if servers.iter().any(|who| guanxi.contains(who)) {
            let directory = Directory::of(&base, "guanxi", graph)?;
            let guanxi = Rc::new(Guanxi::start(&directory.path.join("data"))?);
            directory.fill_once(graph, || guanxi.load(graph))?;
            if servers.contains(&Who::GuanxiHttp) {
                stage.peers.push(Box::new(HttpPeer(guanxi.clone())));
            }
            if servers.contains(&Who::GuanxiGrpc) {
                stage.peers.push(Box::new(GrpcPeer(guanxi.clone())));
            }
            if let Some(address) = guanxi.resp.filter(|_| servers.contains(&Who::GuanxiResp)) {
                stage.peers.push(Box::new(RespPeer { guanxi: guanxi.clone(), address }));
            }
            stage.guanxi = Some(guanxi);
        }
        Ok(stage)
    }

    pub fn peers(&self) -> &[Box<dyn Peer>] {
        &self.peers
    }

    /// Stops Guanxi as an operator would, so that what is kept starts quickly. Redis keeps every
    /// write anyway.
    pub fn end(self) -> anyhow::Result<()> {
        let Stage { peers, guanxi, .. } = self;
        drop(peers);
        if let Some(guanxi) = guanxi {
            let guanxi = Rc::into_inner(guanxi).context("nobody else has the service")?;
            guanxi.server.terminate();
        }
        Ok(())
    }
}

struct Directory {
    name: &'static str,
    path: PathBuf,
}

impl Directory {
    /// Empty, if it was not filled to the end.
    fn of(base: &Path, name: &'static str, graph: &Graph) -> anyhow::Result<Directory> {
        let path = base.join(format!("{name}-{}-{}", graph.edges(), graph.users()));
        if path.exists() && !path.join(LOADED).exists() {
            std::fs::remove_dir_all(&path)?;
        }
        std::fs::create_dir_all(&path)?;
        // Servers are told of it, and run elsewhere.
        Ok(Directory { name, path: path.canonicalize()? })
    }

    fn fill_once(
        &self,
        graph: &Graph,
        fill: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let loaded = self.path.join(LOADED);
        if loaded.exists() {
            return Ok(());
        }
        let begun = Instant::now();
        fill().with_context(|| format!("filling {}", self.name))?;
        let edges = 3 * graph.edges();
        let seconds = begun.elapsed().as_secs_f64();
        let rate = edges as f64 / seconds;
        eprintln!("{}: {edges} edges in {seconds:.1} s, {rate:.0}/s", self.name);
        Ok(std::fs::write(loaded, format!("{rate:.0}\n"))?)
    }
}
