//! Aborts of a context, and what ranks do that are left.

use std::ffi::c_char;

use super::context::gloo_rs_context_t;
use super::context_handle::ContextHandle;
use super::guard::guard;
use super::handle;
use super::pointer::{self, Out};
use super::status::gloo_rs_status_t;
use super::store::gloo_rs_store_t;
use crate::context::Context;

/// Aborts the context on all its ranks. Calls that wait, requests in progress and later calls fail there with
/// GLOO_RS_ERROR_ABORTED and a message with `reason` and this rank, which is also the `rank` of gloo_rs_last_error;
/// only gloo_rs_context_broken, gloo_rs_context_is_aborted, gloo_rs_context_handle, gloo_rs_context_close, agree,
/// shrink and reconfigure, and functions that destroy or free, work as before. A call of gloo_rs_context_connect or
/// gloo_rs_context_reconfigure ends, too. The context stays aborted until it is reconfigured or destroyed.
///
/// Waits for nobody. May be called from any thread, also from a reduction function or while other threads wait, but not
/// from a log callback. Ranks that are connected, or share memory, are told at once and tell others; one that connects
/// later is told then. The first abort counts: a later one, also of another rank, changes nothing and returns
/// GLOO_RS_OK, and so does one of a closed context. `reason` is a string or NULL for none; peers get its first 4000
/// bytes. Buffers of an operation are the caller's again when its call, its wait or its test has returned, and not
/// before: an abort gives none back.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_abort(
    context: *mut gloo_rs_context_t,
    reason: *const c_char,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_abort", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `reason` is NULL or a string.
        let (handle, reason) = unsafe { (handle::get(context, "context")?, pointer::optional_text(reason, "reason")?) };
        handle.member.abort(reason.unwrap_or("no reason was given"))
    })
}

/// Sets `*aborted` to whether the context was aborted, by this rank or another, as far as this rank knows.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_is_aborted(
    context: *const gloo_rs_context_t,
    aborted: *mut bool,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_is_aborted", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `aborted` is NULL or valid for a
        // write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(aborted, "aborted")?) };
        out.set(handle.context().map_or(Ok(false), Context::is_aborted)?);
        Ok(())
    })
}

/// Agrees with the ranks that are left, as MPIX_Comm_agree does. `*flags` is replaced by its bitwise and over all ranks
/// that take part. All ranks that are left get the same flags, the same status and the same list of lost ranks, for
/// gloo_rs_context_lost_ranks, however many ranks end meanwhile. Collective, over links of its own, so it works on a
/// context in any state but closed, and while other calls run. A rank is lost if its process has ended, its context is
/// closed, or a connection to it has broken; if it lives, it fails.
///
/// Returns GLOO_RS_OK; or GLOO_RS_ERROR_CONNECTION_LOST if more ranks are lost than when the ranks agreed last, with
/// `*flags` and the list set all the same. Other errors leave `*flags` as it is. Fails with GLOO_RS_ERROR_TIMEOUT if
/// not all ranks have come within `timeout_ms` milliseconds; GLOO_RS_TIMEOUT_DEFAULT for the context's. This rank has
/// voted all the same: its next call goes on with this agreement, and with the flags that were passed first. One thread
/// of a rank may agree at a time.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_agree(
    context: *mut gloo_rs_context_t,
    flags: *mut u64,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_agree", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `flags` is NULL or valid for a read
        // and a write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(flags, "flags")?) };
        let timeout = pointer::timeout(timeout_ms)?;
        let context = handle.context()?;
        let _entered = handle.waits.enter();
        // SAFETY: not NULL, so valid for a read.
        let agreed = context.agree(unsafe { flags.read() }, timeout)?;
        out.set(agreed.flags);
        if agreed.has_grown { Err(context.loss(&agreed.lost)) } else { Ok(()) }
    })
}

/// Sets `*n` to the number of ranks that were lost when the ranks agreed last, or shrank the context, and stores the
/// first `capacity` of them in `ranks`, in ascending order. `ranks` may be NULL if `capacity` is 0.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_lost_ranks(
    context: *const gloo_rs_context_t,
    ranks: *mut i32,
    capacity: usize,
    n: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_lost_ranks", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `n` is NULL or valid for a write.
        let (handle, out) = unsafe { (handle::get(context, "context")?, Out::new(n, "n")?) };
        let lost = handle.context()?.lost_ranks();
        if capacity > 0 {
            // SAFETY: the header demands that `ranks` is NULL or valid for writes of `capacity` values.
            let out = unsafe { Out::new(ranks, "ranks") }?;
            for (at, rank) in lost.iter().take(capacity).enumerate() {
                out.set_at(at, pointer::rank_to_c(*rank)?);
            }
        }
        out.set(lost.len());
        Ok(())
    })
}

