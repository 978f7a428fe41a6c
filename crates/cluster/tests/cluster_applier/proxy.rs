//! A proxy before a SQL server that cuts a connection at a chosen request: before the server gets
//! it, or after the server has answered and before the client hears.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// A server that says nothing for this long has finished its answer.
const ANSWERED_AFTER: Duration = Duration::from_millis(150);

pub struct Proxy {
    pub port: u16,
    plan: Arc<Plan>,
}

#[derive(Default)]
struct Plan {
    /// Requests until the cut; below 0 there is none.
    left: AtomicI64,
    after_the_answer: AtomicBool,
    cuts: AtomicU64,
}

impl Proxy {
    pub fn before(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Plan { left: AtomicI64::new(-1), ..Plan::default() });
        let shared = plan.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                let plan = shared.clone();
                std::thread::spawn(move || serve(client, server, &plan));
            }
        });
        Proxy { port, plan }
    }

    /// Cuts at the request after `requests` more.
    pub fn cut_after(&self, requests: i64, after_the_answer: bool) {
        self.plan.after_the_answer.store(after_the_answer, Ordering::SeqCst);
        self.plan.left.store(requests, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> u64 {
        self.plan.cuts.load(Ordering::SeqCst)
    }
}

fn serve(mut client: TcpStream, mut server: TcpStream, plan: &Plan) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let muted = Arc::new(AtomicBool::new(false));
    let (back, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let quiet = muted.clone();
    std::thread::spawn(move || answers(back, to_client, &quiet));
    // Packets as the protocol frames them; number 0 begins a request.
    let mut header = [0; 4];
    while client.read_exact(&mut header).is_ok() {
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
        let mut packet = vec![0; length];
        if client.read_exact(&mut packet).is_err() {
            break;
        }
        if header[3] == 0 && plan.left.fetch_sub(1, Ordering::SeqCst) == 0 {
            plan.cuts.fetch_add(1, Ordering::SeqCst);
            if !plan.after_the_answer.load(Ordering::SeqCst) {
                break;
            }
            muted.store(true, Ordering::SeqCst);
        }
        if server.write_all(&header).and_then(|()| server.write_all(&packet)).is_err() {
            break;
        }
        if muted.load(Ordering::SeqCst) {
            // The other thread ends it.
            return;
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

fn answers(mut server: TcpStream, mut client: TcpStream, muted: &AtomicBool) {
    let mut buffer = vec![0; 64 * 1024];
    let mut swallowed = false;
    let _ = server.set_read_timeout(Some(ANSWERED_AFTER));
    loop {
        match server.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) if muted.load(Ordering::SeqCst) => swallowed = true,
            Ok(read) if client.write_all(&buffer[..read]).is_err() => break,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if swallowed {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

/// The same database through the proxy.
pub fn through(proxy: &Proxy, url: &str) -> String {
    let (before, rest) = url.split_once("127.0.0.1:").unwrap();
    let (_, database) = rest.split_once('/').unwrap();
    format!("{before}127.0.0.1:{}/{database}", proxy.port)
}

pub fn server_port(url: &str) -> u16 {
    let (_, rest) = url.split_once("127.0.0.1:").unwrap();
    rest.split_once('/').unwrap().0.parse().unwrap()
}
