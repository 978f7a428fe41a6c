//! The demo's graph: who follows whom and who likes what in a made-up product. The same number of
//! users and the same seed always give the same graph. It knows nothing of the server.

use std::collections::HashSet;

use fastrand::Rng;

/// Names of groups, as users of both languages would choose them.
pub const GROUP_NAMES: [&str; 6] = ["朋友", "家人", "同事", "close friends", "work", "音乐 music"];

/// Users who have groups; enough to find some, few enough to be made one by one.
const GROUPED_USERS_MAX: usize = 20;
/// Whoever follows fewer has no use for groups.
const GROUPED_FOLLOWS_MIN: u32 = 6;
/// A follow goes to somebody who is already followed with this probability: the rich get richer,
/// and the number of followers has the long tail of real products.
const ATTACHMENT: f64 = 0.8;
/// Those who are followed from the beginning.
const FOUNDERS: u32 = 5;
const FOLLOWS_MIN: f64 = 2.0;
const FOLLOWS_MAX: f64 = 150.0;
const FOLLOW_BACK: f64 = 0.25;
/// Whoever follows so many follows nobody back: celebrities would otherwise reach the limit.
const FOLLOW_BACK_MAX: u32 = 100;
/// Follows that ask for approval, and stay pending.
const APPROVAL: f64 = 0.005;
const LIKES_MIN: f64 = 1.0;
const LIKES_MAX: f64 = 60.0;
/// How much more liked the first posts are than the last ones.
const LIKES_SKEW: i32 = 3;
const FAVORITE: f64 = 0.15;
const USERS_PER_POST: u32 = 2;
const USERS_PER_BLOCK: u32 = 100;
/// Tries to find someone new for a list, before it stays shorter.
const TRIES_PER_ITEM: u32 = 4;

pub struct Graph {
    pub follows: Vec<Follow>,
    pub likes: Vec<Like>,
    /// Source and target; no follow of the graph stands between the two.
    pub blocks: Vec<(u32, u32)>,
    /// The author of post 1, 2, 3…
    pub authors: Vec<u32>,
    /// How often post 1, 2, 3… was seen.
    pub views: Vec<u64>,
    /// Users who have all the groups of `GROUP_NAMES`.
    pub grouped: Vec<u32>,
}

pub struct Follow {
    pub source: u32,
    pub target: u32,
    pub group: Option<&'static str>,
    pub approval: bool,
}

pub struct Like {
    pub user: u32,
    pub post: u32,
    pub favorite: bool,
}

impl Graph {
    pub fn new(users: u32, seed: u64) -> Graph {
        let mut random = Rng::with_seed(seed);
        let mut walk = GraphInMaking::new(users);
        for source in 1..=users {
            walk.follow_some(source, &mut random);
        }
        let grouped = walk.grouped();
        let mut follows = std::mem::take(&mut walk.follows);
        for follow in &mut follows {
            follow.approval = random.f64() < APPROVAL;
            let named = grouped.binary_search(&follow.source).is_ok() && random.f64() < 0.7;
            follow.group = named.then(|| GROUP_NAMES[random.usize(..GROUP_NAMES.len())]);
        }
        let authors: Vec<u32> = (0..(users / USERS_PER_POST).max(1))
            .map(|_| walk.followed[random.usize(..walk.followed.len())])
            .collect();
        let likes = likes(users, authors.len() as u32, &mut random);
        let mut views: Vec<u64> = authors.iter().map(|_| random.u64(1..20)).collect();
        for like in &likes {
            views[like.post as usize - 1] += random.u64(5..40);
        }
        let blocks = (0..users.div_ceil(USERS_PER_BLOCK))
            .map(|_| (random.u32(1..=users), random.u32(1..=users)))
            .filter(|&(source, target)| source != target && !walk.either(source, target))
            .collect();
        Graph { follows, likes, blocks, authors, views, grouped }
    }
}

/// The follows while they are being made.
struct GraphInMaking {
    users: u32,
    follows: Vec<Follow>,
    known: HashSet<(u32, u32)>,
    /// By user; the place 0 is nobody's.
    outgoing: Vec<u32>,
    /// Every target once per follower, so that a random one is as likely as it is followed.
    followed: Vec<u32>,
}

impl GraphInMaking {
    fn new(users: u32) -> GraphInMaking {
        GraphInMaking {
            users,
            follows: Vec::new(),
            known: HashSet::new(),
            outgoing: vec![0; users as usize + 1],
            followed: (1..=FOUNDERS.min(users)).collect(),
        }
    }

