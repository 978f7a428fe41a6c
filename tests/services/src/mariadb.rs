//! A MariaDB server that keeps every commit on disk before it answers.

use std::ops::Deref;
use std::path::Path;

use crate::place::{Place, Port};
use crate::process::{Launch, Process};
use crate::programs::{Missing, on_path, or_skip};
use crate::sql::{self, SqlServer};

/// A program started by root must say that it stays root.
const ROOT: &str = "--user=root";

pub struct MariaDb {
    process: Process,
    port: Port,
}

impl MariaDb {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further options of `mariadbd`, as `--innodb-lock-wait-timeout=2`.
    pub fn start_with(options: &[&str]) -> Self {
        let place = Place::new("mariadb");
        let content = place.path().join("data");
        Self::launch(place, &content, options)
    }

    /// The same with its content in a directory of the caller's, where an earlier one may have left
    /// it.
    pub fn start_in(directory: &Path, options: &[&str]) -> Self {
        Self::launch(Place::new("mariadb"), &directory.join("data"), options)
    }

    fn launch(place: Place, content: &Path, options: &[&str]) -> Self {
        let port = Port::free();
        let user = rustix::process::getuid().is_root().then_some(ROOT);
        if !content.exists() {
            Launch::new(program("mariadb-install-db"))
                .argument("--no-defaults")
                .path("--datadir", content)
                .arguments(["--auth-root-authentication-method=normal", "--skip-test-db"])
                .arguments(user)
                .run(&place);
        }
        let number = port.number();
        let launch = Launch::new(program("mariadbd"))
            .argument("--no-defaults")
            .arguments(user)
            .path("--datadir", content)
            .path("--socket", &place.path().join("sock"))
            .path("--pid-file", &place.path().join("pid"))
            .path("--tmpdir", place.path())
            .argument(format!("--port={number}"))
            .arguments(["--bind-address=127.0.0.1", "--skip-name-resolve"])
            .arguments(["--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=128M"])
            .argument("--max-connections=500")
            .arguments(options);
        let process = Process::start("MariaDB", place, launch, move || {
            sql::query(number, "SELECT 1").map(drop)
        });
        Self { process, port }
    }

    /// `None`, after a loud word, where the programs are missing and not required.
    pub fn start_or_skip(test: &str) -> Option<Self> {
        or_skip(test, "MariaDB", Self::missing(), Self::start)
    }

    /// The same, with further options.
    pub fn start_with_or_skip(test: &str, options: &[&str]) -> Option<Self> {
        or_skip(test, "MariaDB", Self::missing(), || Self::start_with(options))
    }

    pub(crate) fn missing() -> Option<Missing> {
        on_path("mariadbd").and_then(|_| on_path("mariadb-install-db")).err()
    }
}

impl SqlServer for MariaDb {
    fn port(&self) -> u16 {
        self.port.number()
    }
}

impl Deref for MariaDb {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

fn program(name: &str) -> std::path::PathBuf {
    on_path(name).unwrap_or_else(|missing| panic!("{missing}; scripts/services.sh gets it"))
}
