//! Bound buffers: one-sided channels to one peer.

use std::ffi::c_void;

use super::context::Waits;
use super::guard::guard;
use super::handle::{self, Handle};
use super::pair::gloo_rs_pair_t;
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::BoundBuffer;

/// One end of a one-sided channel to one peer: what a send buffer sends is written into the peer's receive buffer of the
/// same slot. Keeps its context's connections alive. Safe to use from several threads.
pub struct gloo_rs_buffer_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_buffer_t {
    type Inner = BufferHandle;
    const TAG: u64 = u64::from_ne_bytes(*b"gloo buf");
    const NAME: &'static str = "gloo_rs_buffer_t";
}

/// What a buffer's handle stands for.
pub struct BufferHandle {
    buffer: BoundBuffer,
    waits: Waits,
}

/// A buffer for gloo_rs_buffer_send: `bytes` of memory at `data`, which the caller keeps valid until the buffer is destroyed
/// and does not change between a send and the return of its gloo_rs_buffer_wait_send. `data` needs no alignment. The caller
/// owns the result and ends it with gloo_rs_buffer_destroy; on failure `*buffer` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_create_send_buffer(
    pair: *mut gloo_rs_pair_t,
    slot: u64,
    data: *const c_void,
    bytes: usize,
    buffer: *mut *mut gloo_rs_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_create_send_buffer", || {
        // SAFETY: the header's rules for pointers.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(pair, "pair")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        // SAFETY: checked as far as a pointer can be; the caller vouches for the rest.
        let buffer = unsafe { handle.pair.send_buffer(slot, data.cast(), bytes) }?;
        handle::create(BufferHandle { buffer, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// A buffer that the peer's send buffer of the same slot writes into: `bytes` of memory at `data`, which the caller keeps
/// valid until the buffer is destroyed. The peer may write at any time until then. `data` needs no alignment. The caller
/// owns the result and ends it with gloo_rs_buffer_destroy; on failure `*buffer` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_pair_create_recv_buffer(
    pair: *mut gloo_rs_pair_t,
    slot: u64,
    data: *mut c_void,
    bytes: usize,
    buffer: *mut *mut gloo_rs_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_pair_create_recv_buffer", || {
        // SAFETY: the header's rules for pointers.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(pair, "pair")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        // SAFETY: checked as far as a pointer can be; the caller vouches for the rest.
        let buffer = unsafe { handle.pair.recv_buffer(slot, data.cast(), bytes) }?;
        handle::create(BufferHandle { buffer, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// Starts to write `length` bytes from `offset` of this send buffer into the peer's receive buffer, at `remote_offset`
/// there. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if the range leaves this buffer. Every send wants one
/// gloo_rs_buffer_wait_send. How long the peer's buffer is, only the peer knows: a range that leaves it ends the connection,
/// and what depends on that fails on both ranks with GLOO_RS_ERROR_MISMATCH and a message that names the write.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_send(
    buffer: *mut gloo_rs_buffer_t,
    offset: usize,
    length: usize,
    remote_offset: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_send", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(buffer, "buffer") }?.buffer.send(offset, length, remote_offset)
    })
}

/// Waits until one more send has left this buffer, which may then be written again. `timeout_ms` is in milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_wait_send(buffer: *mut gloo_rs_buffer_t, timeout_ms: i64) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_wait_send", || {
        // SAFETY: the header's rules for pointers.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        let timeout = pointer::timeout(timeout_ms)?;
        handle.waits.during(|| handle.buffer.wait_send(timeout))
    })
}

/// Waits until one more write of the peer's has arrived in this receive buffer, and sets `*offset` and `*length` to where
/// and how many bytes; each may be NULL. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_wait_recv(
    buffer: *mut gloo_rs_buffer_t,
    timeout_ms: i64,
    offset: *mut usize,
    length: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_wait_recv", || {
        // SAFETY: the header's rules for pointers.
        let (handle, offset, length) = unsafe {
            (handle::get(buffer, "buffer")?, Out::optional(offset, "offset")?, Out::optional(length, "length")?)
        };
        let timeout = pointer::timeout(timeout_ms)?;
        let arrived = handle.waits.during(|| handle.buffer.wait_recv(timeout))?;
        offset.inspect(|offset| offset.set(arrived.0));
        length.inspect(|length| length.set(arrived.1));
        Ok(())
    })
}

/// Ends the buffer; the memory is the caller's alone again when this returns. Waits in other threads fail with
/// GLOO_RS_ERROR_CLOSED, and this returns after them. No other thread may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_destroy(buffer: *mut gloo_rs_buffer_t) {
    guard("gloo_rs_buffer_destroy", || {
        // SAFETY: the header's rules for pointers.
        if let Some(handle) = unsafe { handle::take(buffer, "buffer") }? {
            // After a fork nobody returns from calls that the parent's threads were in.
            if !handle.buffer.is_inherited() {
                handle::drop_last(handle, |handle| handle.buffer.close());
            }
        }
        Ok(())
    });
}
