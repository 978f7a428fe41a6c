//! A store of sorted keys: one atomic write a batch (`entries` says of what), then the moment that
//! readers see (`moment`). How rows are read is `snapshot`'s affair.

mod entries;
mod moment;
mod snapshot;

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use guanxi_core::snapshot::{Snapshot, StoreError};
use guanxi_model::codec::{Decoder, decode_idempotency, decode_kind};
use guanxi_model::idempotency::{IdempotencyKey, IdempotencyRow};
use guanxi_model::{Catalog, Epoch, KindName, Millis, NodeTypeId, Position, TenantId, Version};
use parking_lot::Mutex;

pub(crate) use self::entries::encode_next_group;
use self::entries::entries_of;
use self::moment::{Moment, Published};
use self::snapshot::KeyedSnapshot;
use super::inventory::KeyOf;
use super::layout::{self, Key};
use super::{Applied, EmbeddedSnapshot, EmbeddedStore, Replay, Store};
use crate::overlay::Dirty;
use crate::resident::{
    EdgeFilter, Resident, ResidentBug, ResidentSettings, ResidentStatus, planted,
};

/// What one atomic write does to a key: a value, or none to remove it.
pub type KeyWrite = (Key, Option<Vec<u8>>);

/// Where keys and values are kept.
pub trait Backend: Send + Sync + 'static {
    type View: KeyView;

    /// A consistent picture of all keys.
    fn view(&self) -> Self::View;
    /// All entries or none. Each key stands in it once.
    fn write(&self, entries: &[KeyWrite]) -> Result<(), StoreError>;
    /// Stopped where it takes nothing more.
    fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// What may be done before a batch, or at rest. `look_away` is called before anything for which
    /// nobody may look; who takes views must not keep one from before then.
    fn tidy(&self, _at_rest: bool, _look_away: &mut dyn FnMut()) -> Result<(), StoreError> {
        Ok(())
    }
    fn persist(&self) -> Result<(), StoreError>;
    /// Whether what can be read need not be on the disk.
    fn is_in_doubt(&self) -> bool {
        false
    }
    /// Whether it can be read.
    fn is_open(&self) -> bool {
        true
    }
    /// Opens all of it anew once nobody looks at it, false while somebody does; `replay` brings it
    /// to where it was before anybody sees it.
    fn reopen(
        &self,
        _replay: &mut dyn FnMut(Self) -> Result<Self, StoreError>,
    ) -> Result<bool, StoreError>
    where
        Self: Sized,
    {
        Err(StoreError::Stopped)
    }
    fn bytes(&self) -> u64;
    /// Bytes that it still takes to bring what was written to its place on disk.
    fn room_needed(&self) -> u64 {
        0
    }
    /// Gets ready for a quick next start; nothing is written afterwards.
    fn settle(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// What a walk over keys and values does with each.
pub type VisitKey<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, StoreError> + 'a;

pub trait KeyView: Send + Sync + 'static {
    type Bytes: AsRef<[u8]>;

    fn get(&self, key: &[u8]) -> Result<Option<Self::Bytes>, StoreError>;

    /// Visits the keys of a range in order, or in reverse, until the visitor breaks.
    fn range(
        &self,
        range: (Bound<Key>, Bound<Key>),
        reverse: bool,
        visit: &mut VisitKey<'_>,
    ) -> Result<(), StoreError>;
}

/// How often a reader looks for a moment that was withdrawn before it takes a view of its own.
const MOMENT_TRIES: usize = 3;

#[derive(Debug)]
pub struct KeyedStore<B: Backend> {
    backend: B,
    published: Published<B::View>,
    resident: Arc<Resident>,
    /// Held by whoever changes what is there or published.
    writer: Mutex<Writer>,
}

#[derive(Debug, Default)]
struct Writer {
    /// A filter that is not whole yet. Batches set their bits in it too.
    building: Option<Arc<EdgeFilter>>,
    /// Of the batch before, for the planted bug.
    late: Vec<KeyWrite>,
}

impl Writer {
    /// Before the batch is written: readers of its moment must find its edges, and a store that
    /// stops at it may have it all the same.
    fn set_bits(&mut self, serving: Option<&EdgeFilter>, entries: &[KeyWrite]) {
        if planted(ResidentBug::BitsAfterPublication) {
            let late = std::mem::replace(&mut self.late, entries.to_vec());
            return set_bits(serving, &late);
        }
        set_bits(serving, entries);
        set_bits(self.building.as_deref(), entries);
    }
}

fn set_bits(filter: Option<&EdgeFilter>, entries: &[KeyWrite]) {
    let Some(filter) = filter else { return };
    for (key, value) in entries {
        match (KeyOf::read(key), value) {
            (Some(KeyOf::Edge(edge)), Some(_)) => filter.add(&edge),
            (Some(KeyOf::Edge(_)), None) => filter.note_removal(),
            _ => {}
        }
    }
}

