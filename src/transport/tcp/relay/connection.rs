//! A connection that was handed over to a thread, which encrypts and decrypts for it.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Instant;

use socket2::SockRef;

use super::super::LINGER;
use super::queues::{Chunk, Common, MAX_CHUNKS};
use crate::net::tls::Session;
use crate::sys::poller::Watched;
use crate::sys::{self, AsRaw, OwnedSocket, Poller, READ, WRITE};

/// How many chunks a connection moves before it is another one's turn.
const CHUNKS_PER_TURN: usize = 16;

/// A connection that was handed over, as the thread has it.
pub(super) struct Relay {
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
    pub closing: Option<Instant>,
    /// All that the link has sent is in the socket, and so is its end.
    closed: bool,
}

impl Relay {
    pub fn new(socket: OwnedSocket, session: Box<Session>, common: Arc<Common>) -> Self {
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
    pub fn work(&mut self) -> bool {
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
    pub fn is_over(&self) -> bool {
        let acknowledged = || !sys::unacknowledged(self.socket.raw()).is_ok_and(|bytes| bytes > 0);
        self.broken
            || self.closing.is_some_and(|until| {
                self.peer_ended || self.cut || self.closed && acknowledged() || Instant::now() >= until
            })
    }

    /// Nothing more comes or goes.
    pub fn end(&self, error: Option<io::Error>) {
        let mut queues = self.common.queues();
        queues.peer_ended = true;
        if queues.broken.is_none() {
            queues.broken = error;
        }
        drop(queues);
        self.common.tell_link();
    }

    /// Lets the poller watch for what is wanted now.
    pub fn watch(&mut self, poller: &Poller, number: u64) -> io::Result<()> {
        let unsent = !self.cut && (self.current.is_some() || self.session.has_unsent());
        let reads = if self.peer_ended || self.waits { 0 } else { READ };
        self.watched.set(poller, &self.socket, reads | if unsent { WRITE } else { 0 }, number)
    }
}
