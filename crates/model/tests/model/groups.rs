//! Groups: names, limits, sizes, moves, and what a deleted group leaves.

use guanxi_model::GroupId;

use crate::script::check;
use crate::world::{group_name, groups_of};

#[test]
fn create_rename_delete() {
    check(
        "
        groups follow 1                   -> none
        create follow 1 friends           -> friends=0
        create follow 1 friends           -> conflict ~ 'friends' already
        create follow 1 Friends           -> Friends=0       # names are bytes
        create follow 2 friends           -> friends=0       # of another source
        rename follow 1 friends Friends   -> conflict
        rename follow 1 friends friends   -> friends=0
        logged                            -> none
        rename follow 1 friends close     -> close=0
        logged                            -> group
        rename follow 1 friends other     -> unknown_group ~ 'friends'
        groups follow 1                   -> close=0 Friends=0
        ungroup follow 1 friends          -> unknown_group
        ungroup follow 1 close            -> close=0
        logged                            -> no_group
        groups follow 1                   -> Friends=0
        groups follow 2                   -> friends=0
        create view 1 friends             -> invalid_argument
        ",
    );
}

#[test]
fn the_limit_of_groups() {
    check(
        "
        create like 1 friends     -> limit_reached       # a kind without groups
        set follow groups_max=2
        create follow 1 a
        create follow 1 b
        create follow 1 c         -> limit_reached ~ has 2 groups
        create follow 1 a         -> conflict            # said before the limit
        ungroup follow 1 a
        create follow 1 c         -> c=0
        set follow groups_max=1
        groups follow 1           -> b=0 c=0             # binds new groups only
        rename follow 1 b d       -> d=0
        put follow 1 2 group=d    -> changed live
        create follow 1 e         -> limit_reached
        ",
    );
}

#[test]
fn a_put_names_a_group() {
    check(
        "
        put follow 1 2 group=friends      -> unknown_group ~ create it first
        row follow 1 2                    -> none
        create follow 1 friends
        create follow 1 work
        put follow 1 2 group=friends      -> changed live
        clock 2000
        put follow 1 2                    -> unchanged live
        put follow 1 2 group=friends      -> unchanged live
        put follow 1 2 group=nowhere      -> unknown_group
        put follow 1 2 group=work         -> changed live
        row follow 1 2                    -> live since=1000 group=work
        groups follow 1                   -> friends=0 work=1
        put follow 1 2 group=null         -> changed live
        put follow 1 2 group=null         -> unchanged live
        groups follow 1                   -> friends=0 work=0
        put follow 2 1 group=friends      -> unknown_group     # groups are the source's own
        ",
    );
}

#[test]
fn the_size_counts_live_edges_only() {
    check(
        "
        create follow 1 friends
        put follow 1 2 group=friends
        put follow 1 3 group=friends approval -> changed pending
        groups follow 1                       -> friends=1
        approve follow 1 3
        groups follow 1                       -> friends=2
        delete follow 1 2
        groups follow 1                       -> friends=1
        put follow 1 2                        -> changed live     # unfollowing drops membership
        row follow 1 2                        -> live since=1000
        put block 1 3
        groups follow 1                       -> friends=0
        put follow 1 4 approval
        add follow 1 4 friends                -> friends=0        # a member, but not yet live
        drop follow 1 4 friends               -> friends=0
        add follow 1 4 friends
        decline follow 1 4
        groups follow 1                       -> friends=0
        ",
    );
}

#[test]
fn moves_keep_since() {
    check(
        "
        create follow 1 friends
        create follow 1 work
        add follow 1 2 friends    -> not_related
        add follow 1 2 nowhere    -> unknown_group
        put follow 1 2
        clock 2000
        add follow 1 2 friends    -> friends=1
        logged                    -> move:follow:1:2
        row follow 1 2            -> live since=1000 group=friends
        add follow 1 2 friends    -> friends=1
        logged                    -> none
        add follow 1 2 work       -> work=1
        groups follow 1           -> friends=0 work=1
        drop follow 1 2 friends   -> friends=0            # it is not in there
        logged                    -> none
        drop follow 1 2 nowhere   -> unknown_group
        drop follow 1 2 work      -> work=0
        logged                    -> move:follow:1:2
        row follow 1 2            -> live since=1000
        drop follow 1 3 work      -> work=0
        drop view 1 3 work        -> invalid_argument
        add view 1 3 work         -> invalid_argument
        ",
    );
}

#[test]
fn a_dead_group_reads_as_ungrouped() {
    check(
        "
        create follow 1 friends
        put follow 1 2 group=friends
        put follow 1 3 group=friends
        put follow 1 4 group=friends
        put follow 1 5 group=friends
        ungroup follow 1 friends        -> friends=4
        logged                          -> no_group              # however many members
        row follow 1 2                  -> live since=1000
        put follow 1 2                  -> unchanged live
        put follow 1 2 group=null       -> unchanged live
        put follow 1 2 group=friends    -> unknown_group
        tally user 1 follow             -> outgoing=4

        create follow 1 friends         -> friends=0             # the same name, another id
        groups follow 1                 -> friends=0
        put follow 1 2 group=friends    -> changed live
        add follow 1 3 friends          -> friends=2
        put follow 1 4 data=x           -> changed live
        delete follow 1 5
        groups follow 1                 -> friends=2
        row follow 1 4                  -> live since=1000 data=x
        ",
    );
}

#[test]
fn ids_of_groups_are_never_reused() {
    let mut set = guanxi_model::GroupSet::default();
    set.set(GroupId(1), Some(group_name("a")));
    set.set(GroupId(1), None);
    assert_eq!(set.next, GroupId(2));
    set.set(GroupId(1), Some(group_name("late")));
    assert!(set.groups.is_empty(), "what a gone id says is ignored");
    set.resize(GroupId(1), 1);
    set.set(set.next, Some(group_name("b")));
    set.resize(GroupId(2), 2);
    let sizes: Vec<_> = set.groups.iter().map(|group| (group.id, group.size)).collect();
    assert_eq!(sizes, [(GroupId(2), 2)]);
    assert_eq!(set.by_name("a"), None);
    assert_ne!(groups_of(crate::world::FOLLOW, 1), groups_of(crate::world::LIKE, 1));
}
