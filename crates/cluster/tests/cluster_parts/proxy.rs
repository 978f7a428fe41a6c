//! A proxy before a database that does something to the connection at a chosen statement: cuts it
//! before the server has the statement, halfway, after it (so that only the answer is lost), or so
//! that the server gets it late, when its client is long gone; answers in place of the server; or
//! holds the statement back, for a while or until it is let go.
#![allow(dead_code, reason = "each test program uses its part of it")]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a late statement is held back.
pub const LATE: Duration = Duration::from_millis(700);
/// A server may give up what it does for a client that is gone, so it learns of that only when it
/// has most likely done it.
const SERVED: Duration = Duration::from_millis(100);
/// How long a server may take for a statement whose answer nobody is to hear.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long a statement is held back at most: a test that failed never lets it go.
const HELD_MAX: Duration = Duration::from_secs(600);
const HEADER_BYTES: usize = 4;
const COMMAND_QUERY: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    Before,
    Halfway,
    After,
    Late,
    /// The server does it, and the client hears this error in place of its answer.
    Denied(u16),
    /// The server gets it after this time, and its answer is passed on if the client is still
    /// there.
    Held(Duration),
    /// The same when the test lets it go.
    HeldUntilLetGo,
    /// The server gets it at once, and for this time does not learn that its client has gone.
    Kept(Duration),
}

/// One cut: at the first statement that contains the text.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub at: &'static str,
    pub cut: Cut,
}

#[derive(Default)]
struct Orders {
    plans: Mutex<Vec<Plan>>,
    /// Texts that are replaced by others on their way to the server.
    replaced: Mutex<Vec<(&'static str, &'static str)>>,
    let_go: AtomicBool,
}

pub struct Proxy {
    port: u16,
    orders: Arc<Orders>,
}

impl Proxy {
    pub fn start(server_port: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let orders: Arc<Orders> = Arc::default();
        let shared = orders.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server_port)) else {
                    continue;
                };
                let orders = shared.clone();
                std::thread::spawn(move || serve(client, server, &orders));
            }
        });
        Proxy { port, orders }
    }

    /// The address of a database behind the proxy.
    pub fn url(&self, database_url: &str) -> String {
        let (_, name) = database_url.rsplit_once('/').unwrap();
        format!("mysql://root@127.0.0.1:{}/{name}", self.port)
    }

    /// Makes these cuts, each once, in this order.
    pub fn arm(&self, plans: &[Plan]) {
        *self.orders.plans.lock().unwrap() = plans.to_vec();
    }

    /// Cuts that were not made yet.
    pub fn armed(&self) -> usize {
        self.orders.plans.lock().unwrap().len()
    }

    /// The server gets what is held back until then, and what would be from now on.
    pub fn let_go(&self) {
        self.orders.let_go.store(true, Ordering::SeqCst);
    }

    /// From now on the server gets the second text wherever a statement has the first.
    pub fn replace(&self, from: &'static str, to: &'static str) {
        self.orders.replaced.lock().unwrap().push((from, to));
    }
}

pub fn port_of(database_url: &str) -> u16 {
    let (_, rest) = database_url.split_once("127.0.0.1:").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

/// What the thread that passes answers on is told, and tells.
#[derive(Default)]
struct Back {
    muted: AtomicBool,
    heard: AtomicBool,
}

fn serve(mut client: TcpStream, mut server: TcpStream, orders: &Orders) {
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let back = Arc::new(Back::default());
    let (answers, answered) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let told = back.clone();
    let passing = std::thread::spawn(move || pass_back(answers, answered, &told));
    while let Ok(packet) = read_packet(&mut client) {
        let packet = replaced(packet, orders);
        match due(&packet, orders) {
            None => {
                if server.write_all(&packet).is_err() {
                    break;
                }
            }
            Some(held @ (Cut::Held(_) | Cut::HeldUntilLetGo)) => {
                hold(held, orders);
                if server.write_all(&packet).is_err() {
                    break;
                }
                std::thread::sleep(SERVED);
            }
            Some(Cut::Kept(time)) => {
                if server.write_all(&packet).is_err() {
                    break;
                }
                std::thread::sleep(time);
            }
            Some(Cut::Denied(code)) => {
                back.muted.store(true, Ordering::SeqCst);
                let _gone = server.write_all(&packet);
                let until = Instant::now() + ANSWER_MAX;
                while !back.heard.load(Ordering::SeqCst) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(1));
                }
                std::thread::sleep(SERVED);
                let _gone = client.write_all(&error_packet(code));
                break;
            }
            Some(cut) => {
                // The client hears nothing more, whatever the server says.
                let _gone = client.shutdown(Shutdown::Both);
                cut_off(&mut server, &packet, cut);
                break;
            }
        }
    }
    // What was sent is still read by the server before it sees the end.
    let _gone = server.shutdown(Shutdown::Write);
    let _over = passing.join();
}

