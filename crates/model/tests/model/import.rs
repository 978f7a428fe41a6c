//! Lines of an import and its place: as a put where nothing else is said, with its own since and
//! state, groups that come along, and limits that may be lifted.

use guanxi_model::import::{ImportId, ImportRow, ImportStep, LinesDigest};
use guanxi_model::{Code, Millis};

use crate::script::check;

#[test]
fn a_line_may_say_since_and_state() {
    check(
        "
        clock 5000
        import follow 1 2 since=3000               -> changed live
        logged                                     -> import:follow:1:2
        row follow 1 2                             -> live since=3000
        import follow 1 3                          -> changed live
        row follow 1 3                             -> live since=5000
        import follow 1 4 since=5000               -> changed live
        import follow 1 5 since=5001               -> invalid_argument ~ since: it lies in the future
        import follow 1 5 state=pending since=10   -> changed pending
        row follow 1 5                             -> pending since=10
        tally user 1 follow                        -> outgoing=3 pending_outgoing=1
        import follow 1 6 state=removed            -> invalid_argument ~ state
        import like 1 11 state=pending             -> invalid_argument ~ state: kind like knows no approval
        import like 1 11 state=live owner=77       -> changed live
        tally user 77 like                         -> owned=1
        ",
    );
}

#[test]
fn without_a_state_approval_decides_as_in_a_put() {
    check(
        "
        node user 2 private=true
        import follow 1 2             -> changed pending
        import follow 3 2 state=live  -> changed live
        ",
    );
}

#[test]
fn an_edge_that_stands_keeps_since_and_state_and_takes_fields() {
    check(
        "
        put follow 1 2
        clock 2000
        import follow 1 2 since=500 state=pending         -> unchanged live
        logged                                            -> none
        row follow 1 2                                    -> live since=1000
        import follow 1 2 since=500 data=hi               -> changed live
        row follow 1 2                                    -> live since=1000 data=hi
        import follow 1 2 data=null                       -> changed live
        row follow 1 2                                    -> live since=1000
        import follow 1 2 since=2001                      -> invalid_argument
        ",
    );
}

#[test]
fn an_unknown_group_is_created_within_the_limit() {
    check(
        "
        set follow groups_max=2
        import follow 1 2 group=friends  -> changed live
        logged                           -> group import:follow:1:2
        import follow 1 3 group=friends  -> changed live
        logged                           -> import:follow:1:3
        put follow 1 4
        import follow 1 4 group=work     -> changed live
        groups follow 1                  -> friends=2 work=1
        import follow 1 5 group=third    -> limit_reached ~ groups
        row follow 1 5                   -> none
        import follow 1 2 group=null     -> changed live
        groups follow 1                  -> friends=1 work=1

        import_group follow 1 work       -> work=1
        logged                           -> none
        import_group follow 2 new        -> new=0
        logged                           -> group
        import_group follow 1 third      -> limit_reached
        import_group view 1 x            -> invalid_argument
        ",
    );
}

#[test]
fn limits_hold_unless_they_are_ignored() {
    check(
        "
        set follow outgoing_max=1
        import follow 1 2               -> changed live
        import follow 1 3               -> limit_reached
        import follow 1 3 ignore_limits -> changed live
        import follow 1 4 ignore_limits -> changed live
        put follow 1 5                  -> limit_reached ~ has 3 outgoing follow edges
        tally user 1 follow             -> outgoing=3
        ",
    );
}

#[test]
fn every_other_rule_is_a_puts() {
    check(
        "
        import follow 7 7              -> self_relation
        put block 2 1
        import follow 1 2              -> excluded
        put follow 3 4
        import block 3 4               -> changed live
        logged                         -> cut:follow:3:4 import:block:3:4
        import like 1 11 data=*129     -> too_large
        import like 1 11 expires=1000  -> invalid_argument ~ expires_at
        import follow 1 9 owner=7      -> invalid_argument ~ owner
        import view 1 11               -> invalid_argument
        erase user 9
        import follow 1 9              -> conflict
        import_group follow 9 x        -> conflict
        ",
    );
}

#[test]
fn a_counter_is_brought_to_its_value() {
    check(
        "
        import_counter view 11 900                 -> value=900
        logged                                     -> counter:900
        import_counter view 11 900                 -> value=900
        logged                                     -> none
        count view 11 5                            -> value=905
        import_counter view 11 -9007199254740991   -> value=-9007199254740991
        import_counter view 11 9007199254740991    -> value=9007199254740991
        import_counter view 11 9007199254740992    -> limit_reached ~ setting it to
        import_counter follow 11 1                 -> invalid_argument
        erase post 11
        import_counter view 11 1                   -> conflict
        ",
    );
}

#[test]
fn a_chunk_follows_the_last_one_or_is_refused() {
    let step = |before, after| ImportStep {
        id: ImportId::new("file").unwrap(),
        before,
        after,
        unreadable: 2,
        digest: LinesDigest::default(),
    };
    let begun = ImportRow::default();
    assert_eq!(step(0, 10).check(&begun), Ok(()));
    let stands = step(0, 10).done(&begun, 3, Millis(7));
    let digest = Some(LinesDigest::default());
    assert_eq!(stands, ImportRow { lines: 10, rejected: 5, at: Millis(7), digest });
    for (before, after) in [(0, 10), (9, 20), (11, 20), (10, 9)] {
        let error = step(before, after).check(&stands).unwrap_err();
        assert_eq!(error.code, Code::Conflict, "{before}..{after}");
        assert!(error.message.contains("go on after line 10"), "{}", error.message);
    }
    assert_eq!(step(10, 20).check(&stands), Ok(()));
    assert_eq!(step(10, 20).done(&stands, 0, Millis(8)).rejected, 7);
}

#[test]
fn a_digest_is_of_the_lines_and_not_of_the_chunks() {
    let digest = |lines: &[&str]| {
        let mut digest = LinesDigest::default();
        lines.iter().for_each(|line| digest.take(line.as_bytes()));
        digest
    };
    let lines = ["a", "b", "", "b", "c", "d", "e", "f", "g"];
    let whole = digest(&lines);
    for cut in 0..=lines.len() {
        let (before, after) = lines.split_at(cut);
        assert_eq!(digest(before).then(digest(after), after.len() as u64), whole, "at {cut}");
    }
    assert_eq!(digest(&["a\r", " b"]), digest(&["a", "b"]));
    let others: [&[&str]; 6] = [&[], &["a"], &["a", "c"], &["b", "a"], &["ab"], &["", "a", "b"]];
    for other in others {
        assert_ne!(digest(other), digest(&["a", "b"]), "{other:?}");
    }
    // One that began before there were digests goes on without.
    let standing = ImportRow { lines: 3, digest: None, ..ImportRow::default() };
    let id = ImportId::new("file").unwrap();
    let step = ImportStep { id, before: 3, after: 5, unreadable: 0, digest: digest(&["d", "e"]) };
    assert_eq!(step.done(&standing, 0, Millis(1)).digest, None);
    let begun = ImportRow { digest: Some(digest(&["a", "b", "c"])), ..standing };
    let done = step.done(&begun, 0, Millis(1)).digest;
    assert_eq!(done, Some(digest(&["a", "b", "c", "d", "e"])));
}
