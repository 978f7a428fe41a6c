//! A gate before a service: what comes is passed on, but whoever asks for a certain thing is held
//! until the gate is opened. So what such a caller has done before lasts as long as a test wants.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use guanxi_tests::Server;
use parking_lot::{Condvar, Mutex};

/// A caller writes the head of a request at once.
const PIECE_BYTES: usize = 64 * 1024;

pub struct Gate {
    address: SocketAddr,
    latch: Arc<Latch>,
}

#[derive(Default)]
struct Latch {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Default)]
struct State {
    open: bool,
    holds: bool,
}

impl Gate {
    /// Holds requests in whose head this stands.
    pub fn before(server: &Server, held: &'static str) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (latch, to) = (Arc::new(Latch::default()), server.address());
        let gate = Gate { address, latch: latch.clone() };
        thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                let latch = latch.clone();
                thread::spawn(move || pass_on(caller, to, held, &latch));
            }
        });
        gate
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Whether somebody is held.
    pub fn holds(&self) -> bool {
        self.latch.state.lock().holds
    }

    pub fn open(&self) {
        self.latch.state.lock().open = true;
        self.latch.opened.notify_all();
    }
}

/// Whatever breaks on one side ends the other.
fn pass_on(mut caller: TcpStream, to: SocketAddr, held: &str, latch: &Latch) -> io::Result<()> {
    let mut service = TcpStream::connect(to)?;
    let (mut answers, mut back) = (service.try_clone()?, caller.try_clone()?);
    thread::spawn(move || {
        let _broken = io::copy(&mut answers, &mut back);
        let _gone = back.shutdown(Shutdown::Both);
    });
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        let count = caller.read(&mut piece)?;
        if count == 0 {
            return service.shutdown(Shutdown::Both);
        }
        if piece[..count].windows(held.len()).any(|window| window == held.as_bytes()) {
            let mut state = latch.state.lock();
            state.holds = true;
            while !state.open {
                latch.opened.wait(&mut state);
            }
        }
        service.write_all(&piece[..count])?;
    }
}
