//! The works, the questions that they are made of, and what answers say, in nobody's protocol.

use std::ops::Range;

use clap::ValueEnum;
use fastrand::Rng;

use crate::wire::graph::{Edge, FAVORITE, FOLLOW, Graph, KINDS, LIKE, Post, User};

pub const OBJECTS: usize = 6;
/// Hydrates in one call of the work that asks many.
pub const FEEDS: usize = 64;
pub const NEWEST_ITEMS: usize = 20;
/// Users whose lists are popular, and none of whom is the one celebrity.
pub const POPULAR: Range<u32> = 10..200;
pub const CELEBRITY: User = 0;
/// Whom a storm of follows is about; nobody of the graph, so that what is read stays as it was.
const STORMED_ID: u64 = 9_111_111_111_111_111_111;
/// Of a hundred objects so many have one positive check of three, so that one of a hundred checks
/// is positive.
const RELATED_PERCENT: u32 = 3;
/// Puts are asked once each; so many for each second.
const PUTS_PER_SECOND: f64 = 120_000.0;
/// Of the mixed work.
pub const READS_TO_A_PUT: usize = 99;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, PartialOrd, Ord)]
pub enum Work {
    /// A feed's question: one viewer, six objects, three kinds, four tallies.
    Hydrate,
    /// The same without tallies (over HTTP, a hydrate without tallies).
    Related,
    /// The 18 checks of a feed alone (over HTTP, /v1/check of 18 pairs).
    Checks,
    /// One check; one of a hundred is positive.
    Check,
    /// One check that is positive.
    CheckHit,
    /// Four tallies of six posts.
    Tallies,
    /// The newest 20 followers of somebody popular.
    Newest,
    /// The newest 20 followers of the celebrity.
    NewestCelebrity,
    /// 64 hydrates in one call; Redis and RESP pipeline them.
    Hydrate64,
    /// A durable follow of anybody, 64 in flight.
    Follow64,
    /// The same, 256 in flight.
    Follow256,
    /// Durable follows of one, 64 in flight.
    Celebrity64,
    /// The same, 256 in flight.
    Celebrity256,
    /// 99 hydrates to a durable follow.
    Mixed,
    /// Nothing: PING; GET /healthz.
    Empty,
}

/// What is asked of a server: reads may be asked again, puts are asked once each.
pub struct Asked {
    pub reads: Vec<Question>,
    pub puts: Vec<Question>,
}

#[derive(Clone, Copy)]
pub struct Object {
    pub post: Post,
    pub author: User,
}

#[derive(Clone)]
pub struct Feed {
    pub viewer: User,
    pub objects: [Object; OBJECTS],
}

#[derive(Clone, Copy)]
pub struct Check {
    pub kind: usize,
    pub source: User,
    pub target: u32,
}

pub enum Question {
    Hydrate(Feed),
    Many(Vec<Feed>),
    Related(Feed),
    Checks(Feed),
    Check(Check),
    /// Of what was put.
    CheckById {
        kind: usize,
        source: u64,
        target: u64,
    },
    Tallies([Post; OBJECTS]),
    Newest(User),
    /// By id, as nobody of the graph follows or is followed.
    Follow {
        source: u64,
        target: u64,
    },
    Empty,
}

#[derive(PartialEq, Eq, Debug)]
pub struct Seen {
    /// By kind.
    pub related: [bool; KINDS.len()],
    pub tallies: [u64; 4],
}

#[derive(PartialEq, Eq, Debug)]
pub enum Answer {
    Feeds(Vec<Vec<Seen>>),
    /// Of a feed: by kind, then by object.
    Related(Vec<bool>),
    Tallies(Vec<[u64; 4]>),
    /// Ids and times, newest first.
    Page(Vec<(u64, u64)>),
    Changed(bool),
    Empty,
}

impl Answer {
    /// Whether both say the same. Of a page only times count: where they are equal, either edge may
    /// be on it.
    pub fn same(&self, other: &Answer) -> bool {
        match (self, other) {
            (Answer::Page(page), Answer::Page(other)) => {
                page.len() == other.len()
                    && page.iter().zip(other).all(|(one, another)| one.1 == another.1)
            }
            _ => self == other,
        }
    }
}

