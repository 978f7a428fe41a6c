//! Outgoing lists in a real Redis: what is recalled of an edge is what was acknowledged, whatever
//! happens to Redis and whoever writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use guanxi_cluster::cache::ReadCache;
use guanxi_cluster::snapshot::{Remembered, SqlSnapshot};
use guanxi_core::read::{GroupFilter, ListQuery};
use guanxi_core::snapshot::Wanted;
use guanxi_core::{Direction, Reader};
use guanxi_model::change::{Field, Put};
use guanxi_model::page::Order;
use guanxi_model::{Catalog, Change, EdgeKey, EdgeRow, GroupName, GroupsKey, KindId, State};
use redis::cmd;

use crate::stage::{Ending, Member, Stage, secret};
use crate::world::{FOLLOW, LIKE, TENANT, edge, eventually, put, soon};

const BLOCK: KindId = KindId(4);
/// How long a mark keeps a list away that nobody lifts, about.
const MARK_LIFE: Duration = Duration::from_secs(100);

impl Stage {
    fn recall(&self, member: &Member, wanted: &Wanted, remembered: &mut Remembered) -> bool {
        let (catalog, cache) = (member.instance.catalog.current(), ReadCache::default());
        self.runtime.block_on(member.memory.recall(&catalog, &cache, wanted, remembered))
    }

    /// What instances remember of these edges; the outer none: nothing.
    fn recalled(&self, member: &Member, edges: &[EdgeKey]) -> Vec<Option<Option<EdgeRow>>> {
        let wanted = Wanted { edges: edges.to_vec(), ..Wanted::default() };
        let mut remembered = Remembered::default();
        self.recall(member, &wanted, &mut remembered);
        let find = |edge: &EdgeKey| {
            let known = remembered.edges.iter().find(|(key, _)| key == edge);
            known.map(|(_, row)| row.clone())
        };
        edges.iter().map(find).collect()
    }

    fn stands(&self, member: &Member, edge: EdgeKey) -> Option<bool> {
        self.recalled(member, &[edge])[0].as_ref().map(Option::is_some)
    }
}

fn delete(edge: EdgeKey) -> Change {
    Change::Delete { edge, strict: false }
}

fn lists_serve(member: &Member) -> bool {
    member.memory.figures().lists_serve
}

#[test]
fn a_list_is_filled_by_who_misses_it_and_gone_with_the_next_write() {
    Stage::each("lists filled", |stage| {
        let (one, two) = (stage.member(1), stage.member(2));
        let _keepers = [stage.list_keeper(&one), stage.list_keeper(&two)];
        one.instance.write_all((2..=300).map(|target| put(FOLLOW, 1, target)).collect());
        eventually("they are believed", || lists_serve(&one) && lists_serve(&two));
        let (here, there) = (edge(FOLLOW, 1, 7), edge(FOLLOW, 1, 1_000));
        eventually("it is filled", || stage.stands(&one, here) == Some(true));
        assert_eq!(
            stage.stands(&two, there),
            Some(false),
            "a complete list knows who is not there"
        );
        let row = stage.recalled(&two, &[here])[0].clone().flatten().unwrap();
        let wrote = two.instance.write(put(FOLLOW, 1, 1_000)).unwrap();
        assert_ne!(stage.stands(&one, there), Some(false), "{wrote:?}");
        eventually("the new one is known", || stage.stands(&one, there) == Some(true));
        one.instance.write(delete(here)).unwrap();
        assert_ne!(stage.stands(&two, here), Some(true));
        eventually("the deleted one is known", || stage.stands(&two, here) == Some(false));
        one.instance.write(put(FOLLOW, 1, 7)).unwrap();
        eventually("it stands again", || stage.stands(&two, here) == Some(true));
        let again = stage.recalled(&one, &[here])[0].clone().flatten().unwrap();
        assert!(again.version > row.version, "{again:?} {row:?}");
        // A block changes lists that its own edge is not in.
        let back = edge(FOLLOW, 7, 1);
        two.instance.write(put(FOLLOW, 7, 1)).unwrap();
        eventually("both ways", || stage.stands(&one, back) == Some(true));
        two.instance.write(put(BLOCK, 1, 7)).unwrap();
        for cut in [here, back] {
            assert_ne!(stage.stands(&one, cut), Some(true), "{cut:?}");
            eventually("it is cut", || stage.stands(&one, cut) == Some(false));
        }
    });
}

