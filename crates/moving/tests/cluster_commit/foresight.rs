//! What is written before it is decided never stands where the decision is another, and a head's
//! word about exclusions is never missing where one stands.

use std::sync::Arc;
use std::time::Instant;

use guanxi_cluster::commit::SqlCommitSettings;
use guanxi_core::clock::{Clock, SystemClock, VirtualClock};
use guanxi_embedded::overlay::{Dirty, EdgeCell};
use guanxi_embedded::store::{Applied, Store};
use guanxi_model::change::{Field, KindPatch, KindSpec, Put};
use guanxi_model::{
    Answer, Change, Code, EdgeKey, EdgeRow, Error, GroupName, GroupsKey, KindId, KindName, Millis,
    NodeKey, Position, Request, State, Version,
};
use guanxi_moving::store::SqlStore;

use crate::bench::{BLOCK, FOLLOW, Instance, PATIENCE, TENANT, USER, connect, databases, edge};
use crate::tables::Tables;

const LIKE: KindId = KindId(2);

/// One lane, so that requests of one moment share a transaction.
fn one_lane(url: &str) -> Instance {
    let settings = SqlCommitSettings { lanes: 1, ..SqlCommitSettings::default() };
    Instance::start_with(url, Arc::new(SystemClock), settings)
}

/// Puts of one request, each with its answer.
fn put_all(instance: &Instance, edges: &[EdgeKey]) -> Vec<Result<Answer, Error>> {
    let changes = edges.iter().map(|edge| Change::Put(Put::plain(*edge))).collect();
    instance.write(Request::new(TENANT, changes)).unwrap().answers
}

/// In one transaction: an edge that never was, one that stands, one that was removed, one that a
/// block, a limit or an erased node refuses, and one that must wait.
#[test]
fn puts_that_turn_out_otherwise_leave_what_was_decided() {
    for (server, url) in databases("puts_that_turn_out_otherwise_leave_what_was_decided") {
        let instance = one_lane(&url);
        let patch =
            KindPatch { outgoing_max: Field::Set(1), approval: Some(true), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: FOLLOW, patch: Box::new(patch) };
        instance.change(set).unwrap();
        let (standing, removed) = (edge(FOLLOW, 2, 90), edge(FOLLOW, 3, 90));
        let since = instance.put(standing).unwrap().since;
        instance.put(removed).unwrap();
        instance.change(Change::Delete { edge: removed, strict: true }).unwrap();
        instance.put(edge(BLOCK, 91, 4)).unwrap();
        instance.put(edge(FOLLOW, 5, 92)).unwrap();
        let node = |id| NodeKey { tenant: TENANT, node_type: USER, id };
        instance.change(Change::SetNode { node: node(93), private: Some(true) }).unwrap();
        instance.change(Change::BeginErase { node: node(94) }).unwrap();

        let fresh = edge(FOLLOW, 1, 90);
        let waiting = edge(FOLLOW, 6, 93);
        let refused = [
            (edge(FOLLOW, 4, 91), Code::Excluded),
            (edge(FOLLOW, 5, 90), Code::LimitReached),
            (edge(FOLLOW, 7, 94), Code::Conflict),
        ];
        let mut edges = vec![fresh, standing, removed, waiting];
        edges.extend(refused.iter().map(|(edge, _)| *edge));
        let answers = put_all(&instance, &edges);
        let tables = Tables::read(&connect(&url));
        tables.check();
        for (edge, answer) in edges.iter().zip(&answers).take(4) {
            let Ok(Answer::Edge(answer)) = answer else {
                panic!("{server}: {edge:?} is answered {answer:?}");
            };
            let row = &tables.edges[edge];
            let changed = *edge != standing;
            assert_eq!((answer.changed, answer.version), (changed, Some(row.version)), "{server}");
            let state = if *edge == waiting { State::Pending } else { State::Live };
            assert_eq!(row.state, state, "{server}: {edge:?}");
        }
        assert_eq!(Some(tables.edges[&standing].since), since, "{server}");
        for ((edge, code), answer) in refused.iter().zip(&answers[4..]) {
            assert_eq!(answer.as_ref().unwrap_err().code, *code, "{server}: {edge:?}");
            assert!(!tables.edges.contains_key(edge), "{server}: {edge:?} was written");
        }
    }
}