impl<B: Backend> KeyedStore<B> {
    /// Without anything at hand in memory.
    pub fn open(backend: B) -> Result<KeyedStore<B>, StoreError> {
        KeyedStore::open_with(backend, ResidentSettings::NOTHING)
    }

    pub fn open_with(backend: B, settings: ResidentSettings) -> Result<KeyedStore<B>, StoreError> {
        let view = backend.view();
        let applied = read_applied(&view)?;
        let catalog = Arc::new(read_catalog(&view)?);
        let published = Published::new(applied, catalog.clone());
        let resident = Arc::new(Resident::new(settings));
        let store = KeyedStore { backend, published, resident, writer: Mutex::default() };
        store.publish(applied, catalog, view, None);
        Ok(store)
    }

    pub fn backend(&self) -> &B {
        &self.backend
    }

    fn publish(
        &self,
        applied: Applied,
        catalog: Arc<Catalog>,
        view: B::View,
        filter: Option<Arc<EdgeFilter>>,
    ) {
        let resident = Some(self.resident.clone());
        self.published.publish(Moment { applied, catalog, view, filter, resident });
    }

    /// Publishes what is there, after it was withdrawn. Nothing is published as long as it cannot
    /// be read.
    fn publish_again(&self) -> Result<(), StoreError> {
        let view = self.backend.view();
        let applied = read_applied(&view)?;
        let mut catalog = self.published.catalog();
        if applied != self.published.applied() {
            // The batch at which the store had stopped. What is at hand may be of before it.
            catalog = Arc::new(read_catalog(&view)?);
            self.resident.clear(applied.position);
        }
        let filter = self.published.filter().map(|(filter, _)| filter);
        self.publish(applied, catalog, view, filter);
        Ok(())
    }

    /// Shows readers what was written behind its back.
    #[cfg(any(test, feature = "conformance"))]
    pub(super) fn show_planted(&self) {
        let applied = self.applied();
        self.resident.clear(applied.position);
        self.publish(applied, self.catalog(), self.backend.view(), None);
    }

    /// Does what may be done between batches.
    fn tidied(&self, at_rest: bool) -> Result<(), StoreError> {
        self.backend.tidy(at_rest, &mut || self.published.unpublish())?;
        match self.published.is_published() {
            true => Ok(()),
            false => self.publish_again(),
        }
    }

    /// What readers see; a view of the reader's own while nothing is published, for which it may
    /// have to wait.
    fn moment(&self) -> Arc<Moment<B::View>> {
        let mut tries = 0;
        loop {
            if let Some(moment) = self.published.moment() {
                return moment;
            }
            let (applied, catalog) = (self.published.applied(), self.published.catalog());
            let view = self.backend.view();
            tries += 1;
            // Where something was published meanwhile, the catalog may be older than the view.
            if !self.published.is_published() || tries >= MOMENT_TRIES {
                let (filter, resident) = (None, None);
                return Arc::new(Moment { applied, catalog, view, filter, resident });
            }
        }
    }
}

impl<B: Backend> EmbeddedStore for KeyedStore<B> {
    fn picture(&self) -> Box<dyn EmbeddedSnapshot> {
        Box::new(KeyedSnapshot::new(self.moment()))
    }

    fn picture_as_it_lies(&self) -> Box<dyn EmbeddedSnapshot> {
        Box::new(KeyedSnapshot::as_it_lies(self.moment()))
    }

    fn begin_filter(&self, filter: Arc<EdgeFilter>) {
        self.writer.lock().building = Some(filter);
    }

    fn finish_filter(&self) {
        let mut writer = self.writer.lock();
        let Some(filter) = writer.building.take() else { return };
        self.published.believe(filter.clone());
        if self.published.is_published() {
            let (applied, catalog) = (self.published.applied(), self.published.catalog());
            self.publish(applied, catalog, self.backend.view(), Some(filter));
        }
    }

    fn abandon_filter(&self) {
        self.writer.lock().building = None;
    }

    fn filter(&self) -> Option<(Arc<EdgeFilter>, Applied)> {
        self.published.filter()
    }

    fn resident(&self) -> ResidentStatus {
        let filter = self.published.filter().map(|(filter, _)| filter);
        self.resident.status(filter.as_deref())
    }
}

impl<B: Backend> Store for KeyedStore<B> {
    fn snapshot(&self) -> Box<dyn Snapshot> {
        self.picture()
    }

