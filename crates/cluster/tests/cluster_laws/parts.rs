//! The four parts of the memory under the laws.

use std::sync::Arc;

use guanxi_cluster::cache::ReadCache;
use guanxi_cluster::memory::follower::reread;
use guanxi_cluster::memory::incoming::FoundNewest;
use guanxi_cluster::memory::incoming::packed::Newest;
use guanxi_cluster::memory::lists::packed::OutgoingList;
use guanxi_cluster::memory::tallies::packed::TallyField;
use guanxi_cluster::memory::tallies::{RecalledTallies, Tallies};
use guanxi_cluster::memory::{MemorySettings, SharedMemory, epoch};
use guanxi_cluster::snapshot::Remembered;
use guanxi_core::snapshot::Wanted;
use guanxi_model::filter::Say;
use guanxi_model::{Change, GroupsKey, NodeKey, Which};

use crate::ground::{Answer, Cache, Ground, LateFill};
use crate::laws::{Law, run};
use crate::world::{FOLLOW, TENANT, USER, edge, eventually, put, run as run_sql, soon};

/// Whom or what a subject comes to be related to; the next ones by turns.
const OTHERS: u64 = 50_000;

fn ids(ground: &Ground, select: &str) -> Answer {
    let mut session = ground.stage.database.session(soon()).unwrap();
    session.rows(select).unwrap().into_iter().map(mysql::from_row).collect()
}

/// In even turns an edge comes, in odd ones it goes.
fn change(source: u64, target: u64, turn: u64) -> Change {
    match turn % 2 {
        0 => put(FOLLOW, source, target),
        _ => Change::Delete { edge: edge(FOLLOW, source, target), strict: false },
    }
}

/// By an instance without a Redis.
fn write_unheard(ground: &Ground, change: Change) {
    let deaf = ground.deaf();
    ground.stage.write(&deaf, vec![change]);
    deaf.close();
}

/// The tables are changed by hand; as whoever does that must, it makes everybody forget.
fn change_by_hand(ground: &Ground, statement: &str) {
    run_sql(&ground.stage.database, statement);
    epoch::raise(&ground.stage.database).unwrap();
}

/// Subjects are edges from them to one target; it can say that one surely does not stand.
pub struct FilterPart;

impl Cache for FilterPart {
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings {
        MemorySettings { filter_url: Some(url), ..settings }
    }

    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer> {
        let edges = [edge(FOLLOW, of, OTHERS)];
        let says = ground.stage.runtime.block_on(memory.filter().ask(&edges));
        (says == [Say::SurelyNot]).then(Vec::new)
    }

    fn truth(&self, ground: &Ground, of: u64) -> Answer {
        let select = "SELECT target FROM outgoing WHERE kind=1 AND state<>2";
        ids(ground, &format!("{select} AND source={of} AND target={OTHERS}"))
    }

    fn says(&self, truth: &Answer) -> bool {
        truth.is_empty()
    }

    fn follows(&self) -> bool {
        false
    }

    /// It forgets no edge, so an edge that comes once is all that changes what it says.
    fn change(&self, of: u64, _turn: u64) -> Change {
        put(FOLLOW, of, OTHERS)
    }

    fn change_unheard(&self, ground: &Ground, of: u64) {
        let gone = Change::Delete { edge: edge(FOLLOW, of, OTHERS), strict: false };
        write_unheard(ground, gone);
        // One of which it has said that it does not stand comes.
        let untouched = of + 4;
        write_unheard(ground, put(FOLLOW, untouched, OTHERS));
    }

    fn begin_fill<'a>(
        &'a self,
        _: &'a Ground,
        _: &'a SharedMemory,
        _: u64,
    ) -> Option<LateFill<'a>> {
        None
    }

    fn filled(&self, _memory: &SharedMemory) -> u64 {
        0
    }

    fn exceptions(&self) -> &'static [(Law, &'static str)] {
        &[(
            Law::LateFill,
            "no reader fills it: its keeper does, while all writers set their own bits",
        )]
    }
}

