//! Statements as text. Numbers are written plainly, bytes as hexadecimal literals, so nothing a
//! caller sends is ever part of a statement's syntax.

use std::fmt::Write;

/// Rows or tuples of one statement: longer lists make some servers change their plan.
pub const TUPLES_MAX: usize = 256;

/// The database's time in milliseconds; sessions are in UTC, so no season bends it.
pub const NOW_MS: &str = "CAST(UNIX_TIMESTAMP(NOW(3))*1000 AS UNSIGNED)";

/// Writes `items` separated by commas.
pub fn list<T>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut one: impl FnMut(&mut String, T),
) {
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        one(out, item);
    }
}

/// The keys of a DELETE or UPDATE, `(columns) IN (list)`. A single one is written twice: MariaDB makes
/// an equality of a list of one row, and for an equality of rows it reads, and locks, all the table.
pub fn keys<T: Copy>(
    out: &mut String,
    items: impl IntoIterator<Item = T>,
    mut one: impl FnMut(&mut String, T),
) {
    let mut items = items.into_iter().peekable();
    let Some(first) = items.next() else {
        return;
    };
    one(out, first);
    let second = items.peek().is_none().then_some(first);
    for item in second.into_iter().chain(items) {
        out.push(',');
        one(out, item);
    }
}

/// Bytes as a literal; empty ones too.
pub fn bytes(out: &mut String, value: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(3 + 2 * value.len());
    out.push_str("x'");
    for byte in value {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    out.push('\'');
}

pub fn optional<T>(out: &mut String, value: Option<T>, write: impl FnOnce(&mut String, T)) {
    match value {
        Some(value) => write(out, value),
        None => out.push_str("NULL"),
    }
}

pub fn number(out: &mut String, value: impl std::fmt::Display) {
    let _ = write!(out, "{value}");
}
