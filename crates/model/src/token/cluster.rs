//! The token of a cluster: the few edges whose target side may still be under way, or a barrier
//! behind which all of them are.

use super::{FORMAT, MODE_CLUSTER, Token};
use crate::codec::{CodecError, Decoder, Encoder};
use crate::edge::{EdgeKey, SourceId, TargetId};
use crate::error::Error;
use crate::kind::KindId;
use crate::node::TenantId;
use crate::secret::Secret;
use crate::time::Millis;
use crate::version::{BarrierId, Version};

/// Edges that a token names; a read looks each of them up. Beyond, a barrier stands for them.
pub const TOKEN_EDGES_MAX: usize = 16;
/// Edges that are gathered before it is known which of them must be named: those of two tokens that
/// were presented, and of what was written.
const GATHERED_EDGES_MAX: usize = 3 * TOKEN_EDGES_MAX;
/// Counters that a token names; beyond, every cache is passed over.
pub const TOKEN_COUNTERS_MAX: usize = 16;

/// An edge as a writer saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenEdge {
    pub kind: KindId,
    pub source: SourceId,
    pub target: TargetId,
    pub version: Version,
}

impl TokenEdge {
    pub fn of(edge: &EdgeKey, version: Version) -> TokenEdge {
        TokenEdge { kind: edge.kind, source: edge.source, target: edge.target, version }
    }

    pub fn key(&self, tenant: TenantId) -> EdgeKey {
        EdgeKey { tenant, kind: self.kind, source: self.source, target: self.target }
    }
}

/// A mark in every partition of the log; who has passed it has seen all that was committed before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBarrier {
    pub id: BarrierId,
    /// When it was raised: marks are forgotten after a while.
    pub at: Millis,
}

/// What a write to a cluster returns and a read may present. It can gather more than fits a text;
/// then a barrier must be raised and stand for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterToken {
    pub tenant: TenantId,
    edges: Vec<TokenEdge>,
    counters: Vec<(KindId, u64)>,
    barrier: Option<TokenBarrier>,
    catalog: u64,
    skips_caches: bool,
    /// More was gathered than fits.
    overflowed: bool,
}

impl ClusterToken {
    /// Stands for nothing yet.
    pub fn new(tenant: TenantId) -> ClusterToken {
        ClusterToken {
            tenant,
            edges: Vec::new(),
            counters: Vec::new(),
            barrier: None,
            catalog: 0,
            skips_caches: false,
            overflowed: false,
        }
    }

    pub fn edges(&self) -> &[TokenEdge] {
        &self.edges
    }

    pub fn barrier(&self) -> Option<TokenBarrier> {
        self.barrier
    }

    /// The revision of the catalog that must be known; 0 asks for none.
    pub fn catalog(&self) -> u64 {
        self.catalog
    }

    /// Whether every cache must be passed over; without this, those of the edges and counters.
    pub fn skips_caches(&self) -> bool {
        self.skips_caches || self.barrier.is_some()
    }

    /// Whether a read of this counter must pass over caches.
    pub fn names_counter(&self, kind: KindId, id: u64) -> bool {
        self.skips_caches() || self.counters.contains(&(kind, id))
    }

    pub fn add_edge(&mut self, edge: TokenEdge) {
        self.gather_edge(edge, TOKEN_EDGES_MAX);
    }

    fn gather_edge(&mut self, edge: TokenEdge, edges_max: usize) {
        let same = |known: &&mut TokenEdge| {
            (known.kind, known.source, known.target) == (edge.kind, edge.source, edge.target)
        };
        if let Some(known) = self.edges.iter_mut().find(same) {
            known.version = known.version.max(edge.version);
        } else if self.edges.len() < edges_max {
            self.edges.push(edge);
        } else {
            self.overflowed = true;
        }
    }

    pub fn add_counter(&mut self, kind: KindId, id: u64) {
        if self.counters.contains(&(kind, id)) {
            return;
        }
        match self.counters.len() < TOKEN_COUNTERS_MAX {
            true => self.counters.push((kind, id)),
            false => self.skip_caches(),
        }
    }

