//! An instance whose copy of the catalog is old decides by the rules that stand, not by those it
//! knows: its first round trip tells it that they have changed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_cluster::sql::Database;
use guanxi_model::change::{Field, KindPatch, KindSpec};
use guanxi_model::{Answer, Change, Code, KindId, KindName, State};

use crate::bench::{FOLLOW, Instance, PATIENCE, TENANT, connect, databases, edge};
use crate::cuts::COMMIT;
use crate::proxy::{Cut, Plan, Proxy, port_of};
use crate::tables::Tables;

/// How often a state that lasts is looked for.
const LOOK: Duration = Duration::from_millis(10);

#[test]
fn what_a_new_kind_excludes_is_refused_by_an_old_catalog() {
    for (server, url) in databases("what_a_new_kind_excludes_is_refused_by_an_old_catalog") {
        let (old, new) = (Instance::start_unwatched(&url), Instance::start(&url));
        let mute = create_mute(&new);
        assert!(new.put(edge(mute, 1, 2)).unwrap().changed, "{server}");
        assert!(old.catalog.revision() < new.catalog.revision(), "{server}: it is not old");
        for follow in [edge(FOLLOW, 1, 2), edge(FOLLOW, 2, 1)] {
            let refused = old.put(follow).unwrap_err();
            assert_eq!(refused.code, Code::Excluded, "{server}: {}", refused.message);
        }
        assert_eq!(old.catalog.revision(), new.catalog.revision(), "{server}: it learnt");
        let tables = Tables::read(&new.database);
        tables.check();
        assert_eq!(tables.standing().count(), 1, "{server}: the mute alone stands");
    }
}

/// The put waits for its head while the excluding kind is made and its edge is put: the revision
/// that counts is the one after the lock, not the one before.
#[test]
fn a_put_that_waits_for_its_head_learns_what_changed_meanwhile() {
    for (server, url) in databases("a_put_that_waits_for_its_head_learns_what_changed_meanwhile") {
        let (old, new) = (Instance::start_unwatched(&url), Instance::start(&url));
        assert!(old.put(edge(FOLLOW, 5, 7)).unwrap().changed, "{server}: the head is there");
        let other = connect(&url);
        let mut holder = other.session(Instant::now() + PATIENCE).unwrap();
        let head = format!("tenant=1 AND kind={} AND source=5", FOLLOW.0);
        holder.run(&format!("BEGIN;UPDATE head SET excluded=1 WHERE {head}")).unwrap();
        let refused = std::thread::scope(|scope| {
            let following = scope.spawn(|| old.put(edge(FOLLOW, 5, 6)));
            until_one_waits_for_a_head(&new.database, server, || following.is_finished());
            let mute = create_mute(&new);
            // What a put of it does beside its own head.
            let row = format!("(1,{},5,6,256,{},1)", mute.0, State::Live as u8);
            let columns = "(tenant,kind,source,target,version,state,since)";
            let put = format!("INSERT INTO outgoing {columns} VALUES {row};COMMIT");
            holder.run(&put).unwrap();
            following.join().unwrap().unwrap_err()
        });
        assert_eq!(refused.code, Code::Excluded, "{server}: {}", refused.message);
    }
}

#[test]
fn a_lowered_limit_binds_an_old_catalog() {
    for (server, url) in databases("a_lowered_limit_binds_an_old_catalog") {
        let (old, new) = (Instance::start_unwatched(&url), Instance::start(&url));
        assert!(old.put(edge(FOLLOW, 1, 2)).unwrap().changed, "{server}");
        let patch = KindPatch { outgoing_max: Field::Set(1), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: FOLLOW, patch: Box::new(patch) };
        new.change(set).unwrap();
        let refused = old.put(edge(FOLLOW, 1, 3)).unwrap_err();
        assert_eq!(refused.code, Code::LimitReached, "{server}: {}", refused.message);
    }
}

