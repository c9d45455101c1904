//! Groups: starts of requests and messages that begin together, or not at all.

use std::mem::MaybeUninit;
use std::sync::Arc;

use super::collective::{gloo_rs_collective_options_t, gloo_rs_collective_t, kind_of};
use super::context::gloo_rs_context_t;
use super::context_handle::Waits;
use super::guard::guard;
use super::handle::{self, Block, Handle};
use super::options;
use super::pointer::{self, Out};
use super::request::{RequestHandle, gloo_rs_request_t, prepared};
use super::status::gloo_rs_status_t;
use super::unbound_buffer::{UnboundHandle, gloo_rs_unbound_buffer_t, sources};
use crate::context::{Group, HasBuffer, UnboundBuffer};
use crate::error::{Error, Result};

/// A group of starts, as between ncclGroupStart and ncclGroupEnd: the collectives and messages of one context that name
/// it begin together, at gloo_rs_group_end, or none of them does. It is an object and not a state of the thread, so
/// several groups may be open, and any threads may add to one.
///
/// Ranks need not have the same groups, nor one order within them: operations that differ in collective or tag, and
/// messages that differ in peer, direction or slot, match whatever their order. Those that are equal match in the order
/// in which they were added. So ranks that exchange messages, as the stages of a pipeline do, cannot deadlock by their
/// order. Thread-safe.
pub struct gloo_rs_group_t {
    _opaque: [u8; 0],
}

impl Handle for gloo_rs_group_t {
    type Inner = GroupHandle;
    const TAG: u32 = u32::from_ne_bytes(*b" grp");
    const NAME: &'static str = "gloo_rs_group_t";
}

/// The object behind a group's handle.
pub struct GroupHandle {
    group: Group,
    waits: Waits,
}

impl HasBuffer for Block<UnboundHandle> {
    fn buffer(&self) -> &UnboundBuffer {
        &self.buffer
    }
}

/// Makes an empty group of starts on a context, which must be connected when the group ends. Does not communicate. The
/// caller ends `*group` with gloo_rs_group_end, or gives it up with gloo_rs_group_cancel; it is NULL on failure.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_begin(
    context: *mut gloo_rs_context_t,
    group: *mut *mut gloo_rs_group_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_group_begin", || {
        // SAFETY: the header demands that `group` is NULL or valid for a write, and `context` is NULL or a live handle.
        let (out, handle) = unsafe { (Out::handle(group, "group")?, handle::get(context, "context")?) };
        handle::create(GroupHandle { group: handle.shared()?.group()?, waits: handle.waits.clone() }, out);
        Ok(())
    })
}

/// Has gloo_rs_group_end execute allreduces of the group as one, as Horovod does with its fusion buffer: on a copy of
/// their elements, of at most `max_bytes` in all. Those are joined that follow each other on one tag, with equal type and
/// operation, if the bits are the same, and if messages are sent for them: not where all ranks share memory. Bits are the
/// same in the order of ranks, and by some algorithms, such as recursive_doubling; the library may choose another one.
/// Each request ends as it would alone; all of a joined call fail together, and after the shortest of their timeouts.
/// Counters and the flight recorder have the joined call.
///
/// `max_bytes` and the allreduces of the group must be the same on all ranks: another one is a mismatch. None may have
/// several inputs or outputs: that fails gloo_rs_group_end. 0, as without this call, joins none; the last call counts.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_fuse(group: *mut gloo_rs_group_t, max_bytes: usize) -> gloo_rs_status_t {
    guard("gloo_rs_group_fuse", || {
        // SAFETY: the header demands that `group` is NULL or a live handle.
        let own = unsafe { handle::get(group, "group") }?;
        own.group.naming(|| own.group.fuse(max_bytes))
    })
}

/// Adds what gloo_rs_collective_start does to a group: a call of the collective `kind` with `options`, which begins
/// when the group ends, with what its buffers contain then. Its timeout begins then, too. `*request` belongs to the
/// group until that: to wait for it, or to start or attach it, is refused with GLOO_RS_ERROR_INVALID_OPERATION, and to
/// free it fails the group. It is active if gloo_rs_group_end succeeds, and inactive if that fails or the group is
/// given up; the caller frees it in each case. It is NULL if this call fails, and then gloo_rs_group_end fails, too.
///
/// Refused with GLOO_RS_ERROR_INVALID_OPERATION: algorithms whose first start waits for the counts of other ranks
/// (gatherv and scatterv `binomial`, alltoallv `bruck`).
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_collective_start(
    group: *mut gloo_rs_group_t,
    kind: MaybeUninit<gloo_rs_collective_t>,
    options: *const gloo_rs_collective_options_t,
    request: *mut *mut gloo_rs_request_t,
) -> gloo_rs_status_t {
    // First, so that the handle is NULL whatever fails.
    // SAFETY: the header demands that `request` is NULL or valid for a write.
    let out = unsafe { Out::handle(request, "request") };
    guard("gloo_rs_group_collective_start", || {
        // SAFETY: the header demands that `group` is NULL or a live handle.
        let own = unsafe { handle::get(group, "group") }?;
        own.group.naming(|| {
            // SAFETY: C initialises arguments; any number is accepted.
            let (out, collective) = (out?, unsafe { kind_of(kind) }?);
            let start = || {
                // SAFETY: the header demands that `options` is NULL or valid for its `struct_size` bytes.
                let options = unsafe { options::read(options) }?;
                // SAFETY: the header demands that the pointers in `options` are valid as their comments say.
                let made = unsafe { prepared((own.group.context(), &own.waits), collective, &options, true) }?;
                let made = handle::make::<gloo_rs_request_t>(made);
                own.group.start(made.clone())?;
                handle::give(made, out);
                Ok(())
            };
            start().map_err(|error: Error| match error.details().operation.is_empty() {
                true => error.during(collective.name()),
                false => error,
            })
        })
    })
}

