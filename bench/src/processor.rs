//! What processes use of the processors.

/// A tick of the times that the kernel tells of a process.
const TICK_US: f64 = 10_000.0;

/// What a process has used so far, in microseconds.
pub fn processor_time(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may hold spaces; what follows it does not.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks =
        fields.split_whitespace().skip(11).take(2).filter_map(|tick| tick.parse::<f64>().ok());
    ticks.sum::<f64>() * TICK_US
}
