//! Cases that a random history meets too seldom, each told as a short script.

use std::ops::ControlFlow;

use guanxi_core::clock::Clock;
use guanxi_core::snapshot::{Direction, Snapshot, TimeRange, Timeline};
use guanxi_model::change::{Field, KindPatch, Put};
use guanxi_model::codec::encode_idempotency;
use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::kind::TimeIndex;
use guanxi_model::limits::TIME_MAX;
use guanxi_model::page::{Order, PagePlace};
use guanxi_model::{Change, EdgeKey, GroupName, GroupsKey, Millis, NodeKey, State, TenantId};

use super::compare::{compare_store, walk};
use super::history::{HOUR_MS, IDS, Scribe, StoreBatch};
use super::reference::{ReferenceStore, part};
use super::{Subject, check, same, worked, write};

/// A store under a script: every batch is followed by a comparison of every answer.
struct Play<'a> {
    scribe: Scribe,
    store: &'a Subject,
    reference: ReferenceStore,
    batches: usize,
}

impl Play<'_> {
    fn on(store: &Subject) -> Result<Play<'_>, String> {
        let (scribe, kinds) = Scribe::new()?;
        let mut play = Play { scribe, store, reference: ReferenceStore::default(), batches: 0 };
        play.take(&kinds)?;
        Ok(play)
    }

    fn write(&mut self, changes: Vec<Change>) -> Result<(), String> {
        let batch = self.scribe.write(changes)?;
        self.take(&batch)
    }

    fn take(&mut self, batch: &StoreBatch) -> Result<(), String> {
        write(self.store, &mut self.reference, batch)?;
        self.batches += 1;
        if self.store.skips(self.batches) {
            return Ok(());
        }
        compare_store(self.store, &self.reference)
    }

    fn put(&self, kind: &str, source: u64, target: u64) -> Result<Put, String> {
        Ok(Put::plain(self.scribe.edge(kind, source, target)?))
    }

    fn in_ms(&self, ms: u64) -> Field<Millis> {
        Field::Set(Millis(self.scribe.clock.now_ms() + ms))
    }
}

/// One edge through everything that moves, keeps or drops its index entries.
pub fn entries(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    for (source, target) in [(1, 2), (u64::MAX, u64::MAX - 1)] {
        for change in life_of_an_edge(&play, source, target)? {
            play.scribe.clock.advance(1);
            play.write(vec![change])?;
        }
        same("edges left", play.reference.edges.len(), 0)?;
    }
    // The same again in one batch: each key is written once.
    let whole_life = life_of_an_edge(&play, 1, 2)?;
    play.write(whole_life)?;
    compare_store(store, &play.reference)
}

fn life_of_an_edge(play: &Play<'_>, source: u64, target: u64) -> Result<Vec<Change>, String> {
    let put = play.put("follow", source, target)?;
    let edge = put.edge;
    let group = GroupName::new("friends").map_err(|error| error.to_string())?;
    let groups = GroupsKey::of(&edge);
    let with_data = |data: &str| Put { data: Field::Set(data.into()), ..put.clone() };
    let expiring = |expires_at| Change::Put(Put { expires_at, ..put.clone() });
    let requested = Put { approval: true, expires_at: play.in_ms(HOUR_MS), ..put.clone() };
    Ok(vec![
        Change::CreateGroup { groups, name: group.clone() },
        Change::Put(requested),
        expiring(play.in_ms(2 * HOUR_MS)),
        Change::Approve { edge },
        Change::AddMember { edge, group: group.clone() },
        Change::Put(with_data("remark")),
        expiring(play.in_ms(3 * HOUR_MS)),
        expiring(Field::Clear),
        Change::DeleteGroup { groups, name: group },
        Change::Delete { edge, strict: true },
        expiring(play.in_ms(HOUR_MS)),
        Change::Delete { edge, strict: true },
    ])
}