    fn write(&self, dirty: &Dirty, applied: Applied) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        self.tidied(false)?;
        let standing = self.moment();
        let entries = entries_of(dirty, applied, &standing)?;
        writer.set_bits(standing.filter.as_deref(), &entries);
        self.backend.write(&entries)?;
        self.resident.change(&entries, applied.position);
        let catalog = dirty.catalog.as_ref().unwrap_or(&standing.catalog).clone();
        self.publish(applied, catalog, self.backend.view(), standing.filter.clone());
        Ok(())
    }

    fn applied(&self) -> Applied {
        self.published.applied()
    }

    fn catalog(&self) -> Arc<Catalog> {
        self.published.catalog()
    }

    fn persist(&self) -> Result<Position, StoreError> {
        // Read first: what is written while the call runs may or may not be covered.
        let position = self.applied().position;
        self.backend.persist()?;
        Ok(if self.backend.is_in_doubt() { Position(0) } else { position })
    }

    fn is_in_doubt(&self) -> bool {
        self.backend.is_in_doubt()
    }

    fn is_open(&self) -> bool {
        self.backend.is_open()
    }

    fn mend(&self, replay: &Replay<'_>) -> Result<bool, StoreError> {
        let _writer = self.writer.lock();
        let last = self.applied().position;
        self.published.unpublish();
        let reopened = self.backend.reopen(&mut |backend| {
            let store = KeyedStore::open(backend)?;
            replay(&store, last)?;
            // The batch at which it stopped may be in its journal already.
            match store.applied().position >= last {
                true => Ok(store.backend),
                false => Err(damaged("what the log has up to where readers are")),
            }
        })?;
        self.publish_again()?;
        Ok(reopened)
    }

    fn settle(&self) -> Result<(), StoreError> {
        self.backend.settle()
    }

    fn check(&self) -> Result<(), StoreError> {
        self.backend.check()
    }

    fn rest(&self) -> Result<(), StoreError> {
        let _writer = self.writer.lock();
        self.tidied(true)
    }

    fn bytes(&self) -> u64 {
        self.backend.bytes()
    }

    fn room_needed(&self) -> u64 {
        self.backend.room_needed()
    }
}

/// A row put together from its parts; empty where there are none.
fn read_parts(view: &impl KeyView, prefix: Key) -> Result<Vec<u8>, StoreError> {
    let mut whole = Vec::new();
    view.range(prefixed(prefix), false, &mut |_, part| {
        whole.extend_from_slice(part);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(whole)
}

fn read_answer(
    view: &impl KeyView,
    tenant: TenantId,
    key: &IdempotencyKey,
) -> Result<Option<IdempotencyRow>, StoreError> {
    match read_parts(view, layout::idempotency_prefix(tenant, key))? {
        none if none.is_empty() => Ok(None),
        whole => Ok(Some(decode_idempotency(&whole)?)),
    }
}

fn read_catalog(view: &impl KeyView) -> Result<Catalog, StoreError> {
    let mut catalog = Catalog::default();
    view.range(prefixed(layout::node_types_prefix()), false, &mut |key, value| {
        let parsed = layout::parse_catalog(key);
        let (tenant, id) = parsed.ok_or_else(|| damaged("a node type's key"))?;
        let name = std::str::from_utf8(value).ok().and_then(|name| KindName::new(name).ok());
        let name = name.ok_or_else(|| damaged("a node type's name"))?;
        catalog.set_type(tenant, NodeTypeId(id), name);
        Ok(ControlFlow::Continue(()))
    })?;
    view.range(prefixed(layout::kinds_prefix()), false, &mut |key, value| {
        let (tenant, _) = layout::parse_catalog(key).ok_or_else(|| damaged("a kind's key"))?;
        catalog.set_kind(tenant, decode_kind(value)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(catalog)
}

fn read_applied(view: &impl KeyView) -> Result<Applied, StoreError> {
    match view.get(&layout::applied())? {
        Some(value) => decode_applied(value.as_ref()),
        None => Ok(Applied::NOTHING),
    }
}

fn decode_applied(bytes: &[u8]) -> Result<Applied, StoreError> {
    let mut input = Decoder::new(bytes);
    input.format()?;
    let applied = Applied {
        epoch: Epoch(input.varint_u32()?),
        position: Position(input.varint()?),
        commit: Millis(input.varint()?),
        version: Version(input.fixed_u64()?),
    };
    input.finish()?;
    Ok(applied)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Damaged(format!("{what} cannot be read"))
}

/// The range of all keys that begin with a prefix.
fn prefixed(prefix: Key) -> (Bound<Key>, Bound<Key>) {
    let mut end = prefix.clone();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    let to = match end.last_mut() {
        Some(last) => {
            *last += 1;
            Bound::Excluded(end)
        }
        None => Bound::Unbounded,
    };
    (Bound::Included(prefix), to)
}
