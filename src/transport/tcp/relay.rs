//! Threads that encrypt and decrypt for links of several connections, so that the AES of one core is not their limit.
//!
//! The thread that makes progress encrypts the first connection of a link. Each other one is handed to the thread of
//! its position, which keeps the socket and the session; plain bytes go through a queue in each direction.

mod connection;
mod queues;
// The certificates are those of the tests of TLS.
#[cfg(test)]
mod tests;
mod thread;

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::buffered::BufferedLinks;
use crate::net::tls::Session;
use crate::sys::OwnedSocket;
use crate::types::Rank;
use connection::Relay;
use queues::{Chunk, Common, MAX_CHUNKS, Queues, again};
use thread::{Inbox, Thread};

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
        let common = Arc::new(Common::new(buffered_links, rank));
        let number = inbox.add(Relay::new(socket, session, common.clone()));
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
            inbox.end();
        }
        for Thread { handle, .. } in threads {
            let _ = handle.join();
        }
    }
}
