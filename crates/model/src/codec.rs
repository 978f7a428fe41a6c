//! The binary encodings of records and rows. Each begins with a version byte; numbers are varints
//! unless they are part of a sorted key (the store's key layout is its own).

mod import;
mod record;
mod row;

pub use import::{decode_import, encode_import};
pub use record::{
    RECORD_FORMAT, decode_record, decode_with_origin, encode_edge_record, encode_record,
};
pub use row::{
    decode_edge_row, decode_edge_state, decode_group, decode_idempotency, decode_job, decode_kind,
    decode_node, decode_node_numbers, encode_edge_row, encode_group, encode_idempotency,
    encode_job, encode_kind, encode_node,
};

use std::fmt;

use crate::change::Field;
use crate::edge::{EdgeKey, SourceId, TargetId};
use crate::kind::KindId;
use crate::node::TenantId;

/// The version byte of everything that is encoded here, unless it has one of its own.
pub const FORMAT: u8 = 1;

/// Bytes that do not decode. Checksums have passed by then, so it is a defect or a newer format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodecError(pub String);

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CodecError {}

#[derive(Debug, Default)]
pub struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub fn with_capacity(bytes: usize) -> Encoder {
        Encoder { bytes: Vec::with_capacity(bytes) }
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    pub fn fixed_u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub fn fixed_u128(&mut self, value: u128) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Small numbers of either sign in few bytes.
    pub fn signed(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)) as u64);
    }

    pub fn bytes(&mut self, value: &[u8]) {
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    pub fn str(&mut self, value: &str) {
        self.bytes(value.as_bytes());
    }

    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Encoder, T)) {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub fn field<T>(&mut self, field: &Field<T>, write: impl FnOnce(&mut Encoder, &T)) {
        match field {
            Field::Keep => self.u8(0),
            Field::Clear => self.u8(1),
            Field::Set(value) => {
                self.u8(2);
                write(self, value);
            }
        }
    }

    pub fn edge_key(&mut self, key: &EdgeKey) {
        self.varint(u64::from(key.tenant.0));
        self.varint(u64::from(key.kind.0));
        self.fixed_u64(key.source.0);
        self.fixed_u64(key.target.0);
    }
}

#[derive(Debug)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

type Decoded<T> = Result<T, CodecError>;

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Decoder<'a> {
        Decoder { rest: bytes }
    }

    /// Everything must have been read.
    pub fn finish(&self) -> Decoded<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(CodecError(format!("{} bytes too many", self.rest.len())))
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn format(&mut self) -> Decoded<()> {
        match self.u8()? {
            FORMAT => Ok(()),
            other => Err(CodecError(format!("format {other} is not known here, only {FORMAT}"))),
        }
    }

    pub fn take(&mut self, count: usize) -> Decoded<&'a [u8]> {
        let split = self.rest.split_at_checked(count);
        let (taken, rest) = split.ok_or_else(|| CodecError("it ends too early".into()))?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Decoded<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(CodecError(format!("{other} is not a truth value"))),
        }
    }

    pub fn fixed_u64(&mut self) -> Decoded<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_be_bytes(bytes))
    }

    pub fn fixed_u128(&mut self) -> Decoded<u128> {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(self.take(16)?);
        Ok(u128::from_be_bytes(bytes))
    }

    pub fn varint(&mut self) -> Decoded<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            if shift == 63 && byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(CodecError("a number has more than 64 bits".into()))
    }

    pub fn varint_u32(&mut self) -> Decoded<u32> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| CodecError(format!("{value} has more than 32 bits")))
    }

    pub fn varint_u16(&mut self) -> Decoded<u16> {
        let value = self.varint()?;
        u16::try_from(value).map_err(|_| CodecError(format!("{value} has more than 16 bits")))
    }

    pub fn signed(&mut self) -> Decoded<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub fn bytes(&mut self) -> Decoded<&'a [u8]> {
        let count = self.varint()?;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    pub fn str(&mut self) -> Decoded<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| CodecError("a text is not UTF-8".into()))
    }

    pub fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'a>) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    pub fn field<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'a>) -> Decoded<T>,
    ) -> Decoded<Field<T>> {
        match self.u8()? {
            0 => Ok(Field::Keep),
            1 => Ok(Field::Clear),
            2 => read(self).map(Field::Set),
            other => Err(CodecError(format!("{other} is no field"))),
        }
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    /// A value that is one of a closed list.
    pub fn closed<T>(&mut self, name: &str, find: impl Fn(u8) -> Option<T>) -> Decoded<T> {
        let value = self.u8()?;
        find(value).ok_or_else(|| CodecError(format!("{value} is no {name}")))
    }

    /// How many items follow; bounded by the bytes that are left, so that a wrong number cannot
    /// ask for memory.
    pub fn count(&mut self) -> Decoded<usize> {
        let count = self.varint()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.rest.len() => Ok(count),
            _ => Err(CodecError(format!("{count} items do not fit the bytes that are left"))),
        }
    }

    pub fn tenant(&mut self) -> Decoded<TenantId> {
        Ok(TenantId(self.varint_u32()?))
    }

    pub fn kind_id(&mut self) -> Decoded<KindId> {
        Ok(KindId(self.varint_u16()?))
    }

    pub fn edge_key(&mut self) -> Decoded<EdgeKey> {
        Ok(EdgeKey {
            tenant: self.tenant()?,
            kind: self.kind_id()?,
            source: SourceId(self.fixed_u64()?),
            target: TargetId(self.fixed_u64()?),
        })
    }
}