/// Pages of the list, read from Redis alone and from the database.
#[test]
fn pages_of_a_list_at_hand_are_those_of_the_database() {
    Stage::each("lists pages", |stage| {
        let one = stage.member(1);
        let _keeper = stage.list_keeper(&one);
        let list = GroupsKey::of(&edge(FOLLOW, 1, 2));
        let names = ["friends", "同事"].map(|name| GroupName::new(name).unwrap());
        for name in &names {
            let (groups, name) = (list, name.clone());
            one.instance.write(Change::CreateGroup { groups, name }).unwrap();
        }
        for target in 2..60 {
            let group = names.get(target as usize % 3).cloned();
            let put = Put {
                group: group.map_or(Field::Keep, Field::Set),
                approval: target % 5 == 0,
                ..Put::plain(edge(FOLLOW, 1, target))
            };
            one.instance.write(Change::Put(put)).unwrap();
        }
        one.instance.write(delete(edge(FOLLOW, 1, 7))).unwrap();
        let groups = list;
        one.instance.write(Change::DeleteGroup { groups, name: names[1].clone() }).unwrap();
        eventually("they are believed", || lists_serve(&one));
        let mut remembered = Remembered::default();
        eventually("it is filled", || {
            let wanted = Wanted { outgoing: vec![list], ..Wanted::default() };
            stage.recall(&one, &wanted, &mut remembered)
        });
        let catalog = one.instance.catalog.current();
        let begin = || SqlSnapshot::begin(&one.instance.database, catalog.clone(), soon());
        let database = Reader::new(Box::new(begin()), &secret());
        let at_hand =
            Reader::new(Box::new(begin().with_remembered(&remembered).at_hand()), &secret());
        let middle = database.list(&query(&catalog)).unwrap().items[20].since;
        let mut pages = 0;
        for query in [
            query(&catalog),
            ListQuery { order: Order::Oldest, ..query(&catalog) },
            ListQuery { state: State::Pending, ..query(&catalog) },
            ListQuery { since: Some(middle), limit: 5, ..query(&catalog) },
            ListQuery { until: Some(middle), order: Order::Oldest, limit: 5, ..query(&catalog) },
            ListQuery { group: Some(GroupFilter::Ungrouped), ..query(&catalog) },
            ListQuery { group: Some(GroupFilter::Named(names[0].clone())), ..query(&catalog) },
            ListQuery { page: Some(2), limit: 10, ..query(&catalog) },
        ] {
            let mut query = ListQuery { limit: query.limit.min(7), ..query };
            loop {
                let page = database.list(&query).unwrap();
                assert_eq!(at_hand.list(&query).unwrap(), page, "{query:?}");
                pages += 1;
                query.cursor = page.next;
                if query.cursor.is_none() || query.page.is_some() {
                    break;
                }
            }
            query.cursor = None;
            assert_eq!(at_hand.scan(&query).unwrap(), database.scan(&query).unwrap());
        }
        assert!(pages > 20 && at_hand.lacked().is_none(), "{pages} pages");
    });
}

fn query(catalog: &Catalog) -> ListQuery {
    let kind = catalog.kind(TENANT, FOLLOW).unwrap();
    ListQuery::newest(TENANT, kind, Direction::Outgoing, 1, 100)
}

#[test]
fn a_list_that_is_too_long_is_not_kept_and_not_asked_for_again() {
    Stage::each("lists too long", |stage| {
        let one = stage.member(1);
        let _keeper = stage.list_keeper(&one);
        eventually("they are believed", || lists_serve(&one));
        for targets in (1..=2_100_u64).collect::<Vec<_>>().chunks(500) {
            let likes = targets.iter().map(|target| put(LIKE, 5, *target));
            one.instance.write_all(likes.collect());
        }
        let liked = edge(LIKE, 5, 7);
        eventually("it was looked at", || {
            assert_eq!(stage.stands(&one, liked), None);
            one.memory.figures().lists.filled == 1
        });
        for _ in 0..20 {
            assert_eq!(stage.stands(&one, liked), None);
        }
        assert_eq!(one.memory.figures().lists.filled, 1, "that it is too long is known");
    });
}

/// An edge that one thread changes and others look at. Odd: a write is under way.
struct Watched {
    edge: EdgeKey,
    turn: AtomicU64,
}

impl Watched {
    /// Whether it stands, where that is certain.
    fn state(turn: u64) -> Option<bool> {
        turn.is_multiple_of(2).then_some(turn % 4 == 2)
    }
}