/// Makes a connected context of the ranks that are left, in their order, as MPIX_Comm_shrink does. Collective, on a
/// context in any state but closed, which stays as it is. However many ranks end meanwhile, all that are left get a
/// context of the same ranks, or all fail. The new context has the device, timeout, options and tuning constants of
/// `context`, and does not need it afterwards. The caller destroys `*smaller` with gloo_rs_context_destroy; it is NULL
/// on failure.
///
/// Fails with GLOO_RS_ERROR_TIMEOUT if not all ranks have come within `timeout_ms` milliseconds;
/// GLOO_RS_TIMEOUT_DEFAULT for the context's. This rank is lost for the agreements of the others on `context` then.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_shrink(
    context: *mut gloo_rs_context_t,
    timeout_ms: i64,
    smaller: *mut *mut gloo_rs_context_t,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_shrink", || {
        // SAFETY: the header demands that `context` is NULL or a live handle, and `smaller` is NULL or valid for a
        // write.
        let (out, handle) = unsafe { (Out::handle(smaller, "smaller")?, handle::get(context, "context")?) };
        let timeout = pointer::timeout(timeout_ms)?;
        let context = handle.context()?;
        let _entered = handle.waits.enter();
        let context = context.shrink(timeout)?;
        handle::create(ContextHandle::new(context), out);
        Ok(())
    })
}

/// Copies the handle of the context, a text of at most 64 bytes with a NUL byte at its end, into `buffer` of `capacity`
/// bytes. It names this process and the present membership of the context, for gloo_rs_context_reconfigure in other
/// processes, which the program passes it to. Each membership has another handle. `*needed` is set to its length with
/// the NUL byte, also if `capacity` is too small, which fails with GLOO_RS_ERROR_INVALID_ARGUMENT. `buffer` or
/// `needed`, but not both, may be NULL.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_handle(
    context: *const gloo_rs_context_t,
    buffer: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_handle", || {
        // SAFETY: the header demands that `context` is NULL or a live handle.
        let handle = unsafe { handle::get(context, "context") }?;
        // SAFETY: the header demands that `buffer` is NULL or valid for writes of `capacity` bytes, and `needed` is
        // NULL or valid for a write.
        unsafe { pointer::copy_out_text(&handle.member.handle()?, buffer, capacity, needed) }
    })
}

/// Gives the context a new membership: the processes with these `n` `handles`, each from gloo_rs_context_handle there.
/// Collective: all of them call it, with the same handles, `ordered` and `id`, over a store in which no reconfigure has
/// had that `id`; this context's handle is among them, and none is there twice. If `ordered`, ranks are positions in
/// `handles`; if not, handles may have any order, and the library chooses one that is the same everywhere. Ranks that
/// are left out do not take part: their contexts are aborted. Contexts with and without members may take part, in any
/// state but closed.
///
/// First, if anything runs on the context here (collectives, requests, messages), the context is aborted, so all that
/// fails with GLOO_RS_ERROR_ABORTED, also on its other ranks. Then the processes connect. They get the new membership
/// once all have; otherwise the call fails, for all of them, and their contexts are as before, or aborted if something
/// ran. Only a process that cannot read the outcome in the store, after it has said that it is connected, does not know
/// it: its call fails with GLOO_RS_ERROR_TIMEOUT or GLOO_RS_ERROR_IO and a message that says so, and its context is
/// broken.
///
/// On success, requests, pairs, buffers and remote keys of the earlier membership fail with
/// GLOO_RS_ERROR_INVALID_OPERATION: free or destroy them, and exchange keys anew. Memory of gloo_rs_alloc stays, and so
/// do contexts that were split off. Slots, tags and the recorder begin anew. Options, device and the timeout are those
/// that the context has. Calls that other threads begin meanwhile run in the one membership or in the other, and their
/// buffers must have room for both.
///
/// Fails with GLOO_RS_ERROR_TIMEOUT if not all have come and connected within `timeout_ms` milliseconds, of which a
/// quarter, and at most 4 s, is for the outcome; GLOO_RS_TIMEOUT_DEFAULT for the context's. The `rank` of
/// gloo_rs_last_error is that in the new membership. Fails with GLOO_RS_ERROR_MISMATCH if the `id` was used before, or
/// the others pass another list; with GLOO_RS_ERROR_INVALID_ARGUMENT if the handles are not as above; with
/// GLOO_RS_ERROR_IO, and the store's name, if the store does not answer; with GLOO_RS_ERROR_ABORTED if the context is
/// aborted meanwhile, and with GLOO_RS_ERROR_CLOSED if it was closed. The store must be able to append or to add. Not
/// to be called from a reduction function.
#[must_use]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gloo_rs_context_reconfigure(
    context: *mut gloo_rs_context_t,
    store: *mut gloo_rs_store_t,
    id: i64,
    handles: *const *const c_char,
    n: usize,
    ordered: bool,
    timeout_ms: i64,
) -> gloo_rs_status_t {
    guard("gloo_rs_context_reconfigure", || {
        // SAFETY: the header demands that `context` and `store` are NULL or live handles, and `handles` is NULL or
        // valid for reads of `n` strings.
        let (handle, store, handles) = unsafe {
            (handle::get(context, "context")?, handle::get(store, "store")?, pointer::texts(handles, n, "handles")?)
        };
        let timeout = pointer::timeout(timeout_ms)?;
        let store = store.part(format!("gloo_rs/reconfigure/{id}"));
        let uses = || ContextHandle::uses(&handle);
        // SAFETY: `uses` counts the other calls on the handle, each of which takes the context after `order`. Pairs,
        // buffers and requests have references of their own.
        unsafe { handle.member.reconfigure(&store, id, &handles, ordered, timeout, &uses) }
    })
}
