//! Kinds that exclude others: a block cuts both directions, and no order of changes leaves a
//! block and a follow standing between the same two.

use guanxi_model::change::Put;
use guanxi_model::{Change, EdgeRow, Record};

use crate::script::check;
use crate::world::{BLOCK, Deployment, FOLLOW, World, edge};

#[test]
fn a_block_cuts_both_directions_live_or_pending() {
    check(
        "
        put follow 1 2
        put follow 2 1 approval
        put follow 1 3
        put block 1 2          -> changed live
        logged                 -> cut:follow:1:2 cut:follow:2:1 put:block:1:2
        row follow 1 2         -> none
        row follow 2 1         -> none
        row follow 1 3         -> live since=1000
        tally user 1 follow    -> outgoing=1
        tally user 2 follow    -> none
        tally user 1 block     -> outgoing=1
        put block 1 2          -> unchanged live
        put block 2 1          -> changed live        # each may block the other
        logged                 -> put:block:2:1
        ",
    );
}

#[test]
fn a_block_refuses_both_directions_and_unblock_restores_nothing() {
    check(
        "
        put follow 1 2
        put block 1 2
        put follow 1 2            -> excluded ~ block edge 1 → 2
        put follow 2 1            -> excluded ~ block edge 1 → 2
        put follow 2 1 approval   -> excluded
        approve follow 2 1        -> not_pending
        put follow 1 3            -> changed live
        put like 1 2              -> changed live      # block excludes follow alone
        put block 2 1
        delete block 1 2          -> changed removed
        logged                    -> delete:block:1:2
        row follow 1 2            -> none
        put follow 1 2            -> excluded ~ block edge 2 → 1
        delete block 2 1
        put follow 1 2            -> changed live
        put block 1 2 expires=2000
        clock 2000
        put follow 1 2            -> excluded          # until the expiry's record commits
        expire block 1 2 2000
        put follow 1 2            -> changed live
        ",
    );
}

#[test]
fn a_kind_may_exclude_many_and_itself_with_self_edges() {
    check(
        "
        kind knows user user self_allowed
        kind shuns user user self_allowed excludes=follow,knows
        put follow 1 2
        put knows 2 1
        put knows 1 1
        put shuns 1 2        -> changed live
        logged               -> cut:follow:1:2 cut:knows:2:1 put:shuns:1:2
        put shuns 1 1        -> changed live
        logged               -> cut:knows:1:1 put:shuns:1:1
        put knows 1 1        -> excluded
        ",
    );
}

#[test]
fn the_rule_binds_new_writes_only() {
    check(
        "
        put like 1 11
        kind mute user user
        put mute 1 2
        put follow 1 2
        set mute excludes=follow
        row follow 1 2       -> live since=1000
        put follow 1 2       -> unchanged live      # it stood before the rule
        put follow 2 1       -> excluded
        set mute excludes=
        put follow 2 1       -> changed live
        ",
    );
}

/// The one way to a pending edge of an excluding kind: it excluded nothing when it was put.
#[test]
fn an_approval_of_an_excluding_kind_cuts_too() {
    check(
        "
        kind mute user user approval
        put mute 1 2 approval   -> changed pending
        set mute approval=false excludes=follow
        put follow 1 2          -> changed live       # a pending edge excludes nothing
        approve mute 1 2        -> changed live
        logged                  -> cut:follow:1:2 approve:mute:1:2
        row follow 1 2          -> none
        ",
    );
}

/// And the one way to a pending edge between nodes that a block keeps apart.
#[test]
fn an_approval_of_an_excluded_kind_is_refused() {
    check(
        "
        kind mute user user
        put follow 1 2 approval
        put mute 2 1
        set mute excludes=follow
        approve follow 1 2      -> excluded
        decline follow 1 2      -> changed removed
        ",
    );
}

#[test]
fn block_and_follow_racing_in_every_order_never_both_stand() {
    let asks = Put { approval: true, ..Put::plain(edge(FOLLOW, 2, 1)) };
    let changes = [
        Change::Put(Put::plain(edge(BLOCK, 1, 2))),
        Change::Put(Put::plain(edge(BLOCK, 2, 1))),
        Change::Put(Put::plain(edge(FOLLOW, 1, 2))),
        Change::Put(asks),
        Change::Approve { edge: edge(FOLLOW, 2, 1) },
        Change::Delete { edge: edge(BLOCK, 1, 2), strict: false },
    ];
    for order in permutations(changes.len()) {
        let mut world = World::new(Deployment::Cluster);
        for at in &order {
            // A refusal is as good as a success here.
            let _decided = world.change(&changes[*at]);
            assert_apart(&world, &order);
        }
        // The target side learns of it in another order, and ends alike.
        let mut late = World::new(Deployment::Cluster);
        for record in world.log.iter().rev() {
            if let Record::Edge(record) = record {
                late.rows.apply_edge(record);
            }
        }
        assert_eq!(late.rows, world.rows, "{order:?}");
    }
}

fn assert_apart(world: &World, order: &[usize]) {
    let live = |key| world.rows.edges.get(&key).is_some_and(EdgeRow::is_live);
    let stands = |key| world.rows.standing(&key).is_some();
    let both_ways = [(1, 2), (2, 1)];
    let blocked = both_ways.iter().any(|(a, b)| live(edge(BLOCK, *a, *b)));
    let followed = both_ways.iter().any(|(a, b)| stands(edge(FOLLOW, *a, *b)));
    assert!(!(blocked && followed), "{order:?}: {:?}", world.rows.edges);
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for shorter in permutations(count - 1) {
        for at in 0..count {
            let mut longer = shorter.clone();
            longer.insert(at, count - 1);
            all.push(longer);
        }
    }
    all
}
