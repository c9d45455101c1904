//! Pinned memory of the host, through which buffers in the memory of GPUs reach the network: copies to and from it go
//! on while the host does something else. Pinning takes long, so some of it is kept for later calls.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::driver::number;
use super::gpu::Gpu;
use crate::error::Result;

/// Bytes of pinned memory that are kept while no call uses them.
pub const KEPT_BYTES: usize = 64 << 20;

/// Sizes are multiples of this many bytes.
const PAGE_BYTES: usize = 4096;

/// The pinned memory of a context.
#[derive(Default)]
pub struct Pool {
    kept: Mutex<Kept>,
    /// Whether a GPU may access memory that calls have given back.
    is_abandoned: AtomicBool,
}

#[derive(Default)]
struct Kept {
    blocks: Vec<Block>,
    bytes: usize,
}

/// Pinned memory that no call uses.
struct Block {
    /// The GPU in whose context it was allocated. All GPUs can access it.
    gpu: Arc<Gpu>,
    memory: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a block owns its memory.
unsafe impl Send for Block {}
// SAFETY: shared references give no access to the memory.
unsafe impl Sync for Block {}

impl Block {
    fn new(gpu: &Arc<Gpu>, bytes: usize) -> Result<Self> {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: the driver writes to the variable. `drop` frees the memory.
        gpu.within(|| unsafe { gpu.driver().mem_host_alloc(&mut memory, bytes, number::HOST_ALLOC_PORTABLE) })
            .map_err(|error| error.context(format_args!("{bytes} bytes of pinned memory")))?;
        let memory = NonNull::new(memory.cast()).unwrap_or(NonNull::dangling());
        Ok(Self { gpu: gpu.clone(), memory, bytes })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.gpu.is_inherited() {
            let memory = self.memory.as_ptr().cast();
            // What the driver refuses to free remains until the process ends.
            // SAFETY: the memory is the driver's, and nobody uses it any more.
            let _ = self.gpu.within(|| unsafe { self.gpu.driver().mem_free_host(memory) });
        }
    }
}

impl Pool {
    /// At least so many bytes, kept or allocated; not zero.
    pub fn take(self: &Arc<Self>, gpu: &Arc<Gpu>, bytes: usize) -> Result<Pinned> {
        let known = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            // Not much more than is needed, which another call may need.
            let fits = |block: &Block| (bytes..=bytes.saturating_mul(2).max(PAGE_BYTES)).contains(&block.bytes);
            kept.blocks.iter().position(fits).map(|at| {
                let block = kept.blocks.swap_remove(at);
                kept.bytes -= block.bytes;
                block
            })
        };
        let size = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        let block = known.map_or_else(|| Block::new(gpu, size), Ok)?;
        Ok(Pinned { pool: self.clone(), block: Some(block) })
    }

    /// From now on no memory is used again or freed: a GPU that has not answered may access it.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }

    /// Takes memory back, and frees what is too much.
    fn give_back(&self, block: Block) {
        if self.is_abandoned.load(Ordering::Relaxed) {
            std::mem::forget(block);
            return;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.bytes + block.bytes <= KEPT_BYTES {
            kept.bytes += block.bytes;
            kept.blocks.push(block);
            return;
        }
        // Frees the block without the lock.
        drop(kept);
    }
}

/// Pinned memory of a call.
pub struct Pinned {
    pool: Arc<Pool>,
    block: Option<Block>,
}

impl Pinned {
    /// Its first byte, aligned to a page.
    pub fn pointer(&self) -> *mut u8 {
        self.block.as_ref().map_or(std::ptr::null_mut(), |block| block.memory.as_ptr())
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.block.take().into_iter().for_each(|block| self.pool.give_back(block));
    }
}
