//! A source's outgoing edges of one kind as one string: the targets sorted, so that one is found
//! without reading the others, then where each row stands, then the rows; then the source's groups.
//! Complete or not at all.

use guanxi_model::codec::{Decoder, Encoder, decode_edge_row, encode_edge_row};
use guanxi_model::filter::Seal;
use guanxi_model::group::Group;
use guanxi_model::{EdgeRow, GroupId, GroupName, GroupSet, TargetId};

/// Edges of a list that is kept; of a longer one only that it is too long.
pub const EDGES_MAX: usize = 2_000;

/// What a string begins with: a list, a lease to fill one, writes under way.
const LIST: u8 = b'V';
pub(super) const LEASE: u8 = b'L';
const SEAL_BYTES: usize = 8;
const HEADER_BYTES: usize = 1 + SEAL_BYTES + COUNT_BYTES;
const COUNT_BYTES: usize = 4;
const TARGET_BYTES: usize = 8;
const PLACE_BYTES: usize = 4;
/// The count of a list that is too long to be kept.
const TOO_LONG: u32 = u32::MAX;

/// What is kept of a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeptList {
    Whole(PackedList),
    /// There is more of it than is kept.
    TooLong,
}

/// A complete list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedList {
    bytes: Vec<u8>,
    count: usize,
    groups_at: usize,
}

/// All of a list: what stands, sorted by target, and the source's groups.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OutgoingList {
    pub rows: Vec<(TargetId, EdgeRow)>,
    pub groups: GroupSet,
}

/// None: it is too long.
pub(super) fn pack(seal: Seal, list: Option<&OutgoingList>) -> Vec<u8> {
    let mut out = vec![LIST];
    out.extend(seal.value().to_be_bytes());
    let Some(OutgoingList { rows, groups }) = list else {
        out.extend(TOO_LONG.to_be_bytes());
        return out;
    };
    out.extend((rows.len() as u32).to_be_bytes());
    for (target, _) in rows {
        out.extend(target.0.to_be_bytes());
    }
    let (mut places, mut encoded) = (Vec::with_capacity(rows.len() * PLACE_BYTES), Vec::new());
    for (_, row) in rows {
        encoded.extend(encode_edge_row(row));
        places.extend((encoded.len() as u32).to_be_bytes());
    }
    out.extend(places);
    out.extend(encoded);
    out.extend(pack_groups(groups));
    out
}

fn pack_groups(groups: &GroupSet) -> Vec<u8> {
    let mut out = Encoder::with_capacity(2 + 32 * groups.groups.len());
    out.varint(u64::from(groups.next.0));
    out.varint(groups.groups.len() as u64);
    for Group { id, name, size } in &groups.groups {
        out.varint(u64::from(id.0));
        out.fixed_u64(size.cast_unsigned());
        out.bytes(name.as_str().as_bytes());
    }
    out.into_bytes()
}

fn unpack_groups(bytes: &[u8]) -> Option<GroupSet> {
    let mut from = Decoder::new(bytes);
    let next = GroupId(from.varint_u32().ok()?);
    let mut groups = Vec::new();
    for _ in 0..from.count().ok()? {
        let id = GroupId(from.varint_u32().ok()?);
        let size = from.fixed_u64().ok()?.cast_signed();
        let name = std::str::from_utf8(from.bytes().ok()?).ok()?;
        groups.push(Group { id, name: GroupName::new(name).ok()?, size });
    }
    from.finish().ok()?;
    Some(GroupSet { next, groups })
}

/// A list under this seal; none where the string is something else, or nothing.
pub(super) fn unpack(seal: Seal, bytes: Vec<u8>) -> Option<KeptList> {
    let header = bytes.get(..HEADER_BYTES)?;
    let sealed = header[1..=SEAL_BYTES] == seal.value().to_be_bytes();
    if header[0] != LIST || !sealed {
        return None;
    }
    let count = number(&header[1 + SEAL_BYTES..])?;
    if count == TOO_LONG {
        return Some(KeptList::TooLong);
    }
    let mut list = PackedList { bytes, count: count as usize, groups_at: 0 };
    let rows_end = if list.count == 0 { 0 } else { list.row_end(list.count - 1)? };
    list.groups_at = list.rows_at() + rows_end;
    // What was cut off is not complete.
    list.groups().map(|_| KeptList::Whole(list))
}

