//! `guanxi demo`: fills a server with a realistic graph (`demo/graph.rs`) and says what to try.

mod graph;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use guanxi_api::edges::{ChangeResult, Results};
use guanxi_api::tallies::TalliesAnswer;
use parking_lot::Mutex;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use self::graph::{Follow, GROUP_NAMES, Graph};
use super::CommandContext;
use super::client::{Client, DEFAULT_SERVER, path};
use super::interrupt::{EXIT_INTERRUPTED, Interrupt};
use super::output::Style;
use super::progress::ProgressLine;
use super::tally::numbers;
use crate::failure::Failure;

/// What one call may carry.
const BATCH_CHANGES_MAX: usize = 1_000;
/// Batches under way at once: while one is being fsynced the others are being read and decided.
const SENDERS: usize = 6;
/// A server that has too much to do gets so many pauses of this length.
const RETRIES_MAX: u32 = 50;
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Whether a server is empty is asked of the first users.
const LOOKED_AT: u32 = 100;
/// A batch under way is answered within this, or the server does not answer at all.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);
const LAST_WORDS: &str =
    "a part of the graph is there; the same command with --into-existing makes it whole";
const SHOWN_POSTS: u32 = 4;

const EXAMPLES: &str = "\
Examples:
  guanxi demo                       # 1,000 users
  guanxi demo --users 100000 --seed 7";

/// Fills an empty server with a realistic graph and shows what to try.
///
/// Follows with a long tail, likes and favorites of posts with authors, groups, pending follows,
/// blocks, and view counters. The same seed always gives the same graph.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Demo {
    /// How many users; each has about seven edges.
    #[arg(
        long, value_name = "N", default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(10..=1_000_000)
    )]
    users: u32,
    /// Another seed gives another graph.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Adds the graph to users 1, 2, 3… although they have edges already.
    #[arg(long)]
    into_existing: bool,
}

impl Demo {
    pub fn run(self, context: &mut CommandContext) -> Result<(), Failure> {
        if !self.into_existing {
            refuse_if_used(&context.client)?;
        }
        let interrupt = Interrupt::catch(INTERRUPT_GRACE, EXIT_INTERRUPTED, LAST_WORDS)?;
        let begun = Instant::now();
        let graph = Graph::new(self.users, self.seed);
        create_groups(&context.client, &graph)?;
        let mut sent = SentChanges::new(interrupt);
        // Blocks come last: they cut follows, and a follow after its block would be refused.
        let follows = graph.follows.iter().map(follow);
        let likes = graph.likes.iter().flat_map(|like| {
            let owner = graph.authors[like.post as usize - 1];
            let edge = |kind| {
                json!({ "op": "put", "kind": kind, "source": like.user, "target": like.post,
                        "owner": owner })
            };
            [Some(edge("like")), like.favorite.then(|| edge("favorite"))].into_iter().flatten()
        });
        let blocks = graph.blocks.iter().map(|(source, target)| {
            json!({ "op": "put", "kind": "block", "source": source, "target": target })
        });
        let seed = self.seed;
        let views = graph.views.iter().zip(1u32..).map(|(seen, post)| {
            // With a key, so that the same demo twice counts once.
            let key = format!("demo-{seed}-{post}");
            json!({ "kind": "view", "id": post, "delta": seen, "key": key })
        });
        let favorites = graph.likes.iter().filter(|like| like.favorite).count();
        let edges = "/v1/edges/batch";
        let liked = graph.likes.len() + favorites;
        sent.all(context, "follows", edges, graph.follows.len(), follows)?;
        sent.all(context, "likes", edges, liked, likes)?;
        sent.all(context, "blocks", edges, graph.blocks.len(), blocks)?;
        sent.all(context, "views", "/v1/counters/batch", graph.views.len(), views)?;
        self.summarize(context, &graph, &sent, begun.elapsed())
    }

