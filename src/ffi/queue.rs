//! Completion queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::time::Duration;

use super::error::remember;
use super::guard::guard;
use super::handle::{self, Block, Handle};
use super::options::{self, Options};
use super::pointer::{self, Out, rank_to_c};
use super::request::{RequestHandle, gloo_rs_request_t};
use super::status::{GLOO_RS_OK, gloo_rs_status_t};
use super::unbound_buffer::gloo_rs_unbound_buffer_t;
use crate::context::{Completion, CompletionKind, Completions, HasRequest, Request};
use crate::error::{Error, ErrorKind, Result, after};

/// A completion queue: it reports the ends of requests and of messages, of one context or of several, to any number of
/// threads, and to event loops. A request that is attached to a queue is not waited for nor tested: each of its calls
/// gives the queue one entry when it has ended, and whoever takes the entry has the result, as from gloo_rs_wait.
///
/// The calls make progress while no thread waits, by the thread of their device, but for reduction functions of the
/// caller: those are called by threads in gloo_rs_queue_wait, and by those that wait on the context otherwise.
/// Thread-safe.
pub struct gloo_rs_queue_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_queue_t {
    type Inner = Completions;
    const TAG: u32 = u32::from_ne_bytes(*b" cpq");
    const NAME: &'static str = "gloo_rs_queue_t";
}

impl HasRequest for Block<RequestHandle> {
    fn request(&self) -> &Request {
        &self.request
    }
}

/// Creates an empty queue. It belongs to no context. The caller destroys `*queue` with gloo_rs_queue_destroy; it is
/// NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_create(queue: *mut *mut gloo_rs_queue_t) -> gloo_rs_status_t {
    guard("gloo_rs_queue_create", || {
        // SAFETY: the header demands that `queue` is NULL or valid for a write.
        let out = unsafe { Out::handle(queue, "queue") }?;
        handle::create(Completions::new()?, out);
        Ok(())
    })
}

/// Attaches a request to a queue, which reports the end of each of its calls from now on, with `user`: of the one that
/// is in progress or has ended, if the request is active, and of those that gloo_rs_start starts later. So the request
/// is attached once, before its first start or after it. The attachment ends when the request is freed, or the queue
/// destroyed.
///
/// From a start until its entry is taken, the request is active: gloo_rs_wait, gloo_rs_test and the waits for several
/// refuse it with GLOO_RS_ERROR_INVALID_OPERATION. Fails so, too, if it is attached to a queue already.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_attach(
    queue: *mut gloo_rs_queue_t,
    request: *mut gloo_rs_request_t,
    user: u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_queue_attach", || {
        // SAFETY: the header demands that `queue` and `request` are NULL or live handles.
        let (queue, request) = unsafe { (handle::get(queue, "queue")?, handle::get(request, "request")?) };
        queue.attach(request, user)
    })
}

/// Waits for an entry, and takes it: sets `*user` to the number with which its request was attached, and `*status` to
/// what gloo_rs_wait would have returned. The request is inactive then. If `*status` is not GLOO_RS_OK, that failure
/// becomes the calling thread's last error, as if this call had failed with it. Every end is reported once, to one
/// thread. Returns GLOO_RS_OK if there was an entry.
///
/// If there is none within `timeout_ms` milliseconds, fails with GLOO_RS_ERROR_TIMEOUT, and nothing else changes; 0
/// asks once, and does what needs no waiting. GLOO_RS_TIMEOUT_DEFAULT and GLOO_RS_TIMEOUT_INFINITE: waits until there
/// is one. The timeouts of the calls run meanwhile, also while no thread waits; the entry of a call that has failed by
/// its own says so, after up to a second in which this thread finds out which rank is to blame.
///
/// While all calls in progress are of one context, the thread does their work, as one in gloo_rs_wait does; those of
/// several contexts are progressed by their devices' threads. If another thread closes or destroys the queue, fails
/// with GLOO_RS_ERROR_CLOSED. The destruction of a context does not end a wait: calls in progress keep its connections,
/// and gloo_rs_context_close ends them with GLOO_RS_ERROR_CLOSED, as entries.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_wait(
    queue: *mut gloo_rs_queue_t,
    timeout_ms: i64,
    user: *mut u64,
    status: *mut gloo_rs_status_t,
) -> gloo_rs_status_t {
    const NAME: &str = "gloo_rs_queue_wait";
    guard(NAME, || {
        // SAFETY: the header demands that `queue` is NULL or a live handle, and `user` and `status` are NULL or valid
        // for a write.
        let (queue, user, status) =
            unsafe { (handle::get(queue, "queue")?, Out::new(user, "user")?, Out::new(status, "status")?) };
        let time = pointer::timeout(timeout_ms)?.filter(|time| *time != Duration::MAX);
        let completion = take(&queue, time)?;
        user.set(completion.user);
        status.set(completion.result.map_or_else(|error| remember(NAME, &error), |_| GLOO_RS_OK));
        Ok(())
    })
}

