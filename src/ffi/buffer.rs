//! Bound buffers: one-sided channels to one peer.

use std::ffi::c_void;

use super::context_handle::Waits;
use super::guard::guard;
use super::handle::{self, Handle};
use super::pair::gloo_rs_pair_t;
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::BoundBuffer;

/// A bound buffer: one end of a one-sided channel to one peer. A send writes from the send buffer into the peer's
/// receive buffer of the same slot. It keeps its context's connections alive. Thread-safe.
pub struct gloo_rs_buffer_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_buffer_t {
    type Inner = BufferHandle;
    const TAG: u32 = u32::from_ne_bytes(*b" buf");
    const NAME: &'static str = "gloo_rs_buffer_t";
}

/// The object behind a buffer's handle.
pub struct BufferHandle {
    buffer: BoundBuffer,
    waits: Waits,
}

/// Creates a buffer for gloo_rs_buffer_send on the `bytes` bytes at `data`, of any alignment. The caller keeps the
/// memory valid until the buffer is destroyed, and does not change it between a send and the return of its
/// gloo_rs_buffer_wait_send. The caller destroys `*buffer` with gloo_rs_buffer_destroy; it is NULL on failure.
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
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `buffer` is NULL or valid for a write.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(pair, "pair")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        // SAFETY: `check_host_range` accepted the range; the header demands that `data` is valid for reads of
        // `bytes` until the buffer is destroyed.
        let buffer = unsafe { handle.pair.send_buffer(slot, data.cast(), bytes) }?;
        handle::create(BufferHandle { buffer, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// Creates a buffer on the `bytes` bytes at `data`, of any alignment, into which the peer's send buffer of the same
/// slot writes. The caller keeps the memory valid until the buffer is destroyed; the peer may write to it at any time
/// until then. The caller destroys `*buffer` with gloo_rs_buffer_destroy; it is NULL on failure.
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
        // SAFETY: the header demands that `pair` is NULL or a live handle, and `buffer` is NULL or valid for a write.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(pair, "pair")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        // SAFETY: `check_host_range` accepted the range; the header demands that `data` is valid for writes of
        // `bytes` until the buffer is destroyed.
        let buffer = unsafe { handle.pair.recv_buffer(slot, data.cast(), bytes) }?;
        handle::create(BufferHandle { buffer, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// Starts to write `length` bytes at `offset` of this send buffer into the peer's receive buffer, at `remote_offset`
/// there; all in bytes. Each send needs one gloo_rs_buffer_wait_send. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if the
/// range exceeds this buffer. If it exceeds the peer's buffer, whose length only the peer knows, the connection is
/// closed, and operations that depend on it fail on both ranks with GLOO_RS_ERROR_MISMATCH and a message that describes
/// the write.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_send(
    buffer: *mut gloo_rs_buffer_t,
    offset: usize,
    length: usize,
    remote_offset: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_send", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        unsafe { handle::get(buffer, "buffer") }?.buffer.send(offset, length, remote_offset)
    })
}

/// Waits until one more send of this buffer has completed; its bytes may be changed then. `timeout_ms` is in
/// milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_wait_send(buffer: *mut gloo_rs_buffer_t, timeout_ms: i64) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_wait_send", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        let timeout = pointer::timeout(timeout_ms)?;
        handle.waits.during(|| handle.buffer.wait_send(timeout))
    })
}

/// Waits until one more write of the peer has arrived in this receive buffer, and sets `*offset` and `*length` to its
/// position and length in bytes; each may be NULL. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the
/// context's.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_wait_recv(
    buffer: *mut gloo_rs_buffer_t,
    timeout_ms: i64,
    offset: *mut usize,
    length: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_buffer_wait_recv", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `offset` and `length` are NULL or
        // valid for a write.
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

/// Destroys the buffer. After the return, the library does not access the memory any more. Waits in other threads fail
/// with GLOO_RS_ERROR_CLOSED before this returns. No other thread may begin a call on the handle meanwhile. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_buffer_destroy(buffer: *mut gloo_rs_buffer_t) {
    guard("gloo_rs_buffer_destroy", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle on which no other call begins.
        if let Some(handle) = unsafe { handle::take(buffer, "buffer") }? {
            // In a forked child, the calls that the parent's threads were in never return.
            if !handle.buffer.is_inherited() {
                handle::drop_last(handle, |handle| handle.buffer.close());
            }
        }
        Ok(())
    });
}
