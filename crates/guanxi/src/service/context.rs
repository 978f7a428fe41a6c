//! One request's own facts: which call it is, its id, its deadline, and the kind that it is about.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use guanxi_model::Kind;

use super::table::CallEntry;
use crate::telemetry::KindLabel;

#[derive(Debug)]
pub struct CallContext {
    pub request_id: Arc<str>,
    pub deadline: Instant,
    /// None where no call has what was asked for.
    pub call: Option<&'static CallEntry>,
    kind: OnceLock<KindLabel>,
}

impl CallContext {
    pub fn new(
        request_id: Arc<str>,
        deadline: Instant,
        call: Option<&'static CallEntry>,
    ) -> CallContext {
        CallContext { request_id, deadline, call, kind: OnceLock::new() }
    }

    /// Whether it may change something; what no call answers changes nothing.
    pub fn may_write(&self) -> bool {
        self.call.is_some_and(|call| call.writes)
    }

    /// Notes for the metrics which one kind the request is about, and that there is none of its name.
    pub fn note_kind(&self, kind: Option<&Arc<Kind>>) {
        let _ = self.kind.set(kind.map_or(KindLabel::Other, KindLabel::of));
    }

    /// What the metrics say of its kind.
    pub fn kind_label(&self) -> KindLabel {
        self.kind.get().cloned().unwrap_or(KindLabel::None)
    }
}