/// A statement names only the columns that some of its rows need: each row keeps what is its own,
/// whichever others it stands with.
#[test]
fn new_edges_of_one_transaction_keep_what_each_of_them_has() {
    let later = Millis(SystemClock.now_ms() + 3_600_000);
    let plain = |number: usize| Put::plain(edge(FOLLOW, 10 + number as u64, 5));
    let kinds_of_puts: [fn(Put, Millis) -> Put; 5] = [
        |put, _| put,
        |put, _| Put { data: Field::Set("met in Kyoto".into()), ..put },
        |put, later| Put { expires_at: Field::Set(later), ..put },
        |put, _| Put { approval: true, ..put },
        |put, _| {
            let edge = EdgeKey { kind: LIKE, ..put.edge };
            Put { edge, owner: Field::Set(77), ..put }
        },
    ];
    for (server, url) in databases("new_edges_of_one_transaction_keep_what_each_of_them_has") {
        let instance = one_lane(&url);
        for chosen in 1_usize..1 << kinds_of_puts.len() {
            let wanted = |index: &usize| chosen & (1 << index) != 0;
            let puts: Vec<Put> = (0..kinds_of_puts.len())
                .filter(wanted)
                .map(|index| kinds_of_puts[index](plain(100 * chosen + index), later))
                .collect();
            let before = instance.committer.batches();
            let changes = puts.iter().cloned().map(Change::Put).collect();
            let written = instance.write(Request::new(TENANT, changes)).unwrap();
            assert!(written.answers.iter().all(Result::is_ok), "{server}: {:?}", written.answers);
            assert_eq!(instance.committer.batches(), before + 1, "{server}: one transaction");
            let tables = Tables::read(&instance.database);
            tables.check();
            for put in &puts {
                let row = &tables.edges[&put.edge];
                let state = if put.approval { State::Pending } else { State::Live };
                let expected = (
                    state,
                    set(&put.data).map(|data| &**data),
                    set(&put.owner).copied(),
                    set(&put.expires_at).copied(),
                );
                let found = (row.state, row.data.as_deref(), row.owner, row.expires_at);
                assert_eq!(found, expected, "{server}: {:?} among {chosen:b}", put.edge);
            }
        }
    }
}

fn set<T>(field: &Field<T>) -> Option<&T> {
    match field {
        Field::Set(value) => Some(value),
        Field::Keep | Field::Clear => None,
    }
}

/// Two changes of one source in a moment: its head is then ahead of the clock.
#[test]
fn a_source_that_is_faster_than_the_clock_gets_growing_versions() {
    let test = "a_source_that_is_faster_than_the_clock_gets_growing_versions";
    for (server, url) in databases(test) {
        let ahead = (SystemClock.now_ms() + 600_000) << 12;
        let instance = one_lane(&url);
        instance.put(edge(FOLLOW, 1, 2)).unwrap();
        let mut session = instance.database.session(Instant::now() + PATIENCE).unwrap();
        session.run(&format!("UPDATE head SET version={ahead} WHERE source=1 AND kind=1")).unwrap();
        drop(session);
        let mut last = 0;
        for target in 3..6 {
            // The other source's row was foreseen rightly, and is written anew with it.
            let answers = put_all(&instance, &[edge(FOLLOW, 1, target), edge(FOLLOW, target, 1)]);
            let Ok(Answer::Edge(answer)) = &answers[0] else {
                panic!("{server}: {answers:?}");
            };
            let version = answer.version.unwrap().0;
            assert!(version >> 8 > ahead.max(last >> 8), "{server}: {version} after {last}");
            last = version;
            assert!(answers[1].is_ok(), "{server}");
        }
        let tables = Tables::read(&instance.database);
        tables.check();
        assert_eq!(tables.edges.len(), 7, "{server}");
    }
}

