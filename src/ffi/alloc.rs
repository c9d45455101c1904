//! Memory for data, which ranks of one host share.

use std::ffi::c_void;

use super::context::gloo_rs_context_t;
use super::guard::guard;
use super::handle;
use super::pointer::Out;
use super::status::gloo_rs_status_t;

/// Allocates `bytes` of memory for data and sets `*memory` to it, as MPI_Alloc_mem and ncclMemAlloc do. It is zero, and
/// aligned to a page at least. The context need not be connected.
///
/// In calls on `context`, ranks of this host that share memory read long data in it where it is, without a copy. So it
/// pays for the buffers of large collectives; up to 64 such buffers of 16 KiB or more are shared, further ones are
/// ordinary memory, as all are where ranks share no memory. The memory may be passed to calls on any context and used
/// like any other; a child by fork shares it with its parent. Free it with gloo_rs_dealloc: what is left is freed with
/// the context and its pairs, buffers and requests, whichever is destroyed last. Fails with
/// GLOO_RS_ERROR_RESOURCE_EXHAUSTED if there is not so much memory: more than the host's memory and swap, or than a
/// control group allows, or than the system still promises under strict overcommit (vm.overcommit_memory=2). Pages are
/// taken when they are first written, as with malloc, unless `commit_memory` in gloo_rs_context_options_t is set; under
/// strict overcommit those of shared buffers are taken at once, so that no write finds none. `*memory` is NULL on
/// failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_alloc(
    context: *mut gloo_rs_context_t,
    bytes: usize,
    memory: *mut *mut c_void,
) -> gloo_rs_status_t {
    guard("gloo_rs_alloc", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `memory` is NULL or valid for a
        // write.
        let (out, handle) = unsafe { (Out::handle(memory, "memory")?, handle::get(context, "context")?) };
        out.set(handle.member.alloc(bytes)?.as_ptr().cast());
        Ok(())
    })
}

/// Frees memory of gloo_rs_alloc, which must have been allocated on the same context, whatever its
/// membership was then. Nobody uses it any more: no call
/// on it runs, and no buffer or request contains it. NULL is ignored. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT for
/// other memory, and for memory that was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_dealloc(context: *mut gloo_rs_context_t, memory: *mut c_void) -> gloo_rs_status_t {
    guard("gloo_rs_dealloc", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        // SAFETY: the header demands that nobody uses the memory any more.
        if memory.is_null() { Ok(()) } else { unsafe { handle.member.dealloc(memory.cast()) } }
    })
}
