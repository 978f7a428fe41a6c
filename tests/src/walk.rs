//! Walks a list page by page, as a client would, and checks what must hold of every page.

use std::collections::HashSet;

use serde_json::Value;

use crate::answer::assert_keys;
use crate::client::Client;

/// Far above what any list here needs: a walk that does not end is a failure.
const PAGES_MAX: usize = 20_000;

#[derive(Debug)]
pub struct Page {
    pub items: Vec<Value>,
    pub total: Value,
    pub next: Option<String>,
}

impl Page {
    pub fn ids(&self) -> Vec<u64> {
        ids_of(&self.items)
    }
}

/// One page. `path` may have a query.
#[track_caller]
pub fn page_of(client: &Client, path: &str) -> Page {
    let answer = client.get(path);
    let body = answer.ok();
    assert_keys(body, &["items", "next", "total"]);
    let next = match &body["next"] {
        Value::Null => None,
        Value::String(cursor) => Some(cursor.clone()),
        other => panic!("next is a cursor or null, not {other}"),
    };
    let items = body["items"].as_array().expect("items").clone();
    Page { items, total: body["total"].clone(), next }
}

/// All items, with `between` called after each page but the last.
#[track_caller]
pub fn walk(
    client: &Client,
    path: &str,
    limit: usize,
    mut between: impl FnMut(usize, &Page),
) -> Vec<Value> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let first = format!("{path}{separator}limit={limit}");
    let mut items = Vec::new();
    let mut seen = HashSet::new();
    let mut address = first.clone();
    for number in 0..PAGES_MAX {
        let page = page_of(client, &address);
        assert!(page.items.len() <= limit, "{address}: more than its limit");
        for id in page.ids() {
            assert!(seen.insert(id), "{address}: {id} appeared twice");
        }
        items.extend(page.items.iter().cloned());
        let Some(cursor) = &page.next else {
            return items;
        };
        address = format!("{first}&cursor={cursor}");
        between(number, &page);
    }
    panic!("{path}: no end after {PAGES_MAX} pages");
}

/// The ids of a whole list.
#[track_caller]
pub fn walk_ids(client: &Client, path: &str, limit: usize) -> Vec<u64> {
    ids_of(&walk(client, path, limit, |_, _| ()))
}

#[track_caller]
pub fn ids_of(items: &[Value]) -> Vec<u64> {
    items
        .iter()
        .map(|item| {
            item["id"]
                .as_str()
                .and_then(|id| id.parse().ok())
                .unwrap_or_else(|| panic!("an id is a number in a string: {item}"))
        })
        .collect()
}
