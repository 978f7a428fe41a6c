//! The engine as one of a pair: it ships its log to standbys, follows a primary, is promoted.

use guanxi_core::clock::Clock;
use guanxi_core::random::random;
use guanxi_model::{Code, Epoch, Error, Millis, Position, Token};
use tokio::sync::watch;

use super::moving::moved_away;
use super::{Engine, OpenError, Settings};
use crate::directory::{Role, write_role};
use crate::following::{FollowError, FollowStatus, Following};
use crate::log::{Log, LogError, OutgoingShipment, Shipment};

/// Where a standby's log ends, as it says itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    pub epoch: Epoch,
    /// It has everything up to here on disk.
    pub position: Position,
    /// The commit time of its last frame, which tells apart histories with the same numbers.
    pub commit_ms: Option<u64>,
}

/// What a standby says that it has on disk, so that it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The id of its directory.
    pub standby: u64,
    pub epoch: Epoch,
    pub position: Position,
    pub commit_ms: u64,
}

/// What the log knows of a position that somebody else names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KnownPosition {
    /// It has the frame that ends there, and that has the same commit time.
    Same,
    /// It has given that frame back.
    Trimmed,
}

/// What a promoted standby goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promoted {
    pub position: Position,
    pub epoch: Epoch,
    /// When the last record that it has was committed; 0 when it has none.
    pub committed: Millis,
    pub age_ms: u64,
}

impl Engine {
    /// Whether writes are a primary's to take.
    pub fn is_standby(&self) -> bool {
        self.committer.get().is_none()
    }

    /// Follows the end of the log, shown or not.
    pub fn durable(&self) -> watch::Receiver<Position> {
        self.shipping.durable()
    }

    /// Asks for the confirmation of standbys from here on, where the settings require some.
    /// Called before anybody is served.
    pub fn require_standbys(&self) {
        if !self.is_standby() {
            self.shipping.demand(|| self.log.last());
        }
    }

    /// Whether what this engine has may be shown.
    pub fn may_be_shown(&self) -> Result<(), Error> {
        self.shipping.refuse_held()
    }

    /// Takes note of what a standby has, if it is so; whether it counts. It does not where the log
    /// no longer has what it would be compared with. Blocks while it looks into the log.
    pub fn acknowledge(&self, said: &Acknowledgement) -> Result<bool, Error> {
        let Acknowledgement { standby, epoch, position, commit_ms } = *said;
        if standby == self.directory.id() {
            return Err(Error::new(
                Code::Conflict,
                "the standby's data directory is a copy of this service's own files, which is not \
                 a directory of its own. Move it away and start the standby with an empty one",
            ));
        }
        let known = self.compare(&Shipped { epoch, position, commit_ms: Some(commit_ms) })?;
        if known == KnownPosition::Same {
            self.shipping.acknowledge(standby, position);
        }
        Ok(known == KnownPosition::Same)
    }

    /// Whether the directory of this id has acknowledged and is not gone since.
    pub fn is_followed_by(&self, standby: u64) -> bool {
        self.shipping.standbys().iter().any(|known| known.id == standby)
    }

    /// Refuses a standby whose log does not continue in ours: it must not take our frames. Blocks
    /// while it looks into the log.
    pub fn refuse_other_history(&self, shipped: &Shipped) -> Result<(), Error> {
        self.compare(shipped).map(drop)
    }

    /// Begins the next piece of the log for a standby; blocks while its first frames are read.
    pub fn shipment(&self, after: Position) -> Result<OutgoingShipment, Error> {
        let begun = OutgoingShipment::begin(self.log.clone(), after, || self.moving.moved());
        begun.map_err(unshipped)
    }

