//! A move into a cluster, on the side of the service that is moved.

use std::sync::Arc;
use std::time::Duration;

use guanxi_api::moving::{
    ADDRESS_CHARS_MAX, BeginRequest, BegunView, ConfirmRequest, MoveStateName, MoveView,
    PAUSE_MS_MAX, PauseRequest, is_address,
};
use guanxi_api::number::in_range;
use guanxi_embedded::{Confirmed, Engine, MoveState, Moved, Paused};
use guanxi_model::{Error, Position};

use super::standby::apart;
use super::{App, Caller};

/// What a cluster's operator does instead.
const MOVE_OF_A_CLUSTER: &str = "a move takes an embedded service into one";

fn engine(app: &App) -> Result<&Arc<Engine>, Error> {
    app.deployment.embedded(MOVE_OF_A_CLUSTER)
}

/// How the move of this service stands.
pub async fn get(caller: Caller) -> Result<MoveView, Error> {
    state(&caller.app).await
}

async fn state(app: &App) -> Result<MoveView, Error> {
    // Asked before, so that a cluster says what it is.
    engine(app)?;
    apart(app, |engine| Ok(view(engine))).await
}

fn view(engine: &Engine) -> MoveView {
    let status = engine.status();
    let view = MoveView {
        state: MoveStateName::Here,
        id: None,
        epoch: status.epoch.0,
        position: status.applied.0,
        left_ms: None,
        now_at: None,
    };
    match engine.move_state() {
        MoveState::Here => view,
        MoveState::Begun { id } => {
            MoveView { state: MoveStateName::Begun, id: Some(id.to_string()), ..view }
        }
        MoveState::Paused { id, left } => MoveView {
            state: MoveStateName::Paused,
            id: Some(id.to_string()),
            left_ms: Some(left.as_millis() as u64),
            ..view
        },
        MoveState::Moved(Moved { id, position, now_at }) => MoveView {
            state: MoveStateName::Moved,
            id: Some(id.to_string()),
            position: position.0,
            now_at,
            ..view
        },
    }
}

/// Begins a move, or goes on with a run of it.
pub async fn begin(caller: Caller, request: BeginRequest) -> Result<BegunView, Error> {
    let app = &caller.app;
    let id = number("id", &request.id)?;
    let run = request.run.as_deref().map(|run| number("run", run)).transpose()?;
    engine(app)?;
    apart(app, move |engine| {
        let run = engine.begin_move(id, run)?;
        let rest = engine.rest_before_pause(Duration::from_millis(PAUSE_MS_MAX));
        Ok(BegunView { run: run.to_string(), rest_ms: rest.as_millis() as u64 })
    })
    .await
}

/// A run asks for a copy of everything, or of what came after a place.
pub fn reads(app: &App, run: u64, follows: bool) -> Result<(), Error> {
    engine(app)?.read_for_move(run, follows)
}

/// Makes writes pause; resolves when nothing more can change.
pub async fn pause(caller: Caller, request: PauseRequest) -> Result<MoveView, Error> {
    let app = &caller.app;
    let run = number("run", &request.run)?;
    let limit_ms = match request.limit_ms {
        None => PAUSE_MS_MAX,
        limit_ms => in_range("limit_ms", limit_ms, &(1..=PAUSE_MS_MAX))?,
    };
    let limit = Duration::from_millis(limit_ms);
    let Paused { epoch, position } = engine(app)?.pause_for_move(run, limit).await?;
    Ok(MoveView { epoch: epoch.0, position: position.0, ..state(app).await? })
}

/// Gives a move up: writes are taken again, and another may begin.
pub async fn let_go(caller: Caller, id: &str) -> Result<MoveView, Error> {
    let app = &caller.app;
    let id = number("id", id)?;
    engine(app)?;
    apart(app, move |engine| engine.let_go_of_move(id)).await?;
    state(app).await
}

/// Everything is in the cluster: refuses writes from now on.
pub async fn confirm(caller: Caller, request: ConfirmRequest) -> Result<MoveView, Error> {
    let app = &caller.app;
    let now_at = request.now_at.map(address).transpose()?;
    let (run, position) = (number("run", &request.run)?, Position(request.position));
    engine(app)?;
    let confirmed = Confirmed { run, position, now_at };
    apart(app, move |engine| engine.confirm_move(confirmed)).await?;
    state(app).await
}

fn number(field: &str, text: &str) -> Result<u64, Error> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = digits.then(|| text.parse().ok()).flatten();
    number.ok_or_else(|| Error::invalid(format!("{field}: it is a whole number of 64 bits")))
}

/// It stands in messages and in a line of a file.
fn address(text: String) -> Result<String, Error> {
    match is_address(&text) {
        true => Ok(text),
        false => Err(Error::invalid(format!(
            "now_at: it is an address such as http://cluster:7420, of at most {ADDRESS_CHARS_MAX} \
             characters"
        ))),
    }
}
