//! Messages that TiCDC's own encoder wrote, against what the statements said; and rows encoded as
//! it does, decoded again.

use std::fmt::Write;

use serde_json::Value;

use super::*;

const PLAIN: &str = include_str!("../../tests/canal-json/plain.jsonl");
const EXTENSION: &str = include_str!("../../tests/canal-json/tidb-extension.jsonl");
const EXPECTED: &str = include_str!("../../tests/canal-json/expected.jsonl");

/// Some strings hold U+0085, which is no end of a line here.
fn lines(text: &str) -> Vec<&str> {
    text.split('\n').filter(|line| !line.is_empty()).collect()
}

fn samples() -> Vec<(Value, &'static str)> {
    let (plain, extension) = (lines(PLAIN), lines(EXTENSION));
    let expected = lines(EXPECTED).into_iter().map(|line| {
        let expected: Value = serde_json::from_str(line).unwrap();
        let line = expected["line"].as_u64().unwrap() as usize - 1;
        let sample = match expected["file"].as_str().unwrap() {
            "plain.jsonl" => plain[line],
            _ => extension[line],
        };
        (expected, sample)
    });
    expected.collect()
}

/// A row of the expected file; `data` and `body` are binary, given in hexadecimal.
fn expected_row(row: &Value) -> Option<CanalColumns> {
    let columns = row.as_object()?.iter().map(|(name, value)| {
        let value = value.as_str().map(|text| match name.as_str() {
            "data" | "body" => unhex(text),
            _ => text.as_bytes().to_vec(),
        });
        (name.clone(), value)
    });
    Some(columns.collect())
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The expected rows leave out the column that an ALTER added.
fn without_extra(columns: Option<CanalColumns>) -> Option<CanalColumns> {
    columns.map(|mut columns| {
        columns.remove("extra");
        columns
    })
}

#[test]
fn every_sample_says_what_its_statement_said() {
    let samples = samples();
    assert_eq!(samples.len(), 58);
    for (expected, sample) in samples {
        let read = message(sample.as_bytes()).unwrap_or_else(|error| panic!("{expected}: {error}"));
        let event = match expected["type"].as_str().unwrap() {
            "INSERT" => CanalEvent::Insert,
            "UPDATE" => CanalEvent::Update,
            "DELETE" => CanalEvent::Delete,
            "TIDB_WATERMARK" => CanalEvent::Watermark,
            _ => CanalEvent::Ddl,
        };
        assert_eq!(read.event, event, "{expected}");
        assert_eq!(read.table, expected["table"].as_str().unwrap_or_default(), "{expected}");
        assert_eq!(read.time.0.to_string(), expected["es"].as_str().unwrap(), "{expected}");
        let commit_ts = read.commit_ts.map(|ts| ts.to_string());
        assert_eq!(commit_ts.as_deref(), expected["commit_ts"].as_str(), "{expected}");
        assert_eq!(without_extra(read.old), expected_row(&expected["old"]), "{expected}");
        assert_eq!(without_extra(read.new), expected_row(&expected["new"]), "{expected}");
    }
}

#[test]
fn every_sample_means_what_an_applier_needs() {
    let (mut edges, mut lacking, mut watermarks, mut passed) = (0, 0, 0, 0);
    for (expected, sample) in samples() {
        let named = |name: &str| expected["case"] == name;
        match decode(sample.as_bytes()).unwrap_or_else(|error| panic!("{expected}: {error}")) {
            CanalChange::Edge(change) => {
                edges += 1;
                assert_eq!(expected["table"], "outgoing");
                assert_ne!(expected["type"], "DELETE");
                let key = [
                    ("tenant", change.key.tenant.0.to_string()),
                    ("kind", change.key.kind.0.to_string()),
                    ("source", change.key.source.0.to_string()),
                    ("target", change.key.target.0.to_string()),
                ];
                for (name, value) in key {
                    assert_eq!(expected["new"][name], value, "{expected}");
                }
                assert_eq!(change.old == ToldRow::None, expected["old"].is_null(), "{expected}");
                match change.new {
                    ToldRow::Row(row) => assert_row(&row, &expected["new"]),
                    ToldRow::Lacking => {
                        lacking += 1;
                        assert!(named("update-too-large-handle-key-only"), "{expected}");
                    }
                    ToldRow::None => panic!("{expected}: an edge without a new row"),
                }
                if let ToldRow::Row(row) = change.old {
                    assert_row(&row, &expected["old"]);
                }
            }
            CanalChange::Watermark { commit_ts } => {
                watermarks += 1;
                assert_eq!(expected["commit_ts"], commit_ts.to_string());
            }
            CanalChange::PassedOver => {
                passed += 1;
                let other = expected["table"] != "outgoing";
                let event = expected["type"].as_str().unwrap();
                assert!(other || !["INSERT", "UPDATE"].contains(&event), "{expected}");
            }
        }
    }
    assert_eq!((lacking, watermarks, edges + passed), (1, 1, 57));
}

fn assert_row(row: &OutgoingRow, expected: &Value) {
    let text = |name: &str| expected[name].as_str().map(String::from);
    assert_eq!(Some(row.version.to_string()), text("version"), "{expected}");
    assert_eq!(Some(row.state.to_string()), text("state"), "{expected}");
    assert_eq!(Some(row.since.to_string()), text("since"), "{expected}");
    assert_eq!(row.group_id.map(|id| id.to_string()), text("group_id"), "{expected}");
    assert_eq!(row.owner.map(|id| id.to_string()), text("owner"), "{expected}");
    assert_eq!(row.data, text("data").map(|hex| unhex(&hex)), "{expected}");
    assert_eq!(row.cause, text("cause"), "{expected}");
    assert_eq!(row.expires_at, None, "{expected}");
}

/// A JSON string as Go writes it: what HTML minds is escaped too.
fn go_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..'\u{20}' => {
                write!(out, "\\u{:04x}", u32::from(character)).unwrap();
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

fn column(out: &mut String, name: &str, value: Option<String>) {
    if !out.ends_with('{') {
        out.push(',');
    }
    write!(out, "\"{name}\":").unwrap();
    match value {
        Some(text) => go_string(out, &text),
        None => out.push_str("null"),
    }
}

/// The row as TiCDC writes it, except the columns at `left_out`.
fn encoded_row(key: &EdgeKey, row: &OutgoingRow, left_out: &[&str]) -> String {
    let data = row.data.as_ref().map(|data| data.iter().map(|byte| char::from(*byte)).collect());
    let columns = [
        ("tenant", Some(key.tenant.0.to_string())),
        ("kind", Some(key.kind.0.to_string())),
        ("source", Some(key.source.0.to_string())),
        ("target", Some(key.target.0.to_string())),
        ("version", Some(row.version.to_string())),
        ("state", Some(row.state.to_string())),
        ("since", Some(row.since.to_string())),
        ("group_id", row.group_id.map(|id| id.to_string())),
        ("owner", row.owner.map(|id| id.to_string())),
        ("data", data),
        ("expires_at", row.expires_at.map(|at| at.to_string())),
        ("cause", row.cause.clone()),
    ];
    let mut out = String::from("{");
    for (name, value) in columns {
        if !left_out.contains(&name) {
            column(&mut out, name, value);
        }
    }
    out.push('}');
    out
}

fn encoded(old: Option<&str>, new: &str, commit_ts: Option<u64>) -> String {
    let event = if old.is_some() { "UPDATE" } else { "INSERT" };
    let old = old.map_or("null".to_string(), |old| format!("[{old}]"));
    let extension =
        commit_ts.map_or(String::new(), |ts| format!(",\"_tidb\":{{\"commitTs\":{ts}}}"));
    format!(
        "{{\"id\":0,\"database\":\"guanxi\",\"table\":\"outgoing\",\"isDdl\":false,\
         \"type\":\"{event}\",\"es\":1760000003000,\"ts\":1794780109553,\"sql\":\"\",\
         \"mysqlType\":{{\"data\":\"varbinary(128)\",\"cause\":\"varchar(32)\"}},\
         \"old\":{old},\"data\":[{new}]{extension}}}"
    )
}

fn some<T>(random: &mut fastrand::Rng, value: T) -> Option<T> {
    random.bool().then_some(value)
}

fn any_row(random: &mut fastrand::Rng) -> OutgoingRow {
    let data: Vec<u8> = (0..random.usize(..=128)).map(|_| random.u8(..)).collect();
    let cause = (0..random.usize(..=8)).map(|_| random.char(..)).collect();
    let (group_id, owner, expires_at) = (random.u32(..), random.u64(..), random.u64(..));
    OutgoingRow {
        version: random.u64(..),
        state: random.u8(..3),
        since: random.u64(..),
        group_id: some(random, group_id),
        owner: some(random, owner),
        data: some(random, data),
        expires_at: some(random, expires_at),
        cause: some(random, cause),
    }
}

#[test]
fn what_ticdc_would_write_reads_as_the_row() {
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let random = &mut random;
        let key = EdgeKey {
            tenant: TenantId(random.u32(..)),
            kind: KindId(random.u16(..)),
            source: SourceId(random.u64(..)),
            target: TargetId(random.u64(..)),
        };
        let new = any_row(random);
        // As with `only-output-updated-columns`: the old row tells what differs.
        let old = random.bool().then(|| OutgoingRow { version: 1, state: 2, ..new.clone() });
        let same =
            ["tenant", "kind", "source", "target", "since", "group_id", "owner", "data", "cause"];
        let left_out: &[&str] = if random.bool() { &same } else { &[] };
        let commit_ts = random.bool().then(|| random.u64(..));
        let old_text = old.as_ref().map(|old| encoded_row(&key, old, left_out));
        let text = encoded(old_text.as_deref(), &encoded_row(&key, &new, &[]), commit_ts);
        let expected = EdgeChange {
            key,
            time: Millis(1_760_000_003_000),
            commit_ts,
            old: old.map_or(ToldRow::None, ToldRow::Row),
            new: ToldRow::Row(new),
        };
        let read = decode(text.as_bytes()).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read, CanalChange::Edge(Box::new(expected)), "seed {seed}: {text}");
    }
}

