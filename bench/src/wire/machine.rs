//! Where it was measured: the machine, the programs, and what the disk does by itself.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use hdrhistogram::Histogram;

use crate::wire::report::{Fsync, Machine};

/// About what a commit of some puts writes.
const WRITE_BYTES: usize = 8 << 10;
const FILE_BYTES: usize = 16 << 20;
const PROBE_TIME: Duration = Duration::from_secs(3);

impl Machine {
    /// The disk is that of the directory.
    pub fn look(directory: &Path) -> anyhow::Result<Machine> {
        let about = fs::read_to_string("/proc/cpuinfo")?;
        let processor = about
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or("unknown", |(_, name)| name.trim());
        let memory = fs::read_to_string("/proc/meminfo")?;
        let kib = memory.split_whitespace().nth(1).context("how much memory there is")?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
        // What follows the number names a builder.
        let number = release.trim().split('-').next().unwrap_or_default();
        Ok(Machine {
            processor: processor.to_owned(),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: kib.parse::<u64>()?.div_ceil(1 << 20),
            kernel: format!("Linux {number}"),
            versions: versions(),
            fsync_ms: fsync(directory)?,
        })
    }
}

/// Today, as 2026-01-31.
pub fn date() -> anyhow::Result<String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let text = guanxi_tests::rfc3339(u64::try_from(now.as_millis())?);
    Ok(text.split('T').next().unwrap_or_default().to_owned())
}

fn versions() -> Vec<(String, String)> {
    let of = |name: &str, program: &Path| {
        let said = Command::new(program).arg("--version").output();
        let said = said.map(|it| String::from_utf8_lossy(&it.stdout).into_owned());
        (name.to_owned(), version(&said.unwrap_or_default()).to_owned())
    };
    vec![
        of("Guanxi", &guanxi_tests::binary()),
        of("Redis", Path::new("redis-server")),
        of("MariaDB", Path::new("mariadbd")),
    ]
}

/// The first word that is one, of what a program says of itself.
fn version(said: &str) -> &str {
    let words = said.split_whitespace().map(|word| word.trim_start_matches("v="));
    let is_version = |word: &&str| word.starts_with(|it: char| it.is_ascii_digit());
    words.filter(|word| word.contains('.')).find(is_version).unwrap_or("unknown")
}

/// With nobody else writing.
fn fsync(directory: &Path) -> anyhow::Result<Fsync> {
    let path = directory.join("probe");
    let file = File::create(&path)?;
    file.write_all_at(&vec![0; FILE_BYTES], 0)?;
    file.sync_all()?;
    let mut latencies = Histogram::<u64>::new(3)?;
    let begun = Instant::now();
    for offset in (0..FILE_BYTES).step_by(WRITE_BYTES).cycle() {
        if begun.elapsed() > PROBE_TIME {
            break;
        }
        let written = Instant::now();
        file.write_all_at(&[1; WRITE_BYTES], offset as u64)?;
        file.sync_data()?;
        latencies.record(written.elapsed().as_micros() as u64)?;
    }
    fs::remove_file(&path)?;
    let ms = |quantile: f64| latencies.value_at_quantile(quantile) as f64 / 1_000.0;
    Ok(Fsync { p50: ms(0.5), p99: ms(0.99), longest: ms(1.0) })
}

/// Bytes that a directory takes of the disk, whatever its files pretend.
pub fn disk_bytes(directory: &Path) -> anyhow::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK_BYTES: u64 = 512;
    let mut bytes = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // A file may go while its server runs.
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => disk_bytes(&entry.path())?,
            false => metadata.blocks() * BLOCK_BYTES,
        };
    }
    Ok(bytes)
}

/// Memory that a process has in use.
pub fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).context("resident memory")?;
    Ok(kib.parse::<u64>()? << 10)
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn programs_say_their_versions_in_several_ways() {
        let said = [
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64", "7.0.15"),
            (
                "mariadbd  Ver 10.11.19-MariaDB-0+deb12u1 for debian-linux-gnu",
                "10.11.19-MariaDB-0+deb12u1",
            ),
            ("guanxi 0.1.0\nwith cluster", "0.1.0"),
            ("", "unknown"),
        ];
        for (said, wanted) in said {
            assert_eq!(version(said), wanted);
        }
    }
}