    fn follow_some(&mut self, source: u32, random: &mut Rng) {
        let wanted = long_tailed(FOLLOWS_MIN, FOLLOWS_MAX, random).min(self.users - 1);
        let mut found = 0;
        for _ in 0..wanted * TRIES_PER_ITEM {
            if found == wanted {
                break;
            }
            let target = match random.f64() < ATTACHMENT {
                true => self.followed[random.usize(..self.followed.len())],
                false => random.u32(1..=self.users),
            };
            if !self.follow(source, target) {
                continue;
            }
            found += 1;
            let may_follow_back = self.outgoing[target as usize] < FOLLOW_BACK_MAX;
            if may_follow_back && random.f64() < FOLLOW_BACK {
                self.follow(target, source);
            }
        }
    }

    fn follow(&mut self, source: u32, target: u32) -> bool {
        if source == target || !self.known.insert((source, target)) {
            return false;
        }
        self.follows.push(Follow { source, target, group: None, approval: false });
        self.outgoing[source as usize] += 1;
        self.followed.push(target);
        true
    }

    fn either(&self, one: u32, other: u32) -> bool {
        self.known.contains(&(one, other)) || self.known.contains(&(other, one))
    }

    /// In order of their ids.
    fn grouped(&self) -> Vec<u32> {
        let many =
            (1..=self.users).filter(|user| self.outgoing[*user as usize] >= GROUPED_FOLLOWS_MIN);
        many.take(GROUPED_USERS_MAX).collect()
    }
}

fn likes(users: u32, posts: u32, random: &mut Rng) -> Vec<Like> {
    let mut likes = Vec::new();
    for user in 1..=users {
        let wanted = long_tailed(LIKES_MIN, LIKES_MAX, random);
        let mut liked: Vec<u32> = Vec::new();
        for _ in 0..wanted {
            let place = random.f64().powi(LIKES_SKEW) * f64::from(posts);
            let post = (place as u32 + 1).min(posts);
            if !liked.contains(&post) {
                liked.push(post);
                likes.push(Like { user, post, favorite: random.f64() < FAVORITE });
            }
        }
    }
    likes
}

/// Mostly near `min`, now and then up to `max`; twice `min` on average.
fn long_tailed(min: f64, max: f64, random: &mut Rng) -> u32 {
    (min / (1.0 - random.f64()).sqrt()).min(max) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_graph() {
        let shape = |seed| {
            let graph = Graph::new(2_000, seed);
            let follows = graph.follows.iter();
            let follows: Vec<_> =
                follows.map(|f| (f.source, f.target, f.group, f.approval)).collect();
            let likes: Vec<_> = graph.likes.iter().map(|l| (l.user, l.post, l.favorite)).collect();
            (follows, likes, graph.blocks, graph.authors, graph.views, graph.grouped)
        };
        assert_eq!(shape(7), shape(7));
        assert_ne!(shape(7), shape(8));
    }

    #[test]
    fn followers_have_a_long_tail_and_rules_hold() {
        let users = 20_000;
        let graph = Graph::new(users, 1);
        let mut incoming = vec![0u32; users as usize + 1];
        let mut outgoing = vec![0u32; users as usize + 1];
        let mut edges = HashSet::new();
        for follow in &graph.follows {
            assert_ne!(follow.source, follow.target);
            assert!(edges.insert((follow.source, follow.target)), "each follow once");
            incoming[follow.target as usize] += 1;
            outgoing[follow.source as usize] += 1;
        }
        assert!(outgoing.iter().all(|count| *count < 2_000), "the limit of follow");
        incoming.sort_unstable();
        let median = incoming[incoming.len() / 2];
        let top = incoming[incoming.len() - 1];
        assert!(median <= 5 && top > 500, "median {median}, top {top}");
        let mutual = edges.iter().filter(|(a, b)| edges.contains(&(*b, *a))).count();
        assert!(mutual * 20 > edges.len(), "{mutual} of {}", edges.len());
        assert!(!graph.blocks.is_empty() && graph.grouped.len() == GROUPED_USERS_MAX);
    }

    #[test]
    fn a_small_graph_is_no_special_case() {
        for users in 2..40 {
            let graph = Graph::new(users, 3);
            assert!(!graph.follows.is_empty() && !graph.authors.is_empty());
        }
    }
}
