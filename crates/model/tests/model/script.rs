//! Scripts: a line is a change or a question, then `->` and what it must say. A line without
//! `->` must merely not be refused. The same script runs in both deployments.
//!
//! A refusal says its code; `code ~ words` also asks for words of its message.

use std::collections::BTreeMap;

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::change::{CounterDelta, Field, ImportEdge, KindPatch, KindSpec, Put};
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::job::JobId;
use guanxi_model::kind::{OnOverload, TimeIndex};
use guanxi_model::{
    Answer, Change, EdgeKey, Error, KindId, Millis, NodeKey, NodeRow, Record, SourceId, State,
    TargetId, Which,
};

use crate::world::{Deployment, TENANT, World, edge, group_name, groups_of, kind_name, node};

/// Runs the script in both deployments; `#` begins a remark.
pub fn check(script: &str) {
    for deployment in [Deployment::Embedded, Deployment::Cluster] {
        let mut stage = Stage::new(deployment);
        let mut wrong = String::new();
        let lines = script.lines().map(|line| match line.split_once('#') {
            Some((before, _)) => before.trim(),
            None => line.trim(),
        });
        for line in lines.filter(|line| !line.is_empty()) {
            let (words, expected) = match line.split_once("->") {
                Some((words, expected)) => (words, Some(expected.trim())),
                None => (line, None),
            };
            let said = stage.run(&Words::of(words));
            if !matches(&said, expected) {
                let said = said.unwrap_or_else(|error| error.to_string());
                wrong.push_str(&format!("\n  {line}\n    said: {said}"));
            }
        }
        assert!(wrong.is_empty(), "{deployment:?}:{wrong}");
    }
}

fn matches(said: &Result<String, Error>, expected: Option<&str>) -> bool {
    match (said, expected) {
        (Ok(_), None) => true,
        (Err(_), None) => false,
        (Ok(said), Some(expected)) => said == expected,
        (Err(error), Some(expected)) => match expected.split_once(" ~ ") {
            Some((code, words)) => error.code.name() == code && error.message.contains(words),
            None => error.code.name() == expected,
        },
    }
}

/// The words of a line: plain ones in their order, and options by name.
struct Words<'a> {
    plain: Vec<&'a str>,
    options: BTreeMap<&'a str, &'a str>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Words<'a> {
        let (named, plain): (Vec<&str>, Vec<&str>) =
            line.split_whitespace().partition(|word| word.contains('='));
        let options = named.iter().filter_map(|word| word.split_once('='));
        Words { plain, options: options.collect() }
    }

    fn at(&self, place: usize) -> &'a str {
        self.plain.get(place).expect("one more word")
    }

    fn number(&self, place: usize) -> u64 {
        self.at(place).parse().expect("a number")
    }

    fn says(&self, word: &str) -> bool {
        self.plain.contains(&word)
    }

    fn option<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        let value = self.options.get(name)?;
        Some(value.parse().ok().expect("a value of its type"))
    }

    fn field<T>(&self, name: &str, read: impl Fn(&str) -> T) -> Field<T> {
        match self.options.get(name) {
            None => Field::Keep,
            Some(&"null") => Field::Clear,
            Some(value) => Field::Set(read(value)),
        }
    }

    fn names(&self, name: &str) -> Option<Vec<String>> {
        let names = self.options.get(name)?.split(',');
        let names = names.filter(|name| !name.is_empty());
        Some(names.map(String::from).collect())
    }
}

struct Stage {
    world: World,
    /// What the last change logged.
    logged: Vec<Record>,
}

impl Stage {
    fn new(deployment: Deployment) -> Stage {
        Stage { world: World::new(deployment), logged: Vec::new() }
    }

    fn run(&mut self, words: &Words<'_>) -> Result<String, Error> {
        if let Some(shown) = self.show(words)? {
            return Ok(shown);
        }
        let change = self.change(words)?;
        let decided = self.world.change(&change)?;
        self.logged = decided.records;
        Ok(self.answer(&decided.answer))
    }

