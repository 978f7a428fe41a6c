//! A Redis server that keeps nothing: a cache that is empty after every start.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::time::Duration;

use crate::place::{Place, Port};
use crate::process::{Launch, Process};
use crate::programs::{Missing, on_path, or_skip};

/// A paused server accepts connections and never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const PONG: &[u8] = b"+PONG\r\n";

pub struct Redis {
    process: Process,
    port: Port,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further options of `redis-server`, as `--maxmemory`, `16mb`.
    pub fn start_with(options: &[&str]) -> Self {
        let program = on_path("redis-server")
            .unwrap_or_else(|missing| panic!("{missing}; scripts/services.sh gets it"));
        let place = Place::new("redis");
        let port = Port::free();
        let number = port.number();
        let launch = Launch::new(program)
            .arguments(["--port", &number.to_string(), "--bind", "127.0.0.1"])
            .arguments(["--save", "", "--appendonly", "no", "--dir"])
            .argument(place.path())
            .arguments(options);
        let process = Process::start("Redis", place, launch, move || {
            ping(number).map_err(|error| error.to_string())
        });
        Self { process, port }
    }

    /// `None`, after a loud word, where the program is missing and not required.
    pub fn start_or_skip(test: &str) -> Option<Self> {
        Self::start_with_or_skip(test, &[])
    }

    /// The same with further options.
    pub fn start_with_or_skip(test: &str, options: &[&str]) -> Option<Self> {
        or_skip(test, "Redis", Self::missing(), || Self::start_with(options))
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }

    pub(crate) fn missing() -> Option<Missing> {
        on_path("redis-server").err()
    }
}

impl Deref for Redis {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

fn ping(port: u16) -> std::io::Result<()> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(b"PING\r\n")?;
    let mut answer = [0; PONG.len()];
    stream.read_exact(&mut answer)?;
    if answer == PONG { Ok(()) } else { Err(std::io::Error::other("no PONG")) }
}
