//! A connection of the load: sends a request, and finds the end of its answer.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;

use crate::wire::load::requests::Request;
use crate::wire::protocol::{Protocol, grpc};

const BUFFER_BYTES: usize = 64 << 10;

pub struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    request: Vec<u8>,
    sent: usize,
    replies: usize,
    asked: Instant,
    buffer: Vec<u8>,
    filled: usize,
    /// The next stream of HTTP/2.
    stream_id: u32,
}

impl Connection {
    pub fn open(address: SocketAddr, protocol: Protocol) -> anyhow::Result<Connection> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        protocol.greet(&mut stream)?;
        stream.set_nonblocking(true)?;
        Ok(Connection {
            stream: TcpStream::from_std(stream),
            protocol,
            request: Vec::new(),
            sent: 0,
            replies: 0,
            asked: Instant::now(),
            buffer: vec![0; BUFFER_BYTES],
            filled: 0,
            stream_id: grpc::FIRST_STREAM,
        })
    }

    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// When the request under way was asked, or was due.
    pub fn asked(&self) -> Instant {
        self.asked
    }

    pub fn ask(&mut self, request: Request<'_>, at: Instant) -> anyhow::Result<()> {
        self.request.clear();
        self.request.extend_from_slice(request.bytes);
        if self.protocol == Protocol::Grpc {
            grpc::set_stream(&mut self.request, self.stream_id);
            self.stream_id += 2;
        }
        (self.sent, self.replies, self.asked) = (0, request.replies, at);
        self.send_rest()
    }

    pub fn send_rest(&mut self) -> anyhow::Result<()> {
        while self.sent < self.request.len() {
            match self.stream.write(&self.request[self.sent..]) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads what there is; whether the answer is whole.
    pub fn answered(&mut self) -> anyhow::Result<bool> {
        loop {
            if self.filled == self.buffer.len() {
                self.buffer.resize(2 * self.filled, 0);
            }
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => anyhow::bail!("the server closed a connection"),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            // A read that left room has taken all; the next bytes come with an event of their own.
            if self.filled < self.buffer.len() {
                break;
            }
        }
        let bytes = &self.buffer[..self.filled];
        let Some(length) = self.protocol.length(bytes, self.replies)? else { return Ok(false) };
        if self.protocol == Protocol::Grpc {
            self.send_rest()?;
            for answer in grpc::answers_to_pings(&self.buffer[..length]) {
                self.request.extend_from_slice(&answer);
            }
            self.send_rest()?;
            self.buffer.copy_within(length..self.filled, 0);
            self.filled -= length;
        } else {
            anyhow::ensure!(length == self.filled, "more was answered than was asked");
            self.filled = 0;
        }
        Ok(true)
    }
}
