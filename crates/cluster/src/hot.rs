//! Instances tell each other over Redis what they read most, about once a second, so that a key that
//! is hot only in sum is hot everywhere; and each pins what is hot. Without Redis an instance goes by
//! what it reads itself. No read ever waits for any of this.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use guanxi_core::crew::{Crew, Workers};
use guanxi_core::hot::{HotReads, Rates, SHARED_KEYS_MAX, decode, encode};
use redis::Value;

use super::memory::tier::{MemoryError, RedisScript, ScriptCall, Tier};

/// Sets the own word in one key and returns those of the others; one key, so that it is good in a
/// cluster of Redis servers, too.
const TELL: &str = include_str!("hot.lua");
const KEY: &str = "guanxi:hot";
/// Between two words.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a word counts: an instance that went, or hears nobody, is not summed for long.
const WORD_LIFE: Duration = Duration::from_secs(4);
/// How long Redis may take.
const LIMIT: Duration = Duration::from_millis(500);

/// Starts the thread that tells and hears; `instance` is unlike any other's.
pub fn share_hot_keys(
    crew: &Crew,
    hot: Arc<HotReads>,
    tier: Option<Tier>,
    instance: u64,
) -> io::Result<Workers> {
    let mut work = HotExchange {
        hot,
        tier,
        name: format!("{instance:016x}"),
        tell: RedisScript::new(TELL),
        heard: Instant::now(),
    };
    crew.spawn("guanxi-hot", move |signal| {
        while !signal.wait(TELL_EVERY) {
            work.turn();
        }
    })
}

struct HotExchange {
    hot: Arc<HotReads>,
    tier: Option<Tier>,
    name: String,
    tell: RedisScript,
    /// When the others were heard last.
    heard: Instant,
}

impl HotExchange {
    fn turn(&mut self) {
        match self.tell_and_hear() {
            Some(Ok(others)) => {
                self.heard = Instant::now();
                self.hot.hear(others);
            }
            Some(Err(error)) => tracing::debug!(%error, "hot keys could not be shared"),
            None => {}
        }
        if self.heard.elapsed() >= WORD_LIFE {
            self.hot.hear(Vec::new());
        }
        self.hot.turn();
    }

    /// None where there is nobody to ask.
    fn tell_and_hear(&self) -> Option<Result<Vec<Rates>, MemoryError>> {
        let tier = self.tier.as_ref()?;
        let mut link = tier.link()?;
        let call = ScriptCall {
            key: KEY.into(),
            arguments: vec![
                self.name.clone().into(),
                encode(&self.hot.own(SHARED_KEYS_MAX)),
                WORD_LIFE.as_millis().to_string().into(),
            ],
        };
        let answers = tier.wait(link.call_all(&self.tell, &[call], LIMIT));
        Some(answers.and_then(|answers| words(answers.first())))
    }
}

/// A word that cannot be read tells nothing.
fn words(answer: Option<&Value>) -> Result<Vec<Rates>, MemoryError> {
    let Some(Value::Array(words)) = answer else {
        return Err(MemoryError::Refused(format!("{answer:?}")));
    };
    let word = |word: &Value| match word {
        Value::BulkString(bytes) => decode(bytes).ok(),
        _ => None,
    };
    Ok(words.iter().filter_map(word).collect())
}
