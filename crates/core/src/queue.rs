//! The bounded queue before the decider. A waiting request can still be withdrawn when its
//! deadline passes; one that was taken cannot, and its outcome is then unknown.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use guanxi_model::{Code, Error, Request};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

const WAITING: u8 = 0;
const TAKEN: u8 = 1;
const WITHDRAWN: u8 = 2;

pub type Reply<W> = Result<W, Error>;

/// A request in the queue; `W` is what its caller gets.
#[derive(Debug)]
pub struct Pending<W> {
    pub request: Request,
    pub deadline: Instant,
    /// Waits however long it takes: nobody grows impatient.
    patient: bool,
    phase: Arc<AtomicU8>,
    /// None once the caller was told that the outcome is unknown.
    reply: Option<oneshot::Sender<Reply<W>>>,
    /// Where the caller waits, if that is a runtime.
    runtime: Option<Handle>,
}

impl<W> Pending<W> {
    /// The caller may have gone; then nobody is told.
    pub fn answer(mut self, reply: Reply<W>) {
        self.tell(reply);
    }

    /// Tells an impatient caller that it takes too long; the request goes on.
    pub fn give_up(&mut self, error: &Error) {
        if !self.patient {
            self.tell(Err(error.clone()));
        }
    }

    fn tell(&mut self, reply: Reply<W>) {
        if let Some(waiting) = self.reply.take() {
            let _gone = waiting.send(reply);
        }
    }
}

/// A request, and what its caller is told.
pub type Answered<W> = (Pending<W>, Reply<W>);

/// Answers many callers. Those who wait on a runtime are told there, all of them by one task: from
/// another thread each would be woken by a system call of its own.
pub fn answer_all<W: Send + 'static>(answered: impl IntoIterator<Item = Answered<W>>) {
    let mut apart: Vec<(Handle, Vec<Answered<W>>)> = Vec::new();
    for (mut pending, reply) in answered {
        let Some(runtime) = pending.runtime.take() else {
            pending.answer(reply);
            continue;
        };
        match apart.iter_mut().find(|(known, _)| known.id() == runtime.id()) {
            Some((_, waiting)) => waiting.push((pending, reply)),
            None => apart.push((runtime, vec![(pending, reply)])),
        }
    }
    for (runtime, waiting) in apart {
        let tell = move || waiting.into_iter().for_each(|(pending, reply)| pending.answer(reply));
        runtime.spawn(async { tell() });
    }
}

/// The caller's end of a queued request.
#[derive(Debug)]
pub struct Ticket<W> {
    phase: Arc<AtomicU8>,
    pub reply: oneshot::Receiver<Reply<W>>,
}

impl<W> Ticket<W> {
    /// Gives up. The error says whether the change can still happen.
    pub fn withdraw(&self) -> Error {
        let message = "the write was not done before its deadline";
        let error = Error::new(Code::DeadlineExceeded, message);
        let withdrawn =
            self.phase.compare_exchange(WAITING, WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        if withdrawn.is_ok() { error } else { error.outcome_unknown() }
    }
}

#[derive(Debug)]
pub struct Queue<W> {
    changes_max: usize,
    inner: Mutex<QueueState<W>>,
    filled: Condvar,
}

#[derive(Debug)]
struct QueueState<W> {
    waiting: VecDeque<Pending<W>>,
    changes: usize,
    /// How many requests whoever takes them waits for.
    wanted: usize,
    closed: bool,
    refusing: Option<Refusing>,
}

/// Why nothing more is taken, and until when; for good without.
#[derive(Debug)]
struct Refusing {
    why: Error,
    until: Option<Instant>,
}

impl<W> QueueState<W> {
    fn refused(&self) -> Option<&Error> {
        let refusing = self.refusing.as_ref()?;
        let over = refusing.until.is_some_and(|until| until <= Instant::now());
        (!over).then_some(&refusing.why)
    }
}

impl<W> Queue<W> {
    pub fn new(changes_max: usize) -> Queue<W> {
        let waiting = VecDeque::new();
        let inner = QueueState { waiting, changes: 0, wanted: 1, closed: false, refusing: None };
        Queue { changes_max, inner: Mutex::new(inner), filled: Condvar::new() }
    }