/// Subjects are sources.
pub struct OutgoingPart;

impl OutgoingPart {
    fn list(of: u64) -> GroupsKey {
        GroupsKey::of(&edge(FOLLOW, of, OTHERS))
    }
}

impl Cache for OutgoingPart {
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings {
        MemorySettings { list_url: Some(url), ..settings }
    }

    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer> {
        let wanted = Wanted { outgoing: vec![OutgoingPart::list(of)], ..Wanted::default() };
        let (catalog, cache) = (ground.catalog(), ReadCache::default());
        let mut remembered = Remembered::default();
        let recalled = memory.recall(&catalog, &cache, &wanted, &mut remembered);
        ground.stage.runtime.block_on(recalled);
        let (_, list): &(_, Arc<OutgoingList>) = remembered.lists.first()?;
        Some(list.rows.iter().map(|(target, _)| target.0).collect())
    }

    fn truth(&self, ground: &Ground, of: u64) -> Answer {
        let select = "SELECT target FROM outgoing WHERE kind=1 AND state<>2 AND source=";
        ids(ground, &format!("{select}{of} ORDER BY target"))
    }

    fn follows(&self) -> bool {
        false
    }

    fn change(&self, of: u64, turn: u64) -> Change {
        change(of, OTHERS + turn / 2, turn)
    }

    fn change_unheard(&self, ground: &Ground, of: u64) {
        write_unheard(ground, put(FOLLOW, of, OTHERS - 1));
    }

    fn begin_fill<'a>(
        &'a self,
        ground: &'a Ground,
        memory: &'a SharedMemory,
        of: u64,
    ) -> Option<LateFill<'a>> {
        let runtime = &ground.stage.runtime;
        let lease = runtime.block_on(memory.lists().lease(OutgoingPart::list(of)))?;
        let nothing = OutgoingList::default();
        Some(Box::new(move || runtime.block_on(memory.lists().fill(lease, Some(&nothing)))))
    }

    fn filled(&self, memory: &SharedMemory) -> u64 {
        memory.figures().lists.filled
    }
}

/// Subjects are targets, by the number of their followers.
pub struct TallyPart;

impl TallyPart {
    /// What is known of a node, and the rights to fill what is not.
    fn asked(ground: &Ground, tallies: &Tallies, node: NodeKey) -> RecalledTallies {
        let asked = async {
            let asked = tallies.ask(&ground.catalog(), &[node], &[FOLLOW]).await;
            let mut recalled = asked.recalled;
            recalled.claims.extend(tallies.claim(asked.absent).await);
            recalled
        };
        ground.stage.runtime.block_on(asked)
    }

    fn node(of: u64) -> NodeKey {
        NodeKey { tenant: TENANT, node_type: USER, id: of }
    }
}

impl Cache for TallyPart {
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings {
        MemorySettings { tally_url: Some(url), ..settings }
    }

    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer> {
        let (tallies, node) = (memory.tallies().unwrap(), TallyPart::node(of));
        let asked = TallyPart::asked(ground, tallies, node);
        // As whoever asks the database for what is not known does.
        for claim in &asked.claims {
            let read = reread::incoming(&ground.stage.database, &[(node, FOLLOW)]).unwrap();
            tallies.fill(claim, read[&node].clone());
        }
        let (_, row) = asked.known.first()?;
        Some(vec![row.get(FOLLOW, Which::Incoming).cast_unsigned()])
    }

    fn truth(&self, ground: &Ground, of: u64) -> Answer {
        let select = "SELECT CAST(COALESCE(SUM(incoming),0) AS UNSIGNED) FROM tally WHERE kind=1";
        ids(ground, &format!("{select} AND slot=0 AND node={of}"))
    }

    fn follows(&self) -> bool {
        true
    }

    fn change(&self, of: u64, turn: u64) -> Change {
        change(OTHERS + turn / 2, of, turn)
    }