/// A kind comes to exclude another while an edge of it is being put by somebody who does not know:
/// the rule waits for that put, and so whoever knows the rule sees the edge.
#[test]
fn a_rule_that_excludes_waits_for_the_writes_under_way() {
    for (server, url) in databases("a_rule_that_excludes_waits_for_the_writes_under_way") {
        let old = Instance::start(&url);
        let (knows, user) = (KindName::new("knows").unwrap(), KindName::new("user").unwrap());
        let spec = KindSpec::edges(knows, user.clone(), user);
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let Answer::Kind(kind) = old.change(create).unwrap() else { panic!("{server}: no kind") };
        assert!(old.put(edge(kind.id, 7, 8)).unwrap().changed, "{server}: its lane has a head");
        // A put as it is between its two round trips: with the head of its lane, and its row.
        let other = connect(&url);
        let mut putting = other.session(Instant::now() + PATIENCE).unwrap();
        let row = format!("(1,{},5,6,256,{},1)", kind.id.0, State::Live as u8);
        let columns = "(tenant,kind,source,target,version,state,since)";
        putting
            .run(&format!(
                "BEGIN;UPDATE head SET version=version+1 WHERE tenant=0;\
                 INSERT INTO outgoing {columns} VALUES {row}"
            ))
            .unwrap();
        let new = Instance::start(&url);
        let patch = KindPatch { excludes: Some(vec!["follow".into()]), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: kind.id, patch: Box::new(patch) };
        let refused = std::thread::scope(|scope| {
            let ruling = scope.spawn(|| {
                new.change(set).unwrap();
                new.put(edge(FOLLOW, 5, 6))
            });
            until_one_waits_for_a_head(&old.database, server, || ruling.is_finished());
            putting.run("COMMIT").unwrap();
            ruling.join().unwrap()
        });
        let refused = refused.map(|answer| answer.changed).unwrap_err();
        assert_eq!(refused.code, Code::Excluded, "{server}: {}", refused.message);
    }
}

/// A lane that never committed has no head that a rule could hold: it waits for the rule itself.
#[test]
fn the_first_write_of_a_lane_waits_for_a_rule_under_way() {
    for (server, url) in databases("the_first_write_of_a_lane_waits_for_a_rule_under_way") {
        let new = Instance::start(&url);
        let other = connect(&url);
        let mut ruling = other.session(Instant::now() + PATIENCE).unwrap();
        // What a change of the catalog does first.
        ruling.run("BEGIN;UPDATE facts SET value=value+1 WHERE name='catalog'").unwrap();
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| new.put(edge(FOLLOW, 5, 6)));
            let waiting = "info LIKE '%FROM facts%FOR UPDATE%'";
            until_one_waits(&other, server, waiting, || putting.is_finished());
            assert!(!putting.is_finished(), "{server}: it did not wait");
            ruling.run("COMMIT").unwrap();
            assert!(putting.join().unwrap().unwrap().changed, "{server}");
        });
        // Its head can be held from now on.
        ruling.run("BEGIN;UPDATE facts SET value=value+1 WHERE name='catalog'").unwrap();
        assert!(new.put(edge(FOLLOW, 5, 7)).unwrap().changed, "{server}: it waits no more");
        ruling.run("ROLLBACK").unwrap();
    }
}

/// How long a first write is paused: longer than a lock is waited for, and than others take.
const PAUSED: Duration = Duration::from_secs(15);

#[test]
fn a_first_write_that_is_paused_holds_nobody_up() {
    for (server, url) in databases("a_first_write_that_is_paused_holds_nobody_up") {
        let other = Instance::start(&url);
        let proxy = Proxy::start(port_of(&url));
        let paused = Instance::start(&proxy.url(&url));
        proxy.arm(&[Plan { at: COMMIT, cut: Cut::Held(PAUSED) }]);
        std::thread::scope(|scope| {
            let putting = scope.spawn(|| paused.put(edge(FOLLOW, 5, 6)));
            let until = Instant::now() + PATIENCE;
            while proxy.armed() > 0 {
                assert!(Instant::now() < until, "{server}: the COMMIT was never sent");
                std::thread::sleep(LOOK);
            }
            // What both of the following take first.
            let free =
                "BEGIN;SELECT value FROM facts WHERE name='catalog' FOR UPDATE NOWAIT;COMMIT";
            let facts = connect(&url).session(until).unwrap().run(free).map(|_| ());
            assert!(facts.is_ok(), "{server}: {facts:?}");
            create_mute(&other);
            assert!(other.put(edge(FOLLOW, 7, 8)).unwrap().changed, "{server}");
            assert!(putting.join().unwrap().unwrap().changed, "{server}: it is done in the end");
        });
    }
}