    /// Takes a piece of the primary's log: durable when it returns, shown soon after.
    pub fn follow(&self, shipment: Shipment) -> Result<(), FollowError> {
        let Some(following) = &self.following else {
            return Err(FollowError::Promoted);
        };
        let moved = shipment.moved.clone();
        following.take(shipment)?;
        // One at a time with a promotion: whoever comes first, this is not undone by the other.
        let _one_at_a_time = self.promoting.lock();
        match self.is_standby() {
            true => Ok(self.learn_of_move(moved.as_ref())?),
            false => Err(FollowError::Promoted),
        }
    }

    /// The primary could not be asked; or refuses, or what it sends cannot be kept, which leaves
    /// the standby stuck.
    pub fn note_follow_trouble(&self, why: String, is_stuck: bool) {
        if let Some(following) = &self.following {
            following.note_trouble(why, is_stuck);
        }
    }

    /// Whether the directory is known to be a copy: its primary has accepted it before.
    pub fn has_followed(&self) -> bool {
        self.following.as_ref().is_some_and(Following::has_followed)
    }

    /// What this standby has on disk.
    pub fn shipped(&self) -> Acknowledgement {
        let (epoch, position) = (self.log.epoch(), self.log.last());
        let commit_ms = self.log.last_commit_ms();
        Acknowledgement { standby: self.directory.id(), epoch, position, commit_ms }
    }