    fn change_unheard(&self, ground: &Ground, of: u64) {
        let update = "UPDATE tally SET incoming=incoming+7,revision=revision+1 WHERE kind=1";
        change_by_hand(ground, &format!("{update} AND slot=0 AND node={of}"));
    }

    fn begin_fill<'a>(
        &'a self,
        ground: &'a Ground,
        memory: &'a SharedMemory,
        of: u64,
    ) -> Option<LateFill<'a>> {
        let (tallies, node) = (memory.tallies().unwrap(), TallyPart::node(of));
        let asked = TallyPart::asked(ground, tallies, node);
        let claim = *asked.claims.first()?;
        let field = |which| TallyField { kind: FOLLOW, which, stamp: 0, value: 0 };
        let nothing = [Which::Incoming, Which::PendingIncoming].map(field).to_vec();
        Some(Box::new(move || {
            let came = || {
                let figures = tallies.figures();
                figures.fills + figures.dropped
            };
            let before = came();
            tallies.fill(&claim, nothing);
            eventually("it came", || came() > before);
        }))
    }

    fn filled(&self, memory: &SharedMemory) -> u64 {
        memory.tallies().unwrap().figures().fills
    }
}

/// Subjects are targets, by their followers.
pub struct IncomingPart;

impl Cache for IncomingPart {
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings {
        MemorySettings { tally_url: Some(url), ..settings }
    }

    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer> {
        let lists = [ground.stage.list(FOLLOW, of)];
        let asked = memory.incoming().unwrap().ask(&lists);
        match ground.stage.runtime.block_on(asked).remove(0) {
            FoundNewest::Kept(newest) => Some(newest.entries.iter().map(|it| it.id).collect()),
            FoundNewest::Absent => {
                memory.incoming().unwrap().want(lists[0]);
                None
            }
            FoundNewest::Unknown => None,
        }
    }

    fn truth(&self, ground: &Ground, of: u64) -> Answer {
        let select = "SELECT source FROM incoming WHERE kind=1 AND state=0 AND target=";
        ids(ground, &format!("{select}{of} ORDER BY since DESC,source DESC"))
    }

    fn follows(&self) -> bool {
        true
    }

    fn change(&self, of: u64, turn: u64) -> Change {
        TallyPart.change(of, turn)
    }

    fn change_unheard(&self, ground: &Ground, of: u64) {
        let update = format!("UPDATE incoming SET state=2 WHERE kind=1 AND target={of}");
        change_by_hand(ground, &update);
    }

    fn begin_fill<'a>(
        &'a self,
        ground: &'a Ground,
        memory: &'a SharedMemory,
        of: u64,
    ) -> Option<LateFill<'a>> {
        let (incoming, runtime) = (memory.incoming().unwrap(), &ground.stage.runtime);
        let claim = runtime.block_on(incoming.claim(ground.stage.list(FOLLOW, of)))?;
        let nothing = Newest::none();
        Some(Box::new(move || {
            runtime.block_on(incoming.fill(&claim, &nothing));
        }))
    }

    fn filled(&self, memory: &SharedMemory) -> u64 {
        memory.figures().incoming.filled
    }
}

#[track_caller]
fn all_laws(test: &str, part: &dyn Cache) {
    let Some(ground) = Ground::open(test, part) else { return };
    if let Err(broken) = run(&ground, part) {
        panic!("{test}: {broken}");
    }
}

#[test]
fn the_filter_keeps_the_laws() {
    all_laws("laws of the filter", &FilterPart);
}

#[test]
fn outgoing_lists_keep_the_laws() {
    all_laws("laws of outgoing lists", &OutgoingPart);
}

#[test]
fn tallies_keep_the_laws() {
    all_laws("laws of tallies", &TallyPart);
}

#[test]
fn incoming_lists_keep_the_laws() {
    all_laws("laws of incoming lists", &IncomingPart);
}
