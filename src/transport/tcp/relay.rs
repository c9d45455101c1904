//! Threads that encrypt and decrypt for links of several connections, so that the AES of one core is not their limit.
//!
//! The thread that makes progress encrypts the first connection of a link. Each other one is handed to the thread of
//! its position, which keeps the socket and the session; plain bytes go through a queue in each direction.

// The certificates are those of the tests of TLS.
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::buffered::BufferedLinks;
use super::{LINGER, STRIPE_BYTES, TICK};
use crate::net::tls::Session;
use crate::sys::poller::{Event, Watched};
use crate::sys::{self, AsRaw, ForkMark, OwnedSocket, Poller, PollerKind, READ, Registration, WRITE, Waker};
use crate::types::Rank;

/// Bytes of a chunk: as many as the link sends by one connection before it is the next one's turn.
const CHUNK_BYTES: usize = STRIPE_BYTES;
/// The maximum number of chunks in a queue.
const MAX_CHUNKS: usize = 4;
/// How many chunks a connection moves before it is another one's turn.
const CHUNKS_PER_TURN: usize = 16;
/// Number of the waker's event; those of connections are their own.
const WAKER: u64 = u64::MAX;

/// Bytes on their way.
struct Chunk {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

impl Chunk {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }
}

/// What the link and the thread share of a connection.
#[derive(Default)]
struct Queues {
    outgoing: VecDeque<Chunk>,
    incoming: VecDeque<Chunk>,
    /// Chunks that can be filled.
    free: Vec<Chunk>,
    /// The link waits for room in `outgoing`, or the thread for room in `incoming`.
    link_waits: bool,
    thread_waits: bool,
    /// The link has ended: nothing is added to `outgoing`.
    link_ended: bool,
    /// The peer has ended the stream after what is in `incoming`.
    peer_ended: bool,
    /// Why nothing more comes, and why nothing can be sent any more.
    broken: Option<io::Error>,
    cut: Option<io::Error>,
}

impl Queues {
    fn fresh(&mut self) -> Chunk {
        self.free.pop().unwrap_or_else(|| Chunk { bytes: vec![0; CHUNK_BYTES].into(), begin: 0, end: 0 })
    }
}

