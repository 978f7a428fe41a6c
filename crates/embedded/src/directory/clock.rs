//! The time that was believed at the last start: the file CLOCK. A process that is started anew
//! must not take a wrong clock for a right one that the process before it did not believe, nor the
//! times that this one wrote for known ones.

use std::path::Path;
use std::sync::Arc;

use guanxi_core::clock::{Clock, SteadyClock};

use crate::disk::{Disk, with_checksum, without_checksum};

const CLOCK: &str = "CLOCK";
const FORMAT: &str = "CLOCK format 1";
/// The same while the machine may not know the time yet: what was known before its start.
const UNSETTLED: &str = "CLOCK unsettled, format 1";

/// The clock as it was believed last, if that was since the same start of the machine; else, or
/// where somebody says that it jumped rightly, as it is now. What was written last, if anything,
/// tells how late it was at least.
pub(crate) fn steady_clock(
    disk: &dyn Disk,
    directory: &Path,
    under: Arc<dyn Clock>,
    last_commit_ms: u64,
    may_have_jumped: bool,
) -> SteadyClock {
    if may_have_jumped {
        return SteadyClock::new(under);
    }
    let boot = under.boot_id();
    // It only guards against errors of others: without it, the clock is believed.
    let noted = disk.read(&directory.join(CLOCK)).unwrap_or_default();
    let noted = without_checksum(&noted).filter(|_| !boot.is_empty());
    let noted = |format| noted.and_then(|text| read(text, format, &boot));
    if let Some(began_ms) = noted(FORMAT) {
        return SteadyClock::since(under, began_ms);
    }
    let known_ms = if last_commit_ms == 0 { under.now_ms() } else { last_commit_ms };
    let known_began_ms = noted(UNSETTLED).unwrap_or(known_ms as i64 - under.since_boot_ms() as i64);
    SteadyClock::new(under).knowing(known_began_ms)
}

/// Notes the clock for the next start, once nothing speaks against it.
pub(crate) fn note_clock(disk: &dyn Disk, directory: &Path, clock: &SteadyClock) {
    let unsettled = clock.known_began_ms().map(|began_ms| (UNSETTLED, began_ms));
    let settled = clock.began_ms().map(|began_ms| (FORMAT, began_ms));
    let Some((format, began_ms)) = unsettled.or(settled) else { return };
    let path = directory.join(CLOCK);
    let text = format!("{format}\n{}\n{began_ms}\n", clock.boot_id());
    let bytes = with_checksum(&text);
    if disk.read(&path).is_ok_and(|noted| noted == bytes) {
        return;
    }
    if let Err(error) = disk.write_atomic(&path, &bytes) {
        tracing::warn!(%error, "the clock could not be noted; the next start believes its clock");
    }
}

fn read(text: &str, format: &str, boot: &str) -> Option<i64> {
    let mut lines = text.lines();
    (lines.next()? == format && lines.next()? == boot).then_some(())?;
    lines.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use guanxi_core::clock::VirtualClock;

    use super::*;
    use crate::disk::SimDisk;

    const NOON: u64 = 1_700_000_000_000;
    const DAY: u64 = 86_400_000;
    const HOUR: u64 = 3_600_000;

    #[test]
    fn a_clock_that_is_set_soon_after_the_start_of_the_machine_is_believed() {
        let disk = SimDisk::new(1);
        let under = Arc::new(VirtualClock::new(NOON));
        let open = || {
            let clock = steady_clock(&disk, Path::new("/"), under.clone(), 0, false);
            note_clock(&disk, Path::new("/"), &clock);
            clock
        };
        under.reboot(NOON - 8 * HOUR);
        assert_eq!(open().now_ms(), NOON - 8 * HOUR);
        under.set(NOON);
        assert_eq!(open().held_back_ms(), None, "a time daemon has set it");
        under.advance(HOUR);
        assert_eq!(open().now_ms(), NOON + HOUR);
        under.set(NOON + DAY);
        assert_eq!(open().now_ms(), NOON + HOUR, "nobody has to set it any more");
    }

    #[test]
    fn a_time_that_the_clock_was_set_back_from_is_not_believed_again() {
        let disk = SimDisk::new(1);
        let under = Arc::new(VirtualClock::new(NOON + 10 * DAY));
        let open = || {
            let clock = steady_clock(&disk, Path::new("/"), under.clone(), 0, false);
            note_clock(&disk, Path::new("/"), &clock);
            clock
        };
        assert_eq!(open().now_ms(), NOON + 10 * DAY);
        under.set(NOON);
        assert_eq!(open().now_ms(), NOON);
        under.set(NOON + 9 * DAY);
        assert_eq!(open().now_ms(), NOON, "it was wrong once, and set right");
    }

    #[test]
    fn a_restart_does_not_believe_what_was_not_believed_unless_told() {
        let disk = SimDisk::new(1);
        let under = Arc::new(VirtualClock::new(NOON));
        let open = |may_have_jumped| {
            let clock = steady_clock(&disk, Path::new("/"), under.clone(), 0, may_have_jumped);
            note_clock(&disk, Path::new("/"), &clock);
            clock
        };
        assert_eq!(open(false).now_ms(), NOON);
        under.set(NOON + DAY);
        assert_eq!(open(false).now_ms(), NOON);
        assert_eq!(open(false).held_back_ms(), Some(DAY));
        assert_eq!(open(true).now_ms(), NOON + DAY);
        assert_eq!(open(false).now_ms(), NOON + DAY, "said once, it is known");
        under.reboot(NOON + 3 * DAY);
        assert_eq!(open(false).now_ms(), NOON + 3 * DAY, "nobody knows how long it was off");
        disk.write_atomic(Path::new("/CLOCK"), b"anything").unwrap();
        assert_eq!(open(false).now_ms(), NOON + 3 * DAY);
    }
}
