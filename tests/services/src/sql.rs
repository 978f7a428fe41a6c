//! Speaks just enough of the MySQL protocol to ask a server one question: for readiness, for a
//! fresh database, and for tests that look at what a server keeps.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A paused server accepts connections and never answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Long password, protocol 4.1, transactions, secure connection, authentication by plugin.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
const PACKET_BYTES_MAX: u32 = 1 << 24;
const UTF8MB4: u8 = 45;
const COMMAND_QUIT: u8 = 1;
const COMMAND_QUERY: u8 = 3;
const OK: u8 = 0x00;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;
/// An end packet is shorter than any row that begins with the same byte.
const END_BYTES_MAX: usize = 8;

/// A row's columns as text; `None` is NULL.
pub type Row = Vec<Option<String>>;

/// A server that speaks MySQL: user root without a password.
pub trait SqlServer {
    fn port(&self) -> u16;

    /// Without a database.
    fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}", self.port())
    }

    fn database_url(&self, database: &str) -> String {
        format!("{}/{database}", self.url())
    }

    /// Runs one statement on a connection of its own.
    fn try_query(&self, statement: &str) -> Result<Vec<Row>, String> {
        query(self.port(), statement)
    }

    /// As `try_query`; an error fails the test.
    #[track_caller]
    fn query(&self, statement: &str) -> Vec<Row> {
        let answer = self.try_query(statement);
        answer.unwrap_or_else(|error| panic!("{statement}: {error}"))
    }
}

/// Creates an empty database for one test on a server that others use too; gives its URL.
pub fn fresh_database(server: &impl SqlServer) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("guanxi_test_{}_{number}", std::process::id());
    server.query(&format!("CREATE DATABASE {name}"));
    server.database_url(&name)
}

pub(crate) fn query(port: u16, statement: &str) -> Result<Vec<Row>, String> {
    let mut connection = Connection::open(port).map_err(|error| error.to_string())?;
    connection.query(statement).map_err(|error| error.to_string())
}

struct Connection {
    stream: TcpStream,
    sequence: u8,
}

impl Connection {
    fn open(port: u16) -> io::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let stream = TcpStream::connect_timeout(&address, ANSWER_TIMEOUT)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let mut connection = Self { stream, sequence: 0 };
        connection.greeting()?;
        Ok(connection)
    }

    fn greeting(&mut self) -> io::Result<()> {
        self.packet()?;
        let mut answer = CAPABILITIES.to_le_bytes().to_vec();
        answer.extend(PACKET_BYTES_MAX.to_le_bytes());
        answer.push(UTF8MB4);
        answer.extend([0; 23]);
        // The user, and a password of no bytes.
        answer.extend(b"root\0\0mysql_native_password\0");
        self.send(&answer)?;
        let mut verdict = self.packet()?;
        if verdict.first() == Some(&END) {
            // Another plugin is asked for; an empty password is empty for all of them.
            self.send(&[])?;
            verdict = self.packet()?;
        }
        match verdict.first() {
            Some(&OK) => Ok(()),
            _ => Err(bad("no login", &verdict)),
        }
    }

    fn query(&mut self, statement: &str) -> io::Result<Vec<Row>> {
        self.sequence = 0;
        let mut command = vec![COMMAND_QUERY];
        command.extend(statement.as_bytes());
        self.send(&command)?;
        let columns = match self.packet()?.as_slice() {
            [OK, ..] => return Ok(Vec::new()),
            [columns, ..] if *columns < NULL => usize::from(*columns),
            other => return Err(bad("no rows", other)),
        };
        // The columns' descriptions and the packet that ends them.
        for _ in 0..=columns {
            self.packet()?;
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.packet()?;
            match packet.first() {
                Some(&END) if packet.len() <= END_BYTES_MAX => return Ok(rows),
                Some(&ERROR) => return Err(bad("no further row", &packet)),
                _ => rows.push(row(&packet, columns)?),
            }
        }
    }

    fn packet(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        self.sequence = header[3].wrapping_add(1);
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let mut content = vec![0; length as usize];
        self.stream.read_exact(&mut content)?;
        Ok(content)
    }

    fn send(&mut self, content: &[u8]) -> io::Result<()> {
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let mut packet = length.to_le_bytes()[..3].to_vec();
        packet.push(self.sequence);
        packet.extend(content);
        self.stream.write_all(&packet)
    }
}

impl Drop for Connection {
    /// A server's log has no word about a connection that said goodbye.
    fn drop(&mut self) {
        self.sequence = 0;
        let _ = self.send(&[COMMAND_QUIT]);
    }
}

fn row(mut packet: &[u8], columns: usize) -> io::Result<Row> {
    let mut row = Row::with_capacity(columns);
    for _ in 0..columns {
        let (first, rest) = packet.split_first().ok_or_else(|| bad("a short row", packet))?;
        let size = match *first {
            NULL => {
                packet = rest;
                row.push(None);
                continue;
            }
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => 0,
        };
        let (length, rest) = match size {
            0 => (usize::from(*first), rest),
            _ => {
                let mut wide = [0; 8];
                let bytes = rest.get(..size).ok_or_else(|| bad("a short row", packet))?;
                wide[..size].copy_from_slice(bytes);
                let length = usize::try_from(u64::from_le_bytes(wide)).map_err(io::Error::other)?;
                (length, &rest[size..])
            }
        };
        let text = rest.get(..length).ok_or_else(|| bad("a short row", packet))?;
        row.push(Some(String::from_utf8_lossy(text).into_owned()));
        packet = &rest[length..];
    }
    Ok(row)
}

fn bad(what: &str, packet: &[u8]) -> io::Error {
    io::Error::other(format!("{what}: {}", String::from_utf8_lossy(packet)))
}
