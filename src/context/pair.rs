//! The connection to one peer, under the caller's control.

use std::sync::Arc;
use std::time::Duration;

use crate::context::bootstrap::CONNECT;
use crate::context::{BoundBuffer, Context};
use crate::engine::Spin;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{Rank, Slot};
use crate::version::Version;

/// The connection to one peer.
pub struct Pair {
    context: Arc<Context>,
    rank: Rank,
}

impl Context {
    /// The pair for the connection to `rank`.
    pub fn pair(self: &Arc<Self>, rank: Rank) -> Result<Pair> {
        self.check_rank(rank)?;
        if rank == self.rank {
            return Err(Error::invalid(format!("rank {rank} has no pair with itself")));
        }
        Ok(Pair { context: self.clone(), rank })
    }
}

impl Pair {
    /// The peer.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The address that the peer passes to `connect`. The caller transfers it. If neither the device's options nor a
    /// connected context determine where to listen, this starts to listen at an address that other hosts can reach, if
    /// there is one.
    pub fn address(&self) -> Result<Vec<u8>> {
        self.context.listen_anywhere()?;
        let address = self.context.lock()?.messenger.address();
        Ok(self.context.versions.publish(&address))
    }

    /// Connects to the peer, whose `address` returned `peer`, within the context's timeout. Both sides must call it.
    pub fn connect(&self, peer: &[u8]) -> Result<()> {
        let (deadline, timeout) = self.context.deadline(None);
        let connect = || {
            self.context.check_open()?;
            self.context.listen_anywhere()?;
            if Version::decode(peer).is_none() {
                return Err(Error::invalid(format!(
                    "what was given is not the address of a pair: {} bytes",
                    peer.len()
                )));
            }
            let address = self.context.versions.read(self.rank, peer)?;
            self.context.lock()?.messenger.set_peer(self.rank, address)?;
            self.context.await_connection(self.rank, deadline, timeout)
        };
        connect().map_err(|error: Error| self.context.amended(None, deadline, error.during(CONNECT)))
    }

    /// Closes this connection; operations that wait for it fail.
    pub fn close(&self) {
        let Ok(mut guard) = self.context.lock() else { return };
        let text = format!("rank {} has closed its pair with rank {}", self.context.rank, self.rank);
        guard.messenger.disconnect(self.rank, &Error::new(ErrorKind::Closed, text));
        guard.progress();
        self.context.finish_closing(guard);
    }

    /// Whether the connection is established.
    pub fn is_connected(&self) -> bool {
        self.context.lock().is_ok_and(|guard| matches!(guard.messenger.is_connected(self.rank), Ok(true)))
    }

    /// Sets how threads wait that wait only for this pair, including current waits. `busy_poll`: they never sleep.
    /// Otherwise `sync`: they sleep in the system at once instead of polling first. Neither: like other waits of this
    /// context.
    pub fn set_sync(&self, sync: bool, busy_poll: bool) -> Result<()> {
        let spin = match (sync, busy_poll) {
            (_, true) => Some(Spin::FOREVER),
            (true, false) => Some(Spin::of(Duration::ZERO)),
            (false, false) => None,
        };
        self.context.lock()?.waiters.set_pair_spin(self.rank, spin);
        // A sleeping thread may have to poll from now on.
        self.context.engine().wake();
        Ok(())
    }

    /// A buffer that is written into the peer's receive buffer of the same slot.
    ///
    /// # Safety
    /// `ptr` is valid for `bytes` until the buffer is dropped.
    pub unsafe fn send_buffer(&self, slot: Slot, ptr: *const u8, bytes: usize) -> Result<BoundBuffer> {
        BoundBuffer::new(&self.context, self.rank, slot, ptr.cast_mut(), bytes, false)
    }

    /// A buffer into which the peer's send buffer of the same slot writes, at any time until it is dropped.
    ///
    /// # Safety
    /// `ptr` is valid for writes of `bytes` until the buffer is dropped.
    pub unsafe fn recv_buffer(&self, slot: Slot, ptr: *mut u8, bytes: usize) -> Result<BoundBuffer> {
        BoundBuffer::new(&self.context, self.rank, slot, ptr, bytes, true)
    }
}
