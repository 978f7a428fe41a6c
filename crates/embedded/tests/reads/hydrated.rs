//! Hydrate: which node a kind is about, what is told of it, and what is refused.

use std::sync::Arc;

use guanxi_core::{Checked, HydrateQuery, HydratedObject, KindSet, ReadObject};
use guanxi_model::change::{CounterDelta, Put};
use guanxi_model::{Change, Code, Kind};

use super::bench::{Bench, TENANT, spec};

const VIEWER: u64 = 1;

type Names<'a> = &'a [&'a str];

fn hydrate(bench: &Bench, objects: &[(u64, Option<u64>)]) -> HydrateQuery {
    let node_type = |name| bench.reader().catalog().type_named(TENANT, name).unwrap();
    let object = |(id, author): &(u64, Option<u64>)| ReadObject { id: *id, author: *author };
    HydrateQuery {
        tenant: TENANT,
        viewer: VIEWER,
        objects: objects.iter().map(object).collect(),
        kinds: Vec::new(),
        tallies: Vec::new(),
        reverse: Vec::new(),
        object_type: node_type("post"),
        author_type: node_type("user"),
    }
}

fn kinds(bench: &Bench, names: Names<'_>) -> Vec<Arc<Kind>> {
    names.iter().map(|name| bench.kind(name)).collect()
}

#[test]
fn a_kind_is_about_the_object_or_about_its_author() {
    let bench = Bench::new();
    let (like, follow, view) = (bench.kind("like"), bench.kind("follow"), bench.kind("view"));
    let requested = Put { approval: true, ..Put::plain(bench.edge(&follow, VIEWER, 8)) };
    bench.write(vec![
        Change::Put(Put::plain(bench.edge(&like, VIEWER, 100))),
        Change::Put(Put::plain(bench.edge(&like, 5, 100))),
        Change::Put(Put::plain(bench.edge(&follow, VIEWER, 7))),
        Change::Put(Put::plain(bench.edge(&follow, 7, VIEWER))),
        // An id of a user, not of a post.
        Change::Put(Put::plain(bench.edge(&follow, VIEWER, 101))),
        Change::Put(requested),
        Change::Count(CounterDelta { tenant: TENANT, kind: view.id, id: 100, delta: 9, key: None }),
    ]);
    let mut query = hydrate(&bench, &[(100, Some(7)), (101, Some(8)), (102, None)]);
    query.kinds = kinds(&bench, &["follow", "like"]);
    query.tallies = kinds(&bench, &["view", "like", "follow"]);
    query.reverse = kinds(&bench, &["follow"]);
    let hydrated = bench.reader().hydrate(&query).unwrap();
    let told: Vec<_> = hydrated
        .objects()
        .map(|HydratedObject { relations, tallies }| {
            let places = |set: &KindSet| set.places().collect::<Vec<_>>();
            let Checked { related, pending, reverse } = relations;
            (places(related), places(pending), places(reverse), tallies.to_vec())
        })
        .collect();
    let (follow, like) = (0, 1);
    assert_eq!(
        told,
        [
            (vec![follow, like], vec![], vec![follow], vec![9, 2, 1]),
            (vec![], vec![follow], vec![], vec![0, 0, 0]),
            (vec![], vec![], vec![], vec![0, 0, 0]),
        ]
    );
}

#[test]
fn a_hydrate_whose_kinds_do_not_fit_is_refused() {
    let bench = Bench::new();
    bench.create(spec("tag", "tag", "post"));
    bench.create(spec("in_tag", "user", "tag"));
    let mut untold = spec("untold", "user", "post");
    untold.incoming_tally = false;
    bench.create(untold);
    let refused = |kinds_of: Names<'_>, tallies: Names<'_>, reverse: Names<'_>| {
        let mut query = hydrate(&bench, &[(100, Some(7))]);
        query.kinds = kinds(&bench, kinds_of);
        query.tallies = kinds(&bench, tallies);
        query.reverse = kinds(&bench, reverse);
        bench.reader().hydrate(&query).map_err(|error| error.code)
    };
    assert!(refused(&["like", "follow"], &["view"], &["follow"]).is_ok());
    assert!(refused(&["tag"], &["tag"], &[]).is_ok(), "a viewer may be a tag");
    let cases: [(&str, Names<'_>, Names<'_>, Names<'_>); 5] = [
        ("viewers of two types", &["like", "tag"], &[], &[]),
        ("about neither object nor author", &["in_tag"], &[], &[]),
        ("a counter has no edges", &["view"], &[], &[]),
        ("no such tally", &[], &["untold"], &[]),
        ("a post cannot follow the viewer", &["like"], &[], &["tag"]),
    ];
    for (what, kinds, tallies, reverse) in cases {
        let refused = refused(kinds, tallies, reverse);
        assert_eq!(refused.unwrap_err(), Code::InvalidArgument, "{what}");
    }
}
