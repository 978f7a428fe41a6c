//! The cluster's memory: what instances share in Redis so that reads need not ask the database. It
//! may be slow, away, flushed or of yesterday: every answer from it is either right or none.
//!
//! `tier` is one Redis address. Parts that must be told of every write: the existence filter and
//! complete outgoing lists. `plans` is what the database says of such a part, `filter` and `lists` ask
//! and tell by it, `keeper` fills the filter and looks after both. Values that follow the appliers:
//! `tallies` and the newest entries of `incoming` lists are asked and filled by whoever reads,
//! `follower` keeps them right, `epoch` is how all of them are forgotten. What is missed is filled
//! behind (`filler`).

pub mod epoch;
mod filler;
pub mod filter;
pub mod follower;
pub mod incoming;
pub mod keeper;
mod list_counts;
pub mod lists;
pub mod plans;
mod status;
pub mod tallies;
pub mod tier;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::crew::Crew;
use guanxi_core::snapshot::{IncomingList, Wanted};
use guanxi_model::filter::{Say, met};
use guanxi_model::{Catalog, EdgeKey, EdgeRow, GroupsKey, NodeKey, Request, TallyRow};
use tokio::runtime::Handle;

use self::filler::FillThreads;
use self::filter::{ExistenceFilter, FilterFigures};
use self::incoming::packed::Newest;
use self::incoming::{FoundNewest, Incoming};
pub use self::list_counts::ListFigures;
use self::lists::packed::{KeptList, OutgoingList};
use self::lists::{CachedList, Lists, WriteMark};
use self::plans::{MemoryPart, Plans};
use self::tallies::{RecalledTallies, Tallies, TalliesFound, TallyFigures};
use self::tier::{MemoryError, Tier, TierFigures};
use super::cache::{ReadCache, TalliesKey};
use super::snapshot::Remembered;
use super::sql::commit_deadline::CommitBy;
use super::sql::{Database, SqlError};

/// Fills a string by a right that was taken before.
const FILL: &str = include_str!("memory/fill.lua");

/// How long a write may wait until nobody believes a memory that cannot be told.
const COMMIT_WAIT: Duration = Duration::from_secs(5);

/// Where the memory is.
#[derive(Clone)]
pub struct MemorySettings {
    /// Each may hold a password, and several be the same; a part without one is done without.
    pub filter_url: Option<String>,
    pub list_url: Option<String>,
    pub tally_url: Option<String>,
    /// Where connections are looked after.
    pub runtime: Handle,
}

