//! Who may make writes pause, how often, and for how long: the rules without the engine. Time is an
//! argument.
//!
//! A move begins and is given a number, its *run*. It may make writes pause as long as nobody else
//! has taken its place and as long as it follows the log, so that little is left to carry over.
//! Whoever it is, writes never pause for more than a small share of the time.

use std::time::{Duration, Instant};

use guanxi_model::{Code, Error, Position};

/// A move that was not heard of for so long has died, and another may begin. It says so often
/// enough, whatever it does.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// A move that has asked for the log's end within this time has little left to carry over.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(30);
/// After a pause, writes are taken for at least this long.
const REST: Duration = Duration::from_secs(5);
/// All pauses of an hour: what one run of `guanxi move` may need, and some more.
const PAUSES_MAX: Duration = Duration::from_secs(60);
/// So many times longer than a pause it takes until that is forgotten.
const FORGIVENESS: u32 = 60;

#[derive(Debug, Default)]
pub(super) struct Claims {
    claim: Option<MoveClaim>,
    pause: Option<Pause>,
    /// When the last pause ended.
    rested_since: Option<Instant>,
    spent: Spent,
}

/// The move that has begun.
#[derive(Debug, Clone, Copy)]
struct MoveClaim {
    id: u64,
    run: u64,
    heard: Instant,
    /// When it last asked for what follows in the log.
    followed: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    run: u64,
    until: Instant,
    /// None as long as something is under way.
    position: Option<Position>,
}

/// How long writes have paused lately.
#[derive(Debug, Default)]
struct Spent {
    time: Duration,
    at: Option<Instant>,
}

/// What a move that has begun looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClaimStanding {
    pub id: u64,
    /// How much of a pause is left.
    pub left: Option<Duration>,
}

impl Claims {
    pub fn standing(&self, now: Instant) -> Option<ClaimStanding> {
        let claim = self.claim?;
        let pause = self.pause.filter(|pause| pause.until > now);
        Some(ClaimStanding { id: claim.id, left: pause.map(|pause| pause.until - now) })
    }

    /// A new run of a move begins, in place of an earlier run of the same one. Whether that has
    /// left a pause, which ends.
    pub fn begin(&mut self, id: u64, run: u64, now: Instant) -> Result<bool, Error> {
        self.refuse_other(id, now)?;
        self.claim = Some(MoveClaim { id, run, heard: now, followed: None });
        Ok(self.end_pause(now))
    }

    /// The run goes on. One that this service knows nothing of, because it was started anew
    /// meanwhile, takes its place again, unless that is taken.
    pub fn go_on(&mut self, id: u64, run: u64, now: Instant) -> Result<(), Error> {
        self.refuse_other(id, now)?;
        match &mut self.claim {
            Some(claim) if claim.id == id && claim.run != run => Err(replaced()),
            Some(claim) if claim.run == run => {
                claim.heard = now;
                Ok(())
            }
            _ => {
                self.claim = Some(MoveClaim { id, run, heard: now, followed: None });
                Ok(())
            }
        }
    }

    fn refuse_other(&self, id: u64, now: Instant) -> Result<(), Error> {
        match self.claim {
            Some(claim) if claim.id != id && now - claim.heard < SILENCE_MAX => {
                Err(conflict(format!(
                    "another move of this service, {}, was heard of {} s ago: let it come to its \
                     end, or stop it and begin {} s later",
                    claim.id,
                    (now - claim.heard).as_secs(),
                    SILENCE_MAX.as_secs()
                )))
            }
            _ => Ok(()),
        }
    }

    /// The run asks for a copy of the service; `follows` when it is what came after a place.
    pub fn reads(&mut self, run: u64, follows: bool, now: Instant) -> Result<(), Error> {
        let claim = self.claim_of(run)?;
        claim.heard = now;
        if follows {
            claim.followed = Some(now);
        }
        Ok(())
    }

    fn claim_of(&mut self, run: u64) -> Result<&mut MoveClaim, Error> {
        match &mut self.claim {
            Some(claim) if claim.run == run => Ok(claim),
            Some(_) => Err(replaced()),
            None => Err(conflict(
                "no such move has begun: only `guanxi move` makes writes pause, after it has begun \
                 and while it follows the log"
                    .into(),
            )),
        }
    }

    /// How long to wait before writes may pause for so long.
    pub fn rest(&self, limit: Duration, now: Instant) -> Duration {
        let ended = self.pause.map(|pause| pause.until).or(self.rested_since);
        let since = ended.map_or(REST, |ended| now.saturating_duration_since(ended));
        let too_much = (self.spent.now(now) + limit).saturating_sub(PAUSES_MAX);
        REST.saturating_sub(since).max(too_much * FORGIVENESS)
    }