fn take(queue: &Completions, time: Option<Duration>) -> Result<Completion> {
    queue.wait(time)?.ok_or_else(|| {
        let (time, calls) = (after(time.unwrap_or_default()), queue.count());
        let which = if calls == 1 { "1 call is".to_owned() } else { format!("{calls} calls are") };
        Error::new(ErrorKind::Timeout, format!("there is no entry {time}; {which} in progress"))
    })
}

/// Attaches an unbound buffer to a queue, which reports the end of each of its sends, puts, gets and receives from now
/// on, with `user`; also of those that have begun or ended before, if no wait has returned for them. An entry takes the
/// place of one gloo_rs_unbound_buffer_wait_send or gloo_rs_unbound_buffer_wait_recv, which are refused with
/// GLOO_RS_ERROR_INVALID_OPERATION meanwhile; gloo_rs_queue_wait_entry tells which it is, and the peer. The attachment
/// ends when the buffer is destroyed, with the entries that were not taken, or the queue closed: then waits return for
/// them. Operations have no timeout; a lost connection, or the end of the context, ends them.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_attach_buffer(
    queue: *mut gloo_rs_queue_t,
    buffer: *mut gloo_rs_unbound_buffer_t,
    user: u64,
) -> gloo_rs_status_t {
    guard("gloo_rs_queue_attach_buffer", || {
        // SAFETY: the header demands that `queue` and `buffer` are NULL or live handles.
        let (queue, buffer) = unsafe { (handle::get(queue, "queue")?, handle::get(buffer, "buffer")?) };
        queue.attach_buffer(&buffer.buffer, user)
    })
}

/// What an entry of a queue is the end of.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum gloo_rs_entry_kind_t {
    /// The call of a request.
    GLOO_RS_ENTRY_REQUEST = 0,
    /// A send, put or get of an unbound buffer.
    GLOO_RS_ENTRY_SEND = 1,
    /// A receive of an unbound buffer.
    GLOO_RS_ENTRY_RECV = 2,
}

use gloo_rs_entry_kind_t::*;

/// An entry of a queue. Initialise it with gloo_rs_queue_entry_init; gloo_rs_queue_wait_entry fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gloo_rs_queue_entry_t {
    /// sizeof(gloo_rs_queue_entry_t).
    pub struct_size: usize,
    /// The number with which the request or buffer was attached.
    pub user: u64,
    /// What the wait for it would have returned.
    pub status: MaybeUninit<gloo_rs_status_t>,
    /// What it is the end of.
    pub kind: MaybeUninit<gloo_rs_entry_kind_t>,
    /// The peer of a message that was sent or received, put or got; else -1.
    pub rank: i32,
    /// The bytes of that message.
    pub bytes: usize,
}

// SAFETY: repr(C), a usize first, and integers and `MaybeUninit` only.
unsafe impl Options for gloo_rs_queue_entry_t {
    const NAME: &'static str = "gloo_rs_queue_entry_t";
    const REQUIRED: usize = size_of::<usize>();
    fn set_defaults(&mut self) {
        self.rank = -1;
    }
}

/// Sets `entry->struct_size`, the rank to -1, and all else to 0. `struct_size` is sizeof(gloo_rs_queue_entry_t); at
/// most that many bytes are written. NULL is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_entry_init(entry: *mut gloo_rs_queue_entry_t, struct_size: usize) {
    // SAFETY: the header demands that `entry` is NULL or valid for writes of `struct_size` bytes.
    unsafe { options::init(entry, struct_size) }
}

/// Waits for an entry and takes it, as gloo_rs_queue_wait does, and fills `*entry` with it. At most
/// `entry->struct_size` bytes are written.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_wait_entry(
    queue: *mut gloo_rs_queue_t,
    timeout_ms: i64,
    entry: *mut gloo_rs_queue_entry_t,
) -> gloo_rs_status_t {
    const NAME: &str = "gloo_rs_queue_wait_entry";
    guard(NAME, || {
        // SAFETY: the header demands that `queue` is NULL or a live handle.
        let queue = unsafe { handle::get(queue, "queue") }?;
        let time = pointer::timeout(timeout_ms)?.filter(|time| *time != Duration::MAX);
        // Nothing is taken that could not be told.
        // SAFETY: the header demands that `entry` is NULL or valid for reads and writes of its `struct_size` bytes.
        unsafe { options::fill(entry, "entry", to_c(0, GLOO_RS_ENTRY_REQUEST, GLOO_RS_OK, None)?) }?;
        let taken = entry_of(NAME, take(&queue, time)?)?;
        // SAFETY: as above.
        unsafe { options::fill(entry, "entry", taken) }
    })
}

