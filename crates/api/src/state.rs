//! An edge's state by its name.

use guanxi_model::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = State)]
pub enum WireState {
    Live,
    Pending,
    Removed,
}

impl From<State> for WireState {
    fn from(state: State) -> WireState {
        match state {
            State::Live => WireState::Live,
            State::Pending => WireState::Pending,
            State::Removed => WireState::Removed,
        }
    }
}

impl WireState {
    pub fn name(self) -> &'static str {
        match self {
            WireState::Live => State::Live.name(),
            WireState::Pending => State::Pending.name(),
            WireState::Removed => State::Removed.name(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_models() {
        for state in [State::Live, State::Pending, State::Removed] {
            let json = serde_json::to_string(&WireState::from(state)).unwrap();
            assert_eq!(json, format!("\"{}\"", state.name()));
            assert_eq!(WireState::from(state).name(), state.name());
        }
    }
}
