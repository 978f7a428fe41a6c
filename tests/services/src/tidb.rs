//! A TiDB server: the real SQL layer and transactions over its embedded storage.

use std::ops::Deref;

use crate::place::{Place, Port};
use crate::process::{Launch, Process};
use crate::programs::{Missing, or_skip, tidb_server};
use crate::sql::{self, SqlServer};

pub struct TiDb {
    process: Process,
    port: Port,
    status_port: Port,
}

impl TiDb {
    pub fn start() -> Self {
        let program = tidb_server()
            .unwrap_or_else(|missing| panic!("{missing}; scripts/services.sh builds it"));
        let place = Place::new("tidb");
        let port = Port::free();
        let status_port = Port::free();
        let number = port.number();
        let launch = Launch::new(program)
            .arguments(["--store", "unistore", "--path"])
            .argument(place.path().join("store"))
            .argument("--temp-dir")
            .argument(place.path().join("tmp"))
            .arguments(["--host", "127.0.0.1", "--advertise-address", "127.0.0.1"])
            .arguments(["-P", &number.to_string()])
            .arguments(["--status-host", "127.0.0.1"])
            .arguments(["--status", &status_port.number().to_string()])
            // Clients come over TCP, and the default socket would be shared by all servers.
            .arguments(["--socket", ""])
            .argument("--log-slow-query")
            .argument(place.path().join("slow.log"));
        let process =
            Process::start("TiDB", place, launch, move || sql::query(number, "SELECT 1").map(drop));
        Self { process, port, status_port }
    }

    /// `None`, after a loud word, where the program is missing and not required.
    pub fn start_or_skip(test: &str) -> Option<Self> {
        or_skip(test, "TiDB", Self::missing(), Self::start)
    }

    /// Speaks HTTP: metrics, and the server's own state.
    pub fn status_port(&self) -> u16 {
        self.status_port.number()
    }

    pub(crate) fn missing() -> Option<Missing> {
        tidb_server().err()
    }
}

impl SqlServer for TiDb {
    fn port(&self) -> u16 {
        self.port.number()
    }
}

impl Deref for TiDb {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}