    fn summarize(
        &self,
        context: &mut CommandContext,
        graph: &Graph,
        sent: &SentChanges,
        took: Duration,
    ) -> Result<(), Failure> {
        if context.output.json() {
            return context.output.value(&json!({
                "users": self.users, "posts": graph.authors.len(), "seed": self.seed,
                "follows": graph.follows.len(), "likes": graph.likes.len(),
                "blocks": graph.blocks.len(), "changes": sent.changes, "refused": sent.refused,
                "seconds": took.as_secs_f64(),
            }));
        }
        let output = &mut context.output;
        let done = format!(
            "{} users, {} posts, {} follows, {} likes, {} blocks: {} changes in {:.1} s",
            self.users,
            graph.authors.len(),
            graph.follows.len(),
            graph.likes.len(),
            graph.blocks.len(),
            sent.changes,
            took.as_secs_f64()
        );
        let done = output.paint(Style::Good, &done).into_owned();
        output.line(&done)?;
        for (code, count) in &sent.refused {
            output.line(&format!("{count} were refused: {code}"))?;
        }
        output.line("\nTry:")?;
        let server = match context.client.server() {
            DEFAULT_SERVER => String::new(),
            other => format!(" --server {other}"),
        };
        for (arguments, what) in suggestions(graph) {
            let what = output.paint(Style::Faint, &what).into_owned();
            output.line(&format!("  guanxi{server} {arguments}  # {what}"))?;
        }
        Ok(())
    }
}

fn follow(follow: &Follow) -> Value {
    let Follow { source, target, group, approval } = follow;
    let mut change = json!({ "op": "put", "kind": "follow", "source": source, "target": target });
    if let Some(group) = group {
        change["group"] = json!(group);
    }
    if *approval {
        change["approval"] = json!(true);
    }
    change
}

/// The demo takes the ids from 1 on, which real users may have.
fn refuse_if_used(client: &Client) -> Result<(), Failure> {
    let ids: Vec<u32> = (1..=LOOKED_AT).collect();
    let body = json!({ "ids": ids, "kinds": ["follow", "like"] });
    let answer = client.post("/v1/tallies").ask_json::<TalliesAnswer>(&body)?.means;
    let mut tallies = answer.results.iter().flat_map(|of| &of.tallies.0);
    let used = tallies.any(|(_, tallies)| numbers(tallies).into_iter().flatten().any(|n| n != 0));
    match used {
        false => Ok(()),
        true => Err(Failure::new(
            crate::failure::Exit::Refused,
            format!("{} is not empty: users from 1 on have edges", client.server()),
        )
        .next("start a server with an empty --data-dir, or add to it with --into-existing")),
    }
}

fn create_groups(client: &Client, graph: &Graph) -> Result<(), Failure> {
    for user in &graph.grouped {
        let path = path([&"v1", &"groups", &"follow", user]);
        for name in GROUP_NAMES {
            match client.post(&path).send_json(&json!({ "name": name })) {
                // It stands from an earlier demo.
                Err(failure) if failure.code.as_deref() == Some("conflict") => {}
                created => drop(created?),
            }
        }
    }
    Ok(())
}

/// What was sent, and what came of it.
struct SentChanges {
    interrupt: Interrupt,
    changes: u64,
    /// How many changes were refused, by code.
    refused: BTreeMap<String, u64>,
}

impl SentChanges {
    fn new(interrupt: Interrupt) -> SentChanges {
        SentChanges { interrupt, changes: 0, refused: BTreeMap::new() }
    }

    /// Sends all changes in batches, several at once, in no order that anyone may rely on.
    fn all(
        &mut self,
        context: &CommandContext,
        what: &str,
        path: &str,
        total: usize,
        changes: impl Iterator<Item = Value> + Send,
    ) -> Result<(), Failure> {
        let progress = ProgressLine::new(&context.output, what, Some(total as u64));
        let changes = Mutex::new(changes);
        let interrupt = self.interrupt.clone();
        let sent = Mutex::new(self);
        let client = &context.client;
        let send = || -> Result<(), Failure> {
            loop {
                let batch: Vec<Value> = changes.lock().by_ref().take(BATCH_CHANGES_MAX).collect();
                if batch.is_empty() {
                    return Ok(());
                }
                if interrupt.is_set() {
                    return Err(Failure::failed("stopped; a part of the graph is there")
                        .next("the same command with --into-existing makes it whole"));
                }
                let answer = patiently(client, path, &json!({ "changes": batch }))?;
                progress.advance(batch.len() as u64);
                sent.lock().answered(answer);
            }
        };
        let ended = thread::scope(|scope| {
            let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(send)).collect();
            let each = senders.into_iter().map(|sender| {
                sender.join().unwrap_or_else(|_| Err(Failure::failed("a sender panicked")))
            });
            each.collect::<Vec<_>>().into_iter().collect()
        });
        progress.finish();
        ended
    }

    fn answered(&mut self, answer: Results<IgnoredAny>) {
        for result in answer.results {
            self.changes += 1;
            if let ChangeResult::Refused { error } = result {
                *self.refused.entry(error.code.into_owned()).or_default() += 1;
            }
        }
    }
}