    /// Writes are to pause until then, for the run.
    pub fn pause(&mut self, run: u64, limit: Duration, now: Instant) -> Result<Instant, Error> {
        let claim = self.claim_of(run)?;
        claim.heard = now;
        if claim.followed.is_none_or(|followed| now - followed > FOLLOWED_WITHIN) {
            return Err(conflict(format!(
                "the move has not asked for the end of the log within the last {} s: follow it \
                 before writes pause",
                FOLLOWED_WITHIN.as_secs()
            )));
        }
        if self.pause.is_some_and(|pause| pause.until > now) {
            return Err(conflict(
                "writes pause already: confirm the move, or wait until they are taken again".into(),
            ));
        }
        self.end_pause(now);
        let rest = self.rest(limit, now);
        if !rest.is_zero() {
            return Err(conflict(format!(
                "writes have paused a moment ago, or for too long in the last hour: they may pause \
                 again in {} s. See why the last writes took so long to carry over",
                rest.as_secs() + 1
            )));
        }
        let until = now + limit;
        self.spent.add(limit, now);
        self.pause = Some(Pause { run, until, position: None });
        Ok(until)
    }

    /// Nothing is under way any more; false when the pause is over, or another's by now.
    pub fn paused_at(&mut self, run: u64, position: Position, now: Instant) -> bool {
        match &mut self.pause {
            Some(pause) if pause.run == run && pause.until > now => {
                pause.position = Some(position);
                true
            }
            _ => false,
        }
    }

    /// The number of the move whose run has made writes pause at this position.
    pub fn confirming(&mut self, run: u64, position: Position, now: Instant) -> Result<u64, Error> {
        let id = self.claim_of(run)?.id;
        let pause = self.pause.filter(|pause| pause.run == run && pause.until > now);
        let Some(pause) = pause else { return Err(pause_over()) };
        match pause.position {
            Some(at) if at == position => Ok(id),
            at => Err(conflict(format!(
                "writes pause at position {}, and not at {}: confirm the one that the pause \
                 answered with",
                at.map_or("that is not known yet".into(), |at| at.0.to_string()),
                position.0
            ))),
        }
    }

    /// The move is given up, for now. Whether it has left a pause, which ends.
    pub fn let_go(&mut self, id: u64, now: Instant) -> Result<bool, Error> {
        match self.claim {
            Some(claim) if claim.id == id => {
                self.claim = None;
                Ok(self.end_pause(now))
            }
            Some(claim) => {
                Err(conflict(format!("the move that has begun is {}, and not {id}", claim.id)))
            }
            None => Ok(false),
        }
    }

    /// Whether writes paused still.
    pub fn end_pause(&mut self, now: Instant) -> bool {
        let Some(pause) = self.pause.take() else {
            return false;
        };
        let left = pause.until.saturating_duration_since(now);
        self.spent.take_back(left);
        self.rested_since = Some(pause.until.min(now));
        !left.is_zero()
    }
}

impl Spent {
    fn now(&self, now: Instant) -> Duration {
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.time.saturating_sub(passed / FORGIVENESS)
    }

    fn add(&mut self, time: Duration, now: Instant) {
        *self = Spent { time: self.now(now) + time, at: Some(now) };
    }

    fn take_back(&mut self, time: Duration) {
        self.time = self.time.saturating_sub(time);
    }
}

fn conflict(message: String) -> Error {
    Error::new(Code::Conflict, message)
}

pub(super) fn pause_over() -> Error {
    conflict(
        "writes do not pause for this move, or no longer: pause them once more, and carry over what \
         came since"
            .into(),
    )
}

