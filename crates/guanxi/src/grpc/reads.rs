//! The service `Reads`: checks, tallies and hydrate.

use guanxi_api::check::CheckPair;
use guanxi_api::hydrate::{Hydrate, HydrateObject};
use guanxi_api::proto::reads_server::Reads;
use guanxi_api::proto::{
    CheckAnswer, CheckPairsAnswer, CheckPairsRequest, CheckRequest, CheckedPair, CheckedTarget,
    HydrateAnswer, HydrateManyAnswer, HydrateManyRequest, HydrateRequest, HydratedObject,
    KindTallies, NodeTallies, State, TalliesAnswer, TalliesRequest,
};
use guanxi_api::{Id, Name};
use guanxi_engine::{HydrateQuery, Hydrated};
use guanxi_model::Error;
use tonic::Request;

use super::{Answered, Call, Services, ids, owned};
use crate::calls::{Reading, check, hydrate, names, tallies};

#[tonic::async_trait]
impl Reads for Services {
    async fn check(&self, request: Request<CheckRequest>) -> Answered<CheckAnswer> {
        self.answer(request, check_targets).await
    }

    async fn check_pairs(&self, request: Request<CheckPairsRequest>) -> Answered<CheckPairsAnswer> {
        self.answer(request, check_pairs).await
    }

    async fn tallies(&self, request: Request<TalliesRequest>) -> Answered<TalliesAnswer> {
        self.answer(request, read_tallies).await
    }

    async fn hydrate(&self, request: Request<HydrateRequest>) -> Answered<HydrateAnswer> {
        self.answer(request, hydrate_one).await
    }

    async fn hydrate_many(
        &self,
        request: Request<HydrateManyRequest>,
    ) -> Answered<HydrateManyAnswer> {
        self.answer(request, hydrate_many).await
    }
}

async fn check_targets(call: Call, request: CheckRequest) -> Result<CheckAnswer, Error> {
    let source = Id::from_number(request.source, "source")?;
    let targets = ids(&request.targets, "targets")?;
    let caller = call.caller(&request.at_least);
    let (kinds, checked) =
        check::targets(&caller, source, &targets, &request.kinds, request.reverse).await?;
    let results = targets.iter().zip(&checked.answer).map(|(target, checked)| CheckedTarget {
        target: target.0,
        related: owned(names(&checked.related, &kinds)),
        pending: owned(names(&checked.pending, &kinds)),
        reverse: owned(names(&checked.reverse, &kinds)),
    });
    Ok(CheckAnswer { results: results.collect(), degraded: checked.degraded })
}

async fn check_pairs(call: Call, request: CheckPairsRequest) -> Result<CheckPairsAnswer, Error> {
    let mut pairs = Vec::with_capacity(request.pairs.len());
    for (index, pair) in request.pairs.iter().enumerate() {
        let id = |number, end| Id::from_number(number, &format!("pairs[{index}].{end}"));
        pairs.push(CheckPair {
            kind: Name::from(pair.kind.as_str()),
            source: id(pair.source, "source")?,
            target: id(pair.target, "target")?,
        });
    }
    let states = check::pairs(&call.caller(&request.at_least), &pairs).await?;
    let results = states.answer.into_iter().map(|state| CheckedPair {
        related: state == Some(guanxi_model::State::Live),
        state: state.map(|state| State::from(state).into()),
    });
    Ok(CheckPairsAnswer { results: results.collect(), degraded: states.degraded })
}

async fn read_tallies(call: Call, request: TalliesRequest) -> Result<TalliesAnswer, Error> {
    let ids = ids(&request.ids, "ids")?;
    let caller = call.caller(&request.at_least);
    let (kinds, found) = tallies::tallies(&caller, &ids, &request.kinds).await?;
    let results = ids.iter().zip(found.answer).map(|(id, found)| {
        let names = kinds.iter().map(|kind| kind.name.as_str().to_owned());
        let tallies = names.zip(found.into_iter().map(KindTallies::from));
        NodeTallies { id: id.0, tallies: tallies.collect() }
    });
    Ok(TalliesAnswer { results: results.collect(), degraded: found.degraded })
}

async fn hydrate_one(call: Call, request: HydrateRequest) -> Result<HydrateAnswer, Error> {
    let asked = [asked(&request, "")?];
    let hydrated = hydrate::hydrate(&call.caller(&request.at_least), &asked).await?;
    let Reading { answer, degraded } = hydrated;
    let mut answers = answer.iter().map(|(query, hydrated)| shown(query, hydrated));
    Ok(HydrateAnswer { degraded, ..answers.next().unwrap_or_default() })
}

async fn hydrate_many(call: Call, request: HydrateManyRequest) -> Result<HydrateManyAnswer, Error> {
    let mut requests = Vec::with_capacity(request.requests.len());
    for (index, one) in request.requests.iter().enumerate() {
        let at = format!("requests[{index}].");
        if one.at_least.is_some() {
            let message = format!("{at}at_least: it stands beside the requests, once for all");
            return Err(Error::invalid(message));
        }
        requests.push(asked(one, &at)?);
    }
    let hydrated = hydrate::hydrate(&call.caller(&request.at_least), &requests).await?;
    let Reading { answer, degraded } = hydrated;
    let results = answer.iter().map(|(query, hydrated)| shown(query, hydrated));
    Ok(HydrateManyAnswer { results: results.collect(), degraded })
}

/// What a message asks for; `at` stands before a field's name in an error.
fn asked<'a>(request: &'a HydrateRequest, at: &str) -> Result<Hydrate<'a>, Error> {
    let named = |names: &'a [String]| names.iter().map(|name| Name::from(name.as_str())).collect();
    let mut objects = Vec::with_capacity(request.objects.len());
    for (index, object) in request.objects.iter().enumerate() {
        let id = |number, end| Id::from_number(number, &format!("{at}objects[{index}].{end}"));
        objects.push(HydrateObject {
            id: id(object.id, "id")?,
            author: object.author.map(|author| id(author, "author")).transpose()?,
        });
    }
    Ok(Hydrate {
        viewer: Id::from_number(request.viewer, &format!("{at}viewer"))?,
        objects,
        kinds: named(&request.kinds),
        tallies: named(&request.tallies),
        reverse: Some(named(&request.reverse)),
        object_type: request.object_type.as_deref().map(Name::from),
        author_type: request.author_type.as_deref().map(Name::from),
    })
}

fn shown(query: &HydrateQuery, hydrated: &[Hydrated]) -> HydrateAnswer {
    let objects = query.objects.iter().zip(hydrated).map(|(object, hydrated)| {
        let counted = query.tallies.iter().map(|kind| kind.name.as_str().to_owned());
        HydratedObject {
            id: object.id,
            related: owned(names(&hydrated.related, &query.kinds)),
            pending: owned(names(&hydrated.pending, &query.kinds)),
            reverse: owned(names(&hydrated.reverse, &query.reverse)),
            tallies: counted.zip(hydrated.tallies.iter().copied()).collect(),
        }
    });
    HydrateAnswer { objects: objects.collect(), degraded: false }
}
