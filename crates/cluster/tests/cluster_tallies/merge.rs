//! The script against its pure model.

use guanxi_cluster::memory::tallies::packed::{
    PackedTallies, StringToken, TallyField, encode_fields,
};
use guanxi_model::{KindId, Which};
use guanxi_services::shared;
use redis::{Connection, Script, cmd};

const MERGE: &str = include_str!("../../src/memory/tallies/merge.lua");

fn connection(test: &str) -> Option<Connection> {
    let redis = shared::redis_or_skip(test)?;
    Some(redis::Client::open(redis.url()).unwrap().get_connection().unwrap())
}

fn merge(
    redis: &mut Connection,
    key: &str,
    token: StringToken,
    read_ms: Option<u64>,
    fields: &[TallyField],
    life_ms: u64,
) -> i64 {
    let mut packed = Vec::new();
    encode_fields(&mut packed, fields);
    let read = read_ms.map(|read_ms| read_ms.to_be_bytes().to_vec()).unwrap_or_default();
    let script = Script::new(MERGE);
    let mut call = script.key(key);
    call.arg(&token.0[..]).arg(read).arg(packed).arg(life_ms);
    call.invoke(redis).unwrap()
}

fn get(redis: &mut Connection, key: &str) -> Option<PackedTallies> {
    let bytes: Option<Vec<u8>> = cmd("GET").arg(key).query(redis).unwrap();
    bytes.map(|bytes| PackedTallies::decode(&bytes).expect("a string of ours"))
}

fn make(redis: &mut Connection, key: &str, packed: &PackedTallies) {
    cmd("SET").arg(key).arg(packed.encode()).arg("PX").arg(100_000).exec(redis).unwrap();
}

fn life(redis: &mut Connection, key: &str) -> u64 {
    cmd("PTTL").arg(key).query(redis).unwrap()
}

/// Stamps whose bytes compare otherwise as text of some locale, as signed numbers or as doubles.
fn stamps() -> Vec<u64> {
    let odd = [0, 1, 255, 256, 0x6100, 0x4200, 0x7FFF, 0xC3A9, 1 << 53, (1 << 53) + 1];
    odd.into_iter().chain([1 << 63, (1 << 63) + 1, u64::MAX - 1, u64::MAX]).collect()
}

#[test]
fn in_any_order_the_highest_stamp_of_each_field_stays() {
    let Some(mut redis) = connection("tally merge") else { return };
    let mut random = fastrand::Rng::with_seed(7);
    let stamps = stamps();
    for round in 0..60 {
        let key = format!("merge:{round}");
        let token = StringToken([round; 8]);
        make(&mut redis, &key, &PackedTallies::empty(token, 1));
        let mut model = PackedTallies::empty(token, 1);
        let mut highest: std::collections::BTreeMap<(u16, Which), (u64, i64)> = Default::default();
        for step in 0..40 {
            let mut fields = Vec::new();
            for _ in 0..random.usize(0..6) {
                let stamp = stamps[random.usize(..stamps.len())];
                let (kind, which) = (KindId(random.u16(0..4) * 97), Which::ALL[random.usize(..6)]);
                let same = |field: &TallyField| (field.kind, field.which) == (kind, which);
                if fields.iter().any(same) {
                    continue;
                }
                // A row's stamp stands for one value.
                let value = (stamp as i64).wrapping_mul(31) ^ i64::from(kind.0);
                fields.push(TallyField { kind, which, stamp, value });
                let seen = highest.entry((kind.0, which)).or_insert((stamp, value));
                *seen = (*seen).max((stamp, value));
            }
            let read_ms = random.bool().then_some(1_000 + step);
            assert_eq!(merge(&mut redis, &key, token, read_ms, &fields, 0), 1);
            model.merge(&fields);
            model.read_ms = read_ms.unwrap_or(model.read_ms);
            assert_eq!(get(&mut redis, &key), Some(model.clone()));
        }
        assert_eq!(model.fields.len(), highest.len(), "no field is lost");
        for ((kind, which), (stamp, value)) in highest {
            let field = TallyField { kind: KindId(kind), which, stamp, value };
            assert_eq!(model.get(KindId(kind), which), Some(&field));
        }
    }
}

#[test]
fn only_the_string_that_was_seen_is_written() {
    let Some(mut redis) = connection("tally merge token") else { return };
    let field = TallyField { kind: KindId(1), which: Which::Incoming, stamp: 5, value: 7 };
    let (token, other) = (StringToken([1; 8]), StringToken([2; 8]));
    assert_eq!(merge(&mut redis, "token", token, None, &[field], 50_000), 0);
    assert_eq!(get(&mut redis, "token"), None, "nothing is made");
    make(&mut redis, "token", &PackedTallies::empty(other, 3));
    assert_eq!(merge(&mut redis, "token", token, None, &[field], 50_000), 0);
    assert_eq!(get(&mut redis, "token"), Some(PackedTallies::empty(other, 3)));
    assert_eq!(merge(&mut redis, "token", other, None, &[field], 0), 1);
    assert!(life(&mut redis, "token") > 60_000, "its life is left alone");
    assert_eq!(merge(&mut redis, "token", other, None, &[field], 50_000), 1);
    assert!(life(&mut redis, "token") <= 50_000, "its life is the new one");
    cmd("SET").arg("token").arg("short").exec(&mut redis).unwrap();
    assert_eq!(merge(&mut redis, "token", other, None, &[field], 0), 0);
}
