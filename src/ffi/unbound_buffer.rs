//! Unbound buffers: messages to and from any rank.

use std::ffi::{c_char, c_void};

use super::context::gloo_rs_context_t;
use super::context_handle::Waits;
use super::guard::guard;
use super::handle::{self, Handle};
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use crate::context::{RemoteKey, UnboundBuffer};
use crate::error::{Error, ErrorKind, Result};
use crate::reserve::try_collect;
use crate::types::Rank;

/// An unbound buffer: memory for messages to and from any rank of a context. It keeps its context's connections alive.
/// Thread-safe.
pub struct gloo_rs_unbound_buffer_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_unbound_buffer_t {
    type Inner = UnboundHandle;
    const TAG: u32 = u32::from_ne_bytes(*b"ubuf");
    const NAME: &'static str = "gloo_rs_unbound_buffer_t";
}

/// The object behind an unbound buffer's handle.
pub struct UnboundHandle {
    pub(super) buffer: UnboundBuffer,
    waits: Waits,
    /// Ranks in the context.
    pub(super) size: usize,
}

/// Creates a buffer on the `bytes` bytes at `data`, of any alignment. The caller keeps the memory valid until the
/// buffer is destroyed. Until the wait for an operation has returned, or its entry was taken from a gloo_rs_queue_t,
/// the caller must not change the bytes of a send or put, and must not access the bytes of a receive or get. The caller
/// destroys `*buffer` with gloo_rs_unbound_buffer_destroy; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_create(
    context: *mut gloo_rs_context_t,
    data: *mut c_void,
    bytes: usize,
    buffer: *mut *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_create", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `buffer` is NULL or valid for a
        // write.
        let (out, handle) = unsafe { (Out::handle(buffer, "buffer")?, handle::get(context, "context")?) };
        pointer::check_host_range(data.cast(), bytes, "data")?;
        let context = handle.shared()?;
        // SAFETY: `check_host_range` accepted the range; the header demands that `data` is valid for reads and writes
        // of `bytes` until the buffer is destroyed.
        let buffer = unsafe { context.unbound_buffer(data.cast(), bytes) }?;
        handle::create(UnboundHandle { buffer, waits: handle.waits.clone(), size: context.size() }, out);
        Ok(())
    })
}

/// Starts to send `bytes` bytes at `offset` to rank `to`. The message is matched to a receive with the same slot there;
/// messages of one rank and slot keep their order. Each send needs one gloo_rs_unbound_buffer_wait_send.
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
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        handle.buffer.send(pointer::rank(to, handle.size, "to")?, slot, offset, bytes)
    })
}

/// Starts to receive a message of at most `bytes` bytes from rank `from`, to `offset`. Each receive needs one
/// gloo_rs_unbound_buffer_wait_recv, which returns the number of bytes.
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
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        handle.buffer.recv(&[pointer::rank(from, handle.size, "from")?], slot, offset, bytes)
    })
}

/// Starts to receive a message of at most `bytes` bytes, to `offset`, from any of the `n` ranks in `from`: the one that
/// sends first. If several have messages queued in the slot, they are served round-robin: a rank that was served moves
/// behind the others that have queued messages. `from` may contain this rank, and a rank more than once, which has no
/// effect. gloo_rs_unbound_buffer_wait_recv returns the rank and the number of bytes.
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
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `from` is NULL or valid for reads of
        // `n` values.
        let handle = unsafe { handle::get(buffer, "buffer") }?;
        // SAFETY: as above.
        let from = unsafe { sources(from, n, handle.size) }?;
        handle.buffer.recv(&from, slot, offset, bytes)
    })
}

/// The ranks from any of which a message is received, in a context of `size` ranks.
///
/// # Safety
/// `from` is NULL or valid for reads of `n` values.
pub(super) unsafe fn sources(from: *const i32, n: usize, size: usize) -> Result<Vec<Rank>> {
    // SAFETY: by the contract.
    let from = unsafe { pointer::slice(from, n, "from") }?;
    if from.is_empty() {
        return Err(Error::invalid("from is empty; it must name at least one rank"));
    }
    let from = from.iter().map(|rank| pointer::rank(*rank, size, "a rank in from"));
    try_collect(from, "the ranks to receive from")
}

/// Waits until one more send, put or get of this buffer has completed, and sets `*rank`, if `rank` is not NULL, to its
/// peer. `timeout_ms` is in milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED
/// if gloo_rs_unbound_buffer_abort_wait_send ended the wait; sends, puts and gets continue.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_wait_send(
    buffer: *mut gloo_rs_unbound_buffer_t,
    timeout_ms: i64,
    rank: *mut i32,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_wait_send", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `rank` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(buffer, "buffer")?, Out::optional(rank, "rank")?) };
        let timeout = pointer::timeout(timeout_ms)?;
        let rank = handle.waits.during(|| handle.buffer.wait_send(timeout))?;
        let rank = rank.ok_or_else(|| aborted_by("gloo_rs_unbound_buffer_abort_wait_send"))?;
        set_rank(out, rank)
    })
}

