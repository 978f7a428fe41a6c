//! The engine as one of a pair: it ships its log to standbys, follows a primary, is promoted.

use std::sync::PoisonError;

use guanxi_model::{Code, Epoch, Error, Millis, Position, Token};
use tokio::sync::watch;

use super::moving::moved_away;
use super::{Engine, OpenError, Settings};
use crate::directory::{Role, write_role};
use crate::following::{FollowError, FollowStatus, Following};
use crate::log::{Log, LogError, SHIPMENT_FRAME_BYTES, Shipment};
use crate::random::random;

/// What a standby says of itself when it asks for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shipped {
    /// The random id that it took when it started.
    pub standby: u64,
    pub epoch: Epoch,
    /// It has everything up to here on disk.
    pub position: Position,
    /// The commit time of its last frame, which tells apart histories with the same numbers.
    pub commit_ms: Option<u64>,
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

    /// Takes note of what a standby has. Blocks while it looks into the log.
    pub fn acknowledge(&self, shipped: &Shipped) -> Result<(), Error> {
        self.refuse_other_history(shipped)?;
        self.shipping.acknowledge(shipped.standby, shipped.position);
        Ok(())
    }

    /// The next piece of the log for a standby; blocks while it is read.
    pub fn shipment(&self, after: Position) -> Result<Shipment, Error> {
        // Read before the lineage, which then knows the epoch of each.
        let frames = match self.log.read(Position(after.0 + 1), SHIPMENT_FRAME_BYTES) {
            Ok(frames) => frames,
            Err(error @ LogError::Trimmed { .. }) => {
                let message = format!("{error}; begin anew with an empty directory");
                return Err(Error::new(Code::PositionExpired, message));
            }
            Err(error) => {
                tracing::error!(%error, "the log could not be read for a standby");
                return Err(Error::new(Code::Unavailable, "the log could not be read"));
            }
        };
        Ok(Shipment {
            lineage: self.log.lineage(),
            last: self.log.last(),
            last_commit_ms: self.log.last_commit_ms(),
            moved: self.moving.moved(),
            frames,
        })
    }

    /// Takes a piece of the primary's log: durable when it returns, shown soon after.
    pub fn follow(&self, shipment: Shipment) -> Result<(), FollowError> {
        let Some(following) = &self.following else {
            return Err(FollowError::Promoted);
        };
        let moved = shipment.moved.clone();
        following.take(shipment)?;
        // One at a time with a promotion: whoever comes first, this is not undone by the other.
        let _one_at_a_time = self.promoting.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// What this standby says when it asks for more.
    pub fn shipped(&self, standby: u64) -> Shipped {
        let (epoch, position) = (self.log.epoch(), self.log.last());
        Shipped { standby, epoch, position, commit_ms: Some(self.log.last_commit_ms()) }
    }

    /// Ends following and takes writes from here on, in an epoch of its own.
    pub fn promote(&self) -> Result<Promoted, Error> {
        let _one_at_a_time = self.promoting.lock().unwrap_or_else(PoisonError::into_inner);
        let (Some(following), true) = (&self.following, self.is_standby()) else {
            let message = "this service is a primary already; there is nothing to promote";
            return Err(Error::new(Code::Conflict, message));
        };
        if let Some(moved) = self.moving.moved() {
            let message = format!(
                "{}, which this standby follows, has moved to a cluster: a promoted standby would \
                 take writes that the cluster never sees. Send them to {}",
                following.primary,
                moved.place()
            );
            return Err(Error::new(Code::Conflict, message));
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
        match self.committer.get() {
            Some(committer) => committer.refusing().map(str::to_owned),
            None => self.following.as_ref()?.failed().map(str::to_owned),
        }
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

    /// A standby whose log does not continue in ours must not take our frames.
    fn refuse_other_history(&self, shipped: &Shipped) -> Result<(), Error> {
        let Shipped { standby, epoch, position, commit_ms } = *shipped;
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
        if position > self.log.last() {
            return Err(differs());
        }
        let Some(commit_ms) = commit_ms.filter(|_| position.0 > 0) else {
            return Ok(());
        };
        if self.shipping.is_known(standby) {
            return Ok(());
        }
        // A standby that is new to us shows once that its last frame is one of ours; one that was
        // trimmed cannot be compared any more.
        match self.log.read(position, 1) {
            Ok(frames) => match frames.first() {
                Some(frame) if frame.last() == position && frame.commit_ms == commit_ms => Ok(()),
                _ => Err(differs()),
            },
            Err(LogError::Trimmed { .. }) => Ok(()),
            Err(error) => {
                tracing::error!(%error, "the log could not be read for a standby");
                Err(Error::new(Code::Unavailable, "the log could not be read"))
            }
        }
    }
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
