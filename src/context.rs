//! A context: one process's membership in a group of ranks.

use std::sync::Arc;
use std::time::Duration;

use crate::collective::Shape;
use crate::error::Result;
use crate::rendezvous::Store;
use crate::transport::tcp::Device;
use crate::types::{DataType, Rank, ReduceOp, Slot};

/// When connections to peers are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Connect {
    /// On first use.
    #[default]
    Lazy,
    /// To every rank, before `connect` returns.
    Full,
}

/// How a context behaves.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// Time that any one operation may take, if the call does not say otherwise. 30 s by default.
    pub timeout: Duration,
    /// When connections are made.
    pub connect: Connect,
    /// Largest piece, in bytes, that a collective sends as one message. 1 MiB by default.
    pub max_segment_bytes: usize,
}

impl Default for ContextOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), connect: Connect::Lazy, max_segment_bytes: 1 << 20 }
    }
}

/// Combines elements the caller's way: `into[i] = left[i] op right[i]`; returns 0, or anything else to fail the call.
/// `into` may equal `left` or `right`. Called only from the thread that made the collective call.
pub type UserFunction = unsafe extern "C" fn(
    into: *mut std::ffi::c_void,
    left: *const std::ffi::c_void,
    right: *const std::ffi::c_void,
    count: usize,
    user: *mut std::ffi::c_void,
) -> i32;

/// How a collective combines elements.
#[derive(Clone, Copy)]
pub enum Reduction {
    /// One of the library's.
    Op(ReduceOp),
    /// The caller's; must be associative, and commutative but for scan and exscan.
    User { function: UserFunction, user: *mut std::ffi::c_void },
}

/// A collective call.
pub struct Call<'a> {
    /// What is asked, with `rank` and `size` of the context.
    pub shape: Shape<'a>,
    /// Algorithm by name; `None` or `auto` lets the library choose.
    pub algorithm: Option<&'a str>,
    /// Type of the elements.
    pub dtype: DataType,
    /// How they are combined; ignored by collectives that do not reduce.
    pub reduction: Reduction,
    /// One pointer for each input of the shape.
    pub inputs: &'a [*const u8],
    /// One pointer for each output of the shape.
    pub outputs: &'a [*mut u8],
    /// Tells apart calls that run at the same time on one context. The same on all ranks.
    pub tag: u32,
    /// Instead of the context's.
    pub timeout: Option<Duration>,
    /// Instead of the context's. The same on all ranks.
    pub max_segment_bytes: Option<usize>,
}

/// One process's membership in a group. Safe to use from several threads.
pub struct Context {
    rank: Rank,
    size: usize,
}

impl Context {
    /// A context without connections.
    pub fn new(device: &Arc<Device>, rank: Rank, size: usize, options: &ContextOptions) -> Result<Arc<Context>> {
        let _ = (device, rank, size, options);
        todo!()
    }

    /// Finds the other ranks over `store`. Collective: every rank calls it, with a store (or prefix) of this context's own.
    pub fn connect(&self, store: &dyn Store) -> Result<()> {
        let _ = store;
        todo!()
    }

    /// Finds the other ranks over a connected context of the same ranks, with `tag`. Collective.
    pub fn connect_from(&self, parent: &Context, tag: u32) -> Result<()> {
        let _ = (parent, tag);
        todo!()
    }

    /// This process.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Processes in the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Time that an operation may take by default.
    pub fn timeout(&self) -> Duration {
        todo!()
    }

    /// Sets it for operations that begin later.
    pub fn set_timeout(&self, timeout: Duration) {
        let _ = timeout;
    }

    /// Reserves `n` slot numbers for the caller and returns the first; on all ranks the same as long as all ask the same.
    pub fn next_slot(&self, n: u32) -> Slot {
        let _ = n;
        todo!()
    }

    /// Whether `rank` runs on this host. Known once connected.
    pub fn shares_host(&self, rank: Rank) -> Result<bool> {
        let _ = rank;
        todo!()
    }

    /// Ends every connection; what waits fails with `Aborted`. Later calls fail. Idempotent.
    pub fn close(&self) {}

    /// Runs a collective and returns when this rank's part is done.
    ///
    /// # Safety
    /// Every pointer of `call` is valid for the elements that the shape says ([`Shape::input_len`],
    /// [`Shape::output_len`]) until this returns; outputs overlap nothing.
    pub unsafe fn run(&self, call: &Call<'_>) -> Result<()> {
        let _ = call;
        todo!()
    }

    /// The algorithm that `run` would choose for `shape` and `dtype` when asked for `auto`.
    pub fn choose(&self, shape: &Shape<'_>, dtype: DataType) -> &'static str {
        let _ = (shape, dtype);
        todo!()
    }

    /// The connection to `rank`, for control by hand.
    pub fn pair(self: &Arc<Self>, rank: Rank) -> Result<Pair> {
        let _ = rank;
        todo!()
    }

    /// A buffer for messages to and from any rank.
    ///
    /// # Safety
    /// `ptr` is valid for reads and writes of `bytes` until the buffer is dropped.
    pub unsafe fn unbound_buffer(self: &Arc<Self>, ptr: *mut u8, bytes: usize) -> Result<UnboundBuffer> {
        let _ = (ptr, bytes);
        todo!()
    }
}

/// The connection to one peer.
pub struct Pair {
    _context: Arc<Context>,
}

impl Pair {
    /// The peer.
    pub fn rank(&self) -> Rank {
        todo!()
    }

