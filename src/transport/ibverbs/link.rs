//! A link by queue pairs.

use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use super::common::Common;
use super::connection::Connection;
use super::shared::Shared;
use crate::transport::connections::Linger;
use crate::transport::{DrainingLink, Interest, Link, OneSided, Placement};

/// How long a message is sent in the stream at most; longer ones are placed.
const EAGER_BYTES: usize = 16 << 10;
/// Once in so many turns without bytes, a link looks for the peer's close notice.
const TURNS: u32 = 64;
/// Once in so many times that it does, it lets the connector look after devices and silent peers: a thread that polls a
/// few links may not call the connector for long.
const LOOKS: u32 = 16;

/// A connection that is removed when this is dropped.
struct Owned {
    shared: Arc<Shared>,
    id: u32,
}

impl Owned {
    fn with<T>(&self, work: impl FnOnce(&mut Connection, &mut Common) -> T) -> T {
        let mut state = self.shared.lock();
        let (connection, common) = state.connection(self.id).expect("it is removed by `drop`");
        work(connection, common)
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let notice = self.with(|connection, _| connection.part());
        // Without the lock, which what keeps links that have ended takes after its own.
        if let Some((inner, notice)) = notice {
            inner.end(Vec::new(), notice);
        }
        self.shared.lock().remove(self.id);
    }
}

/// A link to a peer.
pub struct IbverbsLink {
    owned: Owned,
    linger: Linger,
    /// Times that nothing was received since it last looked for the end.
    turns: u32,
    /// Times that it has looked.
    looks: u32,
}

impl IbverbsLink {
    /// The link of the connection `id`, whose queue pairs are connected.
    pub fn new(shared: Arc<Shared>, id: u32, linger: Linger) -> Self {
        Self { owned: Owned { shared, id }, linger, turns: 0, looks: 0 }
    }
}

impl Link for IbverbsLink {
    fn send(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        self.owned.with(|connection, common| connection.send(parts, common))
    }

    fn receive(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let first = self.owned.with(|connection, common| connection.receive(parts, common));
        if !matches!(&first, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            return first;
        }
        self.turns += 1;
        if self.turns >= TURNS {
            self.turns = 0;
            self.looks = self.looks.wrapping_add(1);
            let is_due = self.looks.is_multiple_of(LOOKS);
            self.owned.with(|connection, common| {
                common.is_due |= is_due;
                connection.look(common);
            });
        }
        // After the look: what came before the end is received before it.
        self.owned.shared.lock().poll();
        self.owned.with(|connection, common| connection.receive(parts, common))
    }

    fn watch(&mut self, interest: Interest) -> io::Result<()> {
        self.owned.with(|connection, common| {
            connection.watched = interest;
            connection.touch(common);
        });
        Ok(())
    }

    fn placement(&mut self) -> Option<&mut dyn Placement> {
        Some(self)
    }

    #[cfg(test)]
    fn exposures(&self) -> (usize, usize) {
        self.owned.with(|connection, _| connection.in_use())
    }

    fn one_sided(&mut self) -> Option<&mut dyn OneSided> {
        Some(self)
    }

    fn end(self: Box<Self>, rest: Vec<u8>, close_notice: Vec<u8>) {
        let Self { owned, linger, .. } = *self;
        let (inner, notice, lingers) = owned.with(|connection, common| connection.end(rest, close_notice, common));
        // Without the lock, which what keeps links that have ended takes after its own.
        if let Some(inner) = inner {
            inner.end(Vec::new(), notice);
        }
        if lingers {
            linger(Box::new(Draining(owned)));
        }
    }
}

impl Placement for IbverbsLink {
    fn eager_bytes(&self) -> usize {
        EAGER_BYTES
    }

    unsafe fn expose(&mut self, key: u32, into: Option<*mut u8>, bytes: usize) -> bool {
        self.owned.with(|connection, common| connection.expose(key, into, bytes, common))
    }

    fn placed(&mut self, key: u32) -> Option<&[u8]> {
        let (start, bytes) = self.owned.with(|connection, _| connection.placed(key))?;
        // SAFETY: the peer has written the buffer, and does not write there again; it belongs to the exposure until
        // `withdraw`, which needs this link exclusively.
        Some(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }

    fn withdraw(&mut self, key: u32, is_done: bool) {
        self.owned.with(|connection, common| connection.withdraw(key, is_done, common));
    }

    fn forget(&mut self, key: u32) {
        self.owned.with(|connection, _| connection.forget(key));
    }

    unsafe fn place(&mut self, key: u32, from: *const u8, bytes: usize, ticket: u32) -> bool {
        self.owned.with(|connection, common| connection.place(key, from, bytes, ticket, common))
    }

    fn finished(&mut self) -> Option<u32> {
        self.owned.with(|connection, _| connection.take_finished())
    }

    fn cancel(&mut self, ticket: u32) {
        self.owned.with(|connection, common| connection.cancel(ticket, common));
    }
}

impl OneSided for IbverbsLink {
    unsafe fn publish(&mut self, region: u32, memory: *mut u8, bytes: usize) -> bool {
        self.owned.with(|connection, common| connection.publish(region, memory, bytes, common))
    }

    fn retract(&mut self, region: u32) {
        self.owned.with(|connection, common| connection.retract(region, common));
    }

    fn published(&self, region: u32) -> Option<usize> {
        self.owned.with(|connection, _| connection.published(region))
    }

    unsafe fn put(&mut self, region: u32, offset: usize, from: *const u8, bytes: usize, ticket: u32) -> bool {
        self.owned.with(|connection, common| connection.put((region, offset), from, bytes, ticket, common))
    }

    unsafe fn get(&mut self, region: u32, offset: usize, into: *mut u8, bytes: usize, ticket: u32) -> bool {
        self.owned.with(|connection, common| connection.get((region, offset), into, bytes, ticket, common))
    }
}

/// A connection whose link has ended, until the peer has all that was sent.
struct Draining(Owned);

impl DrainingLink for Draining {
    fn linger(&mut self) -> bool {
        self.0.shared.lock().poll();
        !self.0.with(|connection, common| connection.drain(common))
    }
}
