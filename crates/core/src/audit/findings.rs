//! What an audit finds: sorts of drift, counted by kind, with a few examples in words.

use std::collections::BTreeMap;

use guanxi_model::{Catalog, Change, EdgeKey, Index, KindId, TenantId, Which};

/// A tenant's kind.
pub type OfKind = (TenantId, KindId);

/// Examples that a report names; the counts say how much more there is.
const EXAMPLES_MAX: usize = 20;

/// How the store can differ from what its edge rows imply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Drift {
    MissingIncoming,
    SurplusIncoming,
    MissingOutgoing,
    SurplusOutgoing,
    MissingExpiry,
    SurplusExpiry,
    WrongTally,
    WrongGroupSize,
    /// A row that says nothing; it is named and left, as it may be all that is left of a truth.
    Unreadable,
}

impl Drift {
    pub const ALL: [Drift; 9] = [
        Drift::MissingIncoming,
        Drift::SurplusIncoming,
        Drift::MissingOutgoing,
        Drift::SurplusOutgoing,
        Drift::MissingExpiry,
        Drift::SurplusExpiry,
        Drift::WrongTally,
        Drift::WrongGroupSize,
        Drift::Unreadable,
    ];

    pub fn of_entry(index: Index, missing: bool) -> Drift {
        match (index, missing) {
            (Index::Incoming { .. }, true) => Drift::MissingIncoming,
            (Index::Incoming { .. }, false) => Drift::SurplusIncoming,
            (Index::Outgoing { .. }, true) => Drift::MissingOutgoing,
            (Index::Outgoing { .. }, false) => Drift::SurplusOutgoing,
            (Index::Expiry { .. }, true) => Drift::MissingExpiry,
            (Index::Expiry { .. }, false) => Drift::SurplusExpiry,
        }
    }
}

/// One thing that is wrong, and the change that mends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditFinding {
    pub kind: OfKind,
    pub drift: Drift,
    pub mend: Change,
}

/// What was found of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KindFindings {
    /// Edges that were looked at.
    pub edges: u64,
    /// Tallies that were compared.
    pub tallies: u64,
    counts: [u64; Drift::ALL.len()],
}

impl KindFindings {
    pub fn count(&self, drift: Drift) -> u64 {
        self.counts[drift as usize]
    }

    pub fn drift(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What of this is no longer there in a later look.
    fn gone_in(&self, later: &KindFindings) -> u64 {
        let pairs = self.counts.iter().zip(&later.counts);
        pairs.map(|(before, after)| before.saturating_sub(*after)).sum()
    }
}

/// Everything that was found; what belongs to no kind stands under none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    pub kinds: BTreeMap<Option<OfKind>, KindFindings>,
    pub examples: Vec<String>,
}

impl Findings {
    pub fn drift(&self) -> u64 {
        self.kinds.values().map(KindFindings::drift).sum()
    }

    pub fn edges(&self) -> u64 {
        self.kinds.values().map(|kind| kind.edges).sum()
    }

    pub fn tallies(&self) -> u64 {
        self.kinds.values().map(|kind| kind.tallies).sum()
    }

    /// What a repair can do something about.
    pub fn mendable(&self) -> u64 {
        self.drift() - self.kinds.values().map(|kind| kind.count(Drift::Unreadable)).sum::<u64>()
    }

    pub fn gone_in(&self, later: &Findings) -> u64 {
        let nothing = KindFindings::default();
        let kinds = self.kinds.iter();
        kinds.map(|(kind, found)| found.gone_in(later.kinds.get(kind).unwrap_or(&nothing))).sum()
    }

    pub fn of(&mut self, kind: Option<OfKind>) -> &mut KindFindings {
        self.kinds.entry(kind).or_default()
    }

    pub fn note(&mut self, finding: &AuditFinding, catalog: &Catalog) {
        self.of(Some(finding.kind)).counts[finding.drift as usize] += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(in_words(finding, catalog));
        }
    }

    pub fn unreadable(&mut self, kind: Option<OfKind>, text: &str) {
        self.of(kind).counts[Drift::Unreadable as usize] += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text.to_owned());
        }
    }
}

fn in_words(finding: &AuditFinding, catalog: &Catalog) -> String {
    let (tenant, kind) = finding.kind;
    let name = catalog.kind(tenant, kind).map_or("?", |kind| kind.name.as_str());
    match &finding.mend {
        Change::RepairTally { node, which, delta, .. } => {
            let node_type = catalog.type_name(node.tenant, node.node_type);
            let node_type = node_type.map_or("?", |name| name.as_str());
            let id = node.id;
            let tally = which_name(*which);
            format!(
                "the {tally} tally of {name} of {node_type} {id} is wrong by {}",
                delta.wrapping_neg()
            )
        }
        Change::RepairGroupSize { groups, id, delta } => {
            let source = groups.source.0;
            format!("the size of group {} of {name} of {source} is wrong by {}", id.0, -delta)
        }
        Change::RepairEntry { entry } => {
            let EdgeKey { source, target, .. } = entry.edge;
            let (index, what) = match finding.drift {
                Drift::MissingIncoming => ("incoming", "is missing"),
                Drift::MissingOutgoing => ("outgoing", "is missing"),
                Drift::MissingExpiry => ("expiry", "is missing"),
                Drift::SurplusIncoming => ("incoming", "has no edge"),
                Drift::SurplusOutgoing => ("outgoing", "has no edge"),
                _ => ("expiry", "has no edge"),
            };
            format!("the {index} entry of {name} {} → {} {what}", source.0, target.0)
        }
        other => format!("{other:?}"),
    }
}

fn which_name(which: Which) -> &'static str {
    match which {
        Which::Outgoing => "outgoing",
        Which::Incoming => "incoming",
        Which::PendingOutgoing => "pending_outgoing",
        Which::PendingIncoming => "pending_incoming",
        Which::Owned => "owned",
        Which::Value => "value",
    }
}
