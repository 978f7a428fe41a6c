//! How messages of our services are read and written: as protobuf, after a look at how many fields
//! one has. Two bytes may stand for an element that takes a hundred when it is read, so a message
//! that is short on its way could fill the memory before a call sees how many elements it has.

use std::marker::PhantomData;
use std::sync::Arc;

use guanxi_model::Error;
use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

use crate::error::grpc_status_of;

/// Fields of one message, each element of a list being one: no call takes a quarter of it.
const FIELDS_MAX: usize = 4_096;
/// No field is shorter: a key and a value. What cannot have too many is not looked through.
const FIELD_BYTES_MIN: usize = 2;

#[derive(Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> BoundedCodec<T, U> {
        BoundedCodec(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> BoundedDecoder<U> {
        BoundedDecoder(ProstCodec::<T, U>::raw_decoder(BufferSettings::default()))
    }
}

#[derive(Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // The library has gathered the whole message in one piece.
        if has_too_many_fields(message.chunk()) {
            return Err(too_many_fields());
        }
        self.0.decode(message)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

/// Counts the fields of the message itself. One that cannot be read is for the decoder to refuse,
/// which comes no further than this did.
fn has_too_many_fields(mut message: &[u8]) -> bool {
    if message.len() <= FIELDS_MAX * FIELD_BYTES_MIN {
        return false;
    }
    let mut fields = 0;
    while message.has_remaining() {
        fields += 1;
        if fields > FIELDS_MAX {
            return true;
        }
        let skipped = decode_key(&mut message).and_then(|(tag, wire_type)| {
            skip_field(wire_type, tag, &mut message, DecodeContext::default())
        });
        if skipped.is_err() {
            return false;
        }
    }
    false
}

fn too_many_fields() -> Status {
    let message = format!(
        "the message has more than {FIELDS_MAX} fields, counting each element of a list, which no \
         call takes; split it"
    );
    let error = Error::invalid(message);
    let mut status = Status::new(grpc_status_of(&error), "");
    status.set_source(Arc::new(error));
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{
        BatchEdgesRequest, CheckRequest, EdgeChange, ImportRequest, import_request,
    };

    fn batch(changes: usize, data: &str) -> Vec<u8> {
        let change = EdgeChange { data: Some(data.to_owned()), ..Default::default() };
        let changes = vec![change; changes];
        BatchEdgesRequest { changes, ..Default::default() }.encode_to_vec()
    }

    #[test]
    fn a_message_has_so_many_fields_and_no_more() {
        for (changes, refused) in
            [(0, false), (1_000, false), (FIELDS_MAX, false), (FIELDS_MAX + 1, true)]
        {
            assert_eq!(has_too_many_fields(&batch(changes, "some")), refused, "{changes}");
        }
        assert!(has_too_many_fields(&[0x0a, 0].repeat(FIELDS_MAX + 1)), "empty ones");
    }

    #[test]
    fn what_is_long_without_many_fields_is_taken() {
        let targets = (0..100_000).collect();
        let packed = CheckRequest { targets, ..Default::default() }.encode_to_vec();
        let part = import_request::Part::Lines(vec![b'\n'; 1 << 20].into());
        let lines = ImportRequest { part: Some(part) }.encode_to_vec();
        for message in [packed, lines, batch(10, &"long".repeat(10_000))] {
            assert!(!has_too_many_fields(&message), "{} bytes", message.len());
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_decoder() {
        let mut cut = batch(1_000, "some");
        cut.pop();
        for wrong in [cut, vec![0xff; 100_000], vec![0; 100_000]] {
            assert!(!has_too_many_fields(&wrong));
            assert!(BatchEdgesRequest::decode(&*wrong).is_err());
        }
    }
}