    /// Answers a question, or moves the clock.
    fn show(&mut self, words: &Words<'_>) -> Result<Option<String>, Error> {
        let rows = &self.world.rows;
        Ok(Some(match words.at(0) {
            "clock" => {
                self.world.now = Millis(words.number(1));
                String::new()
            }
            "row" => self.row(&self.edge(words)?),
            "mutual" => rows.mutual(&self.edge(words)?).to_string(),
            "tally" => {
                let kind = self.kind(words.at(3))?;
                let node = self.node(words);
                let numbers = Which::ALL.map(|which| (which, rows.tally(&node, kind, which)));
                let numbers = numbers.iter().filter(|(_, number)| *number != 0);
                listed(numbers.map(|(which, number)| format!("{}={number}", which_name(*which))))
            }
            "groups" => {
                let set = self.world.groups(self.kind(words.at(1))?, words.number(2));
                let groups = set.groups.iter();
                listed(groups.map(|group| format!("{}={}", group.name.as_str(), group.size)))
            }
            "settings" => settings(&rows.nodes.get(&self.node(words)).copied().unwrap_or_default()),
            "show" => {
                let kind = rows.catalog.named(TENANT, words.at(1))?.clone();
                self.answer(&Answer::Kind(Box::new((*kind).clone())))
            }
            "job" => self.job(words.at(1)),
            "logged" => listed(self.logged.iter().map(|record| self.record(record))),
            _ => return Ok(None),
        }))
    }

    fn change(&self, words: &Words<'_>) -> Result<Change, Error> {
        let groups = || Ok::<_, Error>(groups_of(self.kind(words.at(1))?, words.number(2)));
        let name = |place| group_name(words.at(place));
        let tenant = TENANT;
        Ok(match words.at(0) {
            "put" => Change::Put(self.put(words)?),
            "import" => Change::ImportEdge(Box::new(ImportEdge {
                put: self.put(words)?,
                since: words.option("since").map(Millis),
                state: words.options.get("state").map(|state| match *state {
                    "live" => State::Live,
                    "pending" => State::Pending,
                    _ => State::Removed,
                }),
                ignore_limits: words.says("ignore_limits"),
            })),
            "import_group" => Change::ImportGroup { groups: groups()?, name: name(3) },
            "import_counter" => Change::ImportCounter {
                tenant,
                kind: self.kind(words.at(1))?,
                id: words.number(2),
                value: words.at(3).parse().unwrap(),
            },
            "delete" => Change::Delete { edge: self.edge(words)?, strict: words.says("strict") },
            "approve" => Change::Approve { edge: self.edge(words)? },
            "decline" => Change::Decline { edge: self.edge(words)? },
            "expire" => {
                Change::Expire { edge: self.edge(words)?, expires_at: Millis(words.number(4)) }
            }
            "add" => Change::AddMember { edge: self.edge(words)?, group: name(4) },
            "drop" => Change::DropMember { edge: self.edge(words)?, group: name(4) },
            "create" => Change::CreateGroup { groups: groups()?, name: name(3) },
            "rename" => Change::RenameGroup { groups: groups()?, name: name(3), to: name(4) },
            "ungroup" => Change::DeleteGroup { groups: groups()?, name: name(3) },
            "node" => Change::SetNode { node: self.node(words), private: words.option("private") },
            "count" => Change::Count(CounterDelta {
                tenant,
                kind: self.kind(words.at(1))?,
                id: words.number(2),
                delta: words.at(3).parse().unwrap(),
                key: words.options.get("key").map(|key| IdempotencyKey::new(key).unwrap()),
            }),
            "kind" => Change::CreateKind { tenant, spec: Box::new(spec(words)) },
            "set" => Change::SetKind {
                tenant,
                kind: self.kind(words.at(1))?,
                patch: Box::new(patch(words)),
            },
            "erase" => Change::BeginErase { node: self.node(words) },
            "erase_step" => Change::EraseStep {
                tenant,
                job: self.job_id(words.at(1)),
                edges: words.plain[2..]
                    .iter()
                    .map(|edge| self.short_edge(edge))
                    .collect::<Result<_, Error>>()?,
            },
            "erase_finish" => Change::FinishErase { tenant, job: self.job_id(words.at(1)) },
            "index_step" => Change::BuildIndexStep {
                tenant,
                job: self.job_id(words.at(1)),
                until: (SourceId(words.number(2)), TargetId(words.number(3))),
                edges: words.number(4),
            },
            "index_finish" => Change::FinishBuildIndex { tenant, job: self.job_id(words.at(1)) },
            other => panic!("a script knows no '{other}'"),
        })
    }

