//! Requests as a whole: what is kept under a key, what an import's place allows, that only what stands
//! takes versions, and what records say of their origin.

use std::convert::Infallible;

use guanxi_model::change::{Field, Put};
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::import::{ImportId, ImportLines, ImportStep};
use guanxi_model::{
    Answer, Change, Code, Error, GroupsKey, Ledger, Millis, NodeKey, Origin, OriginText, Record,
    Region, Request, Version, decide_request,
};

use crate::reference::Rows;
use crate::world::{Deployment, FOLLOW, LIKE, TENANT, USER, World, edge};

struct Book {
    rows: Rows,
    records: Vec<(Record, Origin)>,
    last: Version,
    spent: usize,
}

impl Book {
    fn new() -> Book {
        let rows = World::new(Deployment::Cluster).rows;
        Book { rows, records: Vec::new(), last: Version::ZERO, spent: 0 }
    }

    fn decide(&mut self, request: &Request) -> Result<Answers, Error> {
        let Ok(answers) = decide_request(self, request);
        answers
    }
}

impl Ledger for Book {
    type Rows = Rows;
    type Broken = Infallible;

    fn rows(&self) -> &Rows {
        &self.rows
    }

    fn now(&self) -> Millis {
        Millis(1_000)
    }

    fn version(&self, _: &GroupsKey, drawn: &[GroupsKey]) -> Version {
        Version::next(self.last, self.now(), Region::default()).plus(drawn.len() as u64)
    }

    fn spend(&mut self, drawn: &[GroupsKey]) -> Result<(), Infallible> {
        self.spent += drawn.len();
        if let [earlier @ .., last] = drawn {
            self.last = self.version(last, earlier);
        }
        Ok(())
    }

    fn take(&mut self, record: Record, origin: &Origin) -> Result<(), Infallible> {
        self.rows.apply(&record);
        self.records.push((record, origin.clone()));
        Ok(())
    }

    fn fetch(&mut self, never: Infallible, _: usize) -> Result<(), Infallible> {
        match never {}
    }
}

fn put(target: u64, strict: bool) -> Change {
    Change::Put(Put { strict, ..Put::plain(edge(FOLLOW, 1, target)) })
}

fn keyed(changes: Vec<Change>) -> Request {
    let key = Some(IdempotencyKey::new("once").unwrap());
    Request { key, ..Request::new(TENANT, changes) }
}

fn codes(answers: &Answers) -> Vec<Option<Code>> {
    answers.iter().map(|answer| answer.as_ref().err().map(|error| error.code)).collect()
}

#[test]
fn a_refusal_is_kept_with_what_was_done_under_its_key() {
    let mut book = Book::new();
    let request = keyed(vec![put(2, false), put(2, true), put(3, true)]);
    let first = book.decide(&request).unwrap();
    assert_eq!(codes(&first), [None, Some(Code::AlreadyRelated), None]);
    assert_eq!(book.spent, 2, "the refusal takes no version");
    let gone = Change::Delete { edge: edge(FOLLOW, 1, 2), strict: true };
    book.decide(&Request::one(TENANT, gone)).unwrap();
    let before = book.rows.clone();
    assert_eq!(book.decide(&request).unwrap(), first, "though it could be put now");
    let other = book.decide(&keyed(vec![put(4, false)])).unwrap_err();
    assert_eq!(other.code, Code::KeyConflict);
    assert_eq!(book.rows, before);
}

#[test]
fn of_a_request_of_refusals_alone_nothing_is_kept() {
    let mut book = Book::new();
    book.decide(&Request::one(TENANT, put(2, false))).unwrap();
    let before = book.rows.clone();
    let refused = book.decide(&keyed(vec![put(2, true)])).unwrap();
    assert_eq!(codes(&refused), [Some(Code::AlreadyRelated)]);
    assert_eq!(book.rows, before);
    assert!(book.decide(&keyed(vec![put(4, false)])).unwrap()[0].is_ok(), "the key is free");
}

