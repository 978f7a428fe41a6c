use guanxi_model::kind::{FixedRules, KindName, Rules, TimeIndex};
use guanxi_model::limits::TIME_MAX;
use guanxi_model::node::NodeTypeId;

use super::*;

fn kind() -> Kind {
    let fixed = FixedRules {
        source_type: NodeTypeId(1),
        target_type: NodeTypeId(1),
        counter: false,
        reconciled: false,
        owner_type: None,
        outgoing_list: true,
        incoming_list: true,
        outgoing_tally: true,
        incoming_tally: true,
    };
    let name = KindName::new("follow").unwrap();
    Kind { id: KindId(3), name, fixed, rules: Rules::default(), time_index: TimeIndex::Absent }
}

fn some<T>(random: &mut fastrand::Rng, value: impl FnOnce(&mut fastrand::Rng) -> T) -> Option<T> {
    random.bool().then(|| value(random))
}

fn number(random: &mut fastrand::Rng) -> u64 {
    match random.u8(..4) {
        0 => 1,
        1 => u64::MAX,
        2 => (1 << 53) + 1,
        _ => random.u64(1..),
    }
}

/// Texts with what JSON must escape, and what it need not.
fn text(random: &mut fastrand::Rng, chars_max: usize) -> String {
    let chars = ['a', '"', '\\', '\n', '\u{1}', '\u{7f}', '关', '🌿', ' ', '{', '\u{2028}'];
    (0..random.usize(1..=chars_max)).map(|_| chars[random.usize(..chars.len())]).collect()
}

fn time(random: &mut fastrand::Rng) -> Millis {
    Millis(random.u64(..=TIME_MAX.0))
}

fn row(random: &mut fastrand::Rng) -> EdgeRow {
    EdgeRow {
        version: Version(number(random)),
        state: [State::Live, State::Pending, State::Removed][random.usize(..3)],
        since: time(random),
        group: some(random, |random| GroupId(random.u32(..))),
        owner: some(random, number),
        data: some(random, |random| text(random, 30).into_boxed_str()),
        expires_at: some(random, time),
    }
}

fn record(random: &mut fastrand::Rng) -> EdgeRecord {
    let group = |random: &mut fastrand::Rng| {
        let name = text(random, 12).replace(char::is_control, "名");
        GroupName::new(&name).unwrap()
    };
    let key = EdgeKey {
        tenant: TenantId(random.u32(..)),
        kind: KindId(random.u16(..)),
        source: SourceId(number(random)),
        target: TargetId(number(random)),
    };
    let old = some(random, row);
    EdgeRecord {
        key,
        cause: Cause::ALL[random.usize(..Cause::ALL.len())],
        new: row(random),
        old_group: if old.is_some() { some(random, group) } else { None },
        new_group: some(random, group),
        old,
    }
}

#[test]
fn nothing_of_a_record_is_lost() {
    let mut random = fastrand::Rng::with_seed(7);
    let kind = kind();
    for _ in 0..20_000 {
        let (record, time) = (record(&mut random), time(&mut random));
        let value = encode(&record, &kind, time);
        let read = decode(&value).unwrap_or_else(|error| panic!("{error}: {record:?}"));
        assert_eq!(read, Message::Edge { record: Box::new(record), time });
    }
}

#[test]
fn the_format_stands_and_further_fields_are_passed_over() {
    let value = r#"{"format":1,"tenant":7,"kind_id":3,"time":"2026-01-31T12:00:00.000Z","op":"move",
        "kind":"follow","source":"1","target":"2","more":{"a":[1]},
        "old":{"state":"live","since":"2026-01-31T11:00:00.000Z","group":null,"owner":"9",
               "data":null,"expires_at":null,"version":"5","x":1},
        "new":{"state":"live","since":"2026-01-31T11:00:00.000Z","group":"close","owner":"9",
               "data":"d","expires_at":"2026-02-01T00:00:00.000Z","group_id":4},
        "version":"6"}"#;
    let since = Millis(1_769_857_200_000);
    let old = EdgeRow {
        version: Version(5),
        state: State::Live,
        since,
        group: None,
        owner: Some(9),
        data: None,
        expires_at: None,
    };
    let new = EdgeRow {
        version: Version(6),
        group: Some(GroupId(4)),
        data: Some("d".into()),
        expires_at: Some(Millis(1_769_904_000_000)),
        ..old.clone()
    };
    let record = EdgeRecord {
        key: EdgeKey {
            tenant: TenantId(7),
            kind: KindId(3),
            source: SourceId(1),
            target: TargetId(2),
        },
        cause: Cause::Move,
        old: Some(old),
        new,
        old_group: None,
        new_group: Some(GroupName::new("close").unwrap()),
    };
    let time = Millis(1_769_860_800_000);
    let expected = Message::Edge { record: Box::new(record.clone()), time };
    assert_eq!(decode(value.as_bytes()), Ok(expected));
    // Written, it is the same object without the fields that we do not know.
    let mut plain: serde_json::Value = serde_json::from_str(value).unwrap();
    plain.as_object_mut().unwrap().remove("more");
    plain["old"].as_object_mut().unwrap().remove("x");
    let written: serde_json::Value =
        serde_json::from_slice(&encode(&record, &kind(), time)).unwrap();
    assert_eq!(written, plain);
}

#[test]
fn a_barrier_survives_and_is_no_edge() {
    for (id, shards) in [(1, 1), (u64::MAX, u64::MAX)] {
        let value = encode_barrier(id, shards);
        assert_eq!(decode(&value), Ok(Message::Barrier { id, shards }));
    }
    assert_eq!(encode_barrier(7, 10), br#"{"format":1,"barrier":"7","shards":"10"}"#);
}

#[test]
fn what_is_no_value_is_refused_with_a_reason() {
    let cases = [
        (r#"{"format":2,"tenant":1}"#, "format 2"),
        (r#"{"format":9,"barrier":"1","shards":"1"}"#, "format 9"),
        (r#"{"format":1,"barrier":"x","shards":"1"}"#, "barrier"),
        (r#"{"format":1,"barrier":"1","shards":"18446744073709551616"}"#, "barrier"),
        (r#"{"format":1,"barrier":"1","shard":0}"#, "barrier"),
        (r#"{"format":1,"tenant":1}"#, "missing field"),
        ("{", "EOF"),
        ("", "EOF"),
        ("\u{0}", "expected"),
    ];
    for (value, word) in cases {
        let error = decode(value.as_bytes()).unwrap_err();
        assert!(error.contains(word), "{value}: {error}");
    }
    let mut random = fastrand::Rng::with_seed(11);
    let mut value = encode(&record(&mut random), &kind(), Millis(1));
    let at = value.windows(10).position(|part| part == br#""format":1"#).unwrap();
    value[at + 9] = b'3';
    assert!(decode(&value).unwrap_err().contains("format 3"));
}