    fn put(&self, words: &Words<'_>) -> Result<Put, Error> {
        Ok(Put {
            edge: self.edge(words)?,
            group: words.field("group", group_name),
            owner: words.field("owner", |owner| owner.parse().unwrap()),
            data: words.field("data", |data| match data.strip_prefix('*') {
                Some(count) => "x".repeat(count.parse().unwrap()).into(),
                None => data.into(),
            }),
            expires_at: words.field("expires", |at| Millis(at.parse().unwrap())),
            approval: words.says("approval"),
            strict: words.says("strict"),
        })
    }

    fn answer(&self, answer: &Answer) -> String {
        match answer {
            Answer::Edge(EdgeAnswer { changed, state, .. }) => {
                let changed = if *changed { "changed" } else { "unchanged" };
                format!("{changed} {}", state.name())
            }
            Answer::Group { name, size } => format!("{}={size}", name.as_str()),
            Answer::Node(row) => settings(row),
            Answer::Counter { value } => format!("value={value}"),
            Answer::Kind(kind) => {
                let index = match kind.time_index {
                    TimeIndex::Absent => "absent",
                    TimeIndex::Building => "building",
                    TimeIndex::Ready => "ready",
                };
                format!("id={} index={index}", kind.id.0)
            }
            Answer::Job(id) => {
                let place = self.world.rows.jobs.keys().position(|(_, job)| job == id);
                format!("job{}", place.unwrap() + 1)
            }
            Answer::Repaired => "repaired".into(),
        }
    }

    fn row(&self, key: &EdgeKey) -> String {
        let Some(row) = self.world.rows.standing(key) else {
            return "none".into();
        };
        let groups = self.world.groups(key.kind, key.source.0);
        let mut shown = format!("{} since={}", row.state.name(), row.since.0);
        if let Some(name) = groups.name_of(row.group) {
            shown.push_str(&format!(" group={}", name.as_str()));
        }
        if let Some(owner) = row.owner {
            shown.push_str(&format!(" owner={owner}"));
        }
        if let Some(data) = &row.data {
            shown.push_str(&format!(" data={data}"));
        }
        if let Some(at) = row.expires_at {
            shown.push_str(&format!(" expires={}", at.0));
        }
        shown
    }

    fn job(&self, name: &str) -> String {
        let id = self.job_id(name);
        let job = &self.world.rows.jobs[&(TENANT, id)];
        let state = if job.finished.is_some() { "done" } else { "running" };
        let mut shown = format!("{state} edges={}", job.edges_done);
        if let Some(receipt) = job.receipt {
            shown.push_str(&format!(
                " groups={} counters={}",
                receipt.groups_removed, receipt.counters_removed
            ));
        }
        shown
    }

    fn record(&self, record: &Record) -> String {
        match record {
            Record::Edge(record) => {
                let kind = self.world.rows.kind(TENANT, record.key.kind);
                let (source, target) = (record.key.source.0, record.key.target.0);
                format!("{}:{}:{source}:{target}", record.cause.name(), kind.name)
            }
            Record::Group { name: Some(_), .. } => "group".into(),
            Record::Group { name: None, .. } => "no_group".into(),
            Record::Node { .. } => "node".into(),
            Record::NodeType { id, name, .. } => format!("node_type:{name}:{}", id.0),
            Record::Kind { .. } => "kind".into(),
            Record::Counter { delta, .. } => format!("counter:{delta}"),
            Record::Idempotency { .. } => "idempotency".into(),
            Record::Import { .. } => "import".into(),
            Record::Job { .. } => "job".into(),
            Record::BuildIndex { after, until, .. } => {
                let after = after.map_or(0, |(source, _)| source.0);
                format!("build_index:{after}:{}", until.0.0)
            }
            Record::Repair(_) => "repair".into(),
        }
    }