/// Edges that stood, that come, that change, that move and that go while a job fills the index.
pub fn built_index(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    let sources = [1, 2, 3, u64::MAX];
    for source in sources {
        let puts = [1, 2, 255, u64::MAX].map(|target| play.put("ring", source, target));
        let puts = puts.into_iter().collect::<Result<Vec<Put>, String>>()?;
        play.scribe.clock.advance(1);
        play.write(puts.into_iter().map(Change::Put).collect())?;
    }
    let kind = play.scribe.kind("ring")?.id;
    play.write(vec![Change::SetKind {
        tenant: TenantId::DEFAULT,
        kind,
        patch: Box::new(KindPatch { outgoing_max: Field::Clear, ..KindPatch::default() }),
    }])?;
    let mut turn = 0;
    while let Some((tenant, job)) = play.scribe.jobs()?.pop() {
        let step = play.scribe.step(tenant, &job, 3)?;
        // In one batch with the step: an edge of its range stays as it is but for its data, the
        // next goes, goes and comes back, or is new.
        let source = sources[turn % sources.len()];
        let mut amended = play.put("ring", source, 1 + turn as u64 % 2)?;
        amended.data = Field::Set(format!("{turn}").into());
        let gone = play.scribe.edge("ring", source, 255)?;
        let mut changes =
            vec![Change::Put(amended), Change::Delete { edge: gone, strict: false }, step];
        if turn % 2 == 0 {
            changes.push(Change::Put(Put::plain(gone)));
        }
        changes.push(Change::Put(play.put("ring", source, 256 + turn as u64 % 2)?));
        play.scribe.clock.advance(turn as u64 % 2);
        play.write(changes)?;
        turn += 1;
        check(turn < 40, "the job comes to no end")?;
    }
    compare_store(store, &play.reference)?;
    let index = play.scribe.kind("ring")?.time_index;
    same("the kind's index", index, TimeIndex::Ready)
}

/// Every range over a list whose edges tie, in both orders, against plain filtering.
pub fn ranges(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    for ids in IDS.chunks(3) {
        let mut changes = Vec::new();
        for id in ids {
            changes.push(Change::Put(play.put("like", *id, 3)?));
            changes.push(Change::Put(play.put("like", 3, *id)?));
        }
        play.write(changes)?;
        play.scribe.clock.advance(2);
    }
    for direction in [Direction::Outgoing, Direction::Incoming] {
        let list = Timeline {
            tenant: TenantId::DEFAULT,
            kind: play.scribe.kind("like")?.id,
            direction,
            id: 3,
            state: State::Live,
        };
        every_range(play.store, &list, &play.reference)?;
    }
    Ok(())
}

fn every_range(store: &Subject, list: &Timeline, reference: &ReferenceStore) -> Result<(), String> {
    let snapshot = store.snapshot();
    let mut number = 0;
    let places = reference.timeline(list);
    same("edges of the list", places.len(), IDS.len())?;
    let mut times = vec![None, Some(Millis(0)), Some(TIME_MAX), Some(Millis(u64::MAX))];
    times.push(Some(Millis(1 << 48)));
    let mut afters = vec![None];
    for place in &places {
        let near = |ms: u64| Some(Millis(place.since.0 + ms));
        times.extend([near(0), near(1)]);
        afters.push(Some(*place));
        afters.push(Some(PagePlace { id: 128, ..*place }));
    }
    times.dedup();
    for (since, until) in
        times.iter().flat_map(|since| times.iter().map(move |until| (*since, *until)))
    {
        for after in &afters {
            for order in [Order::Newest, Order::Oldest] {
                // Stepping by what divides none of the loops' counts meets every value of each.
                number += 1;
                if store.skips(number) {
                    continue;
                }
                let range = TimeRange { since, until, after: *after, order };
                let found = walk(snapshot.as_ref(), list, &range)?;
                same(&format!("{range:?}"), found, part(&places, &range))?;
            }
        }
    }
    Ok(())
}

pub fn breaks(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    let puts = IDS.map(|id| Ok(Change::Put(play.put("like", 3, id)?)));
    let puts = puts.into_iter().collect::<Result<Vec<Change>, String>>()?;
    play.write(puts)?;
    let user = play.scribe.kind("like")?.fixed.source_type;
    for id in [1, 2, 3] {
        let tenant = TenantId::DEFAULT;
        let node = NodeKey { tenant, node_type: user, id };
        play.write(vec![Change::BeginErase { node }])?;
    }
    let edge = play.scribe.edge("like", 3, 1)?;
    let snapshot = store.snapshot();
    for visits_max in 1..=3 {
        let visits = visits(snapshot.as_ref(), &edge, visits_max)?;
        same("visits of each walk", visits, [visits_max; 4])?;
    }
    Ok(())
}

