//! One edge and one kind: put, delete, approve, decline, expire, limits, owners and data.

use crate::script::check;

#[test]
fn a_put_is_idempotent_and_a_removed_edge_reads_as_none() {
    check(
        "
        put follow 1 2           -> changed live
        clock 2000
        put follow 1 2           -> unchanged live
        logged                   -> none
        row follow 1 2           -> live since=1000
        put follow 1 2 strict    -> already_related ~ 1 → 2 stands already (live)
        tally user 1 follow      -> outgoing=1
        tally user 2 follow      -> incoming=1

        delete follow 1 2        -> changed removed
        logged                   -> delete:follow:1:2
        row follow 1 2           -> none
        delete follow 1 2        -> unchanged removed
        logged                   -> none
        delete follow 1 2 strict -> not_related
        tally user 1 follow      -> none
        tally user 2 follow      -> none

        clock 3000
        put follow 1 2 strict    -> changed live        # what was removed does not stand
        row follow 1 2           -> live since=3000
        delete follow 1 2 strict -> changed removed
        ",
    );
}

#[test]
fn absent_keeps_and_null_clears() {
    check(
        "
        put like 1 11 owner=77 data=hello expires=9000 -> changed live
        clock 2000
        put like 1 11                        -> unchanged live
        put like 1 11 owner=77 data=hello    -> unchanged live
        put like 1 11 data=other             -> changed live
        row like 1 11                        -> live since=1000 owner=77 data=other expires=9000
        put like 1 11 data=null              -> changed live
        put like 1 11 data=null              -> unchanged live
        row like 1 11                        -> live since=1000 owner=77 expires=9000
        put like 1 11 expires=null           -> changed live
        row like 1 11                        -> live since=1000 owner=77
        tally user 77 like                   -> owned=1
        put like 1 11 owner=78               -> changed live
        tally user 77 like                   -> none
        tally user 78 like                   -> owned=1
        put like 1 11 owner=null             -> changed live
        tally user 78 like                   -> none
        row like 1 11                        -> live since=1000
        logged                               -> put:like:1:11
        ",
    );
}

#[test]
fn a_removal_forgets_fields() {
    check(
        "
        put like 1 11 owner=77 data=hello expires=9000
        delete like 1 11
        tally user 77 like -> none
        put like 1 11      -> changed live
        row like 1 11      -> live since=1000
        ",
    );
}

#[test]
fn what_a_kind_does_not_take_is_refused() {
    check(
        "
        put follow 1 2 owner=7        -> invalid_argument ~ owner
        put follow 1 2 owner=null     -> changed live       # there is none to clear
        put like 1 11 approval        -> invalid_argument ~ approval
        put like 1 11 data=*128       -> changed live
        put like 1 12 data=*129       -> too_large ~ 129 bytes
        put like 1 12 expires=1000    -> invalid_argument ~ future
        put like 1 12 expires=999     -> invalid_argument ~ future
        put like 1 12 expires=17592186044416 -> invalid_argument ~ future
        put like 1 12 expires=17592186044415 -> changed live
        put like 1 13 group=friends   -> unknown_group
        put view 1 11                 -> invalid_argument ~ is a counter
        delete view 1 11              -> invalid_argument ~ is a counter
        approve view 1 11             -> invalid_argument ~ is a counter
        decline view 1 11             -> invalid_argument ~ is a counter
        put 99 1 2                    -> unknown_kind
        put nothing 1 2               -> unknown_kind ~ 'nothing'

        kind plain user user
        put plain 1 2 expires=5000    -> invalid_argument ~ do not expire
        put plain 1 2 data=x          -> too_large
        put plain 1 2 data=null expires=null -> changed live
        ",
    );
}

#[test]
fn rules_bind_new_writes_only() {
    check(
        "
        put like 1 11 data=abc expires=5000
        set like data_bytes_max=2 expires=false
        row like 1 11                  -> live since=1000 data=abc expires=5000
        put like 1 11                  -> unchanged live
        put like 1 11 data=xyz         -> too_large
        put like 1 11 data=xy          -> changed live
        put like 1 11 expires=6000     -> invalid_argument
        clock 5000
        expire like 1 11 5000          -> changed removed
        ",
    );
}

#[test]
fn self_relation() {
    check(
        "
        put follow 7 7               -> self_relation
        delete follow 7 7            -> self_relation
        put block 7 7                -> self_relation
        put like 7 7                 -> changed live     # user 7 and post 7 are not the same
        delete like 7 7              -> changed removed

        kind knows user user self_allowed
        put knows 7 7                -> changed live
        tally user 7 knows           -> outgoing=1 incoming=1
        mutual knows 7 7             -> true
        delete knows 7 7             -> changed removed
        tally user 7 knows           -> none

        put knows 7 7
        set knows self_allowed=false
        put knows 7 7                -> self_relation
        delete knows 7 7             -> changed removed  # what stands can always be removed
        delete knows 7 7             -> self_relation
        ",
    );
}

