//! Encodings: everything survives its bytes, and no bytes make a decoder panic.

use std::fmt::Debug;

use guanxi_model::codec::{
    CodecError, decode_edge_row, decode_group, decode_idempotency, decode_import, decode_job,
    decode_kind, decode_node, decode_record, decode_with_origin, encode_edge_row, encode_group,
    encode_idempotency, encode_import, encode_job, encode_kind, encode_node, encode_record,
};
use guanxi_model::{GroupId, Node, Origin, Record};
use proptest::prelude::*;

use crate::strategies::{
    edge_rows, groups, idempotency_rows, import_rows, jobs, kinds, node_rows, records, tally_rows,
};

/// Whether an encoding says where it ends. A row of tallies goes on to the end of its bytes.
#[derive(Clone, Copy, PartialEq)]
pub enum Ending {
    Inside,
    AtTheEnd,
}

/// What single bytes are replaced by in arbitrary values: the bits of a byte one by one. The
/// golden values, which are few, get every byte.
const FLIPS: [u8; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

fn check<T: PartialEq + Debug>(
    value: &T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ending: Ending,
) {
    check_flipped(value, encode, decode, ending, FLIPS);
}

pub fn check_flipped<T: PartialEq + Debug>(
    value: &T,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Result<T, CodecError>,
    ending: Ending,
    flips: impl IntoIterator<Item = u8> + Clone,
) {
    let bytes = encode(value);
    assert_eq!(decode(&bytes).as_ref(), Ok(value));

    for end in 0..bytes.len() {
        let cut = decode(&bytes[..end]);
        if ending == Ending::Inside {
            assert!(cut.is_err(), "the first {end} bytes of {bytes:x?}: {cut:?}");
        }
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(decode(&longer).is_err(), "one byte too many: {longer:x?}");

    let mut mangled = bytes.clone();
    for at in 0..bytes.len() {
        for flip in flips.clone() {
            mangled[at] = bytes[at] ^ flip;
            let Ok(other) = decode(&mangled) else {
                continue;
            };
            // What decodes at all is a value like any other.
            assert_eq!(decode(&encode(&other)), Ok(other), "{mangled:x?}");
            assert!(at > 0, "format {} is not known", mangled[0]);
        }
        mangled[at] = bytes[at];
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rows(
        edge in edge_rows(),
        group in groups(),
        settings in node_rows(),
        kind in kinds(),
        job in jobs(),
        idempotency in idempotency_rows(),
        import in import_rows(),
        tallies in tally_rows(),
    ) {
        check(&edge, encode_edge_row, decode_edge_row, Ending::Inside);
        check(&group, encode_group, |bytes| decode_group(group.id, bytes), Ending::Inside);
        let node = Node { settings, tallies };
        check(&node, encode_node, decode_node, Ending::AtTheEnd);
        check(&kind, encode_kind, decode_kind, Ending::Inside);
        check(&job, encode_job, decode_job, Ending::Inside);
        check(&idempotency, encode_idempotency, decode_idempotency, Ending::Inside);
        check(&import, encode_import, decode_import, Ending::Inside);
    }

    #[test]
    fn whole_records(record in records()) {
        let encode = |(record, origin): &(Record, Origin)| encode_record(record, origin);
        check(&record, encode, decode_with_origin, Ending::Inside);
        prop_assert_eq!(decode_record(&encode(&record)), Ok(record.0));
    }

    #[test]
    fn any_bytes(tag in 0..14u8, content in proptest::collection::vec(any::<u8>(), 0..120)) {
        let row = [&[1], &content[..]].concat();
        let record = [&[2, tag], &content[..]].concat();
        let place = [&[3], &content[..]].concat();
        for bytes in [&content, &row, &record, &place] {
            let _ = decode_record(bytes);
            let _ = decode_edge_row(bytes);
            let _ = decode_group(GroupId(1), bytes);
            let _ = decode_node(bytes);
            let _ = decode_kind(bytes);
            let _ = decode_job(bytes);
            let _ = decode_idempotency(bytes);
            let _ = decode_import(bytes);
        }
    }
}

#[test]
fn what_is_refused_and_why() {
    let check = |bytes: &[u8], words: &str| {
        let error = decode_record(bytes).unwrap_err();
        assert!(error.0.contains(words), "{bytes:x?}: {error}");
    };
    check(&[], "ends too early");
    check(&[0], "format 0, only 2 is known");
    check(&[1, 1], "format 1, only 2 is known");
    check(&[2, 2, 64], "unknown flag");
    check(&[2, 2, 32], "unknown flag");
    check(&[2], "ends too early");
    check(&[2, 0, 0], "0 is no known record");
    check(&[2, 12, 0], "12 is no known record");
    check(&[2, 14, 0], "14 is no known record");
    check(&[2, 255, 0], "255 is no known record");
    check(&[2, 4, 0, 255, 255, 255, 255, 16], "more than 32 bits");
    check(&[2, 4, 0, 1, 128, 128, 4], "more than 16 bits");
    check(&[2, 8, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], "more than 64 bits");
    check(&[2, 8, 0, 1, 1, 3], "3 is no known work");
    check(&[2, 4, 0, 1, 1, 1, b'A'], "begins with a letter");
    check(&[2, 4, 0, 1, 1, 1, 0xff], "not UTF-8");
    check(&[2, 4, 0, 1, 1, 200, 1, b'a'], "ends too early");
}

#[test]
fn tallies_stand_in_order_and_once() {
    // Two numbers of one kind and which would be added, and may not fit.
    let largest = [0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    let twice = [&[1, 0, 1, 0], &largest[..], &[1, 0], &largest[..]].concat();
    assert!(decode_node(&twice).is_err());
    assert!(decode_node(&[1, 0, 2, 0, 2, 1, 0, 2]).is_err());
    assert!(decode_node(&[1, 0, 1, 0, 2, 1, 1, 2, 2, 0, 2]).is_ok());
    assert!(decode_node(&[1, 0, 1, 6, 2]).is_err(), "no such tally");
    assert!(decode_node(&[1, 4]).is_err(), "no such flag");
}
