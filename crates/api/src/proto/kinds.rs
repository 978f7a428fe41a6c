//! Kinds as messages: shown, created and changed.

use guanxi_model::Error;
use guanxi_model::change::Field;

use super::{
    ChangeKindRequest, CreateKindRequest, Kind, KindAnswer, ListKindsAnswer, OnOverload, all_owned,
    owned,
};
use crate::kinds::{
    ChangeKind, KindAmendment, KindChanged, KindCreation, KindView, Kinds, WireOnOverload,
};
use crate::name::Name;

impl From<KindView> for Kind {
    fn from(view: KindView) -> Kind {
        Kind {
            name: owned(view.name),
            id: view.id.into(),
            source_type: view.source_type.map(owned),
            target_type: owned(view.target_type),
            counter: view.counter,
            reconciled: view.reconciled,
            owner_type: view.owner_type.map(owned),
            outgoing_list: view.outgoing_list,
            incoming_list: view.incoming_list,
            outgoing_tally: view.outgoing_tally,
            incoming_tally: view.incoming_tally,
            self_allowed: view.self_allowed,
            outgoing_max: view.outgoing_max,
            groups_max: view.groups_max,
            approval: view.approval,
            data_bytes_max: view.data_bytes_max,
            excludes: all_owned(view.excludes),
            expires: view.expires,
            list_depth_max: view.list_depth_max,
            on_overload: OnOverload::from(view.on_overload).into(),
        }
    }
}

impl From<Kinds> for ListKindsAnswer {
    fn from(kinds: Kinds) -> ListKindsAnswer {
        ListKindsAnswer { kinds: kinds.kinds.into_iter().map(Kind::from).collect() }
    }
}

impl From<KindChanged> for KindAnswer {
    fn from(changed: KindChanged) -> KindAnswer {
        KindAnswer { kind: Some(changed.kind.into()), token: owned(changed.token) }
    }
}

impl From<WireOnOverload> for OnOverload {
    fn from(rule: WireOnOverload) -> OnOverload {
        match rule {
            WireOnOverload::Refuse => OnOverload::Refuse,
            WireOnOverload::AnswerDefault => OnOverload::AnswerDefault,
        }
    }
}

/// The rule that a number stands for, where one is given.
fn rule(number: Option<i32>) -> Result<Option<WireOnOverload>, Error> {
    match number.map(OnOverload::try_from) {
        None => Ok(None),
        Some(Ok(OnOverload::Refuse)) => Ok(Some(WireOnOverload::Refuse)),
        Some(Ok(OnOverload::AnswerDefault)) => Ok(Some(WireOnOverload::AnswerDefault)),
        Some(Ok(OnOverload::Unspecified) | Err(_)) => Err(Error::invalid(
            "on_overload: it is ON_OVERLOAD_REFUSE or ON_OVERLOAD_ANSWER_DEFAULT, or absent",
        )),
    }
}

impl TryFrom<CreateKindRequest> for KindCreation {
    type Error = Error;

    fn try_from(request: CreateKindRequest) -> Result<KindCreation, Error> {
        Ok(KindCreation {
            name: request.name,
            source_type: request.source_type,
            target_type: request.target_type,
            counter: request.counter,
            reconciled: request.reconciled,
            owner_type: request.owner_type,
            outgoing_list: request.outgoing_list,
            incoming_list: request.incoming_list,
            outgoing_tally: request.outgoing_tally,
            incoming_tally: request.incoming_tally,
            self_allowed: request.self_allowed,
            outgoing_max: request.outgoing_max,
            groups_max: request.groups_max,
            approval: request.approval,
            data_bytes_max: request.data_bytes_max,
            excludes: request.excludes,
            expires: request.expires,
            list_depth_max: request.list_depth_max,
            on_overload: rule(request.on_overload)?.unwrap_or_default(),
        })
    }
}

impl TryFrom<ChangeKindRequest> for ChangeKind<'static> {
    type Error = Error;

    fn try_from(request: ChangeKindRequest) -> Result<Self, Error> {
        let outgoing_max = match (request.outgoing_max, request.no_outgoing_max) {
            (None, false) => Field::Keep,
            (None, true) => Field::Clear,
            (Some(max), false) => Field::Set(max),
            (Some(_), true) => {
                return Err(Error::invalid(
                    "no_outgoing_max: it takes the limit away, so outgoing_max cannot be given too",
                ));
            }
        };
        let amendment = KindAmendment {
            self_allowed: request.self_allowed,
            outgoing_max,
            groups_max: request.groups_max,
            approval: request.approval,
            data_bytes_max: request.data_bytes_max,
            excludes: request.excludes.map(|excludes| excludes.names),
            expires: request.expires,
            list_depth_max: request.list_depth_max,
            on_overload: rule(request.on_overload)?,
        };
        Ok(ChangeKind { name: Name::from(request.name), amendment })
    }
}