/// Waits until one more receive of this buffer has completed, and sets `*rank` to the sender and `*bytes` to the length
/// of the message, which may be less than the receive allowed; each may be NULL. `timeout_ms` is in milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's. Fails with GLOO_RS_ERROR_ABORTED if
/// gloo_rs_unbound_buffer_abort_wait_recv ended the wait; receives stay posted.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_wait_recv(
    buffer: *mut gloo_rs_unbound_buffer_t,
    timeout_ms: i64,
    rank: *mut i32,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_wait_recv", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `rank` and `bytes` are NULL or valid
        // for a write.
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
    Error::new(ErrorKind::Aborted, format!("{call} ended the wait"))
}

fn set_rank(out: Option<Out<i32>>, rank: Rank) -> Result<()> {
    if let Some(out) = out {
        out.set(pointer::rank_to_c(rank)?);
    }
    Ok(())
}

/// Ends the current gloo_rs_unbound_buffer_wait_send of another thread; if there is none, the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_abort_wait_send(
    buffer: *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_abort_wait_send", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        unsafe { handle::get(buffer, "buffer") }?.buffer.abort_wait_send();
        Ok(())
    })
}

/// Ends the current gloo_rs_unbound_buffer_wait_recv of another thread; if there is none, the next one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_abort_wait_recv(
    buffer: *mut gloo_rs_unbound_buffer_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_abort_wait_recv", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle.
        unsafe { handle::get(buffer, "buffer") }?.buffer.abort_wait_recv();
        Ok(())
    })
}

/// Copies this buffer's remote key into `key` of `capacity` bytes. With it, other ranks can put into this buffer and
/// get from it, until it is destroyed. The key is ASCII text without spaces, of at most 64 bytes with the final NUL;
/// the program transfers it to them. `*needed` is set to its bytes with the NUL, also if `capacity` is too small, which
/// fails with GLOO_RS_ERROR_INVALID_ARGUMENT. `key` or `needed`, but not both, may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_remote_key(
    buffer: *mut gloo_rs_unbound_buffer_t,
    key: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_unbound_buffer_remote_key", || {
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `key` is NULL or valid for writes of
        // `capacity` bytes, `needed` NULL or valid for a write.
        unsafe {
            let handle = handle::get(buffer, "buffer")?;
            pointer::copy_out_text(&handle.buffer.remote_key()?.to_string(), key, capacity, needed)
        }
    })
}

/// Sets `*rank` to the rank of the buffer that a key from gloo_rs_unbound_buffer_remote_key names, and `*bytes` to its
/// length; each may be NULL. Fails with GLOO_RS_ERROR_INVALID_ARGUMENT if `key` is no such key. Only a put or get
/// detects that the buffer has been destroyed.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_remote_key_parse(
    key: *const c_char,
    rank: *mut i32,
    bytes: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_remote_key_parse", || {
        // SAFETY: the header demands that `key` is NULL or a string, and `rank` and `bytes` are NULL or valid for a
        // write.
        let (key, rank, bytes) =
            unsafe { (remote_key(key)?, Out::optional(rank, "rank")?, Out::optional(bytes, "bytes")?) };
        bytes.inspect(|bytes| bytes.set(key.bytes));
        set_rank(rank, key.rank)
    })
}

/// Starts to write `bytes` bytes at `offset` of this buffer into the buffer that `key` names, at `remote_offset` there.
/// The owner of that buffer calls nothing. When the bytes have been written, one gloo_rs_unbound_buffer_wait_send
/// returns. `slot` has no meaning yet. Fails with GLOO_RS_ERROR_INVALID_OPERATION if the key is of another context, or
/// of an earlier membership of this one.
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
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `key` is NULL or a string.
        let (handle, key) = unsafe { (handle::get(buffer, "buffer")?, remote_key(key)?) };
        handle.buffer.put(&key, slot, offset, remote_offset, bytes)
    })
}

/// Starts to read `bytes` bytes at `remote_offset` of the buffer that `key` names to `offset` of this buffer. The owner
/// of that buffer calls nothing. When the bytes have arrived, one gloo_rs_unbound_buffer_wait_send returns. `slot` has
/// no meaning yet. Fails with GLOO_RS_ERROR_INVALID_OPERATION if the key is of another context, or of an earlier
/// membership of this one.
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
        // SAFETY: the header demands that `buffer` is NULL or a live handle, and `key` is NULL or a string.
        let (handle, key) = unsafe { (handle::get(buffer, "buffer")?, remote_key(key)?) };
        handle.buffer.get(&key, slot, offset, remote_offset, bytes)
    })
}

/// # Safety
/// `key` is NULL or a string that nobody changes during the call.
unsafe fn remote_key(key: *const c_char) -> Result<RemoteKey> {
    // SAFETY: by the contract, `key` is NULL or a string that nobody changes.
    unsafe { pointer::text(key, "key") }?.parse()
}

/// Destroys the buffer. After the return, the library does not access the memory any more: pending receives are
/// cancelled, pending sends continue from a copy. Waits in other threads fail with GLOO_RS_ERROR_CLOSED before this
/// returns. No other thread may begin a call on the handle meanwhile. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_unbound_buffer_destroy(buffer: *mut gloo_rs_unbound_buffer_t) {
    guard("gloo_rs_unbound_buffer_destroy", || {
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