    /// What the peer needs to connect: to be brought there by the caller's own means.
    pub fn address(&self) -> Vec<u8> {
        todo!()
    }

    /// Connects, given what the peer's `address` returned; until the context's timeout. Both sides must call it.
    pub fn connect(&self, peer: &[u8]) -> Result<()> {
        let _ = peer;
        todo!()
    }

    /// Ends this connection; what waits on it fails.
    pub fn close(&self) {}

    /// Whether the connection stands.
    pub fn is_connected(&self) -> bool {
        todo!()
    }

    /// `sync`: waits sleep in the system at once instead of spinning first. `busy_poll`: they never sleep.
    pub fn set_sync(&self, sync: bool, busy_poll: bool) -> Result<()> {
        let _ = (sync, busy_poll);
        todo!()
    }

    /// A buffer whose contents are written into the peer's receive buffer of the same slot.
    ///
    /// # Safety
    /// `ptr` is valid for `bytes` until the buffer is dropped.
    pub unsafe fn send_buffer(&self, slot: Slot, ptr: *const u8, bytes: usize) -> Result<BoundBuffer> {
        let _ = (slot, ptr, bytes);
        todo!()
    }

    /// A buffer that the peer's send buffer of the same slot writes into, at any time until it is dropped.
    ///
    /// # Safety
    /// `ptr` is valid for writes of `bytes` until the buffer is dropped.
    pub unsafe fn recv_buffer(&self, slot: Slot, ptr: *mut u8, bytes: usize) -> Result<BoundBuffer> {
        let _ = (slot, ptr, bytes);
        todo!()
    }
}

/// One end of a one-sided channel to one peer.
pub struct BoundBuffer {
    _context: Arc<Context>,
}

impl BoundBuffer {
    /// Writes `bytes` from `offset` of this buffer into the peer's, at `remote_offset`.
    pub fn send(&self, offset: usize, bytes: usize, remote_offset: usize) -> Result<()> {
        let _ = (offset, bytes, remote_offset);
        todo!()
    }

    /// Waits until one more `send` has left this buffer.
    pub fn wait_send(&self, timeout: Option<Duration>) -> Result<()> {
        let _ = timeout;
        todo!()
    }

    /// Waits until one more write of the peer's has arrived; returns its offset and length.
    pub fn wait_recv(&self, timeout: Option<Duration>) -> Result<(usize, usize)> {
        let _ = timeout;
        todo!()
    }
}

/// A buffer for messages to and from any rank. Safe to use from several threads.
pub struct UnboundBuffer {
    _context: Arc<Context>,
}

/// Names an unbound buffer of another process, for [`UnboundBuffer::put`] and [`UnboundBuffer::get`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteKey {
    /// Whose.
    pub rank: Rank,
    /// Which of its buffers.
    pub id: u64,
    /// How long that buffer is.
    pub bytes: u64,
}

impl RemoteKey {
    /// For the way to another process.
    pub fn serialize(&self) -> Vec<u8> {
        todo!()
    }

    /// The key that `serialize` wrote.
    pub fn deserialize(bytes: &[u8]) -> Result<RemoteKey> {
        let _ = bytes;
        todo!()
    }
}

impl UnboundBuffer {
    /// Starts to send `bytes` from `offset` to `to`.
    pub fn send(&self, to: Rank, slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        let _ = (to, slot, offset, bytes);
        todo!()
    }

    /// Starts to receive at most `bytes` at `offset`, from whichever of `from` sends first.
    pub fn recv(&self, from: &[Rank], slot: Slot, offset: usize, bytes: usize) -> Result<()> {
        let _ = (from, slot, offset, bytes);
        todo!()
    }

    /// Waits until one more send or put has completed; the rank it was with, or `None` if the wait was aborted.
    pub fn wait_send(&self, timeout: Option<Duration>) -> Result<Option<Rank>> {
        let _ = timeout;
        todo!()
    }

    /// Waits until one more receive has completed; the rank it was from, or `None` if the wait was aborted.
    pub fn wait_recv(&self, timeout: Option<Duration>) -> Result<Option<Rank>> {
        let _ = timeout;
        todo!()
    }

    /// Ends the current or next `wait_send`.
    pub fn abort_wait_send(&self) {}

    /// Ends the current or next `wait_recv`.
    pub fn abort_wait_recv(&self) {}

    /// A key with which other ranks may `put` into this buffer and `get` from it, as long as it lives.
    pub fn remote_key(&self) -> Result<RemoteKey> {
        todo!()
    }

    /// Writes `bytes` from `offset` into the remote buffer at `remote_offset`. `wait_send` tells when it is there.
    pub fn put(&self, key: &RemoteKey, slot: Slot, offset: usize, remote_offset: usize, bytes: usize) -> Result<()> {
        let _ = (key, slot, offset, remote_offset, bytes);
        todo!()
    }

    /// Reads `bytes` at `remote_offset` of the remote buffer into `offset`. `wait_recv` tells when it is here.
    pub fn get(&self, key: &RemoteKey, slot: Slot, offset: usize, remote_offset: usize, bytes: usize) -> Result<()> {
        let _ = (key, slot, offset, remote_offset, bytes);
        todo!()
    }
}
