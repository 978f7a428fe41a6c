//! How far an audit is, and how it hears that the service stops.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::AuditError;
use crate::signal::Signal;

/// Rows between two looks at whether the service stops.
pub const STRIDE_ROWS: u64 = 4_096;

/// Whoever audits tells it of each row that was read.
#[derive(Debug)]
pub struct AuditWatch {
    signal: Signal,
    rows: AtomicU64,
}

impl AuditWatch {
    pub fn new(signal: Signal) -> AuditWatch {
        AuditWatch { signal, rows: AtomicU64::new(0) }
    }

    pub fn rows_read(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Sleeps; true when the service stops.
    pub fn wait(&self, time: Duration) -> bool {
        self.signal.wait(time)
    }

    pub fn is_stopped(&self) -> bool {
        self.signal.is_stopped()
    }

    /// Notes that so many rows were read.
    pub fn rows(&self, rows: u64) -> Result<(), AuditError> {
        let before = self.rows.fetch_add(rows, Ordering::Relaxed);
        let passed = before / STRIDE_ROWS != (before + rows) / STRIDE_ROWS;
        match passed && self.signal.is_stopped() {
            true => Err(AuditError::Stopped),
            false => Ok(()),
        }
    }
}