    pub fn push(
        &self,
        request: Request,
        deadline: Instant,
        patient: bool,
    ) -> Result<Ticket<W>, Error> {
        let inner = self.inner.lock();
        match inner.refused() {
            Some(why) => Err(why.clone()),
            None => self.enter(inner, request, deadline, patient),
        }
    }

    /// Takes nothing more until then; returns a ticket that is answered when everything that was
    /// taken before has been.
    pub fn refuse_until(
        &self,
        why: Error,
        until: Instant,
        last: Request,
    ) -> Result<Ticket<W>, Error> {
        let mut inner = self.inner.lock();
        inner.refusing = Some(Refusing { why, until: Some(until) });
        self.enter(inner, last, until, true)
    }

    /// Where nothing is taken for a time, takes nothing for good; false where that time is over.
    pub fn keep_refusing(&self, why: Error) -> bool {
        let mut inner = self.inner.lock();
        let refuses = inner.refused().is_some();
        if refuses {
            inner.refusing = Some(Refusing { why, until: None });
        }
        refuses
    }

    pub fn refuse_for_good(&self, why: Error) {
        self.inner.lock().refusing = Some(Refusing { why, until: None });
    }

    /// Takes requests again.
    pub fn refuse_no_more(&self) {
        self.inner.lock().refusing = None;
    }

    fn enter(
        &self,
        mut inner: MutexGuard<'_, QueueState<W>>,
        request: Request,
        deadline: Instant,
        patient: bool,
    ) -> Result<Ticket<W>, Error> {
        let count = request.changes.len();
        if inner.closed {
            return Err(Error::new(Code::Unavailable, "the service is stopping"));
        }
        // One request always fits an empty queue, however large it is.
        if inner.changes > 0 && inner.changes + count > self.changes_max {
            let message = format!("{} changes wait already; try again shortly", inner.changes);
            return Err(Error::new(Code::Overloaded, message));
        }
        let (sender, reply) = oneshot::channel();
        let phase = Arc::new(AtomicU8::new(WAITING));
        inner.changes += count;
        let (taken, reply_to) = (phase.clone(), Some(sender));
        // Who waits for as long as it takes may block the very runtime.
        let runtime = if patient { None } else { Handle::try_current().ok() };
        let pending =
            Pending { request, deadline, patient, phase: taken, reply: reply_to, runtime };
        inner.waiting.push_back(pending);
        let enough = inner.waiting.len() >= inner.wanted;
        drop(inner);
        if enough {
            self.filled.notify_one();
        }
        Ok(Ticket { phase, reply })
    }

    /// Waits for work and takes up to `changes_max` changes of it, at least one request. None
    /// when the queue is closed and empty.
    pub fn take(&self, changes_max: usize) -> Option<VecDeque<Pending<W>>> {
        let mut inner = self.inner.lock();
        loop {
            let mut taken = VecDeque::new();
            let mut changes = 0;
            while let Some(next) = inner.waiting.front() {
                let count = next.request.changes.len();
                if changes > 0 && changes + count > changes_max {
                    break;
                }
                let Some(pending) = inner.waiting.pop_front() else {
                    break;
                };
                inner.changes -= count;
                if let Some(pending) = claim(pending) {
                    changes += count;
                    taken.push_back(pending);
                }
            }
            if !taken.is_empty() {
                return Some(taken);
            }
            if inner.closed {
                return None;
            }
            self.filled.wait(&mut inner);
        }
    }

    /// Waits until so many requests wait, or for `time` after the first: fewer and larger batches
    /// for a short wait.
    pub fn gather(&self, requests: usize, time: Duration) {
        let mut inner = self.inner.lock();
        while inner.waiting.is_empty() && !inner.closed {
            self.filled.wait(&mut inner);
        }
        let deadline = Instant::now() + time;
        inner.wanted = requests.max(1);
        while inner.waiting.len() < inner.wanted && !inner.closed {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.filled.wait_for(&mut inner, left);
        }
        inner.wanted = 1;
    }

    /// Takes no more; what waits is still served.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.filled.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.inner.lock().closed
    }

    /// How many wait.
    pub fn changes(&self) -> usize {
        self.inner.lock().changes
    }
}

