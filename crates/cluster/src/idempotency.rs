//! Idempotency keys in the database. A transaction takes the keys of its requests with a mark of
//! its own; the mark that stands afterwards says whose a key is: a foreign one means that the key
//! was used before, and its row has the answers.
//!
//! Whether the 24 hours of a key are over is decided once, where it is taken, under its lock, and
//! only if the database's clock and our own agree on it: either of them may be wrong.

use std::fmt::Write;

use guanxi_model::codec::{decode_idempotency, encode_idempotency};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{Millis, TenantId};
use mysql::Row;

use super::rows::cell;
use super::sql::text::NOW_MS;
use super::sql::{SqlError, text};

pub type TenantKey = (TenantId, IdempotencyKey);

/// `(tenant,name)`
pub fn key_tuple(out: &mut String, (tenant, key): &TenantKey) {
    let _ = write!(out, "({},", tenant.0);
    text::bytes(out, key.as_str().as_bytes());
    out.push(')');
}

/// A key that was found taken counts as used, however late our own clock says it is.
const STANDS: Millis = Millis(u64::MAX);

/// Takes each key unless it was used in the last 24 hours; the keys are sorted, and at most
/// `text::TUPLES_MAX`. `now` is of a clock that does not follow a jump.
pub fn take_keys(keys: &[TenantKey], mark: u64, now: Millis) -> String {
    let mut out = String::from("INSERT INTO idempotency (tenant,name,mark,at) VALUES ");
    text::list(&mut out, keys, |out, (tenant, key)| {
        let _ = write!(out, "({},", tenant.0);
        text::bytes(out, key.as_str().as_bytes());
        let _ = write!(out, ",{mark},GREATEST({},{NOW_MS}))", now.0);
    });
    // Assignments are done in order, so the one that the others ask for comes last.
    let expired = format!("at+{IDEMPOTENCY_TTL_MS}<=LEAST({},{NOW_MS})", now.0);
    let _ = write!(
        out,
        " ON DUPLICATE KEY UPDATE mark=IF({expired},VALUES(mark),mark),\
         answers=IF({expired},NULL,answers),at=IF({expired},VALUES(at),at)"
    );
    out
}

/// Whose the keys are now.
pub fn select_keys(keys: &[TenantKey]) -> String {
    let mut out = String::from(
        "SELECT tenant,name,mark,answers FROM idempotency FORCE INDEX (PRIMARY) \
         WHERE (tenant,name) IN (",
    );
    text::list(&mut out, keys, key_tuple);
    out.push(')');
    out
}

/// Whose a key is, and what it was used for.
#[derive(Debug)]
pub struct TakenKey {
    pub ours: bool,
    /// None when it is ours, or was taken for a request that has not ended.
    pub row: Option<IdempotencyRow>,
}

/// A row of `select_keys`.
pub fn key_row(row: &Row, mark: u64) -> Result<(TenantKey, TakenKey), SqlError> {
    let unreadable = |what: &str| {
        SqlError::Refused(format!("{what} cannot be read: a newer release may have written it"))
    };
    let name = String::from_utf8(cell(row, 1)?).ok();
    let key = name.and_then(|name| IdempotencyKey::new(&name).ok());
    let key = key.ok_or_else(|| unreadable("an idempotency key"))?;
    let ours = cell::<u64>(row, 2)? == mark;
    let answers: Option<Vec<u8>> = cell(row, 3)?;
    let used = answers.filter(|_| !ours).map(|bytes| decode_idempotency(&bytes)).transpose();
    let used = used.map_err(|_| unreadable("a stored answer"))?;
    let used = used.map(|row| IdempotencyRow { at: STANDS, ..row });
    Ok(((TenantId(cell(row, 0)?), key), TakenKey { ours, row: used }))
}

/// `(tenant,name,mark,at,answers)`
pub fn answers_tuple(
    out: &mut String,
    ((tenant, key), row): (&TenantKey, &IdempotencyRow),
    mark: u64,
) {
    let _ = write!(out, "({},", tenant.0);
    text::bytes(out, key.as_str().as_bytes());
    let _ = write!(out, ",{mark},{},", row.at.0);
    text::bytes(out, &encode_idempotency(row));
    out.push(')');
}

/// Writes the answers of keys that are ours.
pub fn keep_answers(rows: &[(&TenantKey, &IdempotencyRow)], mark: u64) -> String {
    let mut out = String::from("INSERT INTO idempotency (tenant,name,mark,at,answers) VALUES ");
    text::list(&mut out, rows, |out, used| answers_tuple(out, *used, mark));
    out.push_str(" ON DUPLICATE KEY UPDATE answers=VALUES(answers)");
    out
}

/// Gives back keys that were taken and not used: refusals are not stored.
pub fn give_back(keys: &[&TenantKey], mark: u64) -> String {
    let mut out = String::from("DELETE FROM idempotency WHERE (tenant,name) IN (");
    text::keys(&mut out, keys, |out, key| key_tuple(out, key));
    let _ = write!(out, ") AND mark={mark}");
    out
}
