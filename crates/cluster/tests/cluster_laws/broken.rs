//! Parts that are wrong on purpose, each in a way that its law must see.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guanxi_cluster::memory::incoming::packed::{Newest, PackedIncoming};
use guanxi_cluster::memory::tallies::packed::StringToken;
use guanxi_cluster::memory::{MemorySettings, SharedMemory};
use guanxi_model::Change;
use parking_lot::Mutex;
use redis::cmd;

use crate::ground::{Answer, Cache, Ground, LateFill};
use crate::laws::{Law, hold};
use crate::parts::IncomingPart;
use crate::world::{FOLLOW, now_ms};

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It says for ever what it said first.
    Stubborn,
    /// It says what stands in Redis, whoever vouches for it.
    Credulous,
    /// It waits until there is an answer.
    Waits,
    /// Nobody finds what another has filled.
    Hidden,
    /// A fill asks for no right.
    Bold,
    /// It wants the server to be set up.
    Demanding,
}

struct Broken {
    fault: Fault,
    said: Mutex<BTreeMap<u64, Answer>>,
}

impl Cache for Broken {
    fn settings(&self, url: String, settings: MemorySettings) -> MemorySettings {
        IncomingPart.settings(url, settings)
    }

    fn ask(&self, ground: &Ground, memory: &SharedMemory, of: u64) -> Option<Answer> {
        match self.fault {
            Fault::Stubborn => {
                let mut said = self.said.lock();
                if let Some(said) = said.get(&of) {
                    return Some(said.clone());
                }
                let now = IncomingPart.ask(ground, memory, of)?;
                said.insert(of, now.clone());
                Some(now)
            }
            Fault::Credulous => {
                let filled = IncomingPart.ask(ground, memory, of);
                let standing = ground.stage.list_string(FOLLOW, of).and_then(|it| it.newest);
                let ids = |newest: Newest| newest.entries.iter().map(|place| place.id).collect();
                standing.map(ids).or(filled)
            }
            Fault::Waits => {
                let begun = Instant::now();
                loop {
                    let said = IncomingPart.ask(ground, memory, of);
                    if said.is_some() || begun.elapsed() > Duration::from_secs(4) {
                        return said;
                    }
                }
            }
            Fault::Hidden => {
                // What is asked for by a stranger to it is gone.
                if IncomingPart.filled(memory) == 0 {
                    let key = ground.stage.list_key(FOLLOW, of);
                    cmd("DEL").arg(key).exec(&mut ground.stage.connection()).unwrap();
                }
                IncomingPart.ask(ground, memory, of)
            }
            Fault::Demanding => {
                let mut redis = ground.stage.connection();
                cmd("CONFIG").arg("SET").arg("maxmemory").arg("1gb").exec(&mut redis).unwrap();
                IncomingPart.ask(ground, memory, of)
            }
            Fault::Bold => IncomingPart.ask(ground, memory, of),
        }
    }

    fn truth(&self, ground: &Ground, of: u64) -> Answer {
        IncomingPart.truth(ground, of)
    }

    fn follows(&self) -> bool {
        true
    }

    fn change(&self, of: u64, turn: u64) -> Change {
        IncomingPart.change(of, turn)
    }

    fn change_unheard(&self, ground: &Ground, of: u64) {
        IncomingPart.change_unheard(ground, of);
    }

    fn begin_fill<'a>(
        &'a self,
        ground: &'a Ground,
        memory: &'a SharedMemory,
        of: u64,
    ) -> Option<LateFill<'a>> {
        if self.fault != Fault::Bold {
            return IncomingPart.begin_fill(ground, memory, of);
        }
        let newest = Some(Newest { entries: Vec::new(), complete: true });
        let string =
            PackedIncoming { token: StringToken::draw(), read_ms: now_ms(), newest }.encode();
        Some(Box::new(move || {
            let key = ground.stage.list_key(FOLLOW, of);
            cmd("SET").arg(key).arg(string).exec(&mut ground.stage.connection()).unwrap();
        }))
    }

    fn filled(&self, memory: &SharedMemory) -> u64 {
        IncomingPart.filled(memory)
    }
}

#[test]
fn each_law_sees_what_breaks_it() {
    let faults = [
        (Law::Right, Fault::Stubborn),
        (Law::Found, Fault::Hidden),
        (Law::Flushed, Fault::Stubborn),
        (Law::OlderSnapshot, Fault::Credulous),
        (Law::Paused, Fault::Waits),
        (Law::LateFill, Fault::Bold),
        (Law::Unheard, Fault::Stubborn),
        (Law::AnyRedis, Fault::Demanding),
    ];
    assert_eq!(faults.map(|(law, _)| law), crate::laws::LAWS, "each is tried");
    let Some(ground) = Ground::open("laws broken", &IncomingPart) else { return };
    for (number, (law, fault)) in faults.into_iter().enumerate() {
        let part = Broken { fault, said: Mutex::default() };
        let held = hold(&ground, &part, law, number as u64 + 1);
        println!("{law:?}, {fault:?}: {held:?}");
        assert!(held.is_err(), "{law:?} does not see {fault:?}");
    }
}