/// Every change of the demo may be sent twice, so a busy server is simply asked again.
fn patiently(client: &Client, path: &str, body: &Value) -> Result<Results<IgnoredAny>, Failure> {
    let mut retries = 0;
    loop {
        match client.post(path).ask_json(body) {
            Err(failure) if failure.retryable && retries < RETRIES_MAX => {
                retries += 1;
                thread::sleep(RETRY_PAUSE);
            }
            ended => return ended.map(|said| said.means),
        }
    }
}

/// Commands whose answers show something, and what that is.
fn suggestions(graph: &Graph) -> Vec<(String, String)> {
    let mut followers: HashMap<u32, u32> = HashMap::new();
    for follow in graph.follows.iter().filter(|follow| !follow.approval) {
        *followers.entry(follow.target).or_default() += 1;
    }
    let mut famous: Vec<(u32, u32)> =
        followers.into_iter().map(|(id, count)| (count, id)).collect();
    famous.sort_unstable_by(|one, other| other.cmp(one));
    let top: Vec<String> = famous.iter().take(3).map(|(_, id)| id.to_string()).collect();
    let star = top.first().cloned().unwrap_or_default();
    let mut said = vec![
        (format!("tally follow {}", top.join(" ")), "the most followed users".to_owned()),
        (format!("list follow {star} incoming"), "the newest followers of the first".to_owned()),
    ];
    if let Some(viewer) = viewer(graph) {
        let all = "whom a user with groups follows";
        said.push((format!("list follow {viewer} outgoing"), all.to_owned()));
        let groups = format!("groups list follow {viewer}");
        said.push((groups, "and the groups, 朋友 among them".to_owned()));
        said.push((format!("list follow {viewer} mutual"), "who follows back".to_owned()));
        let posts = graph.authors.iter().zip(1u32..).take(SHOWN_POSTS as usize);
        let posts: Vec<String> = posts.map(|(author, post)| format!("{post}:{author}")).collect();
        let posts = posts.join(",");
        said.push((
            format!(
                "hydrate {viewer} --objects {posts} --kinds like,favorite,follow \
                 --tallies like,favorite,view"
            ),
            "a feed as that user sees it".to_owned(),
        ));
    }
    if let Some(follow) = graph.follows.iter().find(|follow| follow.approval) {
        let target = follow.target;
        let waiting = "who waits for an approval".to_owned();
        said.push((format!("list follow {target} incoming --state pending"), waiting));
    }
    if let Some((source, target)) = graph.blocks.first() {
        let refused = "refused: the target has blocked the source".to_owned();
        said.push((format!("put follow {target} {source}"), refused));
    }
    said
}

/// A user with groups, of whom many follow back.
fn viewer(graph: &Graph) -> Option<u32> {
    let edges: HashSet<(u32, u32)> =
        graph.follows.iter().map(|follow| (follow.source, follow.target)).collect();
    let mut mutual: HashMap<u32, usize> = HashMap::new();
    for &(source, target) in &edges {
        if graph.grouped.binary_search(&source).is_ok() && edges.contains(&(target, source)) {
            *mutual.entry(source).or_default() += 1;
        }
    }
    // The lowest id among equals, so that a seed always suggests the same.
    let best = mutual.into_iter().max_by_key(|&(user, count)| (count, std::cmp::Reverse(user)));
    best.map(|(user, _)| user).or(graph.grouped.first().copied())
}
