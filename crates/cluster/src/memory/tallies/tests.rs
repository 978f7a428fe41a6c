use guanxi_model::{NodeTypeId, TenantId};

use super::*;

const NODE: NodeKey = NodeKey { tenant: TenantId(1), node_type: NodeTypeId(2), id: 3 };

fn field(which: Which, stamp: u64, value: i64) -> TallyField {
    TallyField { kind: KindId(4), which, stamp, value }
}

fn claim(counts: bool) -> TallyClaim {
    TallyClaim { epoch: 1, node: NODE, token: StringToken([0; 8]), counts }
}

#[test]
fn nothing_lives_shortly_and_big_numbers_long() {
    let lives = |counts: bool, value: i64| {
        let fields = [field(Which::Incoming, 1, value), field(Which::PendingIncoming, 1, 0)];
        (0..200).map(move |_| life_ms(&claim(counts), &fields)).collect::<Vec<_>>()
    };
    let within = |lives: Vec<u64>, from: u64, to: u64| {
        assert!(lives.iter().all(|life| (from..to).contains(life)), "{from} {to} {lives:?}");
        assert!(lives.iter().any(|life| *life != lives[0]), "they are spread");
    };
    within(lives(false, 0), NOTHING_LIFE_MS, NOTHING_LIFE_MS * 3 / 2);
    within(lives(true, 0), LIFE_MS, 2 * LIFE_MS);
    within(lives(false, 1), LIFE_MS, 2 * LIFE_MS);
    within(lives(false, BIG_VALUE_MIN), 2 * LIFE_MS, 4 * LIFE_MS);
}

#[test]
fn a_row_is_known_when_all_of_it_is_there_and_fresh() {
    let now = 1_000_000;
    let fields = vec![field(Which::Incoming, 5, 7), field(Which::Value, now - 2_000, 9)];
    let packed = PackedTallies { token: StringToken([0; 8]), read_ms: now, fields };
    let row = |wanted: &[Which], now_ms: u64| {
        let wanted: Vec<_> = wanted.iter().map(|which| (KindId(4), *which)).collect();
        super::row(&packed, &wanted, now_ms)
    };
    assert_eq!(row(&[Which::Incoming], now).unwrap().get(KindId(4), Which::Incoming), 7);
    assert!(row(&[Which::Incoming, Which::PendingIncoming], now).is_none(), "one is lacking");
    assert_eq!(row(&[Which::Value], now).unwrap().get(KindId(4), Which::Value), 9);
    assert!(row(&[Which::Value], now + COUNTER_LIFE_MS).is_none(), "a counter is old");
    assert!(row(&[Which::Value], now - 5_000).is_none(), "its clock is wrong");
    assert!(row(&[Which::Incoming], now + LIFE_MS).is_some(), "a followed number is not");
}

#[test]
fn a_mark_is_of_its_moment() {
    let mark = FollowedMark { epoch: 3, lineage: FilterLineage(1 << 100), at_ms: 50_000 };
    assert_eq!(FollowedMark::decode(&Value::BulkString(mark.encode())), Some(mark));
    assert_eq!(FollowedMark::decode(&Value::BulkString(vec![0; 31])), None);
    assert_eq!(FollowedMark::decode(&Value::Nil), None);
    let fresh = |now_ms: u64| mark.is_fresh(now_ms);
    assert!(fresh(50_000) && fresh(50_000 + FRESH_MS) && fresh(49_500));
    assert!(!fresh(50_001 + FRESH_MS) && !fresh(48_000));
}

#[test]
fn an_old_string_is_read_again_within_a_spread() {
    let old = |first: u8, age_ms: u64| {
        let packed = PackedTallies::empty(StringToken([first; 8]), 1_000);
        is_old(&packed, 1_000 + age_ms)
    };
    assert!(!old(0, REFRESH_AFTER_MS) && old(0, REFRESH_AFTER_MS + 1));
    assert!(!old(255, REFRESH_AFTER_MS + 1) && old(255, REFRESH_AFTER_MS * 5 / 4));
    let counted = |which: Which, age_ms: u64| {
        let fields = vec![field(which, 1_000, 7)];
        is_old(
            &PackedTallies { token: StringToken([0; 8]), read_ms: 1_000, fields },
            1_000 + age_ms,
        )
    };
    let age_ms = COUNTER_REFRESH_AFTER_MS + 1;
    assert!(counted(Which::Value, age_ms) && !counted(Which::Value, age_ms - 1));
    assert!(!counted(Which::Incoming, age_ms));
}
