//! gRPC over HTTP/2 as far as a client with one call at a time on a connection needs it. Windows
//! are opened so far at the start that no answer waits for them.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, bail};

pub const FIRST_STREAM: u32 = 1;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
const MESSAGE_HEAD_BYTES: usize = 5;
const WINDOW_BYTES: u32 = (1 << 31) - 1;
const FIRST_WINDOW_BYTES: u32 = 65_535;
const INITIAL_WINDOW_SIZE: u16 = 4;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// `:method: POST` and `:scheme: http` in HPACK's static table.
const POST_HTTP: [u8; 2] = [0x83, 0x86];
/// Literals that nobody needs to remember; by the index of their name, or with it.
const PATH: &[u8] = &[0x04];
const AUTHORITY: &[u8] = &[0x01];
const CONTENT_TYPE: &[u8] = &[0x0f, 0x10];
const TE: &[u8] = &[0x00, 2, b't', b'e'];

struct Frame<'a> {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &'a [u8],
}

pub fn greet(stream: &mut TcpStream) -> anyhow::Result<()> {
    let mut hello = PREFACE.to_vec();
    let mut settings = INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    settings.extend_from_slice(&WINDOW_BYTES.to_be_bytes());
    frame(SETTINGS, 0, 0, &settings, &mut hello);
    let more = (WINDOW_BYTES - FIRST_WINDOW_BYTES).to_be_bytes();
    frame(WINDOW_UPDATE, 0, 0, &more, &mut hello);
    frame(SETTINGS, ACK, 0, &[], &mut hello);
    stream.write_all(&hello)?;
    // The server's own settings come first; whatever else it says is read with the first answer.
    let mut head = [0; FRAME_HEAD_BYTES];
    stream.read_exact(&mut head)?;
    anyhow::ensure!(head[3] == SETTINGS, "a server of HTTP/2 begins with its settings");
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    stream.read_exact(&mut vec![0; length as usize])?;
    Ok(())
}

/// A call, on no stream yet.
pub fn call(path: &str, message: &[u8], to: &mut Vec<u8>) {
    let mut headers = POST_HTTP.to_vec();
    let mut literal = |name: &[u8], value: &str| {
        headers.extend_from_slice(name);
        headers.push(value.len() as u8);
        headers.extend_from_slice(value.as_bytes());
    };
    literal(PATH, path);
    literal(AUTHORITY, "127.0.0.1");
    literal(CONTENT_TYPE, "application/grpc");
    literal(TE, "trailers");
    frame(HEADERS, END_HEADERS, 0, &headers, to);
    let mut data = vec![0];
    data.extend_from_slice(&(message.len() as u32).to_be_bytes());
    data.extend_from_slice(message);
    frame(DATA, END_STREAM, 0, &data, to);
}

/// Puts a call on a stream.
pub fn set_stream(call: &mut [u8], stream: u32) {
    let mut place = 0;
    while let Some(head) = call.get_mut(place..place + FRAME_HEAD_BYTES) {
        head[5..].copy_from_slice(&stream.to_be_bytes());
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        place += FRAME_HEAD_BYTES + length as usize;
    }
}

/// Bytes up to the end of the one answer that is waited for.
pub fn length(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    let (mut place, mut has_message) = (0, false);
    while let Some((frame, length)) = first(&bytes[place..]) {
        place += length;
        match frame.kind {
            RST_STREAM | GOAWAY => bail!("the server ended a call: {:?}", frame.payload),
            DATA | HEADERS if frame.flags & END_STREAM != 0 => {
                anyhow::ensure!(has_message, "a call was refused");
                return Ok(Some(place));
            }
            DATA => has_message |= !frame.payload.is_empty(),
            _ => {}
        }
    }
    Ok(None)
}

/// A call's one message, from its whole answer.
pub fn message(bytes: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (mut place, mut data) = (0, Vec::new());
    while let Some((frame, length)) = first(&bytes[place..]) {
        place += length;
        if frame.kind == DATA && frame.stream != 0 {
            data.extend_from_slice(frame.payload);
        }
    }
    let message = data.get(MESSAGE_HEAD_BYTES..).context("no message")?;
    let length = u32::from_be_bytes([data[1], data[2], data[3], data[4]]) as usize;
    anyhow::ensure!(data[0] == 0 && length == message.len(), "not one plain message");
    Ok(message.to_vec())
}

/// What must be said to stay connected.
pub fn answers_to_pings(bytes: &[u8]) -> Vec<Vec<u8>> {
    let (mut place, mut answers) = (0, Vec::new());
    while let Some((ping, length)) = first(&bytes[place..]) {
        place += length;
        if ping.kind == PING && ping.flags & ACK == 0 {
            let mut answer = Vec::new();
            frame(PING, ACK, 0, ping.payload, &mut answer);
            answers.push(answer);
        }
    }
    answers
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8], to: &mut Vec<u8>) {
    to.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    to.extend_from_slice(&[kind, flags]);
    to.extend_from_slice(&stream.to_be_bytes());
    to.extend_from_slice(payload);
}

fn first(bytes: &[u8]) -> Option<(Frame<'_>, usize)> {
    let head = bytes.get(..FRAME_HEAD_BYTES)?;
    let length = FRAME_HEAD_BYTES + u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = bytes.get(FRAME_HEAD_BYTES..length)?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((Frame { kind: head[3], flags: head[4], stream, payload }, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Vec<u8> {
        let mut bytes = Vec::new();
        frame(PING, 0, 0, &[7; 8], &mut bytes);
        frame(HEADERS, END_HEADERS, 1, &[0x88], &mut bytes);
        frame(DATA, 0, 1, &[0, 0, 0, 0, 3, 1], &mut bytes);
        frame(DATA, 0, 1, &[2, 3], &mut bytes);
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x88], &mut bytes);
        bytes
    }

    #[test]
    fn an_answer_ends_with_its_stream() {
        let whole = answer();
        for cut in 0..whole.len() {
            assert_eq!(length(&whole[..cut]).expect("so far so good"), None, "{cut}");
        }
        let mut more = whole.clone();
        frame(WINDOW_UPDATE, 0, 0, &[0; 4], &mut more);
        assert_eq!(length(&more).expect("an answer"), Some(whole.len()));
        assert_eq!(message(&whole).expect("a message"), [1, 2, 3]);
        assert_eq!(answers_to_pings(&whole).len(), 1);
    }

    #[test]
    fn a_refusal_has_no_message() {
        let mut bytes = Vec::new();
        frame(HEADERS, END_HEADERS | END_STREAM, 1, &[0x88], &mut bytes);
        assert!(length(&bytes).is_err());
        let mut bytes = Vec::new();
        frame(GOAWAY, 0, 0, &[0; 8], &mut bytes);
        assert!(length(&bytes).is_err());
    }

    #[test]
    fn every_frame_of_a_call_is_on_its_stream() {
        let mut bytes = Vec::new();
        call("/a/b", &[1, 2], &mut bytes);
        set_stream(&mut bytes, 5);
        let Some((headers, length)) = first(&bytes) else { panic!("headers") };
        let Some((data, _)) = first(&bytes[length..]) else { panic!("data") };
        assert_eq!((headers.stream, data.stream), (5, 5));
        assert_eq!(data.payload, [0, 0, 0, 0, 2, 1, 2]);
    }
}
