//! Idempotency keys in the database. A transaction takes the keys of its requests with a mark of
//! its own; the mark that stands afterwards says whose a key is: a foreign one means that the key
//! was used before, and its row has the answers.

use std::fmt::Write;

use guanxi_model::codec::{decode_idempotency, encode_idempotency};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::limits::IDEMPOTENCY_TTL_MS;
use guanxi_model::{Millis, TenantId};
use mysql::Row;

use super::rows::cell;
use super::sql::{SqlError, text};

pub type TenantKey = (TenantId, IdempotencyKey);

/// `(tenant,name)`
pub fn key_tuple(out: &mut String, (tenant, key): &TenantKey) {
    let _ = write!(out, "({},", tenant.0);
    text::bytes(out, key.as_str().as_bytes());
    out.push(')');
}

/// Takes each key unless it was used in the last 24 hours; the keys are sorted, and at most
/// `text::TUPLES_MAX`.
pub fn take_keys(keys: &[TenantKey], mark: u64, now: Millis) -> String {
    let mut out = String::from("INSERT INTO idempotency (tenant,name,mark,at) VALUES ");
    text::list(&mut out, keys, |out, (tenant, key)| {
        let _ = write!(out, "({},", tenant.0);
        text::bytes(out, key.as_str().as_bytes());
        let _ = write!(out, ",{mark},{})", now.0);
    });
    // Assignments are done in order, so the one that the others ask for comes last.
    let expired = now.0.saturating_sub(IDEMPOTENCY_TTL_MS);
    let _ = write!(
        out,
        " ON DUPLICATE KEY UPDATE mark=IF(at<={expired},VALUES(mark),mark),\
         answers=IF(at<={expired},NULL,answers),at=IF(at<={expired},VALUES(at),at)"
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

/// A row of `select_keys`: what the key was used for, none when it is ours.
pub fn key_row(row: &Row, mark: u64) -> Result<(TenantKey, Option<IdempotencyRow>), SqlError> {
    let damaged = || SqlError::Refused("an idempotency key's row cannot be read".into());
    let name: Vec<u8> = cell(row, 1)?;
    let name = String::from_utf8(name).ok().and_then(|name| IdempotencyKey::new(&name).ok());
    let key = (TenantId(cell(row, 0)?), name.ok_or_else(damaged)?);
    if cell::<u64>(row, 2)? == mark {
        return Ok((key, None));
    }
    let answers: Option<Vec<u8>> = cell(row, 3)?;
    let answers = answers.map(|bytes| decode_idempotency(&bytes)).transpose();
    Ok((key, answers.map_err(|_| damaged())?))
}

/// Writes the answers of keys that are ours.
pub fn keep_answers(rows: &[(&TenantKey, &IdempotencyRow)], mark: u64) -> String {
    let mut out = String::from("INSERT INTO idempotency (tenant,name,mark,at,answers) VALUES ");
    text::list(&mut out, rows, |out, ((tenant, key), row)| {
        let _ = write!(out, "({},", tenant.0);
        text::bytes(out, key.as_str().as_bytes());
        let _ = write!(out, ",{mark},{},", row.at.0);
        text::bytes(out, &encode_idempotency(row));
        out.push(')');
    });
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
