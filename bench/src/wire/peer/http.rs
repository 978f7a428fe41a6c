//! Guanxi, asked over HTTP/1.1 with JSON.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::wire::graph::{FOLLOW, Graph, KINDS, TALLIES};
use crate::wire::peer::guanxi::{Guanxi, HOST};
use crate::wire::peer::{Ending, Peer, by_id};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::http;
use crate::wire::question::{Answer, Feed, NEWEST_ITEMS, Question, Seen};

pub struct HttpPeer(pub Rc<Guanxi>);

impl HttpPeer {
    fn post(path: &str, body: &str, to: &mut Vec<u8>) {
        let length = body.len();
        to.extend_from_slice(
            format!(
                "POST {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: */*\r\n\
                 Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            )
            .as_bytes(),
        );
    }

    fn bare(method: &str, path: &str, to: &mut Vec<u8>) {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: */*\r\n\r\n");
        to.extend_from_slice(request.as_bytes());
    }
}

impl Peer for HttpPeer {
    fn name(&self) -> &'static str {
        "guanxi-http"
    }

    fn address(&self) -> SocketAddr {
        self.0.server.address()
    }

    fn pid(&self) -> u32 {
        self.0.server.pid()
    }

    fn end(self: Box<Self>, ending: Ending) -> anyhow::Result<()> {
        Guanxi::end(self.0, ending)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Http
    }

    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>) {
        let check = |(kind, source, target): (usize, u64, u64), to: &mut Vec<u8>| {
            Self::bare("GET", &format!("/v1/edges/{}/{source}/{target}", KINDS[kind]), to);
        };
        match question {
            Question::Hydrate(one) => Self::post("/v1/hydrate", &feed(graph, one, &TALLIES), to),
            Question::Related(one) => Self::post("/v1/hydrate", &feed(graph, one, &[]), to),
            Question::Many(feeds) => {
                let feeds: Vec<_> = feeds.iter().map(|one| feed(graph, one, &TALLIES)).collect();
                Self::post("/v1/hydrate", &format!("{{\"requests\":[{}]}}", feeds.join(",")), to);
            }
            Question::Checks(one) => {
                let pairs = one.checks().map(|check| {
                    let (kind, source, target) = by_id(graph, &check);
                    let kind = KINDS[kind];
                    format!(r#"{{"kind":"{kind}","source":"{source}","target":"{target}"}}"#)
                });
                let pairs: Vec<String> = pairs.collect();
                Self::post("/v1/check", &format!("{{\"pairs\":[{}]}}", pairs.join(",")), to);
            }
            Question::Check(one) => check(by_id(graph, one), to),
            Question::CheckById { kind, source, target } => check((*kind, *source, *target), to),
            Question::Tallies(posts) => {
                let ids = posts.iter().map(|post| format!("\"{}\"", graph.post_id(*post)));
                let ids: Vec<String> = ids.collect();
                let body = format!("{{\"ids\":[{}],\"kinds\":{}}}", ids.join(","), json!(TALLIES));
                Self::post("/v1/tallies", &body, to);
            }
            Question::Newest(user) => {
                let id = graph.user_id(*user);
                let path = format!("/v1/edges/follow/{id}/incoming?limit={NEWEST_ITEMS}");
                Self::bare("GET", &path, to);
            }
            Question::Follow { source, target } => {
                let path = format!("/v1/edges/{}/{source}/{target}", KINDS[FOLLOW]);
                let request = format!(
                    "PUT {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"
                );
                to.extend_from_slice(request.as_bytes());
            }
            Question::Empty => Self::bare("GET", "/healthz", to),
        }
    }

    fn read(&self, _: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer> {
        let parts = http::answer(answer)?.context("a whole answer")?;
        if let Question::Empty = question {
            return Ok(Answer::Empty);
        }
        let body: Value = serde_json::from_slice(parts.body)?;
        read(question, &body)
    }
}

fn feed(graph: &Graph, feed: &Feed, tallies: &[&str]) -> String {
    let objects = feed.objects.iter().map(|object| {
        let (post, author) = (graph.post_id(object.post), graph.user_id(object.author));
        format!(r#"{{"id":"{post}","author":"{author}"}}"#)
    });
    let objects: Vec<String> = objects.collect();
    let viewer = graph.user_id(feed.viewer);
    let mut body = format!(
        r#"{{"viewer":"{viewer}","objects":[{}],"kinds":{}"#,
        objects.join(","),
        json!(KINDS)
    );
    if !tallies.is_empty() {
        body.push_str(&format!(r#","tallies":{}"#, json!(tallies)));
    }
    body.push('}');
    body
}

fn read(question: &Question, body: &Value) -> anyhow::Result<Answer> {
    Ok(match question {
        Question::Hydrate(_) => Answer::Feeds(vec![seen(body)?]),
        Question::Many(_) => {
            let results = items(body, "results")?;
            Answer::Feeds(results.iter().map(seen).collect::<Result<_, _>>()?)
        }
        Question::Related(_) => {
            let objects = items(body, "objects")?;
            let has = |kind: &str, object: &Value| -> anyhow::Result<bool> {
                Ok(items(object, "related")?.iter().any(|related| related == kind))
            };
            let related = KINDS.iter().flat_map(|kind| objects.iter().map(|it| has(kind, it)));
            Answer::Related(related.collect::<Result<_, _>>()?)
        }
        Question::Checks(_) => {
            let results = items(body, "results")?.iter();
            Answer::Related(results.map(|result| result["related"] == true).collect())
        }
        Question::Check(_) | Question::CheckById { .. } => {
            anyhow::ensure!(body["related"].is_boolean(), "no check: {body}");
            Answer::Related(vec![body["related"] == true])
        }
        Question::Tallies(_) => {
            let results = items(body, "results")?.iter().map(|result| {
                let tallies = &result["tallies"];
                let tally = |kind: &str| number(&tallies[kind]["incoming"]);
                let counter = |kind: &str| number(&tallies[kind]["value"]);
                let [like, favorite, view, played] = TALLIES;
                Ok([tally(like)?, tally(favorite)?, counter(view)?, counter(played)?])
            });
            Answer::Tallies(results.collect::<anyhow::Result<_>>()?)
        }
        Question::Newest(_) => {
            let page = items(body, "items")?.iter().map(|item| {
                Ok((
                    item["id"].as_str().context("an id")?.parse()?,
                    guanxi_tests::parse_millis(&item["since"]),
                ))
            });
            Answer::Page(page.collect::<anyhow::Result<_>>()?)
        }
        Question::Follow { .. } => Answer::Changed(body["changed"] == true),
        Question::Empty => Answer::Empty,
    })
}

fn seen(body: &Value) -> anyhow::Result<Vec<Seen>> {
    let objects = items(body, "objects")?.iter().map(|object| {
        let related = items(object, "related")?;
        let mut tallies = [0; TALLIES.len()];
        for (tally, kind) in tallies.iter_mut().zip(TALLIES) {
            *tally = number(&object["tallies"][kind])?;
        }
        Ok(Seen { related: KINDS.map(|kind| related.iter().any(|it| it == kind)), tallies })
    });
    objects.collect()
}

fn items<'a>(body: &'a Value, name: &str) -> anyhow::Result<&'a Vec<Value>> {
    body[name].as_array().with_context(|| format!("no {name}: {body}"))
}

fn number(value: &Value) -> anyhow::Result<u64> {
    value.as_u64().with_context(|| format!("no number: {value}"))
}
