//! Which edges exclude others, and from which line to which: a block forbids follows between its two
//! nodes, and removes those that stand; where it is removed itself, it forbids no more. Kinds that
//! exclude are decided first; what they came to is sorted to the sources that it concerns.

use std::collections::BTreeMap;

use guanxi_model::codec::{CodecError, Decoder};
use guanxi_model::decide::Decided;
use guanxi_model::{Catalog, Kind, KindId, Record, TenantId};

use super::IngestError;
use super::deciding::Series;
use super::line::{LinePlace, Unit, big_endian, decided_by_source};
use super::sorter::{Merge, Sorter, SpillFolder};
use super::source::{Excluder, SourceView};

pub(super) struct Exclusions {
    coming: ComingExclusions,
    /// Of the present kind.
    walk: Option<ExclusionWalk>,
}

/// Of the kinds that others exclude and that are still to come, and whether each is decided by
/// source.
struct ComingExclusions(BTreeMap<KindId, (Sorter, bool)>);

/// What concerns one kind, unit by unit and line by line.
struct ExclusionWalk {
    merge: Merge,
    by_source: bool,
    /// The next one.
    next: Option<Exclusion>,
    unit: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Exclusion {
    unit: (u64, u64),
    place: LinePlace,
    excluder: Excluder,
    /// The excluding edge is gone.
    lifted: bool,
}

impl Exclusions {
    pub fn new(
        tenant: TenantId,
        catalog: &Catalog,
        folder: &SpillFolder,
        bytes_max: usize,
    ) -> Exclusions {
        let excluded = catalog.kinds(tenant).flat_map(|kind| &kind.rules.excludes);
        let kinds = excluded.filter_map(|id| catalog.kind(tenant, *id));
        let mut coming: BTreeMap<KindId, (Sorter, bool)> = BTreeMap::new();
        let kinds: BTreeMap<KindId, bool> =
            kinds.map(|kind| (kind.id, decided_by_source(kind))).collect();
        let share = bytes_max / kinds.len().max(1);
        for (kind, by_source) in kinds {
            coming.insert(kind, (Sorter::new(folder, share), by_source));
        }
        Exclusions { coming: ComingExclusions(coming), walk: None }
    }

    /// What a line of a kind that excludes others came to.
    pub fn note(
        &mut self,
        kind: &Kind,
        decided: &Decided,
        place: LinePlace,
    ) -> Result<(), IngestError> {
        for record in &decided.records {
            match record {
                Record::Edge(record) if record.old.is_none() && record.new.is_live() => {
                    let ends = (record.key.source.0, record.key.target.0);
                    self.coming.push(kind, ends, place, false)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The lines of this kind come next; those of kinds that exclude it have come.
    pub fn begin_kind(&mut self, kind: &Kind) -> Result<(), IngestError> {
        self.walk = None;
        if let Some((sorter, by_source)) = self.coming.0.remove(&kind.id) {
            let merge = sorter.into_merge()?;
            let mut walk = ExclusionWalk { merge, by_source, next: None, unit: (0, 0) };
            walk.advance()?;
            self.walk = Some(walk);
        }
        Ok(())
    }

    /// Passes over what concerns no line.
    pub fn begin_unit(&mut self, unit: Unit) -> Result<(), IngestError> {
        let Some(walk) = &mut self.walk else { return Ok(()) };
        walk.unit = (unit.id, unit.target.unwrap_or(0));
        while walk.next.is_some_and(|next| next.unit < walk.unit) {
            walk.advance()?;
        }
        Ok(())
    }

    /// What came before a line of the present unit.
    pub fn apply_before(
        &mut self,
        place: LinePlace,
        view: &mut SourceView<'_>,
        series: &mut Series,
    ) -> Result<(), IngestError> {
        self.apply(|next| next < place, view, series)
    }

    /// What came after its last line.
    pub fn apply_rest(
        &mut self,
        view: &mut SourceView<'_>,
        series: &mut Series,
    ) -> Result<(), IngestError> {
        self.apply(|_| true, view, series)
    }

    fn apply(
        &mut self,
        is_due: impl Fn(LinePlace) -> bool,
        view: &mut SourceView<'_>,
        series: &mut Series,
    ) -> Result<(), IngestError> {
        let Some(walk) = &mut self.walk else { return Ok(()) };
        while let Some(next) = walk.next.filter(|next| next.unit == walk.unit && is_due(next.place))
        {
            if next.lifted {
                view.excluded.remove(&next.excluder);
            } else if view.exclude(next.excluder) {
                series.cut();
                let ends = (view.source.0, next.excluder.node);
                self.coming.push(view.kind, ends, next.place, true)?;
            }
            walk.advance()?;
        }
        Ok(())
    }
}

impl ComingExclusions {
    /// An edge of this kind came to stand in a line, or is gone by it.
    fn push(
        &mut self,
        kind: &Kind,
        (source, target): (u64, u64),
        place: LinePlace,
        lifted: bool,
    ) -> Result<(), IngestError> {
        for excluded in &kind.rules.excludes {
            let Some((sorter, by_source)) = self.0.get_mut(excluded) else { continue };
            for (from, to, back) in [(source, target, false), (target, source, true)] {
                let excluder = Excluder { kind: kind.id, node: to, back };
                let exclusion = Exclusion { unit: (from, to), place, excluder, lifted };
                sorter.push_with(|out| exclusion.write(*by_source, out))?;
            }
        }
        Ok(())
    }
}

impl ExclusionWalk {
    fn advance(&mut self) -> Result<(), IngestError> {
        let by_source = self.by_source;
        let next = self.merge.next()?.map(|record| Exclusion::read(record, by_source));
        self.next = next.transpose()?;
        Ok(())
    }
}

impl Exclusion {
    /// In the order in which the lines of the excluded kind are decided.
    fn write(&self, by_source: bool, out: &mut Vec<u8>) {
        let (source, target) = self.unit;
        out.extend_from_slice(&source.to_be_bytes());
        if by_source {
            out.extend_from_slice(&self.place.bytes());
        }
        out.extend_from_slice(&target.to_be_bytes());
        if !by_source {
            out.extend_from_slice(&self.place.bytes());
        }
        out.extend_from_slice(&self.excluder.kind.0.to_be_bytes());
        out.push(u8::from(self.excluder.back));
        out.push(u8::from(self.lifted));
    }

    fn read(record: &[u8], by_source: bool) -> Result<Exclusion, CodecError> {
        let mut input = Decoder::new(record);
        let source = input.fixed_u64()?;
        let (place, target) = match by_source {
            true => (LinePlace::read(&mut input)?, input.fixed_u64()?),
            false => {
                let target = input.fixed_u64()?;
                (LinePlace::read(&mut input)?, target)
            }
        };
        let kind = KindId(big_endian(input.take(2)?) as u16);
        let (back, lifted) = (input.bool()?, input.bool()?);
        let unit = (source, if by_source { 0 } else { target });
        Ok(Exclusion { unit, place, excluder: Excluder { kind, node: target, back }, lifted })
    }
}