    pub fn add_catalog(&mut self, revision: u64) {
        self.catalog = self.catalog.max(revision);
    }

    /// What was written is cached for a moment, and nothing of it has a place here.
    pub fn skip_caches(&mut self) {
        self.counters.clear();
        self.skips_caches = true;
    }

    /// Names only those of its edges.
    pub fn keep_edges(&mut self, keep: impl Fn(&TokenEdge) -> bool) {
        self.edges.retain(keep);
    }

    /// Stands for what the other stands for, too. It may gather more edges than it can name.
    pub fn merge(&mut self, other: &ClusterToken) {
        for edge in &other.edges {
            self.gather_edge(*edge, GATHERED_EDGES_MAX);
        }
        match other.skips_caches {
            true => self.skip_caches(),
            false => other.counters.iter().for_each(|(kind, id)| self.add_counter(*kind, *id)),
        }
        self.add_catalog(other.catalog);
        self.overflowed |= other.overflowed;
        match (self.barrier, other.barrier) {
            (Some(mine), Some(theirs)) if mine.id != theirs.id => self.overflowed = true,
            (None, theirs) => self.barrier = theirs,
            _ => {}
        }
    }

    /// The same where both have been met: of two barriers that have passed the later one says all.
    pub fn merge_met(&mut self, other: &ClusterToken) {
        let mut other = other.clone();
        let barriers = [self.barrier.take(), other.barrier.take()];
        self.merge(&other);
        self.barrier = barriers.into_iter().flatten().max_by_key(|barrier| barrier.at);
    }

    /// Whether only a barrier that is raised from now on can stand for all of it.
    pub fn needs_barrier(&self) -> bool {
        self.overflowed || self.edges.len() > TOKEN_EDGES_MAX
    }

    /// Whether it stands for edges that it did not gather.
    pub fn left_edges_out(&self) -> bool {
        self.overflowed
    }

    /// Stands for everything that was committed before this barrier was raised.
    pub fn cover(&mut self, barrier: TokenBarrier) {
        self.edges.clear();
        self.barrier = Some(barrier);
        self.overflowed = false;
    }

    pub fn to_text(&self, secret: &Secret) -> String {
        debug_assert!(!self.needs_barrier(), "a token that needs a barrier has no text");
        let mut out = Encoder::with_capacity(64);
        out.u8(FORMAT);
        out.u8(MODE_CLUSTER);
        out.varint(u64::from(self.tenant.0));
        out.varint(self.edges.len() as u64);
        for edge in &self.edges {
            out.varint(u64::from(edge.kind.0));
            out.varint(edge.source.0);
            out.varint(edge.target.0);
            out.fixed_u64(edge.version.0);
        }
        out.varint(self.counters.len() as u64);
        for (kind, id) in &self.counters {
            out.varint(u64::from(kind.0));
            out.varint(*id);
        }
        out.option(self.barrier, |out, barrier| {
            out.fixed_u64(barrier.id.0);
            out.varint(barrier.at.0);
        });
        out.varint(self.catalog);
        out.bool(self.skips_caches);
        secret.sealed(out)
    }

    fn parse(text: &str, tenant: TenantId, secret: &Secret) -> Option<ClusterToken> {
        let body = secret.unsealed(text)?;
        let mut input = Decoder::new(&body);
        let head = (input.u8().ok()?, input.u8().ok()?);
        if head != (FORMAT, MODE_CLUSTER) || input.tenant().ok()? != tenant {
            return None;
        }
        let token = decode(&mut input, tenant).ok()?;
        let bounded =
            token.edges.len() <= TOKEN_EDGES_MAX && token.counters.len() <= TOKEN_COUNTERS_MAX;
        bounded.then_some(token)
    }
}

