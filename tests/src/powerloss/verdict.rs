//! Judges what a server shows after a cut: every acknowledged change is there, nothing is there that
//! was never sent, both directions and the tallies agree, and writes go on.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::server::{Client, Server};
use super::trace::Trace;
use super::workload::{Answer, Change, Edge, KIND, Mark, Workload, edge_path, version_of};

/// The most pages of one list that are read.
const PAGES_MAX: usize = 100;
const PAGE_ITEMS: usize = 1000;
/// Outside of every workload.
const PROBE: Edge = Edge { source: 7, target: 8 };

/// An edge as a read shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub version: u64,
    pub data: String,
}

/// What stood at some moment; an edge that is not there is not related.
pub type View = BTreeMap<Edge, Shown>;

/// What a server may show after a cut: for each edge one or more outcomes.
pub struct Expectation {
    workload: Workload,
    edges: BTreeMap<Edge, Vec<Outcome>>,
}

#[derive(Clone, Debug)]
enum Outcome {
    Absent,
    /// The version is unknown when no answer ever came.
    Live {
        version: Option<u64>,
        data: String,
    },
}

impl Expectation {
    /// For a cut before the record `cut`. Of each edge the last acknowledged change stands, or any
    /// that was sent after it.
    pub fn at(trace: &Trace, cut: usize, workload: Workload) -> Result<Expectation, String> {
        let mut sent: BTreeMap<String, Vec<Change>> = BTreeMap::new();
        let mut answered: BTreeMap<String, Vec<Answer>> = BTreeMap::new();
        let mut attempts: BTreeMap<Edge, Vec<(String, usize)>> = BTreeMap::new();
        let mut acknowledged: BTreeSet<String> = BTreeSet::new();
        for (index, text) in trace.marks() {
            let mark =
                serde_json::from_str(text).map_err(|error| format!("mark {text}: {error}"))?;
            match mark {
                Mark::Sent { operation, changes } if index < cut => {
                    for (position, change) in changes.iter().enumerate() {
                        attempts
                            .entry(change.edge)
                            .or_default()
                            .push((operation.clone(), position));
                    }
                    sent.insert(operation, changes);
                }
                // Answers that came after the cut tell the version that the change has if it survived.
                Mark::Acknowledged { operation, answers } => {
                    if index < cut {
                        acknowledged.insert(operation.clone());
                    }
                    answered.insert(operation, answers);
                }
                Mark::Sent { .. } | Mark::Ready | Mark::Shown => {}
            }
        }
        let mut edges = BTreeMap::new();
        for edge in workload.edges() {
            let mut outcomes = vec![Outcome::Absent];
            for (operation, position) in attempts.remove(&edge).unwrap_or_default() {
                let answer = answered.get(&operation).map(|answers| &answers[position]);
                let outcome = match &sent[&operation][position].data {
                    None => Outcome::Absent,
                    Some(data) => {
                        let version = answer.and_then(|answer| answer.version);
                        Outcome::Live { version, data: data.clone() }
                    }
                };
                if let Some(answer) = answer {
                    check_answer(&outcome, answer, edge)?;
                }
                if acknowledged.contains(&operation) {
                    outcomes.clear();
                }
                outcomes.push(outcome);
            }
            edges.insert(edge, outcomes);
        }
        Ok(Expectation { workload, edges })
    }

    /// Exactly what was shown before: what a reader has seen must not vanish.
    pub fn exactly(view: &View, workload: Workload) -> Expectation {
        let outcome = |edge: Edge| match view.get(&edge) {
            None => Outcome::Absent,
            Some(shown) => Outcome::Live { version: Some(shown.version), data: shown.data.clone() },
        };
        Expectation {
            workload,
            edges: workload.edges().map(|edge| (edge, vec![outcome(edge)])).collect(),
        }
    }

    /// How many edges the last acknowledged change of which must be there.
    pub fn certain(&self) -> usize {
        self.edges
            .values()
            .filter(|outcomes| matches!(outcomes[..], [Outcome::Live { .. }]))
            .count()
    }

    /// Reads everything that the server shows, judges it, and returns it.
    pub fn judge(&self, server: &Server) -> Result<View, String> {
        let http = server.client();
        let mut view = View::new();
        for (edge, outcomes) in &self.edges {
            let shown = read_edge(&http, *edge)?;
            if !outcomes.iter().any(|outcome| outcome.allows(shown.as_ref())) {
                return Err(format!(
                    "edge {edge:?} shows {shown:?}, allowed is one of {outcomes:?}"
                ));
            }
            view.extend(shown.map(|shown| (*edge, shown)));
        }
        check_lists(&http, &view, &self.workload)?;
        check_tallies(&http, &view, &self.workload)?;
        check_probe(&http, &view)?;
        Ok(view)
    }
}

impl Outcome {
    fn allows(&self, shown: Option<&Shown>) -> bool {
        match (self, shown) {
            (Outcome::Absent, None) => true,
            (Outcome::Live { version, data }, Some(shown)) => {
                shown.data == *data && version.is_none_or(|version| version == shown.version)
            }
            _ => false,
        }
    }
}

