//! Mistakes that tests plant in what is kept in memory, to see that they are noticed. A thread
//! plants for itself alone. Without the feature `conformance` there are none.

/// What may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResidentBug {
    /// What was read before a batch is kept after it.
    StaleFill,
    /// A batch leaves a row as it was.
    EntryNotUpdated,
    /// A batch's bits are set after its moment was published.
    BitsAfterPublication,
    /// A removed edge stays in a newest list.
    RemovalForgotten,
    /// A filter that was saved is believed as it is, whatever the log has since.
    SavedFilterLacksBits,
    /// A filter that is being built gets no bits of the batches meanwhile.
    BuildMissesBatches,
}

#[cfg(any(test, feature = "conformance"))]
mod planting {
    use std::cell::Cell;

    use super::ResidentBug;

    thread_local! {
        static PLANTED: Cell<Option<ResidentBug>> = const { Cell::new(None) };
    }

    /// Plants a mistake in this thread until the next call.
    pub fn plant(bug: Option<ResidentBug>) {
        PLANTED.set(bug);
    }

    pub(crate) fn planted(bug: ResidentBug) -> bool {
        PLANTED.get() == Some(bug)
    }
}

#[cfg(any(test, feature = "conformance"))]
pub use planting::plant;
#[cfg(any(test, feature = "conformance"))]
pub(crate) use planting::planted;

#[cfg(not(any(test, feature = "conformance")))]
pub(crate) const fn planted(_: ResidentBug) -> bool {
    false
}
