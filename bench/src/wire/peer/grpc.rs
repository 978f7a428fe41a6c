//! Guanxi, asked over gRPC.

use std::net::SocketAddr;
use std::rc::Rc;

use anyhow::Context as _;
use guanxi_tests::grpc::proto;
use prost::Message;

use crate::wire::graph::{FOLLOW, Graph, KINDS, TALLIES};
use crate::wire::peer::guanxi::Guanxi;
use crate::wire::peer::{Ending, Peer, by_id};
use crate::wire::protocol::Protocol;
use crate::wire::protocol::grpc;
use crate::wire::question::{Answer, Feed, NEWEST_ITEMS, Question, Seen};

pub struct GrpcPeer(pub Rc<Guanxi>);

impl Peer for GrpcPeer {
    fn name(&self) -> &'static str {
        "guanxi-grpc"
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
        Protocol::Grpc
    }

    fn write(&self, graph: &Graph, question: &Question, to: &mut Vec<u8>) {
        let mut call = |path: &str, message: &[u8]| {
            grpc::call(&format!("/guanxi.v1.{path}"), message, to);
        };
        let get = |(kind, source, target): (usize, u64, u64)| {
            guanxi_tests::grpc::get_request(KINDS[kind], source, target).encode_to_vec()
        };
        match question {
            Question::Hydrate(one) => {
                call("Reads/Hydrate", &feed(graph, one, &TALLIES).encode_to_vec());
            }
            Question::Related(one) => {
                call("Reads/Hydrate", &feed(graph, one, &[]).encode_to_vec());
            }
            Question::Many(feeds) => {
                let requests = feeds.iter().map(|one| feed(graph, one, &TALLIES)).collect();
                let many = proto::HydrateManyRequest { requests, at_least: None };
                call("Reads/HydrateMany", &many.encode_to_vec());
            }
            Question::Checks(feed) => {
                let pairs = feed.checks().map(|check| {
                    let (kind, source, target) = by_id(graph, &check);
                    proto::CheckPair { kind: KINDS[kind].to_owned(), source, target }
                });
                let pairs = proto::CheckPairsRequest { pairs: pairs.collect(), at_least: None };
                call("Reads/CheckPairs", &pairs.encode_to_vec());
            }
            Question::Check(one) => call("Edges/Get", &get(by_id(graph, one))),
            Question::CheckById { kind, source, target } => {
                call("Edges/Get", &get((*kind, *source, *target)));
            }
            Question::Tallies(posts) => {
                let ids = posts.iter().map(|post| graph.post_id(*post)).collect();
                let kinds = TALLIES.map(str::to_owned).to_vec();
                let asked = proto::TalliesRequest { ids, kinds, at_least: None };
                call("Reads/Tallies", &asked.encode_to_vec());
            }
            Question::Newest(user) => {
                let asked = proto::ListIncomingRequest {
                    kind: KINDS[FOLLOW].to_owned(),
                    id: graph.user_id(*user),
                    limit: Some(NEWEST_ITEMS as u32),
                    ..Default::default()
                };
                call("Lists/Incoming", &asked.encode_to_vec());
            }
            Question::Follow { source, target } => {
                let put = guanxi_tests::grpc::put_request(KINDS[FOLLOW], *source, *target);
                call("Edges/Put", &put.encode_to_vec());
            }
            Question::Empty => grpc::call("/grpc.health.v1.Health/Check", &[], to),
        }
    }

    fn read(&self, _: &Graph, question: &Question, answer: &[u8]) -> anyhow::Result<Answer> {
        let message = grpc::message(answer)?;
        let bytes = message.as_slice();
        Ok(match question {
            Question::Hydrate(_) => {
                Answer::Feeds(vec![seen(&proto::HydrateAnswer::decode(bytes)?)?])
            }
            Question::Many(_) => {
                let answer = proto::HydrateManyAnswer::decode(bytes)?;
                Answer::Feeds(answer.results.iter().map(seen).collect::<Result<_, _>>()?)
            }
            Question::Related(_) => {
                let objects = proto::HydrateAnswer::decode(bytes)?.objects;
                let has =
                    |kind: &str, it: &proto::HydratedObject| it.related.iter().any(|it| it == kind);
                let related = KINDS.iter().flat_map(|kind| objects.iter().map(|it| has(kind, it)));
                Answer::Related(related.collect())
            }
            Question::Checks(_) => {
                let answer = proto::CheckPairsAnswer::decode(bytes)?;
                Answer::Related(answer.results.iter().map(|result| result.related).collect())
            }
            Question::Check(_) | Question::CheckById { .. } => {
                Answer::Related(vec![proto::Edge::decode(bytes)?.related])
            }
            Question::Tallies(_) => {
                let answer = proto::TalliesAnswer::decode(bytes)?;
                let results = answer.results.iter().map(|node| {
                    let mut tallies = [0; TALLIES.len()];
                    for (tally, kind) in tallies.iter_mut().zip(TALLIES) {
                        let numbers = node.tallies.get(kind).context("a tally")?;
                        let number = numbers.incoming.or(numbers.value).context("a number")?;
                        *tally = u64::try_from(number)?;
                    }
                    Ok(tallies)
                });
                Answer::Tallies(results.collect::<anyhow::Result<_>>()?)
            }
            Question::Newest(_) => {
                let page = proto::ListPage::decode(bytes)?;
                let items = page.items.iter().map(|item| {
                    let since = item.since.as_ref().context("a time")?;
                    let ms = since.seconds * 1_000 + i64::from(since.nanos) / 1_000_000;
                    Ok((item.id, u64::try_from(ms)?))
                });
                Answer::Page(items.collect::<anyhow::Result<_>>()?)
            }
            Question::Follow { .. } => Answer::Changed(proto::ChangedEdge::decode(bytes)?.changed),
            Question::Empty => Answer::Empty,
        })
    }
}

fn feed(graph: &Graph, feed: &Feed, tallies: &[&str]) -> proto::HydrateRequest {
    let objects = feed.objects.iter().map(|object| proto::HydrateObject {
        id: graph.post_id(object.post),
        author: Some(graph.user_id(object.author)),
    });
    proto::HydrateRequest {
        viewer: graph.user_id(feed.viewer),
        objects: objects.collect(),
        kinds: KINDS.map(str::to_owned).to_vec(),
        tallies: tallies.iter().map(|kind| (*kind).to_owned()).collect(),
        ..Default::default()
    }
}

fn seen(answer: &proto::HydrateAnswer) -> anyhow::Result<Vec<Seen>> {
    let objects = answer.objects.iter().map(|object| {
        let mut tallies = [0; TALLIES.len()];
        for (tally, kind) in tallies.iter_mut().zip(TALLIES) {
            *tally = u64::try_from(*object.tallies.get(kind).context("a tally")?)?;
        }
        let related = KINDS.map(|kind| object.related.iter().any(|it| it == kind));
        Ok(Seen { related, tallies })
    });
    objects.collect()
}
