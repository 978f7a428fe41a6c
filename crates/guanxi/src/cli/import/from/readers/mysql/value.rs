//! Values of columns: as text, as times, and as the place of a row in a file.

use mysql::consts::ColumnType;
use mysql::{Column, Row, Value};
use serde_json::{Value as Json, json};

use crate::cli::import::from::row::{Unit, time_of};

/// The value of a column as text; none for NULL.
pub fn of(row: &Row, name: &str) -> Option<String> {
    let (value, column) = found(row, name)?;
    text(value, Some(column))
}

/// A column's value; columns of the key come first, so the last of a name is the one that was
/// asked for by it. Names of columns know no case.
fn found<'a>(row: &'a Row, name: &str) -> Option<(&'a Value, &'a Column)> {
    let columns = row.columns_ref();
    let at = columns.iter().rposition(|column| column.name_str().eq_ignore_ascii_case(name))?;
    Some((row.as_ref(at)?, columns.get(at)?))
}

pub fn text(value: &Value, column: Option<&Column>) -> Option<String> {
    Some(match value {
        Value::NULL => return None,
        Value::Int(number) => number.to_string(),
        Value::UInt(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Double(number) => number.to_string(),
        Value::Bytes(bytes) if is_bits(column) => {
            bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)).to_string()
        }
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Date(year, month, day, hour, minute, second, micros) => {
            moment([*month, *day, *hour, *minute, *second], *year, *micros, "Z")
        }
        Value::Time(..) => value.as_sql(false),
    })
}

fn is_bits(column: Option<&Column>) -> bool {
    column.is_some_and(|column| column.column_type() == ColumnType::MYSQL_TYPE_BIT)
}

/// The time that a column tells, for a line. DATETIME has no zone, so one is given; a TIMESTAMP
/// comes in UTC.
pub fn time(row: &Row, name: &str, unit: Unit, zone: &str) -> Option<String> {
    let (value, column) = found(row, name)?;
    match value {
        Value::NULL | Value::Date(0, ..) | Value::Date(_, 0, ..) => None,
        Value::Date(year, month, day, hour, minute, second, micros) => {
            let zone = match column.column_type() {
                ColumnType::MYSQL_TYPE_TIMESTAMP | ColumnType::MYSQL_TYPE_TIMESTAMP2 => "Z",
                _ => zone,
            };
            Some(moment([*month, *day, *hour, *minute, *second], *year, *micros, zone))
        }
        other => {
            let text = text(other, Some(column))?;
            match text.parse::<f64>() {
                Ok(number) => time_of(number, unit),
                // Whatever it is, the server says whether it is a time.
                Err(_) => Some(text).filter(|text| !text.is_empty()),
            }
        }
    }
}

fn moment(
    [month, day, hour, minute, second]: [u8; 5],
    year: u16,
    micros: u32,
    zone: &str,
) -> String {
    let millis = micros / 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}{zone}")
}

/// A value of a key as it is kept in a file.
pub fn kept(value: &Value) -> Json {
    match value {
        Value::Int(number) => json!(number),
        Value::UInt(number) => json!(number),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => json!(text),
            Err(_) => json!(bytes),
        },
        // Keys of other types were refused.
        _ => Json::Null,
    }
}

pub fn restored(kept: &Json) -> Value {
    match kept {
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (_, Some(number)) => Value::UInt(number),
            _ => Value::NULL,
        },
        Json::String(text) => Value::Bytes(text.clone().into_bytes()),
        Json::Array(bytes) => Value::Bytes(
            bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        ),
        _ => Value::NULL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_and_restored() {
        let values = [
            Value::Int(-7),
            Value::Int(7),
            Value::UInt(u64::MAX),
            Value::Bytes("朋'友".into()),
            Value::Bytes(vec![0, 255, 254]),
        ];
        for value in values {
            assert_eq!(restored(&kept(&value)), value);
        }
    }
}
