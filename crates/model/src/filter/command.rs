//! What the commands to Redis carry and what their answers mean. The sending is the cluster's.
//!
//! **Ask**: `BITFIELD_RO key GET i64 64 GET i64 <bit> …`: the seal, then each word asked for.
//! Beyond a string's end it reads zeros, so a shard that is only a header has surely nothing, and
//! an absent one has no seal.
//!
//! **Set**: `EVALSHA set.lua 1 key <seal> (<byte> <mask>)…`: sets nothing when the seal is another.
//!
//! Measured on Redis 7.0, shards of 16 MiB, one viewer with 18 questions (6 objects, 3 kinds);
//! µs of the server's CPU for a request, alone and in pipelines of 16 (`PING` 4.9 and 0.5):
//!
//! | ask | alone | × 16 |
//! |---|---|---|
//! | `BITFIELD_RO`, 12 words: two kinds share the object, one asks about its author | 12.5 | 7.0 |
//! | the same, 18 words, or 36, or 72 | 14.3, 20.9, 33.7 | 7.9, 15.7, 28.3 |
//! | a script with `GETRANGE` for each line | 40.5 | 34.9 |
//! | the same, offsets packed into one argument | 42.0 | 37.2 |
//!
//! | set, µs for a command | 1 item | 16 | 64 | 256 |
//! |---|---|---|---|---|
//! | `set.lua`, which ORs words | 12.5 | 51 | 179 | 651 |
//! | the same when all are there already | 9.4 | 37 | 126 | 488 |
//! | a script with `SETBIT` for each bit | 12.3 | 86 | 352 | 1257 |
//! | a script with one `BITFIELD … SET u1` | 13.5 | 87 | 328 | 1407 |
//! | `BITFIELD … SET u1` alone, which cannot check the seal | 6.7 | 34 | 178 | 638 |

use super::header::{Generation, HEADER_BYTES, SEAL_BYTE, Seal};
use super::item::Spot;

/// The script of **set**.
pub const SET: &str = include_str!("set.lua");
/// Items of one **set**: the server is busy with it for under a millisecond.
pub const SET_ITEMS_MAX: usize = 256;
/// Words of one **ask**: as many questions as a batch has, in one command of about 10 KiB.
pub const ASK_WORDS_MAX: usize = 256;

/// Bits before the seal, as **ask** wants them.
pub const SEAL_BIT: u64 = SEAL_BYTE as u64 * 8;

/// A shard's key. The braces keep a place's keys, its ledger among them, on one server of a Redis
/// cluster, so that they are saved, replicated and moved together.
pub fn shard_key(place: u32, generation: Generation, shard: u32) -> String {
    format!("guanxi:filter:{{{place}}}:{}:{shard}", generation.0)
}

/// The key of a generation's ledger: up to where the upkeep has set the log's bits.
pub fn ledger_key(place: u32, generation: Generation) -> String {
    format!("guanxi:filter:{{{place}}}:{}:ledger", generation.0)
}

/// Where a word begins in its string.
pub fn word_byte(word: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(word) * 8
}

pub fn word_bit(word: u32) -> u64 {
    word_byte(word) * 8
}

/// What a shard says of one question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    /// It was never added.
    SurelyNot,
    /// It was added, or something else set its bits.
    Maybe,
    /// The shard is not there, or not to be believed.
    Unknown,
}

/// The questions of one request to one shard, each word once.
#[derive(Debug, Clone, Default)]
pub struct Ask {
    words: Vec<u32>,
    /// For each question the place of its word in `words`, and its bits.
    questions: Vec<(usize, u64)>,
}

impl Ask {
    pub fn new(spots: impl IntoIterator<Item = Spot>) -> Ask {
        let mut ask = Ask::default();
        for spot in spots {
            // Requests are small, and kinds of one target come together: look from the end.
            let known = ask.words.iter().rposition(|word| *word == spot.word);
            let index = known.unwrap_or_else(|| {
                ask.words.push(spot.word);
                ask.words.len() - 1
            });
            ask.questions.push((index, spot.mask));
        }
        ask
    }

    /// What to `GET` after the seal, in this order.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The answers in the questions' order, from the numbers that came for the seal and the words.
    /// `believed` is the seal that the plan and the connection allow, if any.
    pub fn answers(&self, believed: Option<Seal>, reply: &[i64]) -> impl Iterator<Item = Say> {
        let words = match (believed, reply.split_first()) {
            (Some(seal), Some((found, words)))
                if *found as u64 == seal.value() && words.len() == self.words.len() =>
            {
                Some(words)
            }
            _ => None,
        };
        self.questions.iter().map(move |(index, mask)| match words {
            None => Say::Unknown,
            Some(words) if words[*index] as u64 & mask == *mask => Say::Maybe,
            Some(_) => Say::SurelyNot,
        })
    }
}

/// The words to change in one shard and the bits to set in each, each word once.
pub fn masks(mut spots: Vec<Spot>) -> Vec<Spot> {
    spots.sort_unstable();
    spots.dedup_by(|next, kept| {
        let same = next.word == kept.word;
        if same {
            kept.mask |= next.mask;
        }
        same
    });
    spots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spot(word: u32, mask: u64) -> Spot {
        Spot { word, mask }
    }

    #[test]
    fn where_things_stand() {
        assert_eq!(shard_key(3, Generation(12), 7), "guanxi:filter:{3}:12:7");
        assert_eq!(ledger_key(3, Generation(12)), "guanxi:filter:{3}:12:ledger");
        assert_eq!(SEAL_BIT, 64);
        assert_eq!((word_byte(0), word_bit(0)), (64, 512));
        assert_eq!((word_byte(9), word_bit(9)), (136, 1_088));
        assert_eq!(word_byte(8) % 64, 0);
    }

    #[test]
    fn answers_come_in_the_questions_order() {
        let ask = Ask::new([spot(5, 0b11), spot(9, 0b1), spot(5, 0b100), spot(5, 1 << 63)]);
        assert_eq!(ask.words(), [5, 9]);
        let seal = Seal::new(u64::MAX - 3);
        let say = |believed, reply: &[i64]| ask.answers(believed, reply).collect::<Vec<_>>();
        use Say::{Maybe, SurelyNot, Unknown};
        let found = say(seal, &[-4, 0b111, 0]);
        assert_eq!(found, [Maybe, SurelyNot, Maybe, SurelyNot]);
        assert_eq!(say(seal, &[-4, i64::MIN, 1]), [SurelyNot, Maybe, SurelyNot, Maybe]);
        for (believed, reply) in [
            (None, &[-4_i64, 0, 0][..]),
            (None, &[0, 0, 0]),
            (seal, &[0, 0, 0]),
            (seal, &[-5, 0, 0]),
            (seal, &[-4, 0]),
            (seal, &[]),
        ] {
            assert_eq!(say(believed, reply), [Unknown; 4], "{believed:?} {reply:?}");
        }
    }

    #[test]
    fn a_word_is_set_once() {
        let set = masks(vec![spot(9, 1), spot(2, 2), spot(9, 4), spot(9, 1)]);
        assert_eq!(set, [spot(2, 2), spot(9, 5)]);
        assert_eq!(masks(vec![]), []);
    }
}
