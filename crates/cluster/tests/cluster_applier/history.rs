//! Histories of edges: every change a record, the last of each edge what `outgoing` holds.

use std::collections::BTreeMap;

use guanxi_cluster::applier::{ApplyItem, Placed, Slice};
use guanxi_model::record::EdgeRecord;
use guanxi_model::{EdgeKey, EdgeRow, KindId, Millis, SourceId, State, TargetId, Version};

use super::world::{FOLLOW, LIKE, QUIET, TENANT, World};

pub struct History {
    /// In the order of their commits.
    pub records: Vec<EdgeRecord>,
    pub outgoing: BTreeMap<EdgeKey, EdgeRow>,
}

pub fn edge(kind: KindId, source: u64, target: u64) -> EdgeKey {
    EdgeKey { tenant: TENANT, kind, source: SourceId(source), target: TargetId(target) }
}

/// The version of the change with this number.
pub fn nth(number: u64) -> Version {
    Version::ZERO.plus(number)
}

pub fn row(version: u64, state: State, owner: Option<u64>) -> EdgeRow {
    EdgeRow {
        version: Version(version),
        state,
        since: Millis(1_000 + version),
        group: None,
        owner,
        data: None,
        expires_at: None,
    }
}

pub fn record(key: EdgeKey, new: EdgeRow) -> EdgeRecord {
    EdgeRecord::of(key, new)
}

/// Few edges with many changes, so that they meet.
pub fn history(random: &mut fastrand::Rng, changes: usize) -> History {
    let mut history = History { records: Vec::new(), outgoing: BTreeMap::new() };
    for version in 1..=changes as u64 {
        let kind = [FOLLOW, LIKE, QUIET][random.usize(..3)];
        let key = edge(kind, random.u64(1..=12), random.u64(1..=9));
        let new = match random.u8(..6) {
            0..=1 => EdgeRow::removed(nth(version), Millis(1_000 + version)),
            2 => row(nth(version).0, State::Pending, None),
            _ => {
                let owner = (kind == LIKE).then(|| random.u64(1..=3));
                row(nth(version).0, State::Live, owner)
            }
        };
        history.outgoing.insert(key, new.clone());
        history.records.push(record(key, new));
    }
    history
}

/// A log in memory: what each partition holds, from position 0.
#[derive(Default, Clone)]
pub struct Log(pub BTreeMap<u32, Vec<EdgeRecord>>);

impl Log {
    /// Each record in its own partition.
    pub fn of(world: &World, records: impl IntoIterator<Item = EdgeRecord>) -> Log {
        let mut log = Log::default();
        for record in records {
            log.0.entry(world.partition(&record.key)).or_default().push(record);
        }
        log
    }

    /// The records of a partition from here on.
    pub fn slice(&self, partition: u32, from: u64, records_max: usize) -> Slice {
        let records = self.0.get(&partition).map_or(&[][..], |records| records);
        let rest = records.iter().enumerate().skip(from as usize).take(records_max);
        let items: Vec<Placed> = rest
            .map(|(position, record)| Placed {
                position: position as u64,
                after: (position as u64 + 1).into(),
                item: ApplyItem::Edge(Box::new(record.clone())),
                value: Vec::new(),
            })
            .collect();
        let next = from + items.len() as u64;
        Slice { partition, expected: from.into(), items, next: next.into() }
    }

    pub fn end(&self, partition: u32) -> u64 {
        self.0.get(&partition).map_or(0, |records| records.len() as u64)
    }

    /// Applies all of it from the start, random amounts of random partitions at a time.
    pub fn apply_all(&self, world: &World, random: &mut fastrand::Rng) {
        let mut next: BTreeMap<u32, u64> = self.0.keys().map(|part| (*part, 0)).collect();
        loop {
            let mut slices = Vec::new();
            for (partition, next) in &mut next {
                if random.bool() && *next < self.end(*partition) {
                    let slice = self.slice(*partition, *next, random.usize(1..80));
                    *next = slice.next.next;
                    slices.push(slice);
                }
            }
            if !slices.is_empty() {
                random.shuffle(&mut slices);
                let applied = world.apply(&slices).unwrap();
                assert_eq!(applied.foreign, Vec::<u32>::new());
            }
            if next.iter().all(|(partition, next)| *next == self.end(*partition)) {
                return;
            }
        }
    }
}
