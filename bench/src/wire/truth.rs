//! What is true of the graph beyond one user's edges: tallies, and the newest of popular lists.

use crate::wire::graph::{Edge, FAVORITE, FOLLOW, Graph, KINDS, LIKE, Post, User};
use crate::wire::question::{Answer, Check, Feed, NEWEST_ITEMS, POPULAR, Question, Seen};

pub struct Truth {
    pub graph: Graph,
    /// How many relate to each target, by kind.
    incoming: [Vec<u32>; KINDS.len()],
    /// The newest followers of the most popular users.
    newest: Vec<Vec<Edge>>,
}

impl Truth {
    pub fn of(graph: Graph) -> Truth {
        let mut newest = vec![Vec::new(); POPULAR.end as usize];
        let incoming = [FOLLOW, LIKE, FAVORITE].map(|kind| {
            let targets = if kind == FOLLOW { graph.users() } else { graph.posts() };
            let mut incoming = vec![0; targets as usize];
            for edge in (0..graph.users()).flat_map(|user| graph.outgoing(kind, user)) {
                incoming[edge.target as usize] += 1;
                if kind == FOLLOW && edge.target < POPULAR.end {
                    newest[edge.target as usize].push(edge);
                }
            }
            incoming
        });
        for list in &mut newest {
            list.sort_unstable_by_key(|edge| std::cmp::Reverse(edge.since_ms));
            list.truncate(NEWEST_ITEMS);
        }
        Truth { graph, incoming, newest }
    }

    pub fn tallies(&self, post: Post) -> [u64; 4] {
        let incoming = |kind: usize| u64::from(self.incoming[kind][post as usize]);
        [incoming(LIKE), incoming(FAVORITE), self.graph.views(post), self.graph.played(post)]
    }

    pub fn related(&self, check: Check) -> bool {
        let edges = self.graph.outgoing(check.kind, check.source);
        edges.iter().any(|edge| edge.target == check.target)
    }

    /// The ids and times of a page of the newest followers.
    pub fn newest(&self, user: User) -> Vec<(u64, u64)> {
        let items = self.newest[user as usize].iter();
        items.map(|edge| (self.graph.user_id(edge.source), edge.since_ms)).collect()
    }

    /// What the right answer is; of puts, that something changed.
    pub fn answer(&self, question: &Question) -> Answer {
        match question {
            Question::Hydrate(feed) => Answer::Feeds(vec![self.seen(feed)]),
            Question::Many(feeds) => {
                Answer::Feeds(feeds.iter().map(|feed| self.seen(feed)).collect())
            }
            Question::Related(feed) | Question::Checks(feed) => {
                Answer::Related(feed.checks().map(|check| self.related(check)).collect())
            }
            Question::Check(check) => Answer::Related(vec![self.related(*check)]),
            Question::Tallies(posts) => {
                Answer::Tallies(posts.iter().map(|post| self.tallies(*post)).collect())
            }
            Question::Newest(user) => Answer::Page(self.newest(*user)),
            Question::CheckById { .. } => Answer::Related(vec![true]),
            Question::Follow { .. } => Answer::Changed(true),
            Question::Empty => Answer::Empty,
        }
    }

    fn seen(&self, feed: &Feed) -> Vec<Seen> {
        let related: Vec<bool> = feed.checks().map(|check| self.related(check)).collect();
        let objects = feed.objects.iter().enumerate();
        let seen = objects.map(|(place, object)| Seen {
            related: std::array::from_fn(|kind| related[kind * feed.objects.len() + place]),
            tallies: self.tallies(object.post),
        });
        seen.collect()
    }
}