#[test]
fn a_chunk_moves_its_import_on_once() {
    let mut book = Book::new();
    let id = ImportId::new("old").unwrap();
    let lines = ImportLines { after: 2, of_changes: vec![1, 2], ..ImportLines::default() };
    let step = ImportStep { id: id.clone(), lines };
    let changes = vec![put(2, false), put(2, true)];
    let chunk = Request { import: Some(step), ..Request::new(TENANT, changes) };
    assert_eq!(codes(&book.decide(&chunk).unwrap()), [None, Some(Code::AlreadyRelated)]);
    let place = &book.rows.imports[&(TENANT, id)];
    assert_eq!((place.lines, place.accepted, place.rejected), (2, 1, 1));
    let before = book.rows.clone();
    assert_eq!(book.decide(&chunk).unwrap_err().code, Code::Conflict);
    assert_eq!(book.rows, before, "all of it or nothing");
}

/// An edge's record and every other say whose doing they are; what a job does names the job too.
#[test]
fn every_record_has_the_origin_of_its_request() {
    let mut book = Book::new();
    let text = |text| Some(OriginText::new(text).unwrap());
    let origin = Origin { by: text("AK1"), reason: text("cleared"), ..Origin::default() };
    let decide = |book: &mut Book, request: Request| {
        book.records.clear();
        let answers = book.decide(&Request { origin: origin.clone(), ..request }).unwrap();
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        (book.records.clone(), answers)
    };
    let (put, _) = decide(&mut book, keyed(vec![put(2, false)]));
    assert_eq!(put.len(), 2, "the edge and its key");
    let node = NodeKey { tenant: TENANT, node_type: USER, id: 1 };
    let (begun, answers) = decide(&mut book, Request::one(TENANT, Change::BeginErase { node }));
    let Ok(Answer::Job(job)) = answers[0] else { panic!("{answers:?}") };
    let edges = vec![edge(FOLLOW, 1, 2)];
    let step = Change::EraseStep { tenant: TENANT, job, edges };
    let (erased, _) = decide(&mut book, Request::one(TENANT, step));
    let of_job = Origin { job: Some(job), ..origin.clone() };
    assert_eq!((begun.len(), erased.len()), (2, 2));
    for (records, origin) in [(put, &origin), (begun, &origin), (erased, &of_job)] {
        for (record, told) in records {
            assert_eq!(told, *origin, "{record:?}");
            if let Record::Edge(edge) = record {
                assert_eq!(edge.origin, *origin);
            }
        }
    }
}

#[test]
fn a_source_is_fresh_for_its_first_four_edges() {
    let mut book = Book::new();
    let mut fresh = |change: Change| {
        book.records.clear();
        book.decide(&Request::one(TENANT, change)).unwrap();
        let edges = book.records.iter().filter_map(|(record, _)| match record {
            Record::Edge(edge) => Some(edge.fresh),
            _ => None,
        });
        edges.collect::<Vec<_>>()
    };
    let pending = |target| match put(target, false) {
        Change::Put(put) => Change::Put(Put { approval: true, ..put }),
        other => other,
    };
    let amended = |target| match put(target, false) {
        Change::Put(put) => Change::Put(Put { data: Field::Set("x".into()), ..put }),
        other => other,
    };
    let gone = |target| Change::Delete { edge: edge(FOLLOW, 1, target), strict: true };
    assert_eq!(fresh(put(2, false)), [true]);
    assert_eq!(fresh(pending(3)), [true]);
    assert_eq!(fresh(amended(2)), [false], "it is not new");
    assert_eq!(fresh(put(4, false)), [true]);
    assert_eq!(fresh(put(5, false)), [true], "three stood before it");
    assert_eq!(fresh(put(6, false)), [false], "four stood before it");
    assert_eq!(fresh(gone(6)), [false]);
    assert_eq!(fresh(gone(3)), [false]);
    assert_eq!(fresh(put(3, false)), [true], "three are left");
    let other = Change::Put(Put::plain(edge(LIKE, 1, 2)));
    assert_eq!(fresh(other), [true], "of its kind it is the first");
}

#[test]
fn an_origin_has_short_printable_texts() {
    assert_eq!(OriginText::new("spam, by 友").unwrap().as_str(), "spam, by 友");
    let longest = "x".repeat(64);
    assert!(OriginText::new(&longest).is_ok());
    let long = "x".repeat(65);
    for wrong in ["", "  ", "a\tb", "a\n", long.as_str()] {
        assert_eq!(OriginText::new(wrong).unwrap_err().code, Code::InvalidArgument, "{wrong:?}");
    }
}
