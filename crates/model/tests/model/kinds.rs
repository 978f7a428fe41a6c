//! Kinds: what may be created, what may be changed, which indexes they get, and their ids.

use guanxi_model::change::KindSpec;
use guanxi_model::limits::KINDS_MAX;
use guanxi_model::{Catalog, Change, Code, KindId, NodeTypeId, TenantId};

use crate::script::check;
use crate::world::{Deployment, TENANT, World, kind_name};

#[test]
fn rules_that_do_not_go_together_are_refused() {
    check(
        "
        kind a user user reconciled                      -> invalid_argument ~ for counters
        kind a user user counter outgoing_max=5          -> invalid_argument ~ no rules of edges
        kind a user user counter groups_max=5            -> invalid_argument ~ no rules of edges
        kind a user user counter approval                -> invalid_argument ~ no rules of edges
        kind a user user counter expires                 -> invalid_argument ~ no rules of edges
        kind a user user counter excludes=follow         -> invalid_argument ~ no rules of edges
        kind a user user counter owner=user              -> invalid_argument ~ no rules of edges
        kind a user user outgoing_max=0                  -> invalid_argument ~ at least 1
        kind a user user outgoing_max=5 no_outgoing_tally -> invalid_argument ~ needs outgoing_tally
        kind a user user groups_max=1001                 -> invalid_argument ~ at most 1000
        kind a user user data_bytes_max=129              -> invalid_argument ~ at most 128
        kind a user post self_allowed                    -> invalid_argument ~ self_allowed
        kind a user post excludes=like                   -> invalid_argument ~ one node type
        kind a user user excludes=follow approval        -> invalid_argument ~ cannot wait
        kind a user user excludes=nothing                -> invalid_argument ~ 'nothing'
        kind a user user excludes=like                   -> invalid_argument ~ own node types
        kind a page page excludes=follow                 -> invalid_argument ~ own node types
        kind a user user excludes=a                      -> invalid_argument
        kind coins user user counter
        kind a user user excludes=coins                  -> invalid_argument ~ own node types
        kind follow user user                            -> conflict ~ follow already

        # Nothing of what was refused took an id, nor made a node type.
        kind a page page groups_max=1000 data_bytes_max=128 self_allowed outgoing_max=1 -> id=8 index=absent
        logged                                           -> node_type:page:3 kind
        ",
    );
}

#[test]
fn excludes_at_most_eight() {
    let mut script = String::new();
    for number in 1..=9 {
        script.push_str(&format!("kind k{number} user user\n"));
    }
    script.push_str(
        "
        kind a user user excludes=k1,k2,k3,k4,k5,k6,k7,k8,k9 -> invalid_argument ~ at most 8
        kind a user user excludes=k1,k2,k3,k4,k5,k6,k7,k8,k8,k8
        set a excludes=k1,k2,k3,k4,k5,k6,k7,k8,k9            -> invalid_argument ~ at most 8
        set a excludes=a                                     -> invalid_argument ~ other kinds
        ",
    );
    check(&script);
}

#[test]
fn the_same_checks_hold_for_a_changed_kind() {
    check(
        "
        set follow outgoing_max=0          -> invalid_argument
        set follow groups_max=1001         -> invalid_argument
        set follow data_bytes_max=129      -> invalid_argument
        set like self_allowed=true         -> invalid_argument
        set follow excludes=block          -> invalid_argument ~ cannot wait
        set block approval=true            -> invalid_argument
        set block excludes=nothing         -> invalid_argument
        set view groups_max=1              -> invalid_argument
        set 99 groups_max=1                -> unknown_kind
        kind bare user user no_outgoing_tally
        set bare outgoing_max=5            -> invalid_argument

        set follow                         -> id=1 index=absent
        logged                             -> none
        set follow outgoing_max=2000 groups_max=20 approval=true excludes=
        logged                             -> none
        set follow groups_max=21           -> id=1 index=absent
        logged                             -> kind
        set follow on_overload=refuse      -> id=1 index=absent
        logged                             -> none
        set follow on_overload=answer_default -> id=1 index=absent
        logged                             -> kind
        set view on_overload=answer_default -> id=5 index=absent     # counters are read, too
        logged                             -> kind
        set view on_overload=refuse        -> id=5 index=absent
        logged                             -> kind
        ",
    );
}

