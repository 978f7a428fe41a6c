//! The laws. Each is tried on subjects of its own; what is wrong is said, not panicked, so that parts
//! made wrong on purpose can be seen to fail.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guanxi_cluster::memory::SharedMemory;
use redis::cmd;

use crate::ground::{Answer, Cache, Ground};

/// What every part is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Law {
    /// An answer is what the tables say, or none.
    Right,
    /// What one instance filled, another finds.
    Found,
    /// After FLUSHALL nothing wrong is said.
    Flushed,
    /// Nor after a restart from an older snapshot.
    OlderSnapshot,
    /// While Redis is silent a question ends soon, without an answer; reads and writes go on.
    Paused,
    /// What was read before a write is not filled after it.
    LateFill,
    /// A write that Redis is not told of is not hidden by it.
    Unheard,
    /// Any Redis from 6.2 on will do: no newer command, no module, no setting.
    AnyRedis,
}

pub const LAWS: [Law; 8] = [
    Law::Right,
    Law::Found,
    Law::Flushed,
    Law::OlderSnapshot,
    Law::Paused,
    Law::LateFill,
    Law::Unheard,
    Law::AnyRedis,
];

pub type Held = Result<(), String>;

/// Generous: a busy machine is no failure, and the mark of a write that Redis did not hear of the end
/// of stands for two minutes.
const PATIENCE: Duration = Duration::from_secs(240);
/// A reader's limit is 50 ms; the rest is what a busy machine may add.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// What is wrong for a moment is met by asking so often.
const ASKED_AGAIN: usize = 20;
/// Longer than a copy of the plan, or of the epoch, is believed.
const COPY_AGE_MAX: Duration = Duration::from_millis(1_200);

/// Commands that are sent or called by scripts, each with the release of Redis that brought it.
const COMMANDS: &[(&str, &str)] = &[
    ("append", "2.0"),
    ("bitcount", "2.6"),
    ("bitfield_ro", "6.0"),
    ("del", "1.0"),
    ("eval", "2.6"),
    ("evalsha", "2.6"),
    ("get", "1.0"),
    ("getrange", "2.4"),
    ("hdel", "2.0"),
    ("hgetall", "2.0"),
    ("hset", "2.0"),
    ("info", "1.0"),
    ("mget", "1.0"),
    ("pexpire", "2.6"),
    ("set", "1.0, with KEEPTTL 6.0"),
    ("setrange", "2.2"),
    ("time", "2.6"),
    ("unlink", "4.0"),
];
/// What connecting sends and may be refused, and what tests send.
const BESIDE: &[&str] =
    &["client", "client|setinfo", "flushall", "keys", "module", "module|list", "ping", "save"];

/// Holds the part to every law; what was broken first.
pub fn run(ground: &Ground, part: &dyn Cache) -> Held {
    for (number, law) in LAWS.into_iter().enumerate() {
        if let Some((_, why)) = part.exceptions().iter().find(|(excepted, _)| *excepted == law) {
            println!("{law:?}: excepted, because {why}");
            continue;
        }
        let begun = Instant::now();
        hold(ground, part, law, number as u64 + 1)
            .map_err(|broken| format!("{law:?}: {broken}"))?;
        println!("{law:?}: held, {} ms", begun.elapsed().as_millis());
    }
    Ok(())
}

/// Holds the part to one law, on subjects that no other number has.
pub fn hold(ground: &Ground, part: &dyn Cache, law: Law, number: u64) -> Held {
    let case = Case { ground, part, subjects: (0..5).map(|index| number * 100 + index).collect() };
    match law {
        Law::Right => case.right(),
        Law::Found => case.found(),
        Law::Flushed => case.flushed(),
        Law::OlderSnapshot => case.older_snapshot(),
        Law::Paused => case.paused(),
        Law::LateFill => case.late_fill(),
        Law::Unheard => case.unheard(),
        Law::AnyRedis => case.any_redis(),
    }
}

struct Case<'a> {
    ground: &'a Ground,
    part: &'a dyn Cache,
    subjects: Vec<u64>,
}

