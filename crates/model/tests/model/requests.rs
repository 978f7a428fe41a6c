//! Requests as a whole: what is kept under a key, what an import's place allows, and that only what
//! stands takes versions.

use std::convert::Infallible;

use guanxi_model::change::Put;
use guanxi_model::idempotency::{Answers, IdempotencyKey};
use guanxi_model::import::{ImportId, ImportLines, ImportStep};
use guanxi_model::{
    Change, Code, Error, GroupsKey, Ledger, Millis, Record, Region, Request, Version,
    decide_request,
};

use crate::reference::Rows;
use crate::world::{Deployment, FOLLOW, TENANT, World, edge};

struct Book {
    rows: Rows,
    last: Version,
    spent: usize,
}

impl Book {
    fn new() -> Book {
        let rows = World::new(Deployment::Cluster).rows;
        Book { rows, last: Version::ZERO, spent: 0 }
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
        self.last = self.last.plus(drawn.len() as u64);
        Ok(())
    }

    fn take(&mut self, record: Record) -> Result<(), Infallible> {
        self.rows.apply(&record);
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
