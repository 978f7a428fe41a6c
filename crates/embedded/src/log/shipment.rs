//! A piece of a log on its way to a standby: the epochs that led there, where the log ends, and
//! whole frames. It is made while it is sent (`OutgoingShipment`), so that nobody who does not read
//! holds all of it in memory, and read as a whole (`Shipment`).
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | magic `GXSH` |
//! | 4 | format: 2 when the service has moved to a cluster, else 1 |
//! | 5 | zero |
//! | 6..8 | bytes of the cluster's address; zero in format 1 |
//! | 8..16 | the log's last position |
//! | 16..24 | commit time of its last frame, ms |
//! | 24..28 | number of epochs |
//! | 28..32 | zero |
//! | then | each epoch: epoch (4), parent (4), fork position (8) |
//! | then | in format 2, the move: number (8), position (8), the cluster's address |
//! | then 4 | CRC32C of everything so far |
//! | then | the frames, as `frame.rs` writes them |
//! | then 4 | magic `GXSE` |
//! | then 4 | number of frames |
//! | then 4 | CRC32C of those eight bytes |
//!
//! Numbers are little endian. A frame's own checksums start from a fixed value here, as the two
//! ends have directories of their own.

use std::sync::Arc;

use guanxi_model::{Epoch, Position};

use super::frame::{self, ChecksumSeed, FrameError, FrameHeader, HEADER_BYTES, u32_at, u64_at};
use super::lineage::{FORKS_MAX, Fork, Lineage};
use super::{FRAME_BYTES_MAX, Frame, Log, LogError};
use crate::directory::Moved;

const MAGIC: [u8; 4] = *b"GXSH";
const END_MAGIC: [u8; 4] = *b"GXSE";
const FORMAT: u8 = 1;
/// With a move, which an older standby must not pass over.
const FORMAT_MOVED: u8 = 2;
const HEAD_BYTES: usize = 32;
const FORK_BYTES: usize = 16;
const CRC_BYTES: usize = 4;
const MOVE_BYTES: usize = 16;
const END_BYTES: usize = 12;
/// What checksums of frames under way start from.
const SEED: ChecksumSeed = ChecksumSeed(0x4758_5348);

/// Bytes of frames that one shipment gathers; a single frame may be larger.
const SHIPMENT_FRAME_BYTES: usize = 4 << 20;
/// Bytes of frames that are read from the log at once, or one frame: what a shipment that is being
/// sent holds in memory.
const PIECE_FRAME_BYTES: usize = 64 << 10;
/// The largest shipment: what one may cost in memory.
pub const SHIPMENT_BYTES_MAX: usize = HEAD_BYTES
    + FORKS_MAX * FORK_BYTES
    + MOVE_BYTES
    + u16::MAX as usize
    + CRC_BYTES
    + SHIPMENT_FRAME_BYTES
    + FRAME_BYTES_MAX
    + END_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shipment {
    pub lineage: Lineage,
    /// Where the log ended when this was made.
    pub last: Position,
    pub last_commit_ms: u64,
    /// Where the history goes on, once it has ended here.
    pub moved: Option<Moved>,
    pub frames: Vec<Frame>,
}

/// Why bytes are not a shipment.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ShipmentError {
    #[error("the answer is not a piece of a log, or came mangled: {0}")]
    Damaged(&'static str),
    #[error("the primary ships logs in format {0}, this version reads {FORMAT_MOVED}: update it")]
    Newer(u8),
}

/// A shipment that is read from the log while it is sent.
pub struct OutgoingShipment {
    log: Arc<dyn Log>,
    next: Position,
    /// The lineage of the head knows every epoch up to here.
    last: Position,
    bytes_left: usize,
    frames: u32,
    /// The head and the first frames, until they are taken.
    first: Option<Vec<u8>>,
    ended: bool,
}

impl std::fmt::Debug for OutgoingShipment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutgoingShipment").field("next", &self.next).finish_non_exhaustive()
    }
}

