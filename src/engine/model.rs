//! Who polls, who sleeps and who is woken, in every order of events: the engine itself, over locks and descriptors of
//! loom's, which has no timeouts. So a thread that nobody wakes is a deadlock, and loom reports it. `scripts/loom.sh`
//! runs it.

mod pool;
mod queue;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::sync::{Condvar, Mutex};
use loom::thread::{JoinHandle, yield_now};

use super::ready::{Entry, Ready};
use super::requests::{Ended, Side};
use super::*;
use crate::collective::{Collective, Shape};
use crate::engine::plan::PlanCache;
use crate::messaging::{Recv, Source};
use crate::sys::Pollable;
use crate::testing::links::{Sleep, quiet, unconnected};
use crate::testing::tier::Tier;
use crate::transport::{Clock, Interest, Link, Watch};
use crate::types::{Slot, Space};
use crate::wire::fingerprint::{fingerprint, kind};
use crate::wire::header::HEADER_BYTES;
use crate::wire::{Envelope, Message};

const CONNECTION: u32 = 1;
/// The engine's frames are larger than loom expects of a thread.
const STACK_BYTES: usize = 1 << 20;
/// The bytes of the element that is reduced.
const BYTES: usize = 8;
const DIGEST: u64 = 5;
/// Descriptors are numbered in the order in which they are made. The waker of the engine comes after it.
const DOORBELL: RawFd = 0;
/// How often a thread may lose its core where it does not wait. Of the wake-ups in the engine, one is missed only after
/// three.
const PREEMPTIONS: usize = 3;

/// Descriptors, and the bytes that one of them tells of.
#[derive(Default)]
struct System {
    /// Whether each descriptor is readable.
    readable: Vec<bool>,
    /// What a peer has sent.
    bytes: VecDeque<u8>,
    /// A rank that shares memory says that a peer must ring.
    sleeps: bool,
    /// The device waits for the rank's doorbell.
    armed: bool,
    /// How often the device has progressed the context.
    served: usize,
    /// The device ends.
    stops: bool,
}

loom::lazy_static! {
    static ref SYSTEM: Mutex<System> = Mutex::new(System::default());
    static ref READABLE: Condvar = Condvar::new();
}

impl System {
    fn descriptor(&mut self) -> RawFd {
        self.readable.push(false);
        self.readable.len() as RawFd - 1
    }
}

/// An eventfd.
pub struct Waker(RawFd);

impl Waker {
    pub fn new() -> io::Result<Self> {
        Ok(Self(SYSTEM.lock().unwrap().descriptor()))
    }

    pub fn wake(&self) {
        SYSTEM.lock().unwrap().readable[self.0 as usize] = true;
        READABLE.notify_all();
    }

    pub fn clear(&self) {
        SYSTEM.lock().unwrap().readable[self.0 as usize] = false;
    }
}

impl AsRawFd for Waker {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

fn index(source: &Pollable) -> usize {
    match source {
        Pollable::Socket(fd) => *fd as usize,
        Pollable::Poller(_) => unreachable!("the model has sockets only"),
    }
}

/// Time stands still, and no sleep ends by itself.
struct Forever(Instant);

impl Clock for Forever {
    fn now(&self) -> Instant {
        self.0
    }

    fn sleep(&self, sources: &[Pollable], _: Instant) -> bool {
        let mut system = SYSTEM.lock().unwrap();
        while !sources.iter().any(|source| system.readable[index(source)]) {
            system = READABLE.wait(system).unwrap();
        }
        system.readable[index(&sources[0])]
    }

    fn yield_now(&self) {
        yield_now();
    }
}

/// A socket.
struct Socket(RawFd);

impl Link for Socket {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut system = SYSTEM.lock().unwrap();
        let n = system.bytes.len().min(parts[0].len());
        if n == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        parts[0].iter_mut().zip(system.bytes.drain(..n)).for_each(|(into, byte)| *into = byte);
        system.readable[self.0 as usize] = !system.bytes.is_empty();
        Ok(n)
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

/// A link in memory.
struct Ring;

impl Link for Ring {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(parts.iter().map(|part| part.len()).sum())
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut system = SYSTEM.lock().unwrap();
        let n = system.bytes.len().min(parts[0].len());
        parts[0].iter_mut().zip(system.bytes.drain(..n)).for_each(|(into, byte)| *into = byte);
        if n == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n) }
    }

    fn watch(&mut self, _: Interest) -> io::Result<()> {
        Ok(())
    }

    fn end(self: Box<Self>, _: Vec<u8>, _: Vec<u8>) {}
}