#[test]
fn a_missing_column_is_unknown_and_a_missing_key_is_an_error() {
    let mut random = fastrand::Rng::with_seed(7);
    let row = any_row(&mut random);
    let key =
        EdgeKey { tenant: TenantId(1), kind: KindId(2), source: SourceId(3), target: TargetId(4) };
    for name in ["version", "state", "since", "group_id", "owner", "data", "cause"] {
        let text = encoded(None, &encoded_row(&key, &row, &[name]), None);
        let CanalChange::Edge(change) = decode(text.as_bytes()).unwrap() else {
            panic!("{text}");
        };
        assert_eq!((change.key, change.new), (key, ToldRow::Lacking), "{name}");
    }
    for name in ["tenant", "kind", "source", "target"] {
        let text = encoded(None, &encoded_row(&key, &row, &[name]), None);
        assert!(decode(text.as_bytes()).unwrap_err().contains(name), "{name}");
    }
}

#[test]
fn what_is_no_message_says_why() {
    let key_only = r#"{"tenant":"1","kind":"1","source":"7","target":"9"}"#;
    let message = |columns: &str| encoded(None, columns, None);
    let cases = [
        ("".to_string(), "not a canal-json message"),
        ("null".to_string(), "not a canal-json message"),
        (r#"{"type":"TRUNCATE"}"#.to_string(), "unknown type"),
        (r#"{"type":"INSERT","table":"outgoing"}"#.to_string(), "without data"),
        (r#"{"type":"TIDB_WATERMARK"}"#.to_string(), "without its timestamp"),
        (message(&format!("{key_only},{key_only}")), "does not hold one row"),
        (message(&key_only.replace("\"9\"", "\"-9\"")), "not a number that fits"),
        (message(&key_only.replace("\"9\"", "9")), "not a canal-json message"),
        (message(&key_only.replace("\"9\"", "null")), "is null"),
        (message(&key_only.replace('}', r#","data":"你"}"#)), "above U+00FF"),
    ];
    for (text, expected) in cases {
        let error = decode(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