impl OutgoingShipment {
    /// What the log has after this position, up to where it ends now.
    pub(crate) fn begin(
        log: Arc<dyn Log>,
        after: Position,
        moved: impl FnOnce() -> Option<Moved>,
    ) -> Result<OutgoingShipment, LogError> {
        // In this order: the lineage has the epoch of each frame up to the end.
        let (last, last_commit_ms) = (log.last(), log.last_commit_ms());
        let lineage = log.lineage();
        let head = Shipment { lineage, last, last_commit_ms, moved: moved(), frames: Vec::new() };
        let mut begun = OutgoingShipment {
            log,
            next: Position(after.0 + 1),
            last,
            bytes_left: SHIPMENT_FRAME_BYTES,
            frames: 0,
            first: None,
            ended: false,
        };
        let mut first = head.encode_head();
        begun.add_frames(&mut first)?;
        begun.first = Some(first);
        Ok(begun)
    }

    /// The next bytes; none after the last. Blocks while it reads.
    pub fn next_piece(&mut self) -> Result<Option<Vec<u8>>, LogError> {
        if self.ended {
            return Ok(None);
        }
        let mut piece = match self.first.take() {
            Some(first) => first,
            None => {
                let mut piece = Vec::new();
                self.add_frames(&mut piece)?;
                piece
            }
        };
        if self.bytes_left == 0 || self.next > self.last {
            encode_end(self.frames, &mut piece);
            self.ended = true;
        }
        Ok(Some(piece))
    }

    fn add_frames(&mut self, piece: &mut Vec<u8>) -> Result<(), LogError> {
        if self.next > self.last {
            return Ok(());
        }
        let mut frames = self.log.read(self.next, PIECE_FRAME_BYTES.min(self.bytes_left))?;
        frames.retain(|frame| frame.last() <= self.last);
        let bytes: usize = frames.iter().map(frame::encoded_bytes).sum();
        piece.reserve_exact(bytes + END_BYTES);
        for frame in &frames {
            frame::encode_behind(frame, SEED, piece);
            self.next = Position(frame.last().0 + 1);
        }
        self.frames += frames.len() as u32;
        // A log never lacks what it had; if it did, this is not to go on for ever.
        self.bytes_left = match frames.is_empty() {
            true => 0,
            false => self.bytes_left.saturating_sub(bytes),
        };
        Ok(())
    }
}