/// What the connector tells of a rank that shares memory, whose doorbell is the first descriptor.
fn sleeps(sleep: Sleep) {
    let mut system = SYSTEM.lock().unwrap();
    system.sleeps = matches!(sleep, Sleep::Begins);
    if let Sleep::Ends(true) = sleep {
        system.readable[DOORBELL as usize] = false;
    }
}

/// The registration of the context at its device.
struct Armed;

impl Watch for Armed {
    fn arm(&self) {
        SYSTEM.lock().unwrap().armed = true;
        READABLE.notify_all();
    }

    fn disarm(&self) {
        SYSTEM.lock().unwrap().armed = false;
    }

    fn is_armed(&self) -> bool {
        SYSTEM.lock().unwrap().armed
    }
}

/// Rank 0 of two, and the descriptor of its link to rank 1, or its doorbell.
struct Job {
    engine: Engine,
    socket: RawFd,
    /// The ranks share memory: a peer rings only if this one sleeps.
    shares: bool,
    deadline: Instant,
    /// A receive has ended.
    received: Mutex<bool>,
    receives: Condvar,
}

impl Job {
    fn new() -> Arc<Self> {
        let socket = SYSTEM.lock().unwrap().descriptor();
        let mut messenger = Messenger::new(0, 2, unconnected(Some(Pollable::Socket(socket)), None), None);
        messenger.established(1, Box::new(Socket(socket)), CONNECTION);
        let now = Instant::now();
        let engine =
            Engine::new(messenger, Arc::new(Forever(now)), |_| String::new(), Spin::of(Duration::ZERO)).unwrap();
        let (received, receives) = (Mutex::new(false), Condvar::new());
        Arc::new(Self { engine, socket, shares: false, deadline: now + Duration::from_secs(1), received, receives })
    }

    /// A job of ranks that share memory, otherwise as [`Job::new`]; a device progresses the context while no thread
    /// waits.
    fn sharing() -> (Arc<Self>, JoinHandle<()>) {
        let socket = SYSTEM.lock().unwrap().descriptor();
        assert_eq!(socket, DOORBELL);
        SYSTEM.lock().unwrap().armed = true;
        let mut messenger = Messenger::new(0, 2, quiet(Pollable::Socket(socket), sleeps), None);
        messenger.established(1, Box::new(Ring), CONNECTION);
        let now = Instant::now();
        let engine =
            Engine::new(messenger, Arc::new(Forever(now)), |_| String::new(), Spin::of(Duration::ZERO)).unwrap();
        engine.set_watch(Box::new(Armed));
        let (received, receives) = (Mutex::new(false), Condvar::new());
        let job =
            Arc::new(Self { engine, socket, shares: true, deadline: now + Duration::from_secs(1), received, receives });
        let device = job.clone();
        (job, thread(move || device.drive()))
    }

    /// What the device's thread does.
    fn drive(&self) {
        loop {
            let mut system = SYSTEM.lock().unwrap();
            while !system.stops && !(system.armed && system.readable[self.socket as usize]) {
                system = READABLE.wait(system).unwrap();
            }
            if system.stops {
                return;
            }
            drop(system);
            self.engine.serve();
            SYSTEM.lock().unwrap().served += 1;
            READABLE.notify_all();
            // The context may have been locked.
            yield_now();
        }
    }

    /// Posts a receive of a message without bytes, for which no thread waits.
    fn post(&self, slot: Slot) -> u32 {
        let mut guard = self.engine.lock();
        let owner = guard.requests.enter();
        // SAFETY: no bytes are received.
        unsafe { guard.messenger.recv(recv(slot, owner)) };
        self.engine.leave(guard);
        owner
    }

    /// Returns when the device, or another thread, has received the message.
    fn await_posted(&self, owner: u32) {
        loop {
            let served = SYSTEM.lock().unwrap().served;
            // In the second one, nothing has progressed the context since the first.
            (0..2).for_each(|_| self.engine.tick());
            if self.engine.lock().requests.take(owner, Side::Recv).is_some() {
                return;
            }
            let mut system = SYSTEM.lock().unwrap();
            while system.served == served {
                system = READABLE.wait(system).unwrap();
            }
        }
    }