/// Redis goes through bad days while two instances put and delete, and both are asked.
/// A mark that could not be lifted at once is lifted when Redis is back, not by its age.
#[test]
fn a_list_that_was_written_while_redis_was_paused_is_kept_soon_after() {
    Stage::each("lists after a pause", |stage| {
        let one = stage.member(1);
        let _keeper = stage.list_keeper(&one);
        one.instance.write_all((2..=30).map(|target| put(FOLLOW, 1, target)).collect());
        eventually("they are believed", || lists_serve(&one));
        let (here, fresh) = (edge(FOLLOW, 1, 7), edge(FOLLOW, 1, 1_000));
        eventually("it is kept", || stage.stands(&one, here) == Some(true));
        stage.redis.pause();
        one.instance.write(put(FOLLOW, 1, 1_000)).unwrap();
        stage.redis.resume();
        let back = Instant::now();
        eventually("it is kept again", || stage.stands(&one, fresh) == Some(true));
        assert!(back.elapsed() < MARK_LIFE / 2, "it took {:?}", back.elapsed());
    });
}

#[test]
fn whatever_happens_to_redis_what_is_recalled_was_acknowledged() {
    Stage::each("lists bad days", |stage| {
        let members = [stage.member(1), stage.member(2)];
        let _keepers = [stage.list_keeper(&members[0]), stage.list_keeper(&members[1])];
        let _filters = [stage.keeper(&members[0]), stage.keeper(&members[1])];
        eventually("they are believed", || members.iter().all(lists_serve));
        // Two edges of each source: one written by each instance.
        let watched: Vec<Watched> = (0..40)
            .map(|number| Watched {
                edge: edge(FOLLOW, number / 2 + 1, number % 2 + 1_000),
                turn: AtomicU64::new(0),
            })
            .collect();
        let (ends, known) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let _ends = Ending(&ends);
            for (index, member) in members.iter().enumerate() {
                let (ends, watched) = (&ends, &watched);
                scope.spawn(move || {
                    let _ends = Ending(ends);
                    let own: Vec<&Watched> = watched.iter().skip(index).step_by(2).collect();
                    while !ends.load(Ordering::Relaxed) {
                        let one = own[fastrand::usize(..own.len())];
                        let turn = one.turn.fetch_add(1, Ordering::SeqCst) + 1;
                        let change = match turn % 4 {
                            1 => put(FOLLOW, one.edge.source.0, one.edge.target.0),
                            _ => delete(one.edge),
                        };
                        member.instance.write(change).unwrap();
                        one.turn.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(fastrand::u64(..20)));
                    }
                });
                let (ends, watched, known) = (ends, watched, &known);
                scope.spawn(move || {
                    let _ends = Ending(ends);
                    while !ends.load(Ordering::Relaxed) {
                        let some: Vec<&Watched> =
                            (0..8).filter_map(|_| fastrand::choice(watched)).collect();
                        let before: Vec<u64> =
                            some.iter().map(|one| one.turn.load(Ordering::SeqCst)).collect();
                        let edges: Vec<EdgeKey> = some.iter().map(|one| one.edge).collect();
                        let recalled = stage.recalled(member, &edges);
                        for ((one, before), row) in some.iter().zip(before).zip(recalled) {
                            let still = one.turn.load(Ordering::SeqCst) == before;
                            let (Some(row), Some(stands), true) =
                                (row, Watched::state(before), still)
                            else {
                                continue;
                            };
                            assert_eq!(row.is_some(), stands, "{:?} at turn {before}", one.edge);
                            known.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let again = |what: &str| {
                let before = known.load(Ordering::Relaxed);
                let found: u64 = members.iter().map(|it| it.memory.figures().lists.found).sum();
                eventually(what, || {
                    let now: u64 = members.iter().map(|it| it.memory.figures().lists.found).sum();
                    ends.load(Ordering::Relaxed)
                        || known.load(Ordering::Relaxed) > before + 500 && now > found + 100
                });
            };
            again("known at first");
            stage.flush();
            again("known after a FLUSHALL");
            stage.redis.pause();
            std::thread::sleep(Duration::from_secs(3));
            stage.redis.resume();
            again("known after a pause");
            let client = redis::Client::open(stage.redis.url()).unwrap();
            cmd("SAVE").exec(&mut client.get_connection().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(500));
            stage.redis.kill();
            stage.redis.start_again();
            again("known after it came back with an old snapshot");
        });
    });
}
