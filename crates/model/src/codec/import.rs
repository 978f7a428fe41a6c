//! The encoding of an import's place. It is written with every chunk of lines, so what it keeps of
//! rejected lines takes few bytes: reasons of one code are much alike, and each is written as what
//! differs from the last of its code.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CodecError, Decoded, Decoder, Encoder};
use crate::error::Code;
use crate::import::{ImportRow, LinesDigest, RejectedLine};
use crate::time::Millis;

/// The version byte of an import's row. The first two had no rejected lines.
const FORMAT: u8 = 3;

pub fn encode_import(row: &ImportRow) -> Vec<u8> {
    let mut out = Encoder::with_capacity(48);
    out.u8(FORMAT);
    write_import(&mut out, row);
    out.into_bytes()
}

pub fn decode_import(bytes: &[u8]) -> Decoded<ImportRow> {
    let mut input = Decoder::new(bytes);
    match input.u8()? {
        FORMAT => {}
        other => return Err(CodecError(format!("format {other} of a place is not known here"))),
    }
    let row = read_import(&mut input)?;
    input.finish()?;
    Ok(row)
}

pub(super) fn write_import(out: &mut Encoder, row: &ImportRow) {
    let ImportRow { lines, accepted, changed, rejected, rejects, at, digest } = row;
    for number in [*lines, *accepted, *changed, *rejected, at.0] {
        out.varint(number);
    }
    out.fixed_u128(digest.0);
    out.varint(rejects.len() as u64);
    let mut last_line = 0;
    let mut last_of_code: BTreeMap<u8, &str> = BTreeMap::new();
    for RejectedLine { line, code, reason } in rejects.iter() {
        out.varint(line.wrapping_sub(last_line));
        out.u8(*code as u8);
        let known = last_of_code.insert(*code as u8, reason).unwrap_or("");
        let shared = shared_bytes(known, reason);
        out.varint(shared as u64);
        out.str(&reason[shared..]);
        last_line = *line;
    }
}

pub(super) fn read_import(input: &mut Decoder<'_>) -> Decoded<ImportRow> {
    let mut numbers = [0; 5];
    for number in &mut numbers {
        *number = input.varint()?;
    }
    let [lines, accepted, changed, rejected, at] = numbers;
    let digest = LinesDigest(input.fixed_u128()?);
    let count = input.count()?;
    if count as u64 > rejected {
        return Err(CodecError(format!("{count} of {rejected} rejected lines")));
    }
    let mut rejects: Vec<RejectedLine> = Vec::with_capacity(count);
    let mut last_line = 0_u64;
    let mut last_of_code: BTreeMap<u8, usize> = BTreeMap::new();
    for at in 0..count {
        let line = last_line.wrapping_add(input.varint()?);
        let code = input.closed("code", Code::from_u8)?;
        let known = last_of_code.insert(code as u8, at);
        let known = known.map_or("", |known| &*rejects[known].reason);
        let shared = usize::try_from(input.varint()?).ok().and_then(|shared| known.get(..shared));
        let shared = shared.ok_or_else(|| CodecError("a reason goes on from none".into()))?;
        let reason = [shared, input.str()?].concat().into();
        rejects.push(RejectedLine { line, code, reason });
        last_line = line;
    }
    let (rejects, at) = (Arc::new(rejects), Millis(at));
    Ok(ImportRow { lines, accepted, changed, rejected, rejects, at, digest })
}

/// How far two texts are the same.
fn shared_bytes(one: &str, other: &str) -> usize {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other);
    same.map(|(char, _)| char.len_utf8()).sum()
}
