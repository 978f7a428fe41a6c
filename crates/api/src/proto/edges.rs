//! Puts, changes of a batch and their answers, between messages and what JSON has for them.

use guanxi_model::change::Field;
use guanxi_model::{Error, GroupName};
use prost_types::Timestamp;

use super::{
    ApproveEdgeRequest, BatchEdgesAnswer, BatchEdgesRequest, ChangedEdge, DeclineEdgeRequest,
    DeleteEdgeRequest, Edge, EdgeChange, EdgeField, EdgeResult, GetEdgeRequest, Problem,
    PutEdgeRequest, ReverseEdge, State, edge_change, edge_result, timestamp,
};
use crate::edges::{
    self, BatchChange, BatchRequest, ChangeResult, Changed, DeleteEdge, EdgeName, Op, PutBody,
    PutEdge, Results,
};
use crate::id::Id;
use crate::name::{Name, WireGroupName};
use crate::time::Time;

/// The fields of a put as a message has them. They stand in two messages.
struct PutFields {
    group: Option<String>,
    owner: Option<u64>,
    data: Option<String>,
    expires_at: Option<Timestamp>,
    clear: Vec<i32>,
    approval: bool,
}

impl PutFields {
    /// `at` stands before a field's name in an error.
    fn into_body(self, at: &str) -> Result<PutBody, Error> {
        let mut cleared = Vec::with_capacity(self.clear.len());
        for number in self.clear {
            match EdgeField::try_from(number) {
                Ok(EdgeField::Unspecified) | Err(_) => {
                    return Err(Error::invalid(format!("{at}clear: {number} is no field")));
                }
                Ok(field) => cleared.push(field),
            }
        }
        let clears = |field| cleared.contains(&field);
        let group = match self.group {
            Some(name) => {
                let wrong = |error: Error| Error::invalid(format!("{at}group: {}", error.message));
                Some(WireGroupName(GroupName::new(&name).map_err(wrong)?))
            }
            None => None,
        };
        let owner = match self.owner {
            Some(number) => Some(Id::from_number(number, &format!("{at}owner"))?),
            None => None,
        };
        let expires_at = match &self.expires_at {
            Some(time) => Some(super::read_time(time, &format!("{at}expires_at"))?),
            None => None,
        };
        Ok(PutBody {
            group: wish(group, clears(EdgeField::Group), at, "group")?,
            owner: wish(owner, clears(EdgeField::Owner), at, "owner")?,
            data: wish(self.data.map(String::into), clears(EdgeField::Data), at, "data")?,
            expires_at: wish(expires_at, clears(EdgeField::ExpiresAt), at, "expires_at")?,
            approval: self.approval,
        })
    }
}

/// Keep, set or clear, where a message has a value and a list of what to clear.
fn wish<T>(value: Option<T>, clear: bool, at: &str, name: &str) -> Result<Field<T>, Error> {
    match (value, clear) {
        (None, false) => Ok(Field::Keep),
        (None, true) => Ok(Field::Clear),
        (Some(value), false) => Ok(Field::Set(value)),
        (Some(_), true) => {
            Err(Error::invalid(format!("{at}{name}: it is both given and to be cleared")))
        }
    }
}

/// The edge that a message is about.
pub(super) fn edge_name(
    kind: String,
    source: u64,
    target: u64,
) -> Result<EdgeName<'static>, Error> {
    Ok(EdgeName {
        kind: Name::from(kind),
        source: Id::from_number(source, "source")?,
        target: Id::from_number(target, "target")?,
    })
}

impl TryFrom<PutEdgeRequest> for PutEdge<'static> {
    type Error = Error;

    fn try_from(request: PutEdgeRequest) -> Result<Self, Error> {
        let fields = PutFields {
            group: request.group,
            owner: request.owner,
            data: request.data,
            expires_at: request.expires_at,
            clear: request.clear,
            approval: request.approval,
        };
        Ok(PutEdge {
            edge: edge_name(request.kind, request.source, request.target)?,
            strict: request.strict,
            fields: fields.into_body("")?,
        })
    }
}

impl TryFrom<DeleteEdgeRequest> for DeleteEdge<'static> {
    type Error = Error;

    fn try_from(request: DeleteEdgeRequest) -> Result<Self, Error> {
        let edge = edge_name(request.kind, request.source, request.target)?;
        Ok(DeleteEdge { edge, strict: request.strict })
    }
}

/// Messages that name an edge and say no more.
macro_rules! named {
    ($($message:ident),*) => {$(
        impl TryFrom<$message> for EdgeName<'static> {
            type Error = Error;

            fn try_from(request: $message) -> Result<Self, Error> {
                edge_name(request.kind, request.source, request.target)
            }
        }
    )*};
}

named!(GetEdgeRequest, ApproveEdgeRequest, DeclineEdgeRequest);

impl TryFrom<BatchEdgesRequest> for BatchRequest<'static> {
    type Error = Error;

    fn try_from(request: BatchEdgesRequest) -> Result<Self, Error> {
        let changes = request.changes.into_iter().enumerate();
        let changes = changes.map(|(index, change)| change.into_change(index));
        Ok(BatchRequest { changes: changes.collect::<Result<_, Error>>()? })
    }
}