/// Adds what gloo_rs_start does to a group, for an inactive request that gloo_rs_group_collective_start or
/// gloo_rs_collective_start has made on this context, and that has ended since. One that is attached to a queue gives
/// that an entry, if the group begins. Refused with GLOO_RS_ERROR_INVALID_OPERATION if the request is active or in a
/// group, or was made by gloo_rs_collective_prepare: another of its collective and tag could not run beside it.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_start(
    group: *mut gloo_rs_group_t,
    request: *mut gloo_rs_request_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_group_start", || {
        // SAFETY: the header demands that `group` is NULL or a live handle.
        let own = unsafe { handle::get(group, "group") }?;
        own.group.naming(|| {
            // SAFETY: the header demands that `request` is NULL or a live handle.
            let request: Arc<Block<RequestHandle>> = unsafe { handle::get(request, "request") }?;
            own.group.start(request)
        })
    })
}

/// Adds what gloo_rs_unbound_buffer_send does to a group. The message is posted when the group ends, with what the
/// buffer contains then, and needs a wait, or gives an entry, only if that succeeds. A buffer that is destroyed before
/// fails the group.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_send(
    group: *mut gloo_rs_group_t,
    buffer: *mut gloo_rs_unbound_buffer_t,
    to: i32,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_group_send", || {
        let send = |group: &Group, own: &Arc<dyn HasBuffer>, size| {
            group.send(own, pointer::rank(to, size, "to")?, slot, offset, bytes)
        };
        // SAFETY: the caller's duties are those of this function.
        unsafe { message(group, buffer, send) }
    })
}

/// Adds what gloo_rs_unbound_buffer_recv does to a group; see gloo_rs_group_send.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_recv(
    group: *mut gloo_rs_group_t,
    buffer: *mut gloo_rs_unbound_buffer_t,
    from: i32,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_group_recv", || {
        let recv = |group: &Group, own: &Arc<dyn HasBuffer>, size| {
            group.recv(own, &[pointer::rank(from, size, "from")?], slot, offset, bytes)
        };
        // SAFETY: the caller's duties are those of this function.
        unsafe { message(group, buffer, recv) }
    })
}

/// Adds what gloo_rs_unbound_buffer_recv_any does to a group; see gloo_rs_group_send.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_recv_any(
    group: *mut gloo_rs_group_t,
    buffer: *mut gloo_rs_unbound_buffer_t,
    from: *const i32,
    n: usize,
    slot: u64,
    offset: usize,
    bytes: usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_group_recv_any", || {
        let recv = |group: &Group, own: &Arc<dyn HasBuffer>, size| {
            // SAFETY: the header demands that `from` is NULL or valid for reads of `n` values.
            group.recv(own, &unsafe { sources(from, n, size) }?, slot, offset, bytes)
        };
        // SAFETY: the caller's duties are those of this function.
        unsafe { message(group, buffer, recv) }
    })
}

/// Adds a message of `buffer` to a group. `add` gets both, and the number of ranks.
///
/// # Safety
/// `group` and `buffer` are NULL or live handles.
unsafe fn message(
    group: *mut gloo_rs_group_t,
    buffer: *mut gloo_rs_unbound_buffer_t,
    add: impl FnOnce(&Group, &Arc<dyn HasBuffer>, usize) -> Result<()>,
) -> Result<()> {
    // SAFETY: by the contract.
    let own = unsafe { handle::get(group, "group") }?;
    own.group.naming(|| {
        // SAFETY: by the contract.
        let buffer: Arc<Block<UnboundHandle>> = unsafe { handle::get(buffer, "buffer") }?;
        let size = buffer.size;
        let buffer: Arc<dyn HasBuffer> = buffer;
        add(&own.group, &buffer, size)
    })
}

/// Ends a group: posts all its starts at once, and waits for nobody. `group` is destroyed, whatever this returns. If
/// one start is refused, none is posted, and this fails with the reason: if a call that named the group has failed, if
/// the context is broken or not connected, or if a plain call, or a request of gloo_rs_collective_prepare, of a
/// collective and tag in the group is running. All requests of the group are inactive then, and the context is as
/// before. Only a lack of memory (GLOO_RS_ERROR_RESOURCE_EXHAUSTED), or of a GPU, breaks it.
///
/// With check_calls in the context's options, the calls are compared first, in the order of tags and collectives, which
/// waits for the groups of the other ranks; these need the same calls then. No other thread may begin a call on the
/// group meanwhile.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_end(group: *mut gloo_rs_group_t) -> gloo_rs_status_t {
    guard("gloo_rs_group_end", || {
        // SAFETY: the header demands that `group` is NULL or a live handle on which no other call begins.
        let own = unsafe { handle::get(group, "group") }?;
        let ended = own.waits.during(|| own.group.end());
        // SAFETY: as above.
        unsafe { handle::take(group, "group") }.map(drop)?;
        ended
    })
}

/// Gives a group up: destroys it, and nothing that named it begins. Its requests are inactive. NULL is ignored. No
/// other thread may begin a call on the group meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_group_cancel(group: *mut gloo_rs_group_t) {
    guard("gloo_rs_group_cancel", || {
        // SAFETY: the header demands that `group` is NULL or a live handle on which no other call begins.
        unsafe { handle::take(group, "group") }.map(drop)
    });
}