fn decode(input: &mut Decoder<'_>, tenant: TenantId) -> Result<ClusterToken, CodecError> {
    let mut token = ClusterToken::new(tenant);
    for _ in 0..input.count()? {
        token.edges.push(TokenEdge {
            kind: input.kind_id()?,
            source: SourceId(input.varint()?),
            target: TargetId(input.varint()?),
            version: Version(input.fixed_u64()?),
        });
    }
    for _ in 0..input.count()? {
        token.counters.push((input.kind_id()?, input.varint()?));
    }
    token.barrier = input.option(|input| {
        Ok(TokenBarrier { id: BarrierId(input.fixed_u64()?), at: Millis(input.varint()?) })
    })?;
    token.catalog = input.varint()?;
    token.skips_caches = input.bool()?;
    input.finish()?;
    Ok(token)
}

/// A token of either deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnyToken {
    Embedded(Token),
    Cluster(ClusterToken),
}

impl AnyToken {
    pub fn parse(text: &str, tenant: TenantId, secret: &Secret) -> Result<AnyToken, Error> {
        match ClusterToken::parse(text, tenant, secret) {
            Some(token) => Ok(AnyToken::Cluster(token)),
            None => Token::parse(text, tenant, secret).map(AnyToken::Embedded),
        }
    }

    pub fn to_text(&self, secret: &Secret) -> String {
        match self {
            AnyToken::Embedded(token) => token.to_text(secret),
            AnyToken::Cluster(token) => token.to_text(secret),
        }
    }

    /// Whether it has a text only with a barrier that is raised from now on.
    pub fn needs_barrier(&self) -> bool {
        matches!(self, AnyToken::Cluster(token) if token.needs_barrier())
    }

    /// What stands for both.
    pub fn merged(self, other: AnyToken) -> AnyToken {
        match (self, other) {
            (AnyToken::Embedded(first), AnyToken::Embedded(second)) => {
                // A replayed answer may be older than the token that the caller already holds.
                let keeps = first.epoch == second.epoch && first.position > second.position;
                AnyToken::Embedded(if keeps { first } else { second })
            }
            (AnyToken::Cluster(mut first), AnyToken::Cluster(second)) => {
                first.merge(&second);
                AnyToken::Cluster(first)
            }
            // An embedded token in a cluster counts as met.
            (cluster @ AnyToken::Cluster(_), _) | (_, cluster) => cluster,
        }
    }

