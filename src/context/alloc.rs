//! Memory for data, which the other ranks of the host read where it is.

use std::ptr::NonNull;

use super::Context;
use crate::error::Result;
use crate::transport;

impl Context {
    /// Allocates `bytes` of zeroed memory, for data of calls on any context: aligned to a page at least, and with huge
    /// pages where the system allows that. In calls on this context, ranks that share memory with this one read it in
    /// place; if memory cannot be shared, it is ordinary memory. It may be used until it is freed by
    /// [`Context::dealloc`], or with the context. Fails with `ResourceExhausted` if there is not so much memory. Its
    /// pages are taken when they are first written, or at once if
    /// [`ContextOptions::commit_memory`](super::ContextOptions::commit_memory) says so.
    ///
    /// A child by fork shares the memory with its parent, like memory mapped with `MAP_SHARED`.
    pub fn alloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        transport::check_process(self.device().as_ref())?;
        let memory = self.allocations.allocate(bytes, self.options.commit_memory)?;
        if let Some(mapped) = self.allocations.mapped_bytes(memory.as_ptr()) {
            self.lock()?.messenger.connections_mut().retain_memory(memory.as_ptr(), mapped);
        }
        Ok(memory)
    }

    /// Frees memory of [`Context::alloc`]. Fails with `InvalidArgument` if this context has not allocated it, or it was
    /// freed.
    ///
    /// # Safety
    /// Nothing in this process accesses the memory any more; no call or buffer uses it.
    pub unsafe fn dealloc(&self, memory: *mut u8) -> Result<()> {
        transport::check_process(self.device().as_ref())?;
        if let Some(mapped) = self.allocations.mapped_bytes(memory) {
            self.lock()?.messenger.connections_mut().release_memory(memory, mapped);
        }
        // SAFETY: the caller guarantees it.
        unsafe { self.allocations.free(memory) }
    }
}