fn check_answer(outcome: &Outcome, answer: &Answer, edge: Edge) -> Result<(), String> {
    let right = match outcome {
        Outcome::Absent => answer.state == "removed",
        Outcome::Live { .. } => answer.state == "live" && answer.version.is_some(),
    };
    if right {
        Ok(())
    } else {
        Err(format!("edge {edge:?}: {outcome:?} was answered with {answer:?}"))
    }
}

fn read_edge(http: &Client, edge: Edge) -> Result<Option<Shown>, String> {
    let answer = http.get(&edge_path(edge))?;
    match (answer["related"].as_bool(), version_of(&answer)?, answer["data"].as_str()) {
        (Some(true), Some(version), Some(data)) => {
            Ok(Some(Shown { version, data: data.to_owned() }))
        }
        (Some(false), None, None) => Ok(None),
        _ => Err(format!("edge {edge:?} is answered with {answer}")),
    }
}

fn check_lists(http: &Client, view: &View, workload: &Workload) -> Result<(), String> {
    let standing: BTreeSet<Edge> = view.keys().copied().collect();
    let mut outgoing = BTreeSet::new();
    for source in workload.sources() {
        let targets = read_list(http, source, "outgoing")?;
        outgoing.extend(targets.into_iter().map(|target| Edge { source, target }));
    }
    let mut incoming = BTreeSet::new();
    for target in workload.targets() {
        let sources = read_list(http, target, "incoming")?;
        incoming.extend(sources.into_iter().map(|source| Edge { source, target }));
    }
    for (direction, listed) in [("outgoing", outgoing), ("incoming", incoming)] {
        if let Some(edge) = listed.symmetric_difference(&standing).next() {
            return Err(format!("edge {edge:?} stands or is listed {direction}, but not both"));
        }
    }
    Ok(())
}

fn read_list(http: &Client, id: u64, direction: &str) -> Result<Vec<u64>, String> {
    let first = format!("/v1/edges/{KIND}/{id}/{direction}?limit={PAGE_ITEMS}");
    let mut path = first.clone();
    let mut ids = Vec::new();
    for _ in 0..PAGES_MAX {
        let page = http.get(&path)?;
        let items = page["items"].as_array().ok_or_else(|| format!("no items in {page}"))?;
        for item in items {
            ids.push(read_id(&item["id"])?);
        }
        if page["total"].as_u64().is_some_and(|total| total < ids.len() as u64) {
            return Err(format!("{first} has total {} and {} items", page["total"], ids.len()));
        }
        match page["next"].as_str() {
            Some(cursor) => path = format!("{first}&cursor={cursor}"),
            None => return Ok(ids),
        }
    }
    Err(format!("{first} does not end after {PAGES_MAX} pages"))
}

fn check_tallies(http: &Client, view: &View, workload: &Workload) -> Result<(), String> {
    let mut wanted: BTreeMap<u64, (u64, u64)> =
        workload.sources().chain(workload.targets()).map(|id| (id, (0, 0))).collect();
    for edge in view.keys() {
        wanted.entry(edge.source).or_default().0 += 1;
        wanted.entry(edge.target).or_default().1 += 1;
    }
    let ids: Vec<String> = wanted.keys().map(u64::to_string).collect();
    for ids in ids.chunks(PAGE_ITEMS) {
        let answer = http.post("/v1/tallies", &json!({ "ids": ids, "kinds": [KIND] }))?;
        let results =
            answer["results"].as_array().ok_or_else(|| format!("no results in {answer}"))?;
        if results.len() != ids.len() {
            return Err(format!("{} tallies for {} ids", results.len(), ids.len()));
        }
        for result in results {
            let id = read_id(&result["id"])?;
            let tally = &result["tallies"][KIND];
            let found = (tally["outgoing"].as_u64(), tally["incoming"].as_u64());
            let (outgoing, incoming) =
                *wanted.get(&id).ok_or_else(|| format!("a tally of {id}, never asked for"))?;
            if found != (Some(outgoing), Some(incoming)) {
                return Err(format!(
                    "{id} has the tally {tally}, but {outgoing} edges out and {incoming} in"
                ));
            }
        }
    }
    Ok(())
}

/// A write still works, and its version is above all that stand.
fn check_probe(http: &Client, view: &View) -> Result<(), String> {
    http.delete(&edge_path(PROBE))?;
    let answer = http.put(&edge_path(PROBE), &json!({ "data": "probe" }))?;
    let newest = view.values().map(|shown| shown.version).max();
    if version_of(&answer)? > newest {
        Ok(())
    } else {
        Err(format!("a new write has the answer {answer}, though version {newest:?} stands"))
    }
}

fn read_id(value: &Value) -> Result<u64, String> {
    value
        .as_str()
        .and_then(|id| id.parse().ok())
        .ok_or_else(|| format!("{value} is not an id in a string"))
}