/// The request, unless its caller withdrew it or its deadline has passed.
fn claim<W>(pending: Pending<W>) -> Option<Pending<W>> {
    let claimed =
        pending.phase.compare_exchange(WAITING, TAKEN, Ordering::AcqRel, Ordering::Acquire);
    if claimed.is_err() {
        return None;
    }
    if pending.deadline <= Instant::now() {
        let message = "the write waited past its deadline and was not done";
        pending.answer(Err(Error::new(Code::DeadlineExceeded, message)));
        return None;
    }
    Some(pending)
}

#[cfg(test)]
mod tests {
    use guanxi_model::{Outcome, TenantId};

    use super::*;

    fn request(changes: usize) -> Request {
        let node = guanxi_model::NodeKey {
            tenant: TenantId(1),
            node_type: guanxi_model::NodeTypeId(1),
            id: 1,
        };
        let change = guanxi_model::Change::SetNode { node, private: None };
        Request::new(TenantId(1), vec![change; changes])
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn it_is_bounded_in_changes_and_takes_bounded_batches() {
        let queue = Queue::<()>::new(10);
        for _ in 0..5 {
            queue.push(request(2), soon(), false).unwrap();
        }
        assert_eq!(queue.push(request(1), soon(), false).unwrap_err().code, Code::Overloaded);
        assert_eq!(queue.take(5).unwrap().len(), 2, "two of two changes, the third would be six");
        assert_eq!(queue.changes(), 6);
        queue.close();
        assert_eq!(queue.push(request(1), soon(), false).unwrap_err().code, Code::Unavailable);
        assert_eq!(queue.take(100).unwrap().len(), 3, "what waits is still served");
        assert!(queue.take(100).is_none());
    }

    #[test]
    fn gathering_waits_for_more_but_not_for_long() {
        let queue = Queue::<()>::new(10);
        queue.push(request(2), soon(), false).unwrap();
        let begun = Instant::now();
        queue.gather(2, Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20), "one is missing");
        std::thread::scope(|scope| {
            scope.spawn(|| queue.gather(2, Duration::from_secs(600)));
            // One without a change is work too.
            queue.push(request(0), soon(), false).unwrap();
        });
        assert_eq!(queue.take(5).unwrap().len(), 2);
        queue.close();
        queue.gather(2, Duration::from_secs(600));
    }

    #[test]
    fn it_refuses_for_a_time_or_for_good() {
        let queue = Queue::<()>::new(10);
        let why = || Error::new(Code::ReadOnly, "moving");
        assert!(!queue.keep_refusing(why()), "there was no pause to keep");
        queue.push(request(1), soon(), false).unwrap();
        queue.refuse_until(why(), soon(), request(0)).unwrap();
        assert_eq!(queue.push(request(1), soon(), false).unwrap_err().code, Code::ReadOnly);
        assert_eq!(queue.take(5).unwrap().len(), 2, "what was there, and the last one");
        queue.refuse_until(why(), Instant::now(), request(0)).unwrap();
        assert!(!queue.keep_refusing(why()), "the time is over");
        queue.push(request(1), soon(), false).unwrap();
        queue.refuse_until(why(), soon(), request(0)).unwrap();
        assert!(queue.keep_refusing(why()));
        assert_eq!(queue.push(request(1), soon(), false).unwrap_err().code, Code::ReadOnly);
        queue.refuse_no_more();
        queue.push(request(1), soon(), false).unwrap();
    }

    #[test]
    fn a_request_larger_than_the_queue_fits_when_it_is_empty() {
        let queue = Queue::<()>::new(10);
        queue.push(request(1_000), soon(), false).unwrap();
        assert_eq!(queue.take(5).unwrap().len(), 1);
    }

    #[test]
    fn withdrawing_knows_whether_the_change_can_still_happen() {
        let queue = Queue::<()>::new(10);
        let waiting = queue.push(request(1), soon(), false).unwrap();
        assert_eq!(waiting.withdraw().outcome, Outcome::None);
        let taken = queue.push(request(1), soon(), false).unwrap();
        assert_eq!(queue.take(5).unwrap().len(), 1, "the withdrawn one is passed over");
        assert_eq!(taken.withdraw().outcome, Outcome::Unknown);
        let mut late = queue.push(request(1), Instant::now(), false).unwrap();
        queue.close();
        assert!(queue.take(5).is_none());
        let error = late.reply.try_recv().unwrap().unwrap_err();
        assert_eq!((error.code, error.outcome), (Code::DeadlineExceeded, Outcome::None));
    }
}