/// A lane that is stuck is waited for by a rule that holds no other.
#[test]
fn a_rule_that_waits_for_a_lane_holds_no_other() {
    for (server, url) in databases("a_rule_that_waits_for_a_lane_holds_no_other") {
        let new = Instance::start(&url);
        let (knows, user) = (KindName::new("knows").unwrap(), KindName::new("user").unwrap());
        let spec = KindSpec::edges(knows, user.clone(), user);
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let Answer::Kind(kind) = new.change(create).unwrap() else { panic!("{server}: no kind") };
        // Lanes of other instances, before and after all others.
        let (first, last) = (0_u64, u64::MAX);
        let other = connect(&url);
        let mut stuck = other.session(Instant::now() + PATIENCE).unwrap();
        stuck
            .run(&format!(
                "BEGIN;INSERT INTO head (tenant,kind,source,version) VALUES \
                 (0,0,{first},1<<62),(0,0,{last},1<<62);COMMIT;\
                 BEGIN;UPDATE head SET version=version+1 WHERE tenant=0 AND kind=0 AND source={last}"
            ))
            .unwrap();
        let patch = KindPatch { excludes: Some(vec!["follow".into()]), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: kind.id, patch: Box::new(patch) };
        std::thread::scope(|scope| {
            let ruling = scope.spawn(|| new.change(set));
            until_one_waits_for_a_head(&other, server, || ruling.is_finished());
            let free = format!(
                "BEGIN;SELECT version FROM head WHERE tenant=0 AND kind=0 AND source={first} \
                 FOR UPDATE NOWAIT;COMMIT"
            );
            // The rule itself has the first for a moment, before it comes to the last.
            let looks = 50;
            let held = (0..looks).filter(|_| {
                std::thread::sleep(LOOK);
                other.session(Instant::now() + PATIENCE).unwrap().run(&free).is_err()
            });
            let held = held.count();
            assert!(held < looks / 2, "{server}: held in {held} of {looks} looks");
            assert!(!ruling.is_finished(), "{server}: it did not wait");
            stuck.run("COMMIT").unwrap();
            ruling.join().unwrap().unwrap();
        });
    }
}

fn create_mute(instance: &Instance) -> KindId {
    let user = KindName::new("user").unwrap();
    let spec = KindSpec::edges(KindName::new("mute").unwrap(), user.clone(), user);
    let spec = KindSpec { excludes: vec!["follow".into()], ..spec };
    match instance.change(Change::CreateKind { tenant: TENANT, spec: Box::new(spec) }).unwrap() {
        Answer::Kind(kind) => kind.id,
        other => panic!("a kind is answered {other:?}"),
    }
}

/// Returns when somebody waits, or will wait no more.
fn until_one_waits_for_a_head(database: &Arc<Database>, server: &str, ended: impl Fn() -> bool) {
    let waiting = "(info LIKE '%INTO head%' OR info LIKE '%FROM head%UPDATE%')";
    until_one_waits(database, server, waiting, ended);
}

fn until_one_waits(
    database: &Arc<Database>,
    server: &str,
    waiting: &str,
    ended: impl Fn() -> bool,
) {
    let waiting = format!(
        "SELECT 1 FROM information_schema.processlist WHERE db=DATABASE() \
         AND id<>CONNECTION_ID() AND {waiting}"
    );
    let until = Instant::now() + PATIENCE;
    loop {
        let mut session = database.session(until).unwrap();
        if ended() || !session.rows(&waiting).unwrap().is_empty() {
            return;
        }
        assert!(Instant::now() < until, "{server}: nobody waits");
        std::thread::sleep(LOOK);
    }
}
