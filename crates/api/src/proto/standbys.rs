//! A primary and its standbys as messages.

use super::{Follower, Following, Promotion, Standby, standby as role, timestamp};
use crate::standby::{self, RoleName};

impl From<standby::StandbyView> for Standby {
    fn from(view: standby::StandbyView) -> Standby {
        let role = match view.role {
            RoleName::Primary => role::Role::Primary,
            RoleName::Standby => role::Role::Standby,
            RoleName::Instance => role::Role::Instance,
            RoleName::Moved => role::Role::Moved,
        };
        Standby {
            role: role.into(),
            epoch: view.epoch,
            position: view.position,
            following: view.following.map(Following::from),
            standbys: view.standbys.into_iter().map(Follower::from).collect(),
        }
    }
}

impl From<standby::FollowingView> for Following {
    fn from(following: standby::FollowingView) -> Following {
        Following {
            primary: following.primary,
            primary_position: following.primary_position,
            lag_positions: following.lag_positions,
            lag_ms: following.lag_ms,
            last_contact: following.last_contact.map(|at| timestamp(at.0)),
            trouble: following.trouble,
        }
    }
}

impl From<standby::FollowerView> for Follower {
    fn from(follower: standby::FollowerView) -> Follower {
        Follower {
            id: follower.id,
            position: follower.position,
            lag_positions: follower.lag_positions,
            last_contact: Some(timestamp(follower.last_contact.0)),
        }
    }
}

impl From<standby::Promotion> for Promotion {
    fn from(promotion: standby::Promotion) -> Promotion {
        Promotion {
            position: promotion.position,
            epoch: promotion.epoch,
            committed_at: promotion.committed_at.map(|at| timestamp(at.0)),
            age_ms: promotion.age_ms,
        }
    }
}
