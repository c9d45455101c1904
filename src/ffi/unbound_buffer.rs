//! Unbound buffers: messages to and from any rank.

use std::ffi::{c_char, c_void};

use super::context::{Waits, gloo_rs_context_t};
use super::guard::guard;
use super::handle::{self, Handle};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::{RemoteKey, UnboundBuffer};
use crate::error::{Error, ErrorKind, Result};
use crate::types::Rank;

/// A buffer for messages to and from any rank of a context. Keeps its context's connections alive. Safe to use from several
/// threads.
pub struct gloo_rs_unbound_buffer_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_unbound_buffer_t {
    type Inner = UnboundHandle;
    const TAG: u64 = u64::from_ne_bytes(*b"glooubuf");
    const NAME: &'static str = "gloo_rs_unbound_buffer_t";
}

/// What an unbound buffer's handle stands for.
pub struct UnboundHandle {
    buffer: UnboundBuffer,
    waits: Waits,
    /// Ranks in the context.
    size: usize,
}

/// A buffer on `bytes` of memory at `data`, which the caller keeps valid until the buffer is destroyed. Bytes under a send
/// must not change, and bytes under a receive or get must not be touched, until the wait for it has returned. `data` needs no
/// alignment. The caller owns the result and ends it with gloo_rs_unbound_buffer_destroy; on failure `*buffer` is NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_create(
    context: *mut gloo_rs_context_t,
    data: *mut c_void,
    bytes: usize,
    buffer: *mut *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_create", || {
        // SAFETY: the header's rules for pointers.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(context, "context")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        // SAFETY: checked as far as a pointer can be; the caller vouches for the rest.
        let buffer = unsafe { handle.context.unbound_buffer(data.cast(), bytes) }?;
        handle::create(UnboundHandle { buffer, waits: handle.waits.clone(), size: handle.context.size() }, out);
        Ok(())
    })
}

/// Starts to send `bytes` from `offset` to rank `to`. A message meets the receive with the same slot there; messages of one
/// rank and slot keep their order. Every send wants one gloo_rs_unbound_buffer_wait_send.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_send(
    buffer: *mut gloo_rs_unbound_buffer_t,
    to: i32,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_send", || {
        // SAFETY: the header's rules for pointers.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        handle.buffer.send(pointer::rank(to, handle.size, "to")?, slot, offset, bytes)
    })
}

/// Starts to receive at most `bytes` at `offset` from rank `from`. Every receive wants one gloo_rs_unbound_buffer_wait_recv,
/// which tells how many bytes came.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_recv(
    buffer: *mut gloo_rs_unbound_buffer_t,
    from: i32,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_recv", || {
        // SAFETY: the header's rules for pointers.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        handle.buffer.recv(&[pointer::rank(from, handle.size, "from")?], slot, offset, bytes)
    })
}

/// Starts to receive at most `bytes` at `offset` from whichever of the `n` ranks in `from` sends first; when several have
/// messages waiting in the slot, they take turns: the rank that was served goes behind the others that wait, and ranks that
/// have sent nothing have no turn. The list may hold the caller's own rank; repeats change nothing.
/// gloo_rs_unbound_buffer_wait_recv tells the rank and how many bytes came.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_recv_any(
    buffer: *mut gloo_rs_unbound_buffer_t,
    from: *const i32,
    n: usize,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_recv_any", || {
        // SAFETY: the header's rules for pointers.
        let (handle, from) = unsafe { (handle::get(buffer, "buffer")?, pointer::slice(from, n, "from")?) };
        if from.is_empty() {
            return Err(Error::invalid("from is empty: no rank could ever send"));
        }
        let from = from.iter().map(|rank| pointer::rank(*rank, handle.size, "a rank in from"));
        handle.buffer.recv(&from.collect::<Result<Vec<_>>>()?, slot, offset, bytes)
    })
}

/// Waits until one more send, put or get of this buffer has completed, and sets `*rank`, if not NULL, to the rank it was with.
/// `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED if
/// gloo_rs_unbound_buffer_abort_wait_send ended the wait: sends, puts and gets go on.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_wait_send(
    buffer: *mut gloo_rs_unbound_buffer_t,
    timeout_ms: i64,
    rank: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_wait_send", || {
        // SAFETY: the header's rules for pointers.
        let (handle, out) = unsafe { (handle::get(buffer, "buffer")?, Out::optional(rank, "rank")?) };
        let timeout = pointer::timeout(timeout_ms)?;
        let rank = handle.waits.during(|| handle.buffer.wait_send(timeout))?;
        let rank = rank.ok_or_else(|| aborted_by("gloo_rs_unbound_buffer_abort_wait_send"))?;
        set_rank(out, rank)
    })
}

