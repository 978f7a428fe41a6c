//! The filter's commands on a real Redis: that what the model writes down is what the server does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use guanxi_model::filter::command::{
    SEAL_BIT, SET, SET_ITEMS_MAX, masks, shard_key, word_bit, word_byte,
};
use guanxi_model::filter::header::{FORMAT, HEADER_BYTES};
use guanxi_model::filter::{
    Ask, Asker, FilterLineage, Generation, Geometry, Say, Seal, ShardHeader, Spot,
};
use guanxi_model::{EdgeKey, KindId, SourceId, TargetId, TenantId};
use guanxi_services::Redis;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const GENERATION: Generation = Generation(7);

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Number(i64),
    Bytes(Vec<u8>),
    Numbers(Vec<i64>),
    Error(String),
}

struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    fn new(redis: &Redis) -> Connection {
        let stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        Connection { reader: BufReader::new(stream) }
    }

    fn call(&mut self, arguments: &[&[u8]]) -> Reply {
        let mut message = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            message.extend(format!("${}\r\n", argument.len()).bytes());
            message.extend(*argument);
            message.extend(b"\r\n");
        }
        self.reader.get_mut().write_all(&message).unwrap();
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Reply::Bytes(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Number(rest.parse().unwrap()),
            "*" => Reply::Numbers(
                (0..rest.parse().unwrap()).map(|_| self.line()[1..].parse().unwrap()).collect(),
            ),
            "$" if rest == "-1" => Reply::Bytes(Vec::new()),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().unwrap() + 2];
                self.reader.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Reply::Bytes(bytes)
            }
            _ => panic!("{line}"),
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end().into()
    }

    fn make(&mut self, header: &ShardHeader) {
        let key = shard_key(0, header.generation, header.shard);
        let reply = self.call(&[b"SET", key.as_bytes(), &header.encode()]);
        assert_eq!(reply, Reply::Bytes(b"OK".into()));
    }

    fn set(&mut self, key: &str, seal: Seal, spots: Vec<Spot>) -> Reply {
        let seal = seal.value().to_be_bytes();
        let pairs: Vec<(String, [u8; 8])> = masks(spots)
            .iter()
            .map(|spot| (word_byte(spot.word).to_string(), spot.mask.to_be_bytes()))
            .collect();
        let mut arguments: Vec<&[u8]> = vec![b"EVAL", SET.as_bytes(), b"1", key.as_bytes(), &seal];
        for (byte, mask) in &pairs {
            arguments.extend([byte.as_bytes(), &mask[..]]);
        }
        self.call(&arguments)
    }

    fn ask(&mut self, key: &str, believed: Option<Seal>, spots: &[Spot]) -> Vec<Say> {
        let ask = Ask::new(spots.iter().copied());
        let bits = std::iter::once(SEAL_BIT).chain(ask.words().iter().map(|word| word_bit(*word)));
        let bits: Vec<String> = bits.map(|bit| bit.to_string()).collect();
        let mut arguments: Vec<&[u8]> = vec![b"BITFIELD_RO", key.as_bytes()];
        for bit in &bits {
            arguments.extend([&b"GET"[..], b"i64", bit.as_bytes()]);
        }
        let Reply::Numbers(numbers) = self.call(&arguments) else {
            panic!("BITFIELD_RO answers numbers");
        };
        ask.answers(believed, &numbers).collect()
    }

    fn field(&mut self, section: &str, name: &str) -> String {
        let Reply::Bytes(info) = self.call(&[b"INFO", section.as_bytes()]) else {
            panic!("INFO answers a string");
        };
        let info = String::from_utf8(info).unwrap();
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.unwrap_or_else(|| panic!("{name} is in INFO {section}")).into()
    }

    fn lineage(&mut self) -> Option<FilterLineage> {
        let run_id = self.field("server", "run_id");
        let role = self.field("replication", "role");
        FilterLineage::new(&run_id, &role, &self.field("replication", "master_replid"))
    }
}

fn spots(targets: std::ops::Range<u64>, geometry: Geometry) -> Vec<Spot> {
    let edge = |target| EdgeKey {
        tenant: TenantId(1),
        kind: KindId(1 + (target % 3) as u16),
        source: SourceId(5),
        target: TargetId(target / 3),
    };
    targets.map(|target| Spot::of(&edge(target), geometry)).collect()
}