impl EdgeChange {
    /// The change at this place of a batch.
    pub fn into_change(self, index: usize) -> Result<BatchChange<'static>, Error> {
        let at = format!("changes[{index}].");
        let op = match edge_change::Op::try_from(self.op) {
            Ok(edge_change::Op::Put) => Op::Put,
            Ok(edge_change::Op::Delete) => Op::Delete,
            Ok(edge_change::Op::Approve) => Op::Approve,
            Ok(edge_change::Op::Decline) => Op::Decline,
            Ok(edge_change::Op::Unspecified) | Err(_) => {
                return Err(Error::invalid(format!(
                    "{at}op: it is put, delete, approve or decline"
                )));
            }
        };
        let fields = PutFields {
            group: self.group,
            owner: self.owner,
            data: self.data,
            expires_at: self.expires_at,
            clear: self.clear,
            approval: self.approval,
        };
        let body = fields.into_body(&at)?;
        Ok(BatchChange {
            op,
            kind: Name::from(self.kind),
            source: Id::from_number(self.source, &format!("{at}source"))?,
            target: Id::from_number(self.target, &format!("{at}target"))?,
            strict: self.strict.then_some(true),
            group: body.group,
            owner: body.owner,
            data: body.data,
            expires_at: body.expires_at,
            approval: body.approval.then_some(true),
        })
    }
}

impl From<Changed> for ChangedEdge {
    fn from(changed: Changed) -> ChangedEdge {
        ChangedEdge {
            changed: changed.changed,
            state: State::from(changed.state).into(),
            since: changed.since.map(|Time(since)| timestamp(since)),
            version: changed.version.map(|version| version.0),
            token: changed.token.as_ref().to_owned(),
        }
    }
}

impl From<edges::Edge> for Edge {
    fn from(edge: edges::Edge) -> Edge {
        Edge {
            related: edge.related,
            state: edge.state.map(|state| State::from(state).into()),
            since: edge.since.map(|Time(since)| timestamp(since)),
            group: edge.group.map(|WireGroupName(name)| name.as_str().to_owned()),
            owner: edge.owner.map(|owner| owner.0),
            data: edge.data.map(String::from),
            version: edge.version.map(|version| version.0),
            expires_at: edge.expires_at.map(|Time(at)| timestamp(at)),
            mutual: edge.mutual,
            reverse: edge.reverse.map(|back| ReverseEdge {
                related: back.related,
                state: back.state.map(|state| State::from(state).into()),
                since: back.since.map(|Time(since)| timestamp(since)),
            }),
            degraded: edge.degraded,
        }
    }
}

impl From<Results<Changed>> for BatchEdgesAnswer {
    fn from(answer: Results<Changed>) -> BatchEdgesAnswer {
        let results = answer.results.into_iter().map(|result| match result {
            ChangeResult::Done(changed) => edge_result::Result::Changed(changed.into()),
            ChangeResult::Refused { error } => edge_result::Result::Error(Problem::from(error)),
        });
        BatchEdgesAnswer {
            results: results.map(|result| EdgeResult { result: Some(result) }).collect(),
            token: answer.token.as_ref().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_kept_set_or_cleared() {
        let body = |group: Option<&str>, clear: &[EdgeField]| {
            let group = group.map(str::to_owned);
            let clear = clear.iter().map(|field| i32::from(*field)).collect();
            let (kind, source, target) = ("follow".to_owned(), 1, 2);
            let rest = PutEdgeRequest::default();
            PutEdge::try_from(PutEdgeRequest { kind, source, target, group, clear, ..rest })
        };
        let group = |put: Result<PutEdge<'_>, Error>| put.map(|put| put.fields.group).unwrap();
        assert_eq!(group(body(None, &[])), Field::Keep);
        assert_eq!(group(body(None, &[EdgeField::Group])), Field::Clear);
        assert!(matches!(group(body(Some("g"), &[EdgeField::Owner])), Field::Set(_)));
        for (wrong, named) in [
            (body(Some("g"), &[EdgeField::Group]), "group: "),
            (body(Some("a/b"), &[]), "group: "),
            (body(None, &[EdgeField::Unspecified]), "clear: 0 "),
        ] {
            let message = wrong.unwrap_err().message;
            assert!(message.starts_with(named), "{message}");
        }
    }

    #[test]
    fn a_change_of_a_batch_names_its_place() {
        let good = EdgeChange { op: 2, source: 1, target: 2, ..EdgeChange::default() };
        let read = |change: EdgeChange| change.into_change(3)?.check(3);
        assert_eq!(read(good.clone()), Ok(()));
        for (wrong, named) in [
            (EdgeChange { op: 0, ..good.clone() }, "changes[3].op: "),
            (EdgeChange { op: 9, ..good.clone() }, "changes[3].op: "),
            (EdgeChange { source: 0, ..good.clone() }, "changes[3].source: "),
            (EdgeChange { group: Some("g".into()), ..good.clone() }, "changes[3].group: "),
            (EdgeChange { op: 3, strict: true, ..good }, "changes[3].strict: "),
        ] {
            let message = read(wrong).unwrap_err().message;
            assert!(message.starts_with(named), "{message}");
        }
    }
}