fn hold(held: Cut, orders: &Orders) {
    if let Cut::Held(time) = held {
        return std::thread::sleep(time);
    }
    let until = Instant::now() + HELD_MAX;
    while !orders.let_go.load(Ordering::SeqCst) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn cut_off(server: &mut TcpStream, packet: &[u8], cut: Cut) {
    let end = match cut {
        Cut::Before => return,
        Cut::Halfway => packet.len() / 2,
        _ => packet.len(),
    };
    if cut == Cut::Late {
        std::thread::sleep(LATE);
    }
    let _gone = server.write_all(&packet[..end]);
    if cut != Cut::Halfway {
        std::thread::sleep(SERVED);
    }
}

fn pass_back(mut answers: TcpStream, mut answered: TcpStream, back: &Back) {
    let mut buffer = vec![0; 1 << 16];
    let mut client_gone = false;
    // The server's word is taken even when nobody hears it any more.
    while let Ok(count @ 1..) = answers.read(&mut buffer) {
        if back.muted.load(Ordering::SeqCst) {
            back.heard.store(true, Ordering::SeqCst);
        } else if !client_gone {
            client_gone = answered.write_all(&buffer[..count]).is_err();
        }
    }
    back.heard.store(true, Ordering::SeqCst);
    let _gone = answered.shutdown(Shutdown::Both);
}

/// The protocol's first answer to a statement, as an error.
fn error_packet(code: u16) -> Vec<u8> {
    let mut payload = vec![0xff];
    payload.extend(code.to_le_bytes());
    payload.extend(b"#70100said by the proxy");
    let mut packet = (payload.len() as u32).to_le_bytes().to_vec();
    packet[HEADER_BYTES - 1] = 1;
    packet.extend(payload);
    packet
}

fn is_query(packet: &[u8]) -> bool {
    packet.get(HEADER_BYTES) == Some(&COMMAND_QUERY)
}

fn find(packet: &[u8], text: &str) -> Option<usize> {
    packet.windows(text.len()).position(|window| window == text.as_bytes())
}

fn due(packet: &[u8], orders: &Orders) -> Option<Cut> {
    let mut plans = orders.plans.lock().unwrap();
    let next = plans.first()?;
    if !is_query(packet) || find(packet, next.at).is_none() {
        return None;
    }
    Some(plans.remove(0).cut)
}

fn replaced(mut packet: Vec<u8>, orders: &Orders) -> Vec<u8> {
    if !is_query(&packet) {
        return packet;
    }
    for (from, to) in orders.replaced.lock().unwrap().iter() {
        if let Some(at) = find(&packet, from) {
            packet.splice(at..at + from.len(), to.bytes());
            let bytes = (packet.len() - HEADER_BYTES) as u32;
            packet[..HEADER_BYTES - 1].copy_from_slice(&bytes.to_le_bytes()[..HEADER_BYTES - 1]);
        }
    }
    packet
}

fn read_packet(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut packet = vec![0; HEADER_BYTES];
    stream.read_exact(&mut packet)?;
    let bytes = usize::from(packet[0]) | usize::from(packet[1]) << 8 | usize::from(packet[2]) << 16;
    packet.resize(HEADER_BYTES + bytes, 0);
    stream.read_exact(&mut packet[HEADER_BYTES..])?;
    Ok(packet)
}
