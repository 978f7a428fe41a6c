//! Following a primary over HTTP: takes a copy of it into an empty directory, then, again and again,
//! acknowledges what is on disk here, asks for what follows in the primary's log, and gives the
//! engine what comes. While the primary is away the standby serves on and asks again.

use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use guanxi_api::standby::AcknowledgeRequest;
use guanxi_core::backoff::Backoff;
use guanxi_core::signal::{Next, Signal};
use guanxi_embedded::directory::{Directory, DirectoryError};
use guanxi_embedded::disk::RealDisk;
use guanxi_embedded::log::{SHIPMENT_BYTES_MAX, Shipment};
use guanxi_embedded::restore::receive;
use guanxi_embedded::{Acknowledgement, Engine, FollowError, Settings};

use crate::cli::client::{Client, path};
use crate::failure::Failure;

/// How long the primary may let a request wait for new frames.
const WAIT_MS: u64 = 5_000;
/// The pause after a first failure, doubled by each further one.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// The same trouble is said again after this.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);
/// How long a directory that cannot be shown yet waits for its primary.
const FIRST_CONTACT_DEADLINE: Duration = Duration::from_secs(30);

/// What to do when nobody answers.
const UNREACHED: &str = "start the primary first, or check the address given with --follow";
/// What to do when the primary does not know the name that it goes by as its own.
const UNNAMED: &str = "add the name given with --follow to http.names of the primary \
                       (GUANXI_HTTP_NAMES), or follow it by its IP address";

/// Why nothing came.
enum FollowTrouble {
    /// The primary cannot be asked just now.
    Away(String),
    /// What it has does not continue what is here.
    Refused(String),
    /// What came could not be kept.
    Unkept(String),
    /// This service follows no more.
    Over,
}

struct PrimaryFollower {
    client: Client,
    engine: Arc<Engine>,
}

/// Fills an empty directory, or one whose filling was cut off, with a copy of the primary.
pub fn take_first_copy(primary: &str, settings: &Settings) -> Result<(), Failure> {
    match Directory::may_land(&RealDisk, &settings.data_dir) {
        Ok(()) => {}
        Err(DirectoryError::Occupied { .. }) => return Ok(()),
        Err(error) => return Err(Failure::failed(error.to_string())),
    }
    let client = Client::new(primary)?;
    let primary = client.server();
    tracing::info!(primary, "taking a copy of the primary");
    let until = Instant::now() + FIRST_CONTACT_DEADLINE;
    let mut said = ToldTrouble::default();
    let answer = loop {
        match client.get("/v1/admin/backup").query("standby", random_id()).send_for_stream() {
            Ok(answer) => break answer,
            Err(failure) if failure.code.is_none() && Instant::now() < until => {
                said.first_contact(primary, failure.message(), until);
                thread::sleep(PAUSE_MIN);
            }
            Err(failure) => {
                let why = failure.message();
                let next = match failure.code.as_deref() {
                    Some("forbidden") => UNNAMED,
                    _ => UNREACHED,
                };
                return Err(Failure::failed(format!("cannot copy {primary}: {why}")).next(next));
            }
        }
    };
    let applied = receive(settings, answer.into_reader()).map_err(|error| {
        Failure::failed(format!("the copy of {primary} was not finished: {error}"))
            .next("see that its disk has room and start this standby again: the copy begins anew")
    })?;
    tracing::info!(primary, position = applied.position.0, "the copy is there");
    Ok(())
}

/// Follows until the engine is promoted or closed. Before the first answer of its primary nobody
/// knows whether a directory that never followed may be shown, so that one waits for it.
pub fn start(primary: &str, engine: &Arc<Engine>) -> Result<(), Failure> {
    let client = Client::new(primary)?;
    let follower = PrimaryFollower { client, engine: engine.clone() };
    follower.first_contact()?;
    follower.begin().map_err(|error| Failure::failed(format!("cannot start to follow: {error}")))
}

impl PrimaryFollower {
    fn begin(self) -> io::Result<()> {
        let crew = self.engine.crew().clone();
        let follow = move || {
            let (mut backoff, mut said) =
                (Backoff::new(PAUSE_MIN, PAUSE_MAX), ToldTrouble::default());
            let turn = || Ok::<_, Infallible>(self.turn(&mut backoff, &mut said));
            Signal::default().repeat("following failed", Backoff::default(), turn);
        };
        crew.errand("guanxi-follow", follow).map(drop)
    }

    fn first_contact(&self) -> Result<(), Failure> {
        let until = Instant::now() + FIRST_CONTACT_DEADLINE;
        let primary = self.client.server();
        let mut said = ToldTrouble::default();
        loop {
            match self.ask(0) {
                Ok(()) => {
                    tracing::info!(primary, "following");
                    return Ok(());
                }
                Err(FollowTrouble::Refused(why)) => {
                    return Err(Failure::failed(format!("cannot follow {primary}: {why}")));
                }
                Err(FollowTrouble::Unkept(why)) => return Err(Failure::failed(why)),
                Err(FollowTrouble::Over) => return Ok(()),
                Err(FollowTrouble::Away(why)) if self.engine.has_followed() => {
                    tracing::warn!(primary, why, "the primary is away; serving what is here");
                    self.engine.note_follow_trouble(why, false);
                    return Ok(());
                }
                Err(FollowTrouble::Away(why)) if Instant::now() > until => {
                    let why = format!("cannot begin to follow {primary}: {why}");
                    return Err(Failure::failed(why).next(UNREACHED));
                }
                Err(FollowTrouble::Away(why)) => {
                    said.first_contact(primary, &why, until);
                    thread::sleep(PAUSE_MIN);
                }
            }
        }
    }

