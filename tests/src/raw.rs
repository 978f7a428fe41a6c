//! Bytes over TCP, for what a well-behaved HTTP client would never send.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub struct RawConnection {
    stream: TcpStream,
}

/// What came back before the deadline.
#[derive(Debug)]
pub struct RawAnswer {
    pub text: String,
    /// The server ended the connection.
    pub closed: bool,
}

impl RawAnswer {
    /// The status of the first answer, if there was one.
    pub fn status(&self) -> Option<u16> {
        self.text
            .strip_prefix("HTTP/1.1 ")
            .or_else(|| self.text.strip_prefix("HTTP/1.0 "))
            .and_then(|rest| rest.get(..3))
            .and_then(|status| status.parse().ok())
    }
}

impl RawConnection {
    pub fn open(address: SocketAddr) -> Self {
        Self::try_open(address).expect("the server accepts connections")
    }

    pub fn try_open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self { stream })
    }

    /// False when the server has closed the connection.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    pub fn finish_sending(&self) {
        let _ = self.stream.shutdown(Shutdown::Write);
    }

    /// Reads until one whole answer, the end of the connection, or the deadline.
    pub fn read_answer(&mut self, deadline: Duration) -> RawAnswer {
        self.read_while(deadline, |gathered| !is_whole(gathered))
    }

    /// Reads until the end of the connection or the deadline.
    pub fn read_to_end(&mut self, deadline: Duration) -> RawAnswer {
        self.read_while(deadline, |_| true)
    }

    /// Exactly `count` bytes, or a panic.
    pub fn read_exactly(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        self.stream
            .read_exact(&mut bytes)
            .unwrap_or_else(|error| panic!("{count} more bytes were expected: {error}"));
        bytes
    }

    fn read_while(&mut self, deadline: Duration, more: impl Fn(&[u8]) -> bool) -> RawAnswer {
        let until = Instant::now() + deadline;
        let mut gathered = Vec::new();
        let mut closed = false;
        let mut buffer = [0; 16 * 1024];
        while more(&gathered) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.stream.set_read_timeout(Some(left)).expect("a timeout can be set");
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    closed = true;
                    break;
                }
                Ok(count) => gathered.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    break;
                }
                Err(_) => {
                    closed = true;
                    break;
                }
            }
        }
        RawAnswer { text: String::from_utf8_lossy(&gathered).into_owned(), closed }
    }
}

/// Whether the bytes hold a head and as much body as it announces.
fn is_whole(gathered: &[u8]) -> bool {
    let text = String::from_utf8_lossy(gathered);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let announced = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    announced.is_some_and(|length| body.len() >= length)
}

/// Lets this process hold as many open files as it may; returns that number.
pub fn raise_open_files_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("the soft limit may reach the hard one");
    limit.maximum.unwrap_or(u64::MAX)
}