    /// What stands for both, which have been met.
    pub fn merged_met(self, other: AnyToken) -> AnyToken {
        match (self, other) {
            (AnyToken::Cluster(mut first), AnyToken::Cluster(second)) => {
                first.merge_met(&second);
                AnyToken::Cluster(first)
            }
            (first, second) => first.merged(second),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Epoch, Position};
    use super::*;
    use crate::secret::OPAQUE_TEXT_BYTES_MAX;

    const TENANT: TenantId = TenantId(1);

    fn edge(id: u64, version: u64) -> TokenEdge {
        TokenEdge {
            kind: KindId(u16::MAX),
            source: SourceId(u64::MAX),
            target: TargetId(u64::MAX - id),
            version: Version(version),
        }
    }

    fn largest() -> ClusterToken {
        let mut token = ClusterToken::new(TENANT);
        for id in 0..TOKEN_EDGES_MAX as u64 {
            token.add_edge(edge(id, u64::MAX - id));
        }
        for id in 0..TOKEN_COUNTERS_MAX as u64 {
            token.add_counter(KindId(u16::MAX), u64::MAX - id);
        }
        token.add_catalog(u64::MAX);
        token.barrier =
            Some(TokenBarrier { id: BarrierId(u64::MAX), at: BarrierId(u64::MAX).time() });
        token
    }

    #[test]
    fn a_token_survives_its_text_and_nothing_else_does() {
        let secret = Secret::new([1; 32]);
        let token = largest();
        assert!(!token.needs_barrier());
        let text = token.to_text(&secret);
        assert!(text.len() <= OPAQUE_TEXT_BYTES_MAX, "{}", text.len());
        assert_eq!(AnyToken::parse(&text, TENANT, &secret), Ok(AnyToken::Cluster(token)));
        assert!(
            AnyToken::parse(&text, TenantId(2), &secret).is_err(),
            "a token belongs to its tenant"
        );
        assert!(Token::parse(&text, TENANT, &secret).is_err(), "nor is it an embedded one");
        for at in (0..text.len()).step_by(7) {
            let mut mangled = text.clone().into_bytes();
            mangled[at] = if mangled[at] == b'A' { b'B' } else { b'A' };
            let mangled = String::from_utf8(mangled).unwrap();
            assert!(AnyToken::parse(&mangled, TENANT, &secret).is_err(), "{mangled}");
        }
        let embedded = Token { tenant: TENANT, epoch: Epoch(1), position: Position(7) };
        assert_eq!(
            AnyToken::parse(&embedded.to_text(&secret), TENANT, &secret),
            Ok(AnyToken::Embedded(embedded))
        );
    }

    #[test]
    fn a_merged_token_stands_for_both() {
        let mut first = ClusterToken::new(TENANT);
        first.add_edge(edge(1, 10));
        first.add_edge(edge(2, 10));
        first.add_counter(KindId(5), 1);
        let mut second = ClusterToken::new(TENANT);
        second.add_edge(edge(2, 20));
        second.add_edge(edge(3, 5));
        second.add_catalog(7);
        first.merge(&second);
        assert_eq!(first.edges(), [edge(1, 10), edge(2, 20), edge(3, 5)]);
        assert!(first.names_counter(KindId(5), 1) && !first.names_counter(KindId(5), 2));
        assert_eq!(first.catalog(), 7);
        assert!(!first.needs_barrier());
        // An older version never takes a newer one's place.
        first.add_edge(edge(2, 15));
        assert_eq!(first.edges()[1].version, Version(20));
    }

    #[test]
    fn those_that_are_met_are_merged_whole() {
        let token = |first: u64, barrier: Option<u64>| {
            let mut token = ClusterToken::new(TENANT);
            token.barrier =
                barrier.map(|id| TokenBarrier { id: BarrierId(id), at: Millis(100 - id) });
            (first..first + TOKEN_EDGES_MAX as u64).for_each(|id| token.add_edge(edge(id, 1)));
            token
        };
        let (first, second) = (token(0, Some(1)), token(20, Some(2)));
        let mut both = first.clone();
        both.merge_met(&second);
        assert_eq!(both.edges().len(), 2 * TOKEN_EDGES_MAX, "a read sees to all of them");
        assert_eq!(both.barrier(), first.barrier(), "the later one");
        assert!(both.needs_barrier(), "so many are not named");
        both.merge(&token(40, None));
        assert!(!both.left_edges_out());
        let mut more = both.clone();
        more.merge(&token(60, None));
        assert!(more.left_edges_out());
        both.keep_edges(|kept| kept.target.0 >= u64::MAX - 3);
        assert_eq!(both.edges().len(), 4);
        assert!(!both.needs_barrier());
        let mut bare = ClusterToken::new(TENANT);
        bare.merge_met(&second);
        assert_eq!(bare.barrier(), second.barrier());
    }

    #[test]
    fn what_does_not_fit_asks_for_a_barrier_that_covers_it() {
        let mut token = largest();
        token.barrier = None;
        token.add_edge(edge(99, 1));
        assert!(token.needs_barrier());
        let mut merged = ClusterToken::new(TENANT);
        merged.merge(&token);
        assert!(merged.needs_barrier(), "it is not lost on the way");
        let barrier = TokenBarrier { id: BarrierId(3), at: Millis(9) };
        merged.cover(barrier);
        assert!(!merged.needs_barrier() && merged.edges().is_empty());
        assert_eq!(merged.barrier(), Some(barrier));
        // What comes after the barrier stands beside it; two barriers do not fit.
        merged.add_edge(edge(1, 1));
        assert!(!merged.needs_barrier());
        let mut other = ClusterToken::new(TENANT);
        other.cover(TokenBarrier { id: BarrierId(4), at: Millis(9) });
        merged.merge(&other);
        assert!(merged.needs_barrier());
        // Counters need none: they are passed over caches as a whole.
        let mut counters = largest();
        counters.add_counter(KindId(1), 1);
        assert!(!counters.needs_barrier() && counters.names_counter(KindId(2), 2));
    }
}
