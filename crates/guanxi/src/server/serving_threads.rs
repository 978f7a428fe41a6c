//! The threads that serve connections. Each has a runtime of its own and keeps a connection from its
//! first byte to its last, so that a request is read, answered and written on one core and wakes
//! nobody else. One of them is the thread that accepts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use guanxi_core::crew::{Crew, Workers};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Handle};
use tokio::sync::watch;

#[derive(Debug)]
pub struct ServingThreads {
    workers: Workers,
    stopping: watch::Sender<bool>,
    /// Those beside the one that accepts.
    others: Vec<ServingThread>,
    own: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct ServingThread {
    runtime: Handle,
    /// Connections that it has.
    load: Arc<AtomicUsize>,
}

impl ServingThreads {
    /// So many threads in all, that of the caller among them; each of the others may have so many
    /// threads for blocking work.
    pub fn start(crew: &Crew, count: usize, blocking_max: usize) -> io::Result<ServingThreads> {
        let mut threads = ServingThreads::only_own(crew);
        for number in 1..count {
            let runtime = Builder::new_current_thread()
                .max_blocking_threads(blocking_max)
                .enable_all()
                .build()?;
            let (handle, mut stopping) = (runtime.handle().clone(), threads.stopping.subscribe());
            threads.workers.spawn(format!("guanxi-serve-{number}"), move |_| {
                // Its tasks run as long as this one does; without a sender nobody needs them.
                let _stopped = runtime.block_on(stopping.wait_for(|stopping| *stopping));
            })?;
            threads.others.push(ServingThread { runtime: handle, load: Arc::default() });
        }
        Ok(threads)
    }

    /// The runtime of whoever accepts serves all, with as many workers as it has.
    pub fn only_own(crew: &Crew) -> ServingThreads {
        let stopping = watch::Sender::new(false);
        let own = Arc::default();
        ServingThreads { workers: crew.workers(), stopping, others: Vec::new(), own }
    }

    /// Serves a connection on the thread that has the fewest.
    pub fn serve<Serving: Future<Output = ()> + Send + 'static>(
        &self,
        stream: TcpStream,
        serve: impl FnOnce(TcpStream) -> Serving + Send + 'static,
    ) {
        let own = self.own.load(Ordering::Relaxed);
        let load = |thread: &&ServingThread| thread.load.load(Ordering::Relaxed);
        match self.others.iter().min_by_key(load).filter(|other| load(other) < own) {
            None => {
                let place = LoadPlace::take(&self.own);
                tokio::spawn(async move {
                    serve(stream).await;
                    drop(place);
                });
            }
            Some(other) => {
                let place = LoadPlace::take(&other.load);
                other.runtime.spawn(async move {
                    let moved = stream.into_std().and_then(TcpStream::from_std);
                    match moved {
                        Ok(stream) => serve(stream).await,
                        Err(error) => tracing::warn!(%error, "a connection could not be served"),
                    }
                    drop(place);
                });
            }
        }
    }

    /// Ends the other threads, and with them all that they still serve.
    pub fn stop(&self) {
        self.workers.signal().stop();
        let _none_left = self.stopping.send(true);
        self.workers.finish();
    }
}

/// Held by a connection as long as its thread serves it.
struct LoadPlace(Arc<AtomicUsize>);

impl LoadPlace {
    fn take(load: &Arc<AtomicUsize>) -> LoadPlace {
        load.fetch_add(1, Ordering::Relaxed);
        LoadPlace(load.clone())
    }
}

impl Drop for LoadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
