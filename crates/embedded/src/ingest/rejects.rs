//! Rejected lines on their way through a sort of their own: they are told in the order of the files.

use std::io;

use guanxi_model::codec::{CodecError, Decoder};
use guanxi_model::import::RejectedLine;
use guanxi_model::{Code, Error};

use super::line::LinePlace;
use super::sorter::Sorter;

pub(super) fn write_reject(
    rejects: &mut Sorter,
    place: LinePlace,
    error: &Error,
) -> io::Result<()> {
    let RejectedLine { code, reason, .. } = RejectedLine::new(place.line, error);
    rejects.push_with(|out| {
        out.extend_from_slice(&place.bytes());
        out.push(code as u8);
        out.extend_from_slice(reason.as_bytes());
    })
}

pub(super) fn read_reject(record: &[u8]) -> Result<(LinePlace, RejectedLine), CodecError> {
    let mut input = Decoder::new(record);
    let place = LinePlace::read(&mut input)?;
    let find = |number| Code::ALL.into_iter().find(|code| *code as u8 == number);
    let code = input.closed("code", find)?;
    let reason = std::str::from_utf8(input.rest());
    let reason = reason.map_err(|_| CodecError("a reason is not UTF-8".to_owned()))?.into();
    Ok((place, RejectedLine { line: place.line, code, reason }))
}