#[test]
fn mutual_is_derived() {
    check(
        "
        put follow 1 2
        mutual follow 1 2   -> false
        put follow 2 1
        logged              -> put:follow:2:1
        mutual follow 1 2   -> true
        mutual follow 2 1   -> true
        delete follow 1 2
        logged              -> delete:follow:1:2
        mutual follow 2 1   -> false
        put follow 1 2 approval
        mutual follow 1 2   -> false               # pending is not live
        approve follow 1 2
        mutual follow 1 2   -> true
        ",
    );
}

#[test]
fn approval_by_request_and_by_private_node() {
    check(
        "
        put follow 1 2 approval  -> changed pending
        tally user 1 follow      -> pending_outgoing=1
        tally user 2 follow      -> pending_incoming=1
        put follow 1 2 strict    -> already_related ~ (pending)
        put follow 1 2           -> unchanged pending
        clock 2000
        put follow 1 2 data=hi   -> changed pending
        row follow 1 2           -> pending since=1000 data=hi
        approve follow 1 2       -> changed live
        logged                   -> approve:follow:1:2
        row follow 1 2           -> live since=2000 data=hi
        tally user 1 follow      -> outgoing=1
        tally user 2 follow      -> incoming=1
        approve follow 1 2       -> unchanged live
        logged                   -> none
        decline follow 1 2       -> not_pending
        put follow 1 2 approval  -> unchanged live

        node user 3 private=true -> private
        put follow 1 3           -> changed pending
        put follow 3 1           -> changed live     # its own edges need no approval
        put block 4 3            -> changed live     # a kind without approval
        put like 1 3             -> changed live     # post 3 is another node
        node user 3 private=false -> public
        row follow 1 3           -> pending since=2000
        put follow 2 3           -> changed live
        ",
    );
}

#[test]
fn decline_and_withdrawal() {
    check(
        "
        approve follow 1 2        -> not_pending
        decline follow 1 2        -> not_pending
        put follow 1 2 approval
        decline follow 1 2        -> changed removed
        logged                    -> decline:follow:1:2
        tally user 2 follow       -> none
        decline follow 1 2        -> not_pending
        approve follow 1 2        -> not_pending
        put follow 1 2 approval   -> changed pending
        delete follow 1 2         -> changed removed
        approve follow 1 2        -> not_pending
        put follow 1 2            -> changed live

        put follow 1 3 approval
        set follow approval=false
        put follow 1 4 approval   -> invalid_argument
        approve follow 1 3        -> changed live     # what waits can still be answered
        ",
    );
}

#[test]
fn an_owner_counts_live_edges_only() {
    check(
        "
        kind join user post owner=user approval
        put join 1 11 owner=77 approval -> changed pending
        tally user 77 join              -> none
        approve join 1 11
        tally user 77 join              -> owned=1
        tally post 11 join              -> incoming=1
        delete join 1 11
        tally user 77 join              -> none
        ",
    );
}

#[test]
fn the_limit_counts_live_and_pending() {
    check(
        "
        set follow outgoing_max=2
        put follow 1 2            -> changed live
        put follow 1 3 approval   -> changed pending
        put follow 1 4            -> limit_reached ~ already has 2
        put follow 1 4 approval   -> limit_reached
        put follow 1 2 data=x     -> changed live     # what stands is not counted again
        approve follow 1 3        -> changed live
        put follow 1 4            -> limit_reached
        put follow 4 1            -> changed live     # incoming edges have no limit
        delete follow 1 2
        put follow 1 4            -> changed live
        set follow outgoing_max=1
        put follow 1 4 data=x     -> changed live     # a lowered limit binds new edges only
        delete follow 1 3
        put follow 1 3            -> limit_reached
        set follow outgoing_max=null
        put follow 1 3            -> changed live
        ",
    );
}

#[test]
fn expiry_is_conditional() {
    check(
        "
        put follow 1 2 expires=5000
        create follow 1 friends
        clock 4999
        expire follow 1 2 5000       -> unchanged live      # not yet
        clock 5000
        expire follow 1 2 4000       -> unchanged live      # the index is stale
        add follow 1 2 friends       -> friends=1           # a move raises the version
        row follow 1 2               -> live since=1000 group=friends expires=5000
        expire follow 1 2 5000       -> changed removed
        logged                       -> expire:follow:1:2
        groups follow 1              -> friends=0
        tally user 1 follow          -> none
        expire follow 1 2 5000       -> unchanged removed

        put follow 1 2 expires=6000
        put follow 1 2 expires=7000
        clock 6000
        expire follow 1 2 6000       -> unchanged live
        put follow 1 2 expires=null
        clock 7000
        expire follow 1 2 7000       -> unchanged live

        put follow 1 3 expires=8000 approval
        clock 9000
        row follow 1 3               -> pending since=7000 expires=8000
        put follow 1 3               -> unchanged pending   # it stands until its record
        expire follow 1 3 8000       -> changed removed
        tally user 1 follow          -> outgoing=1
        ",
    );
}

#[test]
fn a_clock_that_steps_back_never_lowers_a_version() {
    // The world checks at each change that its version is above the one that stood.
    check(
        "
        clock 5000
        put follow 1 2
        clock 10
        put follow 1 2 data=x    -> changed live
        delete follow 1 2        -> changed removed
        put follow 1 2           -> changed live
        row follow 1 2           -> live since=10
        ",
    );
}
