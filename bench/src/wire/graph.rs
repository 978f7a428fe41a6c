//! The graph that every server is given: the same for the same numbers, so that what a server
//! answers can be compared with it. Users follow users, and like and favor posts; whom and what is
//! drawn by popularity, and user 0 and post 0 are the most popular. Nothing here knows a server.

mod zipf;

use fastrand::Rng;

use self::zipf::Zipf;

/// Milliseconds since 1970 of the oldest edge: a moment that has passed.
const FIRST_SINCE_MS: u64 = 1_735_689_600_000;
const SINCE_SPAN_MS: u64 = 30 * 24 * 60 * 60 * 1_000;
/// Ids have 19 digits, as those of id generators by time do.
const FIRST_ID: u64 = 1_000_000_000_000_000_000;
const IDS: u64 = 8_000_000_000_000_000_000;
/// Posts that were viewed and played are the most popular ones.
const COUNTED_POSTS_MAX: u32 = 100_000;
/// Fewer would have some draw the same few again and again.
const TARGETS_TO_EDGES_MIN: u32 = 20;

/// The kinds of edges, in the order in which everything here speaks of them.
pub const KINDS: [&str; 3] = ["follow", "like", "favorite"];
/// What a feed shows of a post, in this order. The last two are counters.
pub const TALLIES: [&str; 4] = ["like", "favorite", "view", "play_seconds"];
pub const FOLLOW: usize = 0;
pub const LIKE: usize = 1;
pub const FAVORITE: usize = 2;

/// By index, not by id.
pub type User = u32;
pub type Post = u32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    pub source: u32,
    pub target: u32,
    pub since_ms: u64,
}

pub struct Graph {
    users: u32,
    posts: u32,
    /// Outgoing edges of each user, of each kind.
    degree: u32,
}

impl Graph {
    pub fn new(edges: u64, users: u32) -> anyhow::Result<Graph> {
        let degree = u32::try_from(edges / u64::from(users.max(1)))?;
        anyhow::ensure!(degree > 0, "{edges} edges leave none for each of {users} users");
        anyhow::ensure!(
            users / TARGETS_TO_EDGES_MIN >= degree,
            "{degree} edges for each of {users} users: give more users or fewer edges"
        );
        Ok(Graph { users, posts: 2 * users, degree })
    }

    pub fn users(&self) -> u32 {
        self.users
    }

    pub fn posts(&self) -> u32 {
        self.posts
    }

    /// Of each kind.
    pub fn edges(&self) -> u64 {
        u64::from(self.users) * u64::from(self.degree)
    }

    /// Of all kinds.
    pub fn all_edges(&self) -> u64 {
        KINDS.len() as u64 * self.edges()
    }

    pub fn user_id(&self, user: User) -> u64 {
        FIRST_ID + mix(u64::from(user)) % IDS
    }

    pub fn post_id(&self, post: Post) -> u64 {
        FIRST_ID + mix(1 << 40 | u64::from(post)) % IDS
    }

    pub fn target_id(&self, kind: usize, target: u32) -> u64 {
        if kind == FOLLOW { self.user_id(target) } else { self.post_id(target) }
    }

    /// Any of them, the popular ones more often.
    pub fn popular_post(&self, random: &mut Rng) -> Post {
        Zipf::new(self.posts).draw(random)
    }

    pub fn author(&self, post: Post) -> User {
        (mix(2 << 40 | u64::from(post)) % u64::from(self.users)) as u32
    }

    pub fn views(&self, post: Post) -> u64 {
        if post < COUNTED_POSTS_MAX { 1 + mix(3 << 40 | u64::from(post)) % 1_000_000 } else { 0 }
    }

    pub fn played(&self, post: Post) -> u64 {
        if post < COUNTED_POSTS_MAX { 1 + mix(4 << 40 | u64::from(post)) % 10_000 } else { 0 }
    }

    pub fn counted_posts(&self) -> u32 {
        self.posts.min(COUNTED_POSTS_MAX)
    }

    /// The user's edges of this kind, each to another target.
    pub fn outgoing(&self, kind: usize, source: User) -> Vec<Edge> {
        let mut random = Rng::with_seed(mix((5 + kind as u64) << 40 | u64::from(source)));
        let zipf = Zipf::new(if kind == FOLLOW { self.users } else { self.posts });
        let mut edges: Vec<Edge> = Vec::with_capacity(self.degree as usize);
        while edges.len() < self.degree as usize {
            let target = zipf.draw(&mut random);
            let since_ms = FIRST_SINCE_MS + random.u64(..SINCE_SPAN_MS);
            let known = edges.iter().any(|edge| edge.target == target);
            if !known && (kind != FOLLOW || target != source) {
                edges.push(Edge { source, target, since_ms });
            }
        }
        edges
    }

    /// All edges of a kind, by target.
    pub fn by_target(&self, kind: usize) -> Vec<Edge> {
        let mut edges: Vec<Edge> =
            (0..self.users).flat_map(|source| self.outgoing(kind, source)).collect();
        edges.sort_unstable_by_key(|edge| edge.target);
        edges
    }
}

/// Spreads numbers that follow each other over all of 64 bits (splitmix64).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_graph_is_the_same_again_and_each_edge_is_another() {
        let graph = Graph::new(20_000, 2_000).expect("a graph");
        for kind in 0..KINDS.len() {
            for source in [0, 1, 1_999] {
                let edges = graph.outgoing(kind, source);
                assert_eq!(edges, graph.outgoing(kind, source));
                let mut targets: Vec<u32> = edges.iter().map(|edge| edge.target).collect();
                targets.sort_unstable();
                targets.dedup();
                assert_eq!(targets.len(), 10);
                assert!(kind != FOLLOW || !targets.contains(&source));
            }
        }
        assert_eq!(graph.by_target(LIKE).len(), 20_000);
    }

    #[test]
    fn ids_have_19_digits_and_differ() {
        let graph = Graph::new(20_000, 2_000).expect("a graph");
        let mut ids: Vec<u64> = (0..graph.users()).map(|user| graph.user_id(user)).collect();
        ids.extend((0..graph.posts()).map(|post| graph.post_id(post)));
        assert!(ids.iter().all(|id| id.to_string().len() == 19));
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }

    #[test]
    fn too_dense_a_graph_is_refused() {
        assert!(Graph::new(100_000, 1_000).is_err());
        assert!(Graph::new(10, 1_000).is_err());
    }
}
