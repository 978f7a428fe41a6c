//! Owns where servers live: a directory each, and ports that stay theirs while they are down.
//! What processes left behind that were killed, or whose servers were static, is removed here.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that Linux gives to outgoing connections (from 32768 on), so that none of
/// these takes a server's port while the server is down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;
/// Of 12,000 ports most are free; so many taken ones in a row mean that something else is wrong.
const PORT_TRIES_MAX: u32 = 1_000;
/// A socket's path has at most 107 bytes, and the directory is the most of it.
const PATH_BYTES_MAX: usize = 90;
const OWNER: &str = "owner";

/// A directory that is removed when this goes out of scope.
pub struct Place {
    path: PathBuf,
    /// Held while this process lives, which tells others that the directory is in use.
    _owner: File,
}

/// A port that no other process of this crate takes.
pub struct Port {
    number: u16,
    _reservation: File,
}

impl Place {
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = base();
        // Between a directory's creation and its lock nobody may look for left ones.
        let sweeping = open(&base.join("lock"));
        sweeping.lock().expect("the lock of the servers' directories");
        remove_left_behind(&base);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{name}-{}-{number}", std::process::id()));
        assert!(
            path.as_os_str().len() <= PATH_BYTES_MAX,
            "{} is too long a path for a socket; set TMPDIR to a shorter directory",
            path.display()
        );
        fs::create_dir(&path).expect("a directory for a server");
        let owner = open(&path.join(OWNER));
        owner.lock().expect("the lock of a new directory");
        Self { path, _owner: owner }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

impl Port {
    pub fn free() -> Self {
        let reservations = base().join("ports");
        fs::create_dir_all(&reservations).expect("a directory for port reservations");
        for _ in 0..PORT_TRIES_MAX {
            let number = fastrand::u16(PORTS);
            let reservation = open(&reservations.join(number.to_string()));
            if reservation.try_lock().is_ok()
                && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok()
            {
                return Self { number, _reservation: reservation };
            }
        }
        panic!("no free port of 127.0.0.1 between {} and {}", PORTS.start, PORTS.end);
    }

    pub fn number(&self) -> u16 {
        self.number
    }
}

/// One for each user: another's locks could not be opened.
fn base() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    let base = std::env::temp_dir().join(format!("guanxi-services-{user}"));
    fs::create_dir_all(&base).expect("a directory for the servers of tests");
    base
}

fn remove_left_behind(base: &Path) {
    let entries = fs::read_dir(base).expect("the servers' directories can be listed");
    for directory in entries.flatten().map(|entry| entry.path()) {
        let owner = directory.join(OWNER);
        if owner.exists() && open(&owner).try_lock().is_ok() {
            let _ = fs::remove_dir_all(&directory);
        }
    }
}

fn open(path: &Path) -> File {
    let opened = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    opened.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()))
}
