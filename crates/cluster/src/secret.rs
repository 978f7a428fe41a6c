//! The secret of a cluster, by which each instance knows the tokens, cursors and event ids that any
//! of them gave out. It stands in the database, made with the tables; a service that moves in brings
//! its own.

use std::time::{Duration, Instant};

use guanxi_core::random::random_secret;
use guanxi_model::Secret;

use super::rows::cell;
use super::sql::{Database, Session, SqlError, text};

/// How long to wait for a connection.
const WAIT: Duration = Duration::from_secs(30);
/// What `secrets` calls it.
const NAME: &str = "tokens";

/// Makes it where there is none.
pub(super) fn make(session: &mut Session<'_>) -> Result<(), SqlError> {
    let secret = random_secret();
    let secret = secret.map_err(|error| SqlError::Refused(format!("no randomness: {error}")))?;
    write(session, "INSERT IGNORE", &secret)
}

/// Takes another one's place: texts of the service that it belongs to are good here.
pub fn adopt(database: &Database, secret: &Secret) -> Result<(), SqlError> {
    write(&mut database.session(Instant::now() + WAIT)?, "REPLACE", secret)
}

/// None in tables that were never made ready.
pub(super) fn read(database: &Database) -> Result<Option<Secret>, SqlError> {
    let mut session = database.session(Instant::now() + WAIT)?;
    let rows = session.rows(&format!("SELECT value FROM secrets WHERE name='{NAME}'"))?;
    let bytes = rows.first().map(|row| cell::<Vec<u8>>(row, 0)).transpose()?;
    match bytes.map(<[u8; Secret::BYTES]>::try_from) {
        None => Ok(None),
        Some(Ok(bytes)) => Ok(Some(Secret::new(bytes))),
        Some(Err(_)) => Err(SqlError::Refused(
            "the secret of the cluster has another length: a newer release may have made it".into(),
        )),
    }
}

fn write(session: &mut Session<'_>, how: &str, secret: &Secret) -> Result<(), SqlError> {
    let mut statement = format!("BEGIN;{how} INTO secrets (name,value) VALUES ('{NAME}',");
    text::bytes(&mut statement, secret.bytes());
    statement.push_str(");COMMIT");
    session.run(&statement).map(drop)
}