    fn stop(&self, device: JoinHandle<()>) {
        SYSTEM.lock().unwrap().stops = true;
        READABLE.notify_all();
        device.join().unwrap();
    }

    /// A thread that receives a message without bytes: how that ended.
    fn receive(self: &Arc<Self>, slot: Slot) -> JoinHandle<Option<Ended>> {
        let job = self.clone();
        thread(move || {
            let ended = job.receive_here(slot);
            *job.received.lock().unwrap() = true;
            job.receives.notify_all();
            ended
        })
    }

    /// Receives a message without bytes on this thread.
    fn receive_here(&self, slot: Slot) -> Option<Ended> {
        let owner = self.post(slot);
        let guard = self.engine.lock();
        let (guard, ended) = self.engine.wait(guard, self.deadline, |core| core.requests.take(owner, Side::Recv));
        self.engine.hand_over(guard);
        ended
    }

    /// A thread that reduces what rank 1 sends, by a function that takes as long as a receive of another thread:
    /// whether it ended.
    fn reduce(self: &Arc<Self>) -> JoinHandle<bool> {
        let job = self.clone();
        thread(move || {
            let shape = Shape::new(Collective::Reduce, 0, 2, 1);
            let plan = PlanCache::default().get(&shape, Collective::Reduce.algorithm("flat").unwrap(), true).unwrap();
            let algorithm = Collective::Reduce.algorithm("flat").unwrap();
            let call = Prepared::internal(plan, (&shape, algorithm), BYTES, DIGEST, false).unwrap();
            let call = Arc::new(Prepared { combine: Combine::User, ..call });
            let (input, mut output) = (0u64, 0u64);
            let binding = Binding {
                call: &call,
                inputs: &[(&raw const input).cast()],
                outputs: &[(&raw mut output).cast()],
                function: Some((awaits_a_receive, Arc::as_ptr(&job).cast_mut().cast())),
                tag: 0,
                in_order: false,
            };
            let mut guard = job.engine.lock();
            let index = guard.start(call.clone(), &binding, None).unwrap();
            let (mut guard, over) = job.engine.finish(guard, index, job.deadline);
            let failed = guard.end(index);
            job.engine.hand_over(guard);
            over && failed.is_none()
        })
    }

    /// Starts a reduction of what rank 1 sends with this tag, which notes that its function is called.
    fn start(self: &Arc<Self>, tag: u64) -> Started {
        let shape = Shape::new(Collective::Reduce, 0, 2, 1);
        let algorithm = Collective::Reduce.algorithm("flat").unwrap();
        let plan = PlanCache::default().get(&shape, algorithm, true).unwrap();
        let call = Prepared::internal(plan, (&shape, algorithm), BYTES, DIGEST, false).unwrap();
        let call = Arc::new(Prepared { combine: Combine::User, ..call });
        let numbers = Box::new([0u64; 2]);
        let binding = Binding {
            call: &call,
            inputs: &[numbers[..1].as_ptr().cast()],
            outputs: &[numbers[1..].as_ptr().cast_mut().cast()],
            function: Some((notes, Arc::as_ptr(self).cast_mut().cast())),
            tag,
            in_order: false,
        };
        let mut guard = self.engine.lock();
        let index = guard.start(call.clone(), &binding, None).unwrap();
        guard.share_function(index);
        self.engine.leave(guard);
        Started { job: self.clone(), index, _numbers: numbers }
    }

    /// Waits until the function of a reduction was called.
    fn await_function(&self) {
        let mut called = self.received.lock().unwrap();
        while !*called {
            called = self.receives.wait(called).unwrap();
        }
    }

    /// The peer sends a message for a receive.
    fn arrives(&self, slot: Slot) {
        self.data(Envelope { space: Space::USER, slot, fingerprint: 0, bytes: 0, more: false });
    }

    /// The peer sends what is to be reduced.
    fn input_arrives(&self) {
        self.input_arrives_with(0);
    }

    fn input_arrives_with(&self, slot: Slot) {
        let fingerprint = fingerprint(DIGEST, 0);
        self.data(Envelope {
            space: Space::collective(kind(DIGEST), 0),
            slot,
            fingerprint,
            bytes: BYTES as u64,
            more: false,
        });
    }

    fn data(&self, envelope: Envelope) {
        self.sends(&Message::Data { envelope, announced: false, placed: 0 }.encode(CONNECTION), envelope.bytes);
    }