/// Returns a copy of `error`, which cannot be cloned.
fn again(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

/// What the link and the thread have in common.
struct Common {
    queues: Mutex<Queues>,
    buffered_links: Arc<BufferedLinks>,
    rank: Rank,
}

impl Common {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link can go on.
    fn tell_link(&self) {
        self.buffered_links.tell(self.rank);
    }
}

/// A connection that another thread encrypts, as the link has it. [`BufferedLinks`] tells the context when it can go
/// on.
pub struct Relayed {
    common: Arc<Common>,
    inbox: Arc<Inbox>,
    number: u64,
    /// What is being received.
    current: Option<Chunk>,
}

impl Relayed {
    /// Sends like [`Stream::send`](crate::net::stream::Stream::send). An error may come before what the peer has sent:
    /// see [`Relayed::is_settled`].
    pub fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut queues = self.common.queues();
        if let Some(error) = queues.cut.as_ref().or(queues.broken.as_ref()) {
            return Err(again(error));
        }
        if queues.outgoing.len() >= MAX_CHUNKS {
            queues.link_waits = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        let mut chunk = queues.fresh();
        drop(queues);
        (chunk.begin, chunk.end) = (0, 0);
        for part in parts {
            let count = part.len().min(chunk.bytes.len() - chunk.end);
            chunk.bytes[chunk.end..chunk.end + count].copy_from_slice(&part[..count]);
            chunk.end += count;
        }
        let sent = chunk.end;
        let mut queues = self.common.queues();
        queues.outgoing.push_back(chunk);
        let first = queues.outgoing.len() == 1;
        drop(queues);
        if first {
            self.inbox.tell(self.number);
        }
        Ok(sent)
    }

    /// Receives like [`Stream::receive`](crate::net::stream::Stream::receive).
    pub fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = 0;
        for part in parts {
            let mut at = 0;
            while at < part.len() {
                let Some(chunk) = &mut self.current else {
                    match self.next() {
                        Ok(true) => continue,
                        Ok(false) => return Ok(filled),
                        // The next call finds the error again.
                        Err(_) if filled > 0 => return Ok(filled),
                        Err(error) => return Err(error),
                    }
                };
                let count = chunk.rest().len().min(part.len() - at);
                part[at..at + count].copy_from_slice(&chunk.rest()[..count]);
                chunk.begin += count;
                (at, filled) = (at + count, filled + count);
                if chunk.rest().is_empty() {
                    let chunk = self.current.take();
                    self.common.queues().free.extend(chunk);
                }
            }
        }
        Ok(filled)
    }

    /// Takes the next chunk. Returns whether there is one before the end of the stream.
    fn next(&mut self) -> io::Result<bool> {
        let mut queues = self.common.queues();
        self.current = queues.incoming.pop_front();
        if self.current.is_some() {
            let waits = std::mem::take(&mut queues.thread_waits);
            drop(queues);
            if waits {
                self.inbox.tell(self.number);
            }
            return Ok(true);
        }
        match &queues.broken {
            Some(error) => Err(again(error)),
            None if queues.peer_ended => Ok(false),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Whether nothing comes from the peer but what can be received now. The link is told when this becomes true.
    pub fn is_settled(&self) -> bool {
        let queues = self.common.queues();
        queues.peer_ended || queues.broken.is_some()
    }

    /// Whether [`Relayed::receive`] does not block.
    pub fn has_received(&self) -> bool {
        let ready = |queues: &Queues| !queues.incoming.is_empty() || queues.peer_ended || queues.broken.is_some();
        self.current.is_some() || ready(&self.common.queues())
    }

    /// No more is sent: the thread sends what is in the queue, and the end of the stream after it.
    pub fn close(&mut self) {
        // In a child by fork there is no thread, and it may have held the lock.
        if !self.inbox.mark.is_child() {
            self.common.queues().link_ended = true;
            self.inbox.tell(self.number);
        }
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        self.close();
    }
}

/// The threads of a device, which start when they are needed: one for each position but the first, for the links to all
/// ranks. Thread-safe.
#[derive(Default)]
pub struct Relays {
    threads: Mutex<Vec<Thread>>,
}

struct Thread {
    inbox: Arc<Inbox>,
    handle: JoinHandle<()>,
}

/// What a thread is told.
struct Inbox {
    state: Mutex<InboxState>,
    waker: Waker,
    ended: AtomicBool,
    mark: ForkMark,
}

#[derive(Default)]
struct InboxState {
    connections: Vec<(u64, Relay)>,
    /// Connections that can go on.
    due: Vec<u64>,
    /// The number of the next connection.
    next: u64,
    /// The thread sleeps, or is about to.
    asleep: bool,
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection of this number can go on.
    fn tell(&self, number: u64) {
        let mut state = self.state();
        state.due.push(number);
        self.wake(state);
    }

    fn wake(&self, mut state: MutexGuard<'_, InboxState>) {
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.waker.wake();
        }
    }
}

impl Relays {
    /// Hands over the connection at `position`, which is not the first, of the link to `rank`. `buffered_links` is told
    /// what the link must know.
    pub fn hand_over(
        &self,
        position: usize,
        (socket, session): (OwnedSocket, Box<Session>),
        rank: Rank,
        buffered_links: Arc<BufferedLinks>,
    ) -> io::Result<Relayed> {
        let mut threads = self.threads();
        while threads.len() < position {
            threads.push(Thread::start()?);
        }
        let inbox = threads[position - 1].inbox.clone();
        drop(threads);
        let common = Arc::new(Common { queues: Mutex::default(), buffered_links, rank });
        let mut state = inbox.state();
        let number = state.next;
        state.next += 1;
        state.connections.push((number, Relay::new(socket, session, common.clone())));
        inbox.wake(state);
        Ok(Relayed { common, inbox, number, current: None })
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Thread>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the threads once their connections, whose links have all ended, need not be kept. Not in a child by fork,
    /// where they do not exist.
    pub fn end(&self) {
        let threads = std::mem::take(&mut *self.threads());
        for Thread { inbox, .. } in &threads {
            inbox.ended.store(true, Ordering::SeqCst);
            inbox.waker.wake();
        }
        for Thread { handle, .. } in threads {
            let _ = handle.join();
        }
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let poller = Poller::new(PollerKind::SYSTEM)?;
        let waker = Waker::new()?;
        let woken = poller.add(&waker, READ, WAKER)?;
        let (state, ended, mark) = (Mutex::default(), AtomicBool::new(false), ForkMark::new()?);
        let inbox = Arc::new(Inbox { state, waker, ended, mark });
        let work = {
            let inbox = inbox.clone();
            move || run(&inbox, &poller, &woken)
        };
        let handle = std::thread::Builder::new().name("gloo_rs_tls".into()).spawn(work)?;
        Ok(Self { inbox, handle })
    }
}

/// The work of a thread.
fn run(inbox: &Inbox, poller: &Poller, _woken: &Registration) {
    sys::block_signals();
    let mut relays: HashMap<u64, Relay> = HashMap::new();
    let mut events = [Event::default(); 64];
    let mut end_at = None;
    // Connections that can go on, and those whose links have ended.
    let (mut due, mut closing) = (Vec::new(), Vec::new());
    loop {
        let ended = inbox.ended.load(Ordering::SeqCst);
        let mut state = inbox.state();
        relays.extend(state.connections.drain(..).inspect(|(number, _)| due.push(*number)));
        due.append(&mut state.due);
        state.asleep = due.is_empty();
        drop(state);
        if ended {
            let end_at = *end_at.get_or_insert_with(|| Instant::now() + LINGER);
            if relays.is_empty() || Instant::now() >= end_at {
                return;
            }
        }
        let timeout = match due.is_empty() {
            true => (ended || !closing.is_empty()).then_some(TICK),
            false => Some(Duration::ZERO),
        };
        let count = poller.wait(&mut events, timeout).unwrap_or_else(|error| {
            // Nothing would come any more: the links hear why.
            relays.drain().for_each(|(_, relay)| relay.end(Some(again(&error))));
            std::thread::sleep(TICK);
            0
        });
        due.append(&mut closing);
        for event in &events[..count] {
            match event.number {
                WAKER => inbox.waker.clear(),
                number => due.push(number),
            }
        }
        due.sort_unstable();
        due.dedup();
        due.retain(|number| {
            let Some(relay) = relays.get_mut(number) else { return false };
            let more = relay.work();
            let failed = relay.watch(poller, *number).err();
            if relay.is_over() || failed.is_some() {
                relay.end(failed);
                relays.remove(number);
                return false;
            }
            if relay.closing.is_some() {
                closing.push(*number);
            }
            more
        });
    }
}

/// A connection that was handed over, as the thread has it.
struct Relay {
    watched: Watched,
    socket: OwnedSocket,
    session: Box<Session>,
    common: Arc<Common>,
    /// What is being sent.
    current: Option<Chunk>,
    /// Whether there is no room for what the peer sends.
    waits: bool,
    /// The peer has ended its side.
    peer_ended: bool,
    /// Nothing can be received any more.
    broken: bool,
    /// Nothing can be sent any more: what the link sends is dropped.
    cut: bool,
    /// The link has ended: until when the connection is kept.
    closing: Option<Instant>,
    /// All that the link has sent is in the socket, and so is its end.
    closed: bool,
}

impl Relay {
    fn new(socket: OwnedSocket, session: Box<Session>, common: Arc<Common>) -> Self {
        Self {
            watched: Watched::default(),
            socket,
            session,
            common,
            current: None,
            waits: false,
            peer_ended: false,
            broken: false,
            cut: false,
            closing: None,
            closed: false,
        }
    }

    /// Moves bytes in both directions. Returns whether it could go on.
    fn work(&mut self) -> bool {
        (0..CHUNKS_PER_TURN).all(|_| {
            let sent = self.send();
            let received = self.receive();
            sent || received
        })
    }

    /// Takes the next chunk from the link, or finds that it has ended.
    fn next(&mut self) {
        let mut queues = self.common.queues();
        self.current = queues.outgoing.pop_front();
        let ended = self.current.is_none() && queues.link_ended;
        let waits = self.current.is_some() && std::mem::take(&mut queues.link_waits);
        drop(queues);
        if ended {
            self.closing = Some(Instant::now() + LINGER);
            self.session.close();
        }
        if waits {
            self.common.tell_link();
        }
    }

    /// Moves bytes from the link to the peer. Returns whether it could go on.
    fn send(&mut self) -> bool {
        if self.closing.is_none() && self.current.is_none() {
            self.next();
        }
        if !self.cut {
            match self.send_current() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(e) => {
                    self.common.queues().cut = Some(e);
                    self.cut = true;
                    self.common.tell_link();
                }
            }
        }
        // The chunk is sent, or nothing can be sent any more.
        let chunk = self.current.take();
        let moved = chunk.is_some();
        self.common.queues().free.extend(chunk);
        moved
    }

    /// Sends the current chunk, if there is one, and what the session holds. Returns whether all is in the socket.
    fn send_current(&mut self) -> io::Result<bool> {
        let socket = self.socket.raw();
        if let Some(chunk) = &mut self.current {
            while !chunk.rest().is_empty() {
                chunk.begin += self.session.send(socket, &[IoSlice::new(chunk.rest())])?;
            }
        }
        let all = self.session.flush(socket)?;
        if all && self.closing.is_some() && !self.closed {
            let _ = SockRef::from(&self.socket).shutdown(Shutdown::Write);
            self.closed = true;
        }
        Ok(all)
    }

    /// Moves bytes from the peer to the link. Returns whether it could go on.
    fn receive(&mut self) -> bool {
        if self.peer_ended || self.broken {
            return false;
        }
        let mut queues = self.common.queues();
        self.waits = queues.incoming.len() >= MAX_CHUNKS && !queues.link_ended;
        queues.thread_waits = self.waits;
        if self.waits {
            return false;
        }
        let mut chunk = queues.fresh();
        drop(queues);
        let received = self.session.receive(self.socket.raw(), &mut [IoSliceMut::new(&mut chunk.bytes)]);
        let mut queues = self.common.queues();
        match received {
            Ok(count @ 1..) if !queues.link_ended => {
                (chunk.begin, chunk.end) = (0, count);
                queues.incoming.push_back(chunk);
                let first = queues.incoming.len() == 1;
                drop(queues);
                if first {
                    self.common.tell_link();
                }
                return true;
            }
            // Dropped, since unread bytes would let the kernel discard what the peer has not acknowledged.
            Ok(1..) => {
                queues.free.push(chunk);
                return true;
            }
            Ok(0) => {
                queues.peer_ended = true;
                self.peer_ended = true;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                queues.free.push(chunk);
                return false;
            }
            Err(e) => {
                queues.broken = Some(e);
                self.broken = true;
            }
        }
        drop(queues);
        self.common.tell_link();
        false
    }

    /// Whether the connection need not be kept.
    fn is_over(&self) -> bool {
        let acknowledged = || !sys::unacknowledged(self.socket.raw()).is_ok_and(|bytes| bytes > 0);
        self.broken
            || self.closing.is_some_and(|until| {
                self.peer_ended || self.cut || self.closed && acknowledged() || Instant::now() >= until
            })
    }

    /// Nothing more comes or goes.
    fn end(&self, error: Option<io::Error>) {
        let mut queues = self.common.queues();
        queues.peer_ended = true;
        if queues.broken.is_none() {
            queues.broken = error;
        }
        drop(queues);
        self.common.tell_link();
    }

    /// Lets the poller watch for what is wanted now.
    fn watch(&mut self, poller: &Poller, number: u64) -> io::Result<()> {
        let unsent = !self.cut && (self.current.is_some() || self.session.has_unsent());
        let reads = if self.peer_ended || self.waits { 0 } else { READ };
        self.watched.set(poller, &self.socket, reads | if unsent { WRITE } else { 0 }, number)
    }
}