fn replaced() -> Error {
    conflict(
        "another move, or another run of the same one, has begun since: this one may not go on. \
         Let the other come to its end, or stop it and run this one again"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// One that has begun as run 1 of move 7 and follows.
    fn followed(now: Instant) -> Claims {
        let mut claims = Claims::default();
        claims.begin(7, 1, now).unwrap();
        claims.reads(1, true, now).unwrap();
        claims
    }

    #[test]
    fn only_who_has_begun_and_follows_makes_writes_pause() {
        let now = Instant::now();
        let mut claims = Claims::default();
        assert!(claims.pause(1, LIMIT, now).is_err(), "nobody has begun");
        claims.begin(7, 1, now).unwrap();
        assert!(claims.pause(1, LIMIT, now).is_err(), "it has read nothing");
        claims.reads(1, false, now).unwrap();
        assert!(claims.pause(1, LIMIT, now).is_err(), "a snapshot is not the log's end");
        claims.reads(1, true, now).unwrap();
        assert!(claims.pause(2, LIMIT, now).is_err(), "another number");
        assert!(claims.reads(2, true, now).is_err());
        assert!(claims.pause(1, LIMIT, now + seconds(31)).is_err(), "it follows no more");
        assert_eq!(claims.pause(1, LIMIT, now).unwrap(), now + LIMIT);
        assert!(claims.pause(1, LIMIT, now + seconds(1)).is_err(), "nobody makes it longer");
        assert_eq!(claims.standing(now), Some(ClaimStanding { id: 7, left: Some(LIMIT) }));
        assert_eq!(claims.standing(now + LIMIT), Some(ClaimStanding { id: 7, left: None }));
    }

    #[test]
    fn a_pause_is_confirmed_by_its_run_at_its_position() {
        let now = Instant::now();
        let mut claims = followed(now);
        claims.pause(1, LIMIT, now).unwrap();
        assert!(claims.confirming(1, Position(9), now).is_err(), "something is under way");
        assert!(!claims.paused_at(2, Position(9), now));
        assert!(claims.paused_at(1, Position(9), now));
        assert_eq!(claims.confirming(1, Position(9), now).unwrap(), 7);
        let wrong = claims.confirming(1, Position(8), now).unwrap_err();
        assert!(wrong.message.contains("at position 9, and not at 8"), "{wrong:?}");
        assert!(claims.confirming(2, Position(9), now).is_err());
        assert!(claims.confirming(1, Position(9), now + LIMIT).is_err(), "the pause is over");
        assert!(claims.begin(7, 2, now).unwrap(), "the pause of a run that died ends");
        assert!(claims.confirming(1, Position(9), now).is_err());
        assert!(claims.go_on(7, 1, now).is_err(), "two runs of one move do not take turns");
        assert!(!claims.paused_at(1, Position(9), now));
    }

    #[test]
    fn another_move_waits_until_the_first_is_silent_or_gone() {
        let now = Instant::now();
        let mut claims = followed(now);
        let refused = claims.begin(8, 2, now + seconds(59)).unwrap_err();
        assert_eq!(refused.code, Code::Conflict);
        assert!(claims.go_on(8, 2, now + seconds(59)).is_err());
        claims.go_on(7, 1, now + seconds(59)).unwrap();
        assert!(claims.begin(8, 2, now + seconds(100)).is_err());
        assert!(claims.let_go(8, now).is_err());
        assert!(!claims.let_go(7, now).unwrap());
        assert_eq!(claims.standing(now), None);
        claims.begin(8, 2, now + seconds(100)).unwrap();
        claims.begin(7, 3, now + seconds(160)).unwrap();
        assert!(claims.go_on(8, 2, now + seconds(161)).is_err());
        // After a restart of the service.
        let mut claims = Claims::default();
        claims.go_on(7, 1, now).unwrap();
        assert!(claims.pause(1, LIMIT, now).is_err(), "it has to follow first");
    }

    #[test]
    fn writes_pause_for_a_small_share_of_the_time_whoever_asks() {
        let mut now = Instant::now();
        let mut claims = followed(now);
        let begun = now;
        let mut paused = Duration::ZERO;
        while now - begun < seconds(3_600) {
            let run = (now - begun).as_secs() + 2;
            claims.begin(7, run, now).unwrap();
            claims.reads(run, true, now).unwrap();
            if claims.pause(run, LIMIT, now).is_ok() {
                paused += LIMIT;
            }
            now += LIMIT;
        }
        assert!(paused >= seconds(60) && paused <= seconds(120), "{paused:?}");
        now += seconds(3_600);
        assert_eq!(claims.rest(LIMIT, now), Duration::ZERO);
    }

    #[test]
    fn a_pause_that_is_given_back_costs_what_it_took() {
        let mut now = Instant::now();
        let mut claims = followed(now);
        for _ in 0..100 {
            claims.reads(1, true, now).unwrap();
            claims.pause(1, LIMIT, now).unwrap();
            assert!(claims.end_pause(now + seconds(1) / 10));
            assert!(claims.pause(1, LIMIT, now + seconds(1)).is_err(), "writes are taken first");
            now += seconds(6);
        }
        assert!(!claims.end_pause(now));
    }
}
