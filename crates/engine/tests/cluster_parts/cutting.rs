//! A proxy before a database that cuts connections at a COMMIT: before the server has seen it, or
//! after, so that its answer is lost.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

const NEVER: u8 = 0;
const BEFORE: u8 = 1;
const AFTER: u8 = 2;

#[derive(Clone, Copy)]
pub enum Cut {
    Before,
    After,
}

pub struct Cutting {
    port: u16,
    armed: Arc<AtomicU8>,
    cuts: Arc<AtomicU64>,
}

impl Cutting {
    pub fn before(server: u16) -> Cutting {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (armed, cuts) = (Arc::new(AtomicU8::new(NEVER)), Arc::new(AtomicU64::new(0)));
        let (seen, counted) = (armed.clone(), cuts.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { return };
                let (seen, counted) = (seen.clone(), counted.clone());
                std::thread::spawn(move || pass(client, server, &seen, &counted));
            }
        });
        Cutting { port, armed, cuts }
    }

    /// The same database, through here.
    pub fn url(&self, url: &str) -> String {
        let database = url.rsplit('/').next().unwrap();
        format!("mysql://root@127.0.0.1:{}/{database}", self.port)
    }

    /// Cuts the next connection that sends a COMMIT.
    pub fn arm(&self, cut: Cut) {
        let cut = match cut {
            Cut::Before => BEFORE,
            Cut::After => AFTER,
        };
        self.armed.store(cut, Ordering::SeqCst);
    }

    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }
}

fn pass(mut client: TcpStream, mut server: TcpStream, armed: &AtomicU8, cuts: &AtomicU64) {
    let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    let muted = Arc::new(AtomicU8::new(0));
    let mute = muted.clone();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(count @ 1..) = answers.read(&mut buffer) {
            // The answer to a COMMIT that is to be lost shows only that it was done.
            if mute.load(Ordering::SeqCst) != 0 || back.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        let _ = back.shutdown(Shutdown::Both);
        let _ = answers.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; 1 << 20];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let sent = &buffer[..count];
        let commits = sent.windows(6).any(|window| window == b"COMMIT");
        let cut = if commits { armed.swap(NEVER, Ordering::SeqCst) } else { NEVER };
        if cut != NEVER {
            cuts.fetch_add(1, Ordering::SeqCst);
        }
        if cut == BEFORE {
            break;
        }
        if cut == AFTER {
            muted.store(1, Ordering::SeqCst);
        }
        if server.write_all(sent).is_err() {
            break;
        }
    }
    if muted.load(Ordering::SeqCst) == 0 {
        let _ = server.shutdown(Shutdown::Both);
    }
    let _ = client.shutdown(Shutdown::Both);
}
