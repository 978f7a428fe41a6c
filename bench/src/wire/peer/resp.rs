//! Guanxi, asked over RESP as any client of Redis would; what is several commands is a pipeline.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::{Context as _, bail};

use crate::wire::graph::{FOLLOW, Graph, KINDS, TALLIES};
use crate::wire::peer::guanxi::Guanxi;
use crate::wire::peer::{Ending, Peer, by_id};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::resp::{self, Reply, command};
use crate::wire::question::{Answer, Check, Feed, NEWEST_ITEMS, OBJECTS, Question, Seen};

pub struct RespPeer {
    pub guanxi: Rc<Guanxi>,
    pub address: SocketAddr,
}

impl Peer for RespPeer {
    fn name(&self) -> &'static str {
        "guanxi-resp"
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn pid(&self) -> u32 {
        self.guanxi.server.pid()
    }

    fn end(self: Box<Self>, ending: Ending) -> anyhow::Result<()> {
        Guanxi::end(self.guanxi, ending)
    }

    fn protocol(&self) -> Protocol {
        Protocol::Resp
    }

    fn replies(&self, question: &Question) -> usize {
        match question {
            Question::Many(feeds) => feeds.len(),
            Question::Checks(_) => KINDS.len(),
            Question::Tallies(_) => TALLIES.len(),
            _ => 1,
        }
    }

    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>) {
        match question {
            Question::Hydrate(one) => feed(graph, one, &TALLIES, to),
            Question::Many(feeds) => feeds.iter().for_each(|one| feed(graph, one, &TALLIES, to)),
            Question::Related(one) => feed(graph, one, &[], to),
            Question::Checks(feed) => {
                let checks: Vec<Check> = feed.checks().collect();
                for checks in checks.chunks(OBJECTS) {
                    let source = graph.user_id(feed.viewer).to_string();
                    let mut words = words(["GX.CHECK", KINDS[checks[0].kind], &source]);
                    let targets = checks.iter().map(|it| graph.target_id(it.kind, it.target));
                    words.extend(targets.map(|target| target.to_string()));
                    command(&words, to);
                }
            }
            Question::Check(one) => check(by_id(graph, one), to),
            Question::CheckById { kind, source, target } => check((*kind, *source, *target), to),
            Question::Tallies(posts) => {
                for kind in TALLIES {
                    let mut words = words(["GX.TALLY", kind]);
                    words.extend(posts.iter().map(|post| graph.post_id(*post).to_string()));
                    command(&words, to);
                }
            }
            Question::Newest(user) => {
                let (id, limit) = (graph.user_id(*user).to_string(), NEWEST_ITEMS.to_string());
                command(["GX.LIST", KINDS[FOLLOW], &id, "INCOMING", "LIMIT", &limit], to);
            }
            Question::Follow { source, target } => {
                let (source, target) = (source.to_string(), target.to_string());
                command(["GX.PUT", KINDS[FOLLOW], &source, &target], to);
            }
            Question::Empty => command(["PING"], to),
        }
    }

    fn read(&self, _: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer> {
        let replies = resp::replies(answer, self.replies(question))?;
        let first = replies.first().context("a reply")?;
        Ok(match question {
            Question::Hydrate(_) | Question::Many(_) => {
                Answer::Feeds(replies.iter().map(seen).collect::<Result<_, _>>()?)
            }
            Question::Related(_) => {
                let objects = many(first)?;
                let kinds = KINDS
                    .iter()
                    .flat_map(|kind| objects.iter().map(move |object| has(part(object, 0)?, kind)));
                Answer::Related(kinds.collect::<Result<_, _>>()?)
            }
            Question::Checks(_) | Question::Check(_) | Question::CheckById { .. } => {
                let replies = replies.iter().map(many).collect::<Result<Vec<_>, _>>()?;
                Answer::Related(replies.concat().iter().map(is_true).collect())
            }
            Question::Tallies(_) => {
                let mut tallies = vec![[0; TALLIES.len()]; OBJECTS];
                for (kind, reply) in replies.iter().enumerate() {
                    for (tallies, numbers) in tallies.iter_mut().zip(many(reply)?) {
                        tallies[kind] = number(
                            field(numbers, "incoming").or_else(|_| field(numbers, "value"))?,
                        )?;
                    }
                }
                Answer::Tallies(tallies)
            }
            Question::Newest(_) => {
                let items = many(field(first, "items")?)?.iter().map(|item| {
                    let since = serde_json::Value::from(text(part(item, 2)?)?);
                    Ok((text(part(item, 0)?)?.parse()?, guanxi_tests::parse_millis(&since)))
                });
                Answer::Page(items.collect::<anyhow::Result<_>>()?)
            }
            Question::Follow { .. } => Answer::Changed(is_true(field(first, "changed")?)),
            Question::Empty => Answer::Empty,
        })
    }
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn check((kind, source, target): (usize, u64, u64), to: &mut Vec<u8>) {
    command(["GX.CHECK", KINDS[kind], &source.to_string(), &target.to_string()], to);
}

fn feed(graph: &Graph, feed: &Feed, tallies: &[&str], to: &mut Vec<u8>) {
    let mut words = words(["GX.HYDRATE", &graph.user_id(feed.viewer).to_string(), "KINDS"]);
    let mut list = |name: Option<&str>, names: &[String]| {
        words.extend(name.map(str::to_owned));
        words.push(names.len().to_string());
        words.extend_from_slice(names);
    };
    list(None, &KINDS.map(str::to_owned));
    if !tallies.is_empty() {
        let tallies: Vec<String> = tallies.iter().map(|name| (*name).to_owned()).collect();
        list(Some("TALLIES"), &tallies);
    }
    let objects = feed
        .objects
        .each_ref()
        .map(|object| format!("{}:{}", graph.post_id(object.post), graph.user_id(object.author)));
    list(Some("OBJECTS"), &objects);
    command(&words, to);
}

/// Of each object: whether it is related, what is pending, its tallies.
fn seen(reply: &Reply) -> anyhow::Result<Vec<Seen>> {
    let objects = many(reply)?.iter().map(|object| {
        let mut related = [false; KINDS.len()];
        for (related, kind) in related.iter_mut().zip(KINDS) {
            *related = has(part(object, 0)?, kind)?;
        }
        let mut tallies = [0; TALLIES.len()];
        for (tally, value) in tallies.iter_mut().zip(many(part(object, 2)?)?) {
            *tally = number(value)?;
        }
        Ok(Seen { related, tallies })
    });
    objects.collect()
}

fn many(reply: &Reply) -> anyhow::Result<&[Reply]> {
    match reply {
        Reply::Many(items) => Ok(items),
        other => bail!("no list: {other:?}"),
    }
}

fn part(reply: &Reply, place: usize) -> anyhow::Result<&Reply> {
    many(reply)?.get(place).with_context(|| format!("nothing at {place}"))
}

fn field<'a>(reply: &'a Reply, name: &str) -> anyhow::Result<&'a Reply> {
    let mut pairs = many(reply)?.chunks_exact(2);
    let pair = pairs.find(|pair| matches!(&pair[0], Reply::Text(text) if text == name.as_bytes()));
    Ok(&pair.with_context(|| format!("no {name}"))?[1])
}

fn has(names: &Reply, name: &str) -> anyhow::Result<bool> {
    let is = |reply: &Reply| matches!(reply, Reply::Text(text) if text == name.as_bytes());
    Ok(many(names)?.iter().any(is))
}

fn is_true(reply: &Reply) -> bool {
    *reply == Reply::Number(1)
}

fn number(reply: &Reply) -> anyhow::Result<u64> {
    match reply {
        Reply::Number(number) => Ok(u64::try_from(*number)?),
        other => bail!("no number: {other:?}"),
    }
}

fn text(reply: &Reply) -> anyhow::Result<&str> {
    match reply {
        Reply::Text(text) => Ok(std::str::from_utf8(text)?),
        other => bail!("no text: {other:?}"),
    }
}