/// Which parts there are; the passwords of their addresses are never shown.
impl fmt::Debug for MemorySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemorySettings { filter_url, list_url, tally_url, .. } = self;
        f.debug_struct("MemorySettings")
            .field("filter", &filter_url.is_some())
            .field("list", &list_url.is_some())
            .field("tally", &tally_url.is_some())
            .finish_non_exhaustive()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum MemoryStartError {
    #[error("cache.redis: {0}")]
    Address(#[from] MemoryError),
    #[error(transparent)]
    Start(#[from] io::Error),
}

/// What an operator should know of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    pub tier: TierFigures,
    pub filter: FilterFigures,
    /// Whether checks may end in the filter, as far as this instance knows.
    pub serves: bool,
    pub lists: ListFigures,
    /// The same for lists.
    pub lists_serve: bool,
    /// Where tallies are kept, and with them incoming lists.
    pub tallies: Option<TallyFigures>,
    pub incoming: ListFigures,
}

#[derive(Debug)]
pub struct SharedMemory {
    filter: Arc<ExistenceFilter>,
    filter_part: Kit,
    lists: Arc<Lists>,
    lists_part: Kit,
    filler: Option<FillThreads<GroupsKey>>,
    tallies: Option<Arc<Tallies>>,
    incoming: Option<Incoming>,
}

/// What a part stands on: its address, where there is one, and its plan.
#[derive(Debug, Clone)]
pub struct Kit {
    pub tier: Option<Tier>,
    pub plans: Arc<Plans>,
}

/// The addresses of filter, lists and tallies; one connection for those that are the same.
fn tiers(crew: &Crew, settings: &MemorySettings) -> Result<[Option<Tier>; 3], MemoryError> {
    let MemorySettings { filter_url, list_url, tally_url, runtime } = settings;
    let mut known: Vec<(&str, Tier)> = Vec::new();
    let mut tiers = [None, None, None];
    for (tier, url) in tiers.iter_mut().zip([filter_url, list_url, tally_url]) {
        let Some(url) = url.as_deref() else { continue };
        let same = known.iter().find(|(other, _)| *other == url).map(|(_, tier)| tier.clone());
        let shared = same.map_or_else(|| Tier::start(url, runtime, crew), Ok)?;
        known.push((url, shared.clone()));
        *tier = Some(shared);
    }
    Ok(tiers)
}

impl SharedMemory {
    /// Begins to connect. An instance without settings takes part, too: what others believe must
    /// not lack what it writes.
    pub fn start(
        crew: &Crew,
        settings: Option<&MemorySettings>,
        database: Arc<Database>,
    ) -> Result<SharedMemory, MemoryStartError> {
        let [filter_tier, list_tier, tally_tier] =
            settings.map(|settings| tiers(crew, settings)).transpose()?.unwrap_or_default();
        let filter_plans = Plans::start(crew, MemoryPart::Filter, database.clone())?;
        let list_plans = Plans::start(crew, MemoryPart::Lists, database.clone())?;
        let filter = Arc::new(ExistenceFilter::new(filter_tier.clone(), filter_plans.clone()));
        filter.watch();
        let lists = Arc::new(Lists::new(list_tier.clone(), list_plans.clone()));
        let filler = list_tier
            .as_ref()
            .map(|tier| lists::filler::start(crew, &lists, tier, &database))
            .transpose()?;
        // In the Redis of tallies: what follows the appliers is followed in one.
        let start = |tier| Incoming::start(crew, tier, filter_plans.clone(), database.clone());
        let incoming = tally_tier.clone().map(start).transpose()?;
        let start = |tier| Tallies::start(crew, tier, filter_plans.clone(), database).map(Arc::new);
        let tallies = tally_tier.map(start).transpose()?;
        Ok(SharedMemory {
            filter,
            filter_part: Kit { tier: filter_tier, plans: filter_plans },
            lists,
            lists_part: Kit { tier: list_tier, plans: list_plans },
            filler,
            tallies,
            incoming,
        })
    }

    /// Whether there is one to ask.
    pub fn is_there(&self) -> bool {
        self.any_tier().is_some()
    }

    /// An address for what may stand anywhere.
    pub fn any_tier(&self) -> Option<&Tier> {
        self.tiers().next()
    }

    fn tiers(&self) -> impl Iterator<Item = &Tier> {
        let tallies = self.tallies.as_ref().map(|tallies| tallies.tier());
        let parts = [self.filter_part.tier.as_ref(), self.lists_part.tier.as_ref(), tallies];
        parts.into_iter().flatten()
    }

    pub fn filter_part(&self) -> &Kit {
        &self.filter_part
    }

    pub fn lists_part(&self) -> &Kit {
        &self.lists_part
    }

    pub fn filter(&self) -> &Arc<ExistenceFilter> {
        &self.filter
    }

    pub fn lists(&self) -> &Arc<Lists> {
        &self.lists
    }

    pub fn tallies(&self) -> Option<&Arc<Tallies>> {
        self.tallies.as_ref()
    }

    pub fn incoming(&self) -> Option<&Incoming> {
        self.incoming.as_ref()
    }

    /// Adds what it knows of what is lacked, for others in the process, too; false when that does not
    /// bring the read further.
    pub async fn recall(
        &self,
        catalog: &Catalog,
        cache: &ReadCache,
        lacked: &Wanted,
        remembered: &mut Remembered,
    ) -> bool {
        if !self.is_there() {
            return false;
        }
        let asked = Instant::now();
        let (edges, lists, incoming, tallies, strangers) = tokio::join!(
            self.recall_edges(&lacked.edges),
            self.recall_whole(&lacked.outgoing),
            self.recall_newest(&lacked.incoming),
            self.recall_tallies(catalog, lacked),
            self.strangers(&lacked.nodes, of_node),
        );
        let learned = !(edges.is_empty()
            && lists.is_empty()
            && incoming.is_empty()
            && tallies.known.is_empty()
            && strangers.is_empty());
        // A complete list says how many are in it.
        let counted = incoming.iter().filter(|(_, newest)| newest.complete).count();
        let all_targets = tallies.known.len() == lacked.targets.len()
            || (counted > 0 && counted == lacked.targets.len());
        let all = all_targets && strangers.len() == lacked.nodes.len();
        remembered.asked.get_or_insert(asked);
        remembered.strangers.extend(strangers);
        remembered.edges.extend(edges);
        remembered.lists.extend(lists);
        remembered.incoming.extend(incoming);
        for (node, row) in &tallies.known {
            let key = TalliesKey { node: *node, kinds: lacked.kinds[..].into() };
            cache.keep_tallies(key, row, asked);
        }
        if !lacked.targets.is_empty() && remembered.kinds != lacked.kinds {
            remembered.targets.clear();
            remembered.kinds.clone_from(&lacked.kinds);
        }
        remembered.targets.extend(tallies.known);
        remembered.claims.extend(tallies.claims);
        // Tallies that it does not know the database will be asked for.
        learned && all
    }

    /// What is known of these edges, by the filter and then by complete lists.
    async fn recall_edges(&self, edges: &[EdgeKey]) -> Vec<(EdgeKey, Option<EdgeRow>)> {
        if edges.is_empty() {
            return Vec::new();
        }
        let (mut known, mut maybe) = (Vec::with_capacity(edges.len()), Vec::new());
        for (edge, say) in edges.iter().zip(self.filter.ask(edges).await) {
            match say {
                Say::SurelyNot => known.push((*edge, None)),
                Say::Maybe | Say::Unknown => maybe.push(*edge),
            }
        }
        if !maybe.is_empty() {
            self.recall_listed(&maybe, &mut known).await;
        }
        known
    }

    /// What complete lists say of these edges.
    async fn recall_listed(&self, edges: &[EdgeKey], known: &mut Vec<(EdgeKey, Option<EdgeRow>)>) {
        let mut lists: Vec<GroupsKey> = edges.iter().map(GroupsKey::of).collect();
        lists.sort_unstable();
        lists.dedup();
        let found = self.lists.ask(&lists).await;
        let absent = lists.iter().zip(&found).filter(|(_, found)| **found == CachedList::Absent);
        self.want_lists(&absent.map(|(list, _)| *list).collect::<Vec<_>>());
        for edge in edges {
            let at = lists.binary_search(&GroupsKey::of(edge));
            let found = at.ok().and_then(|at| found.get(at));
            if let Some(CachedList::Kept(KeptList::Whole(list))) = found
                && let Some(row) = list.find(edge.target)
            {
                known.push((*edge, row));
            }
        }
    }

    async fn recall_tallies(&self, catalog: &Catalog, lacked: &Wanted) -> RecalledTallies {
        let Some(tallies) = self.tallies.as_ref().filter(|_| !lacked.targets.is_empty()) else {
            return RecalledTallies::default();
        };
        let TalliesFound { mut recalled, mut absent } =
            tallies.ask(catalog, &lacked.targets, &lacked.kinds).await;
        // No string is made for those that have no number.
        let strangers = self.strangers(&absent, of_node).await;
        absent.retain(|node| !strangers.contains(node));
        let counted = strangers.into_iter().map(|node| (node, TallyRow::default()));
        recalled.known.extend(counted);
        recalled.claims.extend(tallies.claim(absent).await);
        recalled
    }

    /// Those of these that nobody has ever written about, as far as the filter knows them.
    async fn strangers<K: Copy>(&self, keys: &[K], id: impl Fn(&K) -> EdgeKey) -> Vec<K> {
        if keys.is_empty() {
            return Vec::new();
        }
        let items: Vec<EdgeKey> = keys.iter().map(id).collect();
        let says = self.filter.ask(&items).await;
        let surely = keys.iter().zip(says).filter(|(_, say)| *say == Say::SurelyNot);
        surely.map(|(key, _)| *key).collect()
    }

    /// The lists themselves. Those of strangers are empty, and not worth a string.
    async fn recall_whole(&self, lists: &[GroupsKey]) -> Vec<(GroupsKey, Arc<OutgoingList>)> {
        if lists.is_empty() {
            return Vec::new();
        }
        let (mut known, mut absent) = (Vec::with_capacity(lists.len()), Vec::new());
        for (list, found) in lists.iter().zip(self.lists.ask(lists).await) {
            match found {
                CachedList::Kept(KeptList::Whole(packed)) => {
                    known.extend(packed.unpacked().map(|whole| (*list, Arc::new(whole))));
                }
                CachedList::Absent => absent.push(*list),
                CachedList::Kept(_) | CachedList::Unknown => {}
            }
        }
        let strangers = self.strangers(&absent, |list| met(list.tenant, list.source.0)).await;
        absent.retain(|list| !strangers.contains(list));
        self.want_lists(&absent);
        known.extend(strangers.into_iter().map(|list| (list, Arc::default())));
        known
    }

    /// The newest entries of incoming lists. Those of strangers are empty, and not worth a string.
    async fn recall_newest(&self, lists: &[IncomingList]) -> Vec<(IncomingList, Arc<Newest>)> {
        let Some(incoming) = self.incoming.as_ref().filter(|_| !lists.is_empty()) else {
            return Vec::new();
        };
        let (mut known, mut absent) = (Vec::with_capacity(lists.len()), Vec::new());
        for (list, found) in lists.iter().zip(incoming.ask(lists).await) {
            match found {
                FoundNewest::Kept(newest) => known.push((*list, Arc::new(newest))),
                FoundNewest::Absent => absent.push(*list),
                FoundNewest::Unknown => {}
            }
        }
        let strangers = self.strangers(&absent, |list| met(list.tenant, list.target.0)).await;
        absent
            .iter()
            .filter(|list| !strangers.contains(list))
            .for_each(|list| incoming.want(*list));
        known.extend(strangers.into_iter().map(|list| (list, Arc::new(Newest::none()))));
        known
    }

    /// Has lists filled behind.
    fn want_lists(&self, absent: &[GroupsKey]) {
        if let Some(filler) = &self.filler {
            absent.iter().for_each(|list| filler.want(*list));
        }
    }

    /// Before these requests are committed. Nothing is taken back if they are not after all: the
    /// filter may think that more stands than does. Returns until when they may be, at most `by`.
    /// For threads that may block.
    pub fn let_commit(&self, requests: &[&Request], by: CommitBy) -> Result<CommitBy, SqlError> {
        let mut items = Vec::new();
        for change in requests.iter().flat_map(|request| &request.changes) {
            change.filter_items(&mut items);
        }
        self.filter.let_commit(&items, by, Instant::now() + COMMIT_WAIT)
    }

    /// Before a transaction that holds these heads commits; afterwards the mark is lifted, unless
    /// its outcome is in doubt. Returns until when it may commit, at most `by`. For threads that may
    /// block.
    pub fn let_change(
        &self,
        heads: &[GroupsKey],
        by: CommitBy,
    ) -> Result<(WriteMark, CommitBy), SqlError> {
        self.lists.let_commit(heads, by, Instant::now() + COMMIT_WAIT)
    }

    pub fn figures(&self) -> MemoryFigures {
        MemoryFigures {
            tier: self.figures_of_tier(),
            filter: self.filter.figures(),
            serves: self.filter.serves(),
            lists: self.lists.figures(),
            lists_serve: self.lists.serves(),
            tallies: self.tallies.as_ref().map(|tallies| tallies.figures()),
            incoming: self.incoming.as_ref().map(Incoming::figures).unwrap_or_default(),
        }
    }

    /// Of all addresses: reachable when each is, what was sent added up.
    fn figures_of_tier(&self) -> TierFigures {
        let mut met: Vec<&Tier> = Vec::new();
        for tier in self.tiers() {
            if !met.iter().any(|other| other.is(tier)) {
                met.push(tier);
            }
        }
        met.into_iter().map(Tier::figures).reduce(TierFigures::and).unwrap_or_default()
    }

    pub fn close(&self) {
        if let Some(tallies) = &self.tallies {
            tallies.close();
        }
        self.filter_part.plans.close();
        self.lists_part.plans.close();
    }
}

/// The item that says that a node's id was met.
fn of_node(node: &NodeKey) -> EdgeKey {
    met(node.tenant, node.id)
}
