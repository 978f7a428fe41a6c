//! Both sides compared after an import. Every edge of the source is looked up in the server; then,
//! for every node of the source, what the server has is looked up in the source. Both go in pages,
//! so it takes no memory to speak of, however large they are.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use guanxi_api::check::{Checks, PairChecked};
use guanxi_api::lists::List;
use guanxi_api::state::WireState;
use serde::Serialize;
use serde_json::{Value, json};

use super::flags::ImportOrder;
use super::{ListSide, SourceFinding, SourceItem, SourceNode, SourceReader, readers};
use crate::cli::CommandContext;
use crate::cli::client::path;
use crate::cli::interrupt::Interrupt;
use crate::cli::output::{Output, Style};
use crate::cli::progress::ProgressLine;
use crate::failure::Failure;

/// Pairs that one call checks, and items of a page.
const PAIRS_MAX: usize = 1_000;
/// Differences that the report names; the rest are counted.
const NAMED_MAX: usize = 100;
/// Differences that are shown to a person.
const SHOWN_MAX: usize = 10;
/// How long a server that is busy is asked again, and after which pause.
const BUSY_MAX: Duration = Duration::from_secs(60);
const BUSY_PAUSE: Duration = Duration::from_millis(500);

#[derive(Debug, Default, Serialize)]
pub struct VerifiedImport {
    /// Edges of the source that were looked up.
    edges: u64,
    /// Nodes of which the server's edges were looked up.
    nodes: u64,
    /// Edges that the server does not have.
    missing: u64,
    /// Edges that the source does not have.
    extra: u64,
    /// Edges that are live on one side and pending on the other.
    different: u64,
    /// The first of them.
    differences: Vec<EdgeDifference>,
    /// Collects all of them.
    #[serde(skip)]
    file: Option<(PathBuf, BufWriter<File>)>,
}

#[derive(Debug, Serialize)]
struct EdgeDifference {
    what: &'static str,
    source: Option<String>,
    target: Option<String>,
    /// The state in the source.
    there: Option<String>,
    /// The state in the server.
    here: Option<String>,
}

impl VerifiedImport {
    pub fn differences(&self) -> u64 {
        self.missing + self.extra + self.different
    }

    fn new(file: Option<&Path>) -> Result<VerifiedImport, Failure> {
        let Some(path) = file else {
            return Ok(VerifiedImport::default());
        };
        let file = File::create(path)
            .map_err(|error| Failure::usage(format!("cannot write {}: {error}", path.display())))?;
        let file = Some((path.to_owned(), BufWriter::new(file)));
        Ok(VerifiedImport { file, ..VerifiedImport::default() })
    }

    fn take(&mut self, difference: EdgeDifference) -> Result<(), Failure> {
        match difference.what {
            "missing" => self.missing += 1,
            "extra" => self.extra += 1,
            _ => self.different += 1,
        }
        if let Some((path, file)) = &mut self.file {
            writeln!(file, "{}", json!(difference)).map_err(|error| full(path, &error))?;
        }
        if self.differences.len() < NAMED_MAX {
            self.differences.push(difference);
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) => file.flush().map_err(|error| full(path, &error)),
            None => Ok(()),
        }
    }

    pub fn show(&self, output: &mut Output) -> Result<(), Failure> {
        if output.json() {
            return Ok(());
        }
        for difference in self.differences.iter().take(SHOWN_MAX) {
            let EdgeDifference { what, source, target, there, here } = difference;
            let [source, target] = [source, target].map(|end| end.as_deref().unwrap_or("NULL"));
            let [there, here] = [there, here].map(|state| state.as_deref().unwrap_or("none"));
            let line = format!("{what}: {source} → {target} ({there} there, {here} here)");
            output.line(&crate::cli::output::printable(&line))?;
        }
        let VerifiedImport { edges, nodes, missing, extra, different, .. } = self;
        let said = match self.differences() {
            0 => format!(
                "verified: {edges} edges of the source are here, and no others of its {nodes} nodes"
            ),
            _ => format!(
                "verified: of {edges} edges of the source {missing} are missing and {different} \
                 have another state; {extra} are here and not there"
            ),
        };
        let style = if self.differences() == 0 { Style::Good } else { Style::Bad };
        let said = output.paint(style, &said).into_owned();
        output.line(&said)
    }
}

/// Walks both sides.
pub fn run(
    asked: &ImportOrder,
    context: &mut CommandContext,
    interrupt: &Interrupt,
) -> Result<VerifiedImport, Failure> {
    let progress = ProgressLine::new(&context.output, "verifying", None);
    let mut reader = readers::open(asked)?;
    let mut verified = VerifiedImport::new(asked.differences.as_deref())?;
    let mut walk = Comparison { asked, context, interrupt };
    walk.source_to_server(reader.as_mut(), &mut verified, &progress)?;
    walk.server_to_source(reader.as_mut(), &mut verified, &progress)?;
    progress.finish();
    verified.finish()?;
    Ok(verified)
}

struct Comparison<'a> {
    asked: &'a ImportOrder,
    context: &'a CommandContext,
    interrupt: &'a Interrupt,
}

