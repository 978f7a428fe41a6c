//! Pure counters: bounds, idempotency keys and their day.

use crate::script::check;

#[test]
fn deltas_add_up_within_bounds() {
    check(
        "
        count view 11 5                   -> value=5
        logged                            -> counter:5
        count view 11 -7                  -> value=-2
        count view 11 0                   -> value=-2
        logged                            -> none
        count view 12 1                   -> value=1
        count play_seconds 11 3           -> value=3
        tally post 11 view                -> value=-2
        tally post 11 play_seconds        -> value=3

        count view 13 9007199254740991    -> value=9007199254740991
        count view 13 1                   -> limit_reached ~ is 9007199254740991
        count view 13 0                   -> value=9007199254740991
        count view 13 -9007199254740991   -> value=0
        count view 13 -9007199254740991   -> value=-9007199254740991
        count view 13 -1                  -> limit_reached
        count view 13 9007199254740992    -> limit_reached     # the delta, though not the value
        count view 14 9007199254740992    -> limit_reached
        count view 14 -9007199254740992   -> limit_reached
        count view 14 9223372036854775807 -> limit_reached
        count view 14 -9223372036854775808 -> limit_reached
        count view 13 9223372036854775807 -> limit_reached
        tally post 14 view                -> none

        count like 11 1                   -> invalid_argument ~ is not a counter
        count 99 11 1                     -> unknown_kind
        ",
    );
}

#[test]
fn a_key_counts_once_a_day() {
    check(
        "
        count view 11 5 key=a          -> value=5
        logged                         -> counter:5 idempotency
        count view 11 1                -> value=6
        count view 11 5 key=a          -> value=5              # the answer that it got
        logged                         -> none
        tally post 11 view             -> value=6
        count view 11 6 key=a          -> key_conflict ~ 'a'
        count view 12 5 key=a          -> key_conflict
        count play_seconds 11 5 key=a  -> key_conflict
        count view 11 5 key=b          -> value=11
        count view 11 0 key=c          -> value=11
        logged                         -> idempotency

        count view 11 9007199254740991 key=d -> limit_reached  # refusals are not stored
        count view 11 1 key=d          -> value=12

        clock 86400999
        count view 11 5 key=a          -> value=5
        count view 11 6 key=a          -> key_conflict
        clock 86401000                                         # 24 h after 1000
        count view 11 6 key=a          -> value=18
        count view 11 6 key=a          -> value=18
        tally post 11 view             -> value=18
        ",
    );
}

#[test]
fn a_reconciled_counter_needs_a_key() {
    check(
        "
        kind coins user user counter reconciled
        count coins 1 5           -> invalid_argument ~ key
        count coins 1 5 key=a     -> value=5
        count coins 1 5 key=a     -> value=5
        tally user 1 coins        -> value=5
        ",
    );
}