    /// The peer sends a header, and so many bytes.
    fn sends(&self, header: &[u8; HEADER_BYTES], bytes: u64) {
        let mut system = SYSTEM.lock().unwrap();
        system.bytes.extend(header);
        system.bytes.extend((0..bytes).map(|_| 0));
        if !self.shares || system.sleeps {
            system.readable[self.socket as usize] = true;
        }
        drop(system);
        READABLE.notify_all();
    }
}

/// The receive of a message without bytes.
fn recv(slot: Slot, owner: u32) -> Recv {
    Recv {
        from: Source::Rank(1),
        space: Space::USER,
        slot,
        fingerprint: 0,
        into: std::ptr::null_mut(),
        bytes: 0,
        exact: true,
        more: false,
        reduce: None,
        token: Requests::token(owner, Side::Recv),
    }
}

/// A reduction that was started.
struct Started {
    job: Arc<Job>,
    index: u32,
    _numbers: Box<[u64; 2]>,
}

impl Started {
    /// Waits for it. Returns whether it ended well.
    fn wait(self) -> bool {
        let engine = &self.job.engine;
        let (mut guard, over) = engine.finish(engine.lock(), self.index, self.job.deadline);
        let failed = guard.end(self.index);
        engine.hand_over(guard);
        over && failed.is_none()
    }

    /// Waits as a thread does that waits for several, until its end is noted.
    fn wait_in_list(self) -> bool {
        let (engine, ready) = (&self.job.engine, Arc::<Ready>::default());
        let mut guard = engine.lock();
        guard.tell(self.index, Arc::new(Noted(Entry { ends: ready.clone(), number: 3 })));
        loop {
            let (core, function) = engine.wait(guard, self.job.deadline, |core| {
                if ready.is_any() { Some(None) } else { core.next_function().map(Some) }
            });
            let Some(function) = function.flatten() else {
                engine.hand_over(core);
                break;
            };
            guard = engine.call_function(core, function);
        }
        ready.take() == [3] && self.wait()
    }
}

impl Started {
    /// Waits as a thread does that waits on several contexts: it does not poll.
    fn wait_for_others(self) -> bool {
        let (engine, ready) = (&self.job.engine, Arc::<Ready>::default());
        let waker = Arc::new(Waker::new().unwrap());
        engine.listen(&waker);
        engine.lock().tell(self.index, Arc::new(Noted(Entry { ends: ready.clone(), number: 3 })));
        loop {
            engine.call_functions();
            if ready.is_any() {
                break;
            }
            engine.sleep(&waker, self.job.deadline);
        }
        engine.ignore(&waker);
        self.wait()
    }
}

/// Notes the end of a run.
struct Noted(Entry);

impl OnEnd for Noted {
    fn ended(&self, _: Instant) {
        self.0.note();
    }
}

unsafe extern "C" fn notes(_: *mut c_void, _: *const c_void, _: *const c_void, _: usize, job: *mut c_void) -> i32 {
    // SAFETY: the thread that makes the call has the job.
    let job = unsafe { &*job.cast::<Job>() };
    *job.received.lock().unwrap() = true;
    job.receives.notify_all();
    0
}

unsafe extern "C" fn awaits_a_receive(
    _: *mut c_void,
    _: *const c_void,
    _: *const c_void,
    _: usize,
    job: *mut c_void,
) -> i32 {
    // SAFETY: the thread that makes the call has the job.
    let job = unsafe { &*job.cast::<Job>() };
    let mut received = job.received.lock().unwrap();
    while !*received {
        received = job.receives.wait(received).unwrap();
    }
    0
}

fn thread<R: std::marker::Send + 'static>(work: impl FnOnce() -> R + std::marker::Send + 'static) -> JoinHandle<R> {
    loom::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).unwrap()
}

fn in_every_order(model: fn()) {
    in_orders_with(PREEMPTIONS, model);
}

fn in_orders_with(preemptions: usize, model: fn()) {
    let mut loom = loom::model::Builder::new();
    loom.preemption_bound = Some(preemptions);
    // Not on loom's first thread, whose stack is small.
    loom.check(move || thread(model).join().unwrap());
}