impl Case<'_> {
    /// The last one is never changed, so that there is something that every part can say.
    fn changed(&self) -> &[u64] {
        &self.subjects[..self.subjects.len() - 1]
    }

    fn change_all(&self, turn: u64) {
        for of in self.changed() {
            self.ground.write(self.part.change(*of, turn));
        }
        self.ground.settle(self.part);
    }

    fn truths(&self) -> BTreeMap<u64, Answer> {
        self.subjects.iter().map(|of| (*of, self.part.truth(self.ground, *of))).collect()
    }

    /// Whatever is said now is what the tables say.
    fn nothing_wrong(&self, when: &str) -> Held {
        let truths = self.truths();
        for _ in 0..ASKED_AGAIN {
            for (of, truth) in &truths {
                for memory in self.ground.memories() {
                    self.check(memory, *of, truth, when)?;
                }
            }
        }
        Ok(())
    }

    fn check(
        &self,
        memory: &SharedMemory,
        of: u64,
        truth: &Answer,
        when: &str,
    ) -> Result<bool, String> {
        match self.part.ask(self.ground, memory, of) {
            None => Ok(false),
            Some(said) if said == *truth => Ok(true),
            Some(said) => Err(format!("{when}, it says {said:?} of {of}, which is {truth:?}")),
        }
    }

    /// All that it can say it comes to say, and nothing wrong on the way.
    fn comes_to_know(&self, when: &str) -> Held {
        for (of, truth) in self.truths() {
            for memory in self.ground.memories() {
                self.is_known(memory, of, &truth, when)?;
            }
        }
        Ok(())
    }

    fn is_known(&self, memory: &SharedMemory, of: u64, truth: &Answer, when: &str) -> Held {
        let begun = Instant::now();
        while self.part.says(truth) && !self.check(memory, of, truth, when)? {
            if begun.elapsed() > PATIENCE {
                return Err(format!("{when}, it does not come to know {of}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn right(&self) -> Held {
        self.comes_to_know("at first")?;
        for turn in 0..6 {
            self.change_all(turn);
            self.nothing_wrong("after a change")?;
            if turn % 2 == 0 {
                self.comes_to_know("after a change")?;
            }
        }
        Ok(())
    }

    fn found(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        let newcomer = self.ground.newcomer(self.part);
        for (of, truth) in self.truths() {
            self.is_known(&newcomer, of, &truth, "another instance")?;
        }
        match self.part.filled(&newcomer) {
            0 => Ok(()),
            filled => Err(format!("another instance had to fill {filled} again")),
        }
    }

    fn flushed(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        self.ground.redis("FLUSHALL");
        self.nothing_wrong("after FLUSHALL")?;
        self.change_all(2);
        self.nothing_wrong("after FLUSHALL and a change")?;
        self.comes_to_know("after FLUSHALL and a change")
    }

    fn older_snapshot(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        self.ground.redis("SAVE");
        self.change_all(2);
        self.nothing_wrong("before the crash")?;
        self.ground.stage.redis.kill();
        self.ground.stage.redis.start_again();
        self.nothing_wrong("with an older snapshot")?;
        self.comes_to_know("with an older snapshot")
    }

    fn paused(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        self.ground.stage.redis.pause();
        let held = self.silent();
        if held.is_ok() {
            for of in self.changed() {
                self.ground.write(self.part.change(*of, 2));
            }
        }
        self.ground.stage.redis.resume();
        held?;
        self.ground.settle(self.part);
        self.nothing_wrong("after a pause")?;
        self.comes_to_know("after a pause")
    }

    fn silent(&self) -> Held {
        for of in &self.subjects {
            for memory in self.ground.memories() {
                let begun = Instant::now();
                let said = self.part.ask(self.ground, memory, *of);
                if begun.elapsed() > ANSWER_MAX || said.is_some() {
                    let waited = begun.elapsed();
                    return Err(format!("a silent Redis gives {said:?} after {waited:?}"));
                }
            }
        }
        Ok(())
    }

    fn late_fill(&self) -> Held {
        // Somebody vouches for what is filled.
        let untouched = self.subjects[self.subjects.len() - 1];
        let truth = self.part.truth(self.ground, untouched);
        self.is_known(&self.ground.one, untouched, &truth, "at first")?;
        for of in self.changed() {
            let begun = Instant::now();
            let fill = loop {
                if let Some(fill) = self.part.begin_fill(self.ground, &self.ground.one, *of) {
                    break fill;
                }
                if begun.elapsed() > PATIENCE {
                    return Err(format!("nobody may fill {of}"));
                }
                std::thread::sleep(Duration::from_millis(20));
            };
            self.ground.write(self.part.change(*of, 0));
            self.ground.settle(self.part);
            fill();
            // The others are not asked for: whoever misses them fills them.
            let truth = self.part.truth(self.ground, *of);
            for memory in self.ground.memories() {
                self.check(memory, *of, &truth, "after a late fill")?;
                self.is_known(memory, *of, &truth, "after a late fill")?;
            }
        }
        Ok(())
    }

    fn unheard(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        let [of, ..] = self.subjects[..] else { return Ok(()) };
        let before = self.part.truth(self.ground, of);
        self.part.change_unheard(self.ground, of);
        if self.part.truth(self.ground, of) == before {
            return Err("it was not changed".into());
        }
        if self.part.follows() {
            std::thread::sleep(COPY_AGE_MAX);
        }
        self.nothing_wrong("after a change that it was not told of")?;
        self.comes_to_know("after a change that it was not told of")
    }

    fn any_redis(&self) -> Held {
        self.change_all(0);
        self.comes_to_know("at first")?;
        let mut redis = self.ground.stage.connection();
        let stats: String = cmd("INFO").arg("commandstats").query(&mut redis).unwrap();
        for line in stats.lines() {
            let Some(command) =
                line.strip_prefix("cmdstat_").and_then(|rest| rest.split(':').next())
            else {
                continue;
            };
            let known = COMMANDS.iter().map(|(known, _)| known).chain(BESIDE);
            if !{ known }.any(|known| *known == command) {
                return Err(format!(
                    "it needs {command}, of which nobody said since when it is there"
                ));
            }
        }
        let modules: Vec<redis::Value> = cmd("MODULE").arg("LIST").query(&mut redis).unwrap();
        match modules.is_empty() {
            true => Ok(()),
            false => Err("Redis has modules, so nothing is shown".into()),
        }
    }
}