/// A head that gave a version in the same moment gave the very one that a put foresees: what stands
/// with it is not this put's doing.
#[test]
fn what_another_put_in_the_same_moment_is_not_taken_for_what_was_foreseen() {
    let test = "what_another_put_in_the_same_moment_is_not_taken_for_what_was_foreseen";
    for (server, url) in databases(test) {
        let clock = Arc::new(VirtualClock::new(SystemClock.now_ms()));
        let instance = Instance::start_with(&url, clock.clone(), SqlCommitSettings::default());
        for source in 1..6 {
            clock.set(SystemClock.now_ms());
            let first = instance.put(edge(FOLLOW, source, 9)).unwrap();
            let again = instance.put(edge(FOLLOW, source, 9)).unwrap();
            assert_eq!((again.changed, again.version), (false, first.version), "{server}");
        }
        let tables = Tables::read(&instance.database);
        tables.check();
        assert_eq!(tables.edges.len(), 5, "{server}");
    }
}

/// A kind may come to exclude another when it has edges already: those count, though no head tells
/// of them.
#[test]
fn edges_from_before_a_kind_excluded_exclude() {
    for (server, url) in databases("edges_from_before_a_kind_excluded_exclude") {
        let instances = [Instance::start(&url), Instance::start(&url)];
        let user = KindName::new("user").unwrap();
        let spec = KindSpec::edges(KindName::new("shun").unwrap(), user.clone(), user);
        let create = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        let Ok(Answer::Kind(shun)) = instances[0].change(create) else {
            panic!("{server}: no kind");
        };
        instances[0].put(edge(shun.id, 1, 2)).unwrap();
        let patch = KindPatch { excludes: Some(vec!["follow".into()]), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: shun.id, patch: Box::new(patch) };
        instances[0].change(set).unwrap();
        instances[1].catalog.refresh(&instances[1].database).unwrap();
        for instance in &instances {
            for (source, target) in [(1, 2), (2, 1)] {
                let error = instance.put(edge(FOLLOW, source, target)).unwrap_err();
                assert_eq!(error.code, Code::Excluded, "{server}: {source} to {target}");
            }
            assert!(instance.put(edge(FOLLOW, 3, 4)).is_ok(), "{server}");
        }
    }
}

/// A change of an edge that excludes and stands already holds only its own head.
#[test]
fn an_excluding_edge_can_be_grouped() {
    for (server, url) in databases("an_excluding_edge_can_be_grouped") {
        let instance = Instance::start(&url);
        let patch = KindPatch { groups_max: Some(3), ..KindPatch::default() };
        let set = Change::SetKind { tenant: TENANT, kind: BLOCK, patch: Box::new(patch) };
        instance.change(set).unwrap();
        let (edge, name) = (edge(BLOCK, 1, 2), GroupName::new("rude").unwrap());
        instance.put(edge).unwrap();
        let groups = GroupsKey::of(&edge);
        instance.change(Change::CreateGroup { groups, name: name.clone() }).unwrap();
        for change in [
            Change::AddMember { edge, group: name.clone() },
            Change::DropMember { edge, group: name },
            Change::Delete { edge, strict: true },
        ] {
            let answer = instance.change(change);
            assert!(answer.is_ok(), "{server}: {answer:?}");
        }
        Tables::read(&instance.database).check();
    }
}

/// A store that is loaded leaves the same word as the commit path.
#[test]
fn what_a_store_loaded_excludes() {
    for (server, url) in databases("what_a_store_loaded_excludes") {
        // It makes the kinds.
        drop(Instance::start(&url));
        let store = SqlStore::open(&connect(&url)).unwrap();
        let version = Version(1 << 20);
        let row = EdgeRow {
            version,
            state: State::Live,
            since: Millis(1),
            group: None,
            owner: None,
            data: None,
            expires_at: None,
        };
        let cell = EdgeCell { before: None, after: Some(row) };
        let before = store.applied();
        let position = Position(before.position.0 + 1);
        let dirty = Dirty {
            edges: [(edge(BLOCK, 1, 2), cell)].into_iter().collect(),
            last: position,
            ..Dirty::default()
        };
        store.write(&dirty, Applied { position, version, ..before }).unwrap();
        let instance = Instance::start(&url);
        for (source, target) in [(1, 2), (2, 1)] {
            let error = instance.put(edge(FOLLOW, source, target)).unwrap_err();
            assert_eq!(error.code, Code::Excluded, "{server}: {source} to {target}");
        }
    }
}
