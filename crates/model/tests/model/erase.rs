//! A node's settings, and its erasure: the mark, the steps, the end.

use crate::script::check;

#[test]
fn settings() {
    check(
        "
        settings user 1            -> public
        node user 1                -> public
        node user 1 private=false  -> public
        logged                     -> none
        node user 1 private=true   -> private
        logged                     -> node
        node user 1                -> private       # absent keeps
        node user 1 private=true   -> private
        logged                     -> none
        settings post 1            -> public        # another node of the same id
        node user 1 private=false  -> public
        ",
    );
}

#[test]
fn the_mark_refuses_what_would_touch_the_node() {
    check(
        "
        node user 1 private=true
        create follow 1 friends
        put follow 1 2
        put follow 3 1 approval
        kind coins user user counter
        erase user 1                -> job1
        logged                      -> job node
        erase user 1                -> job1
        logged                      -> none
        settings user 1             -> private erasing
        put follow 1 4              -> conflict ~ being erased
        put follow 4 1              -> conflict
        put follow 1 2              -> conflict
        put like 1 11               -> conflict
        put block 4 1               -> conflict
        approve follow 3 1          -> conflict
        create follow 1 work        -> conflict
        node user 1 private=false   -> conflict
        count coins 1 5             -> conflict
        put like 4 1                -> changed live      # post 1 is another node
        put like 4 11 owner=1       -> changed live      # an owner is not an end
        delete follow 1 2           -> changed removed
        decline follow 3 1          -> changed removed

        erase user 8                -> job2              # a node without settings
        settings user 8             -> public erasing
        put follow 8 4              -> conflict
        put follow 4 8              -> conflict
        erase post 11               -> job3
        put like 4 11               -> conflict
        count view 11 1             -> conflict
        ",
    );
}

#[test]
fn an_erasure_from_mark_to_receipt() {
    check(
        "
        node user 1 private=true
        create follow 1 friends
        create follow 1 work
        put follow 1 2 group=friends
        put follow 3 1 approval
        put like 1 11 owner=77
        put like 5 12 owner=1
        kind coins user user counter
        kind stars user user counter
        count coins 1 5
        count coins 2 7
        clock 2000

        erase user 1
        job job1                          -> running edges=0
        erase_step job1 follow:1:2 like:1:11 follow:1:9 -> job1
        logged                            -> erase:follow:1:2 erase:like:1:11 job
        job job1                          -> running edges=2
        erase_step job1 follow:1:2        -> job1               # gone already
        logged                            -> none
        erase_step job1 follow:3:1        -> job1
        job job1                          -> running edges=3
        tally user 1 follow               -> none
        tally user 2 follow               -> none
        tally user 77 like                -> none

        erase_finish job1                 -> job1
        logged                            -> no_group no_group counter:-5 node job
        job job1                          -> done edges=3 groups=2 counters=1
        settings user 1                   -> public
        groups follow 1                   -> none
        tally user 1 coins                -> none
        tally user 2 coins                -> value=7
        tally user 1 like                 -> owned=1            # others' edges and their tally stay
        row like 5 12                     -> live since=1000 owner=1

        erase_finish job1                 -> conflict
        erase_step job1 follow:1:2        -> conflict
        erase_finish job0                 -> conflict
        put follow 1 2                    -> changed live       # the mark is lifted
        create follow 1 friends           -> friends=0
        erase user 1                      -> job2
        ",
    );
}

#[test]
fn a_step_that_names_an_edge_twice_removes_it_once() {
    check(
        "
        kind knows user user self_allowed
        put knows 1 1
        erase user 1
        erase_step job1 knows:1:1 knows:1:1 -> job1
        logged                              -> erase:knows:1:1 job
        job job1                            -> running edges=1
        ",
    );
}

#[test]
fn a_job_does_its_own_work_only() {
    check(
        "
        erase user 1                -> job1
        index_step job1 1 2 3       -> invalid_argument
        index_finish job1           -> invalid_argument
        set follow outgoing_max=2001
        erase_finish job2           -> invalid_argument
        put follow 2 3
        erase_step job2 follow:2:3  -> invalid_argument
        ",
    );
}