    /// Ends following and takes writes from here on, in an epoch of its own.
    pub fn promote(&self) -> Result<Promoted, Error> {
        let _one_at_a_time = self.promoting.lock();
        let (Some(following), true) = (&self.following, self.is_standby()) else {
            let message = "this service is a primary already; there is nothing to promote";
            return Err(Error::new(Code::Conflict, message));
        };
        self.moving.refuse_unsure()?;
        if let Some(moved) = self.moving.moved() {
            let message = format!(
                "{}, which this standby follows, has moved to a cluster: a promoted standby would \
                 take writes that the cluster never sees. Send them to {}",
                following.primary,
                moved.place()
            );
            return Err(Error::new(Code::Conflict, message));
        }
        if self.room.is_full() {
            // What came from the primary may wait for room before it is in the store, and this call
            // with it, until long after somebody else was promoted.
            let message = "disk full: make room on the disk of the data directory, then promote";
            return Err(Error::new(Code::Unavailable, message));
        }
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "the promotion failed");
            let message = "the promotion failed, see the service's log; this service follows no \
                           more: look after its disk, restart it and promote it again";
            Error::new(Code::Unavailable, message).outcome_unknown()
        };
        following.end().map_err(|error| failed(&error))?;
        let epoch = self.log.lineage().next_epoch(random());
        // The epoch first: a stop in between leaves a standby that is promoted again, never a
        // primary that goes on under the old one's epoch.
        self.log.begin_epoch(epoch).map_err(|error| failed(&error))?;
        write_role(self.disk.as_ref(), &self.settings.data_dir, true)
            .map_err(|error| failed(&error))?;
        self.shipping.demand_for_new();
        self.take_writes().map_err(|error| failed(&error))?;
        let (position, committed) = (self.log.last(), self.log.last_commit_ms());
        let age_ms = self.clock.now_ms().saturating_sub(committed);
        tracing::warn!(
            position = position.0,
            epoch = epoch.0,
            age_ms,
            "promoted: takes writes now"
        );
        Ok(Promoted { position, epoch, committed: Millis(committed), age_ms })
    }

    pub(super) fn refusing(&self) -> Option<String> {
        if let Some(unsure) = self.moving.unsure() {
            return Some(unsure.to_owned());
        }
        let failed = match self.committer.get() {
            Some(committer) => committer.refusing(),
            None => self.following.as_ref().and_then(Following::failed),
        };
        let failed = failed.map(str::to_owned);
        failed.or_else(|| self.room.trouble()).or_else(|| self.shipping.trouble())
    }

    pub(super) fn following_status(&self) -> Option<FollowStatus> {
        match &self.following {
            Some(following) if self.is_standby() => Some(following.status(self.clock.now_ms())),
            _ => None,
        }
    }

    /// Why a write is not taken here.
    pub(super) fn read_only(&self) -> Error {
        if let Some(moved) = self.moving.moved() {
            return moved_away(&moved);
        }
        let primary = self.following.as_ref().map_or("", |following| &following.primary);
        let message = format!("this is a standby, which takes no writes; send them to {primary}");
        Error::new(Code::ReadOnly, message)
    }

    /// A standby may hear of its primary's new epoch only after a caller does.
    pub(super) fn may_learn_of(&self, token: &Token) -> bool {
        self.is_standby() && token.epoch > self.log.epoch()
    }

    /// Looks for what a standby says of itself; another history than ours is refused.
    fn compare(&self, shipped: &Shipped) -> Result<KnownPosition, Error> {
        let Shipped { epoch, position, commit_ms } = *shipped;
        let lineage = self.log.lineage();
        if !lineage.accepts(epoch, position) {
            let forked = lineage.forks().iter().find(|fork| fork.parent == epoch);
            let message = match forked {
                Some(fork) => format!(
                    "the standby has {} records past position {}, where this service's history \
                     forked off: they exist only there. Move its data directory away (it has them \
                     still) and start it with an empty one",
                    position.0.saturating_sub(fork.at.0),
                    fork.at.0
                ),
                None => format!(
                    "this service knows nothing of the standby's epoch {}: it has another history, \
                     or is the one that was replaced. Check the address given with --follow",
                    epoch.0
                ),
            };
            return Err(Error::new(Code::Conflict, message));
        }
        let differs = || {
            let message = format!(
                "the standby's position {} is of another history than this service's. Check the \
                 address given with --follow, or move the standby's data directory away and start \
                 it with an empty one",
                position.0
            );
            Error::new(Code::Conflict, message)
        };
        let Some(commit_ms) = commit_ms else {
            let beyond = position > self.log.last();
            return if beyond { Err(differs()) } else { Ok(KnownPosition::Same) };
        };
        // Most standbys have all there is. A log that stands on a copy has no frame there, but
        // knows its time.
        let is_end = position == self.log.last();
        if is_end && commit_ms == self.log.last_commit_ms() {
            return Ok(KnownPosition::Same);
        }
        if position == Position(0) {
            return if commit_ms == 0 { Ok(KnownPosition::Same) } else { Err(differs()) };
        }
        match self.log.read(position, 1) {
            Ok(frames) => match frames.first() {
                Some(frame) if frame.last() == position && frame.commit_ms == commit_ms => {
                    Ok(KnownPosition::Same)
                }
                _ => Err(differs()),
            },
            Err(LogError::Trimmed { .. }) if is_end => Err(differs()),
            Err(LogError::Trimmed { .. }) => Ok(KnownPosition::Trimmed),
            Err(error) => Err(unshipped(error)),
        }
    }
}

/// Why a standby gets nothing of the log.
pub fn unshipped(error: LogError) -> Error {
    if let LogError::Trimmed { .. } = error {
        let message = format!("{error}; begin anew with an empty directory");
        return Error::new(Code::PositionExpired, message);
    }
    tracing::error!(%error, "the log could not be read for a standby");
    Error::new(Code::Unavailable, "the log could not be read")
}

/// Whom to follow, by the settings and by what the directory has been.
pub(super) fn primary_to_follow(
    settings: &Settings,
    role: Role,
) -> Result<Option<String>, OpenError> {
    match (role, &settings.follow) {
        (Role::Standby, None) => Err(OpenError::Standby(settings.data_dir.clone())),
        (Role::Promoted, Some(primary)) => {
            tracing::warn!(
                primary,
                "NOT following: this directory was promoted and takes writes itself. Start it \
                 without --follow; if it is to be a standby again, remove its file ROLE first"
            );
            Ok(None)
        }
        (_, follow) => Ok(follow.clone()),
    }
}
