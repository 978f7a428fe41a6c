//! Kinds: the declared relations and their rules. Some rules are fixed when a kind is created,
//! because rows and tallies were written by them; the others may change at any time.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::limits::{
    DATA_BYTES_MAX, EXCLUDES_MAX, GROUPS_PER_SOURCE_MAX, KIND_NAME_BYTES_MAX, OUTGOING_SORTED_MAX,
};
use crate::node::NodeTypeId;

/// Given out once per tenant and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(pub u16);

/// `[a-z][a-z0-9_.]{0,31}`; node types are named alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindName(Arc<str>);

impl KindName {
    pub fn new(name: &str) -> Result<KindName, Error> {
        let mut bytes = name.bytes();
        let first_ok = bytes.next().is_some_and(|byte| byte.is_ascii_lowercase());
        let rest_ok = bytes.all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'.'));
        if first_ok && rest_ok && name.len() <= KIND_NAME_BYTES_MAX {
            return Ok(KindName(name.into()));
        }
        Err(Error::invalid(format!(
            "a name of a kind or node type begins with a letter a-z, goes on with a-z, 0-9, '_' \
             or '.', and has at most {KIND_NAME_BYTES_MAX} characters"
        )))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same text, for whoever keeps it without copying it.
    pub fn shared(&self) -> Arc<str> {
        self.0.clone()
    }
}

/// A name is looked up by its text.
impl Borrow<str> for KindName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    pub id: KindId,
    pub name: KindName,
    pub fixed: FixedRules,
    pub rules: Rules,
    pub time_index: TimeIndex,
}

/// What a kind is from its creation on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedRules {
    pub source_type: NodeTypeId,
    pub target_type: NodeTypeId,
    /// A pure counter: numbers on nodes of the target type, no edges.
    pub counter: bool,
    /// A counter whose every delta must carry an idempotency key.
    pub reconciled: bool,
    /// Live edges also count for an owner of this type.
    pub owner_type: Option<NodeTypeId>,
    pub outgoing_list: bool,
    pub incoming_list: bool,
    pub outgoing_tally: bool,
    pub incoming_tally: bool,
}

/// What may be changed at any time. `on_overload` is about reads, the others bind new writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    pub self_allowed: bool,
    /// Live and pending outgoing edges of one source together.
    pub outgoing_max: Option<u32>,
    pub groups_max: u32,
    pub approval: bool,
    pub data_bytes_max: u32,
    pub excludes: Vec<KindId>,
    pub expires: bool,
    /// How deep a public walk of an incoming list may go; 0 = without bound.
    pub list_depth_max: u64,
    pub on_overload: OnOverload,
}

/// What a read is told when a cluster's database has more to do than it can. To refuse is what
/// never misleads, so it is what a kind does unless it was told otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnOverload {
    /// Nothing but that it should come again.
    #[default]
    Refuse,
    /// What is known, and for the rest not related and 0; the answer says that it is degraded.
    AnswerDefault,
}

impl OnOverload {
    pub fn name(self) -> &'static str {
        match self {
            OnOverload::Refuse => "refuse",
            OnOverload::AnswerDefault => "answer_default",
        }
    }
}

/// Whether outgoing edges also stand in an index by time. Lists bounded by a small limit are
/// sorted in memory and need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TimeIndex {
    Absent = 0,
    /// New writes keep it, a job adds what stood before; reads do not use it yet.
    Building = 1,
    Ready = 2,
}

impl TimeIndex {
    pub(crate) fn from_u8(value: u8) -> Option<TimeIndex> {
        [TimeIndex::Absent, TimeIndex::Building, TimeIndex::Ready]
            .into_iter()
            .find(|index| *index as u8 == value)
    }
}

impl Kind {
    /// Both ends are of one node type, so that self, reverse and mutual mean something.
    pub fn same_type(&self) -> bool {
        !self.fixed.counter && self.fixed.source_type == self.fixed.target_type
    }

    /// Whether writes keep the outgoing index by time.
    pub fn keeps_time_index(&self) -> bool {
        self.time_index != TimeIndex::Absent
    }

    pub fn require_edges(&self) -> Result<(), Error> {
        if self.fixed.counter {
            return Err(Error::invalid(format!(
                "kind {} is a counter and has no edges: use the calls of counters",
                self.name
            )));
        }
        Ok(())
    }

    pub fn require_counter(&self) -> Result<(), Error> {
        if self.fixed.counter {
            return Ok(());
        }
        Err(Error::invalid(format!("kind {} is not a counter: use the calls of edges", self.name)))
    }

    pub fn require_same_type(&self, what: &str) -> Result<(), Error> {
        if self.same_type() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{what} needs a kind whose source and target are of one node type, which {} is not",
            self.name
        )))
    }

    /// A kind whose lists are long enough to want the index by time from the start.
    pub fn wants_time_index(&self) -> bool {
        !self.fixed.counter
            && self.fixed.outgoing_list
            && self.rules.outgoing_max.is_none_or(|max| max > OUTGOING_SORTED_MAX)
    }

    /// Whether the rules go together; `excludes` is checked against the catalog by `decide`.
    pub fn check(&self) -> Result<(), Error> {
        let Kind { fixed, rules, .. } = self;
        let refuse =
            |message: String| Err(Error::invalid(format!("kind {}: {message}", self.name)));
        if fixed.reconciled && !fixed.counter {
            return refuse("reconciled is for counters".into());
        }
        let rules_of_edges = Rules { on_overload: OnOverload::default(), ..rules.clone() };
        if fixed.counter && (rules_of_edges != Rules::default() || fixed.owner_type.is_some()) {
            return refuse("a counter has no rules of edges and no owner_type".into());
        }
        if rules.outgoing_max == Some(0) {
            return refuse("outgoing_max is at least 1, or null for no limit".into());
        }
        if rules.outgoing_max.is_some() && !fixed.outgoing_tally {
            return refuse("outgoing_max needs outgoing_tally".into());
        }
        if rules.groups_max > GROUPS_PER_SOURCE_MAX {
            return refuse(format!("groups_max is at most {GROUPS_PER_SOURCE_MAX}"));
        }
        if rules.data_bytes_max as usize > DATA_BYTES_MAX {
            return refuse(format!("data_bytes_max is at most {DATA_BYTES_MAX}"));
        }
        if rules.self_allowed && !self.same_type() {
            return refuse("self_allowed needs one node type at both ends".into());
        }
        if rules.excludes.len() > EXCLUDES_MAX {
            return refuse(format!("it may exclude at most {EXCLUDES_MAX} kinds"));
        }
        if !rules.excludes.is_empty() && !self.same_type() {
            return refuse("excludes needs one node type at both ends".into());
        }
        if !rules.excludes.is_empty() && rules.approval {
            return refuse("a kind that excludes others cannot wait for approval".into());
        }
        Ok(())
    }
}
