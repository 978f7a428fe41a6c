//! The lines of an offline import decided by the model's own rules, unit by unit in the order of
//! the sort: first nodes, then kinds, those that exclude before those that they exclude. What a
//! line sees is what it would have seen, had all lines been decided one after the other.

use guanxi_core::snapshot::StoreError;
use guanxi_model::answer::EdgeAnswer;
use guanxi_model::decide::{Decided, Stamp, Undecided, decide};
use guanxi_model::{
    Answer, Catalog, Change, Error, GroupsKey, Kind, KindId, Millis, Node, NodeKey, NodeTypeId,
    Region, SourceId, TenantId, Version,
};

use super::exclusions::Exclusions;
use super::line::{Lane, SortedLine, Unit};
use super::rejects::write_reject;
use super::rows::RowsOut;
use super::settings::SettingsInTime;
use super::sorter::Sorter;
use super::source::SourceView;
use super::view::NodeView;
use super::{IngestError, SOURCE_EDGES_MAX};

/// What came of all lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinesDecided {
    pub accepted: u64,
    /// Edges that were new or became different.
    pub changed: u64,
    pub rejected: u64,
}

/// Gives out versions, and counts what a log would have.
#[derive(Debug)]
pub(super) struct Series {
    pub now: Millis,
    region: Region,
    pub version: Version,
    pub records: u64,
}

impl Series {
    pub fn new(now: Millis, region: Region, version: Version, records: u64) -> Series {
        Series { now, region, version, records }
    }

    /// The outer error is a row that cannot be read.
    fn decide<V: guanxi_model::View<Error = StoreError>>(
        &mut self,
        change: &Change,
        view: &V,
    ) -> Result<Result<Decided, Error>, StoreError> {
        let mut last = self.version;
        let (now, region) = (self.now, self.region);
        let mut versions = |_: GroupsKey| {
            last = Version::next(last, now, region);
            last
        };
        let mut stamp = Stamp { now, keys_age_by: now, versions: &mut versions };
        match decide(change, view, &mut stamp) {
            Ok(decided) => {
                self.records += decided.records.len() as u64;
                self.version = last;
                Ok(Ok(decided))
            }
            Err(Undecided::Refused(error)) => Ok(Err(error)),
            Err(Undecided::Failed(error)) => Err(error),
        }
    }

    /// A removal that follows from another line.
    pub fn cut(&mut self) {
        self.version = Version::next(self.version, self.now, self.region);
        self.records += 1;
    }
}

/// Decides line by line.
pub(super) struct Deciding<'a> {
    pub tenant: TenantId,
    pub catalog: &'a Catalog,
    pub series: Series,
    pub done: LinesDecided,
    pub rejects: Sorter,
    pub rows: RowsOut,
    pub settings: SettingsInTime,
    pub exclusions: Exclusions,
    pub unit: Option<OpenUnit<'a>>,
}

/// What is being decided, as it stands.
pub(super) enum OpenUnit<'a> {
    Node { unit: Unit, view: NodeView<'a> },
    Source { unit: Unit, view: Box<SourceView<'a>> },
}

impl OpenUnit<'_> {
    fn unit(&self) -> Unit {
        match self {
            OpenUnit::Node { unit, .. } | OpenUnit::Source { unit, .. } => *unit,
        }
    }
}

impl<'a> Deciding<'a> {
    /// Takes the next line in the order of the sort.
    pub fn take(&mut self, record: &[u8]) -> Result<(), IngestError> {
        let line = SortedLine::read(record, self.tenant, self.catalog)?;
        let (unit, place) = (line.unit, line.place);
        if self.unit.as_ref().map(OpenUnit::unit) != Some(unit) {
            self.turn_to(unit)?;
        }
        let change = line.change(self.tenant)?;
        let decided = match &mut self.unit {
            Some(OpenUnit::Node { view, .. }) => {
                let decided = self.series.decide(&change, view)?;
                if let Ok(decided) = &decided {
                    view.take(decided);
                    self.settings.note(&change, place)?;
                }
                decided
            }
            Some(OpenUnit::Source { view, .. }) => {
                self.exclusions.apply_before(place, view, &mut self.series)?;
                let asked = self.settings.asked(view.kind, &change, place);
                view.target_private = asked;
                let decided = self.series.decide(&change, view.as_ref())?;
                if let Ok(decided) = &decided {
                    self.exclusions.note(view.kind, decided, place)?;
                    view.take(decided);
                    refuse_too_many(view)?;
                }
                decided
            }
            None => return Ok(()),
        };
        match decided {
            Ok(decided) => {
                let changed =
                    matches!(decided.answer, Answer::Edge(EdgeAnswer { changed: true, .. }));
                self.done.accepted += 1;
                self.done.changed += u64::from(changed);
            }
            Err(error) => {
                self.done.rejected += 1;
                write_reject(&mut self.rejects, place, &error)?;
            }
        }
        Ok(())
    }

    /// Ends what is being decided, and begins another.
    fn turn_to(&mut self, unit: Unit) -> Result<(), IngestError> {
        let last = self.end_unit()?;
        let opened = match unit.lane {
            Lane::Nodes(node_type) => self.node(unit, node_type),
            Lane::Counters(kind) => {
                let node_type = self.kind(kind)?.fixed.target_type;
                self.node(unit, node_type)
            }
            Lane::Edges(kind) => {
                let source = SourceId(unit.id);
                let view = match last {
                    Some(mut view) if view.kind.id == kind => {
                        view.begin(source);
                        view
                    }
                    _ => {
                        let kind = self.kind(kind)?;
                        self.rows.begin_kind(kind.id)?;
                        self.exclusions.begin_kind(kind)?;
                        Box::new(SourceView::new(self.tenant, self.catalog, kind, source))
                    }
                };
                self.exclusions.begin_unit(unit)?;
                OpenUnit::Source { unit, view }
            }
        };
        self.unit = Some(opened);
        Ok(())
    }

    fn node(&self, unit: Unit, node_type: NodeTypeId) -> OpenUnit<'a> {
        let key = NodeKey { tenant: self.tenant, node_type, id: unit.id };
        OpenUnit::Node {
            unit,
            view: NodeView { catalog: self.catalog, key, node: Node::default() },
        }
    }

    fn kind(&self, id: KindId) -> Result<&'a std::sync::Arc<Kind>, StoreError> {
        let kind = self.catalog.kind(self.tenant, id);
        kind.ok_or_else(|| StoreError::Damaged("a line of no kind".to_owned()))
    }

    /// What the unit came to goes among the rows. Gives back what the next one may use again.
    pub fn end_unit(&mut self) -> Result<Option<Box<SourceView<'a>>>, IngestError> {
        match self.unit.take() {
            None => Ok(None),
            Some(OpenUnit::Node { view, .. }) => {
                self.rows.node(&view.key, &view.node)?;
                Ok(None)
            }
            Some(OpenUnit::Source { mut view, .. }) => {
                self.exclusions.apply_rest(&mut view, &mut self.series)?;
                self.rows.source(&mut view)?;
                Ok(Some(view))
            }
        }
    }
}

fn refuse_too_many(view: &SourceView<'_>) -> Result<(), IngestError> {
    if view.edges.len() <= SOURCE_EDGES_MAX {
        return Ok(());
    }
    let (source_id, kind) = (view.source.0, view.kind.name.to_string());
    Err(IngestError::SourceTooLarge { source_id, kind })
}