    /// Asks once; what fails is told of here, as it may be more than trouble that passes.
    fn turn(&self, backoff: &mut Backoff, said: &mut ToldTrouble) -> Next {
        let (why, is_stuck) = match self.ask(WAIT_MS) {
            Ok(()) => {
                if said.forget() {
                    tracing::info!(primary = self.client.server(), "following again");
                }
                backoff.went_well();
                return Next::Now;
            }
            Err(FollowTrouble::Over) => return Next::Never,
            Err(FollowTrouble::Away(why)) => (why, false),
            Err(FollowTrouble::Refused(why) | FollowTrouble::Unkept(why)) => (why, true),
        };
        if !self.engine.is_standby() {
            return Next::Never;
        }
        self.engine.note_follow_trouble(why.clone(), is_stuck);
        if said.is_news(&why) {
            let primary = self.client.server();
            match is_stuck {
                true => tracing::error!(primary, why, "this standby does not follow"),
                false => tracing::warn!(primary, why, "the primary is away; asking again"),
            }
        }
        backoff.failed();
        Next::After(backoff.left())
    }

    /// Says what is here, takes what comes.
    fn ask(&self, wait_ms: u64) -> Result<(), FollowTrouble> {
        let Acknowledgement { standby, epoch, position, commit_ms } = self.engine.shipped();
        let said = AcknowledgeRequest { epoch: epoch.0, position: position.0, commit_ms };
        let place = path([&"v1", &"admin", &"standbys", &standby]);
        let noted = self.client.post(&place).send_json(&said);
        noted.map_err(|failure| refused_or_away(&failure))?;
        let request = self
            .client
            .get("/v1/admin/log")
            .query("after", format!("{}.{}", epoch.0, position.0))
            .query("commit_ms", commit_ms)
            .query("standby", standby)
            .query("wait_ms", wait_ms);
        let answer = request.send_for_stream().map_err(|failure| refused_or_away(&failure))?;
        let mut bytes = Vec::new();
        let mut body = answer.into_reader().take(SHIPMENT_BYTES_MAX as u64);
        body.read_to_end(&mut bytes)
            .map_err(|error| FollowTrouble::Away(format!("its answer broke off: {error}")))?;
        let shipment =
            Shipment::decode(&bytes).map_err(|error| FollowTrouble::Away(error.to_string()))?;
        self.engine.follow(shipment).map_err(|error| match error {
            FollowError::Beyond { .. } | FollowError::OtherHistory => {
                FollowTrouble::Refused(error.to_string())
            }
            FollowError::Promoted => FollowTrouble::Over,
            FollowError::Full
            | FollowError::Log(_)
            | FollowError::Role(_)
            | FollowError::Store(_) => FollowTrouble::Unkept(error.to_string()),
        })
    }
}

/// The trouble that was told last, so that asking often is not telling often.
#[derive(Default)]
struct ToldTrouble(Option<(String, Instant)>);

impl ToldTrouble {
    /// Whether this trouble is to be told now.
    fn is_news(&mut self, why: &str) -> bool {
        let old = self.0.as_ref();
        let news =
            old.is_none_or(|(before, when)| before != why || when.elapsed() >= REMINDER_INTERVAL);
        if news {
            self.0 = Some((why.to_owned(), Instant::now()));
        }
        news
    }

    /// There is no trouble any more; whether some was told.
    fn forget(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Before the first answer of the primary there is nothing to serve, and so nobody else who
    /// would tell.
    fn first_contact(&mut self, primary: &str, why: &str, until: Instant) {
        if self.is_news(why) {
            let seconds = until.saturating_duration_since(Instant::now()).as_secs_f64().ceil();
            tracing::warn!(
                primary,
                why,
                "the primary cannot be asked; asking again for {seconds} s before giving up. \
                 Nothing is served until it answers"
            );
        }
    }
}

/// Tells this copy from others; the directory that it fills has no id yet.
fn random_id() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

fn refused_or_away(failure: &Failure) -> FollowTrouble {
    let why = failure.message().to_owned();
    match failure.code.as_deref() {
        Some("position_expired") => FollowTrouble::Refused(format!(
            "{why}. To begin anew: stop this standby, move its data directory away and start it \
             with an empty one"
        )),
        Some("forbidden") => FollowTrouble::Refused(format!("{why}. From here: {UNNAMED}")),
        Some("conflict") => FollowTrouble::Refused(why),
        _ => FollowTrouble::Away(why),
    }
}

#[cfg(test)]
mod tests;
