//! Checks, tallies and hydrate, between messages and what JSON has for them.

use guanxi_model::Error;

use super::{
    CheckAnswer, CheckPairsAnswer, CheckPairsRequest, CheckRequest, CheckedPair, CheckedTarget,
    HydrateAnswer, HydrateManyAnswer, HydrateManyRequest, HydrateRequest, HydratedObject,
    KindTallies, NodeTallies, State, TalliesAnswer, TalliesRequest, all_owned, ids, owned,
};
use crate::check::{CheckPair, CheckPairs, CheckTargets, Checks, PairChecked, TargetChecked};
use crate::hydrate::{self, Hydrate, HydrateMany, HydrateObject, HydratedMany, HydratedObjects};
use crate::id::Id;
use crate::name::Name;
use crate::tallies;

fn names(names: Vec<String>) -> Vec<Name<'static>> {
    names.into_iter().map(Name::from).collect()
}

impl TryFrom<CheckRequest> for CheckTargets<'static> {
    type Error = Error;

    fn try_from(request: CheckRequest) -> Result<Self, Error> {
        Ok(CheckTargets {
            source: Id::from_number(request.source, "source")?,
            targets: ids(&request.targets, "targets")?,
            kinds: names(request.kinds),
            reverse: request.reverse,
        })
    }
}

impl From<Checks<TargetChecked>> for CheckAnswer {
    fn from(checks: Checks<TargetChecked>) -> CheckAnswer {
        let results = checks.results.into_iter().map(|checked| CheckedTarget {
            target: checked.target.0,
            related: all_owned(checked.related),
            pending: all_owned(checked.pending),
            reverse: all_owned(checked.reverse.unwrap_or_default()),
        });
        CheckAnswer { results: results.collect(), degraded: checks.degraded }
    }
}

impl TryFrom<CheckPairsRequest> for CheckPairs<'static> {
    type Error = Error;

    fn try_from(request: CheckPairsRequest) -> Result<Self, Error> {
        let mut pairs = Vec::with_capacity(request.pairs.len());
        for (index, pair) in request.pairs.into_iter().enumerate() {
            let id = |number, end| Id::from_number(number, &format!("pairs[{index}].{end}"));
            let (source, target) = (id(pair.source, "source")?, id(pair.target, "target")?);
            pairs.push(CheckPair { kind: Name::from(pair.kind), source, target });
        }
        Ok(CheckPairs { pairs })
    }
}

impl From<Checks<PairChecked>> for CheckPairsAnswer {
    fn from(checks: Checks<PairChecked>) -> CheckPairsAnswer {
        let results = checks.results.into_iter().map(|checked| CheckedPair {
            related: checked.related,
            state: checked.state.map(|state| State::from(state).into()),
        });
        CheckPairsAnswer { results: results.collect(), degraded: checks.degraded }
    }
}

impl TryFrom<TalliesRequest> for tallies::TalliesRequest<'static> {
    type Error = Error;

    fn try_from(request: TalliesRequest) -> Result<Self, Error> {
        let ids = ids(&request.ids, "ids")?;
        Ok(tallies::TalliesRequest { ids, kinds: names(request.kinds) })
    }
}

impl From<tallies::TalliesAnswer> for TalliesAnswer {
    fn from(answer: tallies::TalliesAnswer) -> TalliesAnswer {
        let results = answer.results.into_iter().map(|of| {
            let by_kind = of.tallies.0.into_iter();
            let by_kind = by_kind.map(|(kind, tallies)| (owned(kind), KindTallies::from(tallies)));
            NodeTallies { id: of.id.0, tallies: by_kind.collect() }
        });
        TalliesAnswer { results: results.collect(), degraded: answer.degraded }
    }
}

impl From<tallies::KindTallies> for KindTallies {
    fn from(tallies: tallies::KindTallies) -> KindTallies {
        KindTallies {
            outgoing: tallies.outgoing,
            incoming: tallies.incoming,
            pending_outgoing: tallies.pending_outgoing,
            pending_incoming: tallies.pending_incoming,
            owned: tallies.owned,
            value: tallies.value,
        }
    }
}

impl TryFrom<HydrateRequest> for Hydrate<'static> {
    type Error = Error;

    fn try_from(request: HydrateRequest) -> Result<Self, Error> {
        hydrate_at(request, "")
    }
}

impl TryFrom<HydrateManyRequest> for HydrateMany<'static> {
    type Error = Error;

    fn try_from(request: HydrateManyRequest) -> Result<Self, Error> {
        let mut requests = Vec::with_capacity(request.requests.len());
        for (index, one) in request.requests.into_iter().enumerate() {
            let at = format!("requests[{index}].");
            if one.at_least.is_some() {
                let message = format!("{at}at_least: it stands beside the requests, once for all");
                return Err(Error::invalid(message));
            }
            requests.push(hydrate_at(one, &at)?);
        }
        Ok(HydrateMany { requests })
    }
}

/// What a message asks for; `at` stands before a field's name in an error.
fn hydrate_at(request: HydrateRequest, at: &str) -> Result<Hydrate<'static>, Error> {
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
        kinds: names(request.kinds),
        tallies: names(request.tallies),
        reverse: Some(names(request.reverse)),
        object_type: request.object_type.map(Name::from),
        author_type: request.author_type.map(Name::from),
    })
}

impl From<HydratedObjects> for HydrateAnswer {
    fn from(answer: HydratedObjects) -> HydrateAnswer {
        let objects = answer.objects.into_iter().map(HydratedObject::from);
        HydrateAnswer { objects: objects.collect(), degraded: answer.degraded }
    }
}

impl From<hydrate::HydratedObject> for HydratedObject {
    fn from(object: hydrate::HydratedObject) -> HydratedObject {
        let names = object.tallies.names.iter().map(|name| name.as_ref().to_owned());
        HydratedObject {
            id: object.id.0,
            related: all_owned(object.related),
            pending: all_owned(object.pending),
            reverse: all_owned(object.reverse.unwrap_or_default()),
            tallies: names.zip(object.tallies.values).collect(),
        }
    }
}

impl From<HydratedMany> for HydrateManyAnswer {
    fn from(answer: HydratedMany) -> HydrateManyAnswer {
        let results = answer.results.into_iter().map(HydrateAnswer::from);
        HydrateManyAnswer { results: results.collect(), degraded: answer.degraded }
    }
}