#[test]
fn a_thread_sleeps_until_its_message_arrives() {
    in_every_order(|| {
        let job = Job::new();
        let receives = job.receive(0);
        job.arrives(0);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn two_threads_wait_and_each_is_told_of_its_message() {
    in_every_order(|| {
        let job = Job::new();
        let receive = [job.receive(0), job.receive(1)];
        job.arrives(0);
        job.arrives(1);
        for receives in receive {
            assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
        }
    });
}

#[test]
fn all_who_wait_are_told_that_the_context_is_broken() {
    in_every_order(|| {
        let job = Job::new();
        let receive = [job.receive(0), job.receive(1)];
        let mut guard = job.engine.lock();
        guard.break_with(&Error::invalid("on purpose"), None);
        job.engine.leave(guard);
        for receives in receive {
            assert!(matches!(receives.join().unwrap(), Some(Ended::Failed(_))));
        }
    });
}

#[test]
fn a_thread_is_told_by_one_that_goes_on_waiting() {
    in_every_order(|| {
        let job = Job::new();
        let [first, second] = [job.receive(0), job.receive(1)];
        job.arrives(0);
        assert!(matches!(first.join().unwrap(), Some(Ended::Message(1, 0))));
        job.arrives(1);
        assert!(matches!(second.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn another_thread_polls_while_a_function_is_at_work() {
    in_every_order(|| {
        let job = Job::new();
        let (reduces, receives) = (job.reduce(), job.receive(0));
        job.input_arrives();
        job.arrives(0);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
        assert!(reduces.join().unwrap());
    });
}

/// The peer sends the second part when the function of the first reduction was called, which only a thread does that
/// waits for the other one.
#[test]
fn the_function_of_a_call_that_was_started_is_called_by_a_thread_that_waits_for_another() {
    in_every_order(|| {
        let job = Job::new();
        let waits = job.start(1);
        let waits = thread(move || waits.wait());
        let peer = job.clone();
        let sends = thread(move || {
            peer.input_arrives_with(0);
            peer.await_function();
            peer.input_arrives_with(1);
        });
        let started = job.start(0);
        sends.join().unwrap();
        assert!(waits.join().unwrap());
        assert!(started.wait());
    });
}

#[test]
fn a_thread_that_waits_for_several_is_told_of_the_end_by_who_polls() {
    in_every_order(|| {
        let job = Job::new();
        let (started, receives) = (job.start(0), job.receive(1));
        let waits = thread(move || started.wait_in_list());
        job.input_arrives_with(0);
        assert!(waits.join().unwrap());
        job.arrives(1);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn a_thread_that_waits_on_several_contexts_is_told_by_who_polls() {
    in_every_order(|| {
        let job = Job::new();
        let (started, receives) = (job.start(0), job.receive(1));
        let waits = thread(move || started.wait_for_others());
        job.input_arrives_with(0);
        assert!(waits.join().unwrap());
        job.arrives(1);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn who_waits_for_a_change_is_told_of_it_by_who_made_it() {
    in_every_order(|| {
        let job = Job::new();
        let (receives, waits) = (job.receive(0), job.clone());
        let waits = thread(move || {
            let guard = waits.engine.lock();
            let (guard, seen) = waits.engine.wait(guard, waits.deadline, |core| (core.connecting > 0).then_some(()));
            waits.engine.hand_over(guard);
            seen.is_some()
        });
        job.engine.lock().connecting = 1;
        job.engine.wake();
        assert!(waits.join().unwrap());
        job.arrives(0);
        assert!(matches!(receives.join().unwrap(), Some(Ended::Message(1, 0))));
    });
}

#[test]
fn a_query_that_comes_while_no_thread_has_ever_waited_is_seen_by_the_device() {
    in_every_order(|| {
        let (job, device) = Job::sharing();
        job.sends(&Message::Query { slot: 0, fingerprint: 0 }.encode(CONNECTION), 0);
        let mut system = SYSTEM.lock().unwrap();
        while !system.bytes.is_empty() {
            system = READABLE.wait(system).unwrap();
        }
        drop(system);
        job.stop(device);
    });
}

#[test]
fn a_message_for_which_no_thread_waits_is_received_by_one_that_waits_for_another_or_by_the_device() {
    // The third preemption takes minutes.
    let preemptions = Tier::from_environment().of(PREEMPTIONS - 1, PREEMPTIONS - 1, PREEMPTIONS);
    in_orders_with(preemptions, || {
        let (job, device) = Job::sharing();
        let owner = job.post(1);
        let peer = job.clone();
        let sends = thread(move || {
            peer.arrives(0);
            peer.arrives(1);
        });
        assert!(matches!(job.receive_here(0), Some(Ended::Message(1, 0))));
        job.await_posted(owner);
        sends.join().unwrap();
        job.stop(device);
    });
}
