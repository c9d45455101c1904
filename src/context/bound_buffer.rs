//! One end of a one-sided channel to one peer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::engine::Idle;
use crate::engine::requests::{Ended, Requests, Side};
use crate::error::{Error, ErrorKind, Result, after};
use crate::types::{Rank, Slot};

/// One end of a one-sided channel to one peer: the sending end writes into the receiving end of the same slot.
/// Thread-safe.
pub struct BoundBuffer {
    context: Arc<Context>,
    rank: Rank,
    slot: Slot,
    memory: *mut u8,
    bytes: usize,
    receives: bool,
    owner: u32,
}

// SAFETY: the caller keeps the memory valid until the buffer is dropped, on whichever thread; the context's lock guards
// the rest.
unsafe impl Send for BoundBuffer {}
// SAFETY: as above.
unsafe impl Sync for BoundBuffer {}

impl BoundBuffer {
    /// See [`Context::is_inherited`].
    pub fn is_inherited(&self) -> bool {
        self.context.is_inherited()
    }

    pub(super) fn new(
        context: &Arc<Context>,
        rank: Rank,
        slot: Slot,
        memory: *mut u8,
        bytes: usize,
        receives: bool,
    ) -> Result<Self> {
        let mut guard = context.lock()?;
        let owner = guard.requests.enter();
        let bound = match receives {
            // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
            true => unsafe { guard.messenger.bind(rank, slot, memory, bytes, Requests::token(owner, Side::Recv)) },
            false => Ok(()),
        };
        match bound {
            Ok(()) => guard.messenger.connections_mut().retain_memory(memory, bytes),
            Err(_) => guard.requests.leave(owner),
        }
        context.engine().leave(guard);
        bound?;
        Ok(Self { context: context.clone(), rank, slot, memory, bytes, receives, owner })
    }

    /// Fails all current and later waits with `Closed`, before the buffer is dropped.
    pub fn close(&self) {
        self.context.close_buffer(self.owner);
    }

    fn need(&self, receives: bool) -> Result<()> {
        if self.receives == receives {
            return Ok(());
        }
        let (is, not) = if self.receives { ("receives", "sends") } else { ("sends", "receives") };
        Err(Error::new(ErrorKind::InvalidOperation, format!("this buffer {is}, only one that {not} can do that")))
    }

    /// Starts to write `bytes` at `offset` of this buffer into the peer's buffer at `remote_offset`. Does not block.
    pub fn send(&self, offset: usize, bytes: usize, remote_offset: usize) -> Result<()> {
        self.need(false)?;
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            return Err(Error::invalid(format!(
                "{bytes} bytes at offset {offset} are not inside a buffer of {} bytes",
                self.bytes
            )));
        }
        let mut guard = self.context.lock()?;
        let from = self.memory.wrapping_add(offset);
        let token = Requests::token(self.owner, Side::Send);
        // SAFETY: the caller keeps the memory valid until the buffer is dropped, which cancels the operation.
        unsafe { guard.messenger.write(self.rank, self.slot, remote_offset as u64, from, bytes, token) };
        self.context.engine().leave(guard);
        Ok(())
    }

    fn wait(&self, side: Side, timeout: Option<Duration>) -> Result<Ended> {
        let (deadline, within) = self.context.deadline(timeout);
        self.wait_for(side, deadline, within)
            .map_err(|error| self.context.amended(timeout, deadline, error.during(side.operation())))
    }

    fn wait_for(&self, side: Side, deadline: Instant, timeout: Duration) -> Result<Ended> {
        let guard = self.context.lock()?;
        let engine = self.context.engine();
        let (guard, ended) = engine.wait_for(guard, Some(self.rank), &mut Idle::default(), deadline, |core| {
            core.requests.take(self.owner, side)
        });
        let own = Requests::token(self.owner, side);
        let messenger = &guard.messenger;
        let waits = ended.is_none().then(|| {
            (messenger.diagnosis().describe(self.owner, guard.now), messenger.diagnosis().blame(|token| token == own))
        });
        engine.hand_over(guard);
        let (what, own) = (if side == Side::Send { "to" } else { "from" }, self.context.own());
        let doing = format!("{own}: buffer of {} bytes in slot {:#x} {what} rank {}", self.bytes, self.slot, self.rank);
        match ended {
            Some(Ended::Failed(error)) => Err(error.context(doing)),
            Some(ended) => Ok(ended),
            None => {
                let (waits, blame) = waits.unwrap_or_default();
                let waits = if waits.is_empty() { waits } else { format!(", waiting {waits}") };
                let text = format!("{doing}: timed out {}{waits}", after(timeout));
                Err(Error::new(ErrorKind::Timeout, text).about(blame))
            }
        }
    }

    /// Waits until one more `send` of this buffer is sent.
    pub fn wait_send(&self, timeout: Option<Duration>) -> Result<()> {
        self.need(false)?;
        self.wait(Side::Send, timeout).map(|_| ())
    }

    /// Waits for one more write of the peer; returns its offset and length.
    pub fn wait_recv(&self, timeout: Option<Duration>) -> Result<(usize, usize)> {
        self.need(true)?;
        match self.wait(Side::Recv, timeout)? {
            Ended::Written { offset, bytes } => Ok((offset, bytes)),
            other => Err(Error::new(ErrorKind::Internal, format!("a receive buffer saw {other:?}"))),
        }
    }
}

impl Drop for BoundBuffer {
    fn drop(&mut self) {
        if let Ok(mut guard) = self.context.lock() {
            guard.messenger.cancel(self.owner);
            guard.messenger.connections_mut().release_memory(self.memory, self.bytes);
            guard.requests.leave(self.owner);
            self.context.engine().leave(guard);
        }
    }
}
