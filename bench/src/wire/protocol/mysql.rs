//! The text protocol of MySQL as far as a client needs it: one message of several statements, and
//! where its results end.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, bail};

use crate::wire::protocol::http::shown;

pub const DATABASE: &str = "bench";
/// Protocol 4.1 with a database, transactions, secure connection, several statements and results,
/// authentication by plugin.
const CAPABILITIES: u32 = 0x1 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x8_0000;
const PACKET_BYTES_MAX: u32 = 1 << 24;
const UTF8MB4: u8 = 45;
const QUERY: u8 = 3;
const OK: u8 = 0x00;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// An end is shorter than any row that begins with the same byte.
const END_BYTES_MAX: usize = 8;
const MORE_RESULTS: u16 = 8;
const HEAD_BYTES: usize = 4;

/// A row's columns as text; `None` is NULL.
pub type Row = Vec<Option<Vec<u8>>>;

/// Signs in as root without a password.
pub fn greet(stream: &mut TcpStream) -> anyhow::Result<()> {
    packet(stream)?;
    let mut answer = CAPABILITIES.to_le_bytes().to_vec();
    answer.extend_from_slice(&PACKET_BYTES_MAX.to_le_bytes());
    answer.push(UTF8MB4);
    answer.extend_from_slice(&[0; 23]);
    answer.extend_from_slice(b"root\0\0");
    answer.extend_from_slice(DATABASE.as_bytes());
    answer.extend_from_slice(b"\0mysql_native_password\0");
    stream.write_all(&message(&answer, 1))?;
    let reply = packet(stream)?;
    let welcome = reply.first() == Some(&OK);
    anyhow::ensure!(welcome, "MySQL does not let us in: {}", shown(&reply));
    Ok(())
}

/// Statements, divided by semicolons.
pub fn query(statements: &str, to: &mut Vec<u8>) {
    let mut body = vec![QUERY];
    body.extend_from_slice(statements.as_bytes());
    to.extend_from_slice(&message(&body, 0));
}

/// Bytes of the results of all statements, if they are there.
pub fn length(bytes: &[u8]) -> anyhow::Result<Option<usize>> {
    walk(bytes, |_, _| Ok(()))
}

/// The rows of each statement that has some; the others have none.
pub fn results(bytes: &[u8]) -> anyhow::Result<Vec<Vec<Row>>> {
    let mut results: Vec<Vec<Row>> = Vec::new();
    walk(bytes, |statement, row| {
        results.resize_with(results.len().max(statement + 1), Vec::new);
        if let Some(row) = row {
            results[statement].push(columns(row)?);
        }
        Ok(())
    })?
    .context("results are cut off")?;
    Ok(results)
}

/// Shows each row with the number of its statement, and each statement without rows.
fn walk(
    bytes: &[u8],
    mut show: impl FnMut(usize, Option<&[u8]>) -> anyhow::Result<()>,
) -> anyhow::Result<Option<usize>> {
    let (mut place, mut statement) = (0, 0);
    loop {
        let Some(head) = next(bytes, &mut place) else { return Ok(None) };
        let status = match head.first() {
            Some(&OK) => {
                show(statement, None)?;
                let rest = &head[1..];
                let rest = &rest[integer(rest)?.1..];
                let rest = &rest[integer(rest)?.1..];
                rest.get(..2).context("an OK without a status")?
            }
            Some(&ERROR) => bail!("an error: {}", shown(head)),
            Some(_) => {
                show(statement, None)?;
                // Columns and their end, then rows and theirs.
                let columns = integer(head)?.0;
                for _ in 0..=columns {
                    if next(bytes, &mut place).is_none() {
                        return Ok(None);
                    }
                }
                loop {
                    let Some(row) = next(bytes, &mut place) else { return Ok(None) };
                    match row.first() {
                        Some(&END) if row.len() <= END_BYTES_MAX => {
                            break row.get(3..5).context("an end without a status")?;
                        }
                        Some(&ERROR) => bail!("an error: {}", shown(row)),
                        _ => show(statement, Some(row))?,
                    }
                }
            }
            None => bail!("an empty packet"),
        };
        if u16::from_le_bytes([status[0], status[1]]) & MORE_RESULTS == 0 {
            return Ok(Some(place));
        }
        statement += 1;
    }
}

fn columns(mut row: &[u8]) -> anyhow::Result<Row> {
    let mut columns = Vec::new();
    while let Some(first) = row.first() {
        if *first == NULL {
            columns.push(None);
            row = &row[1..];
            continue;
        }
        let (length, head) = integer(row)?;
        let end = head + usize::try_from(length)?;
        columns.push(Some(row.get(head..end).context("a row is cut off")?.to_vec()));
        row = &row[end..];
    }
    Ok(columns)
}

/// A number of one to nine bytes, and how many.
fn integer(bytes: &[u8]) -> anyhow::Result<(u64, usize)> {
    let width = match bytes.first().context("a number is cut off")? {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        small => return Ok((u64::from(*small), 1)),
    };
    let mut number = [0; 8];
    number[..width].copy_from_slice(bytes.get(1..=width).context("a number is cut off")?);
    Ok((u64::from_le_bytes(number), 1 + width))
}

fn next<'a>(bytes: &'a [u8], place: &mut usize) -> Option<&'a [u8]> {
    let head = bytes.get(*place..*place + HEAD_BYTES)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize;
    let begin = *place + HEAD_BYTES;
    let body = bytes.get(begin..begin + length)?;
    *place = begin + length;
    Some(body)
}

fn packet(stream: &mut TcpStream) -> anyhow::Result<Vec<u8>> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let mut body = vec![0; u32::from_le_bytes([head[0], head[1], head[2], 0]) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn message(body: &[u8], number: u8) -> Vec<u8> {
    let mut message = (body.len() as u32).to_le_bytes()[..3].to_vec();
    message.push(number);
    message.extend_from_slice(body);
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One column and two rows, then a statement without rows.
    fn answer() -> Vec<u8> {
        let packets: [&[u8]; 7] = [
            &[1],
            b"the column",
            &[END, 0, 0, 8, 0],
            b"\x02ab",
            &[NULL],
            &[END, 0, 0, 8, 0],
            &[OK, 1, 0xfc, 1, 1, 2, 0, 0, 0],
        ];
        let numbered = (1..).zip(packets);
        numbered.flat_map(|(number, packet)| message(packet, number)).collect()
    }

    #[test]
    fn results_end_where_no_more_follow() {
        let whole = answer();
        for cut in 0..whole.len() {
            assert_eq!(length(&whole[..cut]).expect("so far so good"), None, "{cut}");
        }
        assert_eq!(length(&whole).expect("results"), Some(whole.len()));
        let Ok(results) = results(&whole) else { panic!("results") };
        assert_eq!(results, [vec![vec![Some(b"ab".to_vec())], vec![None]], Vec::new()]);
    }

    #[test]
    fn an_error_is_one() {
        assert!(length(&message(&[ERROR, 1, 0, b'n', b'o'], 1)).is_err());
    }
}