/// The entry with an end. A failure becomes the last error of this thread, of the call with this `name`.
pub(super) fn entry_of(name: &str, completion: Completion) -> Result<gloo_rs_queue_entry_t> {
    let Completion { user, kind, result } = completion;
    let kind = match kind {
        CompletionKind::Request => GLOO_RS_ENTRY_REQUEST,
        CompletionKind::Send => GLOO_RS_ENTRY_SEND,
        CompletionKind::Recv => GLOO_RS_ENTRY_RECV,
    };
    let status = result.as_ref().map_or_else(|error| remember(name, error), |_| GLOO_RS_OK);
    to_c(user, kind, status, result.ok().flatten())
}

fn to_c(
    user: u64,
    kind: gloo_rs_entry_kind_t,
    status: gloo_rs_status_t,
    message: Option<(usize, usize)>,
) -> Result<gloo_rs_queue_entry_t> {
    let rank = message.map_or(Ok(-1), |(rank, _)| rank_to_c(rank))?;
    Ok(gloo_rs_queue_entry_t {
        struct_size: 0,
        user,
        status: MaybeUninit::new(status),
        kind: MaybeUninit::new(kind),
        rank,
        bytes: message.map_or(0, |(_, bytes)| bytes),
    })
}

/// Sets `*fd` to a descriptor that is readable while the queue has an entry, for poll, epoll and event loops. It may be
/// readable without one, for a moment, when a call is to be looked at: so a program that finds it readable calls
/// gloo_rs_queue_wait with a timeout of 0 until that fails with GLOO_RS_ERROR_TIMEOUT. The queue owns the descriptor,
/// which is always the same one: it must not be read, written or closed, and is closed with the queue. It is
/// close-on-exec, and a child by fork does not have it. Fails with GLOO_RS_ERROR_UNSUPPORTED on other systems than
/// Linux.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_fd(queue: *mut gloo_rs_queue_t, fd: *mut c_int) -> gloo_rs_status_t {
    guard("gloo_rs_queue_fd", || {
        // SAFETY: the header demands that `queue` is NULL or a live handle, and `fd` is NULL or valid for a write.
        let (queue, out) = unsafe { (handle::get(queue, "queue")?, Out::new(fd, "fd")?) };
        out.set(queue.descriptor()?);
        Ok(())
    })
}

/// Closes a queue: waits, in any thread, fail with GLOO_RS_ERROR_CLOSED, and so do later calls. Its requests are
/// attached no more. Refused with GLOO_RS_ERROR_INVALID_OPERATION, and nothing changes, while one of them is active, or
/// was freed and its entry was not taken: take the entries first. If their contexts are closed, they come at once.
/// Closing again has no effect. Buffers are attached no more, whatever they do.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_close(queue: *mut gloo_rs_queue_t) -> gloo_rs_status_t {
    guard("gloo_rs_queue_close", || {
        // SAFETY: the header demands that `queue` is NULL or a live handle.
        unsafe { handle::get(queue, "queue") }?.close()
    })
}

/// Closes a queue as gloo_rs_queue_close does, and destroys it; refused as that is. Waits in other threads have
/// returned before this does. No other thread may begin a call on the handle meanwhile. NULL is ignored.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_queue_destroy(queue: *mut gloo_rs_queue_t) -> gloo_rs_status_t {
    guard("gloo_rs_queue_destroy", || {
        if queue.is_null() {
            return Ok(());
        }
        // SAFETY: the header demands that `queue` is NULL or a live handle on which no other call begins.
        let own = unsafe { handle::get(queue, "queue") }?;
        let is_inherited = own.is_inherited();
        if !is_inherited {
            own.close()?;
        }
        drop(own);
        // SAFETY: as above.
        let Some(own) = unsafe { handle::take(queue, "queue") }? else { return Ok(()) };
        if is_inherited {
            // Another thread of the parent may have been changing it.
            std::mem::forget(own);
        } else {
            handle::drop_last(own, |_| ());
        }
        Ok(())
    })
}