/// Waits until one more receive of this buffer has completed, and sets `*rank` to the rank it was from, and `*bytes`
/// to how many bytes came, which may be fewer than the receive asked for; each may be NULL. `timeout_ms` is in milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED if gloo_rs_unbound_buffer_abort_wait_recv
/// ended the wait: the receives stay.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_wait_recv(
    buffer: *mut gloo_rs_unbound_buffer_t,
    timeout_ms: i64,
    rank: *mut i32,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_wait_recv", || {
        // SAFETY: the header's rules for pointers.
        let (handle, rank, bytes) =
            unsafe { (handle::get(buffer, "buffer")?, Out::optional(rank, "rank")?, Out::optional(bytes, "bytes")?) };
        let timeout = pointer::timeout(timeout_ms)?;
        let came = handle.waits.during(|| handle.buffer.wait_recv(timeout))?;
        let came = came.ok_or_else(|| aborted_by("gloo_rs_unbound_buffer_abort_wait_recv"))?;
        bytes.inspect(|bytes| bytes.set(came.1));
        set_rank(rank, came.0)
    })
}

fn aborted_by(call: &str) -> Error {
    Error::new(ErrorKind::Aborted, format!("ended by {call}"))
}

fn set_rank(out: Option<Out<i32>>, rank: Rank) -> Result<()> {
    if let Some(out) = out {
        out.set(pointer::rank_to_c(rank)?);
    }
    Ok(())
}

/// Ends the current gloo_rs_unbound_buffer_wait_send of another thread, or else the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_abort_wait_send(
    buffer: *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_abort_wait_send", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(buffer, "buffer") }?.buffer.abort_wait_send();
        Ok(())
    })
}

/// Ends the current gloo_rs_unbound_buffer_wait_recv of another thread, or else the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_abort_wait_recv(
    buffer: *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_abort_wait_recv", || {
        // SAFETY: the header's rules for pointers.
        unsafe { handle::get(buffer, "buffer") }?.buffer.abort_wait_recv();
        Ok(())
    })
}

/// A key with which other ranks may put into this buffer and get from it, as long as it lives: ASCII text without spaces, to be
/// brought there by the caller's own means. Copied with its NUL byte, with which it has at most 64 bytes, into `key` of
/// `capacity` bytes. `*needed` is set to its bytes; `key` may be NULL to ask for that only, `needed` may be NULL otherwise.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_remote_key(
    buffer: *mut gloo_rs_unbound_buffer_t,
    key: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_remote_key", || {
        // SAFETY: the header's rules for pointers.
        unsafe {
            let handle = handle::get(buffer, "buffer")?;
            pointer::copy_out_text(&handle.buffer.remote_key()?.to_string(), key, capacity, needed)
        }
    })
}

/// What a key of gloo_rs_unbound_buffer_remote_key says: the rank whose buffer it names, and how many bytes that has; each may
/// be NULL. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if `key` is not such a key; whether the buffer still lives only a put or
/// get tells.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_remote_key_parse(
    key: *const c_char,
    rank: *mut i32,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_remote_key_parse", || {
        // SAFETY: `key` is NULL or a string, `rank` and `bytes` are NULL or valid for a write, says the header.
        let (key, rank, bytes) =
            unsafe { (remote_key(key)?, Out::optional(rank, "rank")?, Out::optional(bytes, "bytes")?) };
        bytes.inspect(|bytes| bytes.set(key.bytes));
        set_rank(rank, key.rank)
    })
}

/// Starts to write `bytes` from `offset` of this buffer into the buffer that `key` names, at `remote_offset` there; its owner
/// need not do anything. One gloo_rs_unbound_buffer_wait_send returns when the bytes are there. `slot` has no meaning yet.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_put(
    buffer: *mut gloo_rs_unbound_buffer_t,
    key: *const c_char,
    slot: u64,
    offset: usize,
    remote_offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_put", || {
        // SAFETY: `key` is NULL or a string that stays as it is during the call, `buffer` NULL or a handle, says the header.
        let (handle, key) = unsafe { (handle::get(buffer, "buffer")?, remote_key(key)?) };
        handle.buffer.put(&key, slot, offset, remote_offset, bytes)
    })
}

/// Starts to read `bytes` at `remote_offset` of the buffer that `key` names into `offset` of this buffer; its owner need not do
/// anything. One gloo_rs_unbound_buffer_wait_send returns when the bytes are here. `slot` has no meaning yet.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_get(
    buffer: *mut gloo_rs_unbound_buffer_t,
    key: *const c_char,
    slot: u64,
    offset: usize,
    remote_offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_get", || {
        // SAFETY: as in gloo_rs_unbound_buffer_put.
        let (handle, key) = unsafe { (handle::get(buffer, "buffer")?, remote_key(key)?) };
        handle.buffer.get(&key, slot, offset, remote_offset, bytes)
    })
}

/// # Safety
/// `key` is NULL or a string that nobody changes meanwhile.
unsafe fn remote_key(key: *const c_char) -> Result<RemoteKey> {
    // SAFETY: the same contract.
    unsafe { pointer::text(key, "key") }?.parse()
}

/// Ends the buffer; the memory is the caller's alone again when this returns. Waits in other threads fail with
/// GLOO_RS_ERROR_CLOSED, and this returns after them; operations that were not waited for are given up. No other thread
/// may be beginning a call on the handle. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_destroy(buffer: *mut gloo_rs_unbound_buffer_t) {
    guard("gloo_rs_unbound_buffer_destroy", || {
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
