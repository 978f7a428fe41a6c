//! The protocols that servers are asked in, as far as a client of few requests needs them: where an
//! answer ends, whether it is a refusal, and what it says.

pub mod grpc;
pub mod http;
pub mod mysql;
pub mod resp;

use std::net::TcpStream;
use std::time::Duration;

const GREETING_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    Http,
    Resp,
    Grpc,
    MySql,
}

impl Protocol {
    /// Says and hears what must come before the first request.
    pub fn greet(self, stream: &mut TcpStream) -> anyhow::Result<()> {
        stream.set_read_timeout(Some(GREETING_TIMEOUT))?;
        match self {
            Protocol::Http | Protocol::Resp => Ok(()),
            Protocol::Grpc => grpc::greet(stream),
            Protocol::MySql => mysql::greet(stream),
        }
    }

    /// Bytes of the answer, if it is whole; a refusal is an error.
    pub fn length(self, bytes: &[u8], replies: usize) -> anyhow::Result<Option<usize>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        match self {
            Protocol::Http => {
                let Some(parts) = http::answer(bytes)? else { return Ok(None) };
                let good = (200..300).contains(&parts.status);
                anyhow::ensure!(good, "{}: {}", parts.status, http::shown(parts.body));
                Ok(Some(parts.length))
            }
            Protocol::Resp => resp::length(bytes, replies),
            Protocol::Grpc => grpc::length(bytes),
            Protocol::MySql => mysql::length(bytes),
        }
    }
}