/// How often each walk calls a visitor that breaks at its `visits_max`th visit.
fn visits(
    snapshot: &dyn Snapshot,
    edge: &EdgeKey,
    visits_max: usize,
) -> Result<[usize; 4], String> {
    let EdgeKey { tenant, kind, source, .. } = *edge;
    let list =
        Timeline { tenant, kind, direction: Direction::Outgoing, id: source.0, state: State::Live };
    let mut visits = [0; 4];
    let mut visit = |walk: usize| {
        visits[walk] += 1;
        match visits[walk] >= visits_max {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let range = TimeRange::default();
    let walked = snapshot.timeline(&list, &range, &mut |_| visit(0));
    worked("timeline", walked)?;
    let walked = snapshot.edges_of_source(tenant, kind, source, None, &mut |_, _| visit(1));
    worked("edges_of_source", walked)?;
    let walked = snapshot.edges_of_kind(tenant, kind, None, &mut |_, _| visit(2));
    worked("edges_of_kind", walked)?;
    let walked = snapshot.jobs(tenant, None, &mut |_| visit(3));
    worked("jobs", walked)?;
    Ok(visits)
}

pub fn group_ids(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    let groups = GroupsKey::of(&play.scribe.edge("follow", 1, 2)?);
    let name = GroupName::new("friends").map_err(|error| error.to_string())?;
    let mut given = Vec::new();
    for _ in 0..3 {
        let create = Change::CreateGroup { groups, name: name.clone() };
        play.write(vec![create])?;
        let put = Put { group: Field::Set(name.clone()), ..play.put("follow", 1, 2)? };
        play.write(vec![Change::Put(put)])?;
        let snapshot = store.snapshot();
        let standing = worked("groups", snapshot.groups(&groups))?;
        same("groups", standing.groups.len(), 1)?;
        same("size", standing.groups[0].size, 1)?;
        let id = standing.groups[0].id;
        check(!given.contains(&id), "a group got the id of one before it")?;
        given.push(id);
        let delete = Change::DeleteGroup { groups, name: name.clone() };
        play.write(vec![delete])?;
    }
    Ok(())
}

/// An answer of many parts, and a shorter one under the same key after its time.
pub fn long_answers(store: &Subject) -> Result<(), String> {
    let mut play = Play::on(store)?;
    let key = IdempotencyKey::new("long").map_err(|error| error.to_string())?;
    for changes in [700, 300, 1] {
        let puts = (1..=changes).map(|target| Ok(Change::Put(play.put("like", 99, target)?)));
        let puts = puts.collect::<Result<Vec<Change>, String>>()?;
        let batch = play.scribe.write_keyed(puts, Some(key.as_str()))?;
        write(store, &mut play.reference, &batch)?;
        let expected = play.reference.answers.get(&(TenantId::DEFAULT, key.clone()));
        let bytes = expected.map_or(0, |row| encode_idempotency(row).len());
        // More than two parts, and more than a page of the journal.
        check(changes == 1 || bytes > 5_000, "the answer is not long")?;
        let found = store.snapshot().idempotency(TenantId::DEFAULT, &key);
        same("answer", worked("idempotency", found)?.as_ref(), expected)?;
        play.scribe.clock.advance(25 * HOUR_MS);
    }
    Ok(())
}

/// A key lives through its 24 hours, also one that is used again while older ones wait to be
/// forgotten; in the end the old ones are gone.
pub fn forgotten_keys(store: &Subject) -> Result<(), String> {
    const OLD: usize = 60;
    let mut play = Play::on(store)?;
    let use_key = |play: &mut Play<'_>, key: &str| {
        let put = Change::Put(play.put("bare", 1 + play.reference.position.0, 1)?);
        let batch = play.scribe.write_keyed(vec![put], Some(key))?;
        write(play.store, &mut play.reference, &batch)?;
        remembered(play)
    };
    for old in 0..OLD {
        use_key(&mut play, &format!("old-{old}"))?;
    }
    play.scribe.clock.advance(24 * HOUR_MS - 1);
    use_key(&mut play, "in-time")?;
    let kept = found_keys(&play)?;
    same("keys before their time is over", kept, OLD + 1)?;
    play.scribe.clock.advance(HOUR_MS);
    let again = [OLD - 1, OLD / 2, 0].map(|old| format!("old-{old}"));
    for key in &again {
        use_key(&mut play, key)?;
    }
    // A batch that uses no key forgets none, whatever the time.
    let kept = found_keys(&play)?;
    play.write(vec![Change::Put(play.put("bare", 1, 2)?)])?;
    same("keys after a batch without one", found_keys(&play)?, kept)?;
    for new in 0..20 {
        use_key(&mut play, &format!("new-{new}"))?;
    }
    let kept = found_keys(&play)?;
    same("keys in the end", kept, 1 + again.len() + 20)
}

/// Every key in its time has its answer.
fn remembered(play: &Play<'_>) -> Result<(), String> {
    let snapshot = play.store.snapshot();
    for ((tenant, key), row) in &play.reference.answers {
        if row.at.saturating_add(24 * HOUR_MS) > play.reference.commit {
            let found = worked("idempotency", snapshot.idempotency(*tenant, key))?;
            same(&format!("{key:?}"), found.as_ref(), Some(row))?;
        }
    }
    Ok(())
}

fn found_keys(play: &Play<'_>) -> Result<usize, String> {
    let snapshot = play.store.snapshot();
    let mut found = 0;
    for (tenant, key) in play.reference.answers.keys() {
        let row = worked("idempotency", snapshot.idempotency(*tenant, key))?;
        found += usize::from(row.is_some());
    }
    Ok(found)
}