fn encode_end(frames: u32, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend_from_slice(&END_MAGIC);
    out.extend_from_slice(&frames.to_le_bytes());
    let crc = crc32c::crc32c(&out[begin..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

impl Shipment {
    fn encode_head(&self) -> Vec<u8> {
        let forks = self.lineage.forks();
        let mut out = Vec::with_capacity(HEAD_BYTES + forks.len() * FORK_BYTES + CRC_BYTES);
        out.extend_from_slice(&MAGIC);
        // An address that no file of a move would hold is left out.
        let now_at = self.moved.as_ref().and_then(|moved| moved.now_at.as_deref());
        let now_at = now_at.filter(|text| text.len() <= u16::MAX as usize).unwrap_or_default();
        out.push(if self.moved.is_some() { FORMAT_MOVED } else { FORMAT });
        out.push(0);
        out.extend_from_slice(&(now_at.len() as u16).to_le_bytes());
        out.extend_from_slice(&self.last.0.to_le_bytes());
        out.extend_from_slice(&self.last_commit_ms.to_le_bytes());
        out.extend_from_slice(&(forks.len() as u32).to_le_bytes());
        out.extend_from_slice(&0_u32.to_le_bytes());
        for fork in forks {
            out.extend_from_slice(&fork.epoch.0.to_le_bytes());
            out.extend_from_slice(&fork.parent.0.to_le_bytes());
            out.extend_from_slice(&fork.at.0.to_le_bytes());
        }
        if let Some(moved) = &self.moved {
            out.extend_from_slice(&moved.id.to_le_bytes());
            out.extend_from_slice(&moved.position.0.to_le_bytes());
            out.extend_from_slice(now_at.as_bytes());
        }
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Shipment, ShipmentError> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else {
            return Err(ShipmentError::Damaged("it is cut off"));
        };
        if head[..4] != MAGIC {
            return Err(ShipmentError::Damaged("it does not begin as one"));
        }
        if head[4] > FORMAT_MOVED {
            return Err(ShipmentError::Newer(head[4]));
        }
        let forks = u32_at(head, 24) as usize;
        if forks > FORKS_MAX {
            return Err(ShipmentError::Damaged("it has too many epochs"));
        }
        let forks_end = HEAD_BYTES + forks * FORK_BYTES;
        let checked = match head[4] == FORMAT_MOVED {
            true => forks_end + MOVE_BYTES + usize::from(u16::from_le_bytes([head[6], head[7]])),
            false => forks_end,
        };
        let Some((begin, rest)) = bytes.split_at_checked(checked + CRC_BYTES) else {
            return Err(ShipmentError::Damaged("it is cut off"));
        };
        if u32_at(begin, checked) != crc32c::crc32c(&begin[..checked]) {
            return Err(ShipmentError::Damaged("its begin does not fit its checksum"));
        }
        let forks = begin[HEAD_BYTES..forks_end].chunks_exact(FORK_BYTES).map(|fork| Fork {
            epoch: Epoch(u32_at(fork, 0)),
            parent: Epoch(u32_at(fork, 4)),
            at: Position(u64_at(fork, 8)),
        });
        let Some(lineage) = Lineage::from_forks(forks.collect()) else {
            return Err(ShipmentError::Damaged("its epochs are no lineage"));
        };
        Ok(Shipment {
            lineage,
            last: Position(u64_at(head, 8)),
            last_commit_ms: u64_at(head, 16),
            moved: moved(&begin[forks_end..checked])?,
            frames: frames(rest)?,
        })
    }
}

/// None where there is nothing.
fn moved(bytes: &[u8]) -> Result<Option<Moved>, ShipmentError> {
    let Some(now_at) = bytes.get(MOVE_BYTES..) else {
        return Ok(None);
    };
    let Ok(now_at) = std::str::from_utf8(now_at) else {
        return Err(ShipmentError::Damaged("the cluster's address is no text"));
    };
    let now_at = Some(now_at.to_owned()).filter(|text| !text.is_empty());
    Ok(Some(Moved { id: u64_at(bytes, 0), position: Position(u64_at(bytes, 8)), now_at }))
}

fn frames(rest: &[u8]) -> Result<Vec<Frame>, ShipmentError> {
    let Some((mut rest, end)) = rest.split_last_chunk::<END_BYTES>() else {
        return Err(ShipmentError::Damaged("it is cut off"));
    };
    if end[..4] != END_MAGIC || u32_at(end, 8) != crc32c::crc32c(&end[..8]) {
        return Err(ShipmentError::Damaged("its end is cut off or does not fit its checksum"));
    }
    let count = u32_at(end, 4);
    let wrong = |error| match error {
        FrameError::Newer(found) => ShipmentError::Newer(found),
        FrameError::Bad(what) => ShipmentError::Damaged(what),
        FrameError::Absent | FrameError::Io(_) => ShipmentError::Damaged("a frame is missing"),
    };
    let mut frames = Vec::new();
    for _ in 0..count {
        let header = FrameHeader::decode(rest, SEED).map_err(wrong)?;
        let Some((frame, after)) = rest.split_at_checked(header.bytes() as usize) else {
            return Err(ShipmentError::Damaged("a frame is cut off"));
        };
        let payload = &frame[HEADER_BYTES..];
        header.check(payload, SEED).map_err(wrong)?;
        frames.push(header.frame(payload).map_err(wrong)?);
        rest = after;
    }
    match rest.is_empty() {
        true => Ok(frames),
        false => Err(ShipmentError::Damaged("it has more than its frames")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::MemoryLog;

    fn shipment() -> Shipment {
        let frame = |first: u64, records: &[&[u8]]| Frame {
            epoch: Epoch(7),
            first: Position(first),
            commit_ms: 1_700_000_000_000 + first,
            records: records.iter().map(|record| record.to_vec()).collect(),
        };
        Shipment {
            lineage: Lineage::start().with(Epoch(7), Position(4)).unwrap(),
            last: Position(9),
            last_commit_ms: 1_700_000_000_009,
            moved: None,
            frames: vec![frame(5, &[b"one", b""]), frame(7, &[&[9; 300]])],
        }
    }

    impl Shipment {
        fn encode(&self) -> Vec<u8> {
            let mut out = self.encode_head();
            for frame in &self.frames {
                frame::encode_behind(frame, SEED, &mut out);
            }
            encode_end(self.frames.len() as u32, &mut out);
            out
        }
    }

    fn moved() -> Shipment {
        let now_at = Some("http://集群:7420".to_owned());
        let moved = Moved { id: u64::MAX, position: Position(9), now_at };
        Shipment { moved: Some(moved), ..shipment() }
    }

    #[test]
    fn a_shipment_comes_back_as_it_went() {
        let mut empty = shipment();
        empty.frames.clear();
        let nowhere = Moved { now_at: None, ..moved().moved.unwrap() };
        let nowhere = Shipment { moved: Some(nowhere), ..shipment() };
        for shipment in [shipment(), empty, moved(), nowhere] {
            assert_eq!(Shipment::decode(&shipment.encode()).unwrap(), shipment);
        }
    }

    #[test]
    fn what_is_made_while_it_is_sent_is_in_pieces_and_whole() {
        let log = MemoryLog::default();
        let record = vec![7; PIECE_FRAME_BYTES / 3];
        for first in 1..=300 {
            let (epoch, records) = (log.epoch(), vec![record.clone()]);
            let first = Position(first);
            log.append(&Frame { epoch, first, commit_ms: first.0, records }).unwrap();
        }
        let log = Arc::new(log);
        let mut after = Position(0);
        let mut shipments = 0;
        while after < log.last() {
            let mut made = OutgoingShipment::begin(log.clone(), after, || None).unwrap();
            let mut bytes = Vec::new();
            while let Some(piece) = made.next_piece().unwrap() {
                assert!(piece.len() < 2 * PIECE_FRAME_BYTES, "{} bytes", piece.len());
                bytes.extend_from_slice(&piece);
            }
            let shipment = Shipment::decode(&bytes).unwrap();
            assert_eq!((shipment.last, shipment.last_commit_ms), (Position(300), 300));
            assert_eq!(
                shipment.frames,
                log.read(Position(after.0 + 1), usize::MAX).unwrap()[..shipment.frames.len()]
            );
            after = shipment.frames.last().unwrap().last();
            shipments += 1;
        }
        assert!(shipments > 1, "one has no more than so many bytes");
        let mut made = OutgoingShipment::begin(log.clone(), after, || None).unwrap();
        let bytes = made.next_piece().unwrap().unwrap();
        assert_eq!(made.next_piece().unwrap(), None);
        assert_eq!(Shipment::decode(&bytes).unwrap().frames, []);
        log.trim(Position(20)).unwrap();
        assert!(OutgoingShipment::begin(log, Position(3), || None).is_err());
    }

    #[test]
    fn every_flipped_bit_every_cut_and_every_addition_is_noticed() {
        for bytes in [shipment().encode(), moved().encode()] {
            every_change_is_noticed(&bytes);
        }
    }

    fn every_change_is_noticed(bytes: &[u8]) {
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Shipment::decode(&flipped).is_err(), "bit {bit}");
        }
        for kept in 0..bytes.len() {
            assert!(Shipment::decode(&bytes[..kept]).is_err(), "{kept} bytes");
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Shipment::decode(&longer).is_err());
    }

    #[test]
    fn a_newer_format_is_named() {
        let mut bytes = shipment().encode();
        bytes[4] = FORMAT_MOVED + 1;
        assert_eq!(Shipment::decode(&bytes), Err(ShipmentError::Newer(3)));
    }
}