impl PackedList {
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The edge's row; none where it does not stand. Nothing can be said where it cannot be read.
    pub fn find(&self, target: TargetId) -> Option<Option<EdgeRow>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.target(middle)?.cmp(&target) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return self.row(middle).map(Some),
            }
        }
        Some(None)
    }

    /// All of it; none where something cannot be read.
    pub fn unpacked(&self) -> Option<OutgoingList> {
        let rows = (0..self.count).map(|index| Some((self.target(index)?, self.row(index)?)));
        Some(OutgoingList { rows: rows.collect::<Option<_>>()?, groups: self.groups()? })
    }

    fn groups(&self) -> Option<GroupSet> {
        unpack_groups(self.bytes.get(self.groups_at..)?)
    }

    fn target(&self, index: usize) -> Option<TargetId> {
        let at = HEADER_BYTES + index * TARGET_BYTES;
        let bytes = self.bytes.get(at..at + TARGET_BYTES)?;
        bytes.try_into().ok().map(u64::from_be_bytes).map(TargetId)
    }

    fn row(&self, index: usize) -> Option<EdgeRow> {
        let begin = if index == 0 { 0 } else { self.row_end(index - 1)? };
        let rows = self.bytes.get(self.rows_at()..self.groups_at)?;
        decode_edge_row(rows.get(begin..self.row_end(index)?)?).ok()
    }

    fn row_end(&self, index: usize) -> Option<usize> {
        let at = HEADER_BYTES + self.count * TARGET_BYTES + index * PLACE_BYTES;
        number(self.bytes.get(at..at + PLACE_BYTES)?).map(|end| end as usize)
    }

    fn rows_at(&self) -> usize {
        HEADER_BYTES + self.count * (TARGET_BYTES + PLACE_BYTES)
    }
}

fn number(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use guanxi_model::{Millis, State, Version};

    use super::*;

    fn row(random: &mut fastrand::Rng) -> EdgeRow {
        let data = "x".repeat(random.usize(..20));
        EdgeRow {
            version: Version(random.u64(..)),
            state: if random.bool() { State::Live } else { State::Pending },
            since: Millis(random.u64(..1 << 44)),
            group: random.bool().then(|| GroupId(random.u32(1..9))),
            owner: random.bool().then(|| random.u64(1..)),
            data: (!data.is_empty()).then(|| data.into()),
            expires_at: random.bool().then(|| Millis(random.u64(..1 << 44))),
        }
    }

    fn groups(random: &mut fastrand::Rng) -> GroupSet {
        let ids = (1..=random.u32(..5)).map(GroupId);
        let group = |id: GroupId| Group {
            id,
            name: GroupName::new(&format!("朋友 {}", id.0)).unwrap(),
            size: i64::from(id.0) - 2,
        };
        GroupSet { next: GroupId(9), groups: ids.map(group).collect() }
    }

    #[test]
    fn a_list_is_found_as_it_was_packed() {
        for seed in 0..300 {
            let random = &mut fastrand::Rng::with_seed(seed);
            let count = random.usize(..150);
            let rows: BTreeMap<u64, EdgeRow> =
                (0..count).map(|_| (random.u64(1..500), row(random))).collect();
            let list = OutgoingList {
                rows: rows.iter().map(|(target, row)| (TargetId(*target), row.clone())).collect(),
                groups: groups(random),
            };
            let seal = Seal::new(7).unwrap();
            let bytes = pack(seal, Some(&list));
            assert_eq!(unpack(Seal::new(8).unwrap(), bytes.clone()), None);
            assert_eq!(unpack(seal, bytes[..bytes.len() - 1].to_vec()), None, "seed {seed}");
            let Some(KeptList::Whole(packed)) = unpack(seal, bytes) else { panic!("seed {seed}") };
            assert_eq!(packed.unpacked().unwrap(), list, "seed {seed}");
            for target in 0..500 {
                let found = packed.find(TargetId(target)).unwrap();
                assert_eq!(found.as_ref(), rows.get(&target), "seed {seed}");
            }
        }
    }

    #[test]
    fn what_is_no_list_is_none() {
        let seal = Seal::new(7).unwrap();
        assert_eq!(unpack(seal, pack(seal, None)), Some(KeptList::TooLong));
        for bytes in [&b""[..], b"!12345678", b"L12345678", b"V", &[b'V'; 40]] {
            assert_eq!(unpack(seal, bytes.to_vec()), None, "{bytes:?}");
        }
    }
}
