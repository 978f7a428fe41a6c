//! Moments: what readers look at. After each batch one is published, with one view that all
//! readers share, so that a read opens nothing. One read is one moment, and exact.

use std::sync::Arc;

use guanxi_model::Catalog;
use parking_lot::RwLock;

use crate::resident::{EdgeFilter, Resident};
use crate::store::Applied;

/// The rows after a batch.
#[derive(Debug)]
pub(super) struct Moment<V> {
    pub applied: Applied,
    pub catalog: Arc<Catalog>,
    pub view: V,
    /// It has every edge of this moment. None as long as it is not whole.
    pub filter: Option<Arc<EdgeFilter>>,
    /// None where nothing was published: the view is the reader's own, and of a moment that is not
    /// known for sure.
    pub resident: Option<Arc<Resident>>,
}

/// Where the store stands, and what is published of it.
#[derive(Debug)]
pub(super) struct Standing<V> {
    pub applied: Applied,
    pub catalog: Arc<Catalog>,
    pub filter: Option<Arc<EdgeFilter>>,
    /// None while the backend may be opened anew: nobody may look at it then.
    moment: Option<Arc<Moment<V>>>,
}

#[derive(Debug)]
pub(super) struct Published<V>(RwLock<Standing<V>>);

impl<V> Published<V> {
    pub fn new(applied: Applied, catalog: Arc<Catalog>) -> Published<V> {
        Published(RwLock::new(Standing { applied, catalog, filter: None, moment: None }))
    }

    pub fn moment(&self) -> Option<Arc<Moment<V>>> {
        self.0.read().moment.clone()
    }

    pub fn is_published(&self) -> bool {
        self.0.read().moment.is_some()
    }

    pub fn applied(&self) -> Applied {
        self.0.read().applied
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.0.read().catalog.clone()
    }

    pub fn filter(&self) -> Option<(Arc<EdgeFilter>, Applied)> {
        let standing = self.0.read();
        standing.filter.clone().map(|filter| (filter, standing.applied))
    }

    /// For the moments to come.
    pub fn believe(&self, filter: Arc<EdgeFilter>) {
        self.0.write().filter = Some(filter);
    }

    pub fn publish(&self, moment: Moment<V>) {
        let mut standing = self.0.write();
        standing.applied = moment.applied;
        standing.catalog = moment.catalog.clone();
        standing.filter = moment.filter.clone();
        let before = standing.moment.replace(Arc::new(moment));
        drop(standing);
        // Which may end its view, and takes a while.
        drop(before);
    }

    pub fn unpublish(&self) {
        let before = self.0.write().moment.take();
        drop(before);
    }
}