impl Feed {
    /// What the viewer has not seen, but for one of a hundred checks: popular posts would otherwise
    /// be liked by chance far more often.
    pub fn any(graph: &Graph, random: &mut Rng) -> Feed {
        let viewer = random.u32(..graph.users());
        let related = [FOLLOW, LIKE, FAVORITE].map(|kind| graph.outgoing(kind, viewer));
        let relates = |kind: usize, target: u32| {
            related[kind].iter().any(|edge: &Edge| edge.target == target)
        };
        let objects = std::array::from_fn(|_| {
            let mut object = loop {
                let post = graph.popular_post(random);
                let author = graph.author(post);
                if !relates(FOLLOW, author) && !relates(LIKE, post) && !relates(FAVORITE, post) {
                    break Object { post, author };
                }
            };
            if random.u32(..100) < RELATED_PERCENT {
                let kind = random.usize(..KINDS.len());
                let target = related[kind][random.usize(..related[kind].len())].target;
                match kind {
                    FOLLOW => object.author = target,
                    _ => object.post = target,
                }
            }
            object
        });
        Feed { viewer, objects }
    }

    /// By kind, then by object.
    pub fn checks(&self) -> impl Iterator<Item = Check> {
        (0..KINDS.len()).flat_map(move |kind| {
            self.objects.iter().map(move |object| Check {
                kind,
                source: self.viewer,
                target: if kind == FOLLOW { object.author } else { object.post },
            })
        })
    }
}

impl Work {
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// How many wait at once, where the work itself says it.
    pub fn connections(self) -> Option<usize> {
        match self {
            Work::Follow64 | Work::Celebrity64 => Some(64),
            Work::Follow256 | Work::Celebrity256 => Some(256),
            _ => None,
        }
    }

    /// Whether all it asks for is written.
    pub fn only_writes(self) -> bool {
        self.connections().is_some()
    }

    /// Questions for so long; the reads are the same for the same seed.
    pub fn questions(self, graph: &Graph, count: usize, seconds: f64, seed: u64) -> Asked {
        let mut random = Rng::with_seed(seed);
        let (reads, puts) = match self {
            Work::Hydrate64 => (count.div_ceil(FEEDS), 0.0),
            Work::Empty => (1, 0.0),
            Work::Mixed => (count, PUTS_PER_SECOND / READS_TO_A_PUT as f64),
            _ if self.only_writes() => (0, PUTS_PER_SECOND),
            _ => (count, 0.0),
        };
        let puts = (puts * seconds) as usize;
        let reads = (0..reads).map(|_| self.read(graph, &mut random)).collect();
        // Puts are new ones every time: what was put before would change nothing.
        Asked { reads, puts: (0..puts).map(|_| self.put()).collect() }
    }

    fn put(self) -> Question {
        let new_id = || STORMED_ID - 1 - fastrand::u64(..1 << 60);
        let target = match self {
            Work::Celebrity64 | Work::Celebrity256 => STORMED_ID,
            _ => new_id(),
        };
        Question::Follow { source: new_id(), target }
    }

    fn read(self, graph: &Graph, random: &mut Rng) -> Question {
        match self {
            Work::Hydrate | Work::Mixed => Question::Hydrate(Feed::any(graph, random)),
            Work::Related => Question::Related(Feed::any(graph, random)),
            Work::Checks => Question::Checks(Feed::any(graph, random)),
            Work::Hydrate64 => {
                Question::Many((0..FEEDS).map(|_| Feed::any(graph, random)).collect())
            }
            Work::Check => {
                let (kind, source) = (FOLLOW, random.u32(..graph.users()));
                let target = match random.u32(..100) {
                    0 => any_target(graph, kind, source, random),
                    _ => random.u32(..graph.users()),
                };
                Question::Check(Check { kind, source, target })
            }
            Work::CheckHit => {
                let (kind, source) = (LIKE, random.u32(..graph.users()));
                let target = any_target(graph, kind, source, random);
                Question::Check(Check { kind, source, target })
            }
            Work::Tallies => Question::Tallies(std::array::from_fn(|_| graph.popular_post(random))),
            Work::Newest => Question::Newest(random.u32(POPULAR)),
            Work::NewestCelebrity => Question::Newest(CELEBRITY),
            Work::Follow64 | Work::Follow256 | Work::Celebrity64 | Work::Celebrity256 => self.put(),
            Work::Empty => Question::Empty,
        }
    }
}

fn any_target(graph: &Graph, kind: usize, source: User, random: &mut Rng) -> u32 {
    let edges = graph.outgoing(kind, source);
    edges[random.usize(..edges.len())].target
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::truth::Truth;

    #[test]
    fn one_of_a_hundred_checks_is_positive() {
        let truth = Truth::of(Graph::new(200_000, 20_000).expect("a graph"));
        let questions = Work::Checks.questions(&truth.graph, 20_000, 1.0, 1);
        let (mut checks, mut positive) = (0, 0);
        for question in &questions.reads {
            if let Answer::Related(related) = truth.answer(question) {
                checks += related.len();
                positive += related.iter().filter(|related| **related).count();
            }
        }
        let percent = 100.0 * positive as f64 / checks as f64;
        assert!((0.9..1.2).contains(&percent), "{percent} %");
    }
}
