//! Lines of an import and its place: as a put where nothing else is said, with its own since and
//! state, groups that come along, and limits that may be lifted.

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::codec::encode_import;
use guanxi_model::import::{
    ImportId, ImportLines, ImportRow, ImportStep, LinesDigest, RejectedLine,
};
use guanxi_model::limits::{
    IMPORT_REASON_CHARS_MAX, IMPORT_REASONS_KEPT_BYTES_MAX, IMPORT_REJECTS_KEPT_MAX,
};
use guanxi_model::{Answer, Code, Error, Millis, State};

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

fn step(before: u64, after: u64, of_changes: Vec<u64>, unreadable: &[u64]) -> ImportStep {
    let error = Error::invalid("unreadable");
    let unreadable = unreadable.iter().map(|line| RejectedLine::new(*line, &error)).collect();
    let digest = LinesDigest::default();
    let lines = ImportLines { before, after, of_changes, unreadable, digest };
    ImportStep { id: ImportId::new("file").unwrap(), lines }
}

#[test]
fn a_chunk_follows_the_last_one_or_is_refused() {
    let begun = ImportRow::default();
    let first = step(0, 10, vec![1, 2, 4, 5], &[3, 6]);
    assert_eq!(first.check(&begun), Ok(()));
    let edge = |changed| {
        let (state, since, version) = (State::Live, None, None);
        Ok(Answer::Edge(EdgeAnswer { changed, state, since, version }))
    };
    let limit = Err(Error::new(Code::LimitReached, "too many"));
    let answers = [edge(true), edge(false), limit, Ok(Answer::Counter { value: 1 })];
    let stands = first.done(&begun, &answers, Millis(7));
    let ImportRow { lines, accepted, changed, rejected, at, .. } = stands;
    assert_eq!((lines, accepted, changed, rejected, at), (10, 3, 1, 3, Millis(7)));
    let rejects = |row: &ImportRow| -> Vec<(u64, Code, String)> {
        let named = |reject: &RejectedLine| (reject.line, reject.code, reject.reason.to_string());
        row.rejects.iter().map(named).collect()
    };
    let unreadable = |line| (line, Code::InvalidArgument, "unreadable".to_owned());
    let expected = [unreadable(3), (4, Code::LimitReached, "too many".to_owned()), unreadable(6)];
    assert_eq!(rejects(&stands), expected, "in the order of the lines");
    for (before, after) in [(0, 10), (9, 20), (11, 20), (10, 9)] {
        let error = step(before, after, Vec::new(), &[]).check(&stands).unwrap_err();
        assert_eq!(error.code, Code::Conflict, "{before}..{after}");
        assert!(error.message.contains("go on after line 10"), "{}", error.message);
    }
    let second = step(10, 20, vec![11], &[20]);
    assert_eq!(second.check(&stands), Ok(()));
    let stands = second.done(&stands, &[edge(true)], Millis(8));
    assert_eq!((stands.accepted, stands.changed, stands.rejected), (4, 2, 4));
    assert_eq!(rejects(&stands)[..3], expected);
    assert_eq!(rejects(&stands)[3..], [unreadable(20)]);
    assert_eq!(stands.rejects_left_off(), 0);
}

#[test]
fn the_first_rejected_lines_are_kept_as_far_as_there_is_room() {
    let chunk = 1_000;
    let done = |reason: &str, chunks: u64| {
        let error = Error::invalid(reason);
        (0..chunks).fold(ImportRow::default(), |row, at| {
            let lines: Vec<u64> = (at * chunk + 1..=(at + 1) * chunk).collect();
            let mut step = step(at * chunk, (at + 1) * chunk, Vec::new(), &[]);
            let unreadable = lines.iter().map(|line| RejectedLine::new(*line, &error));
            step.lines.unreadable = unreadable.collect();
            step.done(&row, &[], Millis(1))
        })
    };
    let kept_max = IMPORT_REJECTS_KEPT_MAX as u64;
    for (reason, chunks, kept) in [
        ("short", 3, 3_000),
        ("short", 12, kept_max),
        // A long one is cut, and the cut is marked.
        (&*"r".repeat(400), 12, (IMPORT_REASONS_KEPT_BYTES_MAX / 303) as u64),
    ] {
        let row = done(reason, chunks);
        assert_eq!((row.rejected, row.rejects.len() as u64), (chunks * chunk, kept), "{reason}");
        assert_eq!(row.rejects_left_off(), chunks * chunk - kept);
        let lines: Vec<u64> = row.rejects.iter().map(|reject| reject.line).collect();
        assert_eq!(lines, (1..=kept).collect::<Vec<u64>>(), "without a gap");
        let longest = row.rejects.iter().map(|reject| reject.reason.chars().count()).max();
        assert_eq!(longest, Some(reason.len().min(IMPORT_REASON_CHARS_MAX + 1)));
        // Reasons that are alike take few bytes.
        assert!(encode_import(&row).len() < 6 * row.rejects.len() + 400, "{reason}");
    }
    // Behind one that has no room nothing is kept, so that what is kept has no gap.
    let full = done(&"r".repeat(400), 12);
    let next = step(12 * chunk, 12 * chunk + 1, Vec::new(), &[12 * chunk + 1]);
    let kept = full.rejects.len();
    let after = next.done(&full, &[], Millis(2));
    assert_eq!((after.rejects.len(), after.rejected), (kept, full.rejected + 1));
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
    let mut second = step(3, 5, Vec::new(), &[]);
    second.lines.digest = digest(&["d", "e"]);
    let begun = ImportRow { lines: 3, digest: digest(&["a", "b", "c"]), ..ImportRow::default() };
    let done = second.done(&begun, &[], Millis(1)).digest;
    assert_eq!(done, digest(&["a", "b", "c", "d", "e"]));
}
