//! Names and keys that callers choose: what is accepted, byte for byte.

use guanxi_model::idempotency::IdempotencyKey;
use guanxi_model::import::ImportId;
use guanxi_model::{Code, Error, GroupName, KindName};

fn check<T>(parse: impl Fn(&str) -> Result<T, Error>, good: &[&str], bad: &[&str]) {
    for name in good {
        assert!(parse(name).is_ok(), "{name:?} is refused");
    }
    for name in bad {
        let code = parse(name).map(|_| ()).map_err(|error| error.code);
        assert_eq!(code, Err(Code::InvalidArgument), "{name:?}");
    }
}

#[test]
fn kind_names() {
    let (longest, longer) = ("a".repeat(32), "a".repeat(33));
    check(
        KindName::new,
        &["a", "follow", "a0_.", "z9", &longest],
        &["", "A", "0a", "_a", ".a", "a-b", "a b", "aB", "é", "a/b", &longer],
    );
}

#[test]
fn group_names() {
    let (longest, longer) = ("友".repeat(64), "友".repeat(65));
    check(
        GroupName::new,
        &["a", "密友", "two words", "...", ".a", "A", &longest],
        &["", ".", "..", "a/b", "/", "a\nb", "\t", "a\0", "\u{7f}", "a\u{85}", &longer],
    );
    let names = ["friends", "Friends", "friends "].map(|name| GroupName::new(name).unwrap());
    assert!(names[0] != names[1] && names[0] != names[2], "byte by byte");
}

#[test]
fn idempotency_keys() {
    let (longest, longer) = ("k".repeat(64), "k".repeat(65));
    let longer_in_bytes = "友".repeat(22);
    check(IdempotencyKey::new, &["k", "密", &longest], &["", &longer, &longer_in_bytes]);
}

#[test]
fn import_ids() {
    let (longest, longer) = ("i".repeat(64), "i".repeat(65));
    let taken = ["i", "2026-01_users.csv", "...", &longest];
    check(ImportId::new, &taken, &["", ".", "..", "a/b", "a b", "é", "a%", &longer]);
}
