//! Puts, changes of a batch and their answers, between messages and what JSON has for them.

use guanxi_model::answer::EdgeAnswer;
use guanxi_model::change::Field;
use guanxi_model::{Error, GroupName};
use prost_types::Timestamp;

use super::{ChangedEdge, EdgeChange, EdgeField, PutEdgeRequest, State, edge_change, timestamp};
use crate::edges::{BatchChange, Op, PutBody};
use crate::id::Id;
use crate::name::{Name, WireGroupName};

/// The fields of a put as a message has them. They stand in two messages.
struct Fields {
    group: Option<String>,
    owner: Option<u64>,
    data: Option<String>,
    expires_at: Option<Timestamp>,
    clear: Vec<i32>,
    approval: bool,
}

impl Fields {
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

impl PutEdgeRequest {
    /// What the put says beside the edge itself.
    pub fn into_body(self) -> Result<PutBody, Error> {
        let fields = Fields {
            group: self.group,
            owner: self.owner,
            data: self.data,
            expires_at: self.expires_at,
            clear: self.clear,
            approval: self.approval,
        };
        fields.into_body("")
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
        let fields = Fields {
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

impl ChangedEdge {
    pub fn new(answer: &EdgeAnswer, token: &str) -> ChangedEdge {
        ChangedEdge {
            changed: answer.changed,
            state: State::from(answer.state).into(),
            since: answer.since.map(timestamp),
            version: answer.version.map(|version| version.0),
            token: token.to_owned(),
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
            PutEdgeRequest { group, clear, ..PutEdgeRequest::default() }.into_body()
        };
        let group = |body: Result<PutBody, Error>| body.map(|body| body.group).unwrap();
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
