//! What a caller wants written at once.

use crate::idempotency::IdempotencyKey;
use crate::import::ImportStep;
use crate::{Change, TenantId};

/// Changes that are decided together, in order, each on its own.
#[derive(Debug, Clone)]
pub struct Request {
    pub tenant: TenantId,
    pub changes: Vec<Change>,
    pub key: Option<IdempotencyKey>,
    /// The chunk of an import that the changes are.
    pub import: Option<ImportStep>,
}

impl Request {
    pub fn new(tenant: TenantId, changes: Vec<Change>) -> Request {
        Request { tenant, changes, key: None, import: None }
    }

    pub fn one(tenant: TenantId, change: Change) -> Request {
        Request::new(tenant, vec![change])
    }
}