#[test]
fn what_was_set_is_there_and_nothing_else() {
    let Some(redis) = Redis::start_or_skip("what_was_set_is_there_and_nothing_else") else {
        return;
    };
    let mut connection = Connection::new(&redis);
    let geometry = Geometry::for_items(0);
    let shard = Asker::new(TenantId(1), SourceId(5)).shard(geometry);
    let seal = Seal::new(0xfedc_ba98_7654_3210).unwrap();
    let header =
        ShardHeader { seal: Some(seal), format: FORMAT, geometry, shard, generation: GENERATION };
    let key = shard_key(0, GENERATION, shard);
    let added = spots(0..SET_ITEMS_MAX as u64, geometry);
    let others = spots(1_000..1_256, geometry);

    // Nothing is made where there is no shard, and nobody takes its absence for an answer.
    assert_eq!(connection.set(&key, seal, added.clone()), Reply::Number(0));
    assert_eq!(connection.call(&[b"EXISTS", key.as_bytes()]), Reply::Number(0));
    assert_eq!(connection.ask(&key, Some(seal), &added), [Say::Unknown; SET_ITEMS_MAX]);

    // A header alone is a shard of zeros.
    connection.make(&header);
    assert_eq!(connection.ask(&key, Some(seal), &added), [Say::SurelyNot; SET_ITEMS_MAX]);
    assert_eq!(connection.ask(&key, None, &added), [Say::Unknown; SET_ITEMS_MAX]);

    let other_seal = Seal::new(1).unwrap();
    assert_eq!(connection.set(&key, other_seal, added.clone()), Reply::Number(0));
    let Reply::Bytes(string) = connection.call(&[b"GET", key.as_bytes()]) else { panic!() };
    assert_eq!(string, header.encode());

    // In two halves, the second over words of the first, and once more, as the upkeep does it.
    for part in [&added[..160], &added[100..], &added[..]] {
        assert_eq!(connection.set(&key, seal, part.to_vec()), Reply::Number(1));
    }
    assert_eq!(connection.ask(&key, Some(seal), &added), [Say::Maybe; SET_ITEMS_MAX]);
    assert_eq!(connection.ask(&key, Some(other_seal), &added), [Say::Unknown; SET_ITEMS_MAX]);
    let says = connection.ask(&key, Some(seal), &others);
    assert!(says.iter().filter(|say| **say == Say::SurelyNot).count() > 240, "{says:?}");

    // The string is the header and exactly these bits.
    let Reply::Bytes(string) = connection.call(&[b"GET", key.as_bytes()]) else { panic!() };
    assert_eq!(ShardHeader::decode(&string), Some(header));
    assert_eq!((string.len() - HEADER_BYTES) % 8, 0);
    let words =
        string[HEADER_BYTES..].chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap()));
    let mut words: Vec<u64> = words.collect();
    // Redis keeps no zeros at the end.
    words.resize(geometry.words() as usize, 0);
    let mut expected = vec![0; geometry.words() as usize];
    for spot in &added {
        expected[spot.word as usize] |= spot.mask;
    }
    assert_eq!(words, expected);
    let changed: BTreeSet<u32> = added.iter().map(|spot| spot.word).collect();
    assert!(changed.len() > 80, "targets have words of their own");
}

#[test]
fn a_lineage_is_a_masters_and_changes_when_it_was_a_replica() {
    let Some(master) =
        Redis::start_or_skip("a_lineage_is_a_masters_and_changes_when_it_was_a_replica")
    else {
        return;
    };
    let mut first = Connection::new(&master);
    let lineage = first.lineage().expect("a master has a lineage");
    assert_eq!(Connection::new(&master).lineage(), Some(lineage));
    first.call(&[b"FLUSHALL"]);
    assert_eq!(first.lineage(), Some(lineage));

    // Down to a replica and up again over the same connection: the process is the same, its data
    // may not be.
    let other = Redis::start();
    let port = other.port().to_string();
    first.call(&[b"REPLICAOF", b"127.0.0.1", port.as_bytes()]);
    assert_eq!(first.lineage(), None);
    first.call(&[b"REPLICAOF", b"NO", b"ONE"]);
    let again = first.lineage().expect("it is a master again");
    assert_ne!(again, lineage);
    assert_ne!(Connection::new(&other).lineage(), Some(again));
}