impl Comparison<'_> {
    fn source_to_server(
        &mut self,
        reader: &mut dyn SourceReader,
        verified: &mut VerifiedImport,
        progress: &ProgressLine,
    ) -> Result<(), Failure> {
        while let Some(page) = reader.page()? {
            let mut rows = Vec::new();
            for SourceItem { found, .. } in page {
                let SourceFinding::Edge(row) = found else {
                    continue;
                };
                verified.edges += 1;
                match (row.ends(), &row.state) {
                    (Some(ends), Ok(state)) => rows.push((ends, state.name())),
                    (_, state) => {
                        let there = match state {
                            Ok(state) => state.name().to_owned(),
                            Err(status) => status.clone(),
                        };
                        let (source, target) = (row.source.clone(), row.target.clone());
                        let (what, there) = ("missing", Some(there));
                        verified.take(EdgeDifference {
                            what,
                            source,
                            target,
                            there,
                            here: None,
                        })?;
                    }
                }
            }
            progress.advance(rows.len() as u64);
            for rows in rows.chunks(PAIRS_MAX) {
                let pairs: Vec<(u64, u64)> = rows.iter().map(|(ends, _)| *ends).collect();
                for ((ends, there), here) in rows.iter().zip(self.states(&pairs)?) {
                    let what = match here {
                        None => "missing",
                        Some(here) if here != *there => "different",
                        Some(_) => continue,
                    };
                    verified.take(difference(what, *ends, Some(there), here))?;
                }
            }
        }
        Ok(())
    }

    fn server_to_source(
        &mut self,
        reader: &mut dyn SourceReader,
        verified: &mut VerifiedImport,
        progress: &ProgressLine,
    ) -> Result<(), Failure> {
        while let Some(nodes) = reader.nodes()? {
            for node in &nodes {
                verified.nodes += 1;
                self.lists(node, reader, verified)?;
            }
            progress.advance(nodes.len() as u64);
        }
        Ok(())
    }

    /// Looks for what the server has of a node and the source has not.
    fn lists(
        &mut self,
        node: &SourceNode,
        reader: &mut dyn SourceReader,
        verified: &mut VerifiedImport,
    ) -> Result<(), Failure> {
        let direction = match node.side {
            ListSide::Outgoing => "outgoing",
            ListSide::Incoming => "incoming",
        };
        for state in ["live", "pending"] {
            let mut cursor: Option<String> = None;
            loop {
                let page = self.page(node, direction, state, cursor.as_deref())?;
                let others: Vec<u64> = page.items.iter().map(|item| item.id.0).collect();
                if !others.is_empty() {
                    self.compare(node, &others, reader, verified)?;
                }
                cursor = page.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn compare(
        &mut self,
        node: &SourceNode,
        others: &[u64],
        reader: &mut dyn SourceReader,
        verified: &mut VerifiedImport,
    ) -> Result<(), Failure> {
        let known = reader.known(node, others)?;
        let unknown = others.iter().zip(known).filter(|(_, known)| !known);
        let pairs: Vec<(u64, u64)> = unknown
            .map(|(other, _)| match node.side {
                ListSide::Outgoing => (node.id, *other),
                ListSide::Incoming => (*other, node.id),
            })
            .collect();
        if pairs.is_empty() {
            return Ok(());
        }
        // A list may be a moment behind; a check is not.
        for (ends, here) in pairs.iter().zip(self.states(&pairs)?) {
            if here.is_some() {
                verified.take(difference("extra", *ends, None, here))?;
            }
        }
        Ok(())
    }

    fn page(
        &self,
        node: &SourceNode,
        direction: &str,
        state: &str,
        cursor: Option<&str>,
    ) -> Result<List, Failure> {
        let client = &self.context.client;
        self.patiently(|| {
            let kind = &self.asked.kind;
            // Only a scan has no bound of depth, and it knows live edges alone.
            let request = match state {
                "live" => client.get(&path([&"v1", &"edges", kind, &node.id, &direction, &"scan"])),
                _ => client
                    .get(&path([&"v1", &"edges", kind, &node.id, &direction]))
                    .query("state", state),
            };
            request
                .query("limit", PAIRS_MAX)
                .query_if("cursor", cursor)
                .ask()
                .map(|page| page.means)
        })
    }

    /// The state of each pair in the server.
    fn states(&self, pairs: &[(u64, u64)]) -> Result<Vec<Option<&'static str>>, Failure> {
        let kind = &self.asked.kind;
        let asked: Vec<Value> = pairs
            .iter()
            .map(|(source, target)| {
                json!({ "kind": kind, "source": source.to_string(), "target": target.to_string() })
            })
            .collect();
        let body = json!({ "pairs": asked });
        let check = || self.context.client.post("/v1/check").ask_json::<Checks<PairChecked>>(&body);
        let results = self.patiently(check)?.means.results;
        let states: Vec<Option<&str>> =
            results.iter().map(|pair| pair.state.map(WireState::name)).collect();
        match states.len() == pairs.len() {
            true => Ok(states),
            false => Err(Failure::failed("the server answered a check of pairs with other pairs")),
        }
    }

    /// A server that is busy or starts again is asked once more.
    fn patiently<T>(&self, ask: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            if self.interrupt.is_set() {
                return Err(Failure::failed("stopped while both sides were compared")
                    .next("--verify-only compares them again"));
            }
            match ask() {
                Err(failure) if failure.retryable && begun.elapsed() < BUSY_MAX => {
                    std::thread::sleep(BUSY_PAUSE);
                }
                done => return done,
            }
        }
    }
}

fn full(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
        .next("make room for the differences, then compare again with --verify-only")
}

fn difference(
    what: &'static str,
    (source, target): (u64, u64),
    there: Option<&str>,
    here: Option<&str>,
) -> EdgeDifference {
    let (source, target) = (Some(source.to_string()), Some(target.to_string()));
    let [there, here] = [there, here].map(|state| state.map(str::to_owned));
    EdgeDifference { what, source, target, there, here }
}
