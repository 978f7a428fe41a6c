//! A proxy before a database that cuts the connection at a chosen statement: before the server has
//! it, halfway, after it (so that only the answer is lost), or so that the server gets it late,
//! when its client is long gone.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a late statement is held back.
const LATE: Duration = Duration::from_millis(700);
/// A server may give up what it does for a client that is gone, so it learns of that only when it
/// has most likely done it.
const SERVED: Duration = Duration::from_millis(100);
const HEADER_BYTES: usize = 4;
const COMMAND_QUERY: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Before,
    Halfway,
    After,
    Late,
}

/// One cut: at the first statement that contains the text.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub at: &'static str,
    pub cut: Cut,
}

pub struct Proxy {
    port: u16,
    plans: Arc<Mutex<Vec<Plan>>>,
}

impl Proxy {
    pub fn start(server_port: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let plans: Arc<Mutex<Vec<Plan>>> = Arc::default();
        let shared = plans.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else {
                    continue;
                };
                let plans = shared.clone();
                std::thread::spawn(move || serve(client, server, &plans));
            }
        });
        Proxy { port, plans }
    }

    /// The address of a database behind the proxy.
    pub fn url(&self, database_url: &str) -> String {
        let (_, name) = database_url.rsplit_once('/').unwrap();
        format!("mysql://root@127.0.0.1:{}/{name}", self.port)
    }

    /// Makes these cuts, each once, in this order.
    pub fn arm(&self, plans: &[Plan]) {
        *self.plans.lock().unwrap() = plans.to_vec();
    }

    /// Cuts that were not made yet.
    pub fn armed(&self) -> usize {
        self.plans.lock().unwrap().len()
    }
}

pub fn port_of(database_url: &str) -> u16 {
    let (_, rest) = database_url.split_once("127.0.0.1:").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

fn serve(mut client: TcpStream, mut server: TcpStream, plans: &Mutex<Vec<Plan>>) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut answers, mut answered) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let back = std::thread::spawn(move || {
        let _over = io::copy(&mut answers, &mut answered);
        let _gone = answered.shutdown(Shutdown::Both);
    });
    while let Ok(packet) = read_packet(&mut client) {
        match due(&packet, plans) {
            None => {
                if server.write_all(&packet).is_err() {
                    break;
                }
            }
            Some(cut) => {
                // The client hears nothing more, whatever the server says.
                let _gone = client.shutdown(Shutdown::Both);
                match cut {
                    Cut::Before => {}
                    Cut::Halfway => {
                        let _gone = server.write_all(&packet[..packet.len() / 2]);
                    }
                    Cut::After => {
                        let _gone = server.write_all(&packet);
                        std::thread::sleep(SERVED);
                    }
                    Cut::Late => {
                        std::thread::sleep(LATE);
                        let _gone = server.write_all(&packet);
                        std::thread::sleep(SERVED);
                    }
                }
                break;
            }
        }
    }
    // What was sent is still read by the server before it sees the end.
    let _gone = server.shutdown(Shutdown::Write);
    let _over = back.join();
}

fn due(packet: &[u8], plans: &Mutex<Vec<Plan>>) -> Option<Cut> {
    let mut plans = plans.lock().unwrap();
    let next = plans.first()?;
    let is_query = packet.get(HEADER_BYTES) == Some(&COMMAND_QUERY);
    let text = next.at.as_bytes();
    let found = packet.windows(text.len()).any(|window| window == text);
    if !(is_query && found) {
        return None;
    }
    Some(plans.remove(0).cut)
}

fn read_packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; HEADER_BYTES];
    stream.read_exact(&mut packet)?;
    let bytes = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(HEADER_BYTES + bytes, 0);
    stream.read_exact(&mut packet[HEADER_BYTES..])?;
    Ok(packet)
}