#[test]
fn an_index_by_time_where_lists_are_long() {
    check(
        "
        show follow                          -> id=1 index=absent
        show like                            -> id=2 index=ready
        show view                            -> id=5 index=absent
        kind small user user outgoing_max=2000 -> id=7 index=absent
        kind large user user outgoing_max=2001 -> id=8 index=ready
        kind bare user user no_outgoing_list   -> id=9 index=absent
        set bare list_depth_max=5            -> id=9 index=absent
        set large outgoing_max=5             -> id=8 index=ready     # it is kept once there

        set follow outgoing_max=2001         -> id=1 index=building
        logged                               -> job kind
        job job1                             -> running edges=0
        set follow outgoing_max=3000         -> id=1 index=building  # one job is enough
        logged                               -> kind
        index_step job1 10 20 500            -> job1
        logged                               -> build_index:0:10 job
        index_step job1 30 40 7              -> job1
        logged                               -> build_index:10:30 job
        job job1                             -> running edges=507
        set follow groups_max=5              -> id=1 index=building
        index_finish job1                    -> job1
        logged                               -> kind job
        job job1                             -> done edges=507
        show follow                          -> id=1 index=ready
        set follow outgoing_max=5            -> id=1 index=ready
        set follow outgoing_max=null         -> id=1 index=ready
        logged                               -> kind
        index_step job1 50 60 1              -> conflict
        index_finish job1                    -> conflict
        create follow 1 a                    -> a=0                  # the change meanwhile stayed

        set small outgoing_max=null          -> id=7 index=building
        job job2                             -> running edges=0
        ",
    );
}

#[test]
fn what_a_kind_does_not_keep_is_not_counted() {
    check(
        "
        kind quiet user post owner=user no_outgoing_tally no_incoming_tally
        put quiet 1 11 owner=7
        tally user 1 quiet    -> none
        tally post 11 quiet   -> none
        tally user 7 quiet    -> owned=1
        row quiet 1 11        -> live since=1000 owner=7
        kind half user user no_incoming_tally approval
        put half 1 2 approval
        tally user 1 half     -> pending_outgoing=1
        tally user 2 half     -> none
        ",
    );
}

#[test]
fn built_in_kinds_and_their_ids() {
    let world = World::new(Deployment::Embedded);
    let catalog = &world.rows.catalog;
    let kinds: Vec<_> = catalog
        .kinds(TENANT)
        .map(|kind| {
            let (fixed, rules) = (kind.fixed, &kind.rules);
            (
                (kind.id.0, kind.name.as_str()),
                (fixed.source_type.0, fixed.target_type.0, fixed.counter),
                (rules.outgoing_max, rules.groups_max, rules.approval),
                rules.excludes.clone(),
            )
        })
        .collect();
    let (user, post) = (1, 2);
    let plain = (None, 0, false);
    assert_eq!(
        kinds,
        [
            ((1, "follow"), (user, user, false), (Some(2000), 20, true), vec![]),
            ((2, "like"), (user, post, false), plain, vec![]),
            ((3, "favorite"), (user, post, false), plain, vec![]),
            ((4, "block"), (user, user, false), plain, vec![KindId(1)]),
            ((5, "view"), (post, post, true), plain, vec![]),
            ((6, "play_seconds"), (post, post, true), plain, vec![]),
        ]
    );
    let types: Vec<_> = catalog.types(TENANT).map(|(id, name)| (id.0, name.as_str())).collect();
    assert_eq!(types, [(1, "user"), (2, "post")]);
    let same_type = |name| catalog.named(TENANT, name).unwrap().same_type();
    let same_types = ["follow", "block", "like", "view"].map(same_type);
    assert_eq!(same_types, [true, true, false, false]);
}

#[test]
fn ids_grow_and_belong_to_a_tenant() {
    let mut catalog = Catalog::default();
    assert_eq!(catalog.next_kind_id(TENANT), KindId(1));
    assert_eq!(catalog.next_type_id(TENANT), NodeTypeId(1));
    // A gap does not count: the next id is past every one that was ever given out.
    catalog.set_type(TENANT, NodeTypeId(5), kind_name("page"));
    assert_eq!(catalog.next_type_id(TENANT), NodeTypeId(6));
    assert_eq!(catalog.next_type_id(TenantId(2)), NodeTypeId(1));

    let world = World::new(Deployment::Embedded);
    let follow = world.rows.kind(TENANT, KindId(1));
    let mut kind = follow.clone();
    kind.id = KindId(40);
    kind.name = kind_name("late");
    catalog.set_kind(TENANT, kind);
    assert_eq!(catalog.next_kind_id(TENANT), KindId(41));
    assert_eq!(catalog.next_kind_id(TenantId(2)), KindId(1));
    assert!(catalog.find(TenantId(2), "late").is_none());
    assert_eq!(
        catalog.named(TENANT, "Not a name").map_err(|error| error.code),
        Err(Code::UnknownKind)
    );
}

#[test]
fn kinds_have_a_limit() {
    let mut world = World::new(Deployment::Embedded);
    let mut create = |number: usize| {
        let name = kind_name(&format!("k{number}"));
        let spec = KindSpec::edges(name, kind_name("user"), kind_name("user"));
        let change = Change::CreateKind { tenant: TENANT, spec: Box::new(spec) };
        world.change(&change).map(|_| ()).map_err(|error| error.code)
    };
    for number in 6..KINDS_MAX {
        assert_eq!(create(number), Ok(()));
    }
    assert_eq!(create(KINDS_MAX), Err(Code::LimitReached));
}