    fn edge(&self, words: &Words<'_>) -> Result<EdgeKey, Error> {
        Ok(edge(self.kind(words.at(1))?, words.number(2), words.number(3)))
    }

    /// An edge in one word: `follow:1:2`.
    fn short_edge(&self, word: &str) -> Result<EdgeKey, Error> {
        let mut parts = word.split(':');
        let mut part = || parts.next().expect("kind:source:target");
        Ok(edge(self.kind(part())?, part().parse().unwrap(), part().parse().unwrap()))
    }

    /// A number names a kind by its id, so that scripts can ask for one that is not there.
    fn kind(&self, word: &str) -> Result<KindId, Error> {
        match word.parse() {
            Ok(id) => Ok(KindId(id)),
            Err(_) => Ok(self.world.rows.catalog.named(TENANT, word)?.id),
        }
    }

    fn node(&self, words: &Words<'_>) -> NodeKey {
        let node_type = self.world.rows.catalog.type_named(TENANT, words.at(1));
        node(node_type.expect("a known node type"), words.number(2))
    }

    /// `job1` is the first job that began (ids grow), told to a caller or not; `job0` is none.
    fn job_id(&self, name: &str) -> JobId {
        let place: usize = name.strip_prefix("job").unwrap().parse().unwrap();
        let begun = self.world.rows.jobs.keys().nth(place.wrapping_sub(1));
        begun.map_or(JobId(0), |(_, id)| *id)
    }
}

fn spec(words: &Words<'_>) -> KindSpec {
    let (name, source, target) = (words.at(1), words.at(2), words.at(3));
    let without = |list| !words.says(list);
    KindSpec {
        owner_type: words.options.get("owner").map(|name| kind_name(name)),
        counter: words.says("counter"),
        reconciled: words.says("reconciled"),
        outgoing_list: without("no_outgoing_list"),
        incoming_list: without("no_incoming_list"),
        outgoing_tally: without("no_outgoing_tally"),
        incoming_tally: without("no_incoming_tally"),
        self_allowed: words.says("self_allowed"),
        outgoing_max: words.option("outgoing_max"),
        groups_max: words.option("groups_max").unwrap_or(0),
        approval: words.says("approval"),
        data_bytes_max: words.option("data_bytes_max").unwrap_or(0),
        excludes: words.names("excludes").unwrap_or_default(),
        expires: words.says("expires"),
        list_depth_max: words.option("list_depth_max").unwrap_or(0),
        on_overload: on_overload(words).unwrap_or_default(),
        ..KindSpec::edges(kind_name(name), kind_name(source), kind_name(target))
    }
}

fn patch(words: &Words<'_>) -> KindPatch {
    KindPatch {
        self_allowed: words.option("self_allowed"),
        outgoing_max: words.field("outgoing_max", |max| max.parse().unwrap()),
        groups_max: words.option("groups_max"),
        approval: words.option("approval"),
        data_bytes_max: words.option("data_bytes_max"),
        excludes: words.names("excludes"),
        expires: words.option("expires"),
        list_depth_max: words.option("list_depth_max"),
        on_overload: on_overload(words),
    }
}

fn on_overload(words: &Words<'_>) -> Option<OnOverload> {
    let name = words.options.get("on_overload")?;
    let all = [OnOverload::Refuse, OnOverload::AnswerDefault];
    Some(all.into_iter().find(|rule| rule.name() == *name).expect("a known rule"))
}

fn settings(row: &NodeRow) -> String {
    let private = if row.private { "private" } else { "public" };
    let erasing = if row.erased_by.is_some() { " erasing" } else { "" };
    format!("{private}{erasing}")
}

fn which_name(which: Which) -> &'static str {
    match which {
        Which::Outgoing => "outgoing",
        Which::Incoming => "incoming",
        Which::PendingOutgoing => "pending_outgoing",
        Which::PendingIncoming => "pending_incoming",
        Which::Owned => "owned",
        Which::Value => "value",
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".into() } else { items.join(" ") }
}
